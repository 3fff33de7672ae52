"""Which part of a sampler is wrong, from the outcomes of an audit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from eqcheck.lanes.sampling.judge import SampledOutcome
from eqcheck.lanes.sampling.reads import reads
from eqcheck.sampling.naming import NAMED, Named, named

# What a bet alone tells, where nothing is known of draft tokens: the alternatives that say so, by how they begin.
OF_BETS = {
    "twin-equal": ("shared-noise", "twin rows emit the same tokens"),
    "shared": ("shared-noise", "rows share random numbers"),
    "own": ("reused-noise", "a row uses random numbers again"),
}


def cause(outcomes: Sequence[SampledOutcome], best: Sequence[tuple[str, float]]) -> Named | None:
    """What is wrong, or None where nothing leads clearly. ``best`` are the bets of the audit, the greatest first.

    Shared random numbers leave every row's own law right. So they are named where no law of a round is wrong.
    """
    seen = named(read for outcome in outcomes for read in reads(outcome))
    if seen and seen.kind != "stray-law":
        return seen
    (first, gain), *others = best
    for name, (kind, words) in OF_BETS.items():
        rivals = [other for alternative, other in others if not alternative.startswith(tuple(OF_BETS))]
        if not seen and first.startswith(name) and gain - max(rivals, default=0.0) >= np.log(NAMED):
            return Named(kind, words, gain)
    return None
