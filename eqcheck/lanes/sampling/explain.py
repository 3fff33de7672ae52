"""Which part of a sampler is wrong, from the outcomes of an audit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from eqcheck.sampling.bets import Bet
from eqcheck.sampling.naming import NAMED, WITHIN_THE_LAW, Named, SamplerEvidence, argmax, named
from eqcheck.sampling.pairs import shared
from eqcheck.sampling.row import SampledRow


def cause(
    cases: Sequence[Iterable[SampledRow]], best: Sequence[tuple[Bet, float]], evidence: SamplerEvidence
) -> Named | None:
    """The wrong part, or None where nothing leads clearly. ``best`` are the bets on these rows, the greatest first."""
    rows = [list(case) for case in cases]
    found = argmax(row for case in rows for row in case) or _cause(rows, best, evidence)
    impossible = any(row.impossible for case in rows for row in case)
    return None if found and impossible and found.kind in WITHIN_THE_LAW else found


def _cause(rows: list[list[SampledRow]], best: Sequence[tuple[Bet, float]], evidence: SamplerEvidence) -> Named | None:
    """The fault of a law, or of random numbers: where these are shared, every row's own law is right.

    So shared random numbers are named where no law is seen to be wrong, and no bet on a row alone earned as much.
    """
    if seen := named(evidence):
        return seen if seen.kind != "stray-law" else None
    (first, gain), *others = best
    alone = max((other for bet, other in others if not bet.cause), default=0.0)
    if first.cause and math.log(NAMED) <= min(gain - alone, shared(rows, first.cause)):
        return Named(first.kind, first.cause, gain)
    return None
