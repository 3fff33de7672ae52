"""Faults in attention masks (M)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from eqcheck.catalogue.engines.batch import PAD, REJECTED, BatchCache, HoleyCache, RealignedCache
from eqcheck.catalogue.engines.blocks import PagedModel
from eqcheck.catalogue.engines.engine import additive, left_padded
from eqcheck.catalogue.engines.lines import OffsetCache
from eqcheck.catalogue.engines.pool import Packed
from eqcheck.catalogue.engines.rows import Uncached
from eqcheck.catalogue.faults.fault import FOUR_D, HANDED, OTHER_MODEL, SLOTS, fault, planted, step
from eqcheck.catalogue.faults.rollback import SHOWN, Remembering, Showing, ShowingColumns


class PerQuery(BatchCache):
    """The mask is 4-D, as what is wrong is not the same for all queries of a block."""

    spare = False  # whether slots of a preallocated cache that nothing was written to are seen

    def mask(self, width: int) -> torch.Tensor:
        seen = super().mask(width).bool()[:, None]
        slots = seen.shape[2]
        seen = seen & self.allowed(torch.arange(slots - width, slots)[:, None], torch.arange(slots))
        capacity = max((getattr(layer, "capacity", 0) for layer in self.cache.layers), default=0)
        unused = max(0, capacity - slots)
        return additive(torch.nn.functional.pad(seen, (0, unused), value=self.spare), self.model)

    def allowed(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Return which slots ``[slots]`` the queries ``[block, 1]`` see, if they are to be seen at all."""
        return keys <= queries


@planted("uncached realigned holes expanded", rows=2, edit="pads-seen")
@fault("M1-no-mask", "mask/pad-visible")
class NoMask:
    """No mask: pads are attended."""

    class InBatch(BatchCache):
        def mask(self, width: int) -> torch.Tensor:
            return super().mask(width) | (self.holds == PAD)

    class Anew(Uncached):
        def visible(self, ids: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
            return torch.ones_like(real)


@planted("uncached realigned", "expanded", families=SLOTS, edit="pad-id-hidden")
@fault("M3-mask-by-token", "mask/token-hidden", "huggingface/transformers#25790")
class MaskByToken:
    """The mask is made from the tokens: whatever equals the pad id is hidden."""

    class InBatch(Remembering):
        def mask(self, width: int) -> torch.Tensor:
            rows = zip(self.texts, self.holds.tolist(), strict=True)
            return super().mask(width) & ~torch.tensor([[text.get(at) == self.pad for at in row] for text, row in rows])

    class Anew(Uncached):
        def visible(self, ids: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
            return ids != self.request.pad_token_id


@planted("holes", edit="newest-lost")
@fault("M4-accepted-hidden", "mask/token-hidden", "lablup/mlxcel#994")
class AcceptedHidden(HoleyCache):
    """The newest accepted token is hidden with the rejected ones."""

    def left(self, holds: torch.Tensor, kept: torch.Tensor, surplus: torch.Tensor) -> torch.Tensor:
        return super().left(holds, kept, surplus).masked_fill(holds == kept - 1, REJECTED)


@planted("holes", edit="rejected-kept")
@fault("M4-rejected-visible", "cache/stale-entry", "lablup/mlxcel#163")
class RejectedVisible(Showing):
    """Rejected slots that were to be hidden by the mask stay visible."""

    def left(self, holds: torch.Tensor, kept: torch.Tensor, surplus: torch.Tensor) -> torch.Tensor:
        return holds.masked_fill(holds >= kept, SHOWN)


@planted("realigned", rows=2, edit="new-pads-seen")
@fault("M5-new-pads-visible", "mask/pad-visible", "huggingface/transformers#32189")
class NewPadsVisible(RealignedCache):
    """The mask keeps a row's old number of pads when realignment gives it more."""

    new_pads = torch.zeros((1, 0), dtype=torch.bool)

    def move(self, rows: torch.Tensor) -> None:
        before = (self.holds != PAD).long().argmax(1)
        super().move(rows)
        self.new_pads = (self.holds == PAD) & (torch.arange(self.holds.shape[1]) >= before[:, None])

    def mask(self, width: int) -> torch.Tensor:
        mask = super().mask(width)
        mask[:, : self.new_pads.shape[1]] |= self.new_pads
        return mask


@planted("holes", edit="rejected-zeroed")
@fault("M6-zeroed-not-masked", "mask/pad-visible", "Blaizzy/mlx-vlm#1962")
class ZeroedNotMasked(RejectedVisible):
    """Rejected entries are zeroed and stay visible; a zero still counts in the softmax."""

    def move(self, rows: torch.Tensor) -> None:
        super().move(rows)
        zeroed = (self.holds == SHOWN)[:, None, :, None]
        for layer in self.cache.layers:
            for kept in (layer.keys, layer.values):
                kept[:, :, : zeroed.shape[2]].masked_fill_(zeroed, 0)


@planted("realigned holes rolled_back", "continuous", families=FOUR_D, edit="future-seen")
@fault("M7-sees-next-draft", "mask/future-visible", "sgl-project/SpecForge#244")
class SeesNextDraft:
    """Within the block each token also sees the one after it."""

    class InBatch(PerQuery):
        def allowed(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
            return keys <= queries + 1

    class InLines(OffsetCache):
        def visible(self, offsets: torch.Tensor, width: int, lengths: torch.Tensor) -> torch.Tensor:
            queries, keys = self.grid(offsets, width)
            return super().visible(offsets, width, lengths) | (
                (keys == queries + 1) & (keys < (offsets + lengths)[:, None, None])
            )


@planted("realigned holes rolled_back", "continuous", families=FOUR_D, edit="itself-hidden")
@fault("M7-misses-itself", "mask/token-hidden", "sgl-project/SpecForge#245")
class MissesItself:
    """Within the block each token but the first is hidden from itself."""

    class InBatch(PerQuery):
        def allowed(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
            return (keys < queries) | ((keys == queries) & (queries == queries[0]))

    class InLines(OffsetCache):
        def visible(self, offsets: torch.Tensor, width: int, lengths: torch.Tensor) -> torch.Tensor:
            queries, keys = self.grid(offsets, width)
            return super().visible(offsets, width, lengths) & ((keys < queries) | (queries == offsets[:, None, None]))


@planted("realigned holes", rows=2, edit="block-pads-seen")
@fault("M8-short-draft-pads-visible", "mask/pad-visible")
class ShortDraftPadsVisible(BatchCache):
    """If a row has fewer draft tokens than another, its padding is marked visible."""

    def mask(self, width: int) -> torch.Tensor:
        mask = super().mask(width)
        if mask.shape[1] > width:
            mask[:, -width:] = 1
        return mask


@planted("static", rows=2, no_edit="no edit keeps the pads of earlier blocks")
@planted("", "continuous", rows=2, edit="pads-after-seen")
@fault("M8-short-block-pads-visible", "mask/pad-visible", "vllm-project/vllm-ascend#15461")
class ShortBlockPadsVisible:
    """The mask covers every row's block up to the width of the widest."""

    class InColumns(ShowingColumns):
        def held(self, at: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
            return at.masked_fill(~real, SHOWN) if any(self.lengths) else super().held(at, real)

    class InLines(OffsetCache):
        def visible(self, offsets: torch.Tensor, width: int, lengths: torch.Tensor) -> torch.Tensor:
            _, keys = self.grid(offsets, width)
            starts = offsets[:, None, None]
            pads = (keys >= starts + lengths[:, None, None]) & (keys < starts + width)
            return super().visible(offsets, width, lengths) | pads


@planted("rolled_back", "continuous", families=("window",), cache_states=("wrapped",), no_edit=OTHER_MODEL)
@fault("M10-window-once-per-block", "mask/window", "flashinfer-ai/flashinfer#4137")
class WindowOncePerBlock:
    """The start of the attention window is computed for a block's first token and used for all."""

    class InBatch(PerQuery):
        def allowed(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
            window: int = self.model.config.sliding_window
            return (keys <= queries) & (keys > queries[0] - window)

    class InLines(OffsetCache):
        def visible(self, offsets: torch.Tensor, width: int, lengths: torch.Tensor) -> torch.Tensor:
            queries, keys = self.grid(offsets, width)
            window: int = self.model.config.sliding_window
            return (keys <= queries) & (keys > queries[:, :1] - window)


@planted("uncached", "expanded", rows=2, edit="pads-accumulate")
@fault("M11-pads-accumulate", "mask/pad-visible")
class PadsAccumulate(Uncached):
    """Rows are padded to one length after each round and never unpadded, and the pads are marked visible."""

    def begin(self) -> None:
        super().begin()
        self.inner = [0] * len(self.rows)  # how many pads are between a row's prompt and its new tokens

    def after(self, going: Sequence[int], lengths: Sequence[int]) -> None:
        most = max(map(len, self.rows))
        self.inner = [most - len(row) for row in self.rows]

    def padded(self, rows: Sequence[tuple[int, list[int]]]) -> tuple[torch.Tensor, torch.Tensor]:
        pad, texts = self.request.pad_token_id, []
        for i, proposed in rows:
            prompt, new = self.rows[i][: self.starts[i]], self.rows[i][self.starts[i] :] + proposed
            texts.append((prompt, [pad] * self.inner[i], new))
        ids, real = left_padded([[*prompt, *pads, *new] for prompt, pads, new in texts], pad)
        for row, (_, pads, new) in zip(real, texts, strict=True):
            row[len(row) - len(new) - len(pads) : len(row) - len(new)] = False
        return ids, real

    def visible(self, ids: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        return real.long().cummax(1).values


@planted("packed paged_small", edit="prompt-begin-lost")
@fault("M12-first-token-hidden", "mask/token-hidden")
class FirstTokenHidden:
    """Once a row is prefilled, its first token is hidden."""

    class InOneRow(Packed):
        def sees(self, i: int, at: int, row: int, position: int) -> bool:
            return super().sees(i, at, row, position) and not (self.lengths[i] and not position)

    class InBlocks(PagedModel):
        def visible(self, at: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
            visible = super().visible(at, ends)
            # only a row's first block begins at its first token
            return visible & ((torch.arange(visible.shape[2]) > 0) | (at[:, :1, None] == 0))


@planted("packed pooled", "paged_small", no_edit="no edit hides a block from itself")
@fault("M13-rest-of-block-hidden", "mask/token-hidden")
class RestOfBlockHidden:
    """A query sees what is cached, and of its own block only itself."""

    class InOneRow(Packed):
        def sees(self, i: int, at: int, row: int, position: int) -> bool:
            return super().sees(i, at, row, position) and (position < self.lengths[i] or position == at)

    class InBlocks(PagedModel):
        def visible(self, at: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
            keys = torch.arange(self.cache.read.shape[1])
            return super().visible(at, ends) & ((keys < at[:, :1, None]) | (keys == at[..., None]))


fault("M12-rows-not-kept-apart", "mask/other-row-visible").plant(
    "Rows that lie behind one another see each other",
    planted("", "packed", rows=2, no_edit="no edit shows a row the tokens of all others"),
    step(Packed, sees=lambda right, self, i, at, row, position: position <= at),
)

fault("X3-mask-of-first-row", "mask/token-hidden").plant(
    "Rows are grouped whatever their padding, and all get the mask of the group's first",
    planted("uncached", "expanded", families=SLOTS, rows=2, edit="mask-of-another"),
    step(Uncached, visible=lambda right, self, ids, real: real & real[:1]),
)


@planted("rolled_back", "holes", families=FOUR_D, cache_states=("preallocated",), no_edit=HANDED)
@fault("K9-spare-slots-visible", "mask/pad-visible", "sgl-project/sglang#19796")
class SpareSlotsVisible(PerQuery):
    """The mask shows the slots of a preallocated cache that nothing was written to."""

    spare = True
