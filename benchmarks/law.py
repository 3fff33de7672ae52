"""Why a batch speculative decoder is as fast as it is: what acceptance promises, and what each part of a round takes.

With K draft tokens that are each accepted with the probability a, a round gives E = (1 - a^(K+1)) / (1 - a) tokens
(Leviathan et al., arXiv 2211.17192). In a batch of B rows it takes T_v(B, K+1) + K T_d(B) seconds, where plain decoding
takes T_1(B) for one token. So the speed-up is E T_1 / (T_v + K T_d), if no row ever waits and nothing else takes time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from eqcheck.transparent.hashlm.hashing import Ints

STEPS = (
    "plain: prompts, waits",
    "accepted tokens",
    "columns to verify",
    "drafting",
    "calls with rows missing",
    "calls as they are",
    "prompts",
    "realignment",
    "bookkeeping",
)


def expected(a: float, k: int) -> float:
    """Tokens a round, where each of ``k`` draft tokens is accepted with probability ``a``.

    >>> expected(0.5, 1), expected(1.0, 4), expected(0.0, 4)
    (1.5, 5.0, 1.0)
    """
    return float(k + 1) if a >= 1 else (1 - a ** (k + 1)) / (1 - a)


class Acceptance(NamedTuple):
    """What rounds gave, and what the formula says of them.

    ``tokens`` a round were measured; ``same`` is what the formula says with one rate ``a`` for all rows, ``by_row``
    with a rate for each row. ``waiting`` is what a row has of a round in which all rows of a batch go on with the least
    that one accepts. ``positions`` are the rates at the first draft token, at the second where the first was accepted,
    and so on: where they are not alike, one rate for all cannot be right.
    """

    tokens: float
    a: float
    same: float
    by_row: float
    waiting: float
    positions: tuple[float, ...] = ()


def acceptance(committed: Sequence[Sequence[int]], limits: Sequence[int], k: int, batch: int = 1) -> Acceptance:
    """The acceptance in rounds that gave rows so many tokens; a row ends at its limit.

    >>> found = acceptance([[3, 1, 1]], [5], 2)  # with 2, 1 and 0 draft tokens, of which one was wrong
    >>> [round(one, 3) for one in found[:5]], found.positions
    ([1.667, 0.667, 1.593, 1.593, 1.593], (0.5, 1.0))
    """
    rows = [_examined(row, limit, k) for row, limit in zip(committed, limits, strict=True)]
    budgets = [budget for _, _, some in rows for budget in some]
    right, seen = sum(row[0] for row in rows), sum(row[1] for row in rows)
    a = right / seen if seen else 0.0
    own = [row[0] / row[1] if row[1] else a for row in rows]
    by_row = sum(expected(mine, budget) for mine, row in zip(own, rows, strict=True) for budget in row[2])
    rounds = max(1, len(budgets))
    return Acceptance(
        sum(map(sum, committed)) / rounds,
        a,
        sum(expected(a, budget) for budget in budgets) / rounds,
        by_row / rounds,
        sum(expected(a**batch, budget) for budget in budgets) / rounds,
        _by_position(committed, [row[2] for row in rows], k),
    )


def _by_position(committed: Sequence[Sequence[int]], budgets: Sequence[Sequence[int]], k: int) -> tuple[float, ...]:
    """The share of each draft position that was accepted, of those that were looked at."""
    right, seen = [0] * k, [0] * k
    for row, some in zip(committed, budgets, strict=True):
        for count, budget in zip(row, some, strict=True):
            for position in range(min(count, budget)):
                seen[position] += 1
                right[position] += position < count - 1
    return tuple(a / b if b else 0.0 for a, b in zip(right, seen, strict=True))


def _examined(committed: Sequence[int], limit: int, k: int) -> tuple[int, int, list[int]]:
    """How many draft tokens of a row were accepted, and how many looked at; and the draft tokens of each round."""
    right = seen = done = 0
    budgets = []
    for count in committed:
        budget = min(k, limit - done - 1)
        right += count - 1
        seen += min(count, budget)
        budgets.append(budget)
        done += count
    return right, seen, budgets


class Costs(NamedTuple):
    """Seconds of isolated forwards, at one length of the rows: ``columns[q]`` of the target with q tokens a row,
    ``draft`` of one draft step, ``prompt`` of the prompts of a batch in both models."""

    columns: dict[int, float]
    draft: float
    prompt: float

    def verify(self, q: float) -> float:
        """The target's time for ``q`` tokens a row; between what was measured on a line."""
        known = sorted(self.columns)
        return float(np.interp(q, known, [self.columns[one] for one in known]))

    def round(self, k: int) -> float:
        """A round with ``k`` draft tokens."""
        return self.verify(k + 1) + k * self.draft


def best_k(a: float, costs: Costs, most: int = 8) -> tuple[int, dict[int, float]]:
    """With how many draft tokens a round is fastest, none included; and the speed-up of each, if no row waits.

    >>> best_k(0.9, Costs({1: 1.0, 9: 1.0}, 0.0, 0.0))[0], best_k(0.1, Costs({1: 1.0, 9: 9.0}, 0.5, 0.0))[0]
    (8, 0)
    """
    gains = {k: expected(a, k) * costs.verify(1) / costs.round(k) for k in range(most + 1)}
    return max(gains, key=lambda k: gains[k]), gains


def schedule(rounds: Sequence[float], batch: int, joining: bool) -> list[int]:
    """How many rows each call has, where row i needs ``rounds[i]`` of them and ``batch`` rows fit at once.

    ``joining``: places are given to rows that wait once a quarter is free; else all rows of a batch end before others
    begin.

    >>> schedule([1, 3, 1], 2, joining=False), schedule([1, 3, 1], 2, joining=True)
    ([2, 1, 1, 1], [2, 2, 1])
    """
    waiting, found = [math.ceil(one) for one in rounds], []
    live: list[int] = []
    while waiting or live:
        free = batch - len(live)
        if not live or (joining and 4 * free >= batch):
            live += waiting[:free]
            del waiting[:free]
        found.append(len(live))
        live = [one - 1 for one in live if one > 1]
    return found


def predicted(
    calls: Sequence[int], batches: Sequence[int], round_of: Callable[[Costs], float], costs: Sequence[Costs], rows: int
) -> float:
    """Seconds of these calls and of the prompts of so many rows, by costs at some batch sizes."""
    per_round = [round_of(one) for one in costs]
    per_prompt = [one.prompt / batch for one, batch in zip(costs, batches, strict=True)]
    seconds = sum(float(np.interp(live, batches, per_round)) for live in calls)
    return seconds + rows * float(np.interp(max(calls, default=1), batches, per_prompt))


def waterfall(seconds: Sequence[float]) -> dict[str, float]:
    """The factors between times that lead from plain decoding to what was measured; their product is the speed-up.

    >>> found = waterfall([8, 8, 4, 5, 5, 5, 5, 5, 5, 5])
    >>> found["accepted tokens"], found["columns to verify"], math.prod(found.values()) == 8 / 5
    (2.0, 0.8, True)
    """
    return dict(zip(STEPS, (before / after for before, after in pairwise(seconds)), strict=True))


class Fit(NamedTuple):
    """A plane through points, by least squares. ``r2`` is the share of the variance that it explains; ``left_out`` the
    greatest error for a point that it was not fitted to."""

    coefficients: tuple[float, ...]
    r2: float
    left_out: float

    def __call__(self, *at: float) -> float:
        return self.coefficients[0] + sum(c * x for c, x in zip(self.coefficients[1:], at, strict=True))


def fitted(points: Sequence[Sequence[float]], values: Sequence[float]) -> Fit:
    """Fit values to points ``[n, m]``.

    >>> fit = fitted([[0], [1], [2], [3]], [1, 3, 5, 7])
    >>> [round(c, 6) for c in fit.coefficients], round(fit.r2, 6), round(fit.left_out, 6), round(fit(4), 6)
    ([1.0, 2.0], 1.0, 0.0, 9.0)
    """
    design = np.column_stack([np.ones(len(values)), np.asarray(points, float)])
    y = np.asarray(values, float)
    everything = np.arange(len(y))

    def solve(rows: Ints) -> npt.NDArray[np.float64]:
        found: npt.NDArray[np.float64] = np.linalg.lstsq(design[rows], y[rows], rcond=None)[0]
        return found

    c = solve(everything)
    spread = float(((y - y.mean()) ** 2).sum())
    r2 = 1 - float(((y - design @ c) ** 2).sum()) / spread if spread else 1.0
    left_out = max(abs(float(y[i] - design[i] @ solve(everything[everything != i]))) for i in everything)
    return Fit(tuple(map(float, c)), r2, left_out)
