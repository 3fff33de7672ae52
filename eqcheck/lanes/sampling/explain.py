"""Which part of a sampler is wrong, from the outcomes of an audit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from eqcheck.attribution.sampling import Mark
from eqcheck.lanes.sampling.judge import SampledOutcome
from eqcheck.sampling.naming import Drawn, Named, named

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
    seen = named(one for outcome in outcomes for one in drawn(outcome))
    if seen:
        return seen
    (first, gain), *others = best
    for name, (kind, words) in OF_BETS.items():
        rivals = [other for alternative, other in others if not alternative.startswith(tuple(OF_BETS))]
        if first.startswith(name) and gain - max(rivals, default=0.0) >= np.log(1e3):
            return Named(kind, words, gain)
    return None


def drawn(outcome: SampledOutcome) -> Iterator[Drawn]:
    """The tokens of a case that can be read, with the laws around them."""
    together: dict[tuple[int, int], list[Mark]] = {}
    for mark in outcome.marks:
        together.setdefault((mark.call, mark.column), []).append(mark)
    for mark in outcome.marks:
        row, raw, at = outcome.sampled[mark.row], outcome.raw_drafts[mark.row], mark.at
        assert row.q is not None
        beside = [other for other in together[mark.call, mark.column] if other.row != mark.row]
        other_q = [outcome.sampled[other.row].q[other.at] for other in beside]  # type: ignore[index]
        other_q += [row.q[at + 1]] if at + 1 < len(row.q) else []
        yield Drawn(
            mark.role,
            at,
            int(row.tokens[at]),
            mark.draft,
            mark.drafted,
            row.p[at],
            row.q[at],
            row.raw[at],
            raw[at],
            row.p[max(at - 1, 0)],
            outcome.behind.get((mark.row, at), row.p[at]),
            tuple(other_q),
        )
