"""Faults in taking rejected draft tokens out of a cache (K): they stay, or others go with them.

Memories come first on which patches are built: they hold what only faults leave behind in a cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache

from eqcheck.catalogue.engines.batch import REJECTED, BatchCache, RolledBack
from eqcheck.catalogue.engines.blocks import PagedModel
from eqcheck.catalogue.engines.columns import StaticModel
from eqcheck.catalogue.engines.engine import RoundEngine, Rows
from eqcheck.catalogue.engines.lines import OffsetCache
from eqcheck.catalogue.engines.pool import Packed
from eqcheck.catalogue.engines.rows import PerRow, Restored
from eqcheck.catalogue.faults.fault import OTHER_MODEL, fault, patched, patches_of, planted
from eqcheck.contract.decoder import Request
from eqcheck.contract.family import named

SHOWN = -3  # what a slot holds that is seen although it should not be


class Showing(BatchCache):
    """Slots may be `SHOWN`."""

    def seen(self) -> torch.Tensor:
        return super().seen() | (self.holds == SHOWN)


class ShowingColumns(StaticModel):
    """Columns may be `SHOWN`."""

    def seen(self) -> torch.Tensor:
        return super().seen() | (self.holds == SHOWN)


class Remembering(BatchCache):
    """``texts`` are the tokens of each row by their logical position."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.texts = [dict(enumerate(prompt)) for prompt in self.prompts]

    def feed(self, blocks: Rows) -> list[torch.Tensor]:
        for text, block, start in zip(self.texts, blocks, self.lengths, strict=True):
            text.update(enumerate(block, start))
        return super().feed(blocks)

    def keep(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
        self.texts = [self.texts[row] for row in rows]
        super().keep(rows, lengths)


class Shifted(OffsetCache):
    """``shift`` is how far a row's next slot is from its next logical position."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.shift = [0] * len(self.lengths)

    def offset(self, i: int) -> int:
        return super().offset(i) + self.shift[i]

    def ended(self, line: int) -> int:
        """How many slots the row took that had a line before."""
        return max((self.offset(i) for i, other in self.line.items() if other == line), default=0)


class Stretched(PagedModel):
    """``surplus`` is how many places more a request takes than it has tokens."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.surplus = [0] * len(self.lengths)

    def places(self, i: int) -> int:
        return super().places(i) + self.surplus[i]

    def numbered(self, rows: Sequence[int], at: torch.Tensor) -> torch.Tensor:
        return at - torch.tensor([self.surplus[i] for i in rows])[:, None]

    def skip(self, i: int, count: int) -> None:
        """Take so many tokens of a request for cached that are not."""
        self.lengths[i] += count
        self.surplus[i] -= count

    def keep(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
        rejected = {i: self.lengths[i] - length for i, length in zip(rows, lengths, strict=True)}
        for i, before in enumerate(self.surplus):
            self.surplus[i] = before + self.excess(i, rejected) if i in rejected else 0
        super().keep(rows, lengths)

    def excess(self, i: int, rejected: dict[int, int]) -> int:
        """How many places too many, or too few, a rollback leaves a request."""
        return 0


class Roomy(Stretched):
    """Has room for what should have been dropped."""

    def room(self, longest: Sequence[int], size: int) -> int:
        return super().room(longest, size) * (1 + max(longest))


@planted("realigned holes paged_small", "continuous paged", rows=2, edit="rejected-kept-to-most")
@fault("K1-crop-to-max", "cache/stale-entry", "Blaizzy/mlx-vlm#1155")
class CroppedToMax:
    """Every row is cropped as the row that accepted most, so others keep rejected entries."""

    class InBatch(Showing):
        def left(self, holds: torch.Tensor, kept: torch.Tensor, surplus: torch.Tensor) -> torch.Tensor:
            shown = (holds >= kept) & (holds < kept + surplus - surplus.min())
            return super().left(holds, kept, surplus).masked_fill(shown, SHOWN)

    class InLines(Shifted):
        def keep(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
            surplus = [self.lengths[i] - length for i, length in zip(rows, lengths, strict=True)]
            for i, rejected in zip(rows, surplus, strict=True):
                self.shift[i] += rejected - min(surplus)
            super().keep(rows, lengths)

    class InBlocks(Roomy):
        def excess(self, i: int, rejected: dict[int, int]) -> int:
            return rejected[i] - min(rejected.values())


@planted("realigned rolled_back", rows=2, edit="lost-to-least")
@fault("K2-crop-to-min-keep-tokens", "cache/missing-entry")
class CroppedToMin:
    """The cache is cropped to the batch's least accepted count, but rows keep all their accepted tokens."""

    class InBatch(BatchCache):
        def left(self, holds: torch.Tensor, kept: torch.Tensor, surplus: torch.Tensor) -> torch.Tensor:
            lost = holds >= kept - (surplus.max() - surplus)
            return super().left(holds, kept, surplus).masked_fill(lost, REJECTED)

    class KeepsTokens(RolledBack):
        def commit(self, drafts: Rows, predicted: Rows) -> list[int]:
            return RoundEngine.commit(self, drafts, predicted)


@planted("realigned per_row rolled_back paged packed", "continuous staged", edit="newest-lost")
@fault("K2-one-too-many-dropped", "cache/missing-entry", "lablup/mlxcel#994")
class OneTooManyDropped:
    """Rollback drops one accepted token with the rejected ones."""

    class InBatch(BatchCache):
        def left(self, holds: torch.Tensor, kept: torch.Tensor, surplus: torch.Tensor) -> torch.Tensor:
            return super().left(holds, kept, surplus).masked_fill(holds == kept - 1, REJECTED)

    class InLines(Shifted):
        def keep(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
            super().keep(rows, lengths)
            for i in rows:
                self.shift[i] -= 1

    class InBlocks(Stretched):
        def excess(self, i: int, rejected: dict[int, int]) -> int:
            return -1

    class InRows(PerRow):
        def roll_back(self, i: int, surplus: int) -> None:
            super().roll_back(i, surplus + 1)
            self.lengths[i] += 1

    class InOneRow(Packed):
        def stays(self, i: int, position: int) -> bool:
            return position < self.lengths[i] - 1


@planted("realigned per_row staged paged_small", "continuous packed static", edit="rejected-kept")
@fault("K3-never-cropped", "cache/stale-entry", "ml-explore/mlx-lm#1423")
class NeverCropped:
    """Rejected tokens stay in the cache."""

    class InBatch(Showing):
        def left(self, holds: torch.Tensor, kept: torch.Tensor, surplus: torch.Tensor) -> torch.Tensor:
            return holds.masked_fill(holds >= kept, SHOWN)

    class InColumns(ShowingColumns):
        def keep(self, lengths: list[int]) -> None:
            rejected = self.holds >= torch.tensor(lengths)[:, None]
            super().keep(lengths)
            self.holds[rejected] = SHOWN

    class InLines(Shifted):
        def keep(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
            for i, length in zip(rows, lengths, strict=True):
                self.shift[i] += self.lengths[i] - length
            super().keep(rows, lengths)

    class InBlocks(Roomy):
        def excess(self, i: int, rejected: dict[int, int]) -> int:
            return rejected[i]

    class InRows(PerRow):
        def roll_back(self, i: int, surplus: int) -> None:
            self.lengths[i] -= surplus

    class InOneRow(Packed):
        def stays(self, i: int, position: int) -> bool:
            return True


@planted("realigned holes static", edit="first-rejected-kept")
@fault("K3-one-rejected-kept", "cache/stale-entry", "ohdearquant/lattice#243")
class OneRejectedKept:
    """Rollback stops one token short."""

    class InBatch(Showing):
        def left(self, holds: torch.Tensor, kept: torch.Tensor, surplus: torch.Tensor) -> torch.Tensor:
            return super().left(holds, kept, surplus).masked_fill(holds == kept, SHOWN)

    class InColumns(ShowingColumns):
        def keep(self, lengths: list[int]) -> None:
            first = self.holds == torch.tensor(lengths)[:, None]
            super().keep(lengths)
            self.holds[first] = SHOWN


@planted("restored", families=named(lambda family: not family.window), edit="restored-with-all")
@fault("K8-copy-shares-memory", "cache/stale-entry")
class CopySharesMemory(Restored):
    """The copy to go back to shares the cache's memory."""

    def before_drafts(self, i: int) -> None:
        self.copies[i] = self.caches[i], self.lengths[i]


@planted("realigned per_row", edit="reset")
@fault("K11-reset-instead-of-rollback", "cache/missing-entry", "paiml/aprender#2014")
class ResetInsteadOfRollback:
    """After a rejection the cache is emptied instead of rolled back."""

    class InBatch(BatchCache):
        def left(self, holds: torch.Tensor, kept: torch.Tensor, surplus: torch.Tensor) -> torch.Tensor:
            lost = (surplus > 0) & (holds >= 0)
            return super().left(holds, kept, surplus).masked_fill(lost, REJECTED)

    class InRows(PerRow):
        def roll_back(self, i: int, surplus: int) -> None:
            self.lengths[i] -= surplus
            if surplus:
                self.caches[i] = DynamicCache()


@planted("restored", families=("recurrent",), no_edit=OTHER_MODEL)
@fault("K13-trim-without-effect", "cache/stale-entry", "ml-explore/mlx-lm#1109")
class TrimWithoutEffect(Restored):
    """A state that cannot be trimmed is trimmed, without effect."""

    def roll_back(self, i: int, surplus: int) -> None:
        PerRow.roll_back(self, i, surplus)


@planted("paged_small continuous", "paged", no_edit="no edit keeps rejected tokens and counts positions from them")
@fault("K21-length-not-rolled-back", "cache/stale-entry", "ml-explore/mlx-lm#1109")
class LengthNotRolledBack:
    """A row's length in the cache is not shortened after a rejection, and positions are counted from it."""

    class InLines(NeverCropped.InLines):
        def numbered(self, rows: Sequence[int], width: int) -> torch.Tensor | None:
            return torch.tensor([self.offset(i) for i in rows])[:, None] + torch.arange(width)

    class InBlocks(NeverCropped.InBlocks):
        def numbered(self, rows: Sequence[int], at: torch.Tensor) -> torch.Tensor:
            return at


@planted("static per_row", "paged_small", edit="rejected-kept")
@fault("K24-not-cropped-from-k-7", "cache/stale-entry", "vllm-project/vllm#51865")
class NotCroppedFromK7(RoundEngine):
    """A round of seven draft tokens or more is taken for a prompt chunk, and nothing is rolled back after it."""

    def __new__(cls, target: Any, draft: Any, request: Request) -> Any:
        broken = patched(cls, patches_of(NeverCropped)) if request.num_draft_tokens >= 7 else cls
        return super().__new__(broken)
