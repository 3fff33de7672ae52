"""Faults of acceptance: a draft token is accepted too often, too rarely, or by another number than its own ratio."""

from __future__ import annotations

import math

import torch

from eqcheck.catalogue.faults.fault import amount, step
from eqcheck.catalogue.samplers.engine import Sampler
from eqcheck.catalogue.samplers.fault import fault
from eqcheck.catalogue.samplers.right import TwoCandidates

OVER, UNDER = amount("ratio over", 0.9, 0.8, 0.94), amount("ratio times", 0.7, 0.6, 0.8)
COIN, THRESHOLD = amount("coin below", 0.5, 0.4, 0.6), amount("ratio above", 0.5, 0.4, 0.6)

fault("L1-every-draft-accepted", "over-acceptance", "vllm-project/vllm-ascend#13730", tokens=29).plant(
    "Every draft token is accepted",
    step(Sampler, accepts=lambda right, self, i, column, token, p, q: True),
)

fault("L2-ratio-over-0.9", "over-acceptance", "https://github.com/lucidrains/speculative-decoding", tokens=6700).plant(
    f"A draft token is accepted with probability p/q/{OVER:g}, which nobody declared",
    step(Sampler, ratio=lambda right, self, p, q: right(p, q) / OVER),
)

fault("L3-coin-below-half", "over-acceptance", "vllm-project/vllm#13196", tokens=351).plant(
    f"The coins of acceptance are drawn from [0, {COIN:g})",
    step(Sampler, ratio=lambda right, self, p, q: right(p, q) / COIN),
)

fault("L4-coin-of-101-values", "over-acceptance", regime="near4", tokens=578).plant(
    "Coins are whole hundredths, from 0 to 100, and a coin that equals the ratio accepts",
    step(Sampler, ratio=lambda right, self, p, q: (math.floor(100 * min(1.0, right(p, q))) + 1) / 101),
)

fault("L5-coin-zero-accepts", "over-acceptance", "sgl-project/sglang#35771", regime="dead").plant(
    "Coins have eight bits and accept where they equal the ratio: a coin of 0 accepts what the target never emits",
    step(Sampler, ratio=lambda right, self, p, q: (math.floor(256 * min(1.0, right(p, q))) + 1) / 256),
)

fault("L6-ratio-inverted", "over-acceptance", tokens=30).plant(
    "A draft token is accepted with probability q/p",
    step(Sampler, ratio=lambda right, self, p, q: right(q, p)),
)


@fault("L26-first-draft-unverified", "over-acceptance", "ohdearquant/lattice#243")
class FirstDraftUnverified(Sampler):
    """The first draft token of a round is accepted without a look at its ratio."""

    def accepts(self, i: int, column: int, token: int, p: torch.Tensor, q: list[torch.Tensor]) -> bool:
        return not column or super().accepts(i, column, token, p, q)


@fault("L49-ratio-above-half", "threshold-acceptance", tokens=340)
class RatioAboveHalf(Sampler):
    """A draft token is accepted where its ratio is a fixed number or more, and no coin is drawn."""

    def accepts(self, i: int, column: int, token: int, p: torch.Tensor, q: list[torch.Tensor]) -> bool:
        return self.ratio(float(p[column, token]), float(q[column][token])) >= THRESHOLD


fault("L27-ratio-times-0.7", "under-acceptance").plant(
    f"A draft token is accepted with probability {UNDER:g} p/q, and corrections are drawn as if it were p/q",
    step(Sampler, ratio=lambda right, self, p, q: UNDER * min(1.0, right(p, q))),
)


@fault("L28-typical-acceptance", "stray-law", "vllm-project/vllm#5131", tokens=107)
class TypicalAcceptance(Sampler):
    """A draft token is accepted where it is typical of p, else p's first choice is emitted; nobody declared that."""

    def accepts(self, i: int, column: int, token: int, p: torch.Tensor, q: list[torch.Tensor]) -> bool:
        entropy = -float(torch.special.xlogy(p[column], p[column]).sum())
        return float(p[column, token]) > min(0.09, 0.3 * math.exp(-entropy))

    def correction(self, i: int, column: int, token: int, p: torch.Tensor, q: list[torch.Tensor]) -> int:
        return int(p[column].argmax())


fault("L29-sibling-without-recursion", "residual", "SafeAILab/EAGLE#47", tokens=370).plant(
    "The second of two candidates is held against p itself, not against what the first left of it",
    step(TwoCandidates, left_for_sibling=lambda right, self, p, q: p),
)
