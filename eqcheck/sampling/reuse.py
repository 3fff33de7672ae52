"""Laws that random numbers make when they are used again: by the same row, or by others of its round."""

from __future__ import annotations

import numpy as np

from eqcheck.sampling.row import Floats

_NO_TIME = 1e9  # that a token without probability would take


def spent(law: Floats, bound: Floats) -> Floats:
    """The law ``[n, V]`` by which a number below a bound ``[n]`` picks from a law, by the sums of its probabilities.

    >>> spent(np.array([[0.5, 0.5]]), np.array([0.625])).tolist()
    [[0.8, 0.2]]
    """
    ends = law.cumsum(-1)
    return normal(np.maximum(np.minimum(ends, bound[:, None]) - (ends - law), 0), law)


def refusing(left: Floats, p: Floats, q: Floats) -> Floats:
    """The law by which a number that was not below p/q picks from the law that is left, by its sums."""
    ratio = np.minimum(np.divide(p, q, out=np.ones_like(p), where=q > 0), 1.0)[:, None]
    ends = np.minimum(left.cumsum(-1), 1.0)
    starts = ends - left
    return normal(np.maximum(ends - np.maximum(starts, ratio), 0), left)


def race(left: Floats, q: Floats) -> Floats:
    """The law by which the exponential times that drew a draft token from q choose from the law that is left.

    The draft token won at a time T, so that the times of the others are T q(v) and fresh exponentials on top
    (memoryless): each enters the race of what is left late, at T q(v) / left(v).
    """
    total = np.zeros_like(left)
    for time, weight in zip(*np.polynomial.laguerre.laggauss(8), strict=True):
        delays = np.divide(time * q, left, out=np.full_like(left, _NO_TIME), where=left > 0)
        total += weight * _late(left, np.minimum(delays, _NO_TIME))
    return normal(total, left)


def _late(rates: Floats, delays: Floats) -> Floats:
    """The chance ``[n, V]`` that each arrives first, where they run at these rates from these delays on."""
    order = np.argsort(delays, axis=-1)
    rates, delays = np.take_along_axis(rates, order, -1), np.take_along_axis(delays, order, -1)
    running = np.maximum(rates.cumsum(-1), 1e-300)
    last = np.full_like(delays[:, :1], 2 * _NO_TIME)
    gaps = np.diff(np.concatenate([delays, last], axis=-1))
    passed = (running * gaps).cumsum(-1)
    alive = np.exp(-np.concatenate([np.zeros_like(last), passed[:, :-1]], axis=-1))  # nobody has arrived so far
    ends = alive * -np.expm1(-np.minimum(running * gaps, 700.0)) / running  # of each interval, per rate
    won = np.zeros_like(rates)
    np.put_along_axis(won, order, rates * ends[:, ::-1].cumsum(-1)[:, ::-1], -1)
    return won


def normal(weights: Floats, otherwise: Floats) -> Floats:
    """Weights ``[n, V]`` as laws; another law where there are none."""
    total = weights.sum(-1, keepdims=True)
    return np.where(total > 1e-12, weights / np.maximum(total, 1e-12), otherwise)


def tighter(law: Floats) -> Floats:
    """A law ``[n, V]`` without the least likely token that it allows, unless that is the only one."""
    allowed = law > 0
    least = np.where(allowed, law, np.inf).argmin(-1)
    found = law.copy()
    several = np.flatnonzero(allowed.sum(-1) > 1)
    found[several, least[several]] = 0.0
    return np.asarray(found / found.sum(-1, keepdims=True))
