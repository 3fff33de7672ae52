"""A model with a preallocated, slot-addressed cache, for target and draft alike: a row is written at its own offset.

Rejected draft tokens are not removed: the next block of the row overwrites them, and until then the mask ends before
them. A fault of the draft is a fault of the target switched in on the draft's side.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import Cache
from transformers.cache_utils import DynamicLayer

from eqcheck.catalogue.engine import Rows, additive
from eqcheck.catalogue.handling import handled

SLOTS = 2
DRAFT_SIDE = {
    "M2-draft-without-mask": "M8-short-block-pads-visible",
    "D2-draft-over-trimmed": "K2-one-too-many-dropped",
    "D3-draft-keeps-rejected": "K3-never-cropped",
    "D4-draft-rows-not-permuted": "X2-read-in-slot-order",
    "D8-draft-positions-off": "P6-bonus-off-by-one",
    "X8-draft-state-of-last-tenant": "K9-slot-not-reset",
}


@dataclass
class Plan:
    """For the next forward: which slot each row of the batch is in, and where in it its block begins."""

    capacity: int
    slots: torch.Tensor
    read: torch.Tensor
    key_starts: torch.Tensor
    value_starts: torch.Tensor


class SlotLayer(DynamicLayer):  # type: ignore[misc]
    """K and V ``[SLOTS, heads, capacity, width]``, of which a forward sees the rows that its plan names."""

    def __init__(self, plan: Plan, faults: frozenset[str]) -> None:
        super().__init__()
        self.plan, self.faults = plan, faults

    def lazy_initialization(self, key_states: torch.Tensor, *args: Any) -> None:
        self.dtype, self.device, self.is_initialized = key_states.dtype, key_states.device, True
        _, heads, _, width = key_states.shape
        self.keys = key_states.new_zeros((SLOTS, heads, self.plan.capacity, width))
        self.values = self.keys.clone()

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not self.is_initialized:
            self.lazy_initialization(key_states)
        for memory, block, starts in (
            (self.keys, key_states, self.plan.key_starts),
            (self.values, value_states, self.plan.value_starts),
        ):
            at = starts[:, None] + torch.arange(block.shape[2])  # [rows, block]
            turned = block.transpose(1, 2)
            if "K26-viewed-not-transposed" in self.faults:
                turned = block.reshape(turned.shape)
            memory[self.plan.slots[:, None], :, at] = turned
        return handled(self.faults, self.keys[self.plan.read], self.values[self.plan.read])

    def get_seq_length(self, *args: Any) -> int:
        return int(self.plan.key_starts.max())

    def get_mask_sizes(self, *args: Any) -> tuple[int, int]:
        return self.plan.capacity, 0

    def clear(self, slot: int, prefix: Any = None) -> None:
        """Empty a slot for a new row, or begin it with the entries of a handed prefix layer."""
        if prefix is not None and not self.is_initialized:
            self.lazy_initialization(prefix.keys)
        if self.is_initialized:
            self.keys[slot], self.values[slot] = 0, 0
        if prefix is not None:
            length = prefix.keys.shape[2]
            self.keys[slot, :, :length], self.values[slot, :, :length] = prefix.keys[0], prefix.values[0]


class SlotCache:
    """A causal LM with a slot-addressed cache. By request: ``slot``, and ``lengths``, its cached tokens.

    ``shift`` is how far a row's next slot is from its next logical position; only faults make it other than 0.
    """

    def __init__(self, model: Any, prompts: Rows, capacity: int, pad: int, faults: Iterable[str]) -> None:
        self.model, self.prompts, self.pad, self.faults = model, prompts, pad, frozenset(faults)
        self.slot: dict[int, int] = {}
        self.lengths = [0] * len(prompts)
        self.shift = [0] * len(prompts)
        self.fed = [0] * len(prompts)
        none = torch.zeros(1, dtype=torch.long)
        self.plan = Plan(capacity, none, none, none, none)
        self.cache = Cache(layers=[SlotLayer(self.plan, self.faults) for _ in range(model.config.num_hidden_layers)])

    def on(self, *faults: str) -> bool:
        return not self.faults.isdisjoint(faults)

    def join(self, i: int, slot: int, handed: Any, prefix: int, others: bool) -> None:
        """Give a slot to a row that joins; it begins with the handed prefix, if there is one."""
        tenant = max((self.lengths[r] + self.shift[r] for r, s in self.slot.items() if s == slot), default=0)
        self.slot[i] = slot
        self.lengths[i] = self.fed[i] = prefix
        if self.on("P1-positions-without-prefix"):
            self.fed[i] = 0
        if self.on("K9-slot-not-reset") and tenant:
            self.shift[i] = tenant - prefix
            return
        if self.on("K12-published-with-unemitted") and tenant > prefix > 0 and len(self.prompts[i]) > prefix + 1:
            self.lengths[i] = prefix + 1
            return
        for number, layer in enumerate(self.cache.layers):
            layer.clear(slot, handed.layers[number] if prefix else None)
        if self.on("K10-joined-row-not-prefilled") and others:
            self.lengths[i] = len(self.prompts[i]) - 1

    def feed(self, rows: Sequence[int], blocks: Rows, again: int = 0) -> list[torch.Tensor]:
        """Feed requests their blocks (ragged, right padded); per row the logits ``[len(block), vocab]``.

        The first ``again`` tokens of each block are cached already; only a fault feeds them once more.
        """
        lengths = [len(block) for block in blocks]
        width = max(lengths)
        ids = torch.tensor([block + [self.pad] * (width - len(block)) for block in blocks])
        starts = torch.tensor([self.lengths[i] for i in rows])
        offsets = starts + torch.tensor([self.shift[i] for i in rows])
        plan = self.plan
        plan.slots = torch.tensor([self.slot[i] for i in rows])
        plan.read = plan.slots.sort().values if self.on("X2-read-in-slot-order") else plan.slots
        plan.key_starts = offsets
        plan.value_starts = offsets.max().expand(len(rows)) if self.on("K6-values-at-longest-offset") else offsets
        if self.on("P5-advance-by-k", "P1-positions-without-prefix"):
            starts = torch.tensor([self.fed[i] for i in rows])
        if self.on("K21-length-not-rolled-back"):
            starts = offsets
        positions = starts[:, None] - again + torch.arange(width)
        if self.on("P6-bonus-off-by-one"):
            positions[:, 0] -= torch.tensor([self.lengths[i] >= len(self.prompts[i]) for i in rows]).long()
        logits = self.model(
            input_ids=ids,
            attention_mask=additive(self._visible(offsets, width, torch.tensor(lengths)), self.model),
            position_ids=None if self.on("P3-shared-positions") else positions,
            past_key_values=self.cache,
            use_cache=True,
        ).logits
        for i, length in zip(rows, lengths, strict=True):
            self.lengths[i] += length - again
            self.fed[i] += length - again
            self.shift[i] += again
        return [row[:length] for row, length in zip(logits, lengths, strict=True)]

    def _visible(self, offsets: torch.Tensor, width: int, lengths: torch.Tensor) -> torch.Tensor:
        """Which slots of its row each query sees, ``[rows, width, capacity]``."""
        queries = (offsets[:, None] + torch.arange(width))[..., None]
        keys = torch.arange(self.plan.capacity)
        ends = (offsets + lengths)[:, None, None]
        visible = keys <= queries
        if self.on("M7-sees-next-draft"):
            visible |= (keys == queries + 1) & (keys < ends)
        window = getattr(self.model.config, "sliding_window", None)
        if window is not None:
            newest = queries[:, :1] if self.on("M10-window-once-per-block") else queries
            visible &= keys > newest - window
        if self.on("M7-misses-itself"):
            visible &= (keys < queries) | (queries == offsets[:, None, None])
        if self.on("M8-short-block-pads-visible"):
            visible |= (keys >= ends) & (keys < offsets[:, None, None] + width)
        return visible

    def keep(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
        """Go on with the first ``lengths`` cached tokens of these requests."""
        surplus = [self.lengths[i] - n for i, n in zip(rows, lengths, strict=True)]
        for i, length, rejected in zip(rows, lengths, surplus, strict=True):
            self.lengths[i] = length
            if not self.on("P5-advance-by-k"):
                self.fed[i] = length
            if self.on("K3-never-cropped", "K21-length-not-rolled-back"):
                self.shift[i] += rejected
            if self.on("K1-crop-to-max"):
                self.shift[i] += rejected - min(surplus)
            if self.on("K2-one-too-many-dropped"):
                self.shift[i] -= 1
