"""Sampled rows of a server, judged by the laws that the referee tells: its likeliest tokens, and the rest as one more.

A temperature T below 1 sharpens the law. Of the rest only its mass is known, so the law is known up to a bound, which
counts as rounding (`eqcheck.sampling.wealth`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from eqcheck.gate.servers import LIKELIEST, LIKELIEST_SAMPLED

if TYPE_CHECKING:
    from eqcheck.gate.answers import Scored
    from eqcheck.gate.rows import Row

LEAST_REST = 1e-9


class SampledRows:
    """The evidence against sampled rows; `eqcheck.sampling.wealth` has the theorem."""

    def __init__(self) -> None:
        self.wealth: Any = None
        self.rows = 0

    @property
    def log_evidence(self) -> float:
        """The evidence at most, as a logarithm; 0 without sampled rows."""
        return float(self.wealth.log_supremum) if self.wealth is not None else 0.0

    @property
    def best(self) -> str:
        """The bet that earns most."""
        return str(self.wealth.best()[0][0].name) if self.wealth is not None else ""

    def add(self, rows: Sequence[Row], noise: float, regime: str) -> None:
        """Count the tokens of rows; ``noise`` is what rounding changes of a score, in nats."""
        if not rows:
            return
        from eqcheck.sampling.wealth import Wealth

        self.wealth = self.wealth if self.wealth is not None else Wealth()
        self.rows += len(rows)
        self.wealth.add([row_of(row, noise) for row in rows], regime)


def law_of(place: Scored, temperature: float, count: int = LIKELIEST) -> tuple[list[int], list[float], float]:
    """The likeliest ``count`` ids, their probabilities with that of the rest behind them, and a bound.

    A server tells the row's own token beside the likeliest ones; it is left out where it is not one of them, for a law
    must not depend on the token. Below a temperature of 1 the rest has the greatest probability that it can have, so no
    true probability is greater than ``1 + bound`` times the one here.

    >>> from eqcheck.gate.answers import Scored
    >>> half = math.log(0.5)
    >>> ids, law, unknown = law_of(Scored(1, half, 1, {1: half, 2: math.log(0.25)}), 1.0)
    >>> ids, [round(p, 6) for p in law], unknown
    ([1, 2], [0.5, 0.25, 0.25], 0.0)
    """
    ids = sorted(place.likeliest, key=lambda one: -place.likeliest[one])[:count]
    logs = [place.likeliest[one] for one in ids]
    rest = max(LEAST_REST, 1 - sum(map(math.exp, logs)))
    weights = [math.exp(log / temperature) for log in logs]
    most = rest * math.exp(min(logs) * (1 / temperature - 1))  # each token of the rest is less likely than these
    total = sum(weights) + most
    return ids, [weight / total for weight in (*weights, most)], 0.0 if temperature == 1 else most / sum(weights)


def row_of(row: Row, noise: float) -> Any:
    """A row as evidence: a cell for each likely token of a place, the likeliest first, and the last for the rest."""
    import numpy as np

    from eqcheck.sampling.row import SampledRow

    laws = [law_of(place, row.asked.temperature, LIKELIEST_SAMPLED) for place in row.places]
    width = max((len(ids) for ids, _, _ in laws), default=0) + 1
    p, eps = np.zeros((len(laws), width)), np.zeros(len(laws))
    tokens = np.full(len(laws), width - 1, np.int64)
    for at, ((ids, law, unknown), place) in enumerate(zip(laws, row.places, strict=True)):
        p[at, : len(ids)], p[at, -1] = law[:-1], law[-1]
        if place.token in ids:
            tokens[at] = ids.index(place.token)
        eps[at] = math.expm1(2 * noise) + unknown
    return SampledRow(tokens, p, None, p, np.zeros(len(laws), np.bool_), eps=eps)
