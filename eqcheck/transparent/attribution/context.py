"""The slots that one query saw, held against the slots that it should have seen; provenance identifies each entry."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from eqcheck.contract.family import Family
from eqcheck.contract.kinds import KINDS
from eqcheck.core.explanation.records import Deviation, Slot
from eqcheck.core.explanation.statements import DRAFT_OF_THIS_CALL, NOTHING, ORIGINS, Statement, origin, state
from eqcheck.transparent.attribution.entries import LET_GO, OTHER_MODEL, Entry, QueryView, entries
from eqcheck.transparent.attribution.other_rows import together, wrong_path
from eqcheck.transparent.attribution.writes import Label, Record, Write, writes
from eqcheck.transparent.hashlm.hashing import CALL, Bools, Ints
from eqcheck.transparent.hashlm.trace import Call

FED_WITH = "fed"
COUNTED = "counted"
MASKED_PAD = "masked-pad"


@dataclass(frozen=True)
class Context:
    """The deviations of one query, the writes that explain the rest, and the ``offset`` of all positions.

    ``sees_from`` is the first position that it is to see. ``displaced``: where it sees one slot without a token and not
    itself, these two; its entry or the mask is displaced. ``lower`` is the view of the lower layer, where that differs
    from the upper one's: all deviations are here, too, and it alone has any where the ``upper_right`` one has none.
    """

    deviations: tuple[Deviation, ...]
    follow: tuple[Write, ...]
    slots: tuple[Slot, ...]
    offset: int = 0
    displaced: tuple[int, int] | None = None
    sees_from: int = 0
    lower: Context | None = None
    upper_right: bool = False

    @property
    def blamed(self) -> Context:
        """The context to be shown: that of the lower layer, where it alone is wrong."""
        return self.lower if self.lower and self.upper_right else self

    def with_lower(self, lower: Context) -> Context:
        """This context of the upper layer, and what else the lower one sees wrongly."""
        own = {_what(deviation) for deviation in self.deviations}
        more = tuple(deviation for deviation in lower.deviations if _what(deviation) not in own)
        follow = (*self.follow, *(write for write in lower.follow if write not in self.follow))
        alone = not self.deviations and bool(more)
        return replace(self, deviations=(*self.deviations, *more), follow=follow, lower=lower, upper_right=alone)


def _what(deviation: Deviation) -> tuple[object, ...]:
    """A deviation apart from the slot that it is in."""
    return deviation.kind, deviation.token, deviation.token_position, deviation.of_row, deviation.of_position


def read(
    call: Call,
    row: int,
    column: int,
    label: Label,
    labels: Record,
    stored: Sequence[Ints],
    family: Family,
    held: Sequence[Entry] | None = None,
) -> Context:
    """Compare what a query saw with ``label``: the request and logical position it stood for.

    ``stored[request]`` are the digests that right entries of the upper layer hold, by logical position; ``held`` are
    the `entries` of the row, where they are known already.
    """
    upper = _read_layers(call, row, column, label, labels, stored, family, held)
    if call.lower is None:
        return upper
    undigested = [np.zeros_like(digests) for digests in stored]  # the lower layer holds no digests
    return upper.with_lower(_read_layers(call.lower, row, column, label, labels, undigested, family.lower, None))


def _read_layers(
    call: Call,
    row: int,
    column: int,
    label: Label,
    labels: Record,
    stored: Sequence[Ints],
    family: Family,
    held: Sequence[Entry] | None,
) -> Context:
    """The context of a query in layers that see the same."""
    request, at = label.request, label.position
    if call.kv[0].shape != call.kv[-1].shape:
        sizes = " and ".join(str(kv.shape[3]) for kv in call.kv)
        torn = Deviation(
            "cache", "torn-entry", call.number, column, request, origin=origin("layers-differ", slots=sizes)
        )
        return Context((torn,), (), (), sees_from=family.first_seen(at))
    found = entries(call, row, labels.of, labels.calls, family) if held is None else held
    view = QueryView.of(call, row, column, label, labels, family, found)
    surplus, right = _seen(view)
    due = view.due(right)
    deviations = together(view, surplus + _unseen(view, right), {entry.slot for entry in due.values()})
    offset = 0 if family.absolute else _common_offset(due, at, int(call.places[row, column]))
    misplaced, follow = _misplaced(view, right, offset, stored[request])
    deviations = wrong_path(view, deviations + misplaced)
    slots = _slots(view, right, offset, deviations)
    return Context(tuple(deviations), tuple(follow), tuple(slots), offset, _displaced(view, deviations), view.low)


def _seen(view: QueryView) -> tuple[list[Deviation], dict[int, Entry]]:
    """A deviation for each slot seen wrongly; and by logical position, the entries seen rightly, the own one first."""
    # The own entry first: an equal entry in another slot is then the duplicate, and not the one that the query wrote.
    # Torn ones before all else: what such an entry is of is said by copies that disagree.
    deviations: list[Deviation] = []
    right: dict[int, Entry] = {}
    seen = (entry for entry in view.entries if entry.visible)
    for entry in sorted(seen, key=lambda one: one.write != view.write):
        own, label = view.is_own(entry), entry.label
        if entry.torn:
            about = {"origin": entry.torn.words, "source": entry.torn.kind}
            deviations.append(view.deviation("cache", "torn-entry", entry, **about))
            if own:  # it is there, and whatever else is wrong with it follows
                right.setdefault(label.position, entry)
        elif own and label.position < view.low:
            deviations.append(view.deviation("mask", "window", entry, token_position=label.position))
        elif own and label.position not in right:
            right[label.position] = entry
        else:
            holds = label.words(view.request) + (f" of call {entry.write[0]}" if label.what == "filler" else "")
            about = {"origin": holds, "source": label.kind(view.request)}
            deviations.append(view.deviation(*_surplus(view, entry), entry, **about, **label.place))
    return deviations, right


def _surplus(view: QueryView, entry: Entry) -> tuple[str, str]:
    """The component and kind of a visible entry that the query should not have seen."""
    # From what is known least of to what is known best: whose an entry is says more than how far on it is. In the
    # block of its own call an entry was written rightly, so that it is seen is the mask's fault; a cached one should
    # have been gone, which is the cache's.
    label, in_own_block = entry.label, entry.slot in view.own_block
    if label.what in ("pad", "blank", "filler"):
        return "mask", "pad-visible"
    if label.what == "unknown":
        return "unattributed", "unattributed"
    if label.what in OTHER_MODEL:
        return "cache", "draft-entry"
    if label.request != view.request:
        return "cache", "wrong-row"
    if view.labels.branches and in_own_block:
        return "mask", "future-visible" if view.sees_back(entry) else "sibling-visible"
    if label.position > view.at and in_own_block:
        return "mask", "future-visible"
    if label.what == "draft" or label.position > view.at:
        return "cache", "stale-entry"
    return "cache", "duplicate-entry"


def _unseen(view: QueryView, right: dict[int, Entry]) -> list[Deviation]:
    """A deviation for each due token that is not seen: it is hidden, or it is not in the row's cache."""
    deviations: list[Deviation] = []
    hidden: dict[int, Entry] = {}
    for entry in view.entries:
        others = view.labels.packed and entry.label.request != view.request  # which the mask rightly hides
        if not (entry.visible or others) and view.is_own(entry):
            hidden.setdefault(entry.label.position, entry)
    # A token that is in the row and hidden is the mask's fault; only what is in no slot of the row can be missing.
    # Where it is instead, and whether it was fed at all, is another question than who is to blame, so it is a fact
    # beside the kind.
    for position in range(view.low, view.at + 1):
        if position in right:
            continue
        if (entry_hidden := hidden.get(position)) is not None:
            kind = "window" if _out_of_window(view, right, entry_hidden, position) else "token-hidden"
            deviations.append(view.deviation("mask", kind, entry_hidden, token_position=position))
            continue
        other = _elsewhere(view, position)
        fed = view.labels.was_fed(view.request, position, view.call.number)
        source = "" if other is None else "held-by-another" if fed else "never-fed"
        where = origin("nowhere") if other is None else origin("in-row", batch_row=other)
        about = {"origin": where if fed else view.labels.never_fed, "held_by": other, "source": source}
        deviations.append(view.deviation("cache", "missing-entry", token_position=position, **about))
    return deviations


def _out_of_window(view: QueryView, right: dict[int, Entry], entry: Entry, position: int) -> bool:
    """Return whether a hidden token is one that a window has lost.

    A narrow window loses what is oldest, and a window that counts slots what is that far away in slots.
    """
    # Three ways to be hidden by a window, each with a trace of its own; any other hidden token is one that a mask
    # hides by itself (`token-hidden`).
    call, window, near = view.call, view.family.window, view.family.near
    if near and right.keys() == set(range(view.at + 1 - near, view.at + 1)):
        return True  # the window of the lower layer
    # A window that is too narrow loses the oldest tokens, so nothing older is seen and something newer is. It can have
    # lost some only where it has moved (``low``), or where it is just full and an earlier column of this block still
    # saw the slot. Without the second case a window that is one too narrow was called a hidden token in the very call
    # in which it first showed.
    full = (window or view.at + 2) == view.at + 1
    past = view.low or (full and call.visible[view.row, : view.column, entry.slot].any())
    older, newer = range(view.low, position), range(position, view.at)
    if past and right.keys().isdisjoint(older) and not right.keys().isdisjoint(newer):
        return True
    # A window that counts slots hides what is far away in slots, though holes and rejected drafts between make it near
    # in tokens: then older tokens may be seen, too. The own slot is counted back from the end of the block, since a
    # query need not find its own entry.
    own_slot = max(view.own_block, default=len(view.entries) - 1) - call.tokens.shape[1] + 1 + view.column
    return bool(window) and own_slot - entry.slot >= (window or 0)


def _misplaced(
    view: QueryView, right: dict[int, Entry], offset: int, stored: Ints
) -> tuple[list[Deviation], list[Write]]:
    """The entries seen at a wrong position or written under an earlier fault, and the writes that explain them."""
    follow: list[Write] = []
    carried, due = int(view.call.places[view.row, view.column]), view.at + offset
    fed, stateful, places = view.family.fed, view.family.stateful, view.family.places
    counted = {} if fed else {"origin": origin(places) if places in ORIGINS else "", "source": COUNTED}
    deviations = _steps_of_pads(view, right) if stateful else []
    if carried != due and not stateful:  # the steps of a state follow from what it took in
        about = {"token_position": view.at, "expected": due, "observed": carried}
        deviations.append(view.deviation("position", "query-position", **about, **counted))
    for position, entry in right.items():
        if position == view.at:
            continue
        if entry.position != position + offset and not stateful:
            writer = view.labels.calls.get(entry.write[0])
            written = int(writer.positions[entry.write[1:]]) if writer else entry.position
            source = COUNTED if not fed else FED_WITH if written == entry.position else "changed"
            if source == FED_WITH and entry.write[0] <= view.call.number:
                follow.append(entry.write)
            about = {"token_position": position, "expected": position + offset, "observed": entry.position}
            came = counted or {"origin": origin(source), "source": source}
            deviations.append(view.deviation("position", "key-position", entry, **about, **came))
        # Asked after the position: a query that was fed with a wrong one has a wrong digest as a consequence.
        elif entry.digest != stored[position]:
            follow.append(entry.write)
            deviations.append(view.deviation("cache", "poisoned-entry", entry, token_position=position))
    return deviations, follow


def _steps_of_pads(view: QueryView, right: dict[int, Entry]) -> list[Deviation]:
    """A deviation for each masked pad between a row's tokens, where a state takes it as a step that holds nothing."""
    if view.family.skips:
        return []
    slots = [entry.slot for position, entry in right.items() if position <= view.at]
    between = range(min(slots), max(slots)) if slots else range(0)
    blank = (view.entries[slot] for slot in between if view.entries[slot].label.what == "blank")
    return [view.deviation("mask", "pad-visible", entry, origin=MASKED_PAD, source=MASKED_PAD) for entry in blank]


def _displaced(view: QueryView, deviations: Sequence[Deviation]) -> tuple[int, int] | None:
    own = [entry for entry in view.entries if entry.slot in view.own_block and entry.write[2] == view.column]
    wrong = Counter(deviation.kind for deviation in deviations)
    if len(own) != 1 or own[0].visible or wrong != {"pad-visible": 1, "token-hidden": 1}:
        return None
    seen = next(deviation.slot for deviation in deviations if deviation.kind == "pad-visible")
    return seen or 0, own[0].slot


def _elsewhere(view: QueryView, position: int) -> int | None:
    """The batch row that holds an absent token's entry instead; None if no row of the same cache does."""
    sought = (view.request, position, "token")
    for other in range(view.call.kv[0].shape[1]):
        held = (view.labels.of.get(write) for write in writes(view.call, other))
        if other != view.row and any(one and (one.request, one.position, one.what) == sought for one in held):
            return other
    return None


def _common_offset(due: Mapping[int, Entry], at: int, query_position: int) -> int:
    """The constant offset of a row's positions, which rotary positions forgive: that of most of its keys and the query.

    Hidden keys count, too: they carry the positions that they would be seen with. Where as many say one thing as
    another, none (0) is the likeliest, then the query's.
    """
    own = query_position - at
    votes: dict[int, int] = defaultdict(int, {own: 1})
    for position, entry in due.items():
        if position != at:
            votes[entry.position - position] += 1
    return max(votes, key=lambda offset: (votes[offset], offset == 0, offset == own))


def _slots(view: QueryView, right: dict[int, Entry], offset: int, deviations: Sequence[Deviation]) -> list[Slot]:
    """The row's cache as the query saw it, and behind it the tokens that are in no slot."""
    # Drawn for a reader, so a slot shows what he can look up: no position ids where the model takes none, and no blanks
    # in a state, which has no memory to be blank.
    due = view.due(right)
    slots = [_slot(view, entry, due, offset) for entry in view.entries]
    if not view.family.fed:  # such models take no position ids, so there are none to be shown
        slots = [replace(slot, position=None, expected_position=None) for slot in slots]
    if view.family.stateful:  # each step was a column of a call, so one that holds nothing was masked
        slots = [replace(slot, holds="masked pad", kind=MASKED_PAD) if slot.kind == "blank" else slot for slot in slots]
    for position in (d.token_position or 0 for d in deviations if d.kind == "missing-entry"):
        token = view.labels.sequence(view.request)[position]
        place = (False, view.request, position, "token")
        carried = position + offset if view.family.fed else None
        slots.append(Slot(None, f"position {position}", token, None, carried, False, True, *place))
    return slots


def _slot(view: QueryView, entry: Entry, due: Mapping[int, Entry], offset: int) -> Slot:
    """A slot as a query saw it; ``due`` are the entries that it is to see, by logical position."""
    expected = view.is_own(entry) and due.get(entry.label.position) is entry
    label = view.labels.seen_by(entry.label, view.request)
    kind, verified = label.kind(view.request), entry.slot in view.own_block and entry.write != view.write
    return Slot(
        index=entry.slot,
        holds=DRAFT_OF_THIS_CALL if verified and kind == "draft" else label.words(view.request),
        token=entry.token,
        position=entry.position,
        expected_position=entry.label.position + offset if expected else None,
        visible=entry.visible,
        expected_visible=expected,
        torn=bool(entry.torn),
        kind=kind,
        **label.place,
    )


# Masks that are wrong by a pattern: what the columns of a block attend to, where one sentence says it for all of
# them.
#
# A mask fault is read at one query, and the smallest case has few slots. The mask of the whole block shows what the
# decoder does: a triangle that is anchored at slot 0 though something is cached, or no order at all.


def _top_left(shown: Bools, fed: int) -> bool:
    """Return whether column c sees slots 0..c, where as many are fed behind cached ones."""
    columns, slots = shown.shape
    return fed < slots and bool((shown == (np.arange(slots) <= np.arange(columns)[:, None])).all())


def _no_order(shown: Bools, fed: int) -> bool:
    """Return whether every column sees every slot."""
    return bool(shown.all())


_PATTERNS: dict[str, tuple[str, Callable[[Bools, int], bool]]] = {
    "token-hidden": ("top-left", _top_left),
    "future-visible": ("no-order", _no_order),
}


def of_mask(root: Deviation, write: Write, record: Record) -> Statement:
    """The pattern of the mask of the block in which a query is at fault; nothing where there is none."""
    if root.component != "mask" or root.kind not in _PATTERNS:
        return NOTHING
    name, fits = _PATTERNS[root.kind]
    call, row = record.calls[write[0]], write[1]
    if not _fits(call, row, fits):
        return NOTHING
    request = record.of[write].request
    blocks = [
        (record.calls[number], batch_row)
        for number in record.rounds[request]
        for batch_row in range(len(record.calls[number].tokens))
        if any(label.request == request for label in record.labels(record.calls[number], batch_row))
    ]
    every = name == "no-order"
    asked = [(block, at) for block, at in blocks if block.tokens.shape[1] > 1 and (every or _cached(block, at))]
    here = {"call": call.number, "columns": call.tokens.shape[1]}
    if len(asked) < 2:
        return state(name, **here)
    return state(f"{name}-often", **here, alike=sum(_fits(block, at, fits) for block, at in asked), calls=len(asked))


def _cached(call: Call, row: int) -> bool:
    return bool((call.kv[0][0, row, 0, :, CALL] != call.number).any())


def _fits(call: Call, row: int, fits: Callable[[Bools, int], bool]) -> bool:
    fed = int((call.kv[0][0, row, 0, :, CALL] == call.number).sum())
    return call.tokens.shape[1] > 1 and fits(call.visible[row], fed)


# The walk from a query with a wrong context back to the first deviation that led to it.


class Step(NamedTuple):
    """One deviation of a query that wrote ``write``, at its place in causal ``order``."""

    order: tuple[int, ...]
    deviation: Deviation
    write: Write


class Chain(NamedTuple):
    """The first deviation, the like ones of its query, and its consequences."""

    root: Step
    alike: tuple[Deviation, ...]
    rest: tuple[Deviation, ...]


class Walk:
    """The contexts of the queries of one run; ``stored`` as of `eqcheck.transparent.attribution.context.read`."""

    def __init__(self, labels: Record, stored: Sequence[Ints], family: Family) -> None:
        self.labels, self.stored, self.family = labels, stored, family
        self._contexts: dict[Write, Context] = {}

    def context(self, write: Write) -> Context:
        if write not in self._contexts:
            number, row, column = write
            label, call = self.labels.of[write], self.labels.calls[number]
            self._contexts[write] = read(call, row, column, label, self.labels, self.stored, self.family)
        return self._contexts[write]

    def cause(self, blamed: Sequence[Write]) -> Chain | Statement:
        """The first deviation that led to the first of these queries; a statement where it is not known."""
        steps = self._followed(blamed[:1])
        roots = [step for step in steps if not (KINDS[step.deviation.kind].inherited and self._inherited(step))]
        if not roots:
            return state("no-difference" if blamed else "no-right-query")
        root = roots[0]
        if root.deviation.kind == "poisoned-entry":
            # The digest in layer 1 is made of what the writing query saw. Nothing was wrong with the writers' contexts,
            # else this deviation would be theirs (it is inherited) and not a root. If a writer's digest was right when
            # it was made, the entry was right, too, and was changed since: it is torn. If no writer was right beyond
            # doubt, its context was wrong in a way that reading does not see, and to call the entry torn would be a
            # guess.
            if not any(self.labels.of[writer].exact for writer in self._writers(root)):
                return state("slot-unexplained", slot=root.deviation.slot or 0)
            torn = replace(root.deviation, kind="torn-entry", source="layer-1", origin=origin("layer-1"))
            root = root._replace(deviation=torn)
        # One slot shown too many and the own one hidden: the entry or the mask is one place off, and the trace does not
        # say which: each looks the same when the other is at fault, so neither is accused.
        slots = self.context(root.write).displaced
        if root.deviation.component == "mask" and slots:
            return state("displaced", shown_slot=slots[0], own_slot=slots[1])
        # A key carries a wrong position because its own query was fed with it: that query is where it began.
        if root.deviation.kind == "key-position" and root.deviation.source == FED_WITH:
            root = self._as_fed(root)
        first = root.deviation
        alike = tuple(
            s.deviation for s in roots if s.write == root.write and s.deviation.fingerprint == first.fingerprint
        )
        rest = tuple(step.deviation for step in steps if step.deviation not in (alike or (first,)))
        return Chain(root, alike or (first,), rest)

    def _followed(self, pending: Sequence[Write]) -> list[Step]:
        """The queries that saw something wrongly, the queries that wrote it, and so on, in causal order."""
        # Only queries of tokens are followed: a draft or a pad in a wrong context harms nobody unless its entry is
        # seen, and then it is a deviation of the query that sees it.
        left, visited, steps = list(pending), set[Write](), list[Step]()
        while left:
            write = left.pop()
            if write not in visited and write in self.labels.of and self.labels.of[write].what == "token":
                visited.add(write)
                context = self.context(write)
                left += context.follow
                steps += [Step(order_of(deviation, write), deviation, write) for deviation in context.deviations]
        return sorted(steps, key=lambda step: step.order)

    def _writers(self, step: Step) -> list[Write]:
        """The queries that wrote the token which a deviation is about."""
        known = (writer for writer in self.context(step.write).follow if writer in self.labels.of)
        return [writer for writer in known if self.labels.of[writer].position == step.deviation.token_position]

    def _as_fed(self, step: Step) -> Step:
        """A key that was fed with a wrong position: the query that it was then, which carries the position."""
        for writer in self._writers(step):
            if self.labels.calls[writer[0]].positions[writer[1:]] == step.deviation.observed:
                fed = replace(step.deviation, kind="query-position", call=writer[0], column=writer[2], slot=None)
                return step._replace(deviation=replace(fed, origin="", source=""), write=writer)
        return step

    def _inherited(self, step: Step) -> bool:
        """Return whether an entry's deviation comes from an earlier wrong query, which is then read itself."""
        writers = (writer for writer in self._writers(step) if self.labels.of[writer].what == "token")
        return any(self.context(writer).deviations for writer in writers)


def order_of(deviation: Deviation, write: Write) -> tuple[int, ...]:
    """Causal order: earlier calls first; in one call cache before mask before position, then by column.

    Where all that a row had cached is gone and was not fed again, what it sees in its place is an accident.
    """
    rank = -1 if deviation.source == LET_GO else KINDS[deviation.kind].rank
    return write[0], rank, write[2]
