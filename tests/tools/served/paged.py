"""The build with paged blocks: prefixes are cached, blocks behind a window are given back, states are computed anew.

Keys and values lie in blocks of a pool, by a table of each row. Windowed layers have tables of their own. A state is
that of the last committed token: the inputs of a block are kept, and the accepted ones run through the layer again. At
the end of each block of committed tokens the states are put aside, for a later row that begins alike.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from served.engine import Engine
from served.memory import EMPTY, FULL, STATE, WINDOW, Feed, Memory, Row, State

BLOCK = 8
Run = Callable[[State, Tensor], tuple[Tensor, State]]
Prefix = tuple[int, ...]


class Pool:
    """The blocks of all layers of a kind. One that nobody uses keeps its content until it is given out again."""

    def __init__(self, blocks: int) -> None:
        self.used = [0] * blocks
        self.idle: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, blocks))  # block 0 is nobody's
        self.cached: dict[Prefix, int] = {}  # by the text that ends with the block
        self.text: dict[int, Prefix] = {}

    def take(self) -> int:
        """A block to write to: that which has been idle longest."""
        block, _ = self.idle.popitem(last=False)
        if self.cached.get(self.text.get(block, ()), 0) == block:
            del self.cached[self.text[block]]
        self.text.pop(block, None)
        self.used[block] = 1
        return block

    def share(self, block: int) -> int:
        """A block that is cached, for another row."""
        self.idle.pop(block, None)
        self.used[block] += 1
        return block

    def give_back(self, block: int) -> None:
        """A row needs a block no longer."""
        self.used[block] -= 1
        if not self.used[block]:
            self.idle[block] = None

    def keep(self, text: Prefix, block: int) -> None:
        """Let later rows find a block."""
        if text not in self.cached and block:
            self.cached[text] = block
            self.text[block] = text


class Pages(Memory):
    """Keys and values in blocks, prefixes cached; the state of each row, and states at the ends of cached blocks."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.attention = [layer for layer, kind in enumerate(self.kinds) if kind != STATE]
        self.stateful = [layer for layer, kind in enumerate(self.kinds) if kind == STATE]
        self.of_row = -(-(self.longest + self.block) // BLOCK)
        blocks = {FULL: self.slots * self.of_row + 1 + self.of_row, WINDOW: self.slots * self.in_window() + 1}
        self.pools = {kind: Pool(blocks[kind]) for kind in sorted({self.kinds[layer] for layer in self.attention})}
        shapes = {layer: (blocks[self.kinds[layer]], BLOCK, self.heads, self.width) for layer in self.attention}
        self.keys = {layer: torch.zeros(shape, dtype=self.dtype) for layer, shape in shapes.items()}
        self.values = {layer: torch.zeros(shape, dtype=self.dtype) for layer, shape in shapes.items()}
        self.tables: dict[tuple[str, int], list[int]] = {}  # by kind and number of row
        self.states: dict[tuple[int, int], State] = {}  # by layer and number of row
        self.inputs: dict[tuple[int, int], tuple[Run, Tensor]] = {}
        self.checkpoints: dict[Prefix, dict[int, State]] = {}  # by the text after which the states are these

    def in_window(self) -> int:
        """The most blocks that a window and a step touch."""
        return -(-(self.window + self.block) // BLOCK) + 1

    def open(self, row: Row) -> int:
        count = self.hit(row)
        self.observed_hit = count
        for kind, pool in self.pools.items():
            live = self.live(kind, count)
            shared = [pool.cached[self.prefix(row, n)] if n >= live else 0 for n in range(count // BLOCK)]
            self.tables[kind, row.number] = [pool.share(block) if block else 0 for block in shared]
        for layer in self.stateful:
            self.states[layer, row.number] = self.at_hit(layer, row, count)
        return count

    def hit(self, row: Row) -> int:
        """How many tokens of a prompt are cached, in whole blocks, the last token left out."""
        for count in range((len(row.text) - 1) // BLOCK * BLOCK, 0, -BLOCK):
            if self.complete(row, count):
                return count
        return 0

    def complete(self, row: Row, count: int) -> bool:
        """Whether everything is cached for a row to go on after so many tokens."""
        if self.stateful and tuple(row.text[:count]) not in self.checkpoints:
            return False
        return all(
            self.prefix(row, n) in pool.cached
            for kind, pool in self.pools.items()
            for n in range(self.live(kind, count), count // BLOCK)
        )

    def prefix(self, row: Row, block: int) -> Prefix:
        """The text that ends with a block of a row."""
        return tuple(row.text[: (block + 1) * BLOCK])

    def live(self, kind: str, fed: int) -> int:
        """The first block that a row needs after so many tokens."""
        return max(0, fed - self.window + 1) // BLOCK if kind == WINDOW else 0

    def at_hit(self, layer: int, row: Row, count: int) -> State:
        """The state with which a row begins behind so many cached tokens."""
        return self.checkpoints[tuple(row.text[:count])][layer] if count else EMPTY

    def begin(self, feeds: list[Feed]) -> None:
        super().begin(feeds)
        for kind, pool in self.pools.items():
            for feed in feeds:
                table = self.tables[kind, feed.row.number]
                while len(table) * BLOCK < feed.row.fed + len(feed.tokens):
                    table.append(pool.take())

    def places(self, feed: Feed, layer: int) -> Tensor:
        """Where the tokens of a row are written, as slots of the pool."""
        table = torch.tensor(self.tables[self.kinds[layer], feed.row.number])
        positions = torch.tensor(feed.positions)
        return table[positions // BLOCK] * BLOCK + positions % BLOCK

    def update(self, keys: Tensor, values: Tensor, layer: int, *given: Any, **more: Any) -> tuple[Tensor, Tensor]:
        for number, feed in enumerate(self.feeds):
            places = self.places(feed, layer)
            for pool, new in ((self.keys[layer], keys), (self.values[layer], values)):
                pool.view(-1, self.heads, self.width)[places] = new[number, :, : len(places)].transpose(0, 1)
        tables = torch.tensor([self.looked_at(feed, layer) for feed in self.feeds])
        gathered = [pool[tables].flatten(1, 2).transpose(1, 2) for pool in (self.keys[layer], self.values[layer])]
        return gathered[0], gathered[1]

    def looked_at(self, feed: Feed, layer: int) -> list[int]:
        """The blocks of a row, in their order, and nobody's behind them."""
        table = self.tables[self.kinds[layer], feed.row.number]
        return table + [0] * (self.of_row - len(table))

    def held(self, feed: Feed, layer: int) -> Tensor:
        blocks = torch.tensor(self.looked_at(feed, layer)).repeat_interleave(BLOCK)
        return torch.where(blocks > 0, torch.arange(len(blocks)), -1)

    def advance(self, layer: int, feed: Feed, run: Run, hidden: Tensor) -> Tensor:
        key = layer, feed.row.number
        self.inputs[key] = run, hidden
        return run(self.states[key], hidden)[0]

    def commit(self, feed: Feed, kept: int) -> None:
        row, fed = feed.row, feed.row.fed
        ends = [end for end in range(fed + 1, fed + kept + 1) if end % BLOCK == 0 or end == fed + kept]
        for layer in self.stateful:
            for begin, end in zip([fed, *ends], ends, strict=False):
                self.run_again(layer, row, begin - fed, end - fed)
                if self.put_aside(row, end):
                    self.checkpoints.setdefault(self.text(feed, end), {})[layer] = self.states[layer, row.number]
        for kind, pool in self.pools.items():
            table = self.tables[kind, row.number]
            for block in range(fed // BLOCK, self.whole(feed, kept)):
                pool.keep(self.text(feed, (block + 1) * BLOCK), table[block])
            self.free(kind, feed, kept)

    def text(self, feed: Feed, end: int) -> Prefix:
        """The text that a row was fed, to an end in this step or before."""
        return (*feed.row.text[: feed.row.fed], *feed.tokens)[:end]

    def whole(self, feed: Feed, kept: int) -> int:
        """How many blocks of a row are full after a step."""
        return (feed.row.fed + kept) // BLOCK

    def put_aside(self, row: Row, end: int) -> bool:
        """Whether states are put aside after so many tokens."""
        return end % BLOCK == 0

    def run_again(self, layer: int, row: Row, begin: int, end: int) -> None:
        """Run committed tokens of the step through a layer with a state."""
        run, hidden = self.inputs[layer, row.number]
        self.states[layer, row.number] = run(self.states[layer, row.number], hidden[:, begin:end])[1]

    def free(self, kind: str, feed: Feed, kept: int) -> None:
        """Give back the blocks behind the window of a row."""
        table = self.tables[kind, feed.row.number]
        for block in range(min(self.live(kind, feed.row.fed + kept), len(table))):
            if table[block]:
                self.pools[kind].give_back(table[block])
                table[block] = 0

    def close(self, row: Row, running: list[Row]) -> None:
        for kind, pool in self.pools.items():
            for block in reversed(self.tables.pop((kind, row.number))):
                if block:
                    pool.give_back(block)
        for layer in self.stateful:
            del self.states[layer, row.number], self.inputs[layer, row.number]


class PagedEngine(Engine):
    """A prompt is fed by itself, before drafts are verified."""

    memory = Pages
    chunk = 20

    def stepping(self, running: list[Row]) -> list[Row]:
        fresh = [row for row in running if row.fed < row.start]
        return fresh[:1] or running
