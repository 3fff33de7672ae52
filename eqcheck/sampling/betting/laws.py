"""The laws that a sampler may have: one record for each error, and whole samplers with one error at most.

Right is rejection sampling (Leviathan and others, 2023, https://arxiv.org/abs/2211.17192; Chen and others, 2023,
https://arxiv.org/abs/2302.01318) with any draft whose law it knows, or matching, where a draft token is accepted if the
target draws the same. Both ways of naming read this table: from rounds (`eqcheck.sampling.betting.round_laws`), and
from tokens alone (`eqcheck.sampling.betting.token_laws`).

**Amounts** lie on a geometric grid around 1, the same for every law: half a `STEP` away from 1, and then whole ones. So
every amount is within half a step of a grid point, however a fault was made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eqcheck.contract.errors import UsageError
from eqcheck.contract.options import RowOptions

# One sampled row: its tokens, and the laws at every one of its prefixes.

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
    prompt and options. ``eps [n]`` bounds the rounding at each position, see `eqcheck.sampling.betting.wealth`; 0 is
    exact. ``first_row [n, V]`` is the target's law with the options of the first sampled row.

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


# Laws that random numbers make when they are used again: by the same row, or by others of its round.

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


STEP = 0.25
REJECTION, MATCH = "rejection", "match"
ROUNDS, TOKENS = "rounds", "tokens"
_REDRAWING = ("again", "again-options", "again-absolute", "again-argmax", "again-place", "again-left")


def grid(count: int) -> tuple[float, ...]:
    """The points of the grid next to 1, so many on each side.

    >>> [round(point, 3) for point in grid(2)]
    [0.687, 0.882, 1.133, 1.455]
    """
    return tuple(math.exp((place + 0.5) * STEP) for place in range(-count, count))


class PartLaw(NamedTuple):
    """A law of one part of a round, right where all fields are empty.

    ``rule`` says how it is made, ``of`` the option, place or row that it takes, ``amount`` how much of it.
    """

    rule: str = ""
    of: str = ""
    amount: float = 0.0

    @property
    def redraws(self) -> bool:
        """Return whether a correction by this rule may be the refused draft token."""
        return self.rule in _REDRAWING


class Verification(NamedTuple):
    """Describe how draft tokens are accepted or corrected: the scheme, the laws of target and draft,
    and a rule of its own.
    """

    scheme: str
    p: PartLaw = PartLaw()
    q: PartLaw = PartLaw()
    rule: PartLaw = PartLaw()


Changes = Callable[[Sequence[RowOptions], int], Mapping[str, Any]]
_TAKEN = ("temperature", "top_k", "top_p", "min_p")
UNCUT: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def _of_row(place: Callable[[int, int], int], *names: str) -> Changes:
    """Options of another row, whose place is made from the own one and the number of rows."""
    return lambda rows, own: {name: getattr(rows[place(own, len(rows))], name) for name in names or _TAKEN}


def _first(own: int, count: int) -> int:
    return 0


OPTIONS: dict[str, tuple[str, Changes]] = {
    "temperature": ("without the row's temperature", lambda rows, own: {"temperature": 1.0}),
    "temperature-twice": (
        "with the row's temperature applied twice",
        lambda rows, own: {"temperature": max(rows[own].temperature ** 2, 1e-6)},
    ),
    "top-k": ("without the row's top-k", lambda rows, own: {"top_k": 0}),
    "top-p": ("without the row's top-p", lambda rows, own: {"top_p": 1.0}),
    "min-p": ("without the row's min-p", lambda rows, own: {"min_p": 0.0}),
    "cuts": ("without the row's cuts", lambda rows, own: {name: UNCUT[name] for name in _TAKEN[1:]}),
    "options": ("without the row's options", lambda rows, own: UNCUT),
    "greedy": ("as if the row were greedy", lambda rows, own: {"temperature": 0.0}),
    "order": ("with the temperature applied behind the cuts", lambda rows, own: {}),
    "order-first": ("with the temperature applied before the cuts", lambda rows, own: {}),
    "top-k-tighter": (
        "with a top-k that is less by one",
        lambda rows, own: {"top_k": rows[own].top_k - (rows[own].top_k > 1)},
    ),
    "top-k-looser": (
        "with a top-k that is greater by one",
        lambda rows, own: {"top_k": rows[own].top_k + (rows[own].top_k > 0)},
    ),
    "top-p-tighter": ("with a top-p that cuts one token too many", lambda rows, own: {}),
    "top-k-greedy": (
        "as if a row with a top-k were greedy",
        lambda rows, own: {"temperature": 0.0} if rows[own].top_k else {},
    ),
    "greedy-beside": (
        "as if a row beside a greedy one were greedy",
        lambda rows, own: {"temperature": 0.0} if not all(row.temperature for row in rows) else {},
    ),
    "first-row": ("with the options of the first row", _of_row(_first)),
    "first-row-temperature": ("with the temperature of the first row", _of_row(_first, "temperature")),
    "first-row-top-k": ("with the top-k of the first row", _of_row(_first, "top_k")),
    "first-row-top-p": ("with the top-p of the first row", _of_row(_first, "top_p")),
    "first-row-min-p": ("with the min-p of the first row", _of_row(_first, "min_p")),
    "greatest-top-k": (
        "with the greatest top-k of all rows",
        lambda rows, own: {"top_k": max(row.top_k for row in rows)},
    ),
    "next-row": ("with the options of the next row", _of_row(lambda own, count: (own + 1) % count)),
    "row-before": ("with the options of the row before", _of_row(lambda own, count: (own - 1) % count)),
}
"""How a row's options may be got wrong: in words, and the options that are taken instead."""
BASES = ("options", "cuts", "temperature")
"""Options that the draft may leave out, if its tokens are compared with the law that they are drawn from."""
FIRST = ("greedy", "options", "temperature", "cuts")
"""How a first token may be drawn, whatever the draft says."""
BESIDE = {
    "q-next-row": "the next row",
    "q-row-before": "the row before",
    "q-first-row": "the first row",
    "q-next-column": "the next column",
    "q-column-before": "the column before",
    "q-first-column": "the first column",
    "q-last-column": "the last column",
    "q-round-before": "the round before",
}
"""Other places whose law of the draft may be taken."""
PLACES = {
    "before": "the column before",
    "behind": "the column behind",
    "first-column": "the first column of the round",
    "round-before": "the law of the last token of the round before",
    "round-before-end": "the law of the last column of the round before",
}
"""Other places of a row whose law of the target may be taken."""
ANY_ROW = "another row"
_WORDS = {name: words for name, (words, _) in OPTIONS.items()} | BESIDE | PLACES


def misused(
    right: Floats, rows: Sequence[RowOptions], own: int, order: tuple[str, ...], law: Callable[..., Floats]
) -> dict[str, Floats]:
    """The laws ``[n, V]`` of a row by the option that is got wrong, the ``right`` one itself where it is the same.

    ``law`` makes them from options and their order.
    """
    cuts = tuple(name for name in order if name != "temperature")
    orders = {"order": (*cuts, "temperature"), "order-first": ("temperature", *cuts)}
    laws, made = {}, {(rows[own], order): right}
    for name, (_, changed) in OPTIONS.items():
        asked = replace(rows[own], **changed(rows, own)), orders.get(name, order)
        if asked not in made:
            made[asked] = law(*asked)
        laws[name] = made[asked]
    cut = (right > 0).sum(-1) < (laws["top-p"] > 0).sum(-1)
    laws["top-p-tighter"] = np.where(cut[:, None], tighter(right), right) if cut.any() else right
    return laws


class Taken(Enum):
    """The ways in which a part of a round takes the law of an error."""

    OWN = "the part is drawn from the law itself"
    P = "the law stands in place of the target's"
    Q = "the law stands in place of the draft's"
    PQ = "the law stands in place of both"
    RULE = "the law is the rule by which the part accepts or corrects"
    INVERTED = "the part accepts by the inverted ratio, whatever the law"
    MATCHED = "the part accepts as where draft and target match"
    ANY = "nothing is said of the part"


OWN, P, Q, PQ, RULE, INVERTED, MATCHED, ANY = Taken


class Parts(NamedTuple):
    """The parts of a round, each with how it takes the law of an error; None where the part stays right."""

    draft: Taken | None = None
    accept: Taken | None = None
    correction: Taken | None = None
    bonus: Taken | None = None
    first: Taken | None = None


ALL_OPTIONS = "all-options"
"""The right sampler by rejection whose draft takes all of a row's options."""


class Error(NamedTuple):
    """An error of a sampler for each of some ``laws``, of one kind and in the same words.

    ``among`` names the right samplers that may have the error, `REJECTION`, `MATCH` or `ALL_OPTIONS`; all where it is
    empty. ``told`` says by what alone it is told, `ROUNDS` or `TOKENS`; empty: by both.
    """

    words: str
    laws: tuple[PartLaw, ...]
    parts: Parts
    among: str = ""
    told: str = ""
    kind: str = ""


def _each(rule: str, names: Iterable[str]) -> tuple[PartLaw, ...]:
    return tuple(PartLaw(rule, name) for name in names)


def _only(rule: str) -> tuple[PartLaw, ...]:
    return (PartLaw(rule),)


_ANY_OPTION = _each("options", OPTIONS)
_ANY_BUT_GREEDY = tuple(law for law in _ANY_OPTION if law.of != "greedy")
_NO_BASE = tuple(law for law in _ANY_OPTION if law.of not in BASES)
_GREEDY = (PartLaw("options", "greedy"),)
_POWERS = tuple(PartLaw("power", amount=power) for power in grid(3))
_LIKELIEST = tuple(PartLaw("likeliest", amount=count) for count in (2, 3, 5, 10))
_BESIDE = _each("beside", BESIDE)
_MORE = tuple(PartLaw("times", amount=factor) for factor in grid(6) if factor > 1)
_LESS = tuple(PartLaw("times", amount=factor) for factor in grid(6) if factor < 1)
_THEN_LESS = tuple(law._replace(rule="then-times") for law in _LESS)
_STEPS = tuple(PartLaw("step", amount=(step + 0.5) / 26) for step in range(26))  # each stands for those around it
_REDRAWN = _each("again-place", ("before", "behind"))
_RESIDUAL_OF = _each("again-left", ("before", "behind", "first-column"))
_COLUMN_BEFORE = (PartLaw("place", "before"),)
_FIRST_COLUMN = (PartLaw("place", "first-column"),)
_ROUND_BEFORE = _each("place", ("round-before", "round-before-end"))
_FIRST_TOKENS = _each("first", FIRST)

_BY_KIND: dict[str, list[Error]] = {
    "target-option": [
        Error(
            "the target's distribution is taken {how} where draft tokens are verified",
            _ANY_OPTION,
            Parts(accept=P, correction=P),
        ),
        Error(
            "the target's distribution is taken {how}",
            _ANY_BUT_GREEDY,
            Parts(accept=P, correction=P, bonus=OWN, first=OWN),
        ),
        Error(
            "the target's distribution is taken {how}: the answer is the argmax",
            _GREEDY,
            Parts(accept=P, correction=P, bonus=OWN, first=OWN),
        ),
        Error(
            "the target's distribution is taken {how}",
            _POWERS,
            Parts(accept=P, correction=P, bonus=OWN, first=OWN),
            told=TOKENS,
        ),
        Error("acceptance takes the target's distribution {how}", _ANY_OPTION, Parts(accept=P)),
        Error(
            "the distributions of target and draft are taken {how}",
            _NO_BASE,
            Parts(draft=OWN, accept=PQ, correction=PQ, bonus=OWN, first=OWN),
            among=ALL_OPTIONS,
            told=ROUNDS,
        ),
        Error(
            "the distributions of target and draft are taken {how} where draft tokens are verified",
            _NO_BASE,
            Parts(draft=OWN, accept=PQ, correction=PQ),
            among=ALL_OPTIONS,
            told=ROUNDS,
        ),
    ],
    "draft-law": [
        Error(
            "draft tokens are drawn {how}, and compared with another distribution",
            _ANY_BUT_GREEDY,
            Parts(draft=OWN),
            among=REJECTION,
        ),
        Error(
            "draft tokens are drawn {how}, and compared with another distribution",
            _POWERS,
            Parts(draft=OWN),
            among=REJECTION,
        ),
        Error(
            "draft tokens are the draft's likeliest, and compared with another distribution",
            _GREEDY,
            Parts(draft=OWN),
            among=REJECTION,
        ),
        Error(
            "draft tokens are drawn from the draft's {amount} likeliest, and compared with another distribution",
            _LIKELIEST,
            Parts(draft=OWN),
            among=REJECTION,
            told=ROUNDS,
        ),
        Error(
            "draft tokens are drawn uniformly, and compared with another distribution",
            _only("uniform"),
            Parts(draft=OWN),
            among=REJECTION,
            told=ROUNDS,
        ),
        Error(
            "draft tokens are compared with the draft's distribution {how}, which they are not drawn from",
            _ANY_OPTION,
            Parts(accept=Q, correction=Q),
            among=ALL_OPTIONS,
        ),
        Error(
            "acceptance takes the draft's distribution {how}",
            _ANY_OPTION,
            Parts(accept=Q),
            among=ALL_OPTIONS,
            told=ROUNDS,
        ),
        Error(
            "acceptance takes the draft token for certain",
            _only("certain"),
            Parts(accept=MATCHED),
            among=REJECTION,
            told=ROUNDS,
        ),
    ],
    "wrong-draft-row": [
        Error(
            "draft tokens are compared with the draft's distribution of {how}",
            _BESIDE,
            Parts(accept=Q, correction=Q),
            among=ALL_OPTIONS,
        ),
        Error(
            "acceptance takes the draft's distribution of {how}",
            _BESIDE,
            Parts(accept=Q),
            among=ALL_OPTIONS,
            told=ROUNDS,
        ),
        Error(
            "corrections take the draft's distribution of {how}",
            _BESIDE,
            Parts(correction=Q),
            among=ALL_OPTIONS,
            told=ROUNDS,
        ),
    ],
    "over-acceptance": [
        Error("every draft token is accepted", _only("always"), Parts(accept=RULE)),
        Error("the first draft token of a round is always accepted", _only("first-column"), Parts(accept=RULE)),
        Error(
            "draft tokens behind the first of a round are always accepted",
            _only("later-columns"),
            Parts(accept=RULE),
            told=ROUNDS,
        ),
        Error(
            "draft tokens are accepted that the target never emits",
            _only("impossible"),
            Parts(accept=RULE),
            told=ROUNDS,
        ),
        Error(
            "draft tokens are accepted where they are to be refused",
            _only("one-minus"),
            Parts(accept=RULE),
            told=ROUNDS,
        ),
        Error(
            "draft tokens are accepted where they are the target's likeliest",
            _only("argmax"),
            Parts(accept=RULE),
            told=TOKENS,
        ),
        Error("the ratio is inverted", _only("inverted"), Parts(accept=RULE), among=REJECTION),
        Error(
            "the ratio is inverted, and corrections are drawn from the target's distribution",
            _only("again"),
            Parts(accept=INVERTED, correction=RULE),
            among=REJECTION,
            told=TOKENS,
        ),
        Error("the ratio is about {amount} times what is right", _MORE, Parts(accept=RULE), among=REJECTION),
        Error(
            "draft tokens are accepted about {amount} times as often as is right",
            _MORE,
            Parts(accept=RULE),
            among=MATCH,
            told=TOKENS,
        ),
    ],
    "under-acceptance": [
        Error("no draft token is accepted", _only("never"), Parts(accept=RULE)),
        Error("the ratio is about {amount} times what is right", _LESS, Parts(accept=RULE), among=REJECTION),
        Error(
            "draft tokens are accepted about {amount} times as often as is right",
            _LESS,
            Parts(accept=RULE),
            among=MATCH,
            told=TOKENS,
        ),
        Error(
            "draft tokens are accepted about {amount} times as often as is right",
            _THEN_LESS,
            Parts(accept=RULE),
            among=REJECTION,
            told=ROUNDS,
        ),
    ],
    "threshold-acceptance": [
        Error(
            "a draft token is accepted where its ratio exceeds about {amount}: no random number decides",
            _STEPS,
            Parts(accept=RULE),
            among=REJECTION,
            told=ROUNDS,
        ),
        Error(
            "a draft token is accepted where its probability exceeds about {amount}: no random number decides",
            _STEPS,
            Parts(accept=RULE),
            among=MATCH,
            told=ROUNDS,
        ),
    ],
    "residual": [
        Error("corrections take the target's distribution {how}", _ANY_OPTION, Parts(correction=P)),
        Error(
            "corrections take the draft's distribution {how}",
            _ANY_OPTION,
            Parts(correction=Q),
            among=ALL_OPTIONS,
            told=ROUNDS,
        ),
        Error(
            "corrections take the distributions of target and draft {how}",
            _ANY_OPTION,
            Parts(correction=PQ),
            among=ALL_OPTIONS,
            told=ROUNDS,
        ),
        Error(
            "corrections are the likeliest of what the draft left of the target's distribution",
            _only("argmax"),
            Parts(correction=RULE),
            among=REJECTION,
        ),
        Error(
            "corrections are drawn from what the target leaves of the draft's distribution",
            _only("backwards"),
            Parts(correction=RULE),
            among=REJECTION,
            told=ROUNDS,
        ),
        Error("corrections are drawn from the draft", _only("draft"), Parts(correction=RULE), told=ROUNDS),
        Error(
            "corrections are drawn as if the draft token had been certain",
            _only("again"),
            Parts(correction=RULE),
            among=REJECTION,
            told=ROUNDS,
        ),
        Error(
            "corrections are drawn from the target's distribution, and not from what the draft left of it",
            _only("again"),
            Parts(accept=RULE, correction=RULE, bonus=ANY),
            among=REJECTION,
        ),
        Error(
            "a refused draft token may be drawn again",
            _only("again"),
            Parts(accept=RULE, correction=RULE, bonus=ANY),
            among=MATCH,
        ),
        Error(
            "corrections are drawn from the target's distribution without the row's options",
            _only("again-options"),
            Parts(accept=RULE, correction=RULE, bonus=ANY),
            told=ROUNDS,
        ),
        Error(
            "corrections are drawn from the absolute difference of the distributions",
            _only("again-absolute"),
            Parts(accept=RULE, correction=RULE, bonus=ANY),
        ),
        Error(
            "corrections are the target's likeliest",
            _only("again-argmax"),
            Parts(accept=RULE, correction=RULE, bonus=ANY),
        ),
    ],
    "correction-column": [
        Error("corrections are drawn from {how}", _REDRAWN, Parts(accept=RULE, correction=RULE, bonus=ANY)),
        Error(
            "corrections are drawn from the residual of {how}",
            _RESIDUAL_OF,
            Parts(accept=RULE, correction=RULE),
            among=ALL_OPTIONS,
            told=ROUNDS,
        ),
    ],
    "reused-noise": [
        Error(
            "the random number that refused the draft token picks the correction",
            _only("coin"),
            Parts(correction=RULE),
            among=REJECTION,
            told=ROUNDS,
        ),
        Error(
            "the random number that refused a draft token, or accepted the last, picks the correction and the bonus",
            _only("coin"),
            Parts(correction=RULE, bonus=OWN),
            among=REJECTION,
            told=ROUNDS,
        ),
        Error(
            "the random number that accepted the last draft token picks the bonus",
            _only("coin"),
            Parts(bonus=OWN),
            among=REJECTION,
            told=ROUNDS,
        ),
        Error(
            "one random number decides on all draft tokens of a round",
            _only("one-coin"),
            Parts(accept=RULE),
            among=REJECTION,
            told=ROUNDS,
        ),
        Error(
            "the random numbers that drew the draft token draw the correction",
            _only("race"),
            Parts(correction=RULE),
            among=REJECTION,
            told=ROUNDS,
        ),
    ],
    "bonus-law": [
        Error("a bonus is drawn {how}", _ANY_OPTION, Parts(bonus=OWN)),
        Error("a bonus is drawn {how}", _POWERS, Parts(bonus=OWN)),
    ],
    "bonus-column": [
        Error("a bonus is drawn from {how}", _COLUMN_BEFORE, Parts(bonus=OWN)),
        Error("a bonus is drawn from {how}", _FIRST_COLUMN, Parts(bonus=OWN), told=ROUNDS),
    ],
    "stale-bonus": [
        Error("a bonus is drawn from {how}", _ROUND_BEFORE, Parts(bonus=OWN), told=ROUNDS),
    ],
    "first-token": [
        Error("the first token is drawn {how}", _ANY_OPTION, Parts(first=OWN), told=ROUNDS),
        Error("the first token is drawn {how}", _POWERS, Parts(first=OWN), told=ROUNDS),
        Error("the first token is drawn {how}", _FIRST_TOKENS, Parts(accept=RULE, correction=RULE, first=OWN)),
    ],
}
ERRORS = tuple(error._replace(kind=kind) for kind, errors in _BY_KIND.items() for error in errors)
"""Each error of one part of a round that a name is looked for among."""


class SamplerLaws(NamedTuple):
    """A sampler with at most one error, and the law of each part; None where nothing is said of a part."""

    error: Error | None
    law: PartLaw
    draft: PartLaw | None
    accept: Verification
    correction: Verification
    bonus: PartLaw | None = PartLaw()
    first: PartLaw | None = PartLaw()

    @property
    def kind(self) -> str:
        """The kind of its error, empty where it is right."""
        return self.error.kind if self.error else ""

    @property
    def first_columns_tell(self) -> bool:
        """Return whether only these tell: behind them, a corrected token may look accepted."""
        rule = self.accept.rule
        less = rule.rule in ("never", "inverted", "one-minus") or (0 < rule.amount < 1 and rule.rule != "step")
        return less or rule.redraws or rule.rule == "first"

    @property
    def beside(self) -> str:
        """The other row or column whose law of the draft it takes, if any."""
        return next((part.q.of for part in (self.accept, self.correction) if part.q.rule == "beside"), "")


def right_samplers() -> tuple[SamplerLaws, ...]:
    """Matching, and rejection with drafts that take the options of the row or leave some out."""
    # A draft token that is matched may be drawn from anything.
    bases = [PartLaw(), *(PartLaw("options", name) for name in BASES)]
    rejecting = (Verification(REJECTION, q=base) for base in bases)
    matching = Verification(MATCH)
    return (
        SamplerLaws(None, PartLaw(), None, matching, matching),
        *(SamplerLaws(None, PartLaw(), way.q, way, way) for way in rejecting),
    )


def wrong_samplers(told: str, rights: Sequence[SamplerLaws]) -> tuple[SamplerLaws, ...]:
    """Every right sampler with every error that is told by rounds, or by tokens."""
    return tuple(
        _with(right, error, law)
        for right in rights
        for error in ERRORS
        if error.told in ("", told) and error.among in ("", right.accept.scheme, _all_options(right))
        for law in error.laws
    )


def _all_options(right: SamplerLaws) -> str:
    return ALL_OPTIONS if right.accept == Verification(REJECTION) else ""


def _with(right: SamplerLaws, error: Error, law: PartLaw) -> SamplerLaws:
    parts: dict[str, Any] = {}
    own = right.accept
    for part, how in zip(Parts._fields, error.parts, strict=True):
        match how:
            case None:
                continue
            case Taken.OWN:
                parts[part] = law
            case Taken.ANY:
                parts[part] = None
            case Taken.MATCHED:
                parts[part] = Verification(MATCH)
            case Taken.RULE:
                parts[part] = own._replace(rule=law)
            case Taken.INVERTED:
                parts[part] = own._replace(rule=PartLaw("inverted"))
            case Taken.P:
                parts[part] = own._replace(p=law)
            case Taken.Q:
                parts[part] = own._replace(q=law)
            case Taken.PQ:
                parts[part] = own._replace(p=law, q=law)
    return right._replace(error=error, law=law, **parts)


def in_words(samplers: Sequence[SamplerLaws]) -> str:
    """The error that all of these have, with a range where only its amount differs; empty where more does."""
    alike = {(sampler.error.words if sampler.error else "", sampler.law.rule, sampler.law.of) for sampler in samplers}
    if len(alike) > 1:
        return ""
    ((words, _, of),) = alike
    numbers = sorted({float(f"{_shown(sampler.law):.2g}") for sampler in samplers})
    amount = f"{numbers[0]:g} to {numbers[-1]:g}" if len(numbers) > 1 else f"{numbers[0]:g}"
    return words.format(amount=amount, how=_WORDS.get(of) or f"at {amount} times the temperature")


def _shown(law: PartLaw) -> float:
    """The amount as it is said: of a power the temperature that it makes."""
    return 1 / law.amount if law.rule == "power" else law.amount
