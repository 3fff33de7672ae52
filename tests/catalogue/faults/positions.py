"""Faults in position ids (P)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from eqcheck.catalogue.engines.batch import BatchCache
from eqcheck.catalogue.engines.engine import Handling
from eqcheck.catalogue.engines.lines import OffsetCache
from eqcheck.catalogue.engines.pool import Packed
from eqcheck.catalogue.engines.rows import PerRow, Uncached
from eqcheck.catalogue.faults.fault import FED, HANDED, NO_TOKENS, NUMBERS, OTHER_MODEL, amount, fault, planted, step
from eqcheck.catalogue.faults.tensors import Mixing, Tensors
from eqcheck.transparent.hashlm.hashing import POSITION_DIGITS

TABLE = amount("positions", 16, 14, 20)


class Drifting(BatchCache):
    """Positions are carried on, not counted: ``drift`` ``[batch]`` is how far they are off."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.drift = torch.zeros(self.batch, dtype=torch.long)

    def positions(self, at: torch.Tensor, real: torch.Tensor) -> torch.Tensor | None:
        return super().positions(at + self.drift[:, None], real)

    def keep(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
        surplus = torch.tensor([self.lengths[row] - length for row, length in zip(rows, lengths, strict=True)])
        self.drift = self.drifted(self.drift[list(rows)], surplus)
        super().keep(rows, lengths)

    def drifted(self, drift: torch.Tensor, surplus: torch.Tensor) -> torch.Tensor:
        """Return how far they are off after a rollback by ``surplus`` tokens, ``[rows]``."""
        raise NotImplementedError


class DriftingLines(OffsetCache):
    """The same, by request."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.drift = [0] * len(self.lengths)

    def numbered(self, rows: Sequence[int], width: int) -> torch.Tensor | None:
        starts = torch.tensor([self.lengths[i] + self.drift[i] for i in rows])
        return starts[:, None] + torch.arange(width)


fault("P1-positions-by-slot", "position/query-position", "lablup/mlxcel#203").plant(
    "No position ids: tokens are numbered by the slots they are written to, pads and holes counted",
    planted("holes realigned", "static", families=FED, rows=2, edit="slot-positions"),
    step(Handling, positions=lambda right, self, at, real: None),
)


@planted("realigned", "continuous", families=FED, cache_states=("prefix",), no_edit=HANDED)
@fault("P1-positions-without-prefix", "position/query-position", "huggingface/text-generation-inference#2711")
class NumberedWithoutPrefix:
    """The first positions after a cached prefix begin at 0."""

    class InBatch(Drifting):
        def start_from(self, handed: Any, prefix: int) -> None:
            super().start_from(handed, prefix)
            self.drift -= prefix

        def drifted(self, drift: torch.Tensor, surplus: torch.Tensor) -> torch.Tensor:
            return torch.zeros_like(drift)

    class InLines(DriftingLines):
        def join(self, i: int, line: int, handed: Any, prefix: int) -> None:
            super().join(i, line, handed, prefix)
            self.drift[i] = -prefix

        def keep(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
            super().keep(rows, lengths)
            for i in rows:
                self.drift[i] = 0


fault("P2-no-positions", "position/query-position", "ndif-team/nnsight#672").plant(
    "Left-padded rows are fed without position ids, so each is off by its padding",
    planted("uncached", "expanded", families=("learned",), rows=2, no_edit=OTHER_MODEL),
    step(Uncached, positions=lambda right, self, at, real: None),
)

fault("P3-row-0-positions", "position/query-position", "unslothai/unsloth#3699").plant(
    "The positions of row 0 are used for every row",
    planted("uncached realigned holes", "expanded", families=FED, rows=2, edit="another-rows-positions"),
    step(Handling, positions=lambda right, self, at, real: right(at[:1], real[:1])),
)

fault("P3-shared-positions", "position/query-position", "unslothai/unsloth#3795", mechanism="P3-row-0-positions").plant(
    "One counter of cached tokens, that of the longest row, numbers the tokens of all rows",
    planted("", "continuous", families=FED, rows=2, edit="longest-positions"),
    step(OffsetCache, numbered=lambda right, self, rows, width: None),
)

fault("P4-scalar-advance", "position/query-position", "huggingface/transformers#43734").plant(
    "Positions are carried on, and advance by the most accepted tokens of the batch in every row",
    planted("realigned holes", families=FED, rows=2, edit="drift-most"),
    step(Drifting, drifted=lambda right, self, drift, surplus: drift + surplus - surplus.min()),
)


@planted("realigned per_row staged", "holes continuous", families=FED, edit="drift-rejected")
@fault("P5-advance-by-k", "position/query-position", "Blaizzy/mlx-vlm#1155")
class AdvancesByAll:
    """Positions are carried on, and advance by all tokens fed instead of those accepted."""

    class InBatch(Drifting):
        def drifted(self, drift: torch.Tensor, surplus: torch.Tensor) -> torch.Tensor:
            return drift + surplus

    class InLines(DriftingLines):
        def keep(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
            for i, length in zip(rows, lengths, strict=True):
                self.drift[i] += self.lengths[i] - length
            super().keep(rows, lengths)

    class InRows(PerRow):
        def begin(self) -> None:
            super().begin()
            self.drift = [0] * len(self.rows)

        def numbered(self, i: int, count: int) -> torch.Tensor:
            return super().numbered(i, count) + self.drift[i]

        def roll_back(self, i: int, surplus: int) -> None:
            super().roll_back(i, surplus)
            self.drift[i] += surplus


@planted("realigned holes rolled_back", "continuous", families=FED, edit="newest-shifted")
@fault("P6-bonus-off-by-one", "position/query-position", "huggingface/transformers#30042")
class NewestOffByOne:
    """The correction or bonus token is fed with the position of the token before it."""

    class InBatch(BatchCache):
        def positions(self, at: torch.Tensor, real: torch.Tensor) -> torch.Tensor | None:
            newest = real & (at == torch.tensor(self.lengths)[:, None])
            first = self.holds.shape[1] == real.shape[1]
            return super().positions(at if first else at - newest.long(), real)

    class InLines(OffsetCache):
        def numbered(self, rows: Sequence[int], width: int) -> torch.Tensor | None:
            newest = [self.lengths[i] >= len(self.prompts[i]) for i in rows]
            numbers = torch.tensor([self.lengths[i] for i in rows])[:, None] + torch.arange(width)
            numbers[:, 0] -= torch.tensor(newest).long()
            return numbers


@planted("realigned", families=FED, no_edit=NUMBERS)
@fault("P7-moved-keys-rotated", "position/key-position", "lablup/mlxcel#203", hashlm_only=True)
class MovedKeysRotated(Mixing):
    """Entries that are only moved to other slots are given new positions."""

    def mixed(self, number: int, moved: Tensors, left: Tensors) -> Tensors:
        for kept in moved:
            kept[:, :, : kept.shape[2] // 2, POSITION_DIGITS.start] += 1
        return moved


fault("P8-clamped-at-one", "position/query-position", "huggingface/transformers#43734").plant(
    "Positions are clamped to what pads are given, 1, which moves the first token of a row, too",
    planted("uncached holes realigned", "expanded", families=FED, edit="clamped-positions"),
    step(Handling, positions=lambda right, self, at, real: at.masked_fill(~real, 0).clamp(min=1)),
)

fault("P9-pads-before-table", "crash/exception", "huggingface/transformers#43734").plant(
    "Pads are given position -1, which a table of positions does not have",
    planted("uncached realigned", "expanded", families=("learned",), rows=2, no_edit=NO_TOKENS),
    step(Handling, positions=lambda right, self, at, real: at.masked_fill(~real, -1)),
)


@planted("realigned static", "paged", families=("learned",), rows=2, no_edit=NO_TOKENS)
@fault("P9-pads-behind-table", "crash/exception", "huggingface/transformers#43734")
class PadsBehindTable(Handling):
    """Pads are given the first position behind a table of positions."""

    model: Any

    def positions(self, at: torch.Tensor, real: torch.Tensor) -> torch.Tensor | None:
        return at.masked_fill(~real, int(self.model.config.max_position_embeddings))


fault("P10-positions-not-restarted", "position/query-position").plant(
    "Positions are counted through all rows that lie behind one another",
    planted("packed", families=FED, rows=2, no_edit="no edit counts positions on from row to row"),
    step(Packed, numbered=lambda right, self, fed: list(range(fed[0][1], fed[0][1] + len(fed)))),
)

fault("P11-positions-end-at-16", "position/query-position").plant(
    "The table of positions is short, and later tokens take its last",
    planted("static per_row", "paged", families=FED, no_edit="no edit holds positions at a table's end"),
    step(Handling, positions=lambda right, self, at, real: right(at.clamp(max=TABLE - 1), real)),
)
