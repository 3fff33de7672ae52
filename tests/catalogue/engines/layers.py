"""Engines for models whose layers do not all see the same: windows among full layers, convolutions with states.

Each row has a cache of its own, as in `PerRow`. `Windowed` makes the mask of each type of layer itself, over a layer
that keeps little more than its window. `Rerun` goes back to the states of before a round and feeds the accepted tokens
again. `Checkpointed` puts states aside at the ends of blocks of a prompt, for rows that begin alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from eqcheck.catalogue.engines.engine import KeysValues, additive, logits_of, own_copy, pieces
from eqcheck.catalogue.engines.rows import PerRow, Restored
from eqcheck.contract.cache_names import cache_argument

FULL, SLIDING = "full_attention", "sliding_attention"


class SlidingLayer(DynamicLayer):  # type: ignore[misc]
    """K and V of the newest ``size`` tokens, of ``length`` that were written."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.length = size, 0

    def update(self, keys: torch.Tensor, values: torch.Tensor, *args: Any, **kwargs: Any) -> KeysValues:
        whole: KeysValues = super().update(keys, values)
        self.keys, self.values = (part[:, :, -self.size :] for part in whole)
        self.length += keys.shape[2]
        return whole

    def get_seq_length(self, *args: Any) -> int:
        return self.length

    def crop(self, amount: int) -> None:
        """Drop the newest ``-amount`` tokens."""
        self.keys, self.values = self.keys[:, :, :amount], self.values[:, :, :amount]
        self.length += amount


class Windowed(PerRow):
    """One cache per row, with room for drafts behind a window, and a 4-D mask for each type of layer."""

    store: ClassVar[type[SlidingLayer]] = SlidingLayer

    def new_cache(self) -> Any:
        cache = DynamicCache()
        for kind in self.target.config.layer_types:
            cache.layers.append(self.store(self.room()) if kind == SLIDING else DynamicLayer())
        return cache

    def room(self) -> int:
        """Return how many tokens a layer with a window keeps: as many as stay in it when all drafts are rejected."""
        return int(self.target.config.sliding_window) + self.request.num_draft_tokens

    def feed(self, i: int, block: list[int]) -> torch.Tensor:
        start, cache = self.lengths[i], self.caches[i]
        queries = torch.arange(start, start + len(block))[:, None]
        masks = {}
        for kind, layer in zip(self.target.config.layer_types, cache.layers, strict=True):
            seen = self.sees(kind, queries, self.held(layer, start, len(block)))
            masks[kind] = additive(seen[None], self.target)
        self.lengths[i] += len(block)
        logits: torch.Tensor = self.target(
            input_ids=torch.tensor([block]),
            attention_mask=masks,
            position_ids=queries.T,
            use_cache=True,
            **cache_argument(self.target, cache),
        ).logits
        return logits[0]

    def held(self, layer: Any, start: int, count: int) -> torch.Tensor:
        """The positions of the tokens that a layer will hold, the ``count`` that are fed among them."""
        kept = layer.keys.shape[2] if layer.is_initialized else 0
        return torch.arange(start - kept, start + count)

    def sees(self, kind: str, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Return which keys each query sees in a type of layer, ``[queries, keys]``."""
        seen = keys <= queries
        return seen & (keys > queries - self.target.config.sliding_window) if kind == SLIDING else seen


class Rerun(Restored):
    """Work like `Restored`, but the accepted tokens run through the copy at once, in a call of their own.

    ``tokens[i]`` are those of a row's last round: its newest token and then drafts.
    """

    def begin(self) -> None:
        super().begin()
        self.tokens: dict[int, list[int]] = {}
        for i in self.waiting:
            self.read_prompt(i)

    def read_prompt(self, i: int) -> None:
        """Feed a row's prompt but for its newest token."""
        for piece in pieces(self.rows[i][self.lengths[i] : -1], self.request.prefill_chunk):
            if piece:
                self.step(i, piece)

    def feed(self, i: int, block: list[int]) -> torch.Tensor:
        self.tokens[i] = block
        return self.step(i, block)

    def step(self, i: int, tokens: list[int]) -> torch.Tensor:
        """Feed tokens to the states of a row."""
        return super().feed(i, tokens)

    def roll_back(self, i: int, surplus: int) -> None:
        self.lengths[i] -= surplus
        if surplus:
            self.restore(i, len(self.tokens[i]) - surplus)

    def restore(self, i: int, kept: int) -> None:
        """Give a row the states that it had after so many of the tokens of its round."""
        self.caches[i] = self.after_first(i, kept)

    def after_first(self, i: int, kept: int) -> Any:
        """A cache with the states that a row has after so many of the tokens of its round."""
        before, start = self.copies[i]
        cache, at = own_copy(before), torch.arange(start, start + kept)[None]
        if kept:
            logits_of(self.target, torch.tensor([self.tokens[i][:kept]]), None, self.positions(at, at >= 0), cache)
        return cache


class Checkpointed(Rerun):
    """Work like `Rerun`; states at the ends of blocks of 2 tokens are found again by their text, for later prompts."""

    size = 2

    def begin(self) -> None:
        self.known: dict[tuple[int, ...], Any] = {}
        super().begin()

    def read_prompt(self, i: int) -> None:
        text = self.rows[i][:-1]
        self.adopt(i, text)
        for end in (*range(self.lengths[i] + self.size, len(text), self.size), len(text)):
            self.advance(i, text, end)

    def adopt(self, i: int, text: Sequence[int]) -> None:
        """Let a row begin with the states of the longest beginning of its text that is known."""
        ends = range(len(text) // self.size * self.size, 0, -self.size)
        end = next((end for end in ends if tuple(text[:end]) in self.known), 0)
        if end:
            self.caches[i].layers = [self.hit(text[:end], number) for number in range(2)]
            self.lengths[i] = end

    def hit(self, text: Sequence[int], number: int) -> Any:
        """A copy of the state that a layer has behind a text."""
        return own_copy(self.known[tuple(text)].layers[number])

    def advance(self, i: int, text: Sequence[int], end: int) -> None:
        """Feed the text of a row up to there; where a block ends, the states are put aside."""
        if end > self.lengths[i]:
            self.step(i, list(text[self.lengths[i] : end]))
        if end and not end % self.size:
            self.known.setdefault(tuple(text[:end]), own_copy(self.caches[i]))
