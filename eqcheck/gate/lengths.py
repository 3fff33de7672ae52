"""Bet on rows that end elsewhere than the plain server's rows of the same request, whatever finish_reason says.

A bet is that of the rows of a request the speculative server's is the shortest, another that it is the longest. It
counts where one row alone is so. Greedy rows have to be alike as far as they go, so that no rounding decides.
`eqcheck.truth.evidence.OddOne` has the proof of the bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from eqcheck.gate.rows import Row
from eqcheck.truth.evidence import CROSSES, ROOM, OddOne, together

SHORTEST, LONGEST = "shortest", "longest"
LENGTHS = {SHORTEST: "premature-stop", LONGEST: "past-eos"}
"""The bets, and the kind of fault that each shows."""


class Lengths:
    """The two bets, and for each the speculative server's rows that won it, with a row of the control beside each."""

    def __init__(self) -> None:
        self.bets = {name: OddOne(ROOM) for name in LENGTHS}
        self.won: dict[str, list[tuple[Row, Row]]] = {name: [] for name in self.bets}

    @property
    def log_evidence(self) -> float:
        """Return the mean of both bets, as a logarithm."""
        return together([bet.log_evidence for bet in self.bets.values()])

    @property
    def crossed(self) -> list[str]:
        """Return the bets that decide, if the evidence does."""
        decides = self.log_evidence >= math.log(CROSSES)
        return [name for name, bet in self.bets.items() if decides and bet.log_evidence >= math.log(CROSSES)]

    def add(self, row: Row, control: Sequence[Row]) -> None:
        """Count a row of the speculative server, and those of the control that ask for the same."""
        asked = replace(row.asked, seed=None)
        others = [its for its in control if replace(its.asked, seed=None) == asked]
        for name, bet in self.bets.items() if others else ():
            ordered = sorted([row, *others], key=lambda its: len(its.answer.tokens), reverse=name == LONGEST)
            first, second = ordered[:2]
            if len(first.answer.tokens) == len(second.answer.tokens) or not _alike(ordered):
                continue
            bet.add(first is row, len(others))
            self.won[name] += [(row, second)] if first is row else []


def ends_so(edit: str, row: Row, plain: Row) -> bool:
    """Return whether a greedy row ends before or after the plain server's same row. Sampled ones do by chance."""
    if row.asked.temperature:
        return False
    shorter, longer = (row, plain) if edit == SHORTEST else (plain, row)
    return len(shorter.answer.tokens) < len(longer.answer.tokens) and _alike([row, plain])


def _alike(rows: Sequence[Row]) -> bool:
    """Return whether rows have the same tokens as far as both go; sampled ones need not."""
    if rows[0].asked.temperature:
        return True
    each = [row.answer.tokens for row in rows]
    return all(one[: len(other)] == other[: len(one)] for one in each for other in each)
