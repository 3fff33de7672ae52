"""Engines without padding: in a call all rows lie behind one another in one, as in kernels for ragged batches.

`Packed` gathers rejected tokens out of its cache; `Pooled` has a pool of slots, and reads those of its rows by tables.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import DynamicCache

from eqcheck.catalogue.engines.engine import RoundEngine, Rows, additive, logits_of


class Packed(RoundEngine):
    """All rows in one row of the call, kept apart by a 4-D mask; rejected tokens are gathered out of the cache."""

    def begin(self) -> None:
        self.cache = DynamicCache()
        self.held: list[tuple[int, int]] = []  # the row and position of each cached token
        self.lengths = [0] * len(self.rows)

    def verify(self, drafts: Rows) -> Rows:
        fed: list[tuple[int, int]] = []
        tokens: list[int] = []
        for i, proposed in zip(self.active, drafts, strict=True):
            text = self.rows[i] + proposed
            fed += [(i, position) for position in range(self.lengths[i], len(text))]
            tokens += text[self.lengths[i] :]
        self.held += fed
        visible = [[self.sees(i, at, row, position) for row, position in self.held] for i, at in fed]
        mask, positions = additive(torch.tensor([visible]), self.target), torch.tensor([self.numbered(fed)])
        logits = logits_of(self.target, torch.tensor([tokens]), mask, positions, self.cache)[0]
        return self.answers([logits[[row == i for row, _ in fed]] for i in self.active], drafts)

    def numbered(self, fed: list[tuple[int, int]]) -> list[int]:
        """The position ids of the rows and positions fed."""
        return [position for _, position in fed]

    def sees(self, i: int, at: int, row: int, position: int) -> bool:
        """Return whether the query at a position of request ``i`` sees what is held of a ``row``."""
        return row == i and position <= at

    def after(self, going: Sequence[int], lengths: Sequence[int]) -> None:
        self.lengths = [0] * len(self.rows)
        for i, length in zip(self.active, lengths, strict=True):
            self.lengths[i] = length
        kept = [slot for slot, (i, position) in enumerate(self.held) if self.stays(i, position)]
        self.held = [self.held[slot] for slot in kept]
        for layer in self.cache.layers:
            layer.keys, layer.values = self.handed(layer.keys[:, :, kept], layer.values[:, :, kept])

    def stays(self, i: int, position: int) -> bool:
        """Return whether the cache keeps what it holds of a position of request ``i``."""
        return position < self.lengths[i]


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
