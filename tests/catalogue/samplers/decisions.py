"""Faults of a round: a draft token is accepted by a number that is not its ratio, or a wrong token follows it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from eqcheck.catalogue.engines.engine import Rows
from eqcheck.catalogue.faults.fault import amount, step
from eqcheck.catalogue.samplers.sampler_engine import Race, Sampler, Uniform, bucket, shared_out
from eqcheck.catalogue.samplers.sampler_fault import fault
from eqcheck.catalogue.samplers.schemes import OneHot, SampleMatch, TwoCandidates

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


fault("L26-first-draft-unverified", "over-acceptance", "ohdearquant/lattice#243").plant(
    "The first draft token of a round is accepted without a look at its ratio",
    step(Sampler, accepts=lambda right, self, i, column, token, p, q: not column or right(i, column, token, p, q)),
)


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


fault("L7-correction-from-p", "residual", "jaymody/speculative-sampling#3", tokens=299).plant(
    "Corrections are drawn from p, not from what q leaves of it",
    step(Sampler, residual=lambda right, self, p, q, token: p),
)

fault("L8-residual-argmax", "residual", tokens=214).plant(
    "The correction is the most likely token of the residual",
    step(Sampler, residual=lambda right, self, p, q, token: all_on(right(p, q, token).argmax(), p)),
)

fault("L9-residual-absolute", "residual", tokens=55).plant(
    "Corrections are drawn in proportion to |p - q|",
    step(Sampler, residual=lambda right, self, p, q, token: shared_out((p - q).abs(), p)),
)

fault("L10-correction-column-late", "correction-column", "NVIDIA/TensorRT-LLM#15098", tokens=15).plant(
    "The correction is drawn from the target's law one column late, behind the draft token that was rejected",
    step(Sampler, correction=lambda right, self, i, column, token, p, q: self.drawn(i, p[column + 1])),
)


fault("L11-residual-of-next-draft", "wrong-draft-row").plant(
    "The residual is taken with q of the next draft token",
    step(Sampler, correction=lambda right, self, i, column, token, p, q: right(i, column, token, p, [*q[1:], q[-1]])),
)


fault("L21-one-hot-not-masked", "residual", "openvinotoolkit/openvino.genai#2331", tokens=306).plant(
    "The draft token is the draft's first choice, and a correction is drawn from p with the draft token in it",
    step(OneHot, residual=lambda right, self, p, q, token: p),
)

fault("L22-bonus-argmax", "bonus-law", "Luce-Org/lucebox#374", regime="near", tokens=81).plant(
    "The bonus token is the target's first choice",
    step(Sampler, bonus=lambda right, self, i, p: int(p[-1].argmax())),
)

fault("L23-bonus-from-last-draft", "bonus-column", regime="near", tokens=10).plant(
    "The bonus token is drawn from the target's law at the last draft token",
    step(Sampler, bonus=lambda right, self, i, p: self.drawn(i, p[max(0, len(p) - 2)])),
)


@fault("L51-bonus-of-round-before", "stale-bonus", tokens=30)
class BonusOfRoundBefore(Sampler):
    """The bonus token is drawn from the law that the last column had in the row's round before."""

    def begin(self) -> None:
        super().begin()
        self.last: dict[int, torch.Tensor] = {}

    def decided(self, i: int, proposed: list[int], p: torch.Tensor) -> list[int]:
        block = super().decided(i, proposed, p)
        self.last[i] = p[-1]
        return block

    def bonus(self, i: int, p: torch.Tensor) -> int:
        return self.drawn(i, self.last.get(i, p[-1]) if len(p) > 1 else p[-1])


fault("L52-bonus-from-first-column", "bonus-column", regime="near4", tokens=20).plant(
    "The bonus token is drawn from the target's law at the first draft token of the round",
    step(Sampler, bonus=lambda right, self, i, p: self.drawn(i, p[0])),
)


fault("L53-residual-of-column-before", "correction-column", tokens=470).plant(
    "The correction is drawn from the residual of the column before, that of target and draft",
    step(Sampler, correction=lambda right, self, i, column, token, p, q: right(i, max(0, column - 1), token, p, q)),
)


@fault("L54-coin-picks-bonus", "reused-noise", tokens=7800)
class CoinPicksBonus(Sampler):
    """The coin that accepted the last draft token also picks the bonus, by the sums of the target's probabilities."""

    def coin(self, i: int) -> Uniform:
        self.last = super().coin(i)
        return self.last

    def bonus(self, i: int, p: torch.Tensor) -> int:
        return bucket(p[-1], self.last) if len(p) > 1 else super().bonus(i, p)


@fault("L24-match-then-drawn-again", "residual", "ml-explore/mlx-swift-lm#459", tokens=805)
class MatchThenDrawnAgain(SampleMatch):
    """A draft token is accepted where the target draws the same; where it does not, the target draws again."""

    def decided(self, i: int, proposed: list[int], p: torch.Tensor) -> list[int]:
        block = super().decided(i, proposed, p)
        if len(block) > len(proposed):
            return block
        return [*block[:-1], self.target_token(i, len(block) - 1, p[len(block) - 1])]


@fault("L30-one-coin-for-both", "reused-noise", tokens=1400)
class OneCoinForBoth(Sampler):
    """The number that rejected a draft token also picks the correction, by the sums of the residual's probabilities."""

    def coin(self, i: int) -> Uniform:
        self.last = super().coin(i)
        return self.last

    def correction(self, i: int, column: int, token: int, p: torch.Tensor, q: list[torch.Tensor]) -> int:
        return bucket(self.residual(p[column], q[column], token), self.last)


@fault("L31-draft-noise-in-correction", "reused-noise", "vllm-project/vllm#54282", tokens=18000)
class DraftNoiseInCorrection(Sampler):
    """The noise that drew a draft token also draws its correction."""

    def propose(self, budget: Sequence[int]) -> Rows:
        self.noise: dict[int, list[Race]] = {i: [] for i in self.active}
        return super().propose(budget)

    def draft_token(self, i: int, q: torch.Tensor) -> int:
        self.noise[i].append(self.sources[i].race(len(q)))
        return self.noise[i][-1].winner(q)

    def correction(self, i: int, column: int, token: int, p: torch.Tensor, q: list[torch.Tensor]) -> int:
        return self.noise[i][column].winner(self.residual(p[column], q[column], token))


@fault("L32-residual-without-temperature", "residual", "ohdearquant/lattice#388")
class ResidualWithoutTemperature(Sampler):
    """Corrections are drawn from what p and q leave at a temperature of 1."""

    def correction(self, i: int, column: int, token: int, p: torch.Tensor, q: list[torch.Tensor]) -> int:
        warm = self.options(i).temperature or 1.0  # a law at a temperature, to the power of it, is that at 1
        return super().correction(i, column, token, _law(p**warm), [_law(one**warm) for one in q])


fault("L33-correction-argmax", "residual", "https://arxiv.org/abs/2401.10774").plant(
    "The correction is the target's first choice",
    step(Sampler, residual=lambda right, self, p, q, token: all_on(p.argmax(), p)),
)


def _law(weights: torch.Tensor) -> torch.Tensor:
    return weights / weights.sum(-1, keepdim=True)


def all_on(token: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The law ``[vocabulary]`` with all on one token.

    >>> all_on(torch.tensor(1), torch.ones(3)).tolist()
    [0.0, 1.0, 0.0]
    """
    return torch.zeros_like(like).scatter_(0, token[None], 1.0)
