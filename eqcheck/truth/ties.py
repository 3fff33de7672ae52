"""The policy on numbers, for whatever is judged by tokens of eqcheck's own models that round.

Engines compute in float32, so where two tokens score almost the same the engine may choose the other. A difference is a
**tie** when the float64 target prefers its own token by no more than ``FACTOR`` times the noise: the largest
difference, over all scores that are compared, between the target in the engine's dtype and the one in float64. Engines
add in another order than the target does, which changes scores by less than twice that; the factor leaves room and
still is a thousandth of what usually lies between two tokens. Tokens behind a tie are judged after the engine's own
tokens. Anything else is a violation.

A target that somebody else built, in less than float32, is judged in another way: `eqcheck.truth.rounded`.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

FACTOR = 16


def bound(exact: Iterable[torch.Tensor], rounded: Iterable[torch.Tensor], factor: int = FACTOR) -> float:
    """Return how much the target may prefer its own token at a tie; ``rounded`` are its scores in the engine's dtype.

    >>> bound([torch.tensor([1.0, 2.0]).double()], [torch.tensor([1.0, 2.5])])
    8.0
    """
    noise = max(float((a.double() - b.double()).abs().max()) for a, b in zip(exact, rounded, strict=True))
    return factor * noise
