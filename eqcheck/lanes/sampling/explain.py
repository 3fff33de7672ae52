"""Which part of a sampler is wrong, from the outcomes of an audit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from eqcheck.lanes.sampling.judge import SampledOutcome
from eqcheck.sampling.naming import NAMED, WITHIN_THE_LAW, Named, argmax, named
from eqcheck.sampling.pairs import SHARED, shared
from eqcheck.sampling.rounds import Read
from eqcheck.sampling.row import SampledRow


def cause(outcomes: Sequence[SampledOutcome], best: Sequence[tuple[str, float]], reads: Sequence[Read]) -> Named | None:
    """What is wrong, or None where nothing leads clearly. ``best`` are the bets of the audit, the greatest first.

    Shared random numbers leave every row's own law right. So they are named where no law of a round is wrong, and no
    bet on a row alone earned much.
    """
    rows = [list(outcome.sampled.values()) for outcome in outcomes]
    found = argmax(row for case in rows for row in case) or _cause(rows, best, reads)
    impossible = any(row.impossible for case in rows for row in case)
    return None if found and impossible and found.kind in WITHIN_THE_LAW else found


def _cause(rows: list[list[SampledRow]], best: Sequence[tuple[str, float]], reads: Sequence[Read]) -> Named | None:
    seen = named(reads)
    if seen and seen.kind != "stray-law":
        return seen
    (first, gain), *others = best
    for name, (kind, words) in SHARED.items():
        if seen or not first.startswith(name):
            continue
        alone = max((other for alternative, other in others if not alternative.startswith(tuple(SHARED))), default=0.0)
        if alone < np.log(NAMED) <= min(gain - alone, shared(rows, name)):
            return Named(kind, words, gain)
    return None
