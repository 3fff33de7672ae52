"""The one policy on numbers, for whatever is judged by tokens of models that round.

Engines compute in float32, so where two tokens score almost the same the engine may choose the other. A difference is a
**tie** when the float64 target prefers its own token by no more than ``FACTOR`` times the noise: the largest
difference, over all scores that are compared, between the target in the engine's dtype and the one in float64. Engines
add in another order than the target does, which changes scores by less than twice that; the factor leaves room and
still is a thousandth of what usually lies between two tokens. Tokens behind a tie are judged after the engine's own
tokens. Anything else is a violation.

Of a target that somebody else built, in less than float32, a copy in float32 stands for the exact one: beside bfloat16
or float16 its own rounding is nothing, and twice the memory is all that it takes. There the factor is half as large:
two scores that are each off by less than twice the noise need 4, and 16 would pass many a wrong token.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import torch

FACTOR, COARSE = 16, 8


def bound(exact: Iterable[torch.Tensor], rounded: Iterable[torch.Tensor], factor: int = FACTOR) -> float:
    """By how much the target may prefer its own token at a tie; ``rounded`` are the same scores in the engine's dtype.

    >>> bound([torch.tensor([1.0, 2.0]).double()], [torch.tensor([1.0, 2.5])])
    8.0
    """
    noise = max(float((a.double() - b.double()).abs().max()) for a, b in zip(exact, rounded, strict=True))
    return factor * noise


def coarse(target: Any) -> bool:
    """Whether a target computes in less than float32."""
    dtype = getattr(target, "dtype", None)
    return isinstance(dtype, torch.dtype) and dtype.is_floating_point and dtype.itemsize < 4


class Referee:
    """Tells near-ties of a `coarse` target; the copy in float32 is made when it is first asked."""

    def __init__(self, target: Any) -> None:
        self._target = target

    @cached_property
    def _exact(self) -> Any:
        return copy.deepcopy(self._target).float()

    def ties(self, tokens: Sequence[int], got: int) -> bool:
        """Whether a right decoder may emit ``got`` after ``tokens`` because of rounding."""
        ids = torch.tensor([list(tokens)], device=self._target.device)
        with torch.no_grad():
            exact, rounded = (one(input_ids=ids, use_cache=False).logits[0] for one in (self._exact, self._target))
        last = exact[-1]
        return float(last.max() - last[got]) <= bound([exact], [rounded], COARSE)
