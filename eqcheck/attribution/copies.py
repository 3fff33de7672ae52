"""Check that the copies of an entry agree: each layer, K and V, and each head hold one of it."""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np

from eqcheck.hashlm.hashing import (
    CALL,
    COLUMN,
    CONTENT,
    HEADS,
    HIGH,
    LAYERS,
    MODEL,
    NO_MODEL,
    PLACE,
    PLACES,
    POSITION,
    ROW,
    TOKEN,
    Bools,
    Ints,
    stored_digest,
)
from eqcheck.hashlm.trace import Call

_PLACES = np.arange(PLACES).reshape(LAYERS, 2, HEADS)  # where each copy of an entry belongs


def torn_slots(call: Call, row: int, copies: Ints) -> Bools:
    """The slots of a row whose copies ``[layer, K/V, head, slots, width]`` disagree, as a mask ``[slots]``."""
    same = [MODEL, TOKEN, POSITION, CALL, ROW, COLUMN]
    torn = (copies[..., same] != copies[:1, :1, :1][..., same]).any(axis=(0, 1, 2, 4))
    torn |= (copies[..., PLACE] != _PLACES[call.layers, ..., None]).any(axis=(0, 1, 2)) & (copies[..., MODEL] > 0).any(
        axis=(0, 1, 2)
    )
    for odd in call.odd:
        torn |= False if odd is None else odd[row] != 0
    torn |= (copies[-1] != copies[-1, :1, :1])[..., HIGH:CALL].any(axis=(0, 1, 3))
    return cast(Bools, torn & ~_filled(call, row))


def _filled(call: Call, row: int) -> Bools:
    """The slots with one number all through each copy, as a mask ``[slots]``: memory that was filled, never written."""
    digits = np.stack([held[:, row] for held in call.held])  # [layer, K/V, head, slots, width]
    return cast(Bools, (digits == digits[..., :1]).all(axis=(0, 1, 2, 4)))


def emptied_slots(call: Call, row: int, copies: Ints) -> Bools:
    """The slots of a row that hold a pad written as numbers without meaning, as a mask ``[slots]``.

    Some cases write pads so, and then a pad that is seen does harm. The stamp and the identity of the write are whole;
    the digits of the content are one number, which is no digit.
    """
    said = np.stack([held[:, row, :, :, CONTENT] for held in call.held])  # [layer, K/V, head, slots, digits]
    number = said[0, 0, 0, :, 0]
    whole = (copies[..., PLACE] == _PLACES[call.layers, ..., None]).all(axis=(0, 1, 2))
    whole &= (copies[..., CALL:PLACE] == copies[:1, :1, :1, :, CALL:PLACE]).all(axis=(0, 1, 2, 4))
    whole &= (said == number[:, None]).all(axis=(0, 1, 2, 4))
    return cast(Bools, whole & ((number < 0) | (number > 255)))


class Torn(NamedTuple):
    """The disagreement of the copies of an entry: its ``kind`` without numbers, and in ``words``."""

    kind: str
    words: str


def disagreement(copies: Ints, layers: slice) -> Torn:
    """The disagreement between the copies ``[layer, K/V, head, width]`` of one slot, of these layers."""
    right = _PLACES[layers]
    if (copies[..., MODEL] == NO_MODEL).any():
        return Torn("no-model", "it holds numbers that no model wrote (scaled, rounded, moved or overwritten)")
    if (copies[..., MODEL] > 0).all() and (copies[..., PLACE] != right).any():
        at = tuple(np.argwhere(copies[..., PLACE] != right)[0])
        places = int(right[at]), int(copies[..., PLACE][at])
        (layer, value, head), was = (np.unravel_index(place, _PLACES.shape) for place in places)
        here, there = (f"{'KV'[v]} of layer {a}, head {h}" for a, v, h in ((layer, value, head), was))
        return Torn(f"{'KV'[value]}-written-as-{'KV'[was[1]]}", f"{here} contains what was written to {there}")
    names = ("token", "position", "digest", "write")
    values = np.stack(
        [
            copies[..., TOKEN],
            copies[..., POSITION],
            np.broadcast_to(stored_digest(copies)[-1:], copies.shape[:-1]),
            copies[..., CALL] * 2**40 + copies[..., ROW] * 2**20 + copies[..., COLUMN],
        ],
        axis=-1,
    )
    for axis, what in ((1, ("K", "V")), (0, ("layer 0", "layer 1")), (2, ("head 0", "head 1"))):
        first, second = np.take(values, 0, axis), np.take(values, -1, axis)
        for column, name in enumerate(names):
            differs = first[..., column] != second[..., column]
            if differs.any():
                a, b = int(first[..., column][differs][0]), int(second[..., column][differs][0])
                shown = f" ({a} and {b})" if name in ("token", "position") else ""
                words = f"{what[0]} and {what[1]} disagree about its {name}{shown}"
                return Torn(f"{('layers', 'values', 'heads')[axis]}-{name}", words)
    if (copies[..., MODEL] != copies[0, 0, 0, MODEL]).any():
        return Torn("models", "its copies are from different models, or some were never written")
    return Torn("scaled", "it holds numbers that no model wrote (scaled or rounded)")
