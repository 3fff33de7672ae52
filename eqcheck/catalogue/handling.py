"""What a fault makes of what a cache hands on: K and V of a layer, and what is told of the mask to be built.

Engines pass through `handled` what they read from a cache of their own, or what they have moved in one. Whatever is
broken there (exchanged, one in place of the other, heads mixed up, numbers changed) keeps shapes, and the rows and
places of tokens, as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any

import torch
from transformers import DynamicCache

Pair = tuple[torch.Tensor, torch.Tensor]

_HANDLED: dict[str, Callable[[torch.Tensor, torch.Tensor], Pair]] = {
    "K15-keys-and-values-exchanged": lambda keys, values: (values, keys),
    "K15-values-as-keys": lambda keys, values: (values, values),
    "K16-heads-rolled": lambda keys, values: (keys.roll(1, 1), values.roll(1, 1)),
    "K16-head-0-everywhere": lambda keys, values: (_first_head(keys), _first_head(values)),
    "K16-keys-heads-reversed": lambda keys, values: (keys.flip(1), values),
    "K18-keys-scaled": lambda keys, values: (keys * 2, values),
    "K18-values-negated": lambda keys, values: (keys, -values),
}


def _first_head(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[:, :1].expand_as(tensor).clone()


def handled(faults: Set[str], keys: torch.Tensor, values: torch.Tensor) -> Pair:
    """K and V ``[rows, heads, slots, width]``, unless one of these faults is among those switched in."""
    for fault in faults & _HANDLED.keys():
        keys, values = _HANDLED[fault](keys, values)
    return keys, values


def told(faults: Set[str], length: int, offset: int, fed: int) -> tuple[int, int]:
    """For how many keys a mask is to be built, and the place of the first, unless one of these faults is on."""
    if "K28-sizes-without-the-block" in faults:
        length -= fed
    return length, offset + ("K29-sizes-one-late" in faults)


class Telling(DynamicCache):  # type: ignore[misc]
    """An ordinary cache, but for what it tells of the mask."""

    def __init__(self, faults: Set[str]) -> None:
        super().__init__()
        self.faults = faults

    def get_mask_sizes(self, query: Any, *args: Any) -> tuple[int, int]:
        fed = query if isinstance(query, int) else len(query)  # transformers 4 hands over the slots
        length, offset = super().get_mask_sizes(query, *args)
        return told(self.faults, length, offset, fed)
