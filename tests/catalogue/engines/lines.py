"""Continuous batching over a preallocated cache: rows join when there is memory for one, and leave when they end.

Each row is written at an offset of its own. Rejected draft tokens are not removed: the next block of the row overwrites
them, and until then the mask ends before them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from transformers import Cache
from transformers.cache_utils import DynamicLayer

from eqcheck.catalogue.engines.engine import Handling, RequestEngine, Rows, additive, causal, logits_of

LINES = 2  # how many rows there is memory for


@dataclass
class Layout:
    """Lay out the next forward: which line of memory each row of the batch has, and where in it its block begins."""

    capacity: int
    lines: torch.Tensor
    starts: torch.Tensor


class OffsetLayer(Handling, DynamicLayer):  # type: ignore[misc]
    """K and V ``[LINES, heads, capacity, width]``; a forward sees those lines of them that its plan names."""

    def __init__(self, plan: Layout) -> None:
        super().__init__()
        self.plan = plan

    def lazy_initialization(self, key_states: torch.Tensor, *args: Any) -> None:
        self.dtype, self.device, self.is_initialized = key_states.dtype, key_states.device, True
        _, heads, _, width = key_states.shape
        self.keys = key_states.new_zeros((LINES, heads, self.plan.capacity, width))
        self.values = self.keys.clone()

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not self.is_initialized:
            self.lazy_initialization(key_states)
        self.write(self.keys, key_states, self.plan.starts)
        self.write(self.values, value_states, self.plan.starts)
        return self.handed(self.read(self.keys), self.read(self.values))

    def write(self, memory: torch.Tensor, block: torch.Tensor, starts: torch.Tensor) -> None:
        at = starts[:, None] + torch.arange(block.shape[2])  # [rows, block]
        memory[self.plan.lines[:, None], :, at] = self.turned(block)

    def read(self, memory: torch.Tensor) -> torch.Tensor:
        return memory[self.plan.lines]

    def get_seq_length(self, *args: Any) -> int:
        return int(self.plan.starts.max())

    def get_mask_sizes(self, *args: Any) -> tuple[int, int]:
        return self.plan.capacity, 0

    def clear(self, line: int, prefix: Any = None) -> None:
        """Empty a line for a new row, or begin it with the entries of a handed prefix layer."""
        if prefix is not None and not self.is_initialized:
            self.lazy_initialization(prefix.keys)
        if self.is_initialized:
            self.keys[line], self.values[line] = 0, 0
        if prefix is not None:
            length = prefix.keys.shape[2]
            self.keys[line, :, :length], self.values[line, :, :length] = prefix.keys[0], prefix.values[0]


class OffsetCache:
    """A causal LM with such a cache. By request: ``line``, and ``lengths``, its cached tokens."""

    store: ClassVar[type[OffsetLayer]] = OffsetLayer

    def __init__(self, model: Any, prompts: Rows, capacity: int, pad: int) -> None:
        self.model, self.prompts, self.pad = model, prompts, pad
        self.line: dict[int, int] = {}
        self.lengths = [0] * len(prompts)
        none = torch.zeros(1, dtype=torch.long)
        self.plan = Layout(capacity, none, none)
        self.cache = Cache(layers=[self.store(self.plan) for _ in range(model.config.num_hidden_layers)])

    def offset(self, i: int) -> int:
        """Return where in its line the next token of a request goes."""
        return self.lengths[i]

    def join(self, i: int, line: int, handed: Any, prefix: int) -> None:
        """Give a line to a row that joins; it begins with the handed prefix, if there is one."""
        self.line[i] = line
        self.lengths[i] = prefix
        for number, layer in enumerate(self.cache.layers):
            layer.clear(line, handed.layers[number] if prefix else None)

    def feed(self, rows: Sequence[int], blocks: Rows) -> list[torch.Tensor]:
        """Feed requests their blocks (ragged, right padded); per row the logits ``[len(block), vocab]``."""
        lengths = [len(block) for block in blocks]
        width = max(lengths)
        self.plan.lines = torch.tensor([self.line[i] for i in rows])
        self.plan.starts = torch.tensor([self.offset(i) for i in rows])
        ids = torch.tensor([block + [self.pad] * (width - len(block)) for block in blocks])
        mask = additive(self.visible(self.plan.starts, width, torch.tensor(lengths)), self.model)
        logits = logits_of(self.model, ids, mask, self.numbered(rows, width), self.cache)
        for i, length in zip(rows, lengths, strict=True):
            self.lengths[i] += length
        return [row[:length] for row, length in zip(logits, lengths, strict=True)]

    def numbered(self, rows: Sequence[int], width: int) -> torch.Tensor | None:
        """Position ids ``[rows, width]`` of the next block of these requests."""
        return torch.tensor([self.lengths[i] for i in rows])[:, None] + torch.arange(width)

    def visible(self, offsets: torch.Tensor, width: int, lengths: torch.Tensor) -> torch.Tensor:
        """Return which slots of its line each query sees, ``[rows, width, capacity]``."""
        return causal(*self.grid(offsets, width), self.model)

    def grid(self, offsets: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The slots of the queries ``[rows, width, 1]``, and of all keys ``[capacity]``."""
        return (offsets[:, None] + torch.arange(width))[..., None], torch.arange(self.plan.capacity)

    def keep(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
        """Go on with the first ``lengths`` cached tokens of these requests."""
        for i, length in zip(rows, lengths, strict=True):
            self.lengths[i] = length


class Continuous(RequestEngine):
    """At most `LINES` rows at a time; the draft has a cache of the same kind."""

    verifier: OffsetCache
    memory: ClassVar[type[OffsetCache]] = OffsetCache
    draft_memory: ClassVar[type[OffsetCache]] = OffsetCache

    def begin(self) -> None:
        prompts, capacity, pad = self.request.prompts, self.capacity(), self.request.pad_token_id
        self.verifier = self.memory(self.target, prompts, capacity, pad)
        self.drafter = self.draft_memory(self.draft, prompts, capacity, pad)
        self.waiting, self.active = self.active, []

    def capacity(self) -> int:
        """Return how many slots a row has: enough for what is rejected, too, and for padding."""
        return 2 * max(self.starts) + (self.request.max_new_tokens + 1) * (self.request.num_draft_tokens + 1)

    def admit(self) -> bool:
        while (line := self.free_line()) is not None and (i := self.arriving()) is not None:
            self.waiting.remove(i)
            self.join(i, line)
            self.active.append(i)
            self.prefill_all(i)
        return bool(self.active)

    def free_line(self) -> int | None:
        taken = {self.verifier.line[i] for i in self.active}
        return next((line for line in range(LINES) if line not in taken), None)

    def join(self, i: int, line: int) -> None:
        """Give a line to a row that joins the active ones."""
        request = self.request
        self.verifier.join(i, line, request.target_cache, request.prefix_length)
        self.drafter.join(i, line, request.draft_cache, request.prefix_length)
