"""Engines with one cache per row: `PerRow` crops what was rejected, `Restored` goes back to a copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache

from eqcheck.catalogue.engines.engine import RoundEngine, Rows, own_copy, pieces, prefix_for


class PerRow(RoundEngine):
    """One ordinary cache per row, cropped after each round; no padding and no mask."""

    def begin(self) -> None:
        self.caches = [self.new_cache() for _ in self.rows]
        self.lengths = [self.request.prefix_length] * len(self.rows)
        self.waiting, self.active = self.active, []

    def admit(self) -> bool:
        while (i := self.arriving()) is not None:
            self.waiting.remove(i)
            self.active.append(i)
        return bool(self.active)

    def new_cache(self) -> Any:
        return prefix_for(self.request.target_cache, 1) if self.request.prefix_length else DynamicCache()

    def verify(self, drafts: Rows) -> Rows:
        logits = []
        for i, proposed in zip(self.active, drafts, strict=True):
            *prompt, block = pieces(self.rows[i][self.lengths[i] :], self.request.prefill_chunk)
            for piece in prompt:
                self.prefill(i, piece)
            self.before_drafts(i)
            logits.append(self.feed(i, block + proposed))
        return self.answers(logits, drafts)

    def prefill(self, i: int, piece: list[int]) -> None:
        """Feed a piece of a row's prompt, but the last."""
        self.feed(i, piece)

    def feed(self, i: int, block: list[int]) -> torch.Tensor:
        """Logits ``[len(block), vocab]`` of a row's block, which goes into the row's cache."""
        at = self.numbered(i, len(block))
        self.lengths[i] += len(block)
        self.calls += 1
        logits: torch.Tensor = self.target(
            input_ids=torch.tensor([block]),
            position_ids=self.positions(at, at >= 0),
            past_key_values=self.caches[i],
            use_cache=True,
        ).logits
        return logits[0]

    def numbered(self, i: int, count: int) -> torch.Tensor:
        """The positions ``[1, count]`` of the next tokens of a row."""
        return torch.arange(self.lengths[i], self.lengths[i] + count)[None]

    def before_drafts(self, i: int) -> None:
        """Called when all but the last piece of a row's block is in its cache."""

    def after(self, going: Sequence[int], lengths: Sequence[int]) -> None:
        for i, length in zip(self.active, lengths, strict=True):
            self.roll_back(i, self.lengths[i] - length)

    def roll_back(self, i: int, surplus: int) -> None:
        """Take the newest ``surplus`` tokens out of a row's cache."""
        self.lengths[i] -= surplus
        if surplus:
            self.caches[i].crop(-surplus)  # a negative count means the same in every version


class Restored(PerRow):
    """One cache per row, copied before each round: after a rejection the copy takes its place and tokens are fed again.

    Nothing is ever cropped, so this is right also for models whose state cannot be.
    """

    def begin(self) -> None:
        super().begin()
        self.copies: dict[int, tuple[Any, int]] = {}

    def new_cache(self) -> Any:
        prefix = self.request.prefix_length
        return own_copy(self.request.target_cache) if prefix else DynamicCache(config=self.target.config)

    def before_drafts(self, i: int) -> None:
        self.copies[i] = own_copy(self.caches[i]), self.lengths[i]

    def roll_back(self, i: int, surplus: int) -> None:
        if surplus:
            self.caches[i], self.lengths[i] = self.copies[i]
