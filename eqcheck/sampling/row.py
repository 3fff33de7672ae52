"""One sampled row: its tokens, and the laws at every one of its prefixes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eqcheck.contract.errors import UsageError

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

RARE = 1e-7
"""Tokens less likely than this are one cell: float32 samplers are off by 10 % and more there."""


class Cells(NamedTuple):
    """A row in cells: a token each, and the last cell for all rare tokens. Laws are ``[n, V + 1]``.

    ``x [n]`` is the cell of the emitted token, ``at [n]`` its probability, ``live [n]`` where it can be bet on.
    """

    p: Floats
    q: Floats | None
    raw: Floats
    x: Ints
    at: Floats
    live: Bools


@dataclass(frozen=True, eq=False)
class SampledRow:
    """The ``tokens [n]`` that a decoder emitted for one row (all of them), and the laws at the prefixes before them.

    ``p [n, V]`` is the target's law with the row's options, ``q [n, V]`` the draft's with the same (None where there
    is none; a position without one sums to 0), ``raw [n, V]`` the target's without temperature and cuts. ``skip [n]``
    marks positions that are not judged; it may depend on the prefix only, never on the token. ``seed`` is what the
    request gave. ``twin`` is the index, among the rows of the case that are handed in, of an earlier row with the same
    prompt and options. ``eps [n]`` bounds the rounding at each position, see `eqcheck.sampling.wealth`; 0 is exact.
    ``first_row [n, V]`` is the target's law with the options of the first sampled row.

    Raises `UsageError` where shapes do not fit or a law is none.

    >>> row = SampledRow(np.array([1]), np.array([[0.25, 0.75]]), None, np.array([[0.5, 0.5]]), np.array([False]))
    >>> row.cells.p.tolist(), row.cells.at.tolist(), row.impossible
    ([[0.25, 0.75, 0.0]], [0.75], [])
    """

    tokens: Ints
    p: Floats
    q: Floats | None
    raw: Floats
    skip: Bools
    seed: int | None = None
    twin: int | None = None
    eps: Floats | float = 0.0
    first_row: Floats | None = None

    def __post_init__(self) -> None:
        n = len(self.tokens)
        if self.p.ndim != 2 or len(self.p) != n or self.skip.shape != (n,) or self.skip.dtype != np.bool_:
            raise UsageError(f"expected laws [{n}, V] and skip [{n}], got {self.p.shape} and {self.skip.shape}")
        if n and not 0 <= self.tokens.min() <= self.tokens.max() < self.p.shape[1]:
            raise UsageError(f"expected tokens below {self.p.shape[1]}, got {self.tokens.tolist()}")
        eps = np.broadcast_to(self.eps, n)
        if not ((eps >= 0) & (eps < np.inf)).all():
            raise UsageError(f"eps: expected numbers that are not negative, got {self.eps}")
        for name, law in (("p", self.p), ("q", self.q), ("raw", self.raw), ("first_row", self.first_row)):
            if law is not None:
                self._check(name, law)

    def _check(self, name: str, law: Floats) -> None:
        if law.shape != self.p.shape or law.dtype != np.float64:
            raise UsageError(f"{name}: expected float64 {self.p.shape}, got {law.dtype} {law.shape}")
        total = law.sum(-1)
        ends = (abs(total - 1) < 1e-9) | ((total == 0) & (name == "q"))
        if not (ends.all() and (law >= 0).all()):  # NaN is no law either
            raise UsageError(f"{name}: expected probabilities that sum to 1 at every position")

    @cached_property
    def impossible(self) -> list[int]:
        """Positions, not skipped, whose token has the probability 0: no evidence is needed against these."""
        return [int(t) for t in np.flatnonzero((self._likely == 0) & ~self.skip)]

    @cached_property
    def cells(self) -> Cells:
        """The row in cells, which depend on the prefix only."""
        p = self.merged(self.p)
        n, size = self.p.shape
        rare = self._rare[np.arange(n), self.tokens] if n else np.zeros(0, bool)
        x = np.where(rare, size, self.tokens)
        q = None
        if self.q is not None:
            q = self.merged(self.q)
            q = np.where(q.sum(-1, keepdims=True) > 0, q, p)
        return Cells(p, q, self.merged(self.raw), x, p[np.arange(n), x], (self._likely > 0) & ~self.skip)

    def merged(self, law: Floats) -> Floats:
        """A law ``[n, V]`` at the same prefixes, in the cells of this row; it sums to 1, or to 0."""
        rest = np.zeros((len(law), 1))
        if self._any_rare:
            rest = (law * self._rare).sum(-1, keepdims=True)
            law = np.where(self._rare, 0.0, law)
        law = np.concatenate([law, rest], axis=1)
        total = law.sum(-1, keepdims=True)
        return law / np.where(total > 0, total, 1.0)

    @cached_property
    def _likely(self) -> Floats:
        return self.p[np.arange(len(self.tokens)), self.tokens]

    @cached_property
    def _rare(self) -> Bools:
        # Tokens that cannot come are no part of the rare cell: what a wrong law puts on them would count for it.
        return (self.p > 0) & (self.p < RARE)

    @cached_property
    def _any_rare(self) -> bool:
        return bool(self._rare.any())


def fresh(rows: Sequence[SampledRow], seeds: set[int]) -> list[bool]:
    """Return whether each row is the first with its seed, or has none; their seeds are added to ``seeds``."""
    new = []
    for row in rows:
        new.append(row.seed is None or row.seed not in seeds)
        if row.seed is not None:
            seeds.add(row.seed)
    return new
