"""Attribution by repair: a second opinion that does not read causes but tries them.

The decoder decodes the case again while the target gives each query what it should have had: the right positions, the
right part of the decoder's cache (mask), or the right entries (cache); each alone, then together.
`eqcheck.transparent.attribution.witnesses` says how far this is a proof.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, combinations
from typing import NamedTuple, cast

import numpy as np

from eqcheck.contract.decoders import Generate
from eqcheck.contract.family import FAMILY, Family
from eqcheck.core.explanation.records import Explanation, Opinion
from eqcheck.transparent.attribution.labels import Labels, labels_of
from eqcheck.transparent.attribution.writes import NO_WRITE, Label, Write
from eqcheck.transparent.decoding import Run
from eqcheck.transparent.decoding import run as run_case
from eqcheck.transparent.hashlm import hashing
from eqcheck.transparent.hashlm.hashing import CALL, COLUMN, MODEL, ROW, Bools, Ints, Words
from eqcheck.transparent.hashlm.trace import DRAFT, TARGET, Call, Fix, Trace

PARTS = ("position", "mask", "cache")
PLACE = "place"  # a position of a model that counts its tokens, and is fed none
Chosen = list[tuple[int | None, int | None]]  # slots, and the logical positions that they hold
_BLANK = Label(-1, -1, "blank")
_OTHER_MODEL = Label(-1, -1, "draft model")


def repair(generate: Generate, run: Run, explanation: Explanation, timeout: float | None = None) -> Opinion:
    """Decode again under each repair and see which restores the output, or at least the target's answer."""
    row, index = explanation.row, explanation.token_index
    assert row is not None
    assert index is not None
    position = len(run.case.prompts[row]) + index - 1
    answered = _answered(run, labels_of(run, run.trace), row, position)
    restores: list[tuple[str, ...]] = []
    mends: list[tuple[str, ...]] = []
    failed = ""
    family = FAMILY[run.case.family]
    # The steps of a state follow from what it takes in; a right mask, or right entries, have them right, too.
    tried = [part for part in PARTS if part != "position" or not family.stateful]
    # Small sets first: a set that contains one which restores the output says nothing more about the fault, and each
    # costs a decode.
    for parts in chain.from_iterable(combinations(tried, size) for size in range(1, len(tried) + 1)):
        if _contains_one(parts, restores):
            continue
        repairer = Repairer(run, parts)
        again = run_case(generate, run.case, timeout, repair=repairer.of)
        failed = failed or repairer.failed
        if again.outputs == run.truth.rows:
            restores.append(parts)
        elif not answered and not _contains_one(parts, mends):
            mends += [parts] if _answered(again, repairer.labels, row, position) else []

    def named(sets: list[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
        return tuple(tuple(PLACE if part == "position" and not family.fed else part for part in each) for each in sets)

    return Opinion(named(restores), () if restores else named(mends), failed)


def _contains_one(parts: tuple[str, ...], smaller: Sequence[tuple[str, ...]]) -> bool:
    return any(set(parts) > set(one) for one in smaller)


def _answered(run: Run, labels: Labels, row: int, position: int) -> bool:
    """Return whether a query that stood for this token of this row saw exactly its row."""
    digests = run.truth.digests[row][-1]
    calls = {call.number: call for call in run.trace.of(TARGET)}
    return any(
        calls[number].digests[call_row, column] == digests[position]
        for (number, call_row, column), _ in labels.queries(row, position)
        if number in calls
    )


class Item(NamedTuple):
    """One entry of a repaired context: its slot (None when it is not in the cache), the logical position of the row's
    token that it holds (None for anything else), and where the query takes it to be."""

    slot: int | None
    position: int | None
    place: int


class _Sight(NamedTuple):
    """The repaired contexts of a row's queries: ``held`` by slot, ``items`` by query, and their places as arrays."""

    held: list[tuple[Label, Write]]
    items: list[list[Item]]
    key_places: Ints
    shown: Bools
    places: Ints
    whole: Bools


class Repairer:
    """Gives the queries of each target call the right ``parts`` of their context; one per run, called in order."""

    def __init__(self, run: Run, parts: Iterable[str]) -> None:
        self.parts = frozenset(parts)
        self.family, self.trace = FAMILY[run.case.family], Trace()
        self.stored = [hashing.truncated(digests[0]) for digests in run.truth.digests]
        self.labels = labels_of(run, self.trace)
        self._drafted = 0
        self.failed = ""
        # A state or a row of slots that holds the right entries has them at the right distances, too.
        counted = "cache" in self.parts or self.family.stateful
        self.renumber = "position" in self.parts or (counted and not self.family.fed)

    def of(self, trace: Trace) -> Repairer:
        """Attach to the trace of the run to be repaired."""
        self.trace = trace
        return self

    def __call__(self, call: Call) -> Fix:
        """The fix of a call that is about to be made, from what it would see unrepaired."""
        try:
            return self._fix(call)
        except Exception as error:  # the decoder is running, and this is none of its faults
            self.failed = f"{type(error).__name__}: {error}"
            raise

    def _fix(self, call: Call) -> Fix:
        drafted = self.trace.of(DRAFT)
        for earlier in drafted[self._drafted :]:
            self.labels.add(earlier)
        self._drafted = len(drafted)
        self.labels.add(call)
        batch, block = call.tokens.shape
        fix = Fix(
            np.zeros((batch, block), np.bool_),
            np.zeros((hashing.LAYERS, batch, block), np.uint64),
            call.positions.copy(),
            np.zeros((batch, block), np.bool_) if "mask" in self.parts else None,
            "cache" in self.parts,
        )
        if call.kv[0].shape != call.kv[-1].shape:
            return fix
        for row in range(batch):
            self._fix_row(call, row, fix)
        return fix

    def _fix_row(self, call: Call, row: int, fix: Fix) -> None:
        # Right digests are computed here, and not by feeding the model right inputs, because the repaired query may
        # have to see entries that are in no slot of the cache, in an order that no mask can give.
        labels: dict[int, Label] = {}
        for column in range(call.tokens.shape[1]):
            label = self.labels.of[call.number, row, column]
            if fix.pads is not None:
                fix.pads[row, column] = label.what == "pad"
            if label.what == "token" and label.position < len(self.labels.sequence(label.request)):
                labels[column] = label  # behind the end of a row there is no right context
                fix.known[row, column] = True
                if "position" in self.parts:
                    fix.positions[row, column] = label.position
        columns, carry = list(labels), np.zeros(len(labels), np.uint64)
        sight: _Sight | None = None
        for layer in range(hashing.LAYERS):
            now, holds = call.of_layer(layer)
            if sight is None or call.lower:
                sight = self._sight(now, row, labels, self.family if layer else self.family.lower)
            words = hashing.contents(holds[:, row : row + 1], call.role, layer, call.weights)[0][0]
            # Entries of this very call came from unrepaired queries; later ones must see it as repaired.
            for slot, (_, write) in enumerate(sight.held):
                if write[0] == call.number and fix.known[write[1:]]:
                    token, digest = call.tokens[write[1:]], fix.digests[0][write[1:]]
                    words[slot] = hashing.intact_contents(np.array([token]), np.array([digest]) if layer else None)[0]
            seen, whole = np.zeros(sight.shown.shape, np.uint64), sight.whole[layer % len(sight.whole)]
            for n, (items, label) in enumerate(zip(sight.items, labels.values(), strict=True)):
                seen[n, : len(items)] = [self._word(layer, i, label.request, words, whole) for i in items]
            tokens = call.tokens[row, columns, None]
            args = (seen, sight.key_places, sight.shown[:, None], tokens, sight.places[:, None], carry[:, None])
            carry = hashing.attend(self.family, layer, *args)[:, 0]
            fix.digests[layer, row, columns] = carry

    def _sight(self, call: Call, row: int, labels: Mapping[int, Label], family: Family) -> _Sight:
        """The repaired contexts of the queries of a row, by column, in layers that see the same."""
        held = [self._holds(fields) for fields in call.kv[0][0, row, 0]]
        contexts = [self._context(call, row, column, label, held, family) for column, label in labels.items()]
        longest = max((len(items) for items, _ in contexts), default=0)
        key_places = np.zeros((len(contexts), longest), np.int64)
        shown = np.zeros(key_places.shape, np.bool_)
        for n, (items, _) in enumerate(contexts):
            key_places[n, : len(items)] = [item.place for item in items]
            shown[n, : len(items)] = True
        places = np.array([place for _, place in contexts], np.int64)
        return _Sight(held, [items for items, _ in contexts], key_places, shown, places, _whole(call, row))

    def _holds(self, fields: Ints) -> tuple[Label, Write]:
        write = (int(fields[CALL]), int(fields[ROW]), int(fields[COLUMN]))
        if fields[MODEL] == TARGET:
            return self.labels.of.get(write, _BLANK), write
        return (_OTHER_MODEL if fields[MODEL] == DRAFT else _BLANK), NO_WRITE

    def _context(
        self, call: Call, row: int, column: int, label: Label, held: list[tuple[Label, Write]], family: Family
    ) -> tuple[list[Item], int]:
        """The items that the query is to see, and the position that it is to take for its own."""
        at = label.position
        positions = range(family.first_seen(at), at + 1)
        own: dict[int, int] = {}
        for number, (entry, _) in enumerate(held):
            if self.labels.same(entry, label.request) and entry.position in positions:
                own.setdefault(entry.position, number)
        shown = np.flatnonzero(call.visible[row, column]).tolist()
        chosen: dict[frozenset[str], Callable[[], Chosen]] = {
            frozenset(("mask", "cache")): lambda: [(own.get(position), position) for position in positions],
            frozenset(("mask",)): lambda: [(slot, position) for position, slot in own.items()],
            frozenset(("cache",)): lambda: self._right_entries(call, label, held, own, shown, positions, family.window),
            frozenset[str](): lambda: [(slot, self._position_in(label.request, held[slot][0])) for slot in shown],
        }
        # Each part is repaired alone, so the others have to stay as wrong as they are: a right mask shows the row's own
        # entries and keeps their positions, right entries keep what the decoder's mask would show. Else one repair
        # would mend what another is at fault for, and confirm the wrong cause.
        place = int(call.places[row, column])
        shift = place - at  # rotary positions forgive a constant one
        items = []
        for slot, position in chosen[self.parts - {"position"}]():
            if position is not None and self.renumber:
                where = position
            elif slot is None:
                assert position is not None
                where = position + (0 if self.family.absolute else shift)
            else:
                write = held[slot][1]
                fed = self.family.fed and write[0] == call.number  # what was written for a pad may be poisoned
                where = int(call.positions[write[1:]] if fed else call.key_places[row, slot])
                where -= shift if self.renumber else 0
            items.append(Item(slot, position, where))
        return items, at if self.renumber else place

    def _position_in(self, request: int, entry: Label) -> int | None:
        """The logical position of a request's token that an entry holds."""
        return entry.position if self.labels.same(entry, request) else None

    def _right_entries(
        self,
        call: Call,
        label: Label,
        held: list[tuple[Label, Write]],
        own: dict[int, int],
        shown: list[int],
        positions: range,
        window: int | None,
    ) -> Chosen:
        """The entries that the decoder's mask would show if the cache held each token of the row once, and no others.

        A mask that shows as many cached slots as the row has tokens would show exactly those. So would a window that is
        full: wrong entries have moved it.
        """
        cached = sum(held[slot][1][0] != call.number for slot in shown)
        fed = sum(held[slot][1][0] == call.number for slot in own.values())
        if cached == len(positions) - fed or len(shown) == window:
            return [(own.get(position), position) for position in positions]
        kept: Chosen = []
        for slot in shown:
            entry, write = held[slot]
            if self.labels.same(entry, label.request) and own.get(entry.position) == slot:
                kept.append((slot, entry.position))
            elif self.labels.same(entry, label.request) and entry.position in positions:
                continue
            elif entry.what in ("pad", "blank") or (write[0] == call.number and entry.request == label.request):
                kept.append((slot, None))  # for the mask to hide
        return kept + [(None, position) for position in positions if position not in own]

    def _word(self, layer: int, item: Item, request: int, words: Words, whole: Bools) -> np.uint64:
        """The content of one entry; under a repaired cache what is absent or torn is as it should be."""
        if item.slot is not None and ("cache" not in self.parts or item.position is None or whole[item.slot]):
            return cast(np.uint64, words[item.slot])
        assert item.position is not None
        token = self.labels.sequence(request)[item.position]
        digest = np.array([self.stored[request][item.position]], np.uint64) if layer else None
        return cast(np.uint64, hashing.intact_contents(np.array([token]), digest)[0])


def _whole(call: Call, row: int) -> Bools:
    """The entries of a row that are whole, as a mask ``[layer, slots]``: their copies agree, and are of one write."""
    copies = np.stack([kv[:, row] for kv in call.kv])  # [layer, K/V, head, slots, width]
    one_write = (copies[..., CALL:] == copies[:1, :1, :1, :, CALL:]).all(axis=(0, 1, 2, 4))
    return cast(Bools, one_write & (copies == copies[:, :1, :1]).all(axis=(1, 2, 4)))
