"""An engine without padding: in a call all rows lie behind one another in one, as in kernels for ragged batches."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import DynamicCache

from eqcheck.catalogue.engines.engine import RoundEngine, Rows, additive


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
        logits = self.target(
            input_ids=torch.tensor([tokens]),
            attention_mask=additive(torch.tensor([visible]), self.target),
            position_ids=torch.tensor([self.numbered(fed)]),
            past_key_values=self.cache,
            use_cache=True,
        ).logits[0]
        return self.answers([logits[[row == i for row, _ in fed]] for i in self.active], drafts)

    def numbered(self, fed: list[tuple[int, int]]) -> list[int]:
        """The position ids of the rows and positions fed."""
        return [position for _, position in fed]

    def sees(self, i: int, at: int, row: int, position: int) -> bool:
        """Whether the query at a position of request ``i`` sees what is held of a ``row``."""
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
        """Whether the cache keeps what it holds of a position of request ``i``."""
        return position < self.lengths[i]
