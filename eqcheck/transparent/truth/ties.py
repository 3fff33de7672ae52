"""The policy on numbers, for whatever is judged by tokens of eqcheck's own models that round.

Engines compute in float32, so where two tokens score almost the same the engine may choose the other. A difference is a
**tie** when the float64 target prefers its own token by no more than ``FACTOR`` times the noise: the largest
difference, over all scores that are compared, between the target in the engine's dtype and the one in float64. Engines
add in another order than the target does, which changes scores by less than twice that; the factor leaves room and
still is a thousandth of what usually lies between two tokens. Tokens behind a tie are judged after the engine's own
tokens. Anything else is a violation.

A target that somebody else built, in less than float32, is judged in another way: `eqcheck.transparent.truth.rounded`.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from eqcheck.transparent.real.scores import noise_and_gap

FACTOR = 16


def bound(exact: Iterable[torch.Tensor], rounded: Iterable[torch.Tensor], factor: int = FACTOR) -> float:
    """Return how much the target may prefer its own token at a tie; ``rounded`` are its scores in the engine's dtype.

    >>> bound([torch.tensor([1.0, 2.0]).double()], [torch.tensor([1.0, 2.5])])
    8.0
    """
    noise = max(float((a.double() - b.double()).abs().max()) for a, b in zip(exact, rounded, strict=True))
    return factor * noise


def tolerance(architecture: str, dtype: str, seed: int) -> float:
    """Return how much a float64 target of ours may prefer its own token at a tie.

    It is never more than the widest gap between the two best tokens. In bfloat16 one score of thousands is far off, and
    so many times that may exceed all scores: then any token would be a tie.
    """
    if dtype == "float64":
        return 0.0
    largest, widest = noise_and_gap(architecture, dtype, seed)
    return min(FACTOR * largest, widest)
