"""Bets that rows share random numbers: a row with earlier rows of its case, or a token with earlier ones of its row.

Given what earlier rows emitted, a right row still follows its own law. So a law that depends on them is a bet like
any other. Each pair is bet on once, from the later one's side: a bet in both directions would count one chance twice.
Rows of two calls can be one case, those of the first call before those of the second: so it shows where calls share.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from eqcheck.sampling.bets import LAGS, PAIRS, below, logs, mixed
from eqcheck.sampling.reuse import normal
from eqcheck.sampling.row import Bools, Floats, Ints, SampledRow

_COINS = (np.arange(16) + 0.5) / 16


class _Pair(NamedTuple):
    """Positions ``[m]`` of a row, and the tokens they are held against: token and probability, law, interval."""

    where: Ints
    token: Ints
    likely: Floats
    law: Floats
    by_id: Floats
    by_p: Floats


def pair_bets(row: SampledRow, earlier: Sequence[SampledRow] = (), telling: bool = False) -> Floats:
    """``log(r(x)/p(x))`` of every emitted token ``[n]`` under every alternative of `PAIRS`: ``[n, P]``.

    ``earlier`` are the rows of the same case before this one. Rows to which the request gave one seed may be equal:
    they are not held against each other. Where ``telling``, no token is held against one that was the likeliest of its
    law: rows that take the likeliest are alike, too, and share no random number.
    """
    own = _Own(row, telling)
    ratios = {"twin-equal": _twin(row, earlier, telling)}
    apart = [_Own(other, telling) for other in earlier if other.seed is None or other.seed != row.seed]
    others = [_with(own, other) for other in apart]
    for name in ("shared-uniform", "shared-uniform-by-p", "shared-race"):
        ratios[name] = _mean(own, others, name)
    ratios["shared-coin"] = _coin(own, apart)
    ratios["shared-coin-first"] = np.where(np.arange(len(row.tokens)) > 0, 1.0, ratios["shared-coin"])
    made = {(name, 0): ratio for name, ratio in ratios.items()}
    for lag in LAGS:
        pairs = [_lagged(own, lag)]
        made["own-uniform", lag] = _mean(own, pairs, "shared-uniform")
        made["own-race", lag] = _mean(own, pairs, "shared-race")
    return logs([mixed(made[bet.law, int(bet.amount)], bet.share) for bet in PAIRS], row.cells)


def shared(cases: Iterable[Sequence[SampledRow]], cause: str) -> float:
    """The logarithm of what the best bet on a cause earns, where rows that are greedy earn nothing."""
    total = np.zeros(len(PAIRS))
    for rows in cases:
        for number, row in enumerate(rows):
            total += pair_bets(row, rows[:number], telling=True).sum(0)
    return max(float(gain) for bet, gain in zip(PAIRS, total, strict=True) if bet.cause == cause)


class _Own:
    """A row with its intervals in both orders."""

    def __init__(self, row: SampledRow, telling: bool) -> None:
        self.row, self.cells = row, row.cells
        self.by_id, self.by_p = below(row.cells, "id"), below(row.cells, "p")
        # A token among the rare ones says nothing exact about a random number.
        self.usable: Bools = row.cells.live & (row.cells.x == row.tokens)
        if telling:
            self.usable &= row.cells.at < row.cells.p.max(-1)

    @cached_property
    def of_coins(self) -> Floats:
        """The emitted token's probability ``[n, coins]`` for each coin, over that without one."""
        cells, index = self.cells, np.arange(len(self.cells.x))
        if cells.q is None:
            return np.ones((len(index), len(_COINS)))
        with np.errstate(over="ignore"):  # no coin is as large as an infinite ratio
            ratio = np.divide(cells.p, cells.q, out=np.ones_like(cells.p), where=cells.q > 0)
        refused = np.einsum("nv,nvc->nc", cells.q, ratio[..., None] <= _COINS)
        left = normal(np.maximum(cells.p - cells.q, 0), cells.p)[index, cells.x][:, None]
        accepted = cells.q[index, cells.x][:, None] * (ratio[index, cells.x][:, None] > _COINS)
        return np.asarray((accepted + refused * left) / np.where(cells.live, cells.at, 1.0)[:, None])


def _with(own: _Own, theirs: _Own) -> _Pair:
    """The tokens of another row that have the same number in the output."""
    shared = min(len(own.row.tokens), len(theirs.row.tokens))
    where = np.flatnonzero(theirs.usable[:shared])
    return _pair(theirs, where, where)


def _lagged(own: _Own, lag: int) -> _Pair:
    """The tokens of the row itself, so many earlier."""
    where = np.flatnonzero(own.usable[:-lag])
    return _pair(own, where, where + lag)


def _pair(theirs: _Own, of: Ints, where: Ints) -> _Pair:
    cells = theirs.cells
    return _Pair(where, cells.x[of], cells.at[of], theirs.row.p[of], theirs.by_id[of], theirs.by_p[of])


def _mean(own: _Own, pairs: Sequence[_Pair], bet: str) -> Floats:
    """The mean of the pairs' ratios at every position; 1 where there is no pair."""
    total, count = np.zeros(len(own.cells.x)), np.zeros(len(own.cells.x))
    for pair in pairs:
        if bet == "shared-race":
            ratio, defined = _race(own, pair)
        else:
            ratio, defined = _overlap(own, pair, by_p=bet.endswith("by-p"))
        total[pair.where] += np.where(defined, ratio, 0.0)
        count[pair.where] += defined
    return np.where(count > 0, total / np.maximum(count, 1), 1.0)


def _overlap(own: _Own, pair: _Pair, by_p: bool) -> tuple[Floats, Bools]:
    """Return where one uniform made both tokens: it lies in the other's interval, uniformly,
    and so chooses this one.
    """
    start = (own.by_p if by_p else own.by_id)[pair.where]
    other = pair.by_p if by_p else pair.by_id
    own_likely = np.where(own.cells.live, own.cells.at, 1.0)[pair.where]
    both = np.minimum(start + own_likely, other + pair.likely) - np.maximum(start, other)
    return np.maximum(both, 0.0) / pair.likely / own_likely, np.ones(len(start), bool)


def _coin(own: _Own, others: Sequence[_Own]) -> Floats:
    """Return where one coin accepts the draft tokens of rows: the others' tokens tell where it lies, and it what comes
    here.

    For a coin u the law is ``q(x) [u < p(x)/q(x)]``, and what that leaves out in proportion to (p - q)+: it sums to 1.
    """
    if not others:
        return np.ones(len(own.row.tokens))
    weights = np.ones((len(own.row.tokens), len(_COINS)))
    for other in others:
        shared = min(len(weights), len(other.row.tokens))
        weights[:shared] *= np.where(other.usable[:shared, None], other.of_coins[:shared] + 0.02, 1.0)
    return np.asarray((weights * own.of_coins).sum(-1) / weights.sum(-1))


def _race(own: _Own, pair: _Pair) -> tuple[Floats, Bools]:
    """Return where one set of exponentials made both: ``argmin E_v / p(v)`` is often the same token.

    Both are the token ``a`` with the probability ``1 / sum_w max(p_i(w)/p_i(a), p_j(w)/p_j(a))``. The rest goes to
    the other tokens, in proportion to the row's law.
    """
    hit = own.cells.p[pair.where, pair.token]  # 0 where the token is rare or impossible in this row
    defined = (hit > 0) & (hit < 1 - 1e-9)
    safe = np.where(defined, hit, 0.5)
    highest = np.maximum(pair.law / pair.likely[:, None], own.row.p[pair.where] / safe[:, None])
    equal = np.minimum(1 / highest.sum(-1) / pair.likely, 1.0)
    same = own.cells.x[pair.where] == pair.token
    return np.where(same, equal / safe, (1 - equal) / (1 - safe)), defined


def _twin(row: SampledRow, earlier: Sequence[SampledRow], telling: bool) -> Floats:
    """The ratio of the law that repeats the twin's token, as long as all tokens before were the same."""
    ratio = np.ones(len(row.tokens))
    if row.twin is None or (row.seed is not None and row.seed == earlier[row.twin].seed):
        return ratio
    for t, token in _while_equal(row, earlier[row.twin]):
        likely = row.cells.p[t, token]
        if likely > 0 and not (telling and likely == row.cells.p[t].max()):
            ratio[t] = 1 / likely if row.tokens[t] == token else 0.0
    return ratio


def _while_equal(row: SampledRow, twin: SampledRow) -> Iterator[tuple[int, int]]:
    for t in range(min(len(row.tokens), len(twin.tokens))):
        yield t, int(twin.tokens[t])
        if row.tokens[t] != twin.tokens[t]:
            return
