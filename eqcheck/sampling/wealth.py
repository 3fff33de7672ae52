"""The evidence that bets earn over an audit, with a proven bound on false alarms, and the verdict.

**Theorem.** Let an audit decode cases one after the other, each chosen without a look at its own random numbers, and
take the tokens in order: case by case, row by row, token by token. Suppose that every token that is judged follows its
law ``p`` up to rounding, given all tokens before it in that order. Then the evidence exceeds 10^6 at any time with a
probability of 10^-6 at most, however many cases there are and whatever decides when the audit ends.

Proof. One alternative gives the token x the factor ``e = min(r(x)/p(x), 50) / (1 + eps)``, where the law r depends on
tokens before x only; 1 where a position is skipped, by a rule that depends on the prefix only. Let p' be the law with
rounding, and eps at least ``max_x |p'(x)/p(x) - 1|`` over the cells (or 50 times the total variation between p and p'),
which may differ from position to position: a greater one than is needed only makes e smaller. Then the expected e under
p' is at most 1. So the product over all tokens is a nonnegative supermartingale that starts at 1, and so are the
products over the tokens of one regime, and every mixture with weights fixed beforehand.
Ville's inequality bounds the probability that such a process ever reaches c by 1/c (Ramdas, Ruf, Larsson, Koolen,
2020, https://arxiv.org/abs/2009.03167; Ramdas, Gruenwald, Vovk, Shafer, 2022, https://arxiv.org/abs/2210.01948).

Assumptions, all for whoever calls:

- Cases are added in the order in which they were drawn, not in that in which they finish: short ones finish first. None
  is left out for a reason that its tokens may have a part in, such as the time that it took. Cases that fail otherwise
  may be: a right decoder has none. It declines a request for the request alone.
- All rows are handed in, in an order fixed before decoding, with all tokens up to their own end or limit. Where the
  decoder broke off, the length of one row tells something about the others: say ``whole=False``.
- p and the other laws are those of the prefix before the token.
- Random numbers are fresh in every case: an engine that is started again is given a new seed. So are those of a seed
  in a request, the first time that it is used in the audit. A seed used again may give the same tokens again, and
  rightly: such rows are not judged here, only impossible tokens in them are seen.

No bet looks at how the decoder drafted: how many draft tokens it verified may follow from the very random numbers that
the next token is drawn with, as where draft and target share them.

**Shards.** Let several audits run apart, each with random numbers of its own and bets that do not look at the others,
and let each end when it likes, by what it saw itself. `Wealth.join` adds up, for each alternative, the logarithms of
what it earned in each of them, and takes the mixture of these sums: what one audit would hold that added all
their cases one after the other. The theorem holds for it as well.

Proof. An alternative's product in shard k is a nonnegative supermartingale that starts at 1, so its mean where the
shard ends is at most 1, whenever that is. Shards are independent, so the product over the first k shards, in an order
that was fixed beforehand, is a nonnegative supermartingale in k that starts at 1; so are mixtures of such products with
weights fixed beforehand, and Ville's inequality bounds their maximum over k. Inside the first shard the course is
known, too; of later ones only the ends are looked at, which understates the maximum.

Two other ways to merge are valid, and neither is this one. The mean of the shards' final evidence is an e-value, but it
does not grow with the number of shards. The product of their evidence is one, too: but each is a mixture, in which the
alternative that wins has to earn back its weight again in every shard, so that short shards lose what they see. The
greatest of the shards' own evidence is no e-value: of a million right shards one may reach 10^6.

Assumptions, beside those above: shards are numbered before they run, and joined in that order. Which of them are joined
does not depend on their tokens: all that were begun are, and one that was lost with its machine is run again with the
same seed. A shard that uses a seed of a request that an earlier one used is not independent of it, and is left out.

**Weights.** Every alternative of `ALTERNATIVES` and `PAIRS` has the same weight. Of that, six tenths are bet on all
tokens; the rest on the tokens of one regime, ``1/(k (k + 1))`` of it on the k-th regime that had a judged token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from eqcheck.contract.errors import UsageError
from eqcheck.sampling.bets import ALTERNATIVES, PAIRS, Bet, bets
from eqcheck.sampling.pairs import pair_bets
from eqcheck.sampling.row import Floats, SampledRow, fresh

BETS = {bet.name: bet for bet in (*ALTERNATIVES, *PAIRS)}
PORTFOLIO = tuple(BETS)
VIOLATION, DOUBT = 1e6, 1e3
_OF_REGIMES = 0.4
_GREATEST = 700.0  # beyond exp of this, floats end


class Wealth:
    """Evidence against a sampler over all cases added; what it was worth at most (`supremum`), and the `verdict`.

    >>> law = np.full((40, 4), 0.25)
    >>> row = SampledRow(np.zeros(40, np.int64), law, None, law, np.zeros(40, bool))
    >>> wealth = Wealth()
    >>> wealth.add([row], "std")
    >>> wealth.verdict(), wealth.tokens, wealth.best()[0][0].name
    ('violation', 40, 'argmax:0.3')
    """

    def __init__(self) -> None:
        self.cases = self.tokens = self.rows = 0
        self.skipped = 0
        """Positions that were not judged because they are near a cut."""
        self.repeated_seeds = 0
        """Rows that were not judged because an earlier one had their seed."""
        self.counts: dict[str, int] = {}
        """Tokens judged of each regime."""
        self.impossible: list[dict[str, int]] = []
        """Tokens with the probability 0 at positions not skipped: ``case``, ``row``, ``position``, ``token``."""
        self.log_supremum = 0.0
        self.crossed: int | None = None
        """The number of tokens after which the evidence first was that of a violation."""
        self._stride, self._course = 1, [[0.0, 0.0]]
        self._seeds: set[int] = set()
        self._all: Floats = np.zeros(len(PORTFOLIO))
        self._regimes: dict[str, Floats] = {}

    def add(self, rows: Sequence[SampledRow], regime: str, eps: float = 0.0, whole: bool = True) -> None:
        """Count the tokens of a case. ``eps`` bounds the rounding of its laws, see the theorem; 0 is exact.

        Where a row has an ``eps`` of its own, the greater one counts.

        Where the decoder broke off, the case is not ``whole``: then every row is judged by itself, and the evidence
        looked at after the last one only.

        Raises `UsageError`, and counts nothing, where eps, a twin's index or a vocabulary is wrong.
        """
        if not 0 <= eps < np.inf:
            raise UsageError(f"eps: expected a number that is not negative, got {eps}")
        for number, row in enumerate(rows):
            if row.twin is not None and not 0 <= row.twin < number:
                raise UsageError(f"twin of row {number}: expected an earlier row, got {row.twin}")
            if row.p.shape[1] != rows[0].p.shape[1]:
                raise UsageError(f"row {number}: expected laws over {rows[0].p.shape[1]} tokens, got {row.p.shape[1]}")
        seeds = set(self._seeds)
        new = fresh(rows, seeds)
        if whole:
            gained = [_gains(row, rows[:i], eps) for i, row in enumerate(rows) if new[i]]
        else:
            gained = [_gains(replace(row, twin=None), (), eps) for i, row in enumerate(rows) if new[i]]
        gains = np.concatenate(gained or [_NOTHING])
        self._seeds = seeds
        self.repeated_seeds += new.count(False)
        self._count(rows, new, len(gains), regime)
        if len(gains):
            if not whole:
                gains = gains.sum(0, keepdims=True)
            self._earn(gains, regime)

    def _count(self, rows: Sequence[SampledRow], new: Sequence[bool], live: int, regime: str) -> None:
        for number, row in enumerate(rows):
            for t in row.impossible:
                token = int(row.tokens[t])
                self.impossible.append({"case": self.cases, "row": number, "position": t, "token": token})
        judged = [row for row, first in zip(rows, new, strict=True) if first]
        self.cases += 1
        self.rows += len(judged)
        self.tokens += live
        self.skipped += sum(len(row.tokens) for row in judged) - live
        if live:
            self.counts[regime] = self.counts.get(regime, 0) + live

    def _earn(self, gains: Floats, regime: str) -> None:
        """Let the alternatives earn ``[tokens, portfolio]``, and remember the most they were worth together."""
        regimes = self._regimes
        regimes.setdefault(regime, np.zeros(len(PORTFOLIO)))
        course = np.cumsum(gains, axis=0)
        shares = _shares(len(regimes))
        parts = [shares[0] + _log_mean(self._all + course), np.full(len(gains), shares[-1])]
        for share, name in zip(shares[1:-1], regimes, strict=True):
            value = _log_mean(regimes[name] + course) if name == regime else _log_mean(regimes[name][None])
            parts.append(np.broadcast_to(share + value, len(gains)))
        worth = np.logaddexp.reduce(parts)
        self._note(worth)
        self.log_supremum = max(self.log_supremum, float(worth.max()))
        if self.crossed is None and worth.max() >= np.log(VIOLATION):
            after = len(gains) - 1 - int((worth >= np.log(VIOLATION)).argmax())
            self.crossed = self.tokens - after
        self._all = self._all + course[-1]
        regimes[regime] = regimes[regime] + course[-1]

    def join(self, later: Wealth) -> bool:
        """Go on with the cases of a later shard; False, and nothing is counted, where the two share a row's seed.

        See the module's text on shards. Onto nothing, it is the shard as it is.

        >>> law = np.full((9, 4), 0.25)
        >>> row = SampledRow(np.zeros(9, np.int64), law, None, law, np.zeros(9, bool))
        >>> one, other, both, joined = Wealth(), Wealth(), Wealth(), Wealth()
        >>> for wealth in (one, other, both, both):
        ...     wealth.add([row], "std")
        >>> joined.join(one) and joined.join(other), joined.tokens, round(joined.evidence / both.evidence, 9)
        (True, 18, 1.0)
        """
        if self._seeds & later._seeds:
            return False
        before = self.tokens
        self.impossible += [{**one, "case": self.cases + one["case"]} for one in later.impossible]
        for name in ("cases", "tokens", "rows", "skipped", "repeated_seeds"):
            setattr(self, name, getattr(self, name) + getattr(later, name))
        self._seeds |= later._seeds
        self._all = self._all + later._all
        for name, logs in later._regimes.items():
            self._regimes[name] = self._regimes.get(name, 0) + logs
            self.counts[name] = self.counts.get(name, 0) + later.counts[name]
        if before:
            self._remember([[float(self.tokens), self.log_evidence]])
        else:
            self.log_supremum, self.crossed = later.log_supremum, later.crossed
            self._stride, self._course = later._stride, list(later._course)
        self.log_supremum = max(self.log_supremum, self.log_evidence)
        if self.crossed is None and self.log_evidence >= np.log(VIOLATION):
            self.crossed = self.tokens
        return True

    def _note(self, worth: Floats) -> None:
        """Remember the evidence after some of these tokens, the last of them counted by `tokens`."""
        numbers = np.arange(self.tokens - len(worth) + 1, self.tokens + 1)
        points = zip(numbers, worth, strict=True)
        self._remember([[float(n), float(log)] for n, log in points if n % self._stride == 0])

    def _remember(self, points: list[list[float]]) -> None:
        self._course += points
        while len(self._course) >= _POINTS:
            self._stride *= 2
            self._course = self._course[::2]

    @property
    def course(self) -> tuple[tuple[int, float], ...]:
        """The evidence over tokens, thinned to `_POINTS` at most: how many tokens, and its decimal logarithm then."""
        points = [point for point in self._course if point[0] < self.tokens]
        points += [[self.tokens, self.log_evidence]] if self.tokens else []
        return tuple((int(number), round(log / math.log(10), 3)) for number, log in points)

    @property
    def log_evidence(self) -> float:
        """The natural logarithm of the evidence; the evidence itself may be too large for a float."""
        return float(_log_mean(self._own()[None])[0])

    @property
    def evidence(self) -> float:
        """The worth of all alternatives together."""
        return float(np.exp(min(self.log_evidence, _GREATEST)))

    @property
    def supremum(self) -> float:
        """The most that the evidence ever was, after any token."""
        return float(np.exp(min(self.log_supremum, _GREATEST)))

    def verdict(self) -> str:
        """``violation``, ``inconclusive`` or ``equivalent``; inconclusive also where no token was judged."""
        if self.impossible or self.log_supremum >= np.log(VIOLATION):
            return "violation"
        return "inconclusive" if self.log_evidence >= np.log(DOUBT) or not self.tokens else "equivalent"

    def best(self) -> list[tuple[Bet, float]]:
        """Every alternative with the natural logarithm of its own evidence, the greatest first."""
        own, bets = self._own(), list(BETS.values())
        return [(bets[i], float(own[i])) for i in np.argsort(-own, kind="stable")]

    def by_regime(self) -> dict[str, float]:
        """The natural logarithm of the evidence from the tokens of each regime alone."""
        return {name: float(_log_mean(logs[None])[0]) for name, logs in self._regimes.items()}

    def _own(self) -> Floats:
        """The logarithm of what each alternative is worth, over all tokens and those of each regime."""
        shares = _shares(len(self._regimes))
        worth = [shares[0] + self._all, np.full(len(PORTFOLIO), shares[-1])]
        worth += [share + logs for share, logs in zip(shares[1:-1], self._regimes.values(), strict=True)]
        return np.asarray(np.logaddexp.reduce(worth))

    def to_dict(self) -> dict[str, Any]:
        """All that is needed to go on, as JSON."""
        return {
            "portfolio": list(PORTFOLIO),
            **{name: getattr(self, name) for name in _PLAIN},
            "counts": dict(self.counts),
            "impossible": [dict(one) for one in self.impossible],
            "seeds": sorted(self._seeds),
            "all": self._all.tolist(),
            "regimes": {name: logs.tolist() for name, logs in self._regimes.items()},
            "stride": self._stride,
            "course": [list(point) for point in self._course],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Wealth:
        """The evidence that `to_dict` gave. Raises `UsageError` where it was of other bets."""
        if tuple(data.get("portfolio", ())) != PORTFOLIO:
            raise UsageError("the audit was begun with other alternatives and cannot be continued; begin a new one")
        if any(len(logs) != len(PORTFOLIO) for logs in [data["all"], *data["regimes"].values()]):
            raise UsageError("the wealth of an alternative is missing; begin a new audit")
        wealth = cls()
        for name in _PLAIN:
            setattr(wealth, name, data[name])
        wealth.counts, wealth.impossible = dict(data["counts"]), [dict(one) for one in data["impossible"]]
        wealth._seeds, wealth._all = set(data["seeds"]), np.array(data["all"])
        wealth._regimes = {name: np.array(logs) for name, logs in data["regimes"].items()}
        wealth._stride = data.get("stride", 1)
        wealth._course = [list(point) for point in data.get("course", [])]
        return wealth


_PLAIN = ("cases", "tokens", "rows", "skipped", "repeated_seeds", "log_supremum", "crossed")
_POINTS = 200
_NOTHING = np.zeros((0, len(PORTFOLIO)))


def _gains(row: SampledRow, earlier: Sequence[SampledRow], eps: float) -> Floats:
    """The logarithms of the e-values of the tokens of a row that are judged ``[m, portfolio]``."""
    gains = np.concatenate([bets(row, earlier), pair_bets(row, earlier)], axis=1)
    gains -= np.where(row.cells.live, np.log1p(np.maximum(eps, row.eps)), 0.0)[:, None]
    return np.asarray(gains[~row.skip])


def _shares(regimes: int) -> Floats:
    """Logarithms of the weights of all tokens, of the regimes that appeared, of those to come."""
    of_regimes = [regime_weight(number) for number in range(1, regimes + 1)]
    return np.log([regime_weight(0), *of_regimes, _OF_REGIMES / (regimes + 1)])


def regime_weight(number: int) -> float:
    """The weight of the tokens of the regime that appeared as this one of all, from 1; 0 stands for all tokens.

    >>> [round(regime_weight(number), 3) for number in range(3)]
    [0.6, 0.2, 0.067]
    """
    return _OF_REGIMES / (number * (number + 1)) if number else 1 - _OF_REGIMES


def _log_mean(logs: Floats) -> Floats:
    """The logarithm of the mean over the portfolio, of logarithms ``[m, portfolio]``."""
    top = logs.max(-1, keepdims=True)
    return np.asarray(top[:, 0] + np.log(np.exp(logs - top).mean(-1)))
