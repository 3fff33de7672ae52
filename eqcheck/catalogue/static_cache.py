"""A model with a cache of fixed shape, as compiled graphs want it: every row is written at the same columns.

Blocks are padded on the right. What is rejected stays where it is, hidden, until no column is left; then each row's
tokens are moved together at the left edge. Rows that are done stay in the batch and are fed pads.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from transformers import Cache
from transformers.cache_utils import DynamicLayer

from eqcheck.catalogue.engine import Rows, placed
from eqcheck.catalogue.handling import handled, told

NOTHING, SHOWN = -1, -2  # what a column holds instead of the token of a logical position; only faults leave any `SHOWN`


class FixedLayer(DynamicLayer):  # type: ignore[misc]
    """K and V ``[batch, heads, capacity, width]``; ``columns`` is where the next block goes."""

    def __init__(self, capacity: int, faults: frozenset[str]) -> None:
        super().__init__()
        self.capacity, self.faults = capacity, faults
        self.columns = torch.arange(0)

    def lazy_initialization(self, key_states: torch.Tensor, *args: Any) -> None:
        self.dtype, self.device, self.is_initialized = key_states.dtype, key_states.device, True
        batch, heads, _, width = key_states.shape
        self.keys = key_states.new_zeros((batch, heads, self.capacity, width))
        self.values = self.keys if "K15-one-buffer" in self.faults else self.keys.clone()

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not self.is_initialized:
            self.lazy_initialization(key_states)
        self.keys.index_copy_(2, self.columns, key_states)
        self.values.index_copy_(2, self.columns, value_states)
        return handled(self.faults, self.keys, self.values)

    def get_seq_length(self, *args: Any) -> int:
        return int(self.columns[0]) if len(self.columns) else 0

    def get_mask_sizes(self, *args: Any) -> tuple[int, int]:
        return told(self.faults, self.capacity, 0, len(self.columns))


class StaticModel:
    """A causal LM with a cache of fixed shape for a whole batch.

    ``holds`` ``[batch, capacity]`` are the logical positions of what the columns hold, `NOTHING` for what is hidden,
    and `SHOWN` for what is seen although it should not be; ``lengths`` counts the tokens of each row that are cached;
    ``end`` is the first column that is free.
    """

    def __init__(self, model: Any, batch: int, capacity: int, pad: int, faults: Iterable[str]) -> None:
        self.model, self.pad, self.faults = model, pad, frozenset(faults)
        self.layers = [FixedLayer(capacity, self.faults) for _ in range(model.config.num_hidden_layers)]
        self.cache = Cache(layers=self.layers)
        self.holds = torch.full((batch, capacity), NOTHING)
        self.lengths = [0] * batch
        self.end = 0

    def on(self, *faults: str) -> bool:
        return not self.faults.isdisjoint(faults)

    def start_from(self, handed: Any, prefix: int) -> None:
        """Let every row begin with a handed prefix."""
        for own, layer in zip(self.layers, handed.layers, strict=True):
            own.columns = torch.arange(prefix)
            batch = len(self.lengths)
            own.update(*(kept.repeat_interleave(batch, dim=0) for kept in (layer.keys, layer.values)))
        self.holds[:, :prefix] = torch.arange(prefix)
        self.lengths = [prefix] * len(self.lengths)
        self.end = prefix

    def feed(self, blocks: Rows, width: int) -> list[torch.Tensor]:
        """Feed each row its block (ragged, may be empty), padded to ``width``; the logits ``[len(block), vocab]``."""
        if self.end + width > self.holds.shape[1]:
            self._move_together()
        columns = torch.arange(self.end, self.end + width)
        self.end += width
        for layer in self.layers:
            layer.columns = columns
        real = torch.arange(width) < torch.tensor([len(block) for block in blocks])[:, None]
        at = torch.tensor(self.lengths)[:, None] + torch.arange(width)
        first, pads = not any(self.lengths), SHOWN if self.on("M8-short-block-pads-visible") else NOTHING
        self.holds[:, columns] = at.masked_fill(~real, NOTHING if first else pads)
        logits = self.model(
            input_ids=torch.tensor([block + [self.pad] * (width - len(block)) for block in blocks]),
            attention_mask=(self.holds != NOTHING).long(),
            position_ids=None if self.on("P1-positions-by-slot") else placed(at, real, self.model, self.faults),
            past_key_values=self.cache,
            use_cache=True,
        ).logits
        self.lengths = [n + len(block) for n, block in zip(self.lengths, blocks, strict=True)]
        return [row[: len(block)] for row, block in zip(logits, blocks, strict=True)]

    def keep(self, lengths: list[int]) -> None:
        """Go on with the first ``lengths`` cached tokens of each row; 0 for one that is done."""
        rejected = self.holds >= torch.tensor(lengths)[:, None]
        kept = self.holds == torch.tensor(lengths)[:, None]
        self.holds[rejected] = SHOWN if self.on("K3-never-cropped") else NOTHING
        if self.on("K3-one-rejected-kept"):
            self.holds[kept] = SHOWN
        self.lengths = lengths
        if self.on("K17-layers-exchanged"):
            self.cache.layers.reverse()

    def _move_together(self) -> None:
        """Move each row's tokens to the left edge."""
        order = (self.holds < 0).long().argsort(dim=1, stable=True)
        for layer in () if self.on("K5-cache-not-moved") else self.layers:
            index = order[:, None, :, None].expand_as(layer.keys)
            layer.keys = layer.keys.gather(2, index)
            if not self.on("K6-values-not-moved"):
                layer.values = layer.values.gather(2, index)
        self.holds = self.holds.gather(1, order)
        self.holds[self.holds < 0] = NOTHING
        self.end = int((self.holds >= 0).sum(1).max())
