"""A batch as it is simulated: what its rows hold and are fed, and the edit that is tried on it."""

from __future__ import annotations

from dataclasses import dataclass

from eqcheck.abduction.evidence import Evidence, Turn
from eqcheck.abduction.program import BLANK, Program

PAD_SLOT, GONE = -1, -2
ALWAYS = 10**9  # a round that no case reaches


@dataclass(frozen=True)
class Applied:
    """An edit as it is tried: by how much, in which rounds, and to which row or token where it concerns only one.

    ``amount`` is a number of tokens or positions, or another row.
    """

    id: str = ""
    amount: int = 0
    first: int = 0
    last: int = ALWAYS
    row: int | None = None
    token: int = -1


@dataclass
class HeldToken:
    """What a row's mask knows of a slot: the logical position of its token, PAD_SLOT or GONE; if it is shown anyway."""

    at: int
    token: int
    shown: bool = False


@dataclass
class FedBlock:
    """A row's part of a forward: ``tokens`` from logical position ``start`` on, behind ``pads``.

    With these it begins at slot ``begin``. The first ``again`` of them are in the cache already.
    """

    turn: Turn
    start: int
    tokens: list[int]
    again: int
    pads: int = 0
    begin: int = 0


@dataclass
class RowView:
    """What the queries of a block may see: the row's slots, the columns in them, and those not hidden from all (None).

    The block's own begin at ``begin``.
    """

    slots: list[HeldToken]
    held: list[int]
    seen: list[int | None]
    begin: int


@dataclass(frozen=True)
class Rollback:
    """What a row keeps after a round: ``length`` tokens. ``surplus`` were rejected.

    ``most`` and ``least`` are the surpluses of the rows of the batch.
    """

    row: int
    length: int
    surplus: int
    most: int
    least: int


class Batch:
    """What an edit may change. ``held[row]`` are the columns in the row's slots; ``lengths`` the tokens cached.

    ``believed`` are the lengths that positions are counted from; ``blocks`` what each row is fed in the present round.
    """

    program: Program
    number: int

    def __init__(self, evidence: Evidence, applied: Applied) -> None:
        self.evidence, self.applied = evidence, applied
        rows = range(len(evidence.texts))
        self.rows: list[int] = []  # of each entry
        self.slots: list[list[HeldToken]] = [[] for _ in rows]
        self.held: list[list[int]] = [[] for _ in rows]
        self.lengths = [0 for _ in rows]
        self.believed = [0 for _ in rows]
        self.blocks: dict[int, FedBlock] = {}

    def blank(self) -> int:
        return self.program.column(BLANK, BLANK)

    def visible(self, row: int, slot: int, begin: int) -> bool:
        """Whether the mask of a row shows a slot."""
        raise NotImplementedError
