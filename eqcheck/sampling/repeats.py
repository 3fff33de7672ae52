"""Find the random numbers of a row that are used again, and when: the draft's, those of acceptance, or the target's.

Two draws that one random number makes depend on each other. Where it is used again, the law of the second draw given
the first is known, and so is the factor by which what was drawn is likelier than by the right law. Given all tokens
before it, the mean of that factor is 1 for a right sampler, whatever came first: the product over all pairs is ever
above c with a probability of 1/c at most.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np

from eqcheck.sampling.reuse import normal
from eqcheck.sampling.rounds import Read
from eqcheck.sampling.row import Floats

_SHARE = 0.5  # of the pairs is taken to use a number again, so that one pair refutes nothing

Numbers = Literal["draft", "acceptance", "target"]
When = Literal["round", "round-before"]


class Repeated(NamedTuple):
    """Random numbers that are used again, and the logarithm of how much likelier that makes what was drawn."""

    numbers: Numbers
    when: When
    log_factor: float

    @property
    def words(self) -> str:
        return _WORDS[self.numbers, self.when]


_WORDS: dict[tuple[Numbers, When], str] = {
    ("draft", "round"): "the draft tokens of a round are drawn with the same random numbers",
    ("draft", "round-before"): "draft tokens are drawn with the random numbers that drew those of the round before",
    ("acceptance", "round"): "the draft tokens of a round are accepted or rejected by the same random number",
    ("acceptance", "round-before"): "draft tokens are accepted or rejected by the random numbers of the round before",
    ("target", "round-before"): "corrections and bonus tokens are drawn with the random numbers of the round before",
}
_TRIED = 8  # a uniform number and a race, for each pair that is drawn; a number, for acceptance


class _Draw(NamedTuple):
    token: int
    law: Floats


class _Coin(NamedTuple):
    """A draft token that was accepted or not, where it has to be with probability ``bound``."""

    accepted: bool
    bound: float


class _Round(NamedTuple):
    """One round of a row: by column what the draft drew and whether it was accepted, and the target's own token."""

    drafts: dict[int, _Draw]
    coins: dict[int, _Coin]
    own: _Draw | None


def repeated(reads: Iterable[Read], least: float) -> list[Repeated]:
    """The numbers that are used again, each with a factor of ``least`` or more in spite of all that was tried."""
    total: dict[tuple[Numbers, When], Floats] = {key: np.zeros(2) for key in _WORDS}
    for read in reads:
        rounds = list(_rounds(read))
        for number, current in enumerate(rounds):
            before = rounds[number - 1] if number else None
            for key, factors in _pairs(current, before):
                total[key] += np.log1p(_SHARE * (np.array(factors) - 1))
    found = [Repeated(*key, float(logs.max())) for key, logs in total.items()]
    return sorted((one for one in found if one.log_factor >= math.log(least * _TRIED)), key=lambda one: -one.log_factor)


def _rounds(read: Read) -> Iterator[_Round]:
    """The rounds of one row's tokens, which follow each other."""
    p, q = read.p[""], read.q[""]
    starts = [i for i in range(len(read)) if not i or read.column[i] <= read.column[i - 1]]
    for start, end in zip(starts, [*starts[1:], len(read)], strict=True):
        drafts, coins, own = dict[int, _Draw](), dict[int, _Coin](), None
        for i in range(start, end):
            role, token, draft, column = read.role[i], int(read.token[i]), int(read.draft[i]), int(read.column[i])
            if draft >= 0 and read.drafted[i] and q[i, draft] > 0:
                drafts[column] = _Draw(draft, q[i])
                coins[column] = _Coin(role == "accepted", min(1.0, float(p[i, draft] / q[i, draft])))
            if role == "corrected" and read.drafted[i]:
                own = _Draw(token, normal(np.maximum(p[i] - q[i], 0)[None], p[i][None])[0])
            elif role in ("bonus", "plain"):
                own = _Draw(token, p[i])
        yield _Round(drafts, coins, own)


def _pairs(current: _Round, before: _Round | None) -> Iterator[tuple[tuple[Numbers, When], tuple[float, float]]]:
    """The pairs of draws in which a round uses numbers again, each with the factors of the ways to draw."""
    for column, draw in current.drafts.items():
        for when, other in (
            ("round", current.drafts.get(column - 1)),
            ("round-before", before and before.drafts.get(column)),
        ):
            if other:
                yield ("draft", when), _drawn(draw, other)  # type: ignore[misc]
    for column, coin in current.coins.items():
        for when, thrown in (
            ("round", current.coins.get(column - 1)),
            ("round-before", before and before.coins.get(column)),
        ):
            if thrown:
                yield ("acceptance", when), (_thrown(coin, thrown),) * 2  # type: ignore[misc]
    if current.own and before and before.own:
        yield ("target", "round-before"), _drawn(current.own, before.own)


def _drawn(draw: _Draw, other: _Draw) -> tuple[float, float]:
    """Return how much likelier a draw is with the other one's uniform number, and with the times of its race."""
    own, theirs = float(draw.law[draw.token]), float(other.law[other.token])
    if own <= 0 or theirs <= 0:
        return 1.0, 1.0
    low, start = float(draw.law[: draw.token].sum()), float(other.law[: other.token].sum())
    both = max(0.0, min(low + own, start + theirs) - max(low, start))
    hit = float(draw.law[other.token])
    race = 1.0
    if 1e-12 < hit < 1 - 1e-9:
        highest = np.maximum(other.law / theirs, draw.law / hit)
        equal = min(1.0, float(1 / highest.sum()) / theirs)
        race = equal / hit if draw.token == other.token else (1 - equal) / (1 - hit)
    return both / own / theirs, race


def _thrown(draw: _Coin, other: _Coin) -> float:
    """Return how much likelier it is that a draft token is accepted, or is not, where the other's number decides."""
    if not 0 < draw.bound < 1 or (not other.accepted and other.bound >= 1):
        return 1.0
    if other.accepted:
        accepts = min(draw.bound, other.bound) / other.bound if other.bound > 0 else draw.bound
    else:
        accepts = max(0.0, draw.bound - other.bound) / (1 - other.bound)
    return accepts / draw.bound if draw.accepted else (1 - accepts) / (1 - draw.bound)


def in_words(found: Sequence[Repeated]) -> str:
    """All numbers that are used again, as one clause."""
    return ", and ".join(one.words for one in found)
