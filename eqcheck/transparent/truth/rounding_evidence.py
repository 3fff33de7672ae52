"""The evidence that rows of one server are further from the referee than those of another, with a proven bound.

The datum of a row is its greatest gap: by how many nats the referee prefers its own token to the row's, at most. Rows
of the control and of the speculative server come in turn. A row of the speculative server *exceeds* if its gap is more
than twice the greatest gap of all rows of the control so far.

**Theorem.** Let rows of control and speculative server be exchangeable: their gaps have a joint law that no
permutation changes. Then the evidence ever reaches c with a probability of 1/c at most.

Proof. Let m rows of the control and j rows of the speculative server be seen, and let k of the latter lie above all of
the control. By exchangeability the rank of the next row among all is uniform, whatever the ranks before were. Above the
control's greatest gap are k + 1 of the m + j + 1 places. So the next row exceeds with a probability p of at most
``(k + 1) / (m + j + 1)``: the factor of two makes it less. So the bet ``q / p`` on a row that exceeds, ``(1 - q) /
(1 - p)`` on another one, with q at least p and fixed before the row, has an expectation of at most 1. The product is a
nonnegative supermartingale that starts at 1, and so is the mean of several over subsets of rows that are fixed
beforehand. Ville's inequality bounds the probability that it ever reaches c.

A second bet looks at each request alone. Its rows are one of the speculative server and m of the control. It counts if
one of them, that of the speculative server halved, is beyond all rows of the control of *earlier* chunks: then the bet
is that the speculative server's is the largest. By exchangeability within the request that has a probability of
``1 / (m + 1)`` at most, given that it counts, so ``(m + 1) q`` if it is and ``(m + 1) (1 - q) / m`` if not, with q at
least that and fixed before, has an expectation of at most 1. This bet gains more where some rows are wrong, and the
first one where nearly all are; the evidence is the mean of the two. `OddOne` is this bet on whatever tells rows apart.

The factor of two is room for what the theorem assumes: a right server that speculates may be somewhat noisier than
the control, for it computes several tokens at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

CROSSES = 1e6
"""Here the servers differ: a right server gets there once in a million gates."""
ROOM = 2.0
"""A row exceeds if its gap is more than so many times the greatest of the control."""
BROKEN = 1.0
"""Nats: no rounding changes a likely score by so much, so a cache that does is no measure of the noise."""


class OddOne:
    """A bet that one row of each request, which stands alone in some way, is that of the speculative server.

    A right server's is so in one of m + 1 requests with m rows of a control; ``room`` is how much more often it may be.

    >>> bet = OddOne(room=2.0)
    >>> for _ in range(24): bet.add(True, 2)
    >>> bet.won, bet.counted, bet.log_evidence > math.log(CROSSES)
    (24, 24, True)
    """

    def __init__(self, room: float = 1.0) -> None:
        self.counted = self.won = 0
        self.log_evidence, self._room = 0.0, room

    def add(self, won: bool, others: int) -> None:
        """Count a request with so many rows of the control, one of whose rows stands alone."""
        fair = self._room / (self._room + others)
        bet = max(fair, (self.won + 1.5) / (self.counted + 2))
        self.log_evidence += math.log(bet / fair if won else (1 - bet) / (1 - fair))
        self.counted, self.won = self.counted + 1, self.won + won


class Exceedances:
    """A bet on rows that exceed all rows of the control. Rows of the control may be added at any time.

    ``floor`` is the least gap that the control is taken to have had, such as the step in which scores are rounded.

    >>> calm, wild = Exceedances([0.0, 0.02, 0.01] * 20), Exceedances([0.0, 0.02, 0.01] * 20)
    >>> calm.add([0.0, 0.03, 0.0] * 10); wild.add([0.0, 3.0, 2.0] * 10)
    >>> calm.exceeding, wild.exceeding, wild.log_evidence > math.log(CROSSES) > calm.log_evidence
    (0, 20, True)
    """

    def __init__(self, control: Iterable[float] = ()) -> None:
        self.controls, self.highest, self.floor = 0, 0.0, 0.0
        self.gaps: list[float] = []
        self.exceeding = 0
        self.log_ranked, self.largest = 0.0, OddOne()
        self.compare_with(control)

    @property
    def log_evidence(self) -> float:
        """The mean of both bets, as a logarithm."""
        return together([self.log_ranked, self.largest.log_evidence])

    def compare_with(self, control: Iterable[float]) -> None:
        """Count rows of the control."""
        for gap in control:
            self.controls, self.highest = self.controls + 1, max(self.highest, gap)

    def add_requests(self, requests: Iterable[tuple[float, Sequence[float]]]) -> None:
        """Count requests: the gap of the speculative server's row, and those of the control's rows.

        Rows of this chunk may not be among the control yet: what counts has to be fixed before.

        >>> bet = Exceedances([0.01, 0.02]); bet.add_requests([(1.0, [0.0, 0.01])] * 15 + [(0.0, [0.0, 0.0])] * 100)
        >>> bet.largest.counted, bet.largest.won, bet.largest.log_evidence > math.log(CROSSES)
        (15, 15, True)
        """
        beyond = max(self.floor, self.highest)
        for gap, others in requests if self.controls else ():
            own, greatest = gap / ROOM, max(others)
            if others and max(own, greatest) > beyond:
                self.largest.add(own > greatest, len(others))

    @property
    def threshold(self) -> float:
        """A gap beyond it exceeds."""
        return ROOM * max(self.floor, self.highest)

    def add(self, gaps: Iterable[float]) -> None:
        """Count rows of the speculative server, in the order in which they were asked for."""
        threshold = self.threshold
        above = sum(gap > self.highest for gap in self.gaps)
        for gap in gaps:
            rows = len(self.gaps)
            if self.controls:
                fair = (above + 1) / (self.controls + rows + 1)
                bet = max(fair, (self.exceeding + 0.5) / (rows + 1))
                won = bet / fair if gap > threshold else (1 - bet) / (1 - fair)
                self.log_ranked += math.log(won)
            self.gaps.append(gap)
            above, self.exceeding = above + (gap > self.highest), self.exceeding + (gap > threshold)


def together(logs: Sequence[float], weights: Sequence[float] = ()) -> float:
    """The mean of the evidence of several bets, all as logarithms; ``weights`` sum to 1 and are equal if not given.

    >>> round(together([0.0, 0.0]), 3), round(together([800.0, 0.0]), 3), round(together([800.0, 0.0], [0.1, 0.9]), 3)
    (0.0, 799.307, 797.697)
    """
    top = max(logs)
    shares = weights or [1 / len(logs)] * len(logs)
    return top + math.log(sum(share * math.exp(log - top) for share, log in zip(shares, logs, strict=True)))


def needed(share: float, control: float = 2.0) -> int:
    """The rows after which the evidence crosses, if this share of rows exceeds; ``control`` rows for each.

    >>> needed(1.0) < needed(0.3) < needed(0.1)
    True
    """
    bet, rows = Exceedances(), 0
    while bet.log_evidence < math.log(CROSSES) and rows < 10_000:
        gap = float(int((rows + 1) * share) > int(rows * share))
        bet.add_requests([(gap, [0.0] * round(control))])
        bet.compare_with([0.0] * (int(control * rows) + 2 - bet.controls))
        bet.add([gap])
        rows += 1
    return rows


def step(differences: Iterable[float]) -> float:
    """The step in which a server rounds the scores of likely tokens; 0 where it rounds in none above 2^-12.

    Differences are those between the two likeliest tokens of a place. Each has a greatest power of two that it is a
    multiple of; half of the multiples of a step have that step itself. Numbers below 1 are rounded in finer steps, so
    the median counts, and not the least.

    >>> step([0.125, 0.0625, 1.5]), step([0.1, 0.0625])
    (0.125, 0.0)
    """
    steps = [2.0**-power for power in range(13)]
    kept = [abs(value) for value in differences if abs(value) > 1e-5]
    found = sorted(next((size for size in steps if abs(v / size - round(v / size)) * size < 2e-5), 0.0) for v in kept)
    return found[len(found) // 2] if found and found.count(0.0) <= len(found) / 10 else 0.0
