"""What only faults leave behind in a cache, and what several of them have to remember: memories to build patches on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from eqcheck.catalogue.engines.batch_cache import BatchCache
from eqcheck.catalogue.engines.engine import Rows
from eqcheck.catalogue.engines.offset_cache import OffsetCache
from eqcheck.catalogue.engines.paged_cache import PagedModel
from eqcheck.catalogue.engines.static_cache import StaticModel

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
