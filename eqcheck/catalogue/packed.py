"""A build without padding: all rows lie behind one another in one row of the call, as in kernels for ragged batches."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import DynamicCache

from eqcheck.catalogue.engine import Engine, Rows, additive


class Packed(Engine):
    """All rows in one row of the call, kept apart by a 4-D mask; rejected tokens are gathered out of the cache."""

    def begin(self) -> None:
        self.cache = DynamicCache()
        self.held: list[tuple[int, int]] = []  # the row and position of each cached token

    def verify(self, drafts: Rows) -> Rows:
        fed: list[tuple[int, int]] = []
        tokens: list[int] = []
        for i, proposed in zip(self.active, drafts, strict=True):
            text = self.rows[i] + proposed
            start = sum(row == i for row, _ in self.held)
            fed += [(i, position) for position in range(start, len(text))]
            tokens += text[start:]
        self.held += fed
        visible = [[row == i and position <= at for row, position in self.held] for i, at in fed]
        logits = self.target(
            input_ids=torch.tensor([tokens]),
            attention_mask=additive(torch.tensor([visible]), self.target),
            position_ids=torch.tensor([[position for _, position in fed]]),
            past_key_values=self.cache,
            use_cache=True,
        ).logits[0]
        answers: dict[int, list[int]] = {i: [] for i in self.active}
        for (i, _), token in zip(fed, logits.argmax(-1).tolist(), strict=True):
            answers[i].append(token)
        return [answers[i][-len(proposed) - 1 :] for i, proposed in zip(self.active, drafts, strict=True)]

    def after(self, going: Sequence[int], lengths: Sequence[int]) -> None:
        length = dict(zip(self.active, lengths, strict=True))
        kept = [slot for slot, (i, position) in enumerate(self.held) if position < length.get(i, 0)]
        self.held = [self.held[slot] for slot in kept]
        for layer in self.cache.layers:
            layer.keys, layer.values = layer.keys[:, :, kept], layer.values[:, :, kept]
