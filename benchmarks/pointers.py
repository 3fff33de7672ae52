"""Find the amplitudes of pointers and write them (`pointers.json`, in `eqcheck/engines/construction`): needs scipy.

    python benchmarks/pointers.py

A pointer is a list of reads ``(distance, sign)``: it reads the first slot that is there and whose key bit has the sign
(0: any). Its score over distances is a sum of cosines and sines at the rotary frequencies. Each read must score higher
than the next by `MARGIN`, and the last, the query's own slot, higher than each other slot. The shortest such vector of
amplitudes has the least noise: least distance programming, by non-negative least squares (Lawson and Hanson, 1974,
chapter 23). `tests/engines/test_built.py` checks the margins of the file, whoever made it.
"""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from eqcheck.engines.construction.function import Function
from eqcheck.engines.construction.layouts import LAYOUTS
from eqcheck.engines.construction.pointers import (
    ADDED,
    AHEAD,
    CAPPED,
    COMPRESSED,
    KEYED_PAIRS,
    LEARNED,
    MARGIN,
    PAIRS,
    POSITIONS,
    ROTARY,
    Reads,
    Rotation,
    beyond,
)

Array = Any  # numbers of numpy
FOLDER = Path(__file__).parents[1] / "eqcheck" / "engines" / "construction"


def features(rotation: Rotation, distances: Any, sign: int) -> Array:
    """Cosines and sines of each frequency at each distance, for a key whose bit has this sign (0: it is not read).

    A sign that is added stands behind the cosines, beside a zero behind the sines.
    """
    angles = np.outer(np.atleast_1d(distances), rotation.frequencies)
    if rotation.adds:
        bit = np.ones((len(angles), 1))
        return np.hstack([np.cos(angles), bit * sign, np.sin(angles), bit * 0])
    weight = np.where(np.isin(np.arange(len(rotation.frequencies)), KEYED_PAIRS), sign, 1)
    return np.hstack([np.cos(angles) * weight, np.sin(angles) * weight])


def least(constraints: Array) -> Array:
    """The shortest x with ``constraints @ x >= 1``."""
    from scipy.optimize import nnls  # type: ignore[import-untyped, unused-ignore]

    columns = np.vstack([constraints.T, np.ones(len(constraints))])
    aim = np.zeros(len(columns))
    aim[-1] = 1
    weights, _ = nnls(columns, aim, maxiter=50 * columns.shape[1])
    rest = columns @ weights - aim
    shortest: Array = -rest[:-1] / rest[-1]
    return shortest


def amplitudes(rotation: Rotation, reads: Reads) -> Array:
    """Amplitudes for a margin of 1; constraints are added until no distance violates its own."""
    signs = (1, -1) if any(sign for _, sign in reads) else (0,)

    def ways(read: tuple[int, int]) -> list[Array]:
        """The features of a slot, by the sign of its bit: that which is asked, else that which is left, else both."""
        distance, sign = read
        left = tuple(s for s in signs if not s or (distance, s) not in reads)
        return [features(rotation, distance, s)[0] for s in ((sign,) if sign else left)]

    last = ways(reads[-1])
    fixed = [a - b for one, two in pairwise(reads) for a in ways(one) for b in ways(two)]
    if not rotation.adds:
        fixed += [a - features(rotation, distance, -sign)[0] for distance, sign in reads if sign for a in last]
    # Of two slots at one distance, in a wrong context, the one with the set bit is read: half the margin is enough.
    fixed += [2 * (two[0] - two[1]) for two in map(ways, reads) if len(two) == 2]
    others = [distance for distance in range(-AHEAD, POSITIONS) if distance not in [d for d, _ in reads]]
    rest = np.vstack([a - features(rotation, others, sign) for a in last for sign in signs])
    held = [i for i in range(len(rest)) if i % len(others) < 200]
    while True:
        x = least(np.vstack([fixed, rest[held]]))
        short = rest @ x
        missing = sorted(set(np.where(short < 0.999)[0]) - set(held), key=lambda i: short[i])
        if not missing:
            return x
        held += missing[:80]


def alike(pair: tuple[int, int]) -> Array:
    """The shortest amplitudes behind a cap, in either order: scores of 2 and 2.5, 0 for the query's own, -1 for others.

    The own slot scores no more than 0: the shortest vector comes as near to that as matters.
    """
    found = []
    for first, second in (pair, pair[::-1]):
        one, other, own = features(CAPPED, (first, second, 0), 0)
        rest = features(CAPPED, [d for d in range(-AHEAD, POSITIONS) if d not in (first, second, 0)], 0)
        short = np.vstack([-rest, own - rest])
        held = [i for i in range(len(short)) if i % len(rest) < 200]
        while True:
            x = least(np.vstack([(other - one) * 2, one / 2, (one - own) / 2, short[held]]))
            missing = sorted(set(np.where(short @ x < 0.999)[0]) - set(held), key=lambda i: (short @ x)[i])
            if not missing:
                break
            held += missing[:80]
        found.append(x)
    return min(found, key=np.linalg.norm)


def rounded(values: Array) -> list[float]:
    """Multiples of a quarter of eight significant bits, so that bfloat16 holds them exactly."""
    step = np.maximum(2.0 ** (np.floor(np.log2(np.maximum(np.abs(values), 1e-9))) - 7), 0.25)
    numbers: list[float] = (np.round(values / step) * step).tolist()
    return numbers


if __name__ == "__main__":
    heads = {
        head.reads
        for made in LAYOUTS.values()
        if made.rotation is not CAPPED
        for layer in Function(made.layers()).layers
        for head in layer
    }
    turned = {reads for reads in heads if (0, 0) in reads and len(dict(reads)) == len(reads)}
    for rotation in (ROTARY, LEARNED, COMPRESSED, CAPPED):
        pointers = ADDED if rotation.adds else sorted(turned)
        if rotation is CAPPED:
            pointers = [beyond(far, near) for near, far in PAIRS]
        lines = []
        for reads in pointers:
            found = alike((reads[1][0], reads[0][0])) if rotation is CAPPED else amplitudes(rotation, reads)
            values = rounded(found * MARGIN)
            half = len(values) // 2
            lines.append(json.dumps({"reads": reads, "cosines": values[:half], "sines": values[half:]}))
        (FOLDER / rotation.file).write_text("[\n" + ",\n".join(lines) + "\n]\n")
