"""A model with one cache for the batch, for target and draft alike; three ways to take rejected draft tokens out of it.

`RealignedCache` moves what is left together, `HoleyCache` hides the rejected slots, `CroppedCache` cuts the columns
that no row has a use for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache

from eqcheck.catalogue.engines.engine import Rows, left_padded, own_copy, prefix_for
from eqcheck.catalogue.engines.handling import Handling

PAD, REJECTED = -1, -2  # what a slot holds instead of the token of a logical position


class BatchCache(Handling):
    """A causal LM with one cache for a batch; blocks are left padded.

    ``holds`` ``[batch, slots]`` is the logical position of the token in each slot, `PAD` or `REJECTED`; ``lengths``
    counts the tokens of each row that are cached.
    """

    def __init__(self, model: Any, prompts: Rows, pad: int) -> None:
        self.model, self.prompts, self.pad = model, prompts, pad
        self.batch = len(prompts)
        self.cache: Any = DynamicCache()
        self.lengths = [0] * self.batch
        self.holds = torch.zeros((self.batch, 0), dtype=torch.long)

    def start_from(self, handed: Any, prefix: int) -> None:
        """Go on from a handed cache: one row with a common prefix, or preallocated and empty."""
        if not prefix:
            self.cache = own_copy(handed)
            return
        self.cache = prefix_for(handed, self.batch)
        self.lengths = [prefix] * self.batch
        self.holds = torch.arange(prefix).repeat(self.batch, 1)

    def feed(self, blocks: Rows) -> list[torch.Tensor]:
        """Feed each row its block (ragged, may be empty); per row the logits ``[len(block), vocab]``."""
        ids, real = left_padded(blocks, self.pad)
        at = torch.tensor(self.lengths)[:, None] + real.long().cumsum(1) - 1
        self.holds = torch.cat([self.holds, torch.where(real, at, PAD)], 1)
        logits = self.model(
            input_ids=ids,
            attention_mask=self.mask(ids.shape[1]),
            position_ids=self.positions(at, real),
            past_key_values=self.cache,
            use_cache=True,
        ).logits
        self.lengths = [n + len(block) for n, block in zip(self.lengths, blocks, strict=True)]
        return [row[mask] for row, mask in zip(logits, real, strict=True)]

    def mask(self, width: int) -> torch.Tensor:
        """The mask of what is cached and fed, ``[batch, slots]``, the last ``width`` of them those of the block."""
        return self.seen().long()

    def seen(self) -> torch.Tensor:
        """Which slots hold what is to be seen, ``[batch, slots]``."""
        return self.holds >= 0

    def keep(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
        """Keep these rows of the batch, with the first ``lengths`` tokens of each."""
        index, kept = torch.tensor(rows), torch.tensor(lengths)[:, None]
        surplus = torch.tensor([self.lengths[row] for row in rows])[:, None] - kept
        self.holds = self.left(self.holds[index], kept, surplus)
        self.lengths = list(lengths)
        self.move(index)
        self.batch = len(rows)

    def left(self, holds: torch.Tensor, kept: torch.Tensor, surplus: torch.Tensor) -> torch.Tensor:
        """``holds`` after a rollback by ``surplus`` tokens to the ``kept`` ones, ``[rows, 1]`` each."""
        return holds.masked_fill(holds >= kept, REJECTED)

    def move(self, rows: torch.Tensor) -> None:
        """Make the cache follow ``holds``; ``rows`` are the rows of the old batch to take."""
        raise NotImplementedError


class RealignedCache(BatchCache):
    """Each row's tokens are moved together at the right edge, and the slots that this frees are zeroed."""

    def move(self, rows: torch.Tensor) -> None:
        used = self.seen()
        width = int(used.sum(1).max())
        order = used.long().argsort(dim=1, stable=True)[:, used.shape[1] - width :]
        source = self.source(used, order)
        blank = ~used.gather(1, source)[:, None, :, None]
        for layer in self.cache.layers:
            moved = [kept[rows[:, None], :, source].transpose(1, 2) for kept in (layer.keys, layer.values)]
            layer.keys, layer.values = self.handed(*(kept.masked_fill(blank, 0) for kept in moved))
        self.holds = self.holds.gather(1, order).masked_fill(~used.gather(1, order), PAD)

    def source(self, used: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        """The slots that K and V are taken from, ``[rows, width]``; ``holds`` is taken from those of ``order``."""
        return order


class HoleyCache(BatchCache):
    """Nothing moves: rejected slots stay where they are and are hidden by the mask."""

    def move(self, rows: torch.Tensor) -> None:
        if rows.tolist() != list(range(self.batch)):
            self.cache.batch_select_indices(rows)


class CroppedCache(BatchCache):
    """Columns at the end in which no row has a token are cut off, for all rows at once."""

    def move(self, rows: torch.Tensor) -> None:
        if rows.tolist() != list(range(self.batch)):
            self.cache.batch_select_indices(rows)
        used = self.seen().any(0)
        width = int(used.nonzero().max()) + 1 if used.any() else 0
        if width < used.shape[0]:
            self.cache.crop(width - used.shape[0])  # a negative count means the same in every version
        self.holds = self.holds[:, :width]
