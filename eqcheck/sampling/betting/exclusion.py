"""The faults that an audit without a violation excludes: how large one may be at most, at the laws that it met.

A fault of a size draws every token from ``r``, for example ``(1 - size) p + size q``. One alternative of the portfolio
earns ``log e(x)`` on it. Where x follows r, the mean of ``e(x)^-c`` is known exactly for every c > 0: a sum over all
tokens. So, by Markov's inequality (Chernoff's bound),

    P(the alternative ends below T) <= exp(c log T + sum over positions of log sum_x r(x) e(x)^-c).

T is 10^6 divided by the weight of the alternative: then the whole portfolio has crossed 10^6. A size is excluded where
the bound is 0.01 at most for some alternative and some c. It holds for tokens drawn one after the other, because the
exponent is a martingale's; and for an audit that meets laws with the same sum or a lower one. The laws summed are those
that this audit met: of a fault that shows elsewhere only, nothing is said.

Greater sizes are excluded with it. The sum is concave in a share and not negative where the share is 0; so below zero
it falls. Powers of p have monotone likelihood ratios, and so the sum is monotone in the temperature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from eqcheck.contract.errors import UsageError
from eqcheck.sampling.betting.laws import Floats, SampledRow, fresh
from eqcheck.sampling.betting.wealth import ALTERNATIVES, HIGHEST, PORTFOLIO, VIOLATION, Bet, laws, mixed, regime_weight

MISSED = 0.01
"""A fault of the size that is excluded would have been missed with at most this probability."""
EXPONENTS = 2.0 ** np.arange(-6, 1)
SIZES = 1 / np.array([1, 2, 3, 4, 5, 7, 10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500, 1000])
"""Shares of tokens that are drawn wrongly, the greatest first."""
CHANGES = tuple(round(10 ** (-place / 5), 2) for place in range(9))
"""Relative changes of the temperature, the greatest first, five to a decade: no size of a fault is meant by one."""
_MIXED = ("draft", "residual", "residual-unused", "drawn-again", "draft-argmax", "argmax", "uniform", "prefix-before")
_OF_DRAFTS = ("draft", "residual", "residual-unused", "drawn-again", "draft-argmax")
_WARMER, _COLDER = "temperature-higher", "temperature-lower"
_LAWS = (*_MIXED, _WARMER, _COLDER)


@dataclass(frozen=True)
class Excluded:
    """The sizes of one fault that one regime excludes: ``size`` or more, or none where it is None.

    ``regime`` is empty for all tokens together. ``size`` is a share of the tokens, or a relative change of the
    temperature; ``alternative`` is the one that would have seen it; ``tokens`` are those judged.
    """

    regime: str
    law: str
    size: float | None
    alternative: str
    tokens: int

    @property
    def sentence(self) -> str:
        """The same in words.

        >>> Excluded("std", "draft", 1 / 30, "draft:0.1", 5000).sentence
        'std: 5,000 sampled tokens would have shown 1 token in 30, or more, drawn from the draft.'
        >>> Excluded("", _WARMER, None, "", 50).sentence
        'all regimes: 50 sampled tokens would have shown no temperature higher than asked for.'
        """
        return f"{self._where} {self.amount}{' ' * (self.law in _MIXED)}{self._expects}."

    @property
    def amount(self) -> str:
        """Return how much of the fault would have been seen, without its name where tokens are drawn wrongly."""
        if self.law in _MIXED:
            if self.size is None:
                return "no share of tokens"
            return "all tokens" if self.size == 1 else f"1 token in {round(1 / self.size)}, or more,"
        way = "higher" if self.law == _WARMER else "lower"
        if self.size is None:
            return f"no temperature {way} than asked for"
        return f"a temperature {way} than asked for by {self.size:.0%} or more"

    @property
    def _where(self) -> str:
        return f"{self.regime or 'all regimes'}: {self.tokens:,} sampled tokens would have shown"

    @property
    def _expects(self) -> str:
        return _alternatives(self.law)[0].expects if self.law in _MIXED else ""


def together(excluded: Sequence[Excluded]) -> list[str]:
    """Say what is excluded, a sentence for each regime; faults of which as much would have been seen are told together.

    >>> size = 1 / 30
    >>> together([Excluded("std", "draft", size, "", 50), Excluded("std", "argmax", size, "", 50)])
    ["std: 50 sampled tokens would have shown 1 token in 30, or more, drawn from the draft or that are the target's \
most likely ones."]
    """
    regimes: dict[str, dict[str, list[str]]] = {}
    for one in excluded:
        regimes.setdefault(one._where, {}).setdefault(one.amount, []).append(one._expects)
    said = {
        where: [f"{amount} {' or '.join(laws)}".strip() for amount, laws in amounts.items()]
        for where, amounts in regimes.items()
    }
    return [f"{where} {'; '.join(clauses)}." for where, clauses in said.items()]


@dataclass(eq=False)
class Exclusion:
    """Sums over the laws that an audit met; `excluded` says what they are enough for.

    Hand in the same cases as to `Wealth`, in the same order.
    """

    tokens: dict[str, int] = field(default_factory=dict)
    _sums: dict[str, dict[str, Floats]] = field(default_factory=dict)
    _seeds: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Refuse what are no sums, as a file may say it."""
        if self.tokens.keys() != self._sums.keys():
            raise UsageError("exclusion: expected the tokens and the sums of the same regimes")
        if any({law: one.shape for law, one in sums.items()} != _shapes() for sums in self._sums.values()):
            raise UsageError("exclusion: expected the sums of every fault")

    def add(self, rows: Sequence[SampledRow], regime: str, eps: float = 0.0) -> None:
        """Count the laws of a case, with the bound on rounding that `Wealth` was given."""
        judged = [row for row, new in zip(rows, fresh(rows, self._seeds), strict=True) if new]
        tokens = sum(int((~row.skip).sum()) for row in judged)
        if not tokens:
            return  # regimes are numbered by their first token
        self.tokens[regime] = self.tokens.get(regime, 0) + tokens
        sums = self._sums.setdefault(regime, {law: np.zeros(_shape(law)) for law in _LAWS})
        for row in judged:
            for law, found in _moments(row, eps).items():
                sums[law] = sums[law] + found

    def join(self, later: Exclusion) -> None:
        """Add the sums of a later shard: they are sums over tokens, whoever drew them."""
        for regime, sums in later._sums.items():
            own = self._sums.get(regime, {law: np.zeros(_shape(law)) for law in _LAWS})
            self._sums[regime] = {law: own[law] + sums[law] for law in _LAWS}
            self.tokens[regime] = self.tokens.get(regime, 0) + later.tokens[regime]
        self._seeds |= later._seeds

    def sentences(self, *, drafts: bool = True) -> tuple[str, ...]:
        """The excluded faults in words, of all tokens first, then by regime; those of drafts only with ``drafts``."""
        found = [one for one in self.excluded() if one.size is not None and (drafts or one.law not in _OF_DRAFTS)]
        return tuple(together(sorted(found, key=lambda one: one.regime)))

    def excluded(self) -> list[Excluded]:
        """Return for every regime, and for all together, how much of each fault is excluded."""
        faults = []
        for law in _LAWS:
            for number, regime in enumerate(self.tokens, 1):
                weight = regime_weight(number) / len(PORTFOLIO)
                faults.append(_best(regime, law, self._sums[regime][law], weight, self.tokens[regime]))
            total = np.sum([np.zeros(_shape(law)), *(sums[law] for sums in self._sums.values())], axis=0)
            faults.append(_best("", law, total, regime_weight(0) / len(PORTFOLIO), sum(self.tokens.values())))
        return faults


def _alternatives(law: str) -> list[Bet]:
    """The bets that are held against a fault."""
    if law in _MIXED:
        return [bet for bet in ALTERNATIVES if bet.law == law]
    return [bet for bet in ALTERNATIVES if bet.law == "power" and (bet.amount < 1) == (law == _WARMER)]


def _sizes(law: str) -> Sequence[float]:
    """From the greatest; a temperature lower by 100 % is 0."""
    return list(SIZES) if law in _MIXED else [size for size in CHANGES if size < 1 or law == _WARMER]


def _shape(law: str) -> tuple[int, int, int]:
    return len(_alternatives(law)), len(_sizes(law)), len(EXPONENTS)


def _shapes() -> dict[str, tuple[int, int, int]]:
    return {law: _shape(law) for law in _LAWS}


def _moments(row: SampledRow, eps: float) -> dict[str, Floats]:
    """The sums of ``log sum_x r(x) e(x)^-c`` over a row, ``[alternatives, sizes, exponents]`` of every fault."""
    named = laws(row)
    live = ~row.skip
    p = row.cells.p[live]
    rounding = np.broadcast_to(np.log1p(np.maximum(eps, row.eps)), live.shape)[live][:, None]  # [n, 1]
    possible = p > 0
    safe = np.where(possible, p, 1.0)
    sums = {}
    for law in _LAWS:
        sums[law] = np.zeros(_shape(law)) + EXPONENTS * rounding.sum()
        if (law, 0) not in named and law in _MIXED:
            continue  # no draft: no bet, and no fault
        truths = _wrong(law, p, named[law, 0][live] if law in _MIXED else p)
        for number, bet in enumerate(_alternatives(law)):
            with np.errstate(over="ignore"):  # an infinite ratio is cut
                ratio = np.where(possible, named[bet.law, bet.amount][live] / safe, 1.0)
            gains = np.log(np.minimum(mixed(ratio, bet.share), HIGHEST)) - rounding
            # An impossible token is a violation at once; to count it as no gain understates.
            gains = np.where(possible, gains, -rounding)
            powers = np.exp(-EXPONENTS[:, None, None] * gains)
            means = np.einsum("snv,cnv->scn", truths, powers)
            sums[law][number] = np.log(means).sum(-1)
    return sums


def _wrong(law: str, p: Floats, named: Floats) -> Floats:
    """The law that a decoder with the fault draws from, ``[sizes, n, V + 1]``."""
    if law in _MIXED:
        return np.stack([(1 - size) * p + size * named for size in _sizes(law)])
    way = 1 if law == _WARMER else -1
    with np.errstate(divide="ignore"):
        scores = np.log(p)
    scores = scores - scores.max(-1, keepdims=True, initial=-np.inf)
    raised = np.stack([np.exp(scores / (1 + way * size)) for size in _sizes(law)])
    return np.asarray(raised / raised.sum(-1, keepdims=True))


def _best(regime: str, law: str, sums: Floats, weight: float, tokens: int) -> Excluded:
    """The smallest size that is excluded together with all greater ones."""
    bound = EXPONENTS * np.log(VIOLATION / weight) + sums  # [alternatives, sizes, exponents]
    missed = bound.min(-1)
    size, alternative = None, ""
    for number, candidate in enumerate(_sizes(law)):
        best = int(missed[:, number].argmin())
        if missed[best, number] > np.log(MISSED):
            break
        size, alternative = float(candidate), _alternatives(law)[best].name
    return Excluded(regime, law, size, alternative, tokens)
