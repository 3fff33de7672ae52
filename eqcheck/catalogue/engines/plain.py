"""Engines without a cache: one row at a time, the whole batch again each round, and batch expansion."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from eqcheck.catalogue.engines.engine import RoundEngine, Rows, left_padded


class OneRow(RoundEngine):
    """One row at a time, one token at a time: no cache, no draft, no padding."""

    def decode(self) -> Rows:
        for row, start in zip(self.rows, self.starts, strict=True):
            while len(row) < start + self.request.max_new_tokens:
                row.append(int(self.target(input_ids=torch.tensor([row]), use_cache=False).logits[0, -1].argmax()))
                if row[-1] in self.eos:
                    break
        return self.outputs()


class Uncached(RoundEngine):
    """The whole batch, left padded, is fed again each round."""

    def verify(self, drafts: Rows) -> Rows:
        return self.answers(self.feed(list(zip(self.active, drafts, strict=True))), drafts)

    def feed(self, rows: Sequence[tuple[int, list[int]]]) -> list[torch.Tensor]:
        """Logits ``[tokens, vocab]`` of each pair of a row's index and what follows the row."""
        ids, real = self.padded(rows)
        rank = real.long().cumsum(1) - 1
        logits = self.target(
            input_ids=ids,
            attention_mask=self.visible(ids, real).long(),
            position_ids=self.positions(rank, rank >= 0),
            use_cache=False,
        ).logits
        return [row[mask] for row, mask in zip(logits, real, strict=True)]

    def padded(self, rows: Sequence[tuple[int, list[int]]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids and which of them are real, ``[batch, width]`` each."""
        return left_padded([self.rows[i] + proposed for i, proposed in rows], self.request.pad_token_id)

    def visible(self, ids: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        """Which tokens are attended, ``[batch, width]``."""
        return real


class Expanded(Uncached):
    """Batch expansion: every beginning of a row's drafts is a row of its own in one forward, asked for one token."""

    def verify(self, drafts: Rows) -> Rows:
        expanded = [
            (i, proposed[:count])
            for i, proposed in zip(self.active, drafts, strict=True)
            for count in range(len(proposed) + 1)
        ]
        answers = [int(row[-1].argmax()) for row in self.feed(expanded)]
        sizes = [len(proposed) + 1 for proposed in drafts]
        return [answers[sum(sizes[:place]) : sum(sizes[: place + 1])] for place in range(len(sizes))]
