"""A causal LM whose cache rows are written each at its own offset: token j of a row is in slot j of its cache row.

Nothing is ever moved within a row. A rejected draft token stays where it is until the row's next block overwrites it,
and until then no query sees it: it lies behind every query of its row. Where the rows of a forward are equally long,
the model's own causal mask says exactly that; where they differ, a mask per row does.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from transformers import Cache
from transformers.cache_utils import DynamicLayer

from eqcheck.contract.cache_names import cache_argument

from .checks import max_positions, window_of

ROOM = 1.5  # rows and slots are allocated with so much room,
WASTE = 4  # and given back when they are more than so many times what is needed


class WritePlan:
    """Plan where the next forward writes: cache rows from ``first``, each from its offset; and how far it sees."""

    first = 0
    start = 0  # the greatest offset
    slots: torch.Tensor | None = None  # [rows, block], where each token goes, if offsets differ
    width = 0
    capacity = (0, 0)  # rows and slots allocated


class RowLayer(DynamicLayer):  # type: ignore[misc]
    """K and V ``[rows, heads, slots, dim]`` of one layer, preallocated; zero where nothing was written."""

    def __init__(self, plan: WritePlan) -> None:
        super().__init__()
        self.plan = plan

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.dtype, self.device, self.is_initialized = key_states.dtype, key_states.device, True
        self.keys, self.values = (self.zeros(states) for states in (key_states, value_states))

    def zeros(self, like: torch.Tensor) -> torch.Tensor:
        rows, slots = self.plan.capacity
        return like.new_zeros(rows, like.shape[1], slots, like.shape[3])

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        return self._write(self.keys, key_states), self._write(self.values, value_states)

    def _write(self, memory: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        plan = self.plan
        rows = memory[plan.first : plan.first + len(states)]
        if plan.slots is None:
            rows[:, :, plan.start : plan.width] = states
        else:
            rows.scatter_(2, plan.slots[:, None, :, None].expand_as(states), states)
        return rows[:, :, : plan.width]

    def get_seq_length(self, *args: Any) -> int:
        return self.plan.start

    def get_mask_sizes(self, *args: Any) -> tuple[int, int]:
        return self.plan.width, 0

    def resize(self) -> None:
        if self.is_initialized:
            for name in ("keys", "values"):
                old = getattr(self, name)
                new = self.zeros(old)
                rows, slots = min(old.shape[0], new.shape[0]), min(old.shape[2], new.shape[2])
                new[:rows, :, :slots] = old[:rows, :, :slots]
                setattr(self, name, new)


class RowModel:
    """A causal LM and its cache rows; which row holds what, and how many slots of it are valid, the engine knows.

    Memory: keys and values of at most ``WASTE`` times ``rows * slots`` of the last `fit`; while it resizes, one layer's
    old ones beside.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.device = model.device
        self.window, self.last_position = window_of(model), max_positions(model) - 1
        self.keeps = "logits_to_keep" in inspect.signature(model.forward).parameters
        self.plan = WritePlan()
        layers = model.config.get_text_config().num_hidden_layers
        self.cache = Cache(layers=[RowLayer(self.plan) for _ in range(layers)])

    def fit(self, rows: int, slots: int, most: int | None = None) -> None:
        """Have room for so many rows and slots and not much more, nor for more than ``most`` slots in all of them.

        Slots within are kept.
        """
        have = self.plan.capacity
        grown = [old if need <= old else int(need * ROOM) for need, old in zip((rows, slots), have, strict=True)]
        if grown[0] * grown[1] > WASTE * rows * slots:
            grown = [int(rows * ROOM), int(slots * ROOM)]
        if most is not None and grown[0] * grown[1] > most:
            grown = [rows, min(int(slots * ROOM), most // max(1, rows))]
        if tuple(grown) != have:
            assert most is None or rows * slots <= grown[0] * grown[1] <= most
            self.plan.capacity = (grown[0], grown[1])
            for layer in self.cache.layers:
                layer.resize()

    @property
    def kv_bytes(self) -> int:
        """The bytes of keys and values."""
        memories = (
            memory for layer in self.cache.layers if layer.is_initialized for memory in (layer.keys, layer.values)
        )
        return sum(memory.untyped_storage().nbytes() for memory in memories)

    def feed(
        self,
        ids: torch.Tensor,
        offsets: Sequence[int],
        first: int = 0,
        logits_to_keep: int = 0,
        shown: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """Write block i of ``ids`` ``[rows, block]`` into cache row ``first + i`` from slot ``offsets[i]`` on.

        ``shown`` has position ids ``[rows, block]`` and the slots that each query sees, bools ``[rows, block,
        max(offsets) + block]``; without it they are those of a text. Returns logits ``[rows, block, vocab]``, or only
        the last ``logits_to_keep`` of them. Call `fit` first.
        """
        keep = {"logits_to_keep": logits_to_keep} if self.keeps else {}
        logits: torch.Tensor = self.run(offsets, first, shown, input_ids=ids, **keep).logits[:, -logits_to_keep:]
        return logits

    def run(
        self,
        offsets: Sequence[int],
        first: int = 0,
        shown: tuple[torch.Tensor, torch.Tensor] | None = None,
        **inputs: Any,
    ) -> Any:
        """The model's output for ``inputs`` ``[rows, block, ...]`` that go where `feed` says."""
        rows, block = next(iter(inputs.values())).shape[:2]
        plan = self.plan
        plan.first, plan.start = first, max(offsets)
        plan.width = plan.start + block
        columns = torch.arange(block, device=self.device)
        same = min(offsets) == plan.start
        places = (columns + plan.start)[None] if same else torch.tensor(offsets, device=self.device)[:, None] + columns
        plan.slots = None if same else places
        at, seen = (places, None if same else self._seen(places)) if shown is None else shown
        return self.model(
            **inputs,
            attention_mask=None if seen is None else self._mask(seen),
            # Only surplus columns, whose logits nobody reads, can lie beyond the model's last position.
            position_ids=at.clamp(max=self.last_position).expand(rows, -1),
            use_cache=True,
            **cache_argument(self.model, self.cache),
        )

    def _seen(self, places: torch.Tensor) -> torch.Tensor:
        """Return which slots a query sees, ``[rows, block, width]``: its own row up to itself."""
        keys, queries = torch.arange(self.plan.width, device=self.device), places[:, :, None]
        seen = keys <= queries
        return seen if self.window is None else seen & (keys > queries - self.window)

    def _mask(self, seen: torch.Tensor) -> torch.Tensor:
        """The bias to the scores, ``[rows, 1, block, width]``."""
        scores = torch.zeros(seen.shape, dtype=self.model.dtype, device=self.device)
        return scores.masked_fill_(~seen, torch.finfo(self.model.dtype).min)[:, None]

    def move(self, rows: Sequence[int], source: torch.Tensor, first: Sequence[int]) -> None:
        """Copy the slots ``source`` ``[rows, n]`` of these cache rows to ``n`` slots of each, from ``first[i]`` on.

        All slots are read before anything is written, so source and destination may overlap.
        """
        index = torch.tensor(list(rows), device=self.device)[:, None]
        to = torch.tensor(list(first), device=self.device)[:, None] + torch.arange(source.shape[1], device=self.device)
        for layer in self.cache.layers:
            for memory in (layer.keys, layer.values):
                memory[index, :, to] = memory[index, :, source]

    def copy_row(self, source: int, destination: int, length: int) -> None:
        """Give the first ``length`` slots of one row to another row."""
        for layer in self.cache.layers:
            for memory in (layer.keys, layer.values):
                memory[destination, :, :length] = memory[source, :, :length]

    def gather(self, rows: torch.Tensor, width: int) -> RowModel:
        """A copy of these rows ``[n]`` with ``width`` slots each, as a model of its own."""
        group = RowModel(self.model)
        group.plan.capacity = (len(rows), min(width, self.plan.capacity[1]))
        for mine, copy in zip(self.cache.layers, group.cache.layers, strict=True):
            if mine.is_initialized:
                copy.lazy_initialization(mine.keys[:0, :, :0], mine.values[:0, :, :0])
                copy.keys = mine.keys[:, :, :width].index_select(0, rows)
                copy.values = mine.values[:, :, :width].index_select(0, rows)
        return group

    def scatter(self, group: RowModel, source: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor) -> None:
        """Take over from a gathered group its row ``source[i]`` at ``slots[i]`` into row ``rows[i]``, for all i."""
        for mine, copy in zip(self.cache.layers, group.cache.layers, strict=True):
            if not copy.is_initialized:  # nothing was drafted
                continue
            if not mine.is_initialized:
                mine.lazy_initialization(copy.keys, copy.values)
            mine.keys[rows, :, slots] = copy.keys[source, :, slots]
            mine.values[rows, :, slots] = copy.values[source, :, slots]
