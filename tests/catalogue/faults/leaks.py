"""Leaks: the output stays right, and memory is kept for nothing.

Builds keep nothing for nothing, but for those of `KEEPING`, which are right and keep it by design.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from eqcheck.catalogue.engines.batch import PAD, BatchCache, Batched
from eqcheck.catalogue.engines.blocks import PagedEngine
from eqcheck.catalogue.engines.pool import Packed
from eqcheck.catalogue.faults.fault import fault, planted

NOBODY = -1  # the row of an entry that nobody sees
# Right in what they emit; what they keep, they keep by their build.
KEEPING = {
    "holes": "memory/rejected-kept",
    **dict.fromkeys(
        ("per_row", "forked_rows", "restored", "replayed", "rerun", "checkpointed", "windowed", "static", "staged"),
        "memory/finished-row-kept",
    ),
}


@planted("realigned", "rolled_back")
@fault("L1-caches-kept", "memory/storage-kept", "vllm-project/vllm#15506")
class CachesKept(BatchCache):
    """The cache of every round is kept, as if it were to be gone back to."""

    def keep(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
        kept = [(layer.keys, layer.values) for layer in self.cache.layers if layer.keys is not None]
        self.history = [*getattr(self, "history", []), kept]
        super().keep(rows, lengths)


fault("L1-draft-caches-kept", "memory/storage-kept", "vllm-project/vllm#15506").plant(
    "The draft's cache of every round is kept", planted("realigned"), on_draft=(CachesKept,)
)


@planted("realigned rolled_back", "packed")
@fault("L2-columns-kept", "memory/storage-kept", "vllm-project/vllm#15506")
class ColumnsKept:
    """The newest column of every round is kept, as a view: all of the cache that it was cut from stays alive."""

    class OfBatch(BatchCache):
        def keep(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
            kept = [layer.keys[:, :, -1:] for layer in self.cache.layers if layer.keys is not None]
            self.history = [*getattr(self, "history", []), kept]
            super().keep(rows, lengths)

    class OfPack(Packed):
        def after(self, going: Sequence[int], lengths: Sequence[int]) -> None:
            self.history = [*getattr(self, "history", []), [layer.keys[:, :, -1:] for layer in self.cache.layers]]
            super().after(going, lengths)


@planted("realigned", "packed")
@fault("L3-rows-kept", "memory/finished-row-kept", "ggml-org/llama.cpp#27692")
class RowsKept:
    """Rows that leave the batch are copied to a place of their own, which nobody empties, or along with the others."""

    class OfBatch(BatchCache):
        def keep(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
            gone = torch.tensor([row for row in range(self.batch) if row not in rows], dtype=torch.long)
            if len(gone):
                kept = [(layer.keys[gone], layer.values[gone]) for layer in self.cache.layers if layer.keys is not None]
                self.left_behind = [*getattr(self, "left_behind", []), kept]
            super().keep(rows, lengths)

    class OfPack(Packed):
        def stays(self, i: int, position: int) -> bool:
            return super().stays(i, position) or i in self.finish_order


fault("L3-draft-rows-kept", "memory/finished-row-kept", "ggml-org/llama.cpp#27692").plant(
    "Rows that leave the batch are copied to a place of their own on the draft's side",
    planted("rolled_back"),
    on_draft=(RowsKept.OfBatch,),
)


@planted("packed")
@fault("L4-rejected-kept", "memory/rejected-kept", "sgl-project/sglang#19518")
class RejectedKept(Packed):
    """Rejected draft tokens are not gathered out of the cache, only hidden."""

    def after(self, going: Sequence[int], lengths: Sequence[int]) -> None:
        super().after(going, lengths)
        self.held = [(i, at) if super(RejectedKept, self).stays(i, at) else (NOBODY, at) for i, at in self.held]

    def stays(self, i: int, position: int) -> bool:
        return i == NOBODY or i in self.active


@planted("realigned", "rolled_back")
@fault("L5-columns-added", "memory/growth", "sgl-project/sglang-jax#1147")
class ColumnsAdded(BatchCache):
    """After every round the cache is made wider than it has to be, by more each time: nobody counts what is there."""

    more = 0

    def keep(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
        super().keep(rows, lengths)
        self.more += 32
        for layer in self.cache.layers:
            layer.keys, layer.values = (
                torch.nn.functional.pad(kept, (0, 0, self.more, 0)) for kept in (layer.keys, layer.values)
            )
        self.holds = torch.nn.functional.pad(self.holds, (self.more, 0), value=PAD)


@planted("realigned", "paged")
@fault("L6-cache-shelved", "memory/kept-after-return", "huggingface/transformers#47731")
class CacheShelved:
    """The caches of every request are put where they outlive it."""

    class OfBatch(Batched):
        def begin(self) -> None:
            super().begin()
            SHELF.append(self.verifier)

    class OfPages(PagedEngine):
        def begin(self) -> None:
            super().begin()
            SHELF.append(self.verifier)


SHELF: list[Any] = []
