"""Engines that keep rows apart: without a cache, or with one for each row.

`PerRow` crops rejected tokens, `Restored` goes back to a copy, and the draft of `Staged` has a cheap draft of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from transformers import DynamicCache

from eqcheck.catalogue.engines.engine import RoundEngine, Rows, left_padded, logits_of, own_copy, pieces, prefix_for


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
        """Return which tokens are attended, ``[batch, width]``."""
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
        return logits_of(self.target, torch.tensor([block]), None, self.positions(at, at >= 0), self.caches[i])[0]

    def numbered(self, i: int, count: int) -> torch.Tensor:
        """The positions ``[1, count]`` of the next tokens of a row."""
        return torch.arange(self.lengths[i], self.lengths[i] + count)[None]

    def before_drafts(self, i: int) -> None:
        """Called when all but the last piece of a row's block is in its cache."""

    def after(self, going: Sequence[int], lengths: Sequence[int]) -> None:
        for i, length in zip(self.active, lengths, strict=True):
            self.roll_back(i, self.lengths[i] - length)
            for layer in self.caches[i].layers:
                if hasattr(layer, "keys"):  # a recurrent model's has a state instead
                    layer.keys, layer.values = self.handed(layer.keys, layer.values)

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


class Staged(PerRow):
    """Tokens looked up in the row are verified by the draft, and what it makes of them by the target."""

    def begin(self) -> None:
        super().begin()
        request = replace(self.request, target_cache=self.request.draft_cache)
        self.drafter = PerRow(self.draft, self.draft, request)  # only its caches are used
        self.drafter.begin()

    def propose(self, budget: Sequence[int]) -> Rows:
        return [self._draft(i, count) for i, count in zip(self.active, budget, strict=True)]

    def _draft(self, i: int, count: int) -> list[int]:
        """Return ``count`` draft tokens for a row, with fewer draft calls where the look-up was right."""
        text, start = list(self.rows[i]), len(self.rows[i])
        while len(text) < start + count:
            guess = looked_up(text, start + count - len(text) - 1)
            logits = self.drafter.feed(i, text[self.drafter.lengths[i] :] + guess)
            answers = logits[-len(guess) - 1 :].argmax(-1).tolist()
            agreed = next((n for n, token in enumerate(guess) if token != answers[n]), len(guess))
            self.drafter.roll_back(i, len(guess) - agreed)
            text += answers[: agreed + 1]
        return text[start:]

    def after(self, going: Sequence[int], lengths: Sequence[int]) -> None:
        super().after(going, lengths)
        for i, length in zip(self.active, lengths, strict=True):
            self.drafter.roll_back(i, max(0, self.drafter.lengths[i] - length))


def looked_up(text: list[int], count: int) -> list[int]:
    """The tokens that followed the last token where it came before, else the row's first tokens: at most ``count``.

    >>> looked_up([7, 3, 5, 3], 2), looked_up([7, 3, 5], 2)
    ([5, 3], [7, 3])
    """
    before = [at for at, token in enumerate(text[:-1]) if token == text[-1]]
    start = before[-1] + 1 if before else 0
    return text[start : start + count]
