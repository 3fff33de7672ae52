"""What one query saw against what it should have seen, read from the cache by provenance."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eqcheck.attribution.labels import Labels
from eqcheck.attribution.record import NO_WRITE, Label, Write
from eqcheck.attribution.torn import disagreement, emptied_slots, torn_slots
from eqcheck.family import Family
from eqcheck.hashing import (
    CALL,
    COLUMN,
    MODEL,
    ROW,
    TOKEN,
    Ints,
    stored_digest,
)
from eqcheck.trace import DRAFT, TARGET, Call
from eqcheck.verdict import Deviation, Slot

FED_WITH = "fed with this position"
_UNWRITTEN = Label(-1, -1, "blank")
_FOREIGN = Label(-1, -1, "draft model")
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
    torn: str
    visible: bool


@dataclass(frozen=True)
class Context:
    """The deviations of one query, and the writes whose own queries explain the rest."""

    deviations: tuple[Deviation, ...]
    follow: tuple[Write, ...]
    slots: tuple[Slot, ...]


def read(
    call: Call, row: int, column: int, label: Label, labels: Labels, stored: Sequence[Ints], family: Family
) -> Context:
    """Compare what a query saw with ``label``: the request and logical position it stood for.

    ``stored[request]`` are the digests that right entries of the upper layer hold, by logical position.
    """
    request, at = label.request, label.position
    low = family.first_seen(at)
    if call.kv[0].shape != call.kv[1].shape:
        sizes = " and ".join(str(kv.shape[3]) for kv in call.kv)
        torn = Deviation("cache", "torn-entry", call.number, column, request, origin=f"layers hold {sizes} slots")
        return Context((torn,), (), ())
    found = _entries(call, row, column, labels, family)

    def deviation(component: str, kind: str, entry: Entry | None = None, **more: object) -> Deviation:
        slot, token = (entry.slot, entry.token) if entry else (None, None)
        given = {"slot": slot, "token": token, **more}
        return Deviation(component, kind, call.number, column, request, **given)  # type: ignore[arg-type]

    deviations: list[Deviation] = []
    follow: list[Write] = []
    right: dict[int, Entry] = {}
    hidden: dict[int, Entry] = {}
    own_block = {e.slot for e in found if e.write[0] == call.number}
    for entry in found:
        mine = labels.same(entry.label, request) and entry.label.position <= at
        if not entry.visible:
            if mine:
                hidden.setdefault(entry.label.position, entry)
        elif entry.torn:
            deviations.append(deviation("cache", "torn-entry", entry, origin=entry.torn))
            right.setdefault(entry.label.position if mine else -1, entry)
        elif mine and entry.label.position < low:
            deviations.append(deviation("mask", "window", entry, token_position=entry.label.position))
        elif mine and entry.label.position not in right:
            right[entry.label.position] = entry
        else:
            component, kind = _surplus(entry, request, at, entry.slot in own_block)
            origin = holds(entry.label, request)
            origin += f" of call {entry.write[0]}" if entry.label.what == "filler" else ""
            deviations.append(deviation(component, kind, entry, origin=origin))
    right.pop(-1, None)
    own_slot = max(own_block, default=len(found) - 1) - call.tokens.shape[1] + 1 + column
    for position in range(low, at + 1):
        if position in right:
            continue
        where = hidden.get(position)
        component, kind = ("mask", "token-hidden") if where else ("cache", "missing-entry")
        if where and family.window and own_slot - where.slot >= family.window:
            kind = "window"
        elsewhere = _elsewhere(call, row, request, position, labels) if where is None else ""
        deviations.append(deviation(component, kind, where, token_position=position, origin=elsewhere))
    deviations = _as_shift(deviations, found, request, at, own_block, call.number, column, labels.left)

    offset = 0 if family.absolute else _common_offset(right, at, call.places[row, column])
    query_position = int(call.places[row, column])
    if query_position != at + offset:
        deviations.append(
            deviation("position", "query-position", token_position=at, expected=at + offset, observed=query_position)
        )
    for position, entry in right.items():
        writer = labels.calls.get(entry.write[0])
        if position != at and entry.position != position + offset:
            fed = int(writer.positions[entry.write[1:]]) if writer else entry.position
            origin = FED_WITH if fed == entry.position else "changed in the cache"
            if not family.fed:
                origin = "counted by its slot"
            elif fed == entry.position and entry.write[0] <= call.number:
                follow.append(entry.write)
            deviations.append(
                deviation(
                    "position",
                    "key-position",
                    entry,
                    token_position=position,
                    expected=position + offset,
                    observed=entry.position,
                    origin=origin,
                )
            )
        elif position != at and entry.digest != stored[request][position]:
            follow.append(entry.write)
            deviations.append(deviation("cache", "poisoned-entry", entry, token_position=position))
    slots = [_slot(entry, request, range(low, at + 1), offset, right) for entry in found]
    absent = [d.token_position for d in deviations if d.kind == "missing-entry" and d.token_position is not None]
    for position in absent:
        token = labels.sequence(request)[position]
        slots.append(Slot(None, f"position {position}", token, None, position + offset, False, True))
    return Context(tuple(deviations), tuple(follow), tuple(slots))


def displaced(call: Call, row: int, column: int, deviations: Sequence[Deviation]) -> tuple[str, str] | None:
    """Where a query sees one slot without a token and not itself, these two: its entry or the mask is displaced."""
    fields = call.kv[0][0, row, 0]
    own = np.flatnonzero((fields[:, CALL] == call.number) & (fields[:, COLUMN] == column))
    wrong = Counter(deviation.kind for deviation in deviations)
    if own.size != 1 or call.visible[row, column, own[0]] or wrong != {"pad-visible": 1, "token-hidden": 1}:
        return None
    seen = next(deviation.slot for deviation in deviations if deviation.kind == "pad-visible")
    return f"slot {seen}", f"slot {own[0]}"


def _entries(call: Call, row: int, column: int, labels: Labels, family: Family) -> list[Entry]:
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
        foreign = _FOREIGN if fields[MODEL] == DRAFT else _UNWRITTEN
        label = labels.of.get(write, _UNKNOWN) if fields[MODEL] == TARGET else foreign
        token, place = int(fields[TOKEN]), int(call.key_places[row, slot])
        if emptied[slot] and write[0] in labels.calls:
            token = int(labels.calls[write[0]].tokens[write[1:]])
            place = int(labels.calls[write[0]].positions[write[1:]]) if family.fed else place
        found.append(
            Entry(
                slot,
                token,
                place,
                int(stored[slot]),
                write,
                label,
                disagreement(copies[:, :, :, slot]) if torn[slot] else "",
                bool(call.visible[row, column, slot]),
            )
        )
    return found


def _surplus(entry: Entry, request: int, at: int, in_own_block: bool) -> tuple[str, str]:
    """What a visible entry is that the query should not have seen."""
    label = entry.label
    if label.what in ("pad", "blank", "filler"):
        return "mask", "pad-visible"
    if label.what == "unknown":
        return "unattributed", "unattributed"
    if label.what == "draft model" or label.request != request:
        return "cache", "wrong-row"
    if label.position > at and in_own_block:
        return "mask", "future-visible"
    if label.what == "draft" or label.position > at:
        return "cache", "stale-entry"
    return "cache", "duplicate-entry"


def _elsewhere(call: Call, row: int, request: int, position: int, labels: Labels) -> str:
    """Where an absent token's entry is instead, if another row of the same cache holds it."""
    for other in range(call.kv[0].shape[1]):
        for fields in call.kv[0][0, other, 0]:
            label = labels.of.get((int(fields[CALL]), int(fields[ROW]), int(fields[COLUMN])), _UNKNOWN)
            same = (label.request, label.position, label.what) == (request, position, "token")
            if other != row and fields[MODEL] == TARGET and same:
                return f"batch row {other} holds it"
    return "no row of the cache holds it"


def _as_shift(
    deviations: list[Deviation],
    found: list[Entry],
    request: int,
    at: int,
    own_block: set[int],
    call: int,
    column: int,
    left: bool,
) -> list[Deviation]:
    """When mask and cache differ by a shift alone, say which of the two was not moved.

    The one at the padding side's other edge (the block just fed, or slot 0) is where it should be; the other was left
    behind.
    """
    cached = [entry for entry in found if entry.slot not in own_block]
    mine = {e.slot for e in cached if e.label.what == "token" and e.label.request == request and e.label.position <= at}
    shown = {entry.slot for entry in cached if entry.visible}
    if not mine or mine == shown or len(mine) != len(shown) or not (mine - shown):
        return deviations
    shift = min(mine) - min(shown)
    if {slot + shift for slot in shown} != mine:
        return deviations
    edge = min(own_block, default=len(found)) - 1 if left else 0
    if edge not in shown or edge in mine:
        return deviations
    moved = Deviation(
        "cache",
        "misaligned",
        call,
        column,
        request,
        slot=min(mine),
        origin=f"{shift:+d} slots from where the mask shows",
    )
    return [moved, *(d for d in deviations if d.slot not in mine | shown)]


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


def holds(label: Label, request: int) -> str:
    """What a slot holds, in words."""
    if label.what in ("pad", "blank", "filler", "unknown", "draft model"):
        return label.what
    what = "" if label.what == "token" else "rejected draft at "
    row = "" if label.request == request else f"row {label.request}, "
    return f"{row}{what}position {label.position}"


def _slot(entry: Entry, request: int, wanted: range, offset: int, right: dict[int, Entry]) -> Slot:
    expected = entry.label.what == "token" and entry.label.request == request and entry.label.position in wanted
    expected = expected and right.get(entry.label.position, entry).slot == entry.slot
    return Slot(
        index=entry.slot,
        holds=holds(entry.label, request),
        token=entry.token,
        position=entry.position,
        expected_position=entry.label.position + offset if expected else None,
        visible=entry.visible,
        expected_visible=expected,
        torn=bool(entry.torn),
    )
