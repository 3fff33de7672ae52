"""Faults in K and V themselves (K): not moved, exchanged, mixed up between heads, layers or rows, or other numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache

from eqcheck.catalogue.engines.batch import PAD, BatchCache, RealignedCache
from eqcheck.catalogue.engines.blocks import PagedCache
from eqcheck.catalogue.engines.columns import FixedLayer, StaticModel
from eqcheck.catalogue.engines.engine import Handling, KeysValues
from eqcheck.catalogue.engines.lines import OffsetLayer
from eqcheck.catalogue.engines.rows import PerRow
from eqcheck.catalogue.faults.fault import NO_TOKENS, NUMBERS, SLOTS, amount, fault, planted, step

SCALE = amount("key scale", 2, 2, 4)

Tensors = list[torch.Tensor]  # K and V of a layer


class Mixing(RealignedCache):
    """Takes some K and V that were moved, and some that were not."""

    def move(self, rows: torch.Tensor) -> None:
        before = [[layer.keys[rows], layer.values[rows]] for layer in self.cache.layers]
        super().move(rows)
        for number, (layer, old) in enumerate(zip(self.cache.layers, before, strict=True)):
            left = [kept[:, :, kept.shape[2] - self.holds.shape[1] :] for kept in old]
            layer.keys, layer.values = self.mixed(number, [layer.keys, layer.values], left)

    def mixed(self, number: int, moved: Tensors, left: Tensors) -> Tensors:
        """K and V of a layer; ``left`` is what stands in the cache's last slots where nothing is moved."""
        raise NotImplementedError


@planted("realigned", edit="not-moved")
@fault("K5-cache-not-moved", "cache/misaligned", "huggingface/transformers#42655")
class NotMoved(RealignedCache):
    """Mask and positions are realigned, the cache is not."""

    def move(self, rows: torch.Tensor) -> None:
        used = self.seen()
        for layer in self.cache.layers:
            stays = (kept[rows].masked_fill(~used[:, None, :, None], 0) for kept in (layer.keys, layer.values))
            layer.keys, layer.values = stays
        order = used.long().argsort(dim=1, stable=True)
        self.holds = self.holds.gather(1, order).masked_fill(~used.gather(1, order), PAD)


@planted("static", no_edit="no edit compacts a cache of fixed shape")
@fault("K5-cache-not-moved", "cache/stale-entry", "huggingface/transformers#42655")
class ColumnsNotMoved(StaticModel):
    """Rows are compacted in mask and positions, not in the cache: rejected entries are seen in the place of tokens."""

    def move_together(self) -> None:
        before = [(layer.keys, layer.values) for layer in self.layers]
        super().move_together()
        for layer, kept in zip(self.layers, before, strict=True):
            layer.keys, layer.values = kept


@planted("realigned", rows=2, edit="moved-wrong-way")
@fault("K5-moved-the-wrong-way", "cache/misaligned", "huggingface/transformers#32189")
class MovedTheWrongWay(RealignedCache):
    """Entries are moved together at the wrong edge."""

    def source(self, used: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        return used.long().argsort(dim=1, stable=True, descending=True)[:, : order.shape[1]]


@planted("", "static", no_edit="no edit compacts a cache of fixed shape")
@planted("realigned", edit="values-not-moved")
@fault("K6-values-not-moved", "cache/torn-entry", "alibaba/MNN#4600")
class ValuesNotMoved:
    """Keys are realigned, values are not."""

    class InBatch(Mixing):
        def mixed(self, number: int, moved: Tensors, left: Tensors) -> Tensors:
            return [moved[0], left[1]]

    class InColumns(StaticModel):
        def move_together(self) -> None:
            before = [layer.values for layer in self.layers]
            super().move_together()
            for layer, values in zip(self.layers, before, strict=True):
                layer.values = values


fault("K6-layer-not-moved", "cache/torn-entry", "huggingface/transformers#48280").plant(
    "Only the first layer is realigned",
    planted("realigned", edit="layers-not-moved"),
    step(Mixing, mixed=lambda right, self, number, moved, left: left if number else moved),
)


@planted("realigned", edit="heads-not-moved")
@fault("K6-head-not-moved", "cache/torn-entry", "alibaba/MNN#4600")
class HeadNotMoved(Mixing):
    """Only the first head is realigned."""

    def mixed(self, number: int, moved: Tensors, left: Tensors) -> Tensors:
        return [torch.cat([new[:, :1], old[:, 1:]], 1) for new, old in zip(moved, left, strict=True)]


@planted("", "continuous", rows=2, no_edit="no edit writes keys and values to different slots")
@fault("K6-values-at-longest-offset", "cache/torn-entry", "alibaba/MNN#4600")
class ValuesAtLongestOffset(OffsetLayer):
    """Keys are written at each row's offset, values at the longest row's."""

    def write(self, memory: torch.Tensor, block: torch.Tensor, starts: torch.Tensor) -> None:
        super().write(memory, block, starts.max().expand(len(starts)) if memory is self.values else starts)


fault("K15-keys-and-values-exchanged", "cache/torn-entry", "ovg-project/kvcached#391").plant(
    "K and V are exchanged",
    planted("realigned paged_small", "continuous", no_edit=NUMBERS),
    step(Handling, handed=lambda right, self, keys, values: (values, keys)),
)

fault("K15-values-as-keys", "cache/torn-entry", "alibaba/MNN#4600").plant(
    "V is handed out as K",
    planted("realigned static", "packed", no_edit=NUMBERS),
    step(Handling, handed=lambda right, self, keys, values: (values, values)),
)


@planted("paged", "static", no_edit=NUMBERS)
@fault("K15-one-buffer", "cache/torn-entry", "vllm-project/vllm-ascend#11021")
class OneBuffer:
    """K and V share one buffer, so V is written over K."""

    class InBlocks(PagedCache):
        def pools(self, layer: int, like: torch.Tensor) -> KeysValues:
            keys, _ = super().pools(layer, like)
            return keys, keys

    class InColumns(FixedLayer):
        def lazy_initialization(self, key_states: torch.Tensor, *args: Any) -> None:
            super().lazy_initialization(key_states, *args)
            self.values = self.keys


fault("K16-heads-rolled", "cache/torn-entry", "apple/axlearn#842").plant(
    "Each head is given the K and V of the one before it",
    planted("realigned static", "per_row", no_edit=NUMBERS),
    step(Handling, handed=lambda right, self, keys, values: (keys.roll(1, 1), values.roll(1, 1))),
)


@planted("packed paged_small", "continuous", no_edit=NUMBERS)
@fault("K16-head-0-everywhere", "cache/torn-entry")
class Head0Everywhere(Handling):
    """K and V of the first head are handed out for every head."""

    def handed(self, keys: torch.Tensor, values: torch.Tensor) -> KeysValues:
        return keys[:, :1].expand_as(keys).clone(), values[:, :1].expand_as(values).clone()


fault("K16-keys-heads-reversed", "cache/torn-entry", "onnx/onnx#7274").plant(
    "The heads of K come in another order than those of V",
    planted("per_row", "paged", no_edit=NUMBERS),
    step(Handling, handed=lambda right, self, keys, values: (keys.flip(1), values)),
)


@planted("realigned per_row", "static", no_edit=NUMBERS)
@fault("K17-layers-exchanged", "cache/torn-entry")
class LayersExchanged:
    """The layers of the cache are exchanged."""

    class InBatch(RealignedCache):
        def move(self, rows: torch.Tensor) -> None:
            super().move(rows)
            self.cache.layers.reverse()

    class InColumns(StaticModel):
        def shorten(self, lengths: list[int]) -> None:
            super().shorten(lengths)
            self.cache.layers.reverse()

    class InRows(PerRow):
        def after(self, going: Sequence[int], lengths: Sequence[int]) -> None:
            super().after(going, lengths)
            for i in self.active:
                self.caches[i].layers.reverse()


fault("K18-keys-scaled", "cache/torn-entry", "lightseekorg/tokenspeed#759").plant(
    "K is handed out with a scale that is not undone",
    planted("continuous realigned", "paged_small", no_edit=NUMBERS),
    step(Handling, handed=lambda right, self, keys, values: (keys * SCALE, values)),
)


fault("K18-values-negated", "cache/torn-entry").plant(
    "V is negated",
    planted("static per_row", "packed", no_edit=NUMBERS),
    step(Handling, handed=lambda right, self, keys, values: (keys, -values)),
)


@planted("realigned paged", "paged_small", rows=2, no_edit=NUMBERS)
@fault("K19-keys-of-another-row", "cache/torn-entry")
class KeysOfAnotherRow:
    """In the upper layer each row is given the K of another row."""

    class InBatch(RealignedCache):
        def move(self, rows: torch.Tensor) -> None:
            super().move(rows)
            for layer in self.cache.layers[1:]:
                layer.keys = layer.keys.roll(1, 0)

    class InBlocks(PagedCache):
        def update(
            self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
        ) -> KeysValues:
            keys, values = super().update(keys, values, layer_idx)
            return keys.roll(1, 0) if layer_idx else keys, values


fault("K26-viewed-not-transposed", "cache/torn-entry", "vllm-project/vllm#49012").plant(
    "A block is viewed as slots by heads where it should be transposed, so tokens and heads are mixed up",
    planted("paged_small", "continuous", no_edit=NUMBERS),
    step(Handling, turned=lambda right, self, block: block.reshape(right(block).shape)),
)


class ToldWithoutTheBlock(DynamicCache):  # type: ignore[misc]
    """Leaves out the block of ``query`` slots."""

    def get_mask_sizes(self, query: Any, *args: Any) -> tuple[int, int]:
        fed = query if isinstance(query, int) else len(query)  # transformers 4 hands over the slots
        length, offset = super().get_mask_sizes(query, *args)
        return length - fed, offset


class ToldOneLate(DynamicCache):  # type: ignore[misc]
    """Begins one slot late."""

    def get_mask_sizes(self, *args: Any) -> tuple[int, int]:
        length, offset = super().get_mask_sizes(*args)
        return length, offset + 1


@planted("realigned static", "rolled_back", families=SLOTS, no_edit=NO_TOKENS)
@fault("K28-sizes-without-the-block", "crash/exception", "microsoft/VibeVoice#303")
class SizesWithoutTheBlock:
    """The sizes that the cache tells for the mask leave out the block that is fed."""

    class InBatch(BatchCache):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.cache = ToldWithoutTheBlock()

    class InColumns(FixedLayer):
        def get_mask_sizes(self, *args: Any) -> tuple[int, int]:
            return self.capacity - len(self.columns), 0


@planted("realigned static", "holes", families=SLOTS, no_edit="no edit moves the mask against the cache")
@fault("K29-sizes-one-late", "mask/token-hidden", "microsoft/VibeVoice#303")
class SizesOneLate:
    """The sizes that the cache tells for the mask begin one slot late."""

    class InBatch(BatchCache):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.cache = ToldOneLate()

    class InColumns(FixedLayer):
        def get_mask_sizes(self, *args: Any) -> tuple[int, int]:
            return self.capacity, 1
