"""What one query saw against what it should have seen, read from the cache by provenance."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from eqcheck.attribution.branches import as_wrong_path
from eqcheck.attribution.handover import as_mask_of_another
from eqcheck.attribution.labels import Labels
from eqcheck.attribution.packed import not_kept_apart, read_elsewhere, writes
from eqcheck.attribution.record import NEVER_FED, NO_WRITE, Label, Write, holds, kind_held, place_held
from eqcheck.attribution.torn import Torn, disagreement, emptied_slots, never_written, torn_slots
from eqcheck.contract.family import Family
from eqcheck.explanation.records import Deviation, Slot
from eqcheck.hashlm.hashing import CALL, COLUMN, MODEL, ROW, TOKEN, Ints, stored_digest
from eqcheck.hashlm.trace import DRAFT, TARGET, Call

FED_WITH = "fed"
_CARRIED = {FED_WITH: "fed with this position", "changed": "changed in the cache", "counted": "counted by its slot"}
_UNWRITTEN = Label(-1, -1, "blank")
_FOREIGN = {TARGET: Label(-1, -1, "draft model"), DRAFT: Label(-1, -1, "target model")}  # in the cache of the other
_UNKNOWN = Label(-1, -1, "unknown")


@dataclass(frozen=True)
class Entry:
    """One slot of a row: what it holds, who wrote it, and the position at which the family takes it to be."""

    slot: int
    token: int
    position: int
    digest: int
    write: Write
    label: Label
    torn: Torn | None
    visible: bool


@dataclass(frozen=True)
class Context:
    """The deviations of one query, the writes that explain the rest, and the ``offset`` of all positions."""

    deviations: tuple[Deviation, ...]
    follow: tuple[Write, ...]
    slots: tuple[Slot, ...]
    offset: int = 0


@dataclass(frozen=True)
class _Query:
    """A query that is held against the token it stands for: the one ``at`` this logical position of the ``request``.

    ``low`` is the first position that it should see, ``entries`` are the slots of its row, ``own_block`` those that its
    own call wrote.
    """

    call: Call
    row: int
    column: int
    request: int
    at: int
    low: int
    family: Family
    labels: Labels
    entries: list[Entry]
    own_block: set[int]

    def deviation(self, component: str, kind: str, entry: Entry | None = None, **more: object) -> Deviation:
        slot, token = (entry.slot, entry.token) if entry else (None, None)
        given = {"slot": slot, "token": token, **more}
        return Deviation(component, kind, self.call.number, self.column, self.request, **given)  # type: ignore[arg-type]

    def sees_back(self, entry: Entry) -> bool:
        """Whether an entry of the block is of a node behind the query: that sees the query's own."""
        number, column = (self.call.number, self.row, self.column), entry.write[2]
        return any(bool(self.call.visible[self.row, column, one.slot]) for one in self.entries if one.write == number)

    def is_own(self, entry: Entry) -> bool:
        """Whether an entry is a token of the request that the query may see, but for a window."""
        return self.labels.same(entry.label, self.request) and entry.label.position <= self.at

    def due(self, right: Mapping[int, Entry]) -> dict[int, Entry]:
        """The entries that the query should see, by logical position: the ``right`` ones, else the first in the row."""
        own = {one.label.position: one for one in reversed(self.entries) if self.is_own(one)}
        return {at: entry for at, entry in own.items() if at >= self.low} | dict(right)


def read(
    call: Call,
    row: int,
    column: int,
    label: Label,
    labels: Labels,
    stored: Sequence[Ints],
    family: Family,
    held: Sequence[Entry] | None = None,
) -> Context:
    """Compare what a query saw with ``label``: the request and logical position it stood for.

    ``stored[request]`` are the digests that right entries of the upper layer hold, by logical position; ``held`` are
    the `entries` of the row, where they are known already.
    """
    request, at = label.request, label.position
    if call.kv[0].shape != call.kv[1].shape:
        sizes = " and ".join(str(kv.shape[3]) for kv in call.kv)
        torn = Deviation("cache", "torn-entry", call.number, column, request, origin=f"layers hold {sizes} slots")
        return Context((torn,), (), ())
    found = entries(call, row, labels.of, labels.calls, family) if held is None else held
    seen = [replace(entry, visible=bool(call.visible[row, column, entry.slot])) for entry in found]
    own_block = {entry.slot for entry in seen if entry.write[0] == call.number}
    query = _Query(call, row, column, request, at, family.first_seen(at), family, labels, seen, own_block)
    surplus, right = _seen(query)
    own = {entry.slot for entry in query.due(right).values()}
    blank = {entry.slot for entry in seen if entry.label is _UNWRITTEN}
    deviations = never_written(surplus + _unseen(query, right), blank)
    deviations = read_elsewhere(deviations, call, row, column, own, labels)
    deviations = not_kept_apart(deviations, call, row, column, request, labels)
    deviations = as_mask_of_another(_as_shift(query, deviations), call, row, column, labels)
    offset = 0 if family.absolute else _common_offset(right, at, call.places[row, column])
    misplaced, follow = _misplaced(query, right, offset, stored[request])
    deviations += misplaced
    if labels.branches:
        deviations = as_wrong_path(deviations, {entry.slot: entry.write[0] for entry in found}, request, labels)
    return Context(tuple(deviations), tuple(follow), tuple(_slots(query, right, offset, deviations)), offset)


def _seen(query: _Query) -> tuple[list[Deviation], dict[int, Entry]]:
    """What is seen and should not be; and by logical position, the entries that are rightly seen, the own one first."""
    deviations: list[Deviation] = []
    right: dict[int, Entry] = {}
    seen = (entry for entry in query.entries if entry.visible)
    for entry in sorted(seen, key=lambda one: one.write != (query.call.number, query.row, query.column)):
        own, position = query.is_own(entry), entry.label.position
        if entry.torn:
            deviations.append(
                query.deviation("cache", "torn-entry", entry, origin=entry.torn.words, source=entry.torn.kind)
            )
            if own:  # it is there, and whatever else is wrong with it follows
                right.setdefault(position, entry)
        elif own and position < query.low:
            deviations.append(query.deviation("mask", "window", entry, token_position=position))
        elif own and position not in right:
            right[position] = entry
        else:
            origin = holds(entry.label, query.request)
            origin += f" of call {entry.write[0]}" if entry.label.what == "filler" else ""
            component, kind = _surplus(entry, query)
            facts = {"origin": origin, "source": kind_held(entry.label, query.request), **place_held(entry.label)}
            deviations.append(query.deviation(component, kind, entry, **facts))
    return deviations, right


def _unseen(query: _Query, right: dict[int, Entry]) -> list[Deviation]:
    """What should be seen and is not: it is hidden, or it is not in the row's cache."""
    deviations: list[Deviation] = []
    hidden: dict[int, Entry] = {}
    for entry in query.entries:
        others = query.labels.packed and entry.label.request != query.request  # which the mask rightly hides
        if not (entry.visible or others) and query.is_own(entry):
            hidden.setdefault(entry.label.position, entry)
    own_slot = max(query.own_block, default=len(query.entries) - 1) - query.call.tokens.shape[1] + 1 + query.column
    for position in range(query.low, query.at + 1):
        if position in right:
            continue
        if (where := hidden.get(position)) is None:
            other = _elsewhere(query.call, query.row, query.request, position, query.labels)
            where_held = "no row of the cache holds it" if other is None else f"batch row {other} holds it"
            fed = query.labels.was_fed(query.request, position, query.call.number)
            source = "" if other is None else "held-by-another" if fed else "never-fed"
            origin = where_held if fed else NEVER_FED
            facts = {"token_position": position, "origin": origin, "held_by": other, "source": source}
            deviations.append(query.deviation("cache", "missing-entry", None, **facts))
        else:  # a window that counts slots loses what is that far away in slots, a narrow one what is oldest
            full = (query.family.window or query.at + 2) == query.at + 1
            past = query.low or (full and query.call.visible[query.row, : query.column, where.slot].any())
            older, newer = range(query.low, position), range(position, query.at)
            oldest = past and right.keys().isdisjoint(older) and not right.keys().isdisjoint(newer)
            far = oldest or (query.family.window and own_slot - where.slot >= query.family.window)
            kind = "window" if far else "token-hidden"
            deviations.append(query.deviation("mask", kind, where, token_position=position))
    return deviations


def _misplaced(
    query: _Query, right: dict[int, Entry], offset: int, stored: Ints
) -> tuple[list[Deviation], list[Write]]:
    """What is seen at a wrong position or written under an earlier fault, and the writes that explain it."""
    deviations: list[Deviation] = []
    follow: list[Write] = []
    call, at = query.call, query.at
    carried = int(call.places[query.row, query.column])
    if carried != at + offset:
        fault = query.deviation("position", "query-position", token_position=at, expected=at + offset, observed=carried)
        deviations.append(fault)
    for position, entry in right.items():
        if position == at:
            continue
        if entry.position != position + offset:
            writer = query.labels.calls.get(entry.write[0])
            fed = int(writer.positions[entry.write[1:]]) if writer else entry.position
            source = FED_WITH if fed == entry.position else "changed"
            if not query.family.fed:
                source = "counted"
            elif fed == entry.position and entry.write[0] <= call.number:
                follow.append(entry.write)
            places = {"expected": position + offset, "observed": entry.position, "source": source}
            origin = _CARRIED[source]
            fault = query.deviation("position", "key-position", entry, token_position=position, origin=origin, **places)
            deviations.append(fault)
        elif entry.digest != stored[position]:
            follow.append(entry.write)
            deviations.append(query.deviation("cache", "poisoned-entry", entry, token_position=position))
    return deviations, follow


def _slots(query: _Query, right: dict[int, Entry], offset: int, deviations: Sequence[Deviation]) -> list[Slot]:
    """The row's cache as the query saw it, and behind it the tokens that are in no slot."""
    due = query.due(right)
    slots = [_slot(entry, query, due, offset) for entry in query.entries]
    for position in (d.token_position or 0 for d in deviations if d.kind == "missing-entry"):
        token = query.labels.sequence(query.request)[position]
        place = (False, query.request, position, "token")
        slots.append(Slot(None, f"position {position}", token, None, position + offset, False, True, *place))
    return slots


def displaced(call: Call, row: int, column: int, deviations: Sequence[Deviation]) -> tuple[int, int] | None:
    """Where a query sees one slot without a token and not itself, these two: its entry or the mask is displaced."""
    fields = call.kv[0][0, row, 0]
    own = np.flatnonzero((fields[:, CALL] == call.number) & (fields[:, COLUMN] == column))
    wrong = Counter(deviation.kind for deviation in deviations)
    if own.size != 1 or call.visible[row, column, own[0]] or wrong != {"pad-visible": 1, "token-hidden": 1}:
        return None
    seen = next(deviation.slot for deviation in deviations if deviation.kind == "pad-visible")
    return int(seen or 0), int(own[0])


def entries(call: Call, row: int, of: Mapping[Write, Label], calls: Mapping[int, Call], family: Family) -> list[Entry]:
    """The slots of a batch row in a call, none of them visible yet; ``of`` and ``calls`` are of the call's model."""
    found = []
    lower, upper = call.kv
    copies = np.stack([lower[:, row], upper[:, row]])  # [layer, K/V, head, slot, width]
    emptied = emptied_slots(call, row, copies)
    torn = torn_slots(call, row, copies) & ~emptied
    stored = stored_digest(upper[0, row, 0])
    for slot in range(copies.shape[3]):
        fields = copies[0, 0, 0, slot]
        write = NO_WRITE
        if fields[MODEL] in (TARGET, DRAFT):
            write = (int(fields[CALL]), int(fields[ROW]), int(fields[COLUMN]))
        foreign = _FOREIGN[call.role] if fields[MODEL] in (TARGET, DRAFT) else _UNWRITTEN
        label = of.get(write, _UNKNOWN) if fields[MODEL] == call.role else foreign
        token, place = int(fields[TOKEN]), int(call.key_places[row, slot])
        if emptied[slot] and write[0] in calls:
            token = int(calls[write[0]].tokens[write[1:]])
            place = int(calls[write[0]].positions[write[1:]]) if family.fed else place
        why = disagreement(copies[:, :, :, slot]) if torn[slot] else None
        found.append(Entry(slot, token, place, int(stored[slot]), write, label, why, False))
    return found


def _surplus(entry: Entry, query: _Query) -> tuple[str, str]:
    """What a visible entry is that the query should not have seen."""
    label, request, at, in_own_block = entry.label, query.request, query.at, entry.slot in query.own_block
    if label.what in ("pad", "blank", "filler"):
        return "mask", "pad-visible"
    if label.what == "unknown":
        return "unattributed", "unattributed"
    if label.what == "draft model" or label.request != request:
        return "cache", "wrong-row"
    if query.labels.branches and in_own_block:
        return "mask", "future-visible" if query.sees_back(entry) else "sibling-visible"
    if label.position > at and in_own_block:
        return "mask", "future-visible"
    if label.what == "draft" or label.position > at:
        return "cache", "stale-entry"
    return "cache", "duplicate-entry"


def _elsewhere(call: Call, row: int, request: int, position: int, labels: Labels) -> int | None:
    """The batch row that holds an absent token's entry instead; None if no row of the same cache does."""
    for other in range(call.kv[0].shape[1]):
        held = (labels.of.get(write, _UNKNOWN) for write in writes(call, other))
        if other != row and any((one.request, one.position, one.what) == (request, position, "token") for one in held):
            return other
    return None


def _as_shift(query: _Query, deviations: list[Deviation]) -> list[Deviation]:
    """When mask and cache differ by a shift alone, say which of the two was not moved.

    The one at the padding side's other edge (the block just fed, or slot 0) is where it should be; the other was left
    behind.
    """
    cached = [entry for entry in query.entries if entry.slot not in query.own_block]
    own = {entry.slot for entry in cached if entry.label.request == query.request and query.is_own(entry)}
    shown = {entry.slot for entry in cached if entry.visible}
    if not own or own == shown or len(own) != len(shown) or not (own - shown):
        return deviations
    shift = min(own) - min(shown)
    if {slot + shift for slot in shown} != own:
        return deviations
    edge = min(query.own_block, default=len(query.entries)) - 1 if query.labels.left else 0
    if edge not in shown or edge in own or query.labels.packed:
        return deviations
    origin = f"{shift:+d} slots from where the mask shows"
    moved = replace(query.deviation("cache", "misaligned"), slot=min(own), origin=origin, shift=shift)
    moved = replace(moved, source="shifted-up" if shift > 0 else "shifted-down")
    return [moved, *(d for d in deviations if d.slot not in own | shown)]


def _common_offset(right: dict[int, Entry], at: int, query_position: int) -> int:
    """The constant offset of a row's positions, which rotary positions forgive: that of most of its keys and the query.

    Where as many say one thing as another, none (0) is the likeliest, then the query's.
    """
    own = int(query_position) - at
    votes: dict[int, int] = defaultdict(int, {own: 1})
    for position, entry in right.items():
        if position != at:
            votes[entry.position - position] += 1
    return max(votes, key=lambda offset: (votes[offset], offset == 0, offset == own))


def _slot(entry: Entry, query: _Query, due: Mapping[int, Entry], offset: int) -> Slot:
    """A slot as a query saw it; ``due`` are the entries that it is to see, by logical position."""
    expected = query.is_own(entry) and due.get(entry.label.position) is entry
    label = query.labels.seen_by(entry.label, query.request)
    return Slot(
        index=entry.slot,
        holds=holds(label, query.request),
        token=entry.token,
        position=entry.position,
        expected_position=entry.label.position + offset if expected else None,
        visible=entry.visible,
        expected_visible=expected,
        torn=bool(entry.torn),
        kind=kind_held(label, query.request),
        **place_held(label),
    )
