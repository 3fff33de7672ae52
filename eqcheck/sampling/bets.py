"""Bets against the target's law: each is a law that a wrong sampler might follow.

Where the right law is ``p``, a law ``r`` that depends on the past only has ``sum_x p(x) r(x)/p(x) <= 1``. So
``e = r(x)/p(x)`` of the emitted token is an e-value given the past, and products of such e-values are bounded by
Ville's inequality (`eqcheck.sampling.wealth`). Every alternative here is ``r = (1 - share) p + share * named``: what it
can lose on one token is bounded. Products over likelihood ratios: Ramdas and others, https://arxiv.org/abs/2210.01948.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from eqcheck.sampling.laws import grid, table
from eqcheck.sampling.reuse import normal, spent, tighter
from eqcheck.sampling.row import Cells, Floats, SampledRow

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
_BETS = tuple(
    Bet(law, amount, float(share), words, kind, cause)
    for law, kind, shares, words, cause in table(5)
    for amount in AMOUNTS.get(law, (0,))
    for share in shares.split()
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
