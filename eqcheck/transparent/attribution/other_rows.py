"""A row that is shown, or holds, another row's entries: many deviations of a query that are one fault.

Engines move rows together when one leaves, reuse a place for the next request, feed several requests in one row, and
keep one of several branches. Whatever is not moved, kept apart or chosen along is then seen as many wrong slots, each
of a kind that says something else by chance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from eqcheck.core.explanation.records import Deviation
from eqcheck.core.explanation.statements import NOTHING, Statement, origin, state
from eqcheck.core.result.outcome import common_start
from eqcheck.transparent.attribution.branches import said_of
from eqcheck.transparent.attribution.entries import LET_GO, Entry, QueryView, last_read, left_out, let_go, overwritten
from eqcheck.transparent.attribution.writes import Label, Record, Write, writes
from eqcheck.transparent.hashlm.hashing import Bools
from eqcheck.transparent.hashlm.trace import Call

_SEEN = {"stale-entry", "pad-visible"}
_HIDDEN = {"token-hidden"}
_KEPT = ("stale-entry", "duplicate-entry")  # what is left of a tree beside its path


def together(view: QueryView, deviations: list[Deviation], due: set[int]) -> list[Deviation]:
    """The deviations of a query, with one deviation for each fault; ``due`` are the slots that it should see."""
    deviations = _let_go(view, _never_written(view, deviations))
    deviations = _read_elsewhere(view, deviations, due)
    deviations = _not_kept_apart(view, deviations)
    deviations = _shifted(view, deviations)
    return _mask_of_another(view, deviations)


def _never_written(view: QueryView, deviations: list[Deviation]) -> list[Deviation]:
    """Numbers that no model wrote are a damaged entry where an entry is missing, else memory that was never written."""
    if any(deviation.kind == "missing-entry" for deviation in deviations):
        return deviations
    blank = {entry.slot for entry in view.entries if entry.label.what == "blank"}
    return [
        replace(deviation, component="mask", kind="pad-visible", origin="blank", source="blank")
        if deviation.kind == "torn-entry" and deviation.slot in blank
        else deviation
        for deviation in deviations
    ]


def _let_go(view: QueryView, deviations: list[Deviation]) -> list[Deviation]:
    """The missing entries first, where the beginning of a row is gone from its cache and was not fed again.

    Its slots were given up, and what the query sees in new ones is there by accident: the rest of other rows, or
    nothing. That is so where the batch went on without the row; else what the query sees instead is the fault.
    """
    missing = [d.token_position for d in deviations if d.kind == "missing-entry" and d.token_position is not None]
    record, request = view.labels, view.request
    elsewhere = any(deviation.held_by is not None for deviation in deviations)
    since = let_go(record, view.call, request, missing) if missing and not elsewhere else None
    if since is None or sorted(missing) != list(range(view.low, view.low + len(missing))):
        return deviations
    if not left_out(record, request, since, view.call.number):
        return deviations
    return [
        replace(deviation, source=LET_GO) if deviation.kind == "missing-entry" else deviation
        for deviation in deviations
    ]


def _read_elsewhere(view: QueryView, deviations: list[Deviation], due: set[int]) -> list[Deviation]:
    """One finding where a query sees as many slots as it should, and others than are ``due``.

    Then the call reads a row's entries in an order, or from places, that are not its own, and each entry it sees
    instead says something else by chance. Where all are there and in order it is the mask that shows the wrong ones.
    A token that was never fed for the row lies in no other place: the row was served entries as those of its beginning.
    Nor does one over whose entry something else was written. Where most entries are in their places, single ones are
    told one by one.
    """
    # Each return below leaves a fault that has a better name: too few or too many slots are a mask's fault, a token
    # that was never fed is in no slot to be read, and one whose entry was overwritten is lost.
    shown = {entry.slot for entry in view.entries if entry.visible}
    absent = [deviation.token_position for deviation in deviations if deviation.kind == "missing-entry"]
    whole = view.at + 1 - view.low
    if not view.labels.packed or view.labels.branches or shown <= due or len(shown) != whole:
        return deviations
    if any(one.kind in ("torn-entry", "window") for one in deviations):
        return deviations
    if not all(view.labels.was_fed(view.request, at, view.call.number) for at in absent if at is not None):
        return deviations
    fed = {label.position for label in view.labels.of.values() if view.labels.same(label, view.request)}
    if not fed.issuperset(absent):
        return deviations
    places = (overwritten(view.labels, view.call, view.row, view.request, at) for at in absent if at is not None)
    if all(place is not None for place in places) if absent else _ordered(view):
        return deviations
    if _gone(view, [at for at in absent if at is not None]) or 2 * _misplaced(view) < whole:
        return deviations
    numbers = {"expected": whole, "observed": len(shown & due)}
    return [view.deviation("cache", "misaligned", origin=origin("unordered"), **numbers)]


def _misplaced(view: QueryView) -> int:
    """Return how many of the entries that a query sees are not those of the row in their places."""
    seen = enumerate((entry for entry in view.entries if entry.visible), start=view.low)
    return sum(not (view.is_own(one) and one.label.position == at) for at, one in seen)


def _gone(view: QueryView, absent: list[int]) -> bool:
    """Return whether every entry that a query sees stands in its place, but for later ones in place of ``absent`` ones.

    No call reads the absent ones any more, as those do that read a table in another order, and some of the row's older
    entries are there: it is the row's own table. So slots of it were given away, and what the query sees in them was
    written in the call that read an absent one last, or since.
    """
    seen = dict(enumerate((entry for entry in view.entries if entry.visible), start=view.low))
    kept = {at: one for at, one in seen.items() if at not in absent}
    if not all(view.is_own(one) and one.label.position == at for at, one in kept.items()):
        return False
    if all(one.write[0] == view.call.number for one in kept.values()):
        return False
    read = {at: last_read(view.labels, view.request, at, max(view.labels.calls) + 1) for at in absent}
    last = {at: found[0] for at, found in read.items() if found is not None}
    lives = any(number >= view.call.number for number in last.values())
    return bool(last) and not lives and all(seen[at].write[0] >= number for at, number in last.items() if at in seen)


def _complete(places: Iterable[tuple[int, int]]) -> bool:
    """Return whether of each request every position up to its last is there once."""
    ordered = sorted(places)
    ends = Counter(request for request, _ in ordered)
    return ordered == [(request, at) for request in sorted(ends) for at in range(ends[request])]


def _ordered(view: QueryView) -> bool:
    """Return whether the slots of a row hold each position of its requests once,
    as written or as the call feeds requests.
    """
    held = [entry for entry in view.entries if entry.known and entry.label.what != "pad"]
    fed = list(dict.fromkeys(label.request for label in view.labels.labels(view.call, view.row)))
    order, places = [one.write for one in held], [(one.label.request, one.label.position) for one in held]
    by_request = [place for request in fed for place in sorted(places) if place[0] == request]
    return _complete(places) and (order == sorted(order) or places == by_request)


def _not_kept_apart(view: QueryView, deviations: list[Deviation]) -> list[Deviation]:
    """The mask is at fault for seen entries of other requests that share a row, if every entry that is due is seen.

    The cache of such a row rightly holds the entries of each request. If two requests begin alike, each holds the
    other's tokens again. Where a due entry is hidden, the mask is at fault, too, in two cases: the query sees exactly
    the cached entries of another request, or the cache lies as it was written, with every token of each request once
    and nothing else.
    """
    labels, cached = view.labels, view.cached
    kinds = {deviation.kind for deviation in deviations}
    if not labels.packed or kinds & {"missing-entry", "torn-entry"}:
        return deviations
    # A hidden token speaks for a broken cache, unless the mask explains that as well: it may be another request's as a
    # whole, or be laid over a cache that lies just as it was written.
    shown = [entry for entry in cached if entry.visible and entry.known]
    whole = any(
        shown == [entry for entry in cached if entry.known and entry.label.request == request]
        for request in {entry.label.request for entry in shown}
    )
    order = [entry.write for entry in cached]
    tokens = all(entry.label.what == "token" for entry in cached) and order == sorted(order)
    in_order = tokens and _complete((entry.label.request, entry.label.position) for entry in cached)
    if "token-hidden" in kinds and not (whole or in_order):
        return deviations
    foreign = [entry.label for entry in view.entries if entry.visible and entry.label.request != view.request]
    shared = {label.position for label in foreign if labels.same(label, view.request)}

    def anothers(deviation: Deviation, entry: Entry) -> bool:
        several = _fed_several(labels, *view.write[:2]) or (entry.known and _fed_several(labels, *entry.write[:2]))
        again = deviation.kind == "duplicate-entry" and entry.label.position in shared
        return entry.known and several and (deviation.kind == "wrong-row" or again)

    return [
        replace(deviation, component="mask", kind="other-row-visible")
        if deviation.slot is not None and anothers(deviation, view.entries[deviation.slot])
        else deviation
        for deviation in deviations
    ]


def _fed_several(record: Record, call: int, row: int) -> bool:
    """Return whether a row of a call fed tokens of several requests."""
    return len({label.request for label in record.labels(record.calls[call], row)} - {-1}) > 1


def _shifted(view: QueryView, deviations: list[Deviation]) -> list[Deviation]:
    """The part that was left behind, where mask and cache differ by a shift alone.

    The part at the padding side's other edge (the block just fed, or slot 0) is where it should be; the other part was
    left behind.
    """
    if view.family.stateful:  # a state has no mask, and what it takes in stands one after the other
        return deviations
    own = {entry.slot for entry in view.cached if entry.label.request == view.request and view.is_own(entry)}
    shown = {entry.slot for entry in view.cached if entry.visible}
    if not own or len(own) != len(shown) or not (own - shown):
        return deviations
    shift = min(own) - min(shown)
    edge = min(view.own_block, default=len(view.entries)) - 1 if view.labels.left else 0
    if {slot + shift for slot in shown} != own or edge not in shown or edge in own or view.labels.packed:
        return deviations
    where = origin("shifted", slots=_slots(own), attended=_slots(shown))
    source = "shifted-up" if shift > 0 else "shifted-down"
    moved = view.deviation("cache", "misaligned", slot=min(own), origin=where, shift=shift, source=source)
    return [moved, *(deviation for deviation in deviations if deviation.slot not in own | shown)]


def _slots(numbers: set[int]) -> str:
    """Some slots in words.

    >>> _slots({4}), _slots({2, 3, 4}), _slots({1, 3})
    ('slot 4', 'slots 2..4', 'slots 1, 3')
    """
    low, high = min(numbers), max(numbers)
    if len(numbers) == high - low + 1:
        return f"slot {low}" if low == high else f"slots {low}..{high}"
    return f"slots {', '.join(map(str, sorted(numbers)))}"


def wrong_path(view: QueryView, deviations: list[Deviation]) -> list[Deviation]:
    """One deviation for each pair of a token of the path and the entry of a refused node that stands in its place."""
    if not view.labels.branches:
        return deviations
    # The refused node and the path's token were written by one call, which is what makes them one fault. Each lost
    # token is paired once, or a single wrong node would explain them all.
    lost = [d for d in deviations if d.kind in ("missing-entry", "token-hidden") and d.token_position is not None]
    kept: list[Deviation] = []
    for deviation in deviations:
        call = view.entries[deviation.slot].write[0] if deviation.kind in _KEPT and deviation.slot is not None else None
        queries = ((d, view.labels.queries(view.request, d.token_position or 0)) for d in lost)
        due = next((d for d, asked in queries if call in {write[0] for write, _ in asked}), None)
        if due is None:
            kept.append(deviation)
            continue
        lost.remove(due)
        kept.append(replace(deviation, kind="wrong-path", token_position=due.token_position))
        deviations = [d for d in deviations if d is not due]
    return [deviation for deviation in kept if deviation in deviations or deviation.kind == "wrong-path"]


class Holder(NamedTuple):
    """The ``request`` that held a batch row before another one did, up to a ``call``.

    The first ``width`` slots of the row that has moved there are the slots that the holder had then.
    """

    request: int
    call: Call
    width: int = 0


def _holder_before(record: Record, number: int, row: int, request: int) -> Holder | None:
    """The holder of a batch row before ``request`` took it over; None where it had it from the first, or shares it.

    An engine that makes a call for each row hands nothing over: there the requests come back.
    """
    holder = None
    for earlier in sorted((n for n in record.calls if n < number), reverse=True):
        owners = _owners(record, earlier, row)
        if holder is None and len(owners) == 1 and request not in owners:
            holder = Holder(next(iter(owners)), record.calls[earlier])
        elif holder is not None and request in owners:
            return None
    later = (owner for n in record.calls if n >= number for owner in _owners(record, n, row))
    return None if holder is None or holder.request in later else holder


def _owners(record: Record, number: int, row: int) -> set[int]:
    return {label.request for label in record.labels(record.calls[number], row)} - {-1}


def _mask_of_another(view: QueryView, deviations: list[Deviation]) -> list[Deviation]:
    """One finding where a query sees the slots that are right for the request that held its batch row before.

    That mask then accounts for every slot that the query sees wrongly, of whichever kind. A fault that shows or hides
    too much makes a mask like another row's by chance. So some slots have to be seen wrongly and others hidden, or a
    query of the run has to be right about such slots.
    """
    kinds = {deviation.kind for deviation in deviations}
    if not kinds or kinds - _HIDDEN - _SEEN:
        return deviations
    before = _shown_as(view.labels, view.write)
    slots = [deviation.slot for deviation in deviations if deviation.slot is not None]
    if before is None or len(slots) < len(deviations) or max(slots) >= before.width:
        return deviations
    both = kinds & _HIDDEN and kinds - _HIDDEN
    if not both and not _right_elsewhere(view, deviations):
        return deviations
    facts = {"other_row": before.request, "batch_row": view.row, "call": before.call.number}
    where = origin("batch-row-before", **facts)
    return [view.deviation("mask", "of-another-row", slot=min(slots), origin=where, of_row=before.request)]


def _shown_as(record: Record, write: Write) -> Holder | None:
    """The earlier holder of the batch row of a query, if the query sees the slots that are right for that request.

    Only the slots are looked at that the row had when that request left, up to the first that was written since.
    """
    number, row, column = write
    call, request = record.calls[number], record.of[write].request
    before = None if record.packed or record.branches else _holder_before(record, number, row, request)
    if before is None:
        return None
    then, now = before.call, writes(call, row)
    own = next((b for b in range(then.kv[0].shape[1]) if request in _owners(record, then.number, b)), row)
    width = common_start(writes(then, own), now)
    dues = [_due(record, writes(then, row)[:width], before.request, cut) for cut in (False, True)]
    shown = call.visible[row, column, :width]
    found = any(due.any() and np.array_equal(shown, due) for due in dues)
    return before._replace(width=width) if found else None


def _right_elsewhere(view: QueryView, deviations: list[Deviation]) -> bool:
    """Return whether queries that saw exactly their rows, up to the view's call, had such slots in their cache, too.

    For a hidden token that is an accepted draft token, or a token of a prompt, as it is.
    """
    # A mask of too many or too few slots looks like another row's by chance now and then. Queries that had such slots
    # and were right about them show that the decoder knows how to mask them.
    record, sorts = view.labels, {"stale-entry": "draft", "pad-visible": "pad"}
    prompt = len(record.requests[view.request].prompt)
    needed = {sorts.get(d.kind, "accepted" if (d.token_position or 0) >= prompt else "token") for d in deviations}
    held: set[str] = set()
    exact = {write for write, label in record.of.items() if label.exact and write[0] <= view.call.number}
    for number, row, _ in exact:
        for write in writes(record.calls[number], row):
            label = record.of.get(write)
            if label is not None and write[0] < number:
                left = record.of.get((write[0], write[1], write[2] - 1))
                new = label.position >= len(record.requests[label.request].prompt)
                drafted = new and left is not None and left.what == "token"
                held.add("accepted" if label.what == "token" and drafted else label.what)
    return needed <= held


def _has(label: Label | None, request: int, cut: bool) -> bool:
    """Return whether a label names a token of a request,
    or with ``cut`` a draft token that it agreed to behind its end.
    """
    return label is not None and label.request == request and (label.what == "token" or (cut and label.agreed))


def _due(record: Record, slots: list[Write], request: int, cut: bool) -> Bools:
    """The slots of a row that hold tokens of a request, each position once."""
    positions: set[int] = set()
    due = []
    for write in slots:
        label = record.of.get(write)
        mine = {label.position} if label is not None and _has(label, request, cut) else set()
        due.append(bool(mine - positions))
        positions |= mine
    return np.array(due, np.bool_)


def said_of_query(deviation: Deviation, write: Write, record: Record) -> Statement:
    """A further statement on a query: it counts nodes, or has the position or the slots of the query before it."""
    if deviation.kind == "query-position":
        counted = said_of(deviation, write, record)
        return _due_to_another(deviation, write, record) if counted == NOTHING else counted
    before = _shown_as(record, write) if deviation.kind in _SEEN | _HIDDEN else None
    if before is not None and deviation.slot is not None and deviation.slot < before.width:
        held = {"held_row": write[1], "last_call": before.call.number}
        return state("slots-of-another", other_row=before.request, **held)
    return NOTHING


def _due_to_another(deviation: Deviation, write: Write, record: Record) -> Statement:
    """The statement that a query carries the position that the earlier holder of its batch row would have had there."""
    number, row, column = write
    label = record.of[write]
    before = _holder_before(record, number, row, label.request)
    if before is None or deviation.expected != label.position:
        return NOTHING
    last = before.call.number
    earlier = [label for write, label in record.of.items() if write[0] <= last]
    ends = {
        max((one.position for one in earlier if _has(one, before.request, cut)), default=-1) for cut in (False, True)
    }
    of_row = enumerate(record.labels(record.calls[number], row))
    first = next(at for at, one in of_row if one.request == label.request and one.what == "token")
    if deviation.observed not in {end + 1 + column - first for end in ends}:
        return NOTHING
    return state("due-to-another", due=deviation.observed, other_row=before.request, held_row=row, last_call=last)
