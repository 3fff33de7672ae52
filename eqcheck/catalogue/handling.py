"""K and V of one layer as a fault hands them on: exchanged, one in place of the other, heads mixed up, numbers changed.

Engines pass through it what they read from a cache of their own, or what they have moved in one. Whatever is broken
here keeps shapes, and the rows and places of tokens, as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Set

import torch

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
