"""Rotary pointers: heads whose score is greatest at a given distance, whatever stands there.

A pointer is a list of reads ``(distance, sign)``. It reads the first slot that is there and whose key bit has the
sign (0: any). Rotary attention scores a key by ``sum a cos(w d) + b sin(w d)`` over its frequencies w, where d is the
distance from key to query; query and key only set the amplitudes a and b. `pointers.json` holds amplitudes for which
each read scores by about `MARGIN` more than the next, and the last more than each other distance under `POSITIONS`.
So after the softmax all weight lies on a single slot, and rounding cannot move it. A key carries the sign of its bit in
the `KEYED_PAIRS`; in the other pairs all keys are alike.

Where the sign of a bit cannot turn a key, as with learned positions, the key adds it beside its pairs: then a pointer
reads by a list of its own, `added`. `benchmarks/pointers.py` finds the amplitudes.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

HEAD_DIM, BASE, MARGIN, POSITIONS = 64, 10_000.0, 24, 2048
AHEAD = 40  # positions behind a query's own that a wrong context may show it: they score low, or are read
KEYED_PAIRS = tuple(range(3, HEAD_DIM // 2, 4))

Reads = tuple[tuple[int, int], ...]


def plain(distance: int) -> Reads:
    """The reads of a pointer to a distance; where no such slot is there yet, it reads the query's own slot.

    A pointer in `LOOKING` reads a slot ahead of the query first, if that is seen: it never is in a right context.

    >>> plain(40), plain(42), plain(2)
    (((40, 0), (0, 0)), ((-1, 0), (-2, 0), (42, 0), (0, 0)), ((2, 0), (1, 0), (0, 0)))
    """
    slopes = {1: (1, 0), 2: (2, 1, 0)}  # a score of bounded frequencies cannot rise and fall within two distances
    ahead = (-1, -2) if distance in LOOKING else ()
    return tuple((d, 0) for d in slopes.get(distance, (*ahead, distance, 0)))


def keyed(distance: int, other: int) -> Reads:
    """The reads of a pointer to a distance if the bit of the key there is set, else to the other distance."""
    return ((distance, 1), (other, 0), (0, 0))


def beyond(*distances: int) -> Reads:
    """The reads of a pointer to the first of these distances that is there and seen. A window hides some of them.

    >>> beyond(32, 31)
    ((32, 0), (31, 0), (0, 0))
    """
    return tuple((distance, 0) for distance in (*distances, 0))


def added(distance: int, other: int) -> Reads:
    """The reads of a pointer to whose score the bit of a key is added: to a distance, or to the other.

    >>> added(16, 15)
    ((16, 1), (15, 1), (16, 0), (15, 0), (0, 0))
    """
    return ((distance, 1), (other, 1), (distance, 0), (other, 0), (0, 0))


# Distances and pairs are chosen for short vectors of amplitudes: the rounding of a key costs a score in proportion.
NEAR_PLAIN = (*range(1, 13), 15, 16, 17, 20, 23, 24, 30, 35, 39, 40, 42, 48, 49, 52, 55, 59, 60, 64)
PLAIN = (*NEAR_PLAIN, 81, 100, 131, 162, 193, 257)
# A look ahead makes these vectors shorter, or little longer.
LOOKING = frozenset(
    (3, 4, 5, 10, 11, 12, 16, 17, 23, 24, 30, 31, 35, 36, 42, 48, 49, 55, 56, 62, 81, 131, 162, 193, 257)
)
KEYED = (
    (58, 57), (26, 25), (33, 34), (45, 44), (31, 32), (43, 61),
    (13, 14), (37, 62), (63, 38), (50, 51), (18, 36), (19, 56),
)  # fmt: skip

WINDOW = 32  # a layer with a window sees the distances under it
# Distances by layer with a window. The last distance stands in the window; all but 28 do, which is too dear for fp8
# keys. Others stand behind it, or ahead of the query: a slot there is read if it is seen, and it never is in a right
# context.
NEAR = (
    (
        (32, 31), (58, 1), (2, 1), (-1, -2, 36, 4), (33, 8), (-1, 43, 11),
        (40, 15), (44, 19), (57, 22), (51, 26), (-1, -2, 23), (-1, -2, 29),
    ),
    (
        (32, 31), (-1, -2, 3), (-1, 37, 5), (42, 9), (35, 10), (56, 12),
        (38, 13), (64, 20), (39, 21), (50, 25), (52, 27), (-1, 62, 30),
    ),
)  # fmt: skip
NEAR_KEYED = (((6, 7), (14, 7), (16, 17), (24, 18)), ((7, 14), (18, 6), (17, 16), (24, 25)))
FAR, FAR_KEYED = (33, 36, 40, 41, 46, 49, 55, 60, 81, 126, 194, 258), ((38, 44), (37, 43), (50, 57), (56, 62))


@dataclass(frozen=True)
class Rotation:
    """Describe how keys turn with their positions: the frequency of each pair, and the file of the amplitudes.

    ``adds`` says that the bit of a key is added: its amplitude stands behind the cosines. Scores are cut off at the
    ``cap``, if there is one.
    """

    file: str
    frequencies: tuple[float, ...]
    adds: bool
    cap: float | None = None


def rotary(base: float) -> tuple[float, ...]:
    """The frequencies of the pairs of a rotary head."""
    return tuple(base ** (-2 * pair / HEAD_DIM) for pair in range(HEAD_DIM // 2))


ADDED: tuple[Reads, ...] = (*map(plain, PLAIN), *(added(*pair) for pair in KEYED))
ROTARY = Rotation("pointers.json", rotary(BASE), False)
# A table of positions may turn at any frequency: with these, amplitudes are a quarter of rotary ones.
LEARNED = Rotation("learned.json", tuple(math.pi * ((pair + 0.5) / 31) ** 1.75 for pair in range(31)), True)
COMPRESSED_BASE = 10.0
COMPRESSED = Rotation("compressed.json", rotary(COMPRESSED_BASE), True)
# Behind this cap two slots that score 48 and 60 are alike, the query's own scores 0, and all others -24 at most.
CAPPED = Rotation("capped.json", rotary(BASE), False, 12.0)
# Both distances of each pair are read at once.
PAIRS = (
    (1, 2), (4, 5), (6, 7), (8, 9), (10, 11), (12, 13), (14, 15), (16, 17),
    (18, 19), (20, 21), (24, 25), (30, 31), (32, 33), (34, 35), (36, 37), (38, 39),
    (42, 43), (44, 45), (49, 50), (51, 52), (56, 57), (58, 59), (62, 63), (63, 126),
)  # fmt: skip


@cache
def amplitudes(rotation: Rotation = ROTARY) -> dict[Reads, tuple[list[float], list[float]]]:
    """Return by reads the amplitudes of cosine and sine at each of the frequencies."""
    rows = json.loads((files("eqcheck.engines.construction") / rotation.file).read_text())
    return {tuple(map(tuple, row["reads"])): (row["cosines"], row["sines"]) for row in rows}


def levels(reads: Reads) -> list[float]:
    """The score of each read of a rotary pointer: the greatest that a slot has there, of those not read before.

    >>> [round(level) for level in levels(plain(40))]
    [269, 246]
    """
    cosines, sines = amplitudes()[reads]
    scored: list[float] = []
    for distance, sign in reads:
        parts = [
            a * math.cos(w * distance) + b * math.sin(w * distance)
            for a, b, w in zip(cosines, sines, ROTARY.frequencies, strict=True)
        ]
        turned = sum(part for pair, part in enumerate(parts) if pair in KEYED_PAIRS)
        scored.append(sum(parts) - turned + (turned if sign else abs(turned)))
    return scored
