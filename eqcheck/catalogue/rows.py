"""Builds with one cache per row: `PerRow` crops what was rejected, `Restored` goes back to a copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache

from eqcheck.catalogue.engine import Engine, Rows, own_copy, pieces, placed, prefix_for
from eqcheck.catalogue.handling import handled


class PerRow(Engine):
    """One ordinary cache per row, cropped after each round; no padding and no mask."""

    def begin(self) -> None:
        prefix = self.request.prefix_length
        self.caches = [self.new_cache() for _ in self.rows]
        if self.on("K23-prefix-not-copied"):
            self.caches = self.caches[:1] * len(self.rows)
        self.lengths = [max(prefix, self.fed_from(i)) for i in range(len(self.rows))]
        self.fed = list(self.lengths)
        for i in self.active if self.on("K25-rows-grow-out-of-one-cache") else ():
            if (other := self.grows_out_of(i)) is not None:
                self.caches[i] = self.caches[other]
                self.lengths[i] = self.fed[i] = self.starts[other]
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
                if self.on("K14-first-token-skipped") and not self.lengths[i]:
                    piece = piece[1:]
                    self.lengths[i] = self.fed[i] = 1
                if piece:
                    self.feed(i, piece)
            self.before_drafts(i)
            logits.append(self.feed(i, block + proposed))
        return self.answers(logits, drafts)

    def feed(self, i: int, block: list[int]) -> torch.Tensor:
        """Logits ``[len(block), vocab]`` of a row's block, which goes into the row's cache."""
        cache, start = self.caches[i], self.lengths[i]
        self.calls += 1
        if self.on("K7-caches-exchanged") and start:
            cache = self.caches[(i + 1) % len(self.caches)]
        if self.on("P5-advance-by-k"):
            start = self.fed[i]
        self.lengths[i], self.fed[i] = self.lengths[i] + len(block), self.fed[i] + len(block)
        border = self.on("K4-chunk-border-twice") and start < self.starts[i]
        if start and (border or self.on("K4-last-token-twice")):
            block, start = [self.rows[i][start - 1], *block], start - 1
        positions = torch.arange(start, start + len(block))[None]
        logits: torch.Tensor = self.target(
            input_ids=torch.tensor([block]),
            position_ids=placed(positions, positions >= 0, self.target, self.faults),
            past_key_values=cache,
            use_cache=True,
        ).logits
        return logits[0]

    def before_drafts(self, i: int) -> None:
        """Called when all but the last piece of a row's block is in its cache."""

    def after(self, going: Sequence[int], lengths: Sequence[int]) -> None:
        for i, length in zip(self.active, lengths, strict=True):
            self.roll_back(i, self.lengths[i] - length)
            for layer in self.caches[i].layers:
                if hasattr(layer, "keys"):  # a recurrent model's has a state instead
                    layer.keys, layer.values = handled(self.faults, layer.keys, layer.values)
            if self.on("K17-layers-exchanged"):
                self.caches[i].layers.reverse()

    def roll_back(self, i: int, surplus: int) -> None:
        """Take the newest ``surplus`` tokens out of a row's cache."""
        self.lengths[i] -= surplus
        if self.on("K3-never-cropped"):
            return
        if self.on("K11-reset-instead-of-rollback") and surplus:
            self.caches[i] = DynamicCache()
            return
        cropped = surplus + 1 if self.on("K2-one-too-many-dropped") else surplus
        if cropped:
            self.caches[i].crop(-cropped)  # a negative count means the same in every version


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
        copied = self.caches[i] if self.on("K8-copy-shares-memory") else own_copy(self.caches[i])
        self.copies[i] = copied, self.lengths[i]

    def roll_back(self, i: int, surplus: int) -> None:
        if self.on("K13-trim-without-effect"):
            super().roll_back(i, surplus)
        elif surplus:
            self.caches[i], self.lengths[i] = self.copies[i]
