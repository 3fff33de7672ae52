"""The write that a vector in a cache comes from, told by its bytes: whatever a decoder does with its cache, they stay.

Every key and value vector is remembered bit for bit when it goes into a cache, per model, layer, K or V, and head. A
slot then names the write that it comes from, in digits as `eqcheck.transparent.hashlm.hashing` has them. Vectors of
several writes may be equal, as of the same token at the same place after the same text; then they are interchangeable.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from eqcheck.transparent.hashlm import hashing
from eqcheck.transparent.hashlm.hashing import HEADS, LAYERS, PLACES, TOKEN, WIDTH, Bools, Ints, Words
from eqcheck.transparent.hashlm.trace import DRAFT, TARGET

GARBAGE = 2**30
_NOBODYS = 1  # a stamp that no model writes
_BITS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}


def vectors(tensor: torch.Tensor) -> list[list[list[bytes]]]:
    """The bytes of each vector of ``[batch, heads, slots, width]``, in lists of that order."""
    data = tensor.detach().cpu().contiguous()
    batch, heads, slots, width = data.shape
    if not data.numel():
        return [[[] for _ in range(heads)] for _ in range(batch)]
    bits = data.view(_BITS[data.element_size()]).numpy().reshape(batch, heads, slots, width)
    return bits.view(f"V{width * data.element_size()}")[..., 0].tolist()  # type: ignore[no-any-return]


def two_heads(tensor: torch.Tensor, repeated: int = 1) -> torch.Tensor:
    """The first and the last head of ``[batch, heads, slots, width]``, where each head may stand several times."""
    return tensor[:, [0, tensor.shape[1] - repeated]]


# A cache in 8 bits moves an entry by some 3 parts in 100 of it; other entries are 14 or more away.
_NEAR = 0.1
Reals = npt.NDArray[np.float64]
Place = tuple[int, int, int, int]  # role, layer, K or V, head
Part = tuple[int, int, list[bytes], Bools]  # the layer, K or V, by slot its bytes, what the queries may see
_Origin = tuple[int, dict[int, None]]  # a place, by number, and the writes of it
_COPIES = [(layer, kind, head) for layer in range(LAYERS) for kind in range(2) for head in range(HEADS)]


class Held(NamedTuple):
    """The content of the slots of a cache, ``[PLACES, batch, slots]`` each: the number of the write, and its place.

    A negative number is no write: ``-1 - number`` is the row of ``strange`` that has the digits.
    """

    writes: Ints
    places: Ints
    strange: Ints


class Provenance:
    """The writes of a decode by the bytes of their vectors, which hold numbers of a ``dtype``."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._by_bytes: dict[Place, dict[bytes, dict[int, None]]] = defaultdict(dict)  # writes, oldest first
        self._rows: list[int] = []  # by write, the batch row
        self._first: dict[tuple[int, int], int] = {}  # the number of a call's first write, by role and call
        self._digits = np.zeros((256, 2, PLACES, WIDTH), np.int64)  # by write and role
        self.rounded = 0.0  # the largest distance of an entry from what it was written as, in parts of its length
        self._written: dict[int, dict[int, dict[int, bytes]]] = {TARGET: {}, DRAFT: {}}  # by role, write and copy
        self._tables: dict[int, tuple[list[int], Reals]] = {}

    def spell(self, layer: int, role: int, call: int, tokens: Ints, positions: Ints, digests: Words | None) -> None:
        """Note what the tokens of a call are in a layer, as `eqcheck.transparent.hashlm.hashing.entries` spells it."""
        batch, block = tokens.shape
        if (role, call) not in self._first:
            self._first[role, call] = len(self._rows)
            self._rows += [row for row in range(batch) for _ in range(block)]
            while len(self._rows) > len(self._digits):
                self._digits = np.concatenate([self._digits, np.zeros_like(self._digits)])
        spelled = hashing.entries(role, layer, tokens, positions, digests, call)  # [2, batch, HEADS, block, WIDTH]
        begin, per_layer = self._first[role, call], 2 * HEADS
        flat = spelled.transpose(1, 3, 0, 2, 4).reshape(batch * block, per_layer, WIDTH)
        places = slice(layer * per_layer, (layer + 1) * per_layer)
        self._digits[begin : begin + batch * block, role - 1, places] = flat

    def remember(self, layer: int, role: int, call: int, new: list[list[list[list[bytes]]]]) -> None:
        """Remember new vectors: K and V, ``[batch][2 heads][block]`` of bytes each."""
        for kind, tensor in enumerate(new):
            for row, heads in enumerate(tensor):
                for head, block in enumerate(heads):
                    known, begin = self._by_bytes[role, layer, kind, head], self._first[role, call] + row * len(block)
                    for column, data in enumerate(block):
                        known.setdefault(data, {})[begin + column] = None
                        copies = self._written[role].setdefault(begin + column, {})
                        copies[_COPIES.index((layer, kind, head))] = data

    def first(self, role: int, call: int) -> int:
        """The number of a call's first write; those of its rows follow, column by column."""
        return self._first[role, call]

    def knows(self, layer: int, role: int, data: bytes, kind: int = 0) -> bool:
        """Return whether K of the first head, or V if the ``kind`` is 1, was remembered with these bytes."""
        return data in self._by_bytes[role, layer, kind, 0]

    def tokens(self, layer: int, role: int, data: bytes, kind: int = 0) -> list[int]:
        """The tokens of the writes whose K of the first head, or V, has these bytes."""
        place = _COPIES.index((layer, kind, 0))
        writes = self._by_bytes[role, layer, kind, 0].get(data, {})
        return [int(self._digits[write, role - 1, place, TOKEN]) for write in writes]

    def held(self, role: int, caches: Sequence[Sequence[list[list[list[bytes]]]]]) -> Held:
        """The content of slots with these bytes: per layer K and V, ``[batch][2 heads][slots]``."""
        # Slots with equal bytes in all copies are looked up once and shared out among the writes that left such bytes:
        # a cache of a real model holds no stamp of the call, and equal text at equal positions gives equal keys.
        copies = [caches[layer][kind] for layer, kind, _ in _COPIES]
        batch, slots = len(copies[0]), len(copies[0][0][0]) if copies[0] else 0
        writes, places = np.zeros((PLACES, batch, slots), np.int64), np.zeros((PLACES, batch, slots), np.int64)
        strange: list[Ints] = []
        alike: dict[tuple[int, tuple[bytes, ...]], list[int]] = defaultdict(list)
        for row in range(batch):
            columns = [copy[row][head] for copy, (_, _, head) in zip(copies, _COPIES, strict=True)]
            for slot, data in enumerate(zip(*columns, strict=True)):
                alike[row, data].append(slot)
        origins_of = {data: [self._find(role, n, vector) for n, vector in enumerate(data)] for _, data in alike}
        origins_of |= self._rounded(role, [data for data, origins in origins_of.items() if None in origins])
        for row in range(batch):
            for (_, data), equal in ((key, slots) for key, slots in alike.items() if key[0] == row):
                origins = origins_of[data]
                for slot, agreed in zip(equal, self._agreed(origins, row, len(equal)), strict=True):
                    for number, place_and_write in enumerate(agreed):
                        if place_and_write is None:
                            strange.append(_strange(data[number]))
                            writes[number, row, slot] = -len(strange)
                        else:
                            places[number, row, slot], writes[number, row, slot] = place_and_write
        return Held(writes, places, np.array(strange or [np.zeros(WIDTH, np.int64)]))

    def digits(self, layer: int, held: Held) -> Ints:
        """The digits in a layer of what is held, ``[2 (K, V), batch, HEADS, slots, WIDTH]``."""
        part = slice(layer * 2 * HEADS, (layer + 1) * 2 * HEADS)
        writes, places = held.writes[part], held.places[part]
        digits = self._digits[np.maximum(writes, 0), places // PLACES, places % PLACES]
        digits = np.where((writes < 0)[..., None], held.strange[np.where(writes < 0, -1 - writes, 0)], digits)
        copies, batch, slots, _ = digits.shape
        return digits.reshape(2, copies // 2, batch, slots, WIDTH).transpose(0, 2, 1, 3, 4)

    def _rounded(self, role: int, unknown: list[tuple[bytes, ...]]) -> dict[tuple[bytes, ...], list[_Origin | None]]:
        """The slots, among slots with bytes that nobody wrote, that are near to a write, as in a cache that rounds.

        All copies of a slot are held together against the copies of each write.
        """
        near = {data: one for data in unknown if (one := self._nearest(role, data)) is not None}
        self.rounded = max([self.rounded, *(distance for _, distance in near.values())])
        places = [(role - 1) * PLACES + number for number in range(PLACES)]
        return {data: [(place, {write: None}) for place in places] for data, (write, _) in near.items()}

    def _nearest(self, role: int, data: tuple[bytes, ...]) -> tuple[int, float] | None:
        """The write that all copies of a slot are nearest to, and how far that is; None where none is near."""
        written = self._written[role]
        known, table = self._tables.get(role, ([], np.zeros((0, 0))))
        new = [write for write in list(written)[len(known) :] if len(written[write]) == PLACES]
        if new:
            rows = np.stack([self._numbers([written[write][n] for n in range(PLACES)]) for write in new])
            known, table = [*known, *new], np.concatenate([table.reshape(-1, rows.shape[1]), rows])
            self._tables[role] = known, table
        slot = self._numbers(data)
        if not known or table.shape[1] != len(slot) or not np.isfinite(slot).all():
            return None
        distances = np.linalg.norm(table - slot, axis=1) / (np.linalg.norm(slot) or 1.0)
        best = int(distances.argmin())
        return (known[best], float(distances[best])) if distances[best] <= _NEAR else None

    def _numbers(self, copies: Sequence[bytes]) -> Reals:
        """The numbers of vectors with these bytes, one behind the other."""
        return torch.frombuffer(bytearray(b"".join(copies)), dtype=self._dtype).double().numpy()

    def _find(self, role: int, number: int, data: bytes) -> _Origin | None:
        """The place of these bytes, with their writes: this place of the model's caches, or else any place."""
        writes = self._by_bytes[(role, *_COPIES[number])].get(data)
        if writes:
            return (role - 1) * PLACES + number, writes
        for (other, *copy), known in self._by_bytes.items():
            if data in known:
                return (other - 1) * PLACES + _COPIES.index((copy[0], copy[1], copy[2])), known[data]
        return None

    def _agreed(self, origins: list[_Origin | None], row: int, count: int) -> list[list[tuple[int, int] | None]]:
        """The place and the write of each copy, for each of so many equal slots.

        The write is one that may stand behind all copies, or behind the copies of its layer, or any. Equal slots take
        the newest such writes, in their order.
        """
        whole, half = self._shared(origins, row, count), len(origins) // 2
        layers = [whole] * 2 if whole else [self._shared(part, row, count) for part in (origins[:half], origins[half:])]
        agreed: list[list[tuple[int, int] | None]] = []
        for slot in range(count):
            copies: list[tuple[int, int] | None] = []
            for number, origin in enumerate(origins):
                shared = layers[number // half]
                if origin is None:
                    copies.append(None)
                elif shared:
                    copies.append((origin[0], shared[min(slot, len(shared) - 1)]))
                else:
                    copies.append((origin[0], self._best(origin[1], row)))
            agreed.append(copies)
        return agreed

    def _shared(self, origins: Sequence[_Origin | None], row: int, count: int) -> list[int]:
        """The newest writes, so many at most and oldest first, that may stand behind all copies that were written.

        They are of the same row, if any such write is.
        """
        options = [origin[1] for origin in origins if origin is not None]
        if not options:
            return []
        shortest = min(options, key=len)
        others = [writes for writes in options if writes is not shortest]
        own: list[int] = []
        foreign: list[int] = []
        for write in reversed(shortest):
            if all(write in writes for writes in others):
                (own if self._rows[write] == row else foreign).append(write)
                if len(own) == count:
                    break
        return (own or foreign[:count])[::-1]

    def _best(self, writes: dict[int, None], row: int) -> int:
        """The newest of equal writes that is of the same row, or else the newest of all."""
        newest = next(reversed(writes))
        return next((write for write in reversed(writes) if self._rows[write] == row), newest)


def _strange(data: bytes) -> Ints:
    """Digits of a vector that no model wrote: zeros for zeros, and for any other digits that no entry has."""
    if not any(data):
        return np.zeros(WIDTH, np.int64)
    if is_filler(data):
        return np.full(WIDTH, GARBAGE, np.int64)
    out = np.resize(np.frombuffer(data, np.uint8).astype(np.int64), WIDTH)
    out[0] = _NOBODYS
    return out


def is_filler(data: bytes) -> bool:
    """Return whether the bytes are one number everywhere: memory that was filled.

    >>> is_filler(bytes(32)), is_filler(bytes(range(32)))
    (True, False)
    """
    return any(len(data) > size and data == data[:size] * (len(data) // size) for size in (8, 4, 2))


def written(tokens: Sequence[int], parts: Sequence[Part], role: int, provenance: Provenance) -> list[list[int]]:
    """The slots that a row's ``tokens`` were written to, for each part of its entries, where no cache was told.

    Keys that a decoder wrote into tensors of its own are among the keys that attention was handed, in the order of the
    columns. Bytes that were not seen before are new. A column may also have written known bytes: the same token at the
    same place after the same text, as in rows that have ended and are fed all the same. Then the new slots are fewer
    than the columns, and the missing slots lie in one run with them and hold the tokens that were fed.

    A part is K or V of a layer: the bytes of one head by slot, and the slots that queries may see, ``[block, slots]``.
    """
    new = [
        [at for at, data in enumerate(held) if not (is_filler(data) or provenance.knows(layer, role, data, kind))]
        for layer, kind, held, _ in parts
    ]
    # A part in which every column wrote new bytes shows the slots for all parts; only where none fits is a run guessed
    # from the tokens that known bytes stand for.
    whole = [slots for slots in new if len(slots) == len(tokens)]
    chosen = []
    for slots, (layer, kind, held, visible) in zip(new, parts, strict=True):
        if len(slots) == len(tokens):
            chosen.append(slots)
        elif fitting := [one for one in whole if set(slots) <= set(one) and one[-1] < len(held)]:
            chosen.append(fitting[0])
        else:
            known = [() if at in slots else provenance.tokens(layer, role, one, kind) for at, one in enumerate(held)]
            chosen.append(_run(tokens, slots, known, visible))
    return chosen


def _run(tokens: Sequence[int], new: list[int], known: Sequence[Sequence[int]], visible: Bools) -> list[int]:
    """The run of slots with all ``new`` ones in which the other slots hold the tokens; the last slots where none is.

    Of several runs it is the one in which most queries see their own slot last.
    """
    block, count = len(tokens), len(known)
    runs = [range(start, start + block) for start in range(count - block + 1)]
    fitting = [
        run
        for run in runs
        if set(new) <= set(run) and all(at in new or fed in known[at] for at, fed in zip(run, tokens, strict=True))
    ]

    def rank(run: range) -> tuple[int, int, int]:
        last = sum(bool(visible[c, at]) and not visible[c, at + 1 :].any() for c, at in enumerate(run))
        return last, sum(bool(visible[c, at]) for c, at in enumerate(run)), run.start

    best = max(fitting, key=rank, default=range(count - block, count))
    return list(best)
