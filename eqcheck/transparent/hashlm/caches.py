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

from eqcheck.contract.cache_names import installed_name
from eqcheck.transparent.hashlm.hashing import LAYERS
from eqcheck.transparent.hashlm.trace import Uses

GARBAGE = 2.0**30


class _Counted(DynamicLayer):  # type: ignore[misc]
    """A layer that counts its valid entries, apart from the entries that it holds."""

    length = 0

    def get_seq_length(self, *args: Any) -> int:
        return self.length

    def crop(self, amount: int) -> None:
        """Drop the newest ``-amount`` entries, or all behind ``amount``; the content of the layer stays."""
        self.length = max(0, self.length + amount) if amount < 0 else min(self.length, amount or self.length)


class PreallocatedLayer(_Counted):
    """Buffers for K and V ``[batch, heads, capacity, width]``; their first ``length`` slots are valid."""

    is_compileable = True  # as a static cache: a mask is built for it also where one token is fed

    def __init__(self, capacity: int, uses: Uses | None = None) -> None:
        super().__init__()
        self.capacity = capacity
        self.uses = uses or Uses(capacity)

    def lazy_initialization(self, key_states: torch.Tensor, *args: Any) -> None:
        self.dtype, self.device, self.is_initialized = key_states.dtype, key_states.device, True
        self.uses.written = True
        batch, heads, _, width = key_states.shape
        self.keys = key_states.new_full((batch, heads, self.capacity, width), GARBAGE)
        self.values = self.keys.clone()

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        end = self.length + key_states.shape[2]
        self.keys[:, :, self.length : end] = key_states
        self.values[:, :, self.length : end] = value_states
        self.length = end
        return self.keys, self.values

    def get_mask_sizes(self, *args: Any) -> tuple[int, int]:
        return self.capacity, 0


class RecurrentLayer(_Counted):
    """The steps that a recurrent model has absorbed, ``[2 (K, V), batch, heads, steps, width]``.

    ``keys`` and ``values`` are None. ``crop`` shortens the reported length alone: the absorbed steps stay, as in
    ``transformers`` 5. Of a convolution it keeps the last ``kept`` steps.
    """

    is_croppable = False

    def __init__(self, kept: int | None = None) -> None:
        super().__init__()
        self.absorbed: torch.Tensor | None = None
        self.kept = kept

    def lazy_initialization(self, key_states: torch.Tensor, *args: Any) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.lazy_initialization(key_states)
        before = [] if self.absorbed is None else [self.absorbed]
        taken = torch.cat([*before, torch.stack([key_states, value_states])], dim=3)
        self.absorbed = taken if self.kept is None else taken[:, :, :, -self.kept :]
        self.length += key_states.shape[2]
        return taken[0], taken[1]

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        if self.absorbed is not None:
            self.absorbed = self.absorbed[:, indices]

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.absorbed is not None:
            self.absorbed = self.absorbed.repeat_interleave(repeats, dim=1)

    def reset(self) -> None:
        self.absorbed, self.length = None, 0


def install_state(cache: Any, kernel: int | None = None) -> None:
    """Make an empty cache hold recurrent layers; ``TypeError`` for one that already holds keys and values.

    With a ``kernel`` the first layer is a convolution, which sees its newest input and keeps those before it.
    """
    layers = getattr(cache, "layers", None)
    if layers is None:
        raise TypeError(
            f"{installed_name()}: expected a DynamicCache for a recurrent model, got {type(cache).__name__}"
        )
    for number in range(LAYERS):
        kept = kernel - 1 if kernel and not number else None
        if number == len(layers):
            layers.append(RecurrentLayer(kept))
        elif not isinstance(layers[number], RecurrentLayer):
            if layers[number].is_initialized:
                raise TypeError(f"{installed_name()}: a recurrent model has a state, it cannot use keys and values")
            layers[number] = RecurrentLayer(kept)


def preallocated(capacity: int, layers: int = LAYERS) -> DynamicCache:
    """A cache of so many ``layers`` with ``capacity`` slots each, none valid; the first call makes them, of garbage."""
    cache, uses = DynamicCache(), Uses(capacity)
    cache.layers.extend(PreallocatedLayer(capacity, uses) for _ in range(layers))
    return cache
