"""A model with one cache for the batch, for target and draft alike; three ways to take rejected draft tokens out of it.

`RealignedCache` moves what is left together, `HoleyCache` hides the rejected slots, `CroppedCache` cuts the columns
that no row has a use for. A fault of the draft is a fault of the target switched in on the draft's side.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from eqcheck.catalogue.engine import Rows, additive, left_padded, own_copy, placed, prefix_for
from eqcheck.catalogue.handling import Telling, handled
from eqcheck.hashing import POSITION_DIGITS

PAD, REJECTED = -1, -2  # what a slot holds instead of the token of a logical position
DRAFT_SIDE = {
    "M2-draft-without-mask": "M1-no-mask",
    "D2-draft-over-trimmed": "K2-one-too-many-dropped",
    "D3-draft-keeps-rejected": "K3-never-cropped",
    "D4-draft-rows-not-permuted": "X2-stale-row-index",
    "D8-draft-positions-off": "P6-bonus-off-by-one",
    "D9-draft-cache-of-other-row": "K7-rows-swapped",
}


class BatchCache:
    """A causal LM with one cache for a batch; blocks are left padded.

    Per slot of every row, ``holds`` is the logical position of its token, `PAD` or `REJECTED`, and ``tokens`` the
    token; ``shown`` are slots that are visible although they should not be: only faults set any. ``lengths`` counts the
    tokens of each row that are cached, ``believed`` is where a fault has its next positions start.
    """

    def __init__(self, model: Any, prompts: Rows, pad: int, faults: Iterable[str]) -> None:
        self.model, self.prompts, self.pad, self.faults = model, prompts, pad, frozenset(faults)
        self.batch = len(prompts)
        self.cache: Any = Telling(self.faults)
        self.lengths = [0] * self.batch
        self.believed = [0] * self.batch
        self.prompt_ends = [len(prompt) for prompt in prompts]
        self.spare = 0  # slots of a preallocated cache behind those used
        self._remember(0)

    def on(self, *faults: str) -> bool:
        return not self.faults.isdisjoint(faults)

    def start_from(self, handed: Any, prefix: int) -> None:
        """Go on from a handed cache: one row with a common prefix, or preallocated and empty."""
        if not prefix:
            self.cache = own_copy(handed)
            self.spare = handed.layers[0].capacity
            return
        self.cache = prefix_for(handed, self.batch)
        self.lengths = [prefix] * self.batch
        self.believed = [0 if self.on("P1-positions-without-prefix") else prefix] * self.batch
        self._remember(prefix)
        if self.on("K10-prefix-of-first-row-only"):
            self.holds[1:] = REJECTED
            for layer in self.cache.layers:
                layer.keys[1:], layer.values[1:] = 0, 0

    def _remember(self, prefix: int) -> None:
        self.holds = torch.arange(prefix).repeat(self.batch, 1)
        self.tokens = torch.tensor([prompt[:prefix] for prompt in self.prompts], dtype=torch.long)
        self.shown = torch.zeros((self.batch, prefix), dtype=torch.bool)

    def feed(self, blocks: Rows) -> list[torch.Tensor]:
        """Feed each row its block (ragged, may be empty); per row the logits ``[len(block), vocab]``."""
        first, asked = self.holds.shape[1] == 0, [len(block) for block in blocks]
        again = self.on("K4-last-token-twice") and not first
        if again:
            blocks = [[int(self.tokens[row, self.holds[row].argmax()]), *block] for row, block in enumerate(blocks)]
        ids, real = left_padded(blocks, self.pad)
        rank = real.long().cumsum(1) - 1  # of a real token within its block
        twice = real & rank.eq(0) if again else torch.zeros_like(real)
        at = torch.tensor(self.lengths)[:, None] - int(again) + rank
        self.holds = torch.cat([self.holds, torch.where(twice, REJECTED, torch.where(real, at, PAD))], 1)
        self.tokens = torch.cat([self.tokens, ids], 1)
        self.shown = torch.cat([self.shown, twice], 1)
        if self.on("P1-positions-without-prefix", "P4-scalar-advance", "P5-advance-by-k"):
            at = torch.tensor(self.believed)[:, None] + rank
        logits = self.model(
            input_ids=ids,
            attention_mask=self._mask(ids.shape[1]),
            position_ids=self._positions(placed(at, real, self.model, self.faults), real & rank.eq(0) & (not first)),
            past_key_values=self.cache,
            use_cache=True,
        ).logits
        self.lengths = [n + a for n, a in zip(self.lengths, asked, strict=True)]
        self.believed = [n + a for n, a in zip(self.believed, asked, strict=True)]
        answers = [row[mask] for row, mask in zip(logits, real, strict=True)]
        return [row[len(row) - a :] for row, a in zip(answers, asked, strict=True)]

    def _positions(self, positions: torch.Tensor, newest: torch.Tensor) -> torch.Tensor | None:
        """Position ids of a block, in which ``newest`` marks each row's correction or bonus token."""
        if self.on("P6-bonus-off-by-one"):
            positions = positions - newest.long()
        if self.on("P8-clamped-at-one"):
            positions = positions.clamp(min=1)
        if self.on("P3-row-0-positions"):
            positions = positions[:1]
        return None if self.on("P1-positions-by-slot") else positions

    def _mask(self, width: int) -> torch.Tensor:
        """A 2-D mask of what is cached and fed; a 4-D one where a fault treats queries differently."""
        visible = (self.holds >= 0) | self.shown
        slots = visible.shape[1]
        before = slots - width
        if self.on("M1-no-mask"):
            visible = visible | (self.holds == PAD)
        if self.on("M8-short-draft-pads-visible") and before:
            visible[:, before:] = True
        if self.on("M3-mask-by-token"):
            visible = visible & (self.tokens != self.pad)
        queries, keys = torch.arange(before, slots)[:, None], torch.arange(slots)
        causal = visible[:, None] & (keys <= queries)
        if self.on("M7-sees-next-draft"):
            return self._per_query(visible[:, None] & (keys <= queries + 1))
        if self.on("M7-misses-itself"):
            return self._per_query(causal & ((keys < queries) | (queries == before)))
        if self.on("M10-window-once-per-block"):
            return self._per_query(causal & (keys > before - self.model.config.sliding_window))
        if self.on("K9-spare-slots-visible"):
            return self._per_query(causal, spare=True)
        return visible.long()

    def _per_query(self, visible: torch.Tensor, spare: bool = False) -> torch.Tensor:
        """A 4-D mask, from ``[batch, block, slots]`` bools and one for all slots that are not used yet."""
        unused = max(0, self.spare - visible.shape[2])
        return additive(torch.nn.functional.pad(visible, (0, unused), value=spare), self.model)

    def keep(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
        """Keep these rows of the batch, with the first ``lengths`` tokens of each."""
        index, wanted = torch.tensor(rows), torch.tensor(lengths)[:, None]
        surplus = torch.tensor([self.lengths[row] for row in rows])[:, None] - wanted
        holds, shown = self.holds[index], self.shown[index]
        rejected = holds >= wanted
        if self.on("K3-never-cropped", "M4-rejected-visible", "M6-zeroed-not-masked"):
            shown = shown | rejected
        if self.on("K3-one-rejected-kept"):
            shown = shown | (holds == wanted)
        if self.on("K1-crop-to-max"):
            shown = shown | (rejected & (holds < wanted + surplus - surplus.min()))
        lost = torch.zeros_like(rejected)
        if self.on("K2-one-too-many-dropped", "M4-accepted-hidden"):
            lost = holds == wanted - 1
        if self.on("K2-crop-to-min-keep-tokens"):
            lost = holds >= wanted - (surplus.max() - surplus)
        if self.on("K11-reset-instead-of-rollback"):
            lost = (surplus > 0) & (holds >= 0)
        if self.on("K14-last-prompt-token-lost"):
            lost = holds == torch.tensor([self.prompt_ends[row] for row in rows])[:, None] - 1
        self.holds, self.tokens, self.shown = holds.masked_fill(rejected | lost, REJECTED), self.tokens[index], shown
        self.prompt_ends = [self.prompt_ends[row] for row in rows]
        self.believed = self._believed(rows, lengths, int(surplus.min()))
        self.lengths = list(lengths)
        source = torch.arange(len(rows)) if self.on("X2-stale-row-index") else index
        self.move(source.flip(0) if self.on("K7-rows-swapped") else source)
        self.batch = len(rows)

    def _believed(self, rows: Sequence[int], lengths: Sequence[int], least_rejected: int) -> list[int]:
        if self.on("P5-advance-by-k"):
            return [self.believed[row] for row in rows]
        if self.on("P4-scalar-advance"):
            return [self.believed[row] - least_rejected for row in rows]
        return list(lengths)

    def move(self, rows: torch.Tensor) -> None:
        """Make the cache follow ``holds`` and ``shown``; ``rows`` are the rows of the old batch to take."""
        raise NotImplementedError


class RealignedCache(BatchCache):
    """Each row's tokens are moved together at the right edge, and the slots that this frees are zeroed."""

    def move(self, rows: torch.Tensor) -> None:
        old_pads = (self.holds != PAD).long().argmax(1)
        self.shown &= self.holds != PAD
        used = (self.holds >= 0) | self.shown
        width = used.shape[1] if self.on("K5-cache-not-moved") else int(used.sum(1).max())
        order = used.long().argsort(dim=1, stable=True)[:, used.shape[1] - width :]
        source = order
        if self.on("K5-cache-not-moved"):
            source = torch.arange(used.shape[1] - width, used.shape[1]).expand(order.shape)
        if self.on("K5-moved-the-wrong-way"):
            source = used.long().argsort(dim=1, stable=True, descending=True)[:, :width]
        blank = ~used.gather(1, source)[:, None, :, None]
        for number, layer in enumerate(self.cache.layers):
            for name in ("keys", "values"):
                old = getattr(layer, name)
                new = old[rows[:, None], :, source].transpose(1, 2).masked_fill(blank, 0)
                left = old[rows][:, :, old.shape[2] - width :]
                if (name == "values" and self.on("K6-values-not-moved")) or (number and self.on("K6-layer-not-moved")):
                    new = left
                if self.on("K6-head-not-moved"):
                    new = torch.cat([new[:, :1], left[:, 1:]], 1)
                if self.on("P7-moved-keys-rotated"):
                    new[:, :, : width // 2, POSITION_DIGITS.start] += 1
                if name == "keys" and number and self.on("K19-keys-of-another-row"):
                    new = new.roll(1, 0)
                setattr(layer, name, new)
            layer.keys, layer.values = handled(self.faults, layer.keys, layer.values)
        if self.on("K17-layers-exchanged"):
            self.cache.layers.reverse()
        kept = used.gather(1, order)
        self.holds = self.holds.gather(1, order).masked_fill(~kept, PAD)
        self.tokens, self.shown = self.tokens.gather(1, order), self.shown.gather(1, order)
        if self.on("M5-new-pads-visible"):
            pads = torch.arange(width).expand(kept.shape) < width - kept.sum(1, keepdim=True)
            self.shown |= pads & (torch.arange(width) >= old_pads[:, None])


class HoleyCache(BatchCache):
    """Nothing moves: rejected slots stay where they are and are hidden by the mask."""

    def move(self, rows: torch.Tensor) -> None:
        if rows.tolist() != list(range(self.batch)):
            self.cache.batch_select_indices(rows)
        if self.on("M6-zeroed-not-masked"):
            zeroed = (self.shown & (self.holds == REJECTED))[:, None, :, None]
            for layer in self.cache.layers:
                for kept in (layer.keys, layer.values):
                    kept[:, :, : zeroed.shape[2]].masked_fill_(zeroed, 0)


class CroppedCache(BatchCache):
    """Columns at the end in which no row has a token are cut off, for all rows at once."""

    def move(self, rows: torch.Tensor) -> None:
        if rows.tolist() != list(range(self.batch)):
            self.cache.batch_select_indices(rows)
        used = ((self.holds >= 0) | self.shown).any(0)
        width = int(used.nonzero().max()) + 1 if used.any() else 0
        if width < used.shape[0]:
            self.cache.crop(width - used.shape[0])  # a negative count means the same in every version
        self.holds, self.tokens, self.shown = self.holds[:, :width], self.tokens[:, :width], self.shown[:, :width]
