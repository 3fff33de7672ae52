"""Builds without a cache: one row at a time, the whole batch again each round, and batch expansion."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from eqcheck.catalogue.engine import Engine, Rows, left_padded, placed


class OneRow(Engine):
    """One row at a time, one token at a time: no cache, no draft, no padding."""

    def decode(self) -> Rows:
        for row, start in zip(self.rows, self.starts, strict=True):
            while len(row) < start + self.request.max_new_tokens:
                row.append(int(self.target(input_ids=torch.tensor([row]), use_cache=False).logits[0, -1].argmax()))
                if row[-1] in self.eos:
                    break
        return self.outputs()


class Uncached(Engine):
    """The whole batch, left padded, is fed again each round."""

    def begin(self) -> None:
        self.inner_pads = [0] * len(self.rows)  # between a row's prompt and its new tokens; only a fault leaves any

    def verify(self, drafts: Rows) -> Rows:
        return self.answers(self.feed(list(zip(self.active, drafts, strict=True))), drafts)

    def after(self, going: Sequence[int], lengths: Sequence[int]) -> None:
        if self.on("M11-pads-accumulate"):
            most = max(map(len, self.rows))
            self.inner_pads = [most - len(row) for row in self.rows]

    def feed(self, rows: Sequence[tuple[int, list[int]]]) -> list[torch.Tensor]:
        """Logits ``[tokens, vocab]`` of each pair of a row's index and what follows the row."""
        pad = self.request.pad_token_id
        texts, inner = [], []
        for i, proposed in rows:
            start = self.starts[i]
            texts.append(
                [*self.rows[i][self.fed_from(i) : start], *[pad] * self.inner_pads[i], *self.rows[i][start:], *proposed]
            )
            inner.append(slice(start - len(texts[-1]), start - len(texts[-1]) + self.inner_pads[i]))
        ids, visible = left_padded(texts, pad)
        real = visible.clone()
        for mask, hole in zip(real, inner, strict=True):
            mask[hole] = False
        rank = real.long().cumsum(1) - 1
        positions = placed(rank, rank >= 0, self.target, self.faults)
        if self.on("M1-no-mask"):
            visible = torch.ones_like(real)
        if self.on("M3-mask-by-token"):
            visible = ids != pad
        if self.on("X3-mask-of-first-row"):
            visible = real & real[:1]
        if self.on("P3-row-0-positions"):
            positions = positions[:1]
        if self.on("P8-clamped-at-one"):
            positions = positions.clamp(min=1)
        logits = self.target(
            input_ids=ids,
            attention_mask=visible.long(),
            position_ids=None if self.on("P2-no-positions") else positions,
            use_cache=False,
        ).logits
        return [row[mask] for row, mask in zip(logits, real, strict=True)]


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
        windows = [answers[sum(sizes[:slot]) : sum(sizes[: slot + 1])] for slot in range(len(sizes))]
        if self.on("T14-short-window-shifts-rows"):
            shifted = [min(sizes[:slot], default=size) < size for slot, size in enumerate(sizes)]
            windows = [(windows * 2)[slot + shift] for slot, shift in enumerate(shifted)]
        return [window + window[-1:] * (size - len(window)) for window, size in zip(windows, sizes, strict=True)]
