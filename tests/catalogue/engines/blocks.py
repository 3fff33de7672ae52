"""Engines over a paged cache, as in those for serving: blocks of slots, and for each row a table of those it holds.

A rollback shortens the row and gives blocks back. The blocks of a common prefix are held by several rows, and one is
copied before a row writes to it. Block 0 is nobody's: rows are shown it where they have no block, and it is hidden.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from eqcheck.catalogue.engines.engine import (
    Handling,
    KeysValues,
    RequestEngine,
    Rows,
    additive,
    causal,
    logits_of,
    pieces,
)


class PagedCache(Handling):
    """K and V of each layer, ``[blocks, size, heads, width]``.

    For the next forward, ``write`` are the slots of the tokens fed, ``[rows, block]`` with -1 for pads, and ``read``
    the slots that each row is shown, ``[rows, places]``; ``length`` is the longest row's.
    """

    def __init__(self, blocks: int, size: int) -> None:
        self.blocks, self.size = blocks, size
        self.layers: dict[int, KeysValues] = {}
        self.write = self.read = torch.zeros((1, 0), dtype=torch.long)
        self.length = 0

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> KeysValues:
        real = self.write >= 0
        shown = []
        for pool, fed in zip(self.pools(layer_idx, keys), (keys, values), strict=True):
            slots = pool.flatten(0, 1)  # a view: what is written to it goes into the pool
            slots[self.write[real]] = self.turned(fed)[real]
            shown.append(slots[self.read].transpose(1, 2))
        return self.handed(shown[0], shown[1])

    def pools(self, layer: int, like: torch.Tensor) -> KeysValues:
        """K and V of a layer, made when first asked for."""
        if layer not in self.layers:
            keys = like.new_zeros((self.blocks, self.size, like.shape[1], like.shape[3]))
            self.layers[layer] = keys, keys.clone()
        return self.layers[layer]

    def copy(self, old: int, new: int) -> None:
        """Copy a block to another."""
        for pools in self.layers.values():
            for pool in pools:
                pool[new] = pool[old]

    def get_seq_length(self, *args: Any) -> int:
        return self.length

    def get_mask_sizes(self, *args: Any) -> tuple[int, int]:
        return self.read.shape[1], 0


class PagedModel(Handling):
    """A causal LM with a paged cache. By request: ``tables`` of blocks, and ``lengths``, its cached tokens."""

    store: ClassVar[type[PagedCache]] = PagedCache

    def __init__(self, model: Any, longest: Sequence[int], size: int, pad: int) -> None:
        """``longest[i]`` is how many tokens request i may come to hold, rejected drafts included."""
        self.model, self.pad = model, pad
        blocks = self.room(longest, size)
        self.cache = self.store(blocks, size)
        self.free = list(range(1, blocks))
        self.holders: Counter[int] = Counter()
        self.tables: list[list[int]] = [[] for _ in longest]
        self.lengths = [0] * len(longest)

    def room(self, longest: Sequence[int], size: int) -> int:
        """Return how many blocks are needed."""
        return 2 + sum(-(-n // size) for n in longest)

    def start_from(self, handed: Any, prefix: int) -> None:
        """Let all requests begin with the blocks of a handed prefix, which are written once."""
        shared = [self._block() for _ in range(0, prefix, self.cache.size)]
        slots = self._slots(shared, prefix)
        for number, layer in enumerate(handed.layers):
            for pool, held in zip(self.cache.pools(number, layer.keys), (layer.keys, layer.values), strict=True):
                pool.flatten(0, 1)[slots] = held[0].transpose(0, 1)
        self.tables = [list(shared) for _ in self.tables]
        self.holders = Counter({block: len(self.tables) for block in shared})
        self.lengths = [prefix] * len(self.tables)

    def _block(self) -> int:
        block = self.free.pop()
        self.holders[block] += 1
        return block

    def adopt(self, i: int, block: int) -> None:
        """Let a request go on with a full block that another one wrote."""
        self.tables[i].append(block)
        self.holders[block] += 1
        self.lengths[i] += self.cache.size

    def reserve(self, i: int, count: int) -> None:
        """Give a request blocks for ``count`` more tokens, and share none of those blocks with another request."""
        table, size, start = self.tables[i], self.cache.size, self.places(i)
        for place in range(start // size, -(-(start + count) // size)):
            if place == len(table):
                table.append(self._block())
            elif self.holders[table[place]] > 1:
                table[place] = self.own(table[place])

    def own(self, block: int) -> int:
        """A copy of a block that other requests hold, too."""
        self.holders[block] -= 1
        copied = self._block()
        self.cache.copy(block, copied)
        return copied

    def places(self, i: int) -> int:
        """Return how many places a request's tokens take."""
        return self.lengths[i]

    def _slots(self, table: Sequence[int], count: int) -> torch.Tensor:
        """The slots of a table's first ``count`` places; of block 0 where the table ends before."""
        place, size = torch.arange(count), self.cache.size
        blocks = torch.tensor([*table, *[0] * (count // size + 1)])
        return blocks[place // size] * size + place % size

    def feed(self, rows: Sequence[int], blocks: Rows) -> list[torch.Tensor]:
        """Feed requests their blocks (ragged, right padded); per row the logits ``[len(block), vocab]``."""
        width, count = max(map(len, blocks)), torch.tensor([len(block) for block in blocks])
        for i, block in zip(rows, blocks, strict=True):
            self.reserve(i, len(block))
        start = torch.tensor([self.places(i) for i in rows])
        self.cache.length = int(start.max())
        reach = self.cache.length + width
        slots = torch.stack([self._slots(self.tables[i], reach) for i in rows])
        real = torch.arange(width) < count[:, None]
        at = start[:, None] + torch.arange(width)
        self.cache.write = slots.gather(1, at).masked_fill(~real, -1)
        self.cache.read = torch.stack([self._slots(table, reach) for table in self.shown(rows)])
        ids = torch.tensor([block + [self.pad] * (width - len(block)) for block in blocks])
        mask, positions = self.visible(at, start + count), self.positions(self.numbered(rows, at), real)
        logits = logits_of(self.model, ids, additive(mask, self.model), positions, self.cache)
        for i, block in zip(rows, blocks, strict=True):
            self.lengths[i] += len(block)
        return [row[: len(block)] for row, block in zip(logits, blocks, strict=True)]

    def shown(self, rows: Sequence[int]) -> list[list[int]]:
        """The tables that are read for these requests."""
        return [self.tables[i] for i in rows]

    def numbered(self, rows: Sequence[int], at: torch.Tensor) -> torch.Tensor:
        """The positions of the tokens at these places of requests, ``[rows, block]``."""
        return at

    def visible(self, at: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        """Return which places of its row each query sees, ``[rows, block, places]``."""
        keys = torch.arange(self.cache.read.shape[1])
        return causal(at[..., None], keys, self.model) & (keys < ends[:, None, None])

    def keep(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
        """Go on with these requests, and the first ``lengths`` cached tokens of each; the others leave."""
        kept = dict(zip(rows, lengths, strict=True))
        for i, table in enumerate(self.tables):
            self.lengths[i] = kept.get(i, 0)
            used = -(-self.places(i) // self.cache.size)
            for block in table[used:]:
                self.holders[block] -= 1
                if not self.holders[block]:
                    self.free.append(block)
            del table[used:]


class PagedEngine(RequestEngine):
    """A paged cache in blocks of 16 slots."""

    size: ClassVar[int] = 16
    memory: ClassVar[type[PagedModel]] = PagedModel
    draft_memory: ClassVar[type[PagedModel]] = PagedModel

    def begin(self) -> None:
        self.verifier = self._start(self.memory, self.target, self.request.target_cache)
        self.drafter = self._start(self.draft_memory, self.draft, self.request.draft_cache)
        for i in self.active:
            self.join(i)

    def _start(self, memory: type[PagedModel], model: Any, handed: Any) -> PagedModel:
        more = self.request.max_new_tokens + self.request.num_draft_tokens + 1
        made = memory(model, [start + more for start in self.starts], self.size, self.request.pad_token_id)
        if self.request.prefix_length:
            made.start_from(handed, self.request.prefix_length)
        return made

    def join(self, i: int) -> None:
        """Feed all but the last piece of a row's prompt."""
        self.prefill_all(i)


class PagedSmall(PagedEngine):
    """A paged cache in blocks of 4 slots, so that most rows have several."""

    size = 4


class Prefixed(PagedEngine):
    """A paged cache whose full blocks are found again by the text up to their end, and shared by later rows."""

    def begin(self) -> None:
        self.known: dict[tuple[int, ...], int] = {}
        super().begin()

    def join(self, i: int) -> None:
        text, memory = self.rows[i][:-1], self.verifier
        ends = [] if memory.lengths[i] else range(self.size, len(text) + 1, self.size)
        for end in ends:
            if (block := self.known.get(self.key(text, end))) is None:
                break
            memory.adopt(i, block)
        for piece in pieces(text[memory.lengths[i] :], self.request.prefill_chunk or len(text)):
            if piece:
                self.prefill(i, piece, 0)
        for end, block in zip(ends, memory.tables[i], strict=False):
            self.known.setdefault(self.key(text, end), block)

    def key(self, text: Sequence[int], end: int) -> tuple[int, ...]:
        """Return the key by which the block that ends there is found."""
        return tuple(text[:end])


class PrefixedSmall(Prefixed):
    """Work like `Prefixed`, in blocks of 8 slots."""

    size = 8
