"""Faults of acceptance: a draft token is accepted too often, too rarely, or by another number than its own ratio."""

from __future__ import annotations

import math

import torch

from eqcheck.catalogue.samplers.engine import Sampler
from eqcheck.catalogue.samplers.fault import planted
from eqcheck.catalogue.samplers.right import TwoCandidates


@planted("L1-every-draft-accepted", "over-acceptance", "vllm-project/vllm-ascend#13730", tokens=29)
class EveryDraftAccepted(Sampler):
    """Every draft token is accepted."""

    def accepts(self, i: int, column: int, token: int, p: torch.Tensor, q: list[torch.Tensor]) -> bool:
        return True


@planted("L2-ratio-over-0.9", "over-acceptance", "https://github.com/lucidrains/speculative-decoding", tokens=6700)
class RatioOverNineTenths(Sampler):
    """A draft token is accepted with probability p/q/0.9, which nobody declared."""

    def ratio(self, p: float, q: float) -> float:
        return super().ratio(p, q) / 0.9


@planted("L3-coin-below-half", "over-acceptance", "vllm-project/vllm#13196", tokens=351)
class CoinBelowHalf(Sampler):
    """The coins of acceptance are drawn from [0, 1/2)."""

    def ratio(self, p: float, q: float) -> float:
        return 2 * super().ratio(p, q)


@planted("L4-coin-of-101-values", "over-acceptance", regime="near4", tokens=578)
class CoinOf101Values(Sampler):
    """Coins are whole hundredths, from 0 to 100, and a coin that equals the ratio accepts."""

    def ratio(self, p: float, q: float) -> float:
        return (math.floor(100 * min(1.0, super().ratio(p, q))) + 1) / 101


@planted("L5-coin-zero-accepts", "over-acceptance", "sgl-project/sglang#35771", regime="dead")
class CoinZeroAccepts(Sampler):
    """Coins have eight bits and accept where they equal the ratio: a coin of 0 accepts what the target never emits."""

    def ratio(self, p: float, q: float) -> float:
        return (math.floor(256 * min(1.0, super().ratio(p, q))) + 1) / 256


@planted("L6-ratio-inverted", "over-acceptance", tokens=30)
class RatioInverted(Sampler):
    """A draft token is accepted with probability q/p."""

    def ratio(self, p: float, q: float) -> float:
        return super().ratio(q, p)


@planted("L26-first-draft-unverified", "over-acceptance", "ohdearquant/lattice#243")
class FirstDraftUnverified(Sampler):
    """The first draft token of a round is accepted without a look at its ratio."""

    def accepts(self, i: int, column: int, token: int, p: torch.Tensor, q: list[torch.Tensor]) -> bool:
        return not column or super().accepts(i, column, token, p, q)


@planted("L49-ratio-above-half", "threshold-acceptance", tokens=340)
class RatioAboveHalf(Sampler):
    """A draft token is accepted where its ratio is 0.5 or more, and no coin is drawn."""

    def accepts(self, i: int, column: int, token: int, p: torch.Tensor, q: list[torch.Tensor]) -> bool:
        return self.ratio(float(p[column, token]), float(q[column][token])) >= 0.5


@planted("L27-ratio-times-0.7", "under-acceptance")
class RatioTimesSevenTenths(Sampler):
    """A draft token is accepted with probability 0.7 p/q, and corrections are drawn as if it were p/q."""

    def ratio(self, p: float, q: float) -> float:
        return 0.7 * min(1.0, super().ratio(p, q))


@planted("L28-typical-acceptance", "stray-law", "vllm-project/vllm#5131", tokens=107)
class TypicalAcceptance(Sampler):
    """A draft token is accepted where it is typical of p, else p's first choice is emitted; nobody declared that."""

    def accepts(self, i: int, column: int, token: int, p: torch.Tensor, q: list[torch.Tensor]) -> bool:
        entropy = -float(torch.special.xlogy(p[column], p[column]).sum())
        return float(p[column, token]) > min(0.09, 0.3 * math.exp(-entropy))

    def correction(self, i: int, column: int, token: int, p: torch.Tensor, q: list[torch.Tensor]) -> int:
        return int(p[column].argmax())


@planted("L29-sibling-without-recursion", "residual", "SafeAILab/EAGLE#47", tokens=370)
class SiblingWithoutRecursion(TwoCandidates):
    """The second of two candidates is held against p itself, not against what the first left of it."""

    def left_for_sibling(self, p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        return p
