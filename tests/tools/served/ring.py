"""The build with a ring for each row: windowed layers keep a window and a block, states are kept for each column.

A row writes where its cursor stands, and a rollback moves the cursor back. A row that leaves makes room for the last
one, so that slots have no holes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from served.engine import Engine
from served.memory import EMPTY, STATE, WINDOW, Feed, Memory, Row, State


class Rings(Memory):
    """Keys and values in rings of each slot, and a snapshot of each state after each token of a block."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.groups = [layer for layer, kind in enumerate(self.kinds) if kind != STATE]
        self.stateful = [layer for layer, kind in enumerate(self.kinds) if kind == STATE]
        shapes = {layer: (self.slots, self.heads, self.size(layer), self.width) for layer in self.groups}
        self.keys = {layer: torch.zeros(shape, dtype=self.dtype) for layer, shape in shapes.items()}
        self.values = {layer: torch.zeros(shape, dtype=self.dtype) for layer, shape in shapes.items()}
        self.positions = {layer: torch.full((self.slots, self.size(layer)), -1) for layer in self.groups}
        self.cursors = {layer: [0] * self.slots for layer in self.groups}
        self.states = {layer: [EMPTY] * self.slots for layer in self.stateful}
        self.columns: dict[int, dict[int, dict[int, State]]] = {layer: {} for layer in self.stateful}

    def size(self, layer: int) -> int:
        """The slots of a ring."""
        return self.window + self.block if self.kinds[layer] == WINDOW else 2 * self.longest

    def open(self, row: Row) -> int:
        for layer in self.groups:
            self.positions[layer][row.slot] = -1
            self.cursors[layer][row.slot] = 0
        for layer in self.stateful:
            self.states[layer][row.slot] = EMPTY
        return 0

    def begin(self, feeds: list[Feed]) -> None:
        super().begin(feeds)
        for layer in self.groups:
            for feed in feeds:
                self.positions[layer][feed.row.slot, self.places(feed, layer)] = self.queries(feed, layer)

    def places(self, feed: Feed, layer: int) -> Tensor:
        """The places in the ring that the tokens of a row are written to."""
        return (self.cursors[layer][feed.row.slot] + torch.arange(len(feed.tokens))) % self.size(layer)

    def update(self, keys: Tensor, values: Tensor, layer: int, *given: Any, **more: Any) -> tuple[Tensor, Tensor]:
        for number, feed in enumerate(self.feeds):
            places, count = self.places(feed, layer), len(feed.tokens)
            self.keys[layer][feed.row.slot][:, places] = keys[number, :, :count]
            self.values[layer][feed.row.slot][:, places] = values[number, :, :count]
        slots = [feed.row.slot for feed in self.feeds]
        return self.keys[layer][slots], self.values[layer][slots]

    def held(self, feed: Feed, layer: int) -> Tensor:
        return self.positions[layer][feed.row.slot]

    def advance(self, layer: int, feed: Feed, run: Callable[..., Any], hidden: Tensor) -> Tensor:
        state = self.before(layer, feed)
        columns = self.columns[layer][feed.row.slot] = {0: state}
        step = 1 if feed.drafts else len(feed.tokens)  # of a prompt, nothing is taken back
        outputs = []
        for end in range(step, len(feed.tokens) + 1, step):
            output, state = run(state, hidden[:, end - step : end])
            columns[end] = state
            outputs.append(output)
        return torch.cat(outputs, 1)

    def before(self, layer: int, feed: Feed) -> State:
        """The state in which the tokens of a row find a layer."""
        return self.states[layer][feed.row.slot]

    def commit(self, feed: Feed, kept: int) -> None:
        for layer in self.groups:
            self.roll_back(layer, feed, kept)
        for layer in self.stateful:
            self.states[layer][feed.row.slot] = self.restored(layer, feed, kept)

    def roll_back(self, layer: int, feed: Feed, kept: int) -> None:
        """Drop what is not kept from a ring."""
        self.positions[layer][feed.row.slot, self.places(feed, layer)[kept:]] = -1
        self.cursors[layer][feed.row.slot] += kept

    def restored(self, layer: int, feed: Feed, kept: int) -> State:
        """The state after the tokens that are kept."""
        return self.columns[layer][feed.row.slot][kept]

    def close(self, row: Row, running: list[Row]) -> None:
        last = max(running, key=lambda one: one.slot, default=None)
        if last is not None and last.slot > row.slot:
            for layer in self.groups:
                self.move(layer, last.slot, row.slot)
            for layer in self.stateful:
                self.move_state(layer, last.slot, row.slot)
            last.slot = row.slot

    def move(self, layer: int, source: int, goal: int) -> None:
        """Copy the ring of a slot into another slot."""
        for rings in (self.keys, self.values, self.positions):
            rings[layer][goal] = rings[layer][source]
        self.cursors[layer][goal] = self.cursors[layer][source]

    def move_state(self, layer: int, source: int, goal: int) -> None:
        """Copy the state of a slot into another slot."""
        self.states[layer][goal] = self.states[layer][source]


class RingEngine(Engine):
    """Prompts and drafts share steps."""

    memory = Rings
