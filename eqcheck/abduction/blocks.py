"""A row of a batch as an engine holds it: slots, the block that is fed, what is seen, what is taken back."""

from __future__ import annotations

from dataclasses import dataclass

from eqcheck.abduction.program import Turn

PAD_SLOT, GONE = -1, -2
ALWAYS = 10**9  # a round that no case reaches


@dataclass
class HeldToken:
    """A slot, as a row's mask knows it: the logical position of its token, PAD_SLOT or GONE; if it is shown anyway."""

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


@dataclass(frozen=True)
class RowView:
    """The view of a block's queries: the row's slots, the columns in them, and the same, or None where hidden.

    The block's own begin at ``begin``.
    """

    slots: list[HeldToken]
    held: list[int]
    seen: list[int | None]
    begin: int


@dataclass(frozen=True)
class Rollback:
    """A row after a round: ``length`` tokens are kept, ``surplus`` were rejected; ``ended``: the row leaves.

    ``most`` and ``least`` are the surpluses of the rows of the batch.
    """

    row: int
    length: int
    surplus: int
    most: int
    least: int
    ended: bool
