"""The slots of a row at a query: what each holds, whether its copies agree, what became of a missing entry."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import numpy as np

from eqcheck.contract.family import Family
from eqcheck.core.explanation.records import Deviation
from eqcheck.core.explanation.statements import NOTHING, Statement, origin, state, together
from eqcheck.transparent.attribution.writes import FOREIGN, NO_WRITE, Label, Record, Write, holders, writes
from eqcheck.transparent.hashlm.hashing import (
    CALL,
    COLUMN,
    CONTENT,
    HEADS,
    HIGH,
    LAYERS,
    MODEL,
    NO_MODEL,
    OTHER_WEIGHTS,
    PLACE,
    PLACES,
    POSITION,
    ROW,
    TOKEN,
    Bools,
    Ints,
    stored_digest,
)
from eqcheck.transparent.hashlm.trace import DRAFT, TARGET, Call

# Check that the copies of an entry agree: each layer, K and V, and each head hold one of it.

_PLACES = np.arange(PLACES).reshape(LAYERS, 2, HEADS)  # where each copy of an entry belongs


def torn_slots(call: Call, row: int, copies: Ints) -> Bools:
    """The slots of a row whose copies ``[layer, K/V, head, slots, width]`` disagree, as a mask ``[slots]``."""
    same = [MODEL, TOKEN, POSITION, CALL, ROW, COLUMN]
    torn = (copies[..., same] != copies[:1, :1, :1][..., same]).any(axis=(0, 1, 2, 4))
    torn |= (copies[..., PLACE] != _PLACES[call.layers, ..., None]).any(axis=(0, 1, 2)) & (copies[..., MODEL] > 0).any(
        axis=(0, 1, 2)
    )
    for odd in call.odd:
        torn |= False if odd is None else odd[row] != 0
    torn |= (copies[-1] != copies[-1, :1, :1])[..., HIGH:CALL].any(axis=(0, 1, 3))
    return cast(Bools, torn & ~_filled(call, row))


def _filled(call: Call, row: int) -> Bools:
    """The slots with one number all through each copy, as a mask ``[slots]``: memory that was filled, never written."""
    digits = np.stack([held[:, row] for held in call.held])  # [layer, K/V, head, slots, width]
    return cast(Bools, (digits == digits[..., :1]).all(axis=(0, 1, 2, 4)))


def emptied_slots(call: Call, row: int, copies: Ints) -> Bools:
    """The slots of a row that hold a pad written as numbers without meaning, as a mask ``[slots]``.

    Some cases write pads so, and then a pad that is seen does harm. The stamp and the identity of the write are whole;
    the digits of the content are one number, which is no digit.
    """
    said = np.stack([held[:, row, :, :, CONTENT] for held in call.held])  # [layer, K/V, head, slots, digits]
    number = said[0, 0, 0, :, 0]
    whole = (copies[..., PLACE] == _PLACES[call.layers, ..., None]).all(axis=(0, 1, 2))
    whole &= (copies[..., CALL:PLACE] == copies[:1, :1, :1, :, CALL:PLACE]).all(axis=(0, 1, 2, 4))
    whole &= (said == number[:, None]).all(axis=(0, 1, 2, 4))
    return cast(Bools, whole & ((number < 0) | (number > 255)))


class Torn(NamedTuple):
    """The disagreement of the copies of an entry: its ``kind`` without numbers, and in ``words``."""

    kind: str
    words: str


def disagreement(copies: Ints, layers: slice) -> Torn:
    """The disagreement between the copies ``[layer, K/V, head, width]`` of one slot, of these layers."""
    # From what explains all copies at once to what may be a consequence: an entry that no model wrote also disagrees
    # about its token, and one that was written to another place disagrees about its layer.
    right = _PLACES[layers]
    if (copies[..., MODEL] == NO_MODEL).any():
        return Torn("no-model", origin("no-model"))
    if (copies[..., MODEL] > 0).all() and (copies[..., PLACE] != right).any():
        at = tuple(np.argwhere(copies[..., PLACE] != right)[0])
        places = int(right[at]), int(copies[..., PLACE][at])
        (layer, value, head), was = (np.unravel_index(place, _PLACES.shape) for place in places)
        here = {"copy": "KV"[value], "layer": layer, "head": head}
        there = {"other_layer": was[0], "other_copy": "KV"[was[1]], "other_head": was[2]}
        return Torn(f"{'KV'[value]}-written-as-{'KV'[was[1]]}", origin("written-as", **here, **there))
    names = ("token", "position", "digest", "write")
    values = np.stack(
        [
            copies[..., TOKEN],
            copies[..., POSITION],
            np.broadcast_to(stored_digest(copies)[-1:], copies.shape[:-1]),
            copies[..., CALL] * 2**40 + copies[..., ROW] * 2**20 + copies[..., COLUMN],
        ],
        axis=-1,
    )
    for axis, what in ((1, ("K", "V")), (0, ("layer 0", "layer 1")), (2, ("head 0", "head 1"))):
        first, second = np.take(values, 0, axis), np.take(values, -1, axis)
        for column, name in enumerate(names):
            differs = first[..., column] != second[..., column]
            if differs.any():
                a, b = int(first[..., column][differs][0]), int(second[..., column][differs][0])
                which: dict[str, object] = {"one": what[0], "other": what[1], "what": name}
                shown = name in ("token", "position")  # a digest or a write is no number that a reader knows
                words = origin("disagree-on", **which, value=a, other_value=b) if shown else origin("disagree", **which)
                return Torn(f"{('layers', 'values', 'heads')[axis]}-{name}", words)
    if (copies[..., MODEL] != copies[0, 0, 0, MODEL]).any():
        return Torn("models", origin("models"))
    return Torn("scaled", origin("scaled"))


# The history of entries: what became of one that is missing, and where one stood that is now seen or hidden wrongly.
#
# A query shows its row's cache at one moment. The calls before it show the same entries earlier, so the trace knows
# when an entry was last read, which write took its slot, whether its token was fed again, and since when it is
# masked.

LET_GO = "let-go"  # the source of an entry that was in the cache and was not fed again, nor any before it
_SURPLUS = {"stale-entry", "pad-visible", "duplicate-entry", "wrong-row", "other-row-visible"}


class Overwritten(NamedTuple):
    """A slot to which the entry of a token was written, and what took its place: its write, label and token.

    ``until`` is the last call that read the token's entry there; None where the call that wrote it took it away itself.
    """

    slot: int
    until: int | None
    by: Write
    label: Label
    token: int


class EntrySeen(NamedTuple):
    """An entry in one call: the slot of a batch row, and whether a query of another call's token saw it."""

    call: int
    batch_row: int
    slot: int
    attended: bool


def last_read(record: Record, request: int, position: int, before: int) -> tuple[int, int, int] | None:
    """The last call before one whose cache held a token of a request: its number, batch row and slot."""
    for number in sorted((n for n in record.calls if n < before), reverse=True):
        call = record.calls[number]
        for row in range(call.kv[0].shape[1]):
            for slot, label in enumerate(holders(record, call, row)):
                if label and label.what == "token" and (label.request, label.position) == (request, position):
                    return number, row, slot
    return None


def fed_since(record: Record, request: int, position: int, since: int, until: int) -> bool:
    """Return whether a token of a request was fed again after one call, up to another."""
    return any(since < write[0] <= until for write, _ in record.queries(request, position))


def overwritten(record: Record, call: Call, row: int, request: int, position: int) -> Overwritten | None:
    """Find what is in the slot where a row had the entry of a token that it lacks, where nothing else has moved.

    Where a block is always appended to what is read, the slots are no places of a memory.
    """
    now = writes(call, row)
    if _appended(call, row, now):
        return None
    found = last_read(record, request, position, call.number)
    if found is not None:
        number, earlier_row, slot = found
        then = writes(record.calls[number], earlier_row)
        changed = [(a, b) for a, b in zip(then, now, strict=False) if a != b and a in record.of]
        # Entries that are moved are older than the call that saw them elsewhere.
        if slot < len(now) and all(new[0] > number for _, new in changed) and now[slot][0] > number:
            return _found(record, call, row, slot, number)
        return None
    queries = record.queries(request, position)
    return _overwritten_at_once(record, queries[-1][0], now) if queries else None


def _appended(call: Call, row: int, now: list[Write]) -> bool:
    """Return whether the last slots of a row are the block that the call feeds, in order."""
    columns = call.tokens.shape[1]
    return now[-columns:] == [(call.number, row, column) for column in range(columns)]


def _overwritten_at_once(record: Record, query: Write, now: list[Write]) -> Overwritten | None:
    """Find what the call that fed a token wrote over its entry: the one slot that its query sees, and that holds
    something else of this call, while its own entry is in no slot.
    """
    number, row, column = query
    call = record.calls[number]
    then = writes(call, row)
    if query in then:
        return None
    own = {w for w, label in record.of.items() if w[:2] == query[:2] and label.request == record.of[query].request}
    seen = [s for s in np.flatnonzero(call.visible[row, column]).tolist() if then[s][0] == number]
    strange = [s for s in seen if then[s] not in own or record.of[then[s]].what != "token"]
    if len(strange) != 1 or strange[0] >= len(now) or now[strange[0]][0] < number:
        return None
    return _found(record, call, row, strange[0], None)


def _found(record: Record, call: Call, row: int, slot: int, until: int | None) -> Overwritten | None:
    label, token = holders(record, call, row)[slot], int(call.kv[0][0, row, 0, slot, TOKEN])
    return None if label is None else Overwritten(slot, until, writes(call, row)[slot], label, token)


def let_go(record: Record, call: Call, request: int, missing: Iterable[int]) -> int | None:
    """The last call that read all these tokens of a request, where none of them was fed again; None where one was, or
    where they were not read together.
    """
    last = {last_read(record, request, position, call.number) for position in missing}
    numbers = {found[0] for found in last if found is not None}
    if None in last or len(numbers) != 1:
        return None
    number = numbers.pop()
    return None if any(fed_since(record, request, at, number, call.number) for at in missing) else number


def left_out(record: Record, request: int, since: int, until: int) -> dict[int, list[int]]:
    """The calls in between that went on without a request, by requests that had been in its batch."""
    fed = {
        number: {label.request for row in range(len(call.tokens)) for label in record.labels(call, row)} - {-1}
        for number, call in record.calls.items()
        if since <= number < until
    }
    mates = fed.get(since, set()) - {request}
    if request not in fed.get(since, set()):
        return {}
    going = [(number, mates & others) for number, others in fed.items() if request not in others]
    return {
        mate: [number for number, some in going if mate in some]
        for mate in mates
        if any(mate in some for _, some in going)
    }


def told(record: Record, write: Write, root: Deviation, deviations: Iterable[Deviation]) -> Statement:
    """The history of what a query lacks, or else of the entry that the first deviation is about."""
    call, row, request = record.calls[write[0]], write[1], root.row
    missing = [d.token_position for d in deviations if d.kind == "missing-entry" and d.token_position is not None]
    if missing and root.component == "cache":
        return _of_missing(record, call, row, request, missing)
    if root.slot is None or root.kind not in _SURPLUS | {"token-hidden"} or root.slot >= len(writes(call, row)):
        return NOTHING
    return _of_entry(record, writes(call, row)[root.slot], call, row, root.slot)


def _of_missing(record: Record, call: Call, row: int, request: int, missing: list[int]) -> Statement:
    # An overwritten slot names a culprit, so it is told before an entry that was merely let go. Only entries that one
    # call overwrote with one kind of thing are told together: the first such group is the cause, others follow.
    over = {at: overwritten(record, call, row, request, at) for at in missing}
    first = next((place for place in over.values() if place is not None), None)
    if first is not None:
        key = _by(first, request)
        same = {at: place for at, place in over.items() if place is not None and _by(place, request) == key}
        facts: dict[str, int | str] = {
            "over_slots": _listed(place.slot for place in same.values()),
            "over_positions": _listed(same),
            "over_call": first.by[0],
            "over_kind": first.label.kind(request),
            "over_row": first.label.request,
            "over_places": _listed(place.label.position for place in same.values()),
            "over_tokens": _listed(place.token for place in same.values()),
        }
        if first.until is None:
            return state("overwritten-at-once", **facts)
        name = "overwritten" if _one_memory(record, call, row) else "replaced"
        return state(name, over_until=first.until, **facts)
    number = let_go(record, call, request, missing)
    if number is None:
        return NOTHING
    lost: dict[str, int | str] = {"lost_positions": _listed(missing), "last_read": number}
    others = left_out(record, request, number, call.number)
    if not others:
        return state("let-go", **lost)
    calls = _listed(sorted({one for numbers in others.values() for one in numbers}))
    return state("left-out", other_calls=calls, other_rows=_listed(sorted(others)), **lost)


def _one_memory(record: Record, call: Call, row: int) -> bool:
    """Return whether the slots of a row are those of a memory, which other rows share: no table stands between."""
    now = writes(call, row)
    return record.packed or any(writes(call, other) == now for other in range(call.kv[0].shape[1]) if other != row)


def _by(one: Overwritten, request: int) -> tuple[object, ...]:
    """Return what entries share that are told together."""
    return one.until, one.by[0], one.label.kind(request), one.label.request


def _listed(numbers: Iterable[int]) -> str:
    return " ".join(map(str, numbers))


def sightings(record: Record, entry: Write, until: int) -> Iterator[EntrySeen]:
    """Every call after the one that wrote an entry in which it is in a batch row, up to a call."""
    # The query of a pad or a draft may see anything, so "attended" counts queries of the row's tokens only.
    for number in sorted(n for n in record.calls if entry[0] < n <= until):
        call = record.calls[number]
        for row in range(call.kv[0].shape[1]):
            for slot, write in enumerate(writes(call, row)):
                if write == entry:
                    columns = [c for c in range(call.tokens.shape[1]) if _is_token(record, (number, row, c))]
                    yield EntrySeen(number, row, slot, bool(call.visible[row, columns, slot].any()))


def _is_token(record: Record, write: Write) -> bool:
    return write in record.of and record.of[write].what == "token"


def _of_entry(record: Record, entry: Write, call: Call, row: int, slot: int) -> Statement:
    """The history of an entry that is in another slot than before, or that was masked where it is now attended.

    Masked padding of a state, as all that no call wrote, is alike in every slot, so none of it has a history.
    """
    if entry not in record.of:
        return NOTHING
    # Other batch rows count up to the call before: a row may have moved there. In the call itself they are copies, not
    # where the entry was.
    seen = [at for at in sightings(record, entry, call.number) if at.call < call.number or at.batch_row == row]
    now = next((at for at in reversed(seen) if (at.call, at.slot) == (call.number, slot)), None)
    if now is None:
        return NOTHING
    others = (
        at for at in reversed(seen) if at.call < call.number and (at.slot, at.attended) != (now.slot, now.attended)
    )
    before = next(others, None)
    if before is None:
        return NOTHING
    since = min(at.call for at in seen if at.call > before.call)
    facts: dict[str, int | str] = {"slot_now": slot, "changed_after": before.call, "changed_in": since}
    ways = ("masked", "attended")
    if before.slot != slot:
        moved: dict[str, int | str] = {
            "slot_before": before.slot,
            "was": ways[before.attended],
            "is": ways[now.attended],
        }
        said = state("moved", **facts, **moved)
    else:
        said = state("shown" if now.attended else "masked", **facts)
    left = _left_between(record, before.call, since)
    return together(said, state("left-between", left_rows=_listed(left))) if left else said


def _left_between(record: Record, before: int, since: int) -> list[int]:
    """The requests of a batch that are fed in one call and no longer in the next one of these."""
    rows = [
        {label.request for row in range(len(record.calls[n].tokens)) for label in record.labels(record.calls[n], row)}
        for n in (before, since)
    ]
    return sorted(rows[0] - rows[1] - {-1}) if len(rows[0] - {-1}) > 1 else []


# One query and the slots of its row, each with the token that it holds: the base of every later reading.

_UNWRITTEN = Label(-1, -1, "blank")
_OTHER_WEIGHTS = Label(-1, -1, "other weights")  # of either model
_UNKNOWN = Label(-1, -1, "unknown")
OTHER_MODEL = frozenset(label.what for label in FOREIGN.values())


@dataclass(frozen=True)
class Entry:
    """One slot of a row: its content, its writer, and the position at which the family takes it to be."""

    slot: int
    token: int
    position: int
    digest: int
    write: Write
    label: Label
    torn: Torn | None
    visible: bool

    @property
    def known(self) -> bool:
        """Return whether a query of the model wrote it."""
        return not any(self.label is one for one in (_UNWRITTEN, _UNKNOWN, _OTHER_WEIGHTS, *FOREIGN.values()))


@dataclass(frozen=True)
class QueryView:
    """A query held against the token that it stands for: the one ``at`` this logical position of the ``request``.

    ``low`` is the first position that it should see, ``entries`` are the slots of its row, ``own_block`` are the slots
    that its own call wrote.
    """

    call: Call
    row: int
    column: int
    request: int
    at: int
    low: int
    family: Family
    labels: Record
    entries: list[Entry]
    own_block: set[int]

    @classmethod
    def of(
        cls, call: Call, row: int, column: int, label: Label, labels: Record, family: Family, held: Sequence[Entry]
    ) -> QueryView:
        """The view of a query; ``held`` are the entries of its row."""
        seen = [replace(entry, visible=bool(call.visible[row, column, entry.slot])) for entry in held]
        own_block = {entry.slot for entry in seen if entry.write[0] == call.number}
        low = family.first_seen(label.position)
        return cls(call, row, column, label.request, label.position, low, family, labels, seen, own_block)

    @property
    def write(self) -> Write:
        return self.call.number, self.row, self.column

    @property
    def cached(self) -> list[Entry]:
        """The entries that earlier calls wrote."""
        return [entry for entry in self.entries if entry.slot not in self.own_block]

    def deviation(self, component: str, kind: str, entry: Entry | None = None, /, **more: object) -> Deviation:
        slot, token = (entry.slot, entry.token) if entry else (None, None)
        given = {"slot": slot, "token": token, **more}
        return Deviation(component, kind, self.call.number, self.column, self.request, **given)  # type: ignore[arg-type]

    def sees_back(self, entry: Entry) -> bool:
        """Return whether an entry of the block is of a node behind the query: that sees the query's own."""
        column = entry.write[2]
        return any(
            bool(self.call.visible[self.row, column, one.slot]) for one in self.entries if one.write == self.write
        )

    def is_own(self, entry: Entry) -> bool:
        """Return whether an entry is a token of the request that the query may see, but for a window."""
        return self.labels.same(entry.label, self.request) and entry.label.position <= self.at

    def due(self, right: Mapping[int, Entry]) -> dict[int, Entry]:
        """The entries that the query should see, by logical position: the ``right`` ones, else the first in the row."""
        own = {entry.label.position: entry for entry in reversed(self.entries) if self.is_own(entry)}
        return {at: entry for at, entry in own.items() if at >= self.low} | dict(right)


def entries(call: Call, row: int, of: Mapping[Write, Label], calls: Mapping[int, Call], family: Family) -> list[Entry]:
    """The slots of a batch row in a call, none of them visible yet; ``of`` and ``calls`` are of the call's model."""
    # Copies are compared for all slots at once, and only those that disagree are looked into: this runs for each query
    # that is read. A pad that a case had written as meaningless numbers is told by its write, since its copies say
    # nothing.
    listed = []
    copies = np.stack([kv[:, row] for kv in call.kv])  # [layer, K/V, head, slot, width]
    emptied = emptied_slots(call, row, copies)
    torn = torn_slots(call, row, copies) & ~emptied
    stored = stored_digest(copies[-1, 0, 0])
    for slot, fields in enumerate(copies[0, 0, 0]):
        by_model = fields[MODEL] in (TARGET, DRAFT)
        write = (int(fields[CALL]), int(fields[ROW]), int(fields[COLUMN])) if by_model else NO_WRITE
        foreign = FOREIGN[call.role] if by_model else _UNWRITTEN
        foreign = _OTHER_WEIGHTS if fields[MODEL] == OTHER_WEIGHTS else foreign
        label = of.get(write, _UNKNOWN) if fields[MODEL] == call.role else foreign
        token, place = int(fields[TOKEN]), int(call.key_places[row, slot])
        if emptied[slot] and write[0] in calls:
            token = int(calls[write[0]].tokens[write[1:]])
            place = int(calls[write[0]].positions[write[1:]]) if family.fed else place
        why = disagreement(copies[:, :, :, slot], call.layers) if torn[slot] else None
        listed.append(Entry(slot, token, place, int(stored[slot]), write, label, why, False))
    return listed
