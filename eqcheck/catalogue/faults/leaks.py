"""Leaks that can be planted in the engines: the output stays right, and memory is kept for nothing.

`LEAKS` are planted. Builds keep nothing for nothing, but for those of `KEEPING`, which are right and keep it by design.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from eqcheck.catalogue.engines.batch import PAD, BatchCache, Batched
from eqcheck.catalogue.engines.blocks import PagedEngine
from eqcheck.catalogue.engines.builds import BUILDS
from eqcheck.catalogue.engines.pool import Packed
from eqcheck.catalogue.faults.fault import address, patched
from eqcheck.contract.decoders import Decoder

NOBODY = -1  # the row of an entry that nobody sees


@dataclass(frozen=True)
class Leak:
    """A planted leak: in a build, of the target's memory or the draft's; ``kind`` is the warning that is due."""

    id: str
    kind: str
    link: str
    build: str
    patches: tuple[type[Any], ...] = ()
    draft_patches: tuple[type[Any], ...] = ()
    held_back: bool = False

    def decoder(self) -> Decoder:
        """The build with this leak, and no other."""
        build = BUILDS[self.build]
        engine = patched(build.engine, self.patches, self.draft_patches)
        return replace(build, engine=engine).decoder(f"{self.id}.{self.build}")


class CachesKept(BatchCache):
    """The cache of every round is kept, as if it were to be gone back to."""

    def keep(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
        kept = [(layer.keys, layer.values) for layer in self.cache.layers if layer.keys is not None]
        self.history = [*getattr(self, "history", []), kept]
        super().keep(rows, lengths)


class ColumnsKept(BatchCache):
    """The newest column of every round is kept, as a view: all of the cache that it was cut from stays alive."""

    def keep(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
        kept = [layer.keys[:, :, -1:] for layer in self.cache.layers if layer.keys is not None]
        self.history = [*getattr(self, "history", []), kept]
        super().keep(rows, lengths)


class PackedColumnsKept(Packed):
    """As `ColumnsKept`, in an engine that packs its rows."""

    def after(self, going: Sequence[int], lengths: Sequence[int]) -> None:
        self.history = [*getattr(self, "history", []), [layer.keys[:, :, -1:] for layer in self.cache.layers]]
        super().after(going, lengths)


class RowsKept(BatchCache):
    """Rows that leave the batch are copied to a place of their own, which nobody empties."""

    def keep(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
        gone = torch.tensor([row for row in range(self.batch) if row not in rows], dtype=torch.long)
        if len(gone):
            kept = [(layer.keys[gone], layer.values[gone]) for layer in self.cache.layers if layer.keys is not None]
            self.left_behind = [*getattr(self, "left_behind", []), kept]
        super().keep(rows, lengths)


class PackedRowsKept(Packed):
    """Rows that ended stay in the cache and are copied along."""

    def stays(self, i: int, position: int) -> bool:
        return super().stays(i, position) or i in self.finish_order


class RejectedKept(Packed):
    """Rejected draft tokens are not gathered out of the cache, only hidden."""

    def after(self, going: Sequence[int], lengths: Sequence[int]) -> None:
        super().after(going, lengths)
        self.held = [(i, at) if super(RejectedKept, self).stays(i, at) else (NOBODY, at) for i, at in self.held]

    def stays(self, i: int, position: int) -> bool:
        return i == NOBODY or i in self.active


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


class CacheShelved(Batched):
    """The caches of every request are put where they outlive it."""

    shelf: tuple[Any, ...] = ()

    def begin(self) -> None:
        super().begin()
        CacheShelved.shelf += (self.verifier,)


class PagesShelved(PagedEngine):
    """As `CacheShelved`, in an engine with pages."""

    shelf: tuple[Any, ...] = ()

    def begin(self) -> None:
        super().begin()
        PagesShelved.shelf += (self.verifier,)


_STORAGE, _ROW, _REJECTED = "memory/storage-kept", "memory/finished-row-kept", "memory/rejected-kept"
_GROWTH, _SHELF = "memory/growth", "memory/kept-after-return"
_APPENDED, _SLOTS = address("vllm-project/vllm#15506"), address("sgl-project/sglang-jax#1147")
_NEVER_FREED, _OVER, _ATTRIBUTE = (
    address("ggml-org/llama.cpp#27692"),
    address("sgl-project/sglang#19518"),
    address("huggingface/transformers#47731"),
)
LEAKS = (
    Leak("L1-caches-kept", _STORAGE, _APPENDED, "realigned", (CachesKept,)),
    Leak("L1-caches-kept", _STORAGE, _APPENDED, "rolled_back", (CachesKept,), held_back=True),
    Leak("L1-draft-caches-kept", _STORAGE, _APPENDED, "realigned", draft_patches=(CachesKept,)),
    Leak("L2-columns-kept", _STORAGE, _APPENDED, "realigned", (ColumnsKept,)),
    Leak("L2-columns-kept", _STORAGE, _APPENDED, "rolled_back", (ColumnsKept,)),
    Leak("L2-columns-kept", _STORAGE, _APPENDED, "packed", (PackedColumnsKept,), held_back=True),
    Leak("L3-rows-kept", _ROW, _NEVER_FREED, "realigned", (RowsKept,)),
    Leak("L3-rows-kept", _ROW, _NEVER_FREED, "packed", (PackedRowsKept,), held_back=True),
    Leak("L3-draft-rows-kept", _ROW, _NEVER_FREED, "rolled_back", draft_patches=(RowsKept,)),
    Leak("L4-rejected-kept", _REJECTED, _OVER, "packed", (RejectedKept,)),
    Leak("L5-columns-added", _GROWTH, _SLOTS, "realigned", (ColumnsAdded,)),
    Leak("L5-columns-added", _GROWTH, _SLOTS, "rolled_back", (ColumnsAdded,), held_back=True),
    Leak("L6-cache-shelved", _SHELF, _ATTRIBUTE, "realigned", (CacheShelved,)),
    Leak("L6-cache-shelved", _SHELF, _ATTRIBUTE, "paged", (PagesShelved,), held_back=True),
)
# Right in what they emit; what they keep, they keep by their build.
KEEPING = {
    "holes": _REJECTED,
    "per_row": _ROW,
    "forked_rows": _ROW,
    "restored": _ROW,
    "static": _ROW,
    "staged": _ROW,
}
