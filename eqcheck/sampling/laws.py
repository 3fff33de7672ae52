"""The laws that a sampler may have: one record for each error, and whole samplers with one error at most.

Right is rejection sampling (Leviathan and others, 2023, https://arxiv.org/abs/2211.17192; Chen and others, 2023,
https://arxiv.org/abs/2302.01318) with any draft whose law it knows, or matching, where a draft token is accepted if the
target draws the same. Both ways of naming read this table: from rounds (`eqcheck.sampling.rounds`), and from tokens
alone (`eqcheck.sampling.tokens`).

**Amounts** lie on a geometric grid around 1, the same for every law: half a `STEP` away from 1, and then whole ones. So
every amount is within half a step of a grid point, however a fault was made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
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
_REDRAWN = ("again", "again-options", "again-absolute", "again-argmax", "again-place", "again-left")


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
        return self.rule in _REDRAWN


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


class Error(NamedTuple):
    """An error of a sampler for each of some ``laws``, of one kind and in the same words.

    ``takes`` says what each part of a round takes: the law itself (``own``), or as the law of the target (``p``), of
    the draft (``q``), of both (``pq``) or as its ``rule``, or else another rule; ``match`` accepts as where draft and
    target match, and of a part that is ``any`` nothing is said. ``among``: the right samplers that may have the error,
    all where it is empty; ``own`` are those whose draft takes all of a row's options. ``told`` says by what alone it is
    told, `ROUNDS` or `TOKENS`; empty: by both.
    """

    kind: str
    words: str
    laws: tuple[PartLaw, ...]
    takes: tuple[tuple[str, str], ...]
    among: str
    told: str


_TIMES = [PartLaw("times", amount=factor) for factor in grid(6)]
_LAWS: dict[str, list[PartLaw]] = {
    "options": [PartLaw("options", name) for name in OPTIONS],
    "sampled": [PartLaw("options", name) for name in OPTIONS if name != "greedy"],
    "unusual": [PartLaw("options", name) for name in OPTIONS if name not in BASES],
    "greedy": [PartLaw("options", "greedy")],
    "powers": [PartLaw("power", amount=power) for power in grid(3)],
    "likeliest": [PartLaw("likeliest", amount=count) for count in (2, 3, 5, 10)],
    "beside": [PartLaw("beside", name) for name in BESIDE],
    "more": [law for law in _TIMES if law.amount > 1],
    "less": [law for law in _TIMES if law.amount < 1],
    "then-less": [law._replace(rule="then-times") for law in _TIMES if law.amount < 1],
    "steps": [PartLaw("step", amount=(step + 0.5) / 26) for step in range(26)],  # each stands for those around it
    "elsewhere": [PartLaw("again-place", name) for name in ("before", "behind")],
    "left": [PartLaw("again-left", name) for name in ("before", "behind", "first-column")],
    "before": [PartLaw("place", "before")],
    "begin": [PartLaw("place", "first-column")],
    "rounds": [PartLaw("place", name) for name in ("round-before", "round-before-end")],
    "first": [PartLaw("first", name) for name in FIRST],
}


def table(columns: int) -> list[list[str]]:
    """The cells of a table in `laws.md`, which is known by its number of columns."""
    lines = Path(__file__).with_name("laws.md").read_text("utf-8").splitlines()
    rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|"))
    return [row for row in rows if len(row) == columns][2:]


def _error(kind: str, words: str, laws: str, takes: str, among: str, told: str) -> Error:
    pairs = (pair.partition("=") for pair in takes.split())
    parts = tuple((part, how) for part, _, how in pairs)
    return Error(kind, words, tuple(_LAWS.get(laws, [PartLaw(laws)])), parts, among, told)


ERRORS = tuple(_error(*row) for row in table(6))


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
        if error.told in ("", told) and error.among in ("", right.accept.scheme, _own(right))
        for law in error.laws
    )


def _own(right: SamplerLaws) -> str:
    return "own" if right.accept == Verification(REJECTION) else ""


def _with(right: SamplerLaws, error: Error, law: PartLaw) -> SamplerLaws:
    parts: dict[str, Any] = {}
    for part, how in error.takes:
        if how in ("own", "any"):
            parts[part] = law if how == "own" else None
        elif how == "match":
            parts[part] = Verification(MATCH)
        elif how in ("p", "q", "pq"):
            own = right.accept
            parts[part] = own._replace(p=law if "p" in how else own.p, q=law if "q" in how else own.q)
        else:
            parts[part] = right.accept._replace(rule=law if how == "rule" else PartLaw(how))
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
