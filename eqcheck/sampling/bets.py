"""Bets against the target's law: each is a law that a wrong sampler might follow.

Where the right law is ``p``, a law ``r`` that depends on the past only has ``sum_x p(x) r(x)/p(x) <= 1``. So
``e = r(x)/p(x)`` of the emitted token is an e-value given the past, and products of such e-values are bounded by
Ville's inequality (`eqcheck.sampling.wealth`). Every alternative here is ``r = (1 - share) p + share * named``: what it
can lose on one token is bounded. Products over likelihood ratios: Ramdas and others, https://arxiv.org/abs/2210.01948.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from eqcheck.sampling.reused import normal, spent
from eqcheck.sampling.row import Cells, Floats, SampledRow

HIGHEST = 50.0
"""An e-value is cut to this; a smaller one is an e-value still."""
WHOLE = 0.99
"""The share of an alternative that is meant whole."""
POWERS = (0.68, 0.92, 1.12, 1.36)
THRESHOLDS = (0.29, 0.48, 0.73)
RAW_POWERS = (0.74, 1.0, 1.37)

SHARES: dict[str, tuple[float, ...]] = {
    "draft": (0.01, 0.03, 0.1, 0.3),  # drawn from the draft
    "residual": (0.05, 0.2),  # drawn from (p - q)+
    "residual-unused": (0.5, WHOLE),  # corrections drawn from p
    "drawn-again": (WHOLE,),  # accepted where equal to a draw from p, else drawn again
    "draft-argmax": (0.05, 0.3),
    **{f"threshold-{least}": (0.7,) for least in THRESHOLDS},  # accepted where p/q is more
    "residual-of-before": (0.3,),  # of the draft's law a column late
    "coin-kept": (0.3, 0.6),  # picked by the number that accepted the token before
    **{f"power-{power}": (WHOLE,) for power in POWERS},  # another temperature
    **{f"raw-{power}": (WHOLE,) for power in RAW_POWERS},  # options missing
    "argmax": (0.05, 0.3),
    "uniform": (0.01, 0.05, 0.3),  # whatever has nothing to do with the target
    "prefix-before": (0.1, 0.3),  # a column late
    "other-rows": (0.1, 0.3),
    "row-before": (0.1, 0.3),
    "tighter": (0.5, WHOLE),  # a cut that takes one token too many
    "first-row-options": (WHOLE,),  # all rows drawn with the options of the first
    "first-argmax": (0.3,),  # new token 0 only
    "first-raw": (WHOLE,),
}
"""The named laws, and their shares."""
ORDERS = ("id", "p", "p/q")
TILTS = (-0.5, -0.2, 0.2, 0.5)
_NAMED = tuple((f"{law}:{share}", law, share) for law, shares in SHARES.items() for share in shares)
_PIT = tuple(f"pit-{order}-{degree}:{tilt}" for order in ORDERS for degree in (1, 2, 3) for tilt in TILTS)
ALTERNATIVES: tuple[str, ...] = (*(name for name, *_ in _NAMED), *_PIT)
"""Names of the alternatives: a law and its share, or the order, degree and tilt of a PIT bet."""


def bets(row: SampledRow, earlier: Sequence[SampledRow] = ()) -> Floats:
    """``log(r(x)/p(x))`` of every emitted token ``[n]`` under every alternative of `ALTERNATIVES`: ``[n, A]``.

    ``earlier`` are the rows of the same case before this one. 0 where a position is skipped or its token impossible.

    >>> law = np.array([[0.5, 0.5]])
    >>> row = SampledRow(np.array([0]), law, np.array([[1.0, 0.0]]), law, np.array([False]))
    >>> [round(float(np.exp(log)), 3) for log in bets(row)[0, 1:4]]  # towards the draft
    [1.03, 1.1, 1.3]
    """
    cells = row.cells
    found = laws(row, earlier)
    safe = np.where(cells.live, cells.at, 1.0)
    index = np.arange(len(cells.x))
    columns = []
    ratios = {name: law[index, cells.x] / safe for name, law in found.items()}
    for _, name, share in _NAMED:
        columns.append(mixed(ratios[name], share) if name in ratios else np.ones(len(index)))
    for order in ORDERS:
        columns.extend(_pit(cells, order))
    return logs(columns, cells)


def mixed(ratio: Floats, share: float) -> Floats:
    """E-values of ``(1 - share) p + share * r``, where ``ratio`` is ``r(x)/p(x)``."""
    return 1 - share + share * ratio


def logs(values: Sequence[Floats], cells: Cells) -> Floats:
    """E-values of alternatives ``[A][n]``, cut, as logarithms ``[n, A]``; 0 where a position is not live."""
    table = np.log(np.minimum(np.stack(values, axis=1), HIGHEST))
    table[~cells.live] = 0.0
    return table


def laws(row: SampledRow, earlier: Sequence[SampledRow] = ()) -> dict[str, Floats]:
    """The named laws at every prefix of a row, in its cells ``[n, V + 1]``; those that need a draft only with one.

    A law sums to 1 at most. It is ``p`` itself, and so no bet, where it is not defined.
    """
    p, q, raw = row.cells.p, row.cells.q, row.cells.raw
    found = {}
    if q is not None:
        both = np.minimum(p, q)
        residual, rejected = p - both, 1 - both.sum(-1, keepdims=True)
        found["draft"] = q
        found["residual"] = normal(residual, p)
        found["residual-unused"] = both + rejected * p
        found["drawn-again"] = p * (q + 1 - (p * q).sum(-1, keepdims=True))
        found["draft-argmax"] = _argmax(q)
        for least in THRESHOLDS:
            taken = q * (p > least * q)
            found[f"threshold-{least}"] = taken + (1 - taken.sum(-1, keepdims=True)) * found["residual"]
        late = np.maximum(p - row.merged(_late(row.q)), 0) if row.q is not None else residual
        found["residual-of-before"] = normal(late, p)
        found["coin-kept"] = spent(p, np.concatenate([[1.0], np.minimum(1.0, _ratios(row))])[:-1])
    found |= {f"power-{power}": _power(p, power) for power in POWERS}
    found |= {f"raw-{power}": raw if power == 1 else row.merged(_power(row.raw, power)) for power in RAW_POWERS}
    found["argmax"] = _argmax(p)
    found["tighter"] = row.merged(tighter(row.p))
    if row.first_row is not None:
        found["first-row-options"] = row.merged(row.first_row)
    found["uniform"] = row.merged(np.full(row.p.shape, 1 / row.p.shape[1]))
    found["prefix-before"] = row.merged(_late(row.p))
    found["other-rows"], found["row-before"] = _others(row, earlier), _others(row, earlier[-1:])
    for name, law in (("first-argmax", "argmax"), ("first-raw", "raw-1.0")):
        found[name] = p.copy()
        found[name][:1] = found[law][:1]
    return found


def _late(values: Floats) -> Floats:
    """Values ``[n, ...]``, each one place later; the first twice."""
    return np.concatenate([values[:1], values[:-1]])


def _ratios(row: SampledRow) -> Floats:
    """What a coin that accepted each token was below ``[n]``; 1 where the draft does not propose it."""
    cells = row.cells
    assert cells.q is not None
    of_draft = cells.q[np.arange(len(cells.x)), cells.x]
    return np.asarray(np.divide(cells.at, of_draft, out=np.ones_like(of_draft), where=(of_draft > 0) & (cells.at > 0)))


def _argmax(law: Floats) -> Floats:
    best = np.zeros_like(law)
    best[np.arange(len(law)), law.argmax(-1)] = 1.0
    return best


def tighter(law: Floats) -> Floats:
    """A law ``[n, V]`` without the least likely token that it allows, unless that is the only one."""
    allowed = law > 0
    least = np.where(allowed, law, np.inf).argmin(-1)
    found = law.copy()
    several = np.flatnonzero(allowed.sum(-1) > 1)
    found[several, least[several]] = 0.0
    return np.asarray(found / found.sum(-1, keepdims=True))


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
            key = np.divide(cells.p, cells.q, out=np.full_like(cells.p, np.inf), where=cells.q > 0)
        own = key[np.arange(len(cells.x)), cells.x][:, None]
        before = (key < own) | ((key == own) & before)
    return np.asarray((cells.p * before).sum(-1))


def _pit(cells: Cells, order: str) -> list[Floats]:
    """E-values ``1 + tilt * mean of P_d`` over the token's interval ``[F(x-), F(x)]``, for degrees and tilts.

    ``P_d`` are Legendre's polynomials on [0, 1]: they are 1 at most, and their mean over all intervals, weighted by
    length, is their integral over [0, 1], which is 0. So the means over intervals are bets, without random numbers.
    """
    if order == "p/q" and cells.q is None:
        return [np.ones(len(cells.x))] * (3 * len(TILTS))
    a = below(cells, order)
    b = np.minimum(a + cells.at, 1.0)
    one, two, three = (a + b) / 2, (a * a + a * b + b * b) / 3, (a + b) * (a * a + b * b) / 4  # means of u, u^2, u^3
    means = (2 * one - 1, 6 * two - 6 * one + 1, 20 * three - 30 * two + 12 * one - 1)
    return [1 + tilt * np.clip(mean, -1.0, 1.0) for mean in means for tilt in TILTS]
