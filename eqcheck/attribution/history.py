"""The history of entries: what became of one that is missing, and where one stood that is now seen or hidden wrongly.

A query shows its row's cache at one moment. The calls before it show the same entries earlier, so the trace knows when
an entry was last read, which write took its slot, whether its token was fed again, and since when it is masked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from eqcheck.attribution.record import Label, Record, Write, holders, writes
from eqcheck.explanation.records import Deviation
from eqcheck.explanation.statements import NOTHING, Statement, state, together
from eqcheck.hashlm.hashing import TOKEN
from eqcheck.hashlm.trace import Call

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
