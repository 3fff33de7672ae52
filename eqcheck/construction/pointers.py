"""Rotary pointers: heads whose score is greatest at a given distance, whatever stands there.

A pointer is a list of reads ``(distance, sign)``. It reads the first slot that is there and whose key bit has the
sign (0: any). Rotary attention scores a key by ``sum a cos(w d) + b sin(w d)`` over its frequencies w, where d is the
distance from key to query; query and key only set the amplitudes a and b. `pointers.json` holds amplitudes for which
each read scores by about `MARGIN` more than the next, and the last more than each other distance under `POSITIONS`.
So after the softmax all weight lies on a single slot, and rounding cannot move it. A key carries the sign of its bit in
the `KEYED_PAIRS`; in the other pairs all keys are alike. `benchmarks/pointers.py` finds the amplitudes.
"""

from __future__ import annotations

import json
from functools import lru_cache
from importlib.resources import files

HEAD_DIM, BASE, MARGIN, POSITIONS = 64, 10_000.0, 24, 2048
KEYED_PAIRS = tuple(range(3, HEAD_DIM // 2, 4))

Reads = tuple[tuple[int, int], ...]


def plain(distance: int) -> Reads:
    """The reads of a pointer to a distance; where no such slot is there yet, it reads the query's own slot.

    A score of bounded frequencies cannot rise and fall within three distances, so the nearest slope down to the query.

    >>> plain(40), plain(2)
    (((40, 0), (0, 0)), ((2, 0), (1, 0), (0, 0)))
    """
    return tuple((d, 0) for d in {2: (2, 1, 0), 3: (3, 2, 0)}.get(distance, (distance, 0)))


def keyed(distance: int, other: int) -> Reads:
    """The reads of a pointer to a distance if the bit of the key there is set, else to the other distance."""
    return ((distance, 1), (other, 0), (0, 0))


PLAIN = (*range(1, 14), 17, 18, 19, 24, 25, 31, 32, 37, 38, 42, 43, 44, 50, 51, 56, 57, 63, 81, 99, 126, 157, 193, 256)
KEYED = (
    (14, 21), (16, 15), (23, 22), (34, 33), (36, 35), (39, 20),
    (41, 59), (49, 61), (53, 54), (58, 40), (62, 55), (64, 45),
)  # fmt: skip
READS: tuple[Reads, ...] = (*map(plain, PLAIN), *(keyed(*pair) for pair in KEYED))


@lru_cache(maxsize=1)
def amplitudes() -> dict[Reads, tuple[list[float], list[float]]]:
    """By reads, the amplitudes of cosine and sine at each of the ``HEAD_DIM / 2`` rotary frequencies."""
    rows = json.loads((files("eqcheck.construction") / "pointers.json").read_text())
    return {tuple(map(tuple, row["reads"])): (row["cosines"], row["sines"]) for row in rows}
