"""What a batch engine keeps for a model of transformers: keys and values of attention, and states of other layers.

A `Memory` goes into the model as its cache. The model's modules are wrapped (`wrap`): attention takes its mask from the
memory, layer by layer, and a layer with a state runs each row by itself, from the row's own state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from eqcheck.contract.cache_names import cache_argument, cache_of
from eqcheck.contract.decoders import RowOptions

Forward = Callable[..., Any]
FULL, WINDOW, STATE = "full", "window", "state"
_STATEFUL = ("linear_attn", "mamba", "conv")


@dataclass(frozen=True)
class State:
    """The state of a row in a layer: the last inputs of a convolution, and what is remembered, where there is such."""

    conv: Tensor | None = None
    recurrent: Tensor | None = None


EMPTY = State()


class RowCache:
    """A state as a layer of transformers asks for it; ``state`` is what the layer has made of it."""

    def __init__(self, state: State) -> None:
        self.state = state

    def is_recording_past(self, layer: int) -> bool:
        return True  # else a single token goes another way, which writes into the state

    def get_conv_state(self, layer: int, state_idx: int = 0) -> Tensor | None:
        return self.state.conv

    def get_recurrent_state(self, layer: int, state_idx: int = 0) -> Tensor | None:
        if self.state.recurrent is not None:
            self.state = State(self.state.conv, self.state.recurrent.clone())  # a layer may write into it
        return self.state.recurrent

    def update_conv_state(self, new: Tensor, layer: int, state_idx: int = 0, conv_kernel_size: int = 1) -> Tensor:
        before = self.state.conv if self.state.conv is not None else new.new_zeros(*new.shape[:-1], conv_kernel_size)
        whole = torch.cat([before, new], -1)
        self.state = State(whole[..., -conv_kernel_size:].clone(), self.state.recurrent)
        return whole

    def update_recurrent_state(self, new: Tensor, layer_idx: int, state_idx: int = 0) -> Tensor:
        self.state = State(self.state.conv, new)
        return new


@dataclass
class Row:
    """A request: its prompt and new tokens, and how many of them have been fed; ``slot`` is its place in the batch."""

    number: int
    text: list[int]
    start: int
    options: RowOptions
    slot: int = 0
    fed: int = 0
    ended: bool = False

    @property
    def new(self) -> list[int]:
        return self.text[self.start :]


@dataclass
class Feed:
    """What a row is fed in a step: tokens, the last of which may be ``drafts``."""

    row: Row
    tokens: list[int]
    drafts: list[int] = field(default_factory=list)

    @property
    def positions(self) -> list[int]:
        return list(range(self.row.fed, self.row.fed + len(self.tokens)))


class Memory:
    """A cache for the rows of a batch.

    ``longest`` is the most tokens that a row may have, ``block`` the most that it is fed in a step, and ``verified``
    how many are fed where drafts are verified.
    """

    def __init__(self, model: Any, slots: int, longest: int, block: int, verified: int) -> None:
        config = model.config
        self.window: int = getattr(config, "sliding_window", None) or 0
        self.kinds = [kind(layer, config, number) for number, layer in enumerate(model.model.layers)]
        self.heads: int = config.num_key_value_heads
        self.width: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.dtype, self.slots, self.longest = model.dtype, slots, longest
        self.block, self.verified = max(block, verified), verified
        self.feeds: list[Feed] = []

    # Calls of the engine.

    def open(self, row: Row) -> int:
        """Take a row in; how many tokens of it are there already."""
        raise NotImplementedError

    def begin(self, feeds: list[Feed]) -> None:
        """A step begins, in which these are fed."""
        self.feeds = feeds

    def commit(self, feed: Feed, kept: int) -> None:
        """Keep so many of the tokens that were fed, and drop the others."""
        raise NotImplementedError

    def close(self, row: Row, running: list[Row]) -> None:
        """Let a row go; the others are still ``running``."""

    # Calls of the layers.

    def update(self, keys: Tensor, values: Tensor, layer: int, *given: Any, **more: Any) -> tuple[Tensor, Tensor]:
        """Write what a layer has made of the tokens; returns all that it may look at."""
        raise NotImplementedError

    def mask(self, layer: int) -> Tensor:
        """Whether each query sees each slot: ``[rows, 1, queries, slots]``."""
        seen = [self.visible(feed, layer) for feed in self.feeds]
        queries, slots = max(len(feed.tokens) for feed in self.feeds), seen[0].shape[1]
        whole = torch.ones(len(seen), 1, queries, slots, dtype=torch.bool)  # a pad that sees nothing would be NaN
        for number, one in enumerate(seen):
            whole[number, 0, : len(one)] = one
        return whole

    def visible(self, feed: Feed, layer: int) -> Tensor:
        """Whether each query of a row sees each slot."""
        queries, held = self.queries(feed, layer)[:, None], self.held(feed, layer)[None]
        reach = self.reach(layer)
        seen = (held >= 0) & (held <= queries)
        return seen & (queries - held < reach) if reach else seen

    def queries(self, feed: Feed, layer: int) -> Tensor:
        """The position from which each query looks back."""
        return torch.tensor(feed.positions)

    def held(self, feed: Feed, layer: int) -> Tensor:
        """The position of the token in each slot that a row may look at, or -1."""
        raise NotImplementedError

    def reach(self, layer: int) -> int:
        """How many tokens a query of this layer sees, itself counted; 0 for all."""
        return self.window if self.kinds[layer] == WINDOW else 0

    def recur(self, layer: int, run: Callable[[State, Tensor], tuple[Tensor, State]], hidden: Tensor) -> Tensor:
        """The output of a layer that has a state; ``run`` takes the state of a row and its tokens, and returns both."""
        outputs = torch.zeros_like(hidden)
        for number, feed in enumerate(self.feeds):
            own = self.advance(layer, feed, run, hidden[number : number + 1])
            outputs[number, : own.shape[1]] = own[0]
        return outputs

    def advance(self, layer: int, feed: Feed, run: Callable[..., Any], hidden: Tensor) -> Tensor:
        """Run a row's tokens, padded to those of the longest row, through a layer with a state."""
        raise NotImplementedError

    def get_seq_length(self, layer: int = 0) -> int:
        return 0


def kind(layer: Any, config: Any, number: int) -> str:
    """Of which kind a layer is."""
    if getattr(layer, "self_attn", None) is None:
        return STATE
    if not getattr(config, "sliding_window", None):
        return FULL
    types = getattr(config, "layer_types", None)
    return WINDOW if types is None or types[number] == "sliding_attention" else FULL


def wrap(model: Any) -> None:
    """Let the layers of a model ask a `Memory`, where one is its cache."""
    for number, layer in enumerate(model.model.layers):
        if getattr(layer, "self_attn", None) is not None:
            layer.self_attn.forward = _attention(layer.self_attn.forward, number)
        for name in _STATEFUL:
            if getattr(layer, name, None) is not None:
                module = getattr(layer, name)
                module.forward = _stateful(module.forward, number)


def _attention(forward: Forward, number: int) -> Forward:
    def attend(*given: Any, **more: Any) -> Any:
        if isinstance(memory := cache_of(more), Memory):
            more["attention_mask"] = memory.mask(number)
        return forward(*given, **more)

    return attend


def _stateful(forward: Forward, number: int) -> Forward:
    def run(state: State, hidden: Tensor) -> tuple[Tensor, State]:
        row = RowCache(state)
        return forward(hidden_states=hidden, **cache_argument(forward, row)), row.state

    def recur(*given: Any, **more: Any) -> Any:
        memory = cache_of(more)
        if not isinstance(memory, Memory):
            return forward(*given, **more)
        return memory.recur(number, run, given[0] if given else more["hidden_states"])

    return recur
