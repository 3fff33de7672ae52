"""Cache layers of ``transformers``' interface that its own classes do not offer: preallocated, and recurrent.

`PreallocatedLayer` keeps rejected entries behind its valid part, as an engine with fixed buffers does.
`RecurrentLayer` is the state of a recurrent model: what it has absorbed, in order. It can be copied and reordered by
row; it has no slots, so it cannot be cropped (as in ``transformers``, ``crop`` shortens only the reported length).
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

GARBAGE = 2.0**30


class PreallocatedLayer(DynamicLayer):  # type: ignore[misc]
    """K and V ``[batch, heads, capacity, width]``, of which the first ``length`` slots are valid."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.length = 0

    def lazy_initialization(self, key_states: torch.Tensor, *args: Any) -> None:
        super().lazy_initialization(key_states, *args)
        batch, heads, _, width = key_states.shape
        self.keys = torch.full((batch, heads, self.capacity, width), GARBAGE, dtype=key_states.dtype)
        self.values = self.keys.clone()

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, *_values_too(self, value_states))
        end = self.length + key_states.shape[2]
        self.keys[:, :, self.length : end] = key_states
        self.values[:, :, self.length : end] = value_states
        self.length = end
        return self.keys, self.values

    def get_seq_length(self, *args: Any) -> int:
        return self.length

    def crop(self, amount: int) -> None:
        """Drop the newest ``-amount`` entries; they stay in memory behind the valid part."""
        self.length = max(0, self.length + amount) if amount < 0 else min(self.length, amount or self.length)
