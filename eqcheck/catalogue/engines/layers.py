"""Engines for models whose layers do not all see the same: windows among full layers, convolutions with states.

Each row has a cache of its own, as in `PerRow`. `Windowed` makes the mask of each type of layer itself, over a layer
that keeps little more than its window. `Columned` puts the states aside that a model has after each draft token, and
`Checkpointed` those at the ends of blocks of a prompt, for rows that begin alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from eqcheck.catalogue.engines.engine import KeysValues, Rows, additive, own_copy
from eqcheck.catalogue.engines.rows import PerRow

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
        """How many tokens a layer with a window keeps: as many as stay in it when all drafts are rejected."""
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
            past_key_values=cache,
            use_cache=True,
        ).logits
        return logits[0]

    def held(self, layer: Any, start: int, count: int) -> torch.Tensor:
        """The positions of the tokens that a layer will hold, the ``count`` that are fed among them."""
        kept = layer.keys.shape[2] if layer.is_initialized else 0
        return torch.arange(start - kept, start + count)

    def sees(self, kind: str, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Which keys each query sees in a type of layer, ``[queries, keys]``."""
        seen = keys <= queries
        return seen & (keys > queries - self.target.config.sliding_window) if kind == SLIDING else seen


class Columned(PerRow):
    """One cache per row; of the states after each token of a round, those behind the accepted ones are taken back.

    ``aside[i]`` are the states of a row before its newest token, after it, and after each of its drafts.
    """

    def begin(self) -> None:
        super().begin()
        self.aside: dict[int, list[Any]] = {}
        self.drafting: dict[int, int] = {}

    def new_cache(self) -> Any:
        return own_copy(self.request.target_cache) if self.request.prefix_length else DynamicCache()

    def verify(self, drafts: Rows) -> Rows:
        self.drafting = {i: len(proposed) for i, proposed in zip(self.active, drafts, strict=True)}
        return super().verify(drafts)

    def feed(self, i: int, block: list[int]) -> torch.Tensor:
        """Logits of a row's newest token and of its drafts, which are fed one by one behind the rest of its prompt."""
        count = self.drafting[i] + 1
        if len(block) > count:
            self.prefill(i, block[:-count])
        logits, aside = [], [own_copy(self.caches[i])]
        for token in block[-count:]:
            logits.append(self.step(i, [token]))
            aside.append(own_copy(self.caches[i]))
        self.aside[i] = aside
        return torch.cat(logits)

    def prefill(self, i: int, piece: list[int]) -> None:
        self.step(i, piece)

    def step(self, i: int, tokens: list[int]) -> torch.Tensor:
        """Feed tokens to the states of a row."""
        return super().feed(i, tokens)

    def roll_back(self, i: int, surplus: int) -> None:
        self.lengths[i] -= surplus
        if surplus:
            self.restore(i, len(self.aside[i]) - 1 - surplus)

    def restore(self, i: int, column: int) -> None:
        """Give a row the states that it had after so many of the tokens of its round."""
        layers = range(len(self.caches[i].layers))
        self.caches[i].layers = [self.state(i, number, column) for number in layers]

    def state(self, i: int, number: int, column: int) -> Any:
        """The state of a layer, 0 for that of the convolution."""
        return self.aside[i][column].layers[number]


class Checkpointed(Columned):
    """As `Columned`; states at the ends of blocks of 2 tokens are found again by the text, for prompts that follow."""

    size = 2

    def begin(self) -> None:
        super().begin()
        self.known: dict[tuple[int, ...], Any] = {}

    def prefill(self, i: int, piece: list[int]) -> None:
        start = self.lengths[i]
        text = self.rows[i][: start + len(piece)]
        if not start:
            self.adopt(i, text)
        while (at := self.lengths[i]) < len(text):
            self.advance(i, text, min(len(text), (at // self.size + 1) * self.size))

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
        self.step(i, list(text[self.lengths[i] : end]))
        if not end % self.size:
            self.known.setdefault(tuple(text[:end]), own_copy(self.caches[i]))
