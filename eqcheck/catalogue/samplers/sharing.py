"""Faults of random numbers: shared by rows or rounds, and seeds that do not do what they promise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from eqcheck.catalogue.engines.engine import Rows
from eqcheck.catalogue.faults.fault import step
from eqcheck.catalogue.samplers.chance import Race, Source, Uniform
from eqcheck.catalogue.samplers.engine import Sampler
from eqcheck.catalogue.samplers.fault import fault
from eqcheck.catalogue.samplers.right import PositionKeyed


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

    def source(self, i: int) -> Source:
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


@fault("L46-seed-fixed", "seed-fixed", shows="rows")
class SeedFixed(Sampler):
    """All seeds are the same one."""

    def source(self, i: int) -> Source:
        return self.new_source(None if self.request.rows[i].seed is None else 42)


@fault("L47-coins-for-absent-drafts", "batch-dependent", "vllm-project/vllm-ascend#13608", shows="seeds")
class CoinsForAbsentDrafts(Sampler):
    """A row draws as many coins as the row with the most draft tokens, also for those that it does not have."""

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

    def source(self, i: int) -> Source:
        seed = self.request.rows[i].seed
        if seed is not None:
            torch.manual_seed(seed)
        return self.new_source(None)
