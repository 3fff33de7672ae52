"""Samplers that are right, one scheme each, and one that says that it is not: none of them may be accused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from eqcheck.catalogue.engines.engine import Rows
from eqcheck.catalogue.faults.fault import amount
from eqcheck.catalogue.samplers.sampler_engine import SAMPLED_BUILDS, Race, Sampler, sampler, shared_out
from eqcheck.contract.decoders import Decoder
from eqcheck.transparent.hashlm.hashing import mix

LENIENCE = amount("lenience", 0.7, 0.5, 0.85)


class TargetOnly(Sampler):
    """No draft: the target draws every token."""

    seeds = "speculation"

    def budget(self, i: int) -> int:
        return 0


class OneHot(Sampler):
    """The draft token is the draft's first choice, so q is all on it; a correction is drawn from p without it."""

    def draft_token(self, i: int, q: torch.Tensor) -> int:
        return int(q.argmax())

    def remembered(self, i: int, scores: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(q).scatter_(0, q.argmax()[None], 1.0)


class SampleMatch(Sampler):
    """The target draws a token at each place; a draft token is accepted where it is that token."""

    def decided(self, i: int, proposed: list[int], p: torch.Tensor) -> list[int]:
        block = []
        for column, token in enumerate([*proposed, None]):
            block.append(self.target_token(i, column, p[column]))
            if block[-1] != token:
                break
        return block

    def target_token(self, i: int, column: int, p: torch.Tensor) -> int:
        return self.drawn(i, p)


class PositionKeyed(SampleMatch):
    """Sample-match, with noise that the row's seed and the place of a token alone decide: drafts change no token."""

    seeds = "speculation"

    def begin(self) -> None:
        super().begin()
        self.keys = [self.key(i) for i in range(len(self.rows))]

    def key(self, i: int) -> int:
        """A row's seed, or a fresh one."""
        seed = self.request.rows[i].seed
        return int(torch.randint(2**62, ())) if seed is None else seed

    def target_token(self, i: int, column: int, p: torch.Tensor) -> int:
        return self.noise(i, len(self.rows[i]) - self.starts[i] + column, len(p)).winner(p)

    def noise(self, i: int, index: int, size: int) -> Race:
        """The noise of a row's new token with this index."""
        word = mix(mix(np.array([self.keys[i]], np.uint64)) + np.uint64(index))
        return self.new_source(int(word[0] >> np.uint64(1))).race(size)


class BlockVerified(Sampler):
    """The draft tokens of a round are verified together (https://arxiv.org/abs/2403.10444, Algorithm 2)."""

    def decided(self, i: int, proposed: list[int], p: torch.Tensor) -> list[int]:
        q = self.draft_laws(i)
        weight, weights, kept = 1.0, [1.0], 0
        for column, token in enumerate(proposed, 1):
            weight = min(1.0, weight * self.ratio(float(p[column - 1, token]), float(q[column - 1][token])))
            weights.append(weight)
            chance = weight
            if column < len(proposed):
                rest = float((weight * p[column] - q[column]).clamp(min=0).sum())
                chance = rest / (rest + 1 - weight) if rest else 0.0
            if self.coin(i) < chance:
                kept = column
        if kept == len(proposed):
            return [*proposed, self.bonus(i, p)]
        residual = shared_out((weights[kept] * p[kept] - q[kept]).clamp(min=0), p[kept])
        return [*proposed[:kept], self.drawn(i, residual)]


class TwoCandidates(Sampler):
    """Each draft token has a sibling, tried against what the first left of p (SpecInfer, https://arxiv.org/abs/2305.09781).

    Siblings have no children: one that is accepted is the last token of its round.
    """

    def begin(self) -> None:
        super().begin()
        self.siblings: dict[int, list[int]] = {}

    def propose(self, budget: Sequence[int]) -> Rows:
        self.siblings = {i: [] for i in self.active}
        return super().propose(budget)

    def draft_token(self, i: int, q: torch.Tensor) -> int:
        self.siblings[i].append(super().draft_token(i, q))
        return super().draft_token(i, q)

    def correction(self, i: int, column: int, token: int, p: torch.Tensor, q: list[torch.Tensor]) -> int:
        sibling = self.siblings[i][column]
        left = self.left_for_sibling(p[column], q[column])
        if self.coin(i) < self.ratio(float(left[sibling]), float(q[column][sibling])):
            return sibling
        return self.drawn(i, shared_out((left - q[column]).clamp(min=0), left))

    def left_for_sibling(self, p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        """The law that a sibling is held against."""
        return shared_out((p - q).clamp(min=0), p)


class GreedyApart(Sampler):
    """Greedy rows go another way than sampled ones beside them: by the first choice, without any random number."""

    def next_draft(self, i: int, logits: torch.Tensor, drafted: list[int]) -> int:
        return super().next_draft(i, logits, drafted) if self.options(i).temperature else int(logits[-1].argmax())

    def answers(self, logits: Iterable[torch.Tensor], drafts: Rows) -> Rows:
        blocks = []
        for i, scores, proposed in zip(self.active, logits, drafts, strict=True):
            scores = scores[-len(proposed) - 1 :].double()
            if self.options(i).temperature:
                blocks.append(self.decided(i, proposed, self.target_laws(i, scores)))
            else:
                first = scores.argmax(-1).tolist()
                count = next((n for n, token in enumerate(proposed) if token != first[n]), len(proposed))
                blocks.append(first[: count + 1])
        return blocks


class Lenient(Sampler):
    """Draft tokens are accepted more often than their target would have them: faster, and says so."""

    lossless = f"lenience {LENIENCE:g}: a draft token is accepted with probability p/q/{LENIENCE:g}"

    def ratio(self, p: float, q: float) -> float:
        return super().ratio(p, q) / LENIENCE


RIGHT: dict[str, type[Sampler]] = {
    "target-only": TargetOnly,
    "rejection": Sampler,
    "one-hot": OneHot,
    "sample-match": SampleMatch,
    "block-verified": BlockVerified,
    "two-candidates": TwoCandidates,
    "position-keyed": PositionKeyed,
    "greedy-apart": GreedyApart,
    "lenient": Lenient,
}


def samplers(builds: Sequence[str] = SAMPLED_BUILDS) -> list[Decoder]:
    """Every right sampler in every build, as decoders; a sampler that is not lossless says so.

    >>> samplers(["uncached"])[1].name
    'rejection.uncached'
    """
    return [sampler(scheme, build, f"{name}.{build}") for name, scheme in RIGHT.items() for build in builds]
