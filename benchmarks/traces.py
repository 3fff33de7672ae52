"""How many draft tokens real rows accept, round by round: three generators, named after what they imitate.

Tables that are uniform hit every corner of a decoder, and no row of theirs behaves like text: real rows differ from one
another, and what a round accepts depends on the round before. The numbers were measured on Llama-3.1-8B with K = 4, by
replaying the traces of SpecDecode-Bench (arXiv 2601.11580): `MEASURED` has what a generator is to come near to.

steady  the rows differ little, and rounds do not depend on one another (EAGLE on news)
chat    rows differ, and a round that accepts much follows on one that did (EAGLE on ShareGPT)
copy    the draft copies from the text: for a while all is accepted, then nothing (n-grams on editing code)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

GENERATORS = ("steady", "chat", "copy")
K = 4  # of the measurements; with fewer draft tokens a round accepts at most so many


class Measured(NamedTuple):
    """Tokens a round, correlation of accepted counts from round to round, and dispersion.

    ``dispersion`` is how many times as much the rounds for 128 tokens vary from row to row as they would if every token
    were accepted with the same probability.
    """

    tokens: float
    correlation: float
    dispersion: float


MEASURED = {"steady": Measured(2.48, 0.14, 2.1), "chat": Measured(2.39, 0.27, 6.3), "copy": Measured(2.19, 0.74, 34.0)}

_STEADY = (51.0, 29.0)  # Beta distributions of a row's acceptance
_CHAT = (12.8, 7.7)
_STAY_OFF, _STAY_ON = 0.89, 0.78
_MEASURED_AFTER = {  # after a round that accepted so many, the probabilities of 0, 1, ... accepted
    0: (0.49, 0.25, 0.10, 0.06, 0.11),
    2: (0.33, 0.25, 0.16, 0.08, 0.17),
    4: (0.22, 0.18, 0.14, 0.10, 0.36),
}


def _chain() -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """The transition probabilities ``[accepted, accepted next]``; those after 1 and 3 lie between their neighbours."""
    known = {after: np.array(row) / sum(row) for after, row in _MEASURED_AFTER.items()}
    between = {1: (known[0] + known[2]) / 2, 3: (known[2] + known[4]) / 2}
    return np.stack([{**known, **between}[after] for after in range(K + 1)])


def accepted(name: str, rounds: int, seed: Sequence[int], k: int = K) -> list[int]:
    """How many of ``k`` draft tokens one row accepts in each of so many rounds; another seed is another row.

    >>> accepted("copy", 12, (0, 3))
    [0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 0, 0]
    """
    noise = np.random.default_rng(list(seed))
    if name == "copy":
        on = noise.random() < (1 - _STAY_OFF) / (2 - _STAY_OFF - _STAY_ON)
        states = []
        for chance in noise.random(rounds):
            states.append(on)
            on = chance < (_STAY_ON if on else 1 - _STAY_OFF)
        return [k if state else 0 for state in states]
    if name == "steady":
        rate = noise.beta(*_STEADY)
        return [min(int(one) - 1, k) for one in noise.geometric(1 - rate, rounds)]
    if name != "chat":
        raise ValueError(f"generator: expected one of {', '.join(GENERATORS)}, got {name!r}")
    # The chain holds over all rows; a row that accepts more than the mean has every count made likelier by that.
    rate, mean = noise.beta(*_CHAT), _CHAT[0] / sum(_CHAT)
    odds = (rate / (1 - rate) / (mean / (1 - mean))) ** _TILT
    weights = _chain() * odds ** np.arange(K + 1)
    chain = (weights / weights.sum(1, keepdims=True)).cumsum(1)
    count, found = int(noise.integers(K + 1)), []
    for chance in noise.random(rounds + 20):
        count = min(int((chain[count] < chance).sum()), K)
        found.append(min(count, k))
    return found[20:]  # when it has forgotten where it began


_TILT = 0.27  # with it the dispersion is the measured one


def rounds_for(tokens: int, counts: Sequence[int]) -> int:
    """How many of these rounds a row needs for so many tokens; each gives one more than it accepts.

    >>> rounds_for(5, [4, 0]), rounds_for(6, [4, 0])
    (1, 2)
    """
    totals = np.cumsum(np.asarray(counts) + 1)
    return int((totals < tokens).sum()) + 1


def described(name: str, rows: int = 400, tokens: int = 128) -> Measured:
    """What so many rows of a generator come to."""
    table = np.array([accepted(name, tokens, (0, row)) for row in range(rows)])
    a = table.sum() / (table.sum() + (table < K).sum())
    needed = [rounds_for(tokens, row) for row in table.tolist()]
    noise = np.random.default_rng(1)
    same = np.minimum(noise.geometric(1 - a, (2000, tokens)) - 1, K)
    variance = float(np.var([rounds_for(tokens, row) for row in same.tolist()]))
    now, then = table[:, :-1].ravel(), table[:, 1:].ravel()
    return Measured(float(table.mean() + 1), float(np.corrcoef(now, then)[0, 1]), float(np.var(needed)) / variance)
