"""What a batch row still has of the request that held it before: its position, or the slots that it was shown.

Engines move rows together when one leaves, and reuse a place for the next request. Whatever is not moved along is then
right for the request that was there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from eqcheck.attribution.branches import said_of
from eqcheck.attribution.packed import writes
from eqcheck.attribution.record import Label, Record, Write
from eqcheck.explanation.records import Deviation
from eqcheck.explanation.statements import NOTHING, Statement, state
from eqcheck.hashlm.hashing import Bools
from eqcheck.hashlm.trace import Call

_SEEN = {"stale-entry", "pad-visible"}
_HIDDEN = {"token-hidden"}


class Holder(NamedTuple):
    """The ``request`` that held a batch row before another one did, up to a ``call``.

    The first ``width`` slots of the row that has moved there are those that it had then.
    """

    request: int
    call: Call
    width: int = 0


def holder_before(record: Record, number: int, row: int, request: int) -> Holder | None:
    """Who held a batch row before ``request`` took it over; None where it had it from the first, or shares it.

    An engine that makes a call for each row hands nothing over: there the requests come back.
    """
    found = None
    for earlier in sorted((n for n in record.calls if n < number), reverse=True):
        owners = _owners(record, earlier, row)
        if found is None and len(owners) == 1 and request not in owners:
            found = Holder(next(iter(owners)), record.calls[earlier])
        elif found is not None and request in owners:
            return None
    later = (owner for n in record.calls if n >= number for owner in _owners(record, n, row))
    return None if found is None or found.request in later else found


def _owners(record: Record, number: int, row: int) -> set[int]:
    columns = range(record.calls[number].tokens.shape[1])
    return {label.request for column in columns if (label := record.of.get((number, row, column)))} - {-1}


def as_mask_of_another(
    deviations: list[Deviation], call: Call, row: int, column: int, record: Record
) -> list[Deviation]:
    """One finding where a query sees the slots that are right for the request that held its batch row before.

    All that it sees wrongly is then that mask's, whichever kinds of slots these are. A fault that shows or hides too
    much makes a mask like another row's by chance. So some slots have to be seen wrongly and others hidden, or a query
    of the run has to be right about such slots.
    """
    kinds = {deviation.kind for deviation in deviations}
    if not kinds or kinds - _HIDDEN - _SEEN:
        return deviations
    before = _shown_as(record, (call.number, row, column))
    if before is None or any(one.slot is None or one.slot >= before.width for one in deviations):
        return deviations
    both = kinds & _HIDDEN and kinds - _HIDDEN
    if not both and not _right_elsewhere(record, call.number, deviations):
        return deviations
    origin = f"row {before.request}, which held batch row {row} up to call {before.call.number}"
    slot = min(one.slot for one in deviations if one.slot is not None)
    found = Deviation("mask", "of-another-row", call.number, column, deviations[0].row, slot=slot, origin=origin)
    return [replace(found, of_row=before.request)]


def _shown_as(record: Record, write: Write) -> Holder | None:
    """Who held the batch row of a query before, if the query sees the slots that are right for that request.

    Only the slots are looked at that the row had when that request left, up to the first that was written since.
    """
    number, row, column = write
    call, request = record.calls[number], record.of[write].request
    before = None if record.packed or record.branches else holder_before(record, number, row, request)
    if before is None:
        return None
    then, now = before.call, writes(call, row)
    own = next((b for b in range(then.kv[0].shape[1]) if request in _owners(record, then.number, b)), row)
    same = [one == other for one, other in zip(writes(then, own), now, strict=False)]
    width = same.index(False) if False in same else len(same)
    dues = [_due(record, writes(then, row)[:width], before.request, cut) for cut in (False, True)]
    shown = call.visible[row, column, :width]
    found = any(due.any() and np.array_equal(shown, due) for due in dues)
    return before._replace(width=width) if found else None


def _right_elsewhere(record: Record, until: int, deviations: list[Deviation]) -> bool:
    """Whether queries that saw exactly their rows, up to a call, had such slots in their cache, too.

    For a hidden token that is an accepted draft token, or a token of a prompt, as it is.
    """
    sorts = {"stale-entry": "draft", "pad-visible": "pad"}
    prompt = len(record.requests[deviations[0].row].prompt)
    needed = {sorts.get(d.kind, "accepted" if (d.token_position or 0) >= prompt else "token") for d in deviations}
    held: set[str] = set()
    for number, row, _ in {write for write, label in record.of.items() if label.exact and write[0] <= until}:
        for write in writes(record.calls[number], row):
            label = record.of.get(write)
            if label is not None and write[0] < number:
                left = record.of.get((write[0], write[1], write[2] - 1))
                new = label.position >= len(record.requests[label.request].prompt)
                drafted = new and left is not None and left.what == "token"
                held.add("accepted" if label.what == "token" and drafted else label.what)
    return needed <= held


def _has(label: Label | None, request: int, cut: bool) -> bool:
    """Whether a request has what a label says: its tokens, and with ``cut`` those that it agreed to behind its end."""
    return label is not None and label.request == request and (label.what == "token" or (cut and label.agreed))


def _due(record: Record, slots: list[Write], request: int, cut: bool) -> Bools:
    """Which of a row's slots hold tokens of a request, each position once."""
    positions: set[int] = set()
    due = []
    for write in slots:
        label = record.of.get(write)
        mine = {label.position} if label is not None and _has(label, request, cut) else set()
        due.append(bool(mine - positions))
        positions |= mine
    return np.array(due, np.bool_)


def said_of_query(deviation: Deviation, write: Write, record: Record) -> Statement:
    """What else there is to say of a query: it counts nodes, or has the position or the slots of the one before it."""
    if deviation.kind == "query-position":
        counted = said_of(deviation, write, record)
        return _due_to_another(deviation, write, record) if counted == NOTHING else counted
    before = _shown_as(record, write) if deviation.kind in _SEEN | _HIDDEN else None
    if before is not None and deviation.slot is not None and deviation.slot < before.width:
        held = {"held_row": write[1], "last_call": before.call.number}
        return state("slots-of-another", other_row=before.request, **held)
    return NOTHING


def _due_to_another(deviation: Deviation, write: Write, record: Record) -> Statement:
    """That a query carries the position which the request that held its batch row before would have had there."""
    number, row, column = write
    label = record.of[write]
    before = holder_before(record, number, row, label.request)
    if before is None or deviation.expected != label.position:
        return NOTHING
    last = before.call.number
    earlier = [label for write, label in record.of.items() if write[0] <= last]
    ends = {
        max((one.position for one in earlier if _has(one, before.request, cut)), default=-1) for cut in (False, True)
    }
    of_row = ((at, record.of[number, row, at]) for at in range(record.calls[number].tokens.shape[1]))
    first = next(at for at, one in of_row if one.request == label.request and one.what == "token")
    if deviation.observed is None or deviation.observed not in {end + 1 + column - first for end in ends}:
        return NOTHING
    return state("due-to-another", due=deviation.observed, other_row=before.request, held_row=row, last_call=last)
