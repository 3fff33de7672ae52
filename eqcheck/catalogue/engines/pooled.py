"""An engine without padding over a pool of slots: each call reads the slots of its rows by their tables."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import DynamicCache

from eqcheck.catalogue.engines.engine import Rows
from eqcheck.catalogue.engines.packed import Packed


class Pooled(Packed):
    """All rows in one row of the call; ``tables`` have the slots of each row in the pool, which later rows reuse."""

    def begin(self) -> None:
        super().begin()
        self.tables: Rows = [[] for _ in self.rows]
        self.free = list(range(sum(self.starts) + len(self.rows) * 2 * self.request.max_new_tokens))
        self.free += range(len(self.free), len(self.free) + len(self.rows) * (self.request.num_draft_tokens + 1))
        self.pool: list[list[torch.Tensor]] = []

    def verify(self, drafts: Rows) -> Rows:
        self.held = [(i, at) for i in self.active for at in range(self.lengths[i])]
        slots, self.cache = torch.tensor(self.read(), dtype=torch.long), DynamicCache()
        for number, memory in enumerate(self.pool if self.held else ()):
            self.cache.update(memory[0][:, :, slots], memory[1][:, :, slots], number)
        cached = len(self.held)
        answers = super().verify(drafts)
        written = [self.free.pop(0) for _ in self.held[cached:]]
        for (i, _), slot in zip(self.held[cached:], written, strict=True):
            self.tables[i].append(slot)
        pairs = [(layer.keys, layer.values) for layer in self.cache.layers]
        if not self.pool:
            size = len(self.free) + len(written)
            self.pool = [[one.new_zeros((*one.shape[:2], size, one.shape[3])) for one in pair] for pair in pairs]
        for memory, pair in zip(self.pool, pairs, strict=True):
            for kept, new in zip(memory, pair, strict=True):
                kept[:, :, written] = new[:, :, cached:]
        return answers

    def read(self) -> list[int]:
        """The slots that a call reads, in the order in which its mask expects the rows."""
        return [slot for i in self.active for slot in self.tables[i]]

    def after(self, going: Sequence[int], lengths: Sequence[int]) -> None:
        kept = dict(zip(self.active, lengths, strict=True))
        self.lengths = [kept.get(i, 0) for i in range(len(self.rows))]
        for table, length in zip(self.tables, self.lengths, strict=True):
            self.free += table[length:]
            del table[length:]
