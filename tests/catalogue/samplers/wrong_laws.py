"""Faults of the laws that are compared, and of random numbers.

Options are left out or of another row; a q is not the law that was drawn from; rows or rounds share random numbers; a
seed does not do what it promises.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch

from eqcheck.catalogue.engines.engine import Rows
from eqcheck.catalogue.faults.fault import amount, step
from eqcheck.catalogue.samplers.sampler_engine import Race, Randomness, Sampler, Uniform, changed, law_of
from eqcheck.catalogue.samplers.sampler_fault import fault
from eqcheck.catalogue.samplers.schemes import PositionKeyed
from eqcheck.contract.decoders import RowOptions

ALMOST_GREEDY = amount("top-k temperature", 1e-5, 1e-6, 1e-4)


@fault("L12-q-of-next-row", "wrong-draft-row", "https://github.com/1Cat-vLLM/1Cat-vLLM/issues/656", tokens=38)
class DraftLawOfNextRow(Sampler):
    """The laws that draft tokens were drawn from are read one row further down, the first row's for the last."""

    def draft_laws(self, i: int) -> list[torch.Tensor]:
        other = self.active[(self.active.index(i) + 1) % len(self.active)]
        own = self.recorded[i]
        return (self.recorded[other] + own[len(self.recorded[other]) :])[: len(own)]


@fault("L13-q-left-at-old-place", "wrong-draft-row", "vllm-project/vllm#41044")
class DraftLawLeftAtOldPlace(Sampler):
    """A row that moves up because another ended is compared with what its new place had in the round before."""

    def begin(self) -> None:
        super().begin()
        self.places: list[int] = []
        self.kept: list[list[torch.Tensor]] = []

    def propose(self, budget: Sequence[int]) -> Rows:
        self.places, self.kept = list(self.recorded), list(self.recorded.values())
        return super().propose(budget)

    def draft_laws(self, i: int) -> list[torch.Tensor]:
        own, place = self.recorded[i], self.active.index(i)
        if i not in self.places or self.places.index(i) == place:
            return own
        return (self.kept[place] + own[len(self.kept[place]) :])[: len(own)]


@fault("L14-target-without-temperature", "target-option", "vllm-project/vllm#9834", tokens=103)
class TargetWithoutTemperature(Sampler):
    """At draft tokens the target's law is taken at a temperature of 1."""

    def target_options(self, i: int, count: int) -> list[RowOptions]:
        return [changed(self.options(i), temperature=1.0)] * count + [self.options(i)]


@fault("L15-q-without-temperature", "draft-law", "ohdearquant/lattice#388", tokens=728)
class DraftLawWithoutTemperature(Sampler):
    """Draft tokens are drawn at the row's temperature, and compared as if it had been 1."""

    def remembered(self, i: int, scores: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        return law_of(scores[None], changed(self.options(i), temperature=1.0))[0]


@fault("L16-top-p-at-bonus-only", "target-option", "vllm-project/vllm#9834", tokens=11)
class TopPAtBonusOnly(Sampler):
    """At draft tokens the target's law is not cut by top-p."""

    def target_options(self, i: int, count: int) -> list[RowOptions]:
        return [changed(self.options(i), top_p=1.0)] * count + [self.options(i)]


@fault("L17-min-p-at-bonus-only", "target-option", "vllm-project/vllm#42744")
class MinPAtBonusOnly(Sampler):
    """At draft tokens the target's law is not cut by min-p."""

    def target_options(self, i: int, count: int) -> list[RowOptions]:
        return [changed(self.options(i), min_p=0.0)] * count + [self.options(i)]


@fault("L18-options-of-first-row", "target-option", "Blaizzy/mlx-vlm#1647", tokens=103)
class OptionsOfFirstRow(Sampler):
    """All sampled rows are drawn with the first row's temperature and cuts."""

    def options(self, i: int) -> RowOptions:
        first = self.request.rows[0]
        values = {name: getattr(first, name) for name in ("temperature", "top_k", "top_p", "min_p")}
        return changed(self.request.rows[i], **values) if first.temperature else self.request.rows[i]


fault("L55-top-k-of-first-row", "target-option", "vllm-project/vllm#14301").plant(
    "All sampled rows are cut by the first row's top-k; each has its own temperature, top-p and min-p",
    step(Sampler, options=lambda right, self, i: changed(self.request.rows[i], top_k=self.request.rows[0].top_k)),
)


@fault("L56-greedy-rows-drawn", "greedy-drawn", shows="greedy")
class GreedyRowsDrawn(Sampler):
    """A row with a temperature of 0 is drawn at a temperature of 1."""

    def options(self, i: int) -> RowOptions:
        own = self.request.rows[i]
        return own if own.temperature else replace(own, temperature=1.0)


@fault("L57-greedy-drawn-beside-sampled", "greedy-drawn", shows="greedy")
class GreedyDrawnBesideSampled(GreedyRowsDrawn):
    """Greedy rows are drawn where any other row of the batch is sampled."""

    def options(self, i: int) -> RowOptions:
        own = self.request.rows[i]
        return super().options(i) if any(row.temperature for row in self.request.rows) else own


@fault("L19-q-before-cuts", "draft-law", "huggingface/transformers#47932", tokens=2000)
class DraftLawBeforeCuts(Sampler):
    """Draft tokens are drawn from what top-k, top-p and min-p leave, and compared with the law before these."""

    def remembered(self, i: int, scores: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        return law_of(scores[None], changed(self.options(i), top_k=0, top_p=1.0, min_p=0.0))[0]


fault("L20-greedy-draft", "draft-law", "huggingface/transformers#32867", tokens=58).plant(
    "Draft tokens are the draft's first choices, and are compared as if they had been drawn from its law",
    step(Sampler, draft_token=lambda right, self, i, q: int(q.argmax())),
)


@fault("L34-first-token-greedy", "first-token", "Luce-Org/lucebox#374")
class FirstTokenGreedy(Sampler):
    """The first new token of a row is the target's first choice."""

    def decided(self, i: int, proposed: list[int], p: torch.Tensor) -> list[int]:
        if len(self.rows[i]) == self.starts[i]:
            return [int(p[0].argmax())]
        return super().decided(i, proposed, p)


@fault("L35-bonus-without-temperature", "bonus-law", regime="near", tokens=100)
class BonusWithoutTemperature(Sampler):
    """Bonus tokens are drawn at a temperature of 1."""

    def target_options(self, i: int, count: int) -> list[RowOptions]:
        return [self.options(i)] * count + [changed(self.options(i), temperature=1.0)]


@fault("L36-greedy-at-drafts", "target-option", "ROCm/ATOM#2318", tokens=37)
class GreedyAtDrafts(Sampler):
    """At draft tokens the target is greedy; the bonus token alone is sampled."""

    def target_options(self, i: int, count: int) -> list[RowOptions]:
        return [changed(self.options(i), temperature=0.0)] * count + [self.options(i)]


@fault("L37-top-k-makes-greedy", "target-option", "NVIDIA/TensorRT-LLM#19390")
class TopKMakesGreedy(Sampler):
    """A row with a top-k is drawn at a temperature near 0."""

    def options(self, i: int) -> RowOptions:
        own = self.request.rows[i]
        return changed(own, temperature=ALMOST_GREEDY) if own.top_k else own


@fault("L38-temperature-last", "target-option", "lablup/mlxcel#1379")
class TemperatureLast(Sampler):
    """The temperature is applied behind top-k, top-p and min-p, where the decoder declares that it comes first."""

    def target_laws(self, i: int, scores: torch.Tensor) -> torch.Tensor:
        return law_of(scores, self.options(i), ("top-k", "top-p", "min-p", "temperature"))


@fault("L39-draft-cut-unseen", "draft-law", "huggingface/transformers#28508")
class DraftCutUnseen(Sampler):
    """Draft tokens are drawn from the draft's three likeliest ones, and compared as if there were no such cut."""

    def draft_options(self, i: int) -> RowOptions:
        return changed(self.options(i), top_k=min(3, self.options(i).top_k or 3))

    def remembered(self, i: int, scores: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        return law_of(scores[None], self.options(i))[0]


class Sharing(Sampler):
    """A part of faults: a seed of the whole request, and what rows without a seed share in one round."""

    def begin(self) -> None:
        self.common = int(torch.randint(2**62, ()))
        super().begin()

    def propose(self, budget: Sequence[int]) -> Rows:
        self.coins: dict[int, Uniform] = {}
        self.races: dict[int, Race] = {}
        return super().propose(budget)

    def alone(self, i: int) -> bool:
        return self.request.rows[i].seed is not None


fault("L25-one-seed-for-all-rows", "shared-noise", "NVIDIA/TensorRT-LLM#17599", tokens=26, shows="rows").plant(
    "Rows that have no seed get generators of their own, all with one seed",
    step(Sharing, source=lambda right, self, i: right(i) if self.alone(i) else self.new_source(self.common)),
)


@fault("L40-rounds-begin-alike", "shared-noise", "NVIDIA/TensorRT-LLM#19487")
class RoundsBeginAlike(Sharing):
    """A row's generator is seeded anew in each round, and with the same seed."""

    def propose(self, budget: Sequence[int]) -> Rows:
        self.sources = [self.source(i) for i in range(len(self.rows))]
        return super().propose(budget)

    def source(self, i: int) -> Randomness:
        return super().source(i) if self.alone(i) else self.new_source(self.common + i)


@fault("L41-seed-zero-by-position", "shared-noise", "tenstorrent/tt-metal#53166", tokens=26, shows="rows")
class SeedZeroByPosition(PositionKeyed):
    """Noise is made from seed and position, and rows that have no seed share one."""

    def begin(self) -> None:
        self.common = int(torch.randint(2**62, ()))
        super().begin()

    def key(self, i: int) -> int:
        seed = self.request.rows[i].seed
        return self.common if seed is None else seed


@fault("L42-draft-noise-shared", "shared-noise", tokens=123, shows="rows")
class DraftNoiseShared(Sharing):
    """The noise that draws draft tokens is made once for all rows."""

    def draft_token(self, i: int, q: torch.Tensor) -> int:
        if self.alone(i):
            return super().draft_token(i, q)
        column = len(self.recorded[i])
        if column not in self.races:
            self.races[column] = self.sources[i].race(len(q))
        return self.races[column].winner(q)


@fault("L43-coins-shared", "shared-noise", tokens=3500, shows="rows")
class CoinsShared(Sharing):
    """The coins of acceptance are drawn once for all rows."""

    def accepts(self, i: int, column: int, token: int, p: torch.Tensor, q: list[torch.Tensor]) -> bool:
        if self.alone(i):
            return super().accepts(i, column, token, p, q)
        if column not in self.coins:
            self.coins[column] = self.coin(i)
        return self.coins[column] < self.ratio(float(p[column, token]), float(q[column][token]))


@fault("L44-correction-noise-shared", "shared-noise", tokens=220, shows="rows")
class CorrectionNoiseShared(Sharing):
    """The noise that draws corrections and bonus tokens is made once a round for all rows."""

    def drawn(self, i: int, chances: torch.Tensor) -> int:
        if self.alone(i):
            return super().drawn(i, chances)
        if 0 not in self.races:
            self.races[0] = self.sources[i].race(len(chances))
        return self.races[0].winner(chances)


fault("L45-seed-ignored", "seed-ignored", "vllm-project/vllm#6034", shows="seeds").plant(
    "Rows with a seed draw from the global generator",
    step(Sampler, source=lambda right, self, i: self.new_source(None)),
)


fault("L46-seed-fixed", "seed-fixed", shows="rows").plant(
    "All seeds are the same one",
    step(Sampler, source=lambda right, self, i: self.new_source(None if self.request.rows[i].seed is None else 42)),
)


@fault("L47-coins-for-absent-drafts", "batch-dependent", "vllm-project/vllm-ascend#13608", shows="seeds")
class CoinsForAbsentDrafts(Sampler):
    """A row draws as many coins as the row with the most draft tokens, also for tokens that it does not have."""

    def answers(self, logits: Iterable[torch.Tensor], drafts: Rows) -> Rows:
        self.widest = max(map(len, drafts))
        return super().answers(logits, drafts)

    def decided(self, i: int, proposed: list[int], p: torch.Tensor) -> list[int]:
        for _ in range(self.widest - len(proposed)):
            self.coin(i)
        return super().decided(i, proposed, p)


@fault("L48-seed-of-whole-batch", "batch-dependent", shows="seeds")
class SeedOfWholeBatch(Sampler):
    """A row's seed seeds the global generator, and all rows draw from that in turn."""

    def source(self, i: int) -> Randomness:
        seed = self.request.rows[i].seed
        if seed is not None:
            torch.manual_seed(seed)
        return self.new_source(None)
