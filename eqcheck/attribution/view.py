"""One query and the slots of its row, each with the token that it holds: the base of every later reading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from eqcheck.attribution.copies import Torn, disagreement, emptied_slots, torn_slots
from eqcheck.attribution.record import FOREIGN, NO_WRITE, Label, Record, Write
from eqcheck.contract.family import Family
from eqcheck.explanation.records import Deviation
from eqcheck.hashlm.hashing import CALL, COLUMN, MODEL, OTHER_WEIGHTS, ROW, TOKEN, stored_digest
from eqcheck.hashlm.trace import DRAFT, TARGET, Call

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
