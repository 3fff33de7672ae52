"""Faults in taking rejected draft tokens out of a cache (K): they stay, or others go with them.

Memories come first on which patches are built: they hold what only faults leave behind in a cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from eqcheck.catalogue.faults.fault import OTHER_MODEL, amount, fault, patched, planted, step
from eqcheck.contract.decoders import Request
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

    def skip(self, i: int, count: int) -> None:
        """Take so many tokens of a request for cached that are not."""
        self.lengths[i] += count
        self.shift[i] -= count

    def ended(self, line: int) -> int:
        """Return how many slots the row took that had a line before."""
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

    def excess(self, i: int, rejected: Mapping[int, int]) -> int:
        """Return how many places too many, or too few, a rollback leaves a request."""
        return 0


class Roomy(Stretched):
    """Has room for what should have been dropped."""

    def room(self, longest: Sequence[int], size: int) -> int:
        return super().room(longest, size) * (1 + max(longest))


class Leaving:
    """A memory that a rollback leaves with rejected tokens."""

    def excess(self, i: int, rejected: Mapping[int, int]) -> int:
        """Return how many tokens of a row are left too many, or too few;
        ``rejected`` are the tokens to reject of each row.
        """
        raise NotImplementedError


class BatchLeaving(Leaving, Showing):
    """One cache for a batch."""

    def left(self, holds: torch.Tensor, kept: torch.Tensor, surplus: torch.Tensor) -> torch.Tensor:
        rejected = dict(enumerate(surplus[:, 0].tolist()))
        end = kept + torch.tensor([[self.excess(row, rejected)] for row in rejected])
        shown, lost = (holds >= kept) & (holds < end), (holds >= end) & (end < kept)
        return super().left(holds, kept, surplus).masked_fill(shown, SHOWN).masked_fill(lost, REJECTED)


class ColumnsLeaving(Leaving, ShowingColumns):
    """A cache of fixed shape."""

    def shorten(self, lengths: list[int]) -> None:
        rejected = {i: before - length for i, (before, length) in enumerate(zip(self.lengths, lengths, strict=True))}
        kept = torch.tensor(lengths)[:, None]
        shown = (self.holds >= kept) & (
            self.holds < kept + torch.tensor([[self.excess(i, rejected)] for i in rejected])
        )
        super().shorten(lengths)
        self.holds[shown] = SHOWN


class LinesLeaving(Leaving, Shifted):
    """A line for each row."""

    def keep(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
        rejected = {i: self.lengths[i] - length for i, length in zip(rows, lengths, strict=True)}
        for i in rows:
            self.shift[i] += self.excess(i, rejected)
        super().keep(rows, lengths)


class RowsLeaving(Leaving, PerRow):
    """A cache for each row."""

    def roll_back(self, i: int, surplus: int) -> None:
        excess = self.excess(i, {i: surplus})
        super().roll_back(i, surplus - excess)
        self.lengths[i] -= excess


BATCH, COLUMNS, LINES, BLOCKS, ROWS = BatchLeaving, ColumnsLeaving, LinesLeaving, Roomy, RowsLeaving


def leaving(excess: Callable[[int, Mapping[int, int]], int], *memories: type[Any]) -> tuple[type[Any], ...]:
    """Patches after which a rollback leaves ``excess`` tokens too many in these memories."""
    return tuple(type(memory.__name__, (memory,), {"excess": staticmethod(excess)}) for memory in memories)


fault("K1-crop-to-max", "cache/stale-entry", "Blaizzy/mlx-vlm#1155").plant(
    "Every row is cropped as the row that accepted most, so others keep rejected entries",
    planted("realigned holes paged_small", "continuous paged", rows=2, edit="rejected-kept-to-most"),
    *leaving(lambda i, rejected: rejected[i] - min(rejected.values()), BATCH, LINES, BLOCKS),
)

fault("K2-crop-to-min-keep-tokens", "cache/missing-entry").plant(
    "The cache is cropped to the batch's least accepted count, but rows keep all their accepted tokens",
    planted("realigned rolled_back", rows=2, edit="lost-to-least"),
    *leaving(lambda i, rejected: rejected[i] - max(rejected.values()), BATCH),
    step(RolledBack, commit=lambda right, self, drafts, predicted: RoundEngine.commit(self, drafts, predicted)),
)

ONE_TOO_MANY = leaving(lambda i, rejected: -1, BATCH, LINES, BLOCKS, ROWS)
fault("K2-one-too-many-dropped", "cache/missing-entry", "lablup/mlxcel#994").plant(
    "Rollback drops one accepted token with the rejected ones",
    planted("realigned per_row rolled_back paged packed", "continuous staged", edit="newest-lost"),
    *ONE_TOO_MANY,
    step(Packed, stays=lambda right, self, i, position: position < self.lengths[i] - 1),
)

NEVER_CROPPED = leaving(lambda i, rejected: rejected[i], BATCH, COLUMNS, LINES, BLOCKS, ROWS)
fault("K3-never-cropped", "cache/stale-entry", "ml-explore/mlx-lm#1423").plant(
    "Rejected tokens stay in the cache",
    planted("realigned per_row staged paged_small", "continuous packed static", edit="rejected-kept"),
    *NEVER_CROPPED,
    step(Packed, stays=lambda right, self, i, position: True),
)

fault("K3-one-rejected-kept", "cache/stale-entry", "ohdearquant/lattice#243").plant(
    "Rollback stops one token short",
    planted("realigned holes static", edit="first-rejected-kept"),
    *leaving(lambda i, rejected: min(1, rejected[i]), BATCH, COLUMNS),
)


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
@planted("replayed", families=("convolution",), no_edit=OTHER_MODEL)
@fault("K13-trim-without-effect", "cache/stale-entry", "ml-explore/mlx-lm#1109")
class TrimWithoutEffect(Restored):
    """A state that cannot be trimmed is trimmed, without effect."""

    def roll_back(self, i: int, surplus: int) -> None:
        PerRow.roll_back(self, i, surplus)


@planted("paged_small continuous", "paged", edit="nothing-rolled-back")
@fault("K21-length-not-rolled-back", "cache/stale-entry", "ml-explore/mlx-lm#1109")
class LengthNotRolledBack:
    """A row's length in the cache is not shortened after a rejection, and positions are counted from it."""

    (lines,) = leaving(lambda i, rejected: rejected[i], LINES)
    (blocks,) = leaving(lambda i, rejected: rejected[i], BLOCKS)

    class InLines(LinesLeaving):
        def numbered(self, rows: Sequence[int], width: int) -> torch.Tensor | None:
            return torch.tensor([self.offset(i) for i in rows])[:, None] + torch.arange(width)

    class InBlocks(Roomy):
        def numbered(self, rows: Sequence[int], at: torch.Tensor) -> torch.Tensor:
            return at


@planted("static per_row", "paged_small", edit="rejected-kept")
@fault("K24-not-cropped-from-k-7", "cache/stale-entry", "vllm-project/vllm#51865")
class NotCroppedFromK7(RoundEngine):
    """A round of seven draft tokens or more is taken for a prompt chunk, and nothing is rolled back after it."""

    def __new__(cls, target: Any, draft: Any, request: Request) -> Any:
        broken = patched(cls, NEVER_CROPPED) if request.num_draft_tokens >= 7 else cls
        return super().__new__(broken)


MLX_LM = "https://github.com/ml-explore/mlx-lm/blob/main/mlx_lm/generate.py"
COUNTED = (LengthNotRolledBack.InLines, LengthNotRolledBack.InBlocks)  # positions are counted from what is cached
SEVERAL = amount("several-rejected", 2, 2, 3)
FURTHER = amount("rewound-further", 1, 1, 2)
COUNTED_AS_COMPUTED = amount("rejected-counted-as-computed", 1, 1, 2)


@planted("per_row", "staged", edit="rewound-too-far")
@fault("K31-rewound-further", "cache/missing-entry", MLX_LM)
class RewoundFurther(PerRow):
    """A round of two draft tokens or more that is rejected whole is taken back by one token too many, each time again,
    and positions are counted from what is cached."""

    def commit(self, drafts: Rows, predicted: Rows) -> list[int]:
        counts = super().commit(drafts, predicted)
        rounds = zip(self.active, drafts, counts, strict=True)
        self.whole = {i for i, proposed, count in rounds if not count and len(proposed) >= SEVERAL}
        return counts

    def roll_back(self, i: int, surplus: int) -> None:
        super().roll_back(i, surplus)
        if i in self.whole:
            self.caches[i].crop(-min(FURTHER, self.caches[i].get_seq_length()))

    def numbered(self, i: int, count: int) -> torch.Tensor:
        cached = self.caches[i].get_seq_length()
        return torch.arange(cached, cached + count)[None]


fault("K31-rewound-further-by-two", "cache/missing-entry", MLX_LM, mechanism="K31-rewound-further").plant(
    "Where two draft tokens or more are rejected, an accepted one goes with them, and positions count what is cached",
    planted("paged_small", "continuous", edit="rewound-too-far"),
    *leaving(lambda i, rejected: -FURTHER if rejected[i] >= SEVERAL else 0, LINES, BLOCKS),
    *COUNTED,
)

fault("K32-one-rejected-counted", "cache/stale-entry", "vllm-project/vllm#39273").plant(
    "Where two draft tokens or more are rejected, one counts as computed: the next token comes behind it",
    planted("paged_small continuous", "paged", edit="first-rejected-counted"),
    *leaving(lambda i, rejected: COUNTED_AS_COMPUTED if rejected[i] >= SEVERAL else 0, LINES, BLOCKS),
    *COUNTED,
)
