"""An engine of fixed shapes, as compiled graphs want them: rows never leave, blocks are K + 1 columns wide or more.

Every row is written at the same columns, and padded on the right. Rejected tokens stay, hidden, until no column is
left; then each row's tokens are moved together at the left edge. Rows that are done are fed pads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from transformers import Cache
from transformers.cache_utils import DynamicLayer

from eqcheck.catalogue.engines.engine import Handling, RequestEngine, Rows, logits_of

NOTHING = -1  # what a column holds instead of the token of a logical position


class FixedLayer(Handling, DynamicLayer):  # type: ignore[misc]
    """K and V ``[batch, heads, capacity, width]``; ``columns`` is where the next block goes."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.columns = torch.arange(0)

    def lazy_initialization(self, key_states: torch.Tensor, *args: Any) -> None:
        self.dtype, self.device, self.is_initialized = key_states.dtype, key_states.device, True
        batch, heads, _, width = key_states.shape
        self.keys = key_states.new_zeros((batch, heads, self.capacity, width))
        self.values = self.keys.clone()

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not self.is_initialized:
            self.lazy_initialization(key_states)
        self.keys.index_copy_(2, self.columns, key_states)
        self.values.index_copy_(2, self.columns, value_states)
        return self.handed(self.keys, self.values)

    def get_seq_length(self, *args: Any) -> int:
        return int(self.columns[0]) if len(self.columns) else 0

    def get_mask_sizes(self, *args: Any) -> tuple[int, int]:
        return self.capacity, 0


class StaticModel(Handling):
    """A causal LM with a cache of fixed shape for a whole batch.

    ``holds`` ``[batch, capacity]`` are the logical positions of what the columns hold, `NOTHING` for what is hidden;
    ``lengths`` counts the tokens of each row that are cached; ``end`` is the first column that is free. Blocks are at
    least ``width`` columns wide.
    """

    store: ClassVar[type[FixedLayer]] = FixedLayer

    def __init__(self, model: Any, batch: int, capacity: int, pad: int) -> None:
        self.model, self.pad = model, pad
        self.layers = [self.store(capacity) for _ in range(model.config.num_hidden_layers)]
        self.cache = Cache(layers=self.layers)
        self.holds = torch.full((batch, capacity), NOTHING)
        self.lengths = [0] * batch
        self.end, self.width = 0, 1

    def start_from(self, handed: Any, prefix: int) -> None:
        """Let every row begin with a handed prefix."""
        for own, layer in zip(self.layers, handed.layers, strict=True):
            own.columns = torch.arange(prefix)
            batch = len(self.lengths)
            own.update(*(kept.repeat_interleave(batch, dim=0) for kept in (layer.keys, layer.values)))
        self.holds[:, :prefix] = torch.arange(prefix)
        self.lengths = [prefix] * len(self.lengths)
        self.end = prefix

    def feed(self, rows: Sequence[int], fed: Rows) -> list[torch.Tensor]:
        """Feed rows their blocks (ragged, may be empty), and pads to all others; the logits ``[len(block), vocab]``."""
        given = dict(zip(rows, fed, strict=True))
        blocks, width = [given.get(i, []) for i in range(len(self.lengths))], max(self.width, *map(len, fed))
        if self.end + width > self.holds.shape[1]:
            self.move_together()
        columns = torch.arange(self.end, self.end + width)
        self.end += width
        for layer in self.layers:
            layer.columns = columns
        real = torch.arange(width) < torch.tensor([len(block) for block in blocks])[:, None]
        at = torch.tensor(self.lengths)[:, None] + torch.arange(width)
        self.holds[:, columns] = self.held(at, real)
        ids = torch.tensor([block + [self.pad] * (width - len(block)) for block in blocks])
        logits = logits_of(self.model, ids, self.seen().long(), self.positions(at, real), self.cache)
        self.lengths = [n + len(block) for n, block in zip(self.lengths, blocks, strict=True)]
        return [logits[i, : len(given[i])] for i in rows]

    def held(self, at: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        """The logical positions that the columns of a block hold, ``[batch, width]``."""
        return at.masked_fill(~real, NOTHING)

    def seen(self) -> torch.Tensor:
        """Return which columns are seen, ``[batch, capacity]``."""
        return self.holds >= 0

    def keep(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
        """Go on with these rows, and the first ``lengths`` cached tokens of each."""
        kept = dict(zip(rows, lengths, strict=True))
        self.shorten([kept.get(i, 0) for i in range(len(self.lengths))])

    def shorten(self, lengths: list[int]) -> None:
        """Go on with the first ``lengths`` cached tokens of each row; 0 for one that is done."""
        self.holds[self.holds >= torch.tensor(lengths)[:, None]] = NOTHING
        self.lengths = lengths

    def move_together(self) -> None:
        """Move each row's tokens to the left edge."""
        order = (self.holds < 0).long().argsort(dim=1, stable=True)
        for layer in self.layers:
            index = order[:, None, :, None].expand_as(layer.keys)
            layer.keys, layer.values = layer.keys.gather(2, index), layer.values.gather(2, index)
        self.holds = self.holds.gather(1, order)
        self.holds[self.holds < 0] = NOTHING
        self.end = int((self.holds >= 0).sum(1).max())


class Static(RequestEngine):
    """A preallocated cache of fixed shape, blocks padded on the right; the draft has one of the same kind."""

    memory: ClassVar[type[StaticModel]] = StaticModel
    draft_memory: ClassVar[type[StaticModel]] = StaticModel

    def begin(self) -> None:
        request = self.request
        self.verifier = self._start(self.memory, self.target, request.target_cache)
        self.drafter = self._start(self.draft_memory, self.draft, request.draft_cache)
        pending = [row[n:-1] for row, n in zip(self.rows, self.verifier.lengths, strict=True)]
        chunk = request.prefill_chunk or 0
        for start in range(0, max(map(len, pending)), chunk) if chunk else ():
            self.prefill_rows([row[start : start + chunk] for row in pending], start, chunk)
        self.verifier.width = request.num_draft_tokens + 1

    def _start(self, memory: type[StaticModel], model: Any, handed: Any) -> StaticModel:
        request = self.request
        capacity = max(self.starts) + request.max_new_tokens + request.num_draft_tokens + (request.prefill_chunk or 0)
        made = memory(model, len(self.rows), capacity, request.pad_token_id)
        if request.prefix_length:
            made.start_from(handed, request.prefix_length)
        return made

    def prefill_rows(self, blocks: Rows, start: int, width: int) -> None:
        """Feed a piece of each prompt, from its column ``start`` on; some may be empty."""
        self.verifier.width = width
        self.verifier.feed(range(len(blocks)), blocks)
