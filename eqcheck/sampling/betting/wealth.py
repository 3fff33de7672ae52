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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, TypedDict

import numpy as np

from eqcheck.contract.errors import UsageError
from eqcheck.sampling.betting.laws import Bools, Cells, Floats, Ints, SampledRow, fresh, grid, normal, spent, tighter

# Bets against the target's law: each is a law that a wrong sampler might follow.
#
# Where the right law is ``p``, a law ``r`` that depends on the past only has ``sum_x p(x) r(x)/p(x) <= 1``. So ``e =
# r(x)/p(x)`` of the emitted token is an e-value given the past, and products of such e-values are bounded by Ville's
# inequality (`eqcheck.sampling.betting.wealth`). Every alternative here is ``r = (1 - share) p + share * named``: what
# it can lose on one token is bounded. Products over likelihood ratios: Ramdas and others,
# https://arxiv.org/abs/2210.01948.

HIGHEST = 50.0
"""An e-value is cut to this; a smaller one is an e-value still."""
ORDERS = ("id", "p", "p/q")


class Bet(NamedTuple):
    """A bet on a law: its amount where it has one, and its share or tilt.

    ``expects`` says which tokens. ``kind`` is the kind of fault that says the same, if one does; ``cause`` what
    is wrong then, of bets on random numbers.
    """

    law: str
    amount: float
    share: float
    expects: str = ""
    kind: str = ""
    cause: str = ""

    @property
    def name(self) -> str:
        """The bet in stored files.

        >>> Bet("draft", 0.0, 0.1).name, Bet("power", 1.25, 0.99).name
        ('draft:0.1', 'power-1.25:0.99')
        """
        return f"{self.law}-{self.amount:.3g}:{self.share}" if self.amount else f"{self.law}:{self.share}"


LAGS = range(1, 9)
"""A round that repeats its random numbers shows at its own length: at most K + 1 tokens."""
AMOUNTS: dict[str, Sequence[float]] = {
    "threshold": grid(6)[:6],
    "power": grid(2),
    "raw": (grid(2)[0], 1.0, grid(2)[-1]),
    "own-uniform": LAGS,
    "own-race": LAGS,
}
"""The amounts of laws that have some."""


class Wager(NamedTuple):
    """A law that tokens may follow, with the shares of it that are bet on.

    A share is how many of the tokens are taken to follow the law: less than a third where that is rare, 0.3 to 0.75
    where only some parts of a round do, 0.99 where all do. It is not the amount of a fault. ``expects``, ``kind`` and
    ``cause`` are those of its bets; `stray-law` earns from whatever is wrong.
    """

    law: str
    shares: tuple[float, ...]
    expects: str
    kind: str = ""
    cause: str = ""


_TILTS = (-0.5, -0.2, 0.2, 0.5)
_SHARED = ("shared-noise", "rows share random numbers")
_SHARED_COINS = ("shared-noise", "rows share the random numbers that accept draft tokens")
_REUSED = ("reused-noise", "a row uses random numbers again")
WAGERS = (
    Wager("draft", (0.01, 0.03, 0.1, 0.3), "drawn from the draft", kind="over-acceptance"),
    Wager("residual", (0.05, 0.2), "drawn from the residual", kind="under-acceptance"),
    Wager(
        "residual-unused",
        (0.5, 0.99),
        "drawn in rounds that correct from the target's distribution, not from the residual",
        kind="residual",
    ),
    Wager("drawn-again", (0.99,), "that are drawn again where they are not equal to the draft token", kind="residual"),
    Wager("draft-argmax", (0.05, 0.3), "that are the draft's most likely ones"),
    Wager("threshold", (0.75,), "accepted where the target's probability is a fixed share of the draft's, or more"),
    Wager(
        "residual-of-before",
        (0.3,),
        "drawn from what the draft's distribution of the prefix before leaves of the target's",
    ),
    Wager("coin-kept", (0.3, 0.6), "picked by the random number that accepted the token before", kind="reused-noise"),
    Wager("power", (0.99,), "drawn at another temperature", kind="target-option"),
    Wager("raw", (0.99,), "drawn without the row's cuts", kind="target-option"),
    Wager("argmax", (0.05, 0.3), "that are the target's most likely ones", kind="target-option"),
    Wager("uniform", (0.01, 0.05, 0.3), "drawn from all of the vocabulary alike", kind="stray-law"),
    Wager("prefix-before", (0.1, 0.3), "drawn from the distribution after one token less"),
    Wager("other-rows", (0.1, 0.3), "drawn from the distributions of other rows"),
    Wager("row-before", (0.1, 0.3), "drawn from the distribution of the row before"),
    Wager("tighter", (0.5, 0.99), "drawn as if the row's cut took one token more", kind="target-option"),
    Wager("first-row-options", (0.99,), "drawn with the options of the first row", kind="target-option"),
    Wager("first-argmax", (0.3,), "at the start of a row that are the target's most likely ones", kind="first-token"),
    Wager("first-raw", (0.99,), "at the start of a row that are drawn without its options", kind="first-token"),
    Wager("pit-id-1", _TILTS, "whose ids lean to one side, or to the middle, or away from it"),
    Wager("pit-id-2", _TILTS, "whose ids lean to one side, or to the middle, or away from it"),
    Wager("pit-id-3", _TILTS, "whose ids lean to one side, or to the middle, or away from it"),
    Wager("pit-p-1", _TILTS, "that are too often likely, too often unlikely, or too often in between"),
    Wager("pit-p-2", _TILTS, "that are too often likely, too often unlikely, or too often in between"),
    Wager("pit-p-3", _TILTS, "that are too often likely, too often unlikely, or too often in between"),
    Wager("pit-p/q-1", _TILTS, "that the draft overrates too often, or too seldom"),
    Wager("pit-p/q-2", _TILTS, "that the draft overrates too often, or too seldom"),
    Wager("pit-p/q-3", _TILTS, "that the draft overrates too often, or too seldom"),
    Wager(
        "twin-equal",
        (0.05, 0.3, 0.99),
        "that a twin row has, too",
        kind="shared-noise",
        cause="twin rows emit the same tokens",
    ),
    Wager("shared-uniform", (0.1, 0.5), "drawn with the random numbers of other rows", *_SHARED),
    Wager("shared-uniform-by-p", (0.3,), "drawn with the random numbers of other rows", *_SHARED),
    Wager("shared-race", (0.5,), "drawn with the random numbers of other rows", *_SHARED),
    Wager("shared-coin", (0.4, 0.99), "accepted or refused by the random numbers of other rows", *_SHARED_COINS),
    Wager("shared-coin-first", (0.4, 0.99), "accepted or refused by the random numbers of other rows", *_SHARED_COINS),
    Wager("own-uniform", (0.3,), "drawn with earlier random numbers of the row", *_REUSED),
    Wager("own-race", (0.3,), "drawn with earlier random numbers of the row", *_REUSED),
)
_BETS = tuple(
    Bet(wager.law, amount, share, wager.expects, wager.kind, wager.cause)
    for wager in WAGERS
    for amount in AMOUNTS.get(wager.law, (0,))
    for share in wager.shares
)
ALTERNATIVES, PAIRS = (tuple(bet for bet in _BETS if bool(bet.cause) == of_pairs) for of_pairs in (False, True))
"""The bets on the tokens of a row alone, and those on random numbers that are shared or used again."""


def bets(row: SampledRow, earlier: Sequence[SampledRow] = ()) -> Floats:
    """``log(r(x)/p(x))`` of every emitted token ``[n]`` under every alternative of `ALTERNATIVES`: ``[n, A]``.

    ``earlier`` are the rows of the same case before this one. 0 where a position is skipped or its token impossible.

    >>> law = np.array([[0.5, 0.5]])
    >>> row = SampledRow(np.array([0]), law, np.array([[1.0, 0.0]]), law, np.array([False]))
    >>> [round(float(np.exp(log)), 3) for log in bets(row)[0, 1:4]]  # towards the draft
    [1.03, 1.1, 1.3]
    """
    cells = row.cells
    safe = np.where(cells.live, cells.at, 1.0)
    index = np.arange(len(cells.x))
    with np.errstate(over="ignore"):  # an infinite ratio is cut
        ratios = {name: law[index, cells.x] / safe for name, law in laws(row, earlier).items()}
    means = {name: mean for order in ORDERS for name, mean in _pit(cells, order).items()}
    nothing = np.ones(len(index))  # is earned without a draft
    columns = [
        1 + bet.share * means[bet.law] if bet.law in means else mixed(ratios.get(bet[:2], nothing), bet.share)
        for bet in ALTERNATIVES
    ]
    return logs(columns, cells)


def mixed(ratio: Floats, share: float) -> Floats:
    """E-values of ``(1 - share) p + share * r``, where ``ratio`` is ``r(x)/p(x)``."""
    return 1 - share + share * ratio


def logs(values: Sequence[Floats], cells: Cells) -> Floats:
    """E-values of alternatives ``[A][n]``, cut, as logarithms ``[n, A]``; 0 where a position is not live."""
    table = np.log(np.minimum(np.stack(values, axis=1), HIGHEST))
    table[~cells.live] = 0.0
    return table


def laws(row: SampledRow, earlier: Sequence[SampledRow] = ()) -> dict[tuple[str, float], Floats]:
    """The laws at every prefix of a row, in its cells ``[n, V + 1]``. Some need a draft.

    A law sums to 1 at most. It is ``p`` itself, and so no bet, where it is not defined.
    """
    p, q, raw = row.cells.p, row.cells.q, row.cells.raw
    named: dict[str, Floats] = {}
    sized: dict[tuple[str, float], Floats] = {("power", power): _power(p, power) for power in AMOUNTS["power"]}
    sized |= {("raw", 1.0): raw}
    sized |= {("raw", power): row.merged(_power(row.raw, power)) for power in AMOUNTS["raw"] if power != 1}
    if q is not None:
        both = np.minimum(p, q)
        residual, rejected = p - both, 1 - both.sum(-1, keepdims=True)
        named["draft"] = q
        named["residual"] = normal(residual, p)
        named["residual-unused"] = both + rejected * p
        named["drawn-again"] = p * (q + 1 - (p * q).sum(-1, keepdims=True))
        named["draft-argmax"] = _argmax(q)
        for least in AMOUNTS["threshold"]:
            taken = q * (p > least * q)
            sized["threshold", least] = taken + (1 - taken.sum(-1, keepdims=True)) * named["residual"]
        late = np.maximum(p - row.merged(_late(row.q)), 0) if row.q is not None else residual
        named["residual-of-before"] = normal(late, p)
        named["coin-kept"] = spent(p, np.concatenate([[1.0], np.minimum(1.0, _ratios(row))])[:-1])
    named["argmax"] = _argmax(p)
    named["tighter"] = row.merged(tighter(row.p))
    if row.first_row is not None:
        named["first-row-options"] = row.merged(row.first_row)
    named["uniform"] = row.merged(np.full(row.p.shape, 1 / row.p.shape[1]))
    named["prefix-before"] = row.merged(_late(row.p))
    named["other-rows"], named["row-before"] = _others(row, earlier), _others(row, earlier[-1:])
    for name, law in (("first-argmax", named["argmax"]), ("first-raw", raw)):
        named[name] = np.concatenate([law[:1], p[1:]])
    return sized | {(name, 0.0): law for name, law in named.items()}


def _late(values: Floats) -> Floats:
    """Values ``[n, ...]``, each one place later; the first twice."""
    return np.concatenate([values[:1], values[:-1]])


def _ratios(row: SampledRow) -> Floats:
    """The bound ``[n]`` of a coin that accepted each token; 1 where the draft does not propose it."""
    cells = row.cells
    assert cells.q is not None
    of_draft = cells.q[np.arange(len(cells.x)), cells.x]
    proposed = (of_draft > 0) & (cells.at > 0)
    with np.errstate(over="ignore"):  # a draft token that is next to impossible has an infinite ratio
        return np.asarray(np.divide(cells.at, of_draft, out=np.ones_like(of_draft), where=proposed))


def _argmax(law: Floats) -> Floats:
    best = np.zeros_like(law)
    best[np.arange(len(law)), law.argmax(-1)] = 1.0
    return best


def _power(law: Floats, power: float) -> Floats:
    with np.errstate(divide="ignore"):
        raised = np.log(law)
    raised = np.exp(power * (raised - raised.max(-1, keepdims=True)))
    return np.asarray(raised / raised.sum(-1, keepdims=True))


def _others(row: SampledRow, earlier: Sequence[SampledRow]) -> Floats:
    """The mean of earlier rows' laws at the same new token; the row's own law where they have none."""
    n = len(row.tokens)
    total, count = np.zeros_like(row.p), np.zeros((n, 1))
    for other in earlier:
        shared = min(n, len(other.tokens))
        total[:shared] += other.p[:shared]
        count[:shared] += 1
    return np.where(count > 0, row.merged(total / np.maximum(count, 1)), row.cells.p)


def below(cells: Cells, order: str) -> Floats:
    """The probability ``[n]`` of the cells that come before the emitted one in an order (ties by id).

    ``id``: as they are numbered; ``p``: the most likely first; ``p/q``: those first that the draft overrates most.
    """
    number = np.arange(cells.p.shape[1])
    before = number < cells.x[:, None]
    if order != "id":
        if order == "p":
            key = -cells.p
        else:
            assert cells.q is not None
            with np.errstate(over="ignore"):
                key = np.divide(cells.p, cells.q, out=np.full_like(cells.p, np.inf), where=cells.q > 0)
        own = key[np.arange(len(cells.x)), cells.x][:, None]
        before = (key < own) | ((key == own) & before)
    return np.asarray((cells.p * before).sum(-1))


def _pit(cells: Cells, order: str) -> dict[str, Floats]:
    """Means of P_d over the token's interval ``[F(x-), F(x)]``, for degrees d: with a tilt they are bets.

    ``P_d`` are Legendre's polynomials on [0, 1]: they are 1 at most, and their mean over all intervals, weighted by
    length, is their integral over [0, 1], which is 0. So the means over intervals are bets, without random numbers.
    """
    if order == "p/q" and cells.q is None:
        return {f"pit-{order}-{degree}": np.zeros(len(cells.x)) for degree in (1, 2, 3)}
    a = below(cells, order)
    b = np.minimum(a + cells.at, 1.0)
    one, two, three = (a + b) / 2, (a * a + a * b + b * b) / 3, (a + b) * (a * a + b * b) / 4  # means of u, u^2, u^3
    means = (2 * one - 1, 6 * two - 6 * one + 1, 20 * three - 30 * two + 12 * one - 1)
    return {f"pit-{order}-{degree}": np.clip(mean, -1.0, 1.0) for degree, mean in enumerate(means, 1)}


# Bets that rows share random numbers: a row with earlier rows of its case, or a token with earlier ones of its row.
#
# Given what earlier rows emitted, a right row still follows its own law. So a law that depends on them is a bet like
# any other. Each pair is bet on once, from the later one's side: a bet in both directions would count one chance
# twice. Rows of two calls can be one case, those of the first call before those of the second: so it shows where
# calls share.

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


BETS = {bet.name: bet for bet in (*ALTERNATIVES, *PAIRS)}
PORTFOLIO = tuple(BETS)
VIOLATION, DOUBT = 1e6, 1e3
_OF_REGIMES = 0.4
_GREATEST = 700.0  # beyond exp of this, floats end


class Impossible(TypedDict):
    """Where a token with the probability 0 was emitted."""

    case: int
    row: int
    position: int
    token: int


@dataclass(eq=False)
class Wealth:
    """Evidence against a sampler over all cases added; what it was worth at most (`supremum`), and the `verdict`.

    >>> law = np.full((40, 4), 0.25)
    >>> row = SampledRow(np.zeros(40, np.int64), law, None, law, np.zeros(40, bool))
    >>> wealth = Wealth()
    >>> wealth.add([row], "std")
    >>> wealth.verdict(), wealth.tokens, wealth.best()[0][0].name
    ('violation', 40, 'argmax:0.3')
    """

    cases: int = 0
    tokens: int = 0
    rows: int = 0
    skipped: int = 0
    """Positions that were not judged because they are near a cut."""
    repeated_seeds: int = 0
    """Rows that were not judged because an earlier one had their seed."""
    counts: dict[str, int] = field(default_factory=dict)
    """Tokens judged of each regime."""
    impossible: list[Impossible] = field(default_factory=list)
    """Tokens with the probability 0 at positions not skipped."""
    log_supremum: float = 0.0
    crossed: int | None = None
    """The number of tokens after which the evidence first was that of a violation."""
    _stride: int = 1
    _course: list[tuple[float, float]] = field(default_factory=lambda: [(0.0, 0.0)])
    _seeds: set[int] = field(default_factory=set)
    _all: Floats = field(default_factory=lambda: np.zeros(len(PORTFOLIO)))
    _regimes: dict[str, Floats] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what no evidence is, as a file may say it."""
        if any(logs.shape != (len(PORTFOLIO),) for logs in (self._all, *self._regimes.values())):
            raise UsageError(f"evidence: expected the wealth of {len(PORTFOLIO)} alternatives")
        if self.counts.keys() != self._regimes.keys():
            raise UsageError("evidence: expected the tokens and the wealth of the same regimes")

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
        # All is checked before anything is counted: a case that is refused must leave no part of itself in the
        # evidence.
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
            self._remember([(float(self.tokens), self.log_evidence)])
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
        self._remember([(float(n), float(log)) for n, log in points if n % self._stride == 0])

    def _remember(self, points: list[tuple[float, float]]) -> None:
        self._course += points
        while len(self._course) >= _POINTS:
            self._stride *= 2
            self._course = self._course[::2]

    @property
    def course(self) -> tuple[tuple[int, float], ...]:
        """The evidence over tokens, thinned to `_POINTS` at most: how many tokens, and its decimal logarithm then."""
        points = [point for point in self._course if point[0] < self.tokens]
        points += [(self.tokens, self.log_evidence)] if self.tokens else []
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
