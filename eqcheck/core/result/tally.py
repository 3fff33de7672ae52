"""The counts of an audit's cases: all that its report and its conclusions take from them.

Counts of several audits add up, so that a report of many shards needs none of their cases: its size is that of the
differences between cases, not of their number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from itertools import combinations
from math import exp, lgamma
from typing import Any, NamedTuple

from eqcheck.core.case.engine import EngineCase
from eqcheck.core.case.record import Case
from eqcheck.core.result.claims import Claim, claims_in
from eqcheck.core.result.outcome import DictatedRounds, DueDrafts, Loss, NearTie, Outcome

SPEAKS = "speaks"
"""Counts, in ``observed``, the cases of which the decoder says how many draft tokens it proposed."""

_TOLD = 10  # near-ties that are told one by one

PAIRED = (
    *("row_limits", "ended_by_eos", "stopped", "cancelled", "min_new_tokens", "penalty", "frequency_penalty"),
    *("logit_bias", "bad_words", "allowed_ids", "no_repeat_ngram_size", "grammar", "logprobs", "prompt_logprobs"),
    *("ngram", "dictated", "answers"),
    *("many_rows", "late_rows", "token_budget", "prefix_hits", "preemptions"),
)
"""The counters of options and settings at work on checkpoints; they are counted in pairs, too."""


class Losing(NamedTuple):
    """A cause by which draft tokens are lost, as `eqcheck.core.result.outcome.DraftCause` has it.

    ``waits``: counted as if rows wait for each other.
    """

    fingerprint: str
    window: int
    doubtful: bool
    waits: bool


class ServedCase(NamedTuple):
    """Cases of an engine that no table tells apart: by checkpoint, drafter and verdict.

    ``why`` is the reason why they were declined, or how they crashed; empty for others.
    """

    checkpoint: str
    drafter: str
    status: str
    why: str = ""


class Untried(Enum):
    """Say why no case tried a state of the cache; the value stands in reports in place of a count."""

    NOT_TAKEN = "not taken"
    NOT_APPLICABLE = "not applicable"


class Pair(NamedTuple):
    """Two counters of `PAIRED`, both at work in a case."""

    first: str
    second: str

    def __str__(self) -> str:
        return " ".join(self)


@dataclass(frozen=True)
class Alike:
    """Drawn cases that no conclusion tells apart: of one verdict, on one value of every axis.

    ``symptom`` is what failing ones look like, ``declined`` why the decoder declined them, ``axes`` where they lie;
    ``crashed``: the decoder raised, or did not answer.
    """

    claimed: bool
    family: str
    status: str
    symptom: str = ""
    declined: str = ""
    axes: tuple[tuple[str, str], ...] = ()
    crashed: bool = False


@dataclass(frozen=True)
class Placed:
    """A drawn case that was not declined: ``symptom`` is empty for a right one, ``traits`` are values of `TRAITS`.

    `TRAITS` is of `eqcheck.core.result.conditions`. The ``facts`` of a failing case say what was seen of a row's end,
    where that is too early; ``ends`` are the counters of `ENDINGS` that a right case raised.
    """

    claimed: bool
    symptom: str
    traits: tuple[int | str, ...]
    facts: dict[str, int | str] = field(default_factory=dict)
    ends: tuple[str, ...] = ()


ENDS_EARLY = "bookkeeping/premature-stop"
ENDINGS = ("eos_in_prompt", "eos_before_others", "limit_before_others")
"""The counters of what may end a row too early, and does no harm in a right case."""


_PLACED = 2000
"""Cases whose traits are kept: the first drawn ones, so that it does not depend on how they end which are kept."""


@dataclass
class Tally:
    """Counts of drawn cases; all but ``alike`` and ``tested`` are of those within the claim that it did not decline.

    ``exact`` and ``prefix`` are sums of the shares of `eqcheck.core.result.outcome.Outcome`, ``reached`` is the largest
    of what cases held, ``lucky`` counts cases that are right though a context was wrong, ``fingerprints`` are those
    seen, also in the ``replayed`` cases of the corpus; ``failing`` of them fail. ``tested`` counts the cases that test
    each thing a decoder may claim, declined ones as well. ``placed`` are the first drawn cases with all their traits.
    ``near_ties`` are the first of the ``ties``, ``pairs`` counts the cases of engines by two counters of `PAIRED`,
    ``lost`` the draft tokens by cause, ``served`` the cases of engines, ``dictated`` rounds with dictated drafts, and
    ``due`` draft tokens that are due.

    >>> one = Tally(Counter({Alike(True, "rotary", "equivalent"): 2}), exact=2.0)
    >>> (one + one).run, (one + one).statuses
    (4, Counter({'equivalent': 4}))
    """

    alike: Counter[Alike] = field(default_factory=Counter)
    exact: float = 0.0
    prefix: float = 0.0
    coverage: Counter[str] = field(default_factory=Counter)
    losses: Counter[Loss] = field(default_factory=Counter)
    observed: Counter[str] = field(default_factory=Counter)
    lucky: Counter[str] = field(default_factory=Counter)
    served: Counter[ServedCase] = field(default_factory=Counter)
    slots: Counter[str] = field(default_factory=Counter)
    pairs: Counter[Pair] = field(default_factory=Counter)
    ties: int = 0
    reached: dict[str, int] = field(default_factory=dict)
    fingerprints: set[str] = field(default_factory=set)
    replayed: int = 0
    failing: int = 0
    near_ties: tuple[NearTie, ...] = ()
    tested: Counter[Claim] = field(default_factory=Counter)
    placed: tuple[Placed, ...] = ()
    lost: Counter[Losing] = field(default_factory=Counter)
    dictated: Counter[DictatedRounds] = field(default_factory=Counter)
    due: Counter[DueDrafts] = field(default_factory=Counter)

    @classmethod
    def of(cls, drawn: Iterable[Outcome], replayed: Iterable[Outcome], claims: Callable[[Any], bool]) -> Tally:
        """The counts of the outcomes of an audit; ``claims`` says whether a case is within the decoder's claim."""
        tally = cls()
        placed: list[Placed] = []
        for outcome in drawn:
            claimed = claims(outcome.case)
            tally._count(outcome, claimed)
            if outcome.traits and not outcome.declined and len(placed) < _PLACED:
                placed.append(_placed(outcome, claimed))
        tally.placed = tuple(placed)
        for outcome in replayed:
            tally.replayed += 1
            tally.failing += outcome.failed
            tally.fingerprints |= {outcome.fingerprint} if outcome.fingerprint else set()
        return tally

    def _count(self, outcome: Outcome, claimed: bool) -> None:
        case = outcome.case
        axes = tuple(case.axes.items()) if isinstance(case, Case) else ()
        symptom = outcome.symptom if outcome.failed else ""
        crashed = outcome.failed and outcome.component == "crash"
        self.alike[Alike(claimed, case.family, outcome.status, symptom, outcome.declined, axes, crashed)] += 1
        self.tested.update(claims_in(case))
        if isinstance(case, EngineCase):
            kind = case.checkpoint.partition("-")[0]
            why = outcome.declined or (symptom if crashed else "")
            self.served[ServedCase(kind, case.drafting, outcome.status, why)] += 1
        if not claimed or outcome.declined:
            return
        self.exact += outcome.exact_match
        self.prefix += outcome.prefix_match
        self.coverage.update(outcome.coverage)
        if isinstance(case, EngineCase):
            both = combinations([name for name in PAIRED if name in outcome.coverage], 2)
            self.pairs.update(Pair(*names) for names in both)
        self.losses.update(dict(outcome.losses))
        for cause in outcome.lost:
            for waits, count in ((False, cause.tokens), (True, cause.waiting)):
                self.lost[Losing(cause.fingerprint, cause.window, cause.doubtful, waits)] += count
        self.observed[SPEAKS] += "drafted" in outcome.observed
        self.observed.update({name: outcome.observed.get(name, 0) for name in ("drafted", "accepted")})
        self.dictated.update(outcome.dictated)
        self.due.update(outcome.due)
        self.ties += len(outcome.ties)
        self.near_ties += tuple(replace(tie, case=case.id) for tie in outcome.ties[: _TOLD - len(self.near_ties)])
        self.slots.update(dict(zip(("handed", "seen"), outcome.slots, strict=True)))
        self.lucky.update([outcome.luck[0]] if outcome.luck[0] else [])
        self.fingerprints |= {outcome.fingerprint} if outcome.fingerprint else set()
        if isinstance(case, Case):
            self.reached = _largest(self.reached, case.sizes)

    def __add__(self, other: Tally) -> Tally:
        names = [one.name for one in fields(self) if one.name not in ("reached", "fingerprints", "near_ties", "placed")]
        sums: dict[str, Any] = {name: getattr(self, name) + getattr(other, name) for name in names}
        reached, seen = _largest(self.reached, other.reached), self.fingerprints | other.fingerprints
        near = (self.near_ties + other.near_ties)[:_TOLD]
        placed = (self.placed + other.placed)[:_PLACED]
        return Tally(**sums, reached=reached, fingerprints=seen, near_ties=near, placed=placed)

    @property
    def drawn(self) -> int:
        """All drawn cases."""
        return self.alike.total()

    @property
    def run(self) -> int:
        """The cases that the verdict is about: within the claim, and not declined."""
        return self.statuses.total()

    @property
    def statuses(self) -> Counter[str]:
        """The cases that the verdict is about, by their own verdict."""
        return self.by(lambda one: one.status, lambda one: one.claimed and not one.declined)

    @property
    def declined(self) -> dict[str, int]:
        """Return why cases within the claim were declined, the most frequent reason first."""
        return dict(self.by(lambda one: one.declined, lambda one: one.claimed and bool(one.declined)).most_common())

    def by(self, name: Callable[[Alike], str], among: Callable[[Alike], bool] = lambda one: True) -> Counter[str]:
        """The drawn cases ``among`` all, counted by what ``name`` says of them."""
        counts: Counter[str] = Counter()
        for one, count in self.alike.items():
            if among(one):
                counts[name(one)] += count
        return counts

    def places(self, among: Callable[[Alike], bool]) -> Counter[tuple[str, str]]:
        """Return how many of the drawn cases ``among`` all lie on each value of each axis."""
        counts: Counter[tuple[str, str]] = Counter()
        for one, count in self.alike.items():
            if among(one):
                for place in one.axes:
                    counts[place] += count
        return counts


def _placed(outcome: Outcome, claimed: bool) -> Placed:
    if not outcome.failed:
        ends = tuple(name for name in ENDINGS if name in outcome.coverage)
        return Placed(claimed, "", outcome.traits, ends=ends)
    facts = dict(outcome.explanation.facts) if outcome.explanation else {}
    return Placed(claimed, outcome.symptom, outcome.traits, facts)


def log_comb(n: int, k: int) -> float:
    """Return the natural logarithm of n over k, which itself has millions of digits where many shards are merged."""
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)


def gathered_by_chance(there: int, of: int, in_all: int, total: int) -> float:
    """Return how likely it is that ``there`` or more of ``in_all`` failing ones of ``total`` are among ``of`` of them.

    That is the upper tail of the hypergeometric distribution.

    >>> round(gathered_by_chance(39, 51, 40, 60), 4), gathered_by_chance(0, 5, 3, 9)
    (0.0004, 1.0)
    """
    ways = log_comb(total, of)
    counts = range(max(there, of + in_all - total, 0), min(of, in_all) + 1)
    return min(1.0, sum(exp(log_comb(in_all, k) + log_comb(total - in_all, of - k) - ways) for k in counts))


def _largest(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in {**one, **other}}
