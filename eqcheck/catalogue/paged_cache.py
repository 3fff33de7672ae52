"""A model with a paged cache: blocks of slots that all rows share, and for each row a table of the blocks it holds.

A rollback shortens the row and gives blocks back. The blocks of a common prefix are held by several rows, and one is
copied before a row writes to it. Block 0 is nobody's: rows are shown it where they have no block, and it is hidden.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from eqcheck.catalogue.engine import Rows, additive, placed
from eqcheck.catalogue.handling import handled

WRITES_SHARED = ("K23-prefix-not-copied", "K25-rows-grow-out-of-one-cache")
Pools = tuple[torch.Tensor, torch.Tensor]


class PagedCache:
    """K and V of each layer, ``[blocks, size, heads, width]``.

    For the next forward, ``write`` are the slots of the tokens fed, ``[rows, block]`` with -1 for pads, and ``read``
    the slots that each row is shown, ``[rows, places]``; ``length`` is the longest row's.
    """

    def __init__(self, blocks: int, size: int, faults: frozenset[str]) -> None:
        self.blocks, self.size, self.faults = blocks, size, faults
        self.layers: dict[int, Pools] = {}
        self.write = self.read = torch.zeros((1, 0), dtype=torch.long)
        self.length = 0

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Pools:
        real = self.write >= 0
        reads = [self.read, self.read]
        if "K19-keys-of-another-row" in self.faults and layer_idx:
            reads[0] = self.read.roll(1, 0)
        shown = []
        for pool, fed, read in zip(self.pools(layer_idx, keys), (keys, values), reads, strict=True):
            slots = pool.flatten(0, 1)  # a view: what is written to it goes into the pool
            turned = fed.transpose(1, 2)
            if "K26-viewed-not-transposed" in self.faults:
                turned = fed.reshape(turned.shape)
            slots[self.write[real]] = turned[real]
            shown.append(slots[read].transpose(1, 2))
        return handled(self.faults, shown[0], shown[1])

    def pools(self, layer: int, like: torch.Tensor) -> Pools:
        """K and V of a layer, made when first asked for."""
        if layer not in self.layers:
            shape = (self.blocks, self.size, like.shape[1], like.shape[3])
            keys = like.new_zeros(shape)
            self.layers[layer] = keys, keys if "K15-one-buffer" in self.faults else keys.clone()
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


class PagedModel:
    """A causal LM with a paged cache. By request: ``tables`` of blocks, and ``lengths``, its cached tokens.

    ``surplus`` is how many places more a request takes than it has tokens: other than 0 only through faults.
    """

    def __init__(self, model: Any, longest: Sequence[int], size: int, pad: int, faults: Iterable[str]) -> None:
        """``longest[i]`` is how many tokens request i may come to hold, rejected drafts included."""
        self.model, self.pad, self.faults = model, pad, frozenset(faults)
        blocks = 2 + sum(-(-n // size) for n in longest)
        if self.on("K1-crop-to-max", "K3-never-cropped", "K21-length-not-rolled-back"):
            blocks *= 1 + max(longest)  # room for what should have been dropped
        self.cache = PagedCache(blocks, size, self.faults)
        self.free = list(range(1, blocks))
        self.holders: Counter[int] = Counter()
        self.tables: list[list[int]] = [[] for _ in longest]
        self.lengths = [0] * len(longest)
        self.surplus = [0] * len(longest)

    def on(self, *faults: str) -> bool:
        return not self.faults.isdisjoint(faults)

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

    def skip(self, i: int, count: int) -> None:
        """Take so many tokens of a request for cached that are not: only faults do."""
        self.lengths[i] += count
        self.surplus[i] -= count

    def share(self, i: int, other: int, count: int) -> None:
        """Let a request begin with the blocks of another's first ``count`` tokens: only a fault does."""
        self._reserve(i, count)
        self.tables[other] = self.tables[i][: -(-count // self.cache.size)]
        self.holders.update(self.tables[other])
        self.lengths[other] = count

    def _block(self) -> int:
        block = self.free.pop()
        self.holders[block] += 1
        return block

    def _reserve(self, i: int, count: int) -> None:
        """Blocks for ``count`` tokens more of a request, of which it shares none with another."""
        table, size, start = self.tables[i], self.cache.size, self._places(i)
        for place in range(start // size, -(-(start + count) // size)):
            if place == len(table):
                table.append(self._block())
            elif self.holders[table[place]] > 1 and not self.on(*WRITES_SHARED):
                self.holders[table[place]] -= 1
                own = self._block()
                self.cache.copy(table[place], own)
                table[place] = own

    def _places(self, i: int) -> int:
        """The places that a request's tokens take."""
        return self.lengths[i] + self.surplus[i]

    def _slots(self, table: Sequence[int], count: int) -> torch.Tensor:
        """The slots of a table's first ``count`` places; of block 0 where the table ends before."""
        place, size = torch.arange(count), self.cache.size
        blocks = torch.tensor([*table, *[0] * (count // size + 1)])
        return blocks[place // size] * size + place % size

    def feed(self, rows: Sequence[int], blocks: Rows) -> list[torch.Tensor]:
        """Feed requests their blocks (ragged, right padded); per row the logits ``[len(block), vocab]``."""
        width, count = max(map(len, blocks)), torch.tensor([len(block) for block in blocks])
        before = [list(self.tables[i]) for i in rows]
        for i, block in zip(rows, blocks, strict=True):
            self._reserve(i, len(block))
        start = torch.tensor([self._places(i) for i in rows])
        self.cache.length = int(start.max())
        tables = [self.tables[i] for i in rows]
        slots = torch.stack([self._slots(table, self.cache.length + width) for table in tables])
        real = torch.arange(width) < count[:, None]
        at = start[:, None] + torch.arange(width)
        self.cache.write = slots.gather(1, at).masked_fill(~real, -1)
        shown = self._shown(before, tables)
        self.cache.read = torch.stack([self._slots(table, slots.shape[1]) for table in shown])
        logits = self.model(
            input_ids=torch.tensor([block + [self.pad] * (width - len(block)) for block in blocks]),
            attention_mask=additive(self._visible(at, start + count), self.model),
            position_ids=placed(self._positions(rows, at), real, self.model, self.faults),
            past_key_values=self.cache,
            use_cache=True,
        ).logits
        for i, block in zip(rows, blocks, strict=True):
            self.lengths[i] += len(block)
        return [row[: len(block)] for row, block in zip(logits, blocks, strict=True)]

    def _shown(self, before: Sequence[list[int]], tables: Sequence[list[int]]) -> Sequence[list[int]]:
        """The tables that are read; ``before`` is how they were when the round began."""
        if self.on("K20-table-before-new-block"):
            return [old or new for old, new in zip(before, tables, strict=True)]
        if self.on("K22-last-block-of-next-row"):
            return [[*own[:-1], other[-1]] for own, other in zip(tables, [*tables[1:], tables[0]], strict=True)]
        return tables

    def _positions(self, rows: Sequence[int], at: torch.Tensor) -> torch.Tensor:
        """Position ids of the places at which a block goes."""
        if self.on("K21-length-not-rolled-back"):
            return at
        return at - torch.tensor([self.surplus[i] for i in rows])[:, None]

    def _visible(self, at: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        """Which places of its row each query sees, ``[rows, block, places]``."""
        keys = torch.arange(self.cache.read.shape[1])
        visible = (keys <= at[..., None]) & (keys < ends[:, None, None])
        window = getattr(self.model.config, "sliding_window", None)
        if self.on("M12-first-token-hidden"):
            visible &= (keys > 0) | (at[:, :1, None] == 0)  # only a row's first block begins there
        return visible if window is None else visible & (keys > at[..., None] - window)

    def keep(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
        """Go on with these requests, and the first ``lengths`` cached tokens of each; the others leave."""
        kept = dict(zip(rows, lengths, strict=True))
        rejected = {i: self.lengths[i] - length for i, length in kept.items()}
        for i, table in enumerate(self.tables):
            self.lengths[i] = kept.get(i, 0)
            self.surplus[i] = self.surplus[i] + self._left(i, rejected) if i in kept else 0
            used = -(-self._places(i) // self.cache.size)
            for block in table[used:]:
                self.holders[block] -= 1
                if not self.holders[block]:
                    self.free.append(block)
            del table[used:]

    def _left(self, i: int, rejected: dict[int, int]) -> int:
        """How many places too many, or too few, a rollback leaves a request."""
        if self.on("K3-never-cropped", "K21-length-not-rolled-back"):
            return rejected[i]
        if self.on("K1-crop-to-max"):
            return rejected[i] - min(rejected.values())
        return -1 if self.on("K2-one-too-many-dropped") else 0
