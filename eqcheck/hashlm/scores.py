"""Define the scores of a transparent model for sampled rows: how sharp they are, and what its draft mixes in.

Ranks alone make every law of a table the same by rank. So a case sets how far neighbours in rank are apart, how many
tokens have any probability, and how much of another table the draft's scores hold. All scores lie on a grid of 1/64, so
they are exact in float32 and in float16.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from eqcheck.hashlm.hashing import Ints, logits_table

GRID = 64
DEAD = -10_000.0  # the score of a token without probability: `exp` of it is zero in float64
_DISTANCES = 16
_OTHER = 7919  # added to the seed for the table that a draft mixes in


@dataclass(frozen=True)
class Spread:
    """``scale`` is the distance of neighbours in rank in nats; ``support`` how many tokens have any probability.

    ``uneven``: each row of the table has a distance of its own, up to that. ``mix``, 0 to 1, is the share of another
    table in a draft's scores: at 0 its law is the target's. 0 for ``support`` means all.
    """

    scale: float = 1.0
    support: int = 0
    mix: float = 0.0
    uneven: bool = False


UNEVEN = Spread(_DISTANCES / GRID, uneven=True)


@lru_cache(maxsize=64)
def score_table(vocab_size: int, seed: int, spread: Spread) -> npt.NDArray[np.float64]:
    """Scores ``[TABLE_ROWS, vocab_size]``, which a final digest selects a row of.

    >>> score_table(8, 0, Spread(0.5, support=2))[0].tolist()
    [3.0, -10000.0, -10000.0, -10000.0, 3.5, -10000.0, -10000.0, -10000.0]
    """
    table = logits_table(vocab_size, seed).astype(np.float64)
    if spread.mix:
        table = (1 - spread.mix) * table + spread.mix * logits_table(vocab_size, seed + _OTHER)
    if spread.uneven:
        table = table * (1 + np.arange(len(table))[:, None] % _DISTANCES) / _DISTANCES
    scores = np.round(table * spread.scale * GRID) / GRID
    if spread.support:
        # A stable order, so that the same tokens live wherever this runs.
        dead = np.argsort(-table, axis=1, kind="stable")[:, spread.support :]
        np.put_along_axis(scores, dead, DEAD, axis=1)
    scores.flags.writeable = False
    return scores


@lru_cache(maxsize=64)
def ranked(vocab_size: int, seed: int, spread: Spread) -> tuple[Ints, Ints]:
    """The most likely and the second most likely token of each row, the lower id first where two are alike."""
    order = np.argsort(-score_table(vocab_size, seed, spread), axis=1, kind="stable")
    return order[:, 0], order[:, 1]
