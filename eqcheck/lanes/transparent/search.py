"""Draw cases from a seed, harder than by chance.

Of every `_DRAWN` cases drawn at random those `_KEPT` are kept that add most, by raggedness times rarity: how seldom the
case's features came so far, two at a time. It costs little to draw a case and to look at it, beside decoding it. Now
and then a case comes again at once with other ids.

MEASURED
``tests/test_search.py`` holds the search against random drawing.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import heapify, heappop, heappush
from random import Random

from eqcheck.attribution.ids import permuted
from eqcheck.case.record import Case
from eqcheck.contract.decoders import TAKEN
from eqcheck.contract.errors import CaseError, UsageError
from eqcheck.contract.requirements import checked, unmet
from eqcheck.contract.sizes import BLOCKS, WIDE, Bounds
from eqcheck.decoding.harness import truth_of
from eqcheck.decoding.schedule import Schedule
from eqcheck.drawing.cases import DRAWN_OPTIONS, Claims, draw_case, fits
from eqcheck.drawing.choices import Chance
from eqcheck.lanes.transparent.coverage import Feature, features, raggedness
from eqcheck.lanes.transparent.made import Made, longest_rows
from eqcheck.lanes.transparent.reduction import smallest
from eqcheck.result.claims import Claim, claims_in

CHUNK = 50
_DRAWN, _KEPT = 20, 10
_CALLS = 20  # of the models, that what does not depend on a case's rounds costs as much as
_AGAIN = 2  # of so many batches, one ends with a case that is another again with other ids
_DIVERGE = 4  # of so many batches, one ends with requests that differ at the ends of blocks
_OF_DIVERGING = (
    "max_new_tokens",
    "num_draft_tokens",
    "agreement",
    "eos_token_ids",
    "pad_token_id",
    "padding_side",
    "family",
    "vocab_size",
)
_ENOUGH = 50 * _DRAWN  # draws after which a source that is so narrow repeats itself


@dataclass(frozen=True)
class Source:
    """Supply cases: same source, same cases, whatever the decoder does.

    ``shard=(i, n)`` draws one of ``n`` sequences of a seed, each with a search of its own, so that several machines can
    draw at once. `merged` gives their cases one order. ``opening``: the first cases test each claim in turn, so that a
    few are enough, and some are made for one thing each (`eqcheck.lanes.transparent.made`); frozen profiles have
    neither.

    >>> source = Source(seed=1, families=("rotary",), padding_sides=("left",))
    >>> source.chunk(0, 5) == source.chunk(0)[:5]
    True
    """

    seed: int
    families: tuple[str, ...]
    padding_sides: tuple[str, ...]
    cache_states: tuple[str, ...] = TAKEN
    requires: tuple[str, ...] = ()
    bounds: Bounds = WIDE
    shard: tuple[int, int] = (0, 1)
    capabilities: tuple[str, ...] = ()
    opening: bool = False
    _drawn: _Drawn = field(default_factory=lambda: _Drawn(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        checked(self.requires)
        shard, count = self.shard
        if not 0 <= shard < count:
            raise UsageError(f"shard: expected (i, n) with 0 <= i < n, got {self.shard}")

    @property
    def claims(self) -> Claims:
        return Claims(self.families, self.padding_sides, self.cache_states, self.requires, self.capabilities)

    def chunk(self, index: int, size: int = CHUNK) -> list[Case]:
        """The first ``size`` cases of the ``index``-th chunk; cases of a source are distinct while there are others."""
        start = index * CHUNK
        while len(self._drawn.order) < start + size:
            self._drawn.keep(self._candidates())
            if self.opening and self._drawn.batches == 1:
                self._drawn.order[:] = _by_turns([*self._drawn.order, *self._lacking()])
            if self._drawn.batches % _AGAIN == 0:
                self._drawn.add(self._alike(self._drawn.order[-1]))
            if self._drawn.batches % _DIVERGE == _DIVERGE - 1:
                for case in self._diverging(self._drawn.order[-1], self._drawn.batches // _DIVERGE):
                    self._drawn.add(case)
            if self.opening:
                for case in self._made_now():
                    self._drawn.add(case)
        return self._drawn.order[start : start + size]

    def minimise(self, case: Case, fails: Callable[[Case], bool], *, tries: int = 500, seconds: float = 60.0) -> Case:
        """The smallest case that ``fails`` and that this source could draw, from ``case``; see `smallest`."""
        return smallest(case, fails, self.claims, tries=tries, seconds=seconds)

    def _made_now(self) -> list[Case]:
        """The cases that are made after a batch of drawn ones."""
        number, made = self._drawn.batches, self._made.lengths()
        if number % 2:
            again = sorted(self._drawn.order[-_KEPT:], key=lambda case: case.work)[len(self._drawn.order[-_KEPT:]) // 2]
            if number % 4 == 1 and made:  # long prompts, for what is kept by blocks
                again = longest_rows(made[0], 2)
            made += self._made.reweighted(again)
        if number % 2:
            made += self._made.repeating()
        if number % _DIVERGE == 1:
            made += self._made.shared()
        return [case for case in made if case not in self._drawn.known]

    @cached_property
    def _made(self) -> Made:
        return Made(self.seed, self.claims, self.bounds)

    def _alike(self, case: Case) -> Case | None:
        """The case with other ids, for a decoder that takes a request for the one before, of the same lengths."""
        other = permuted(case, self._drawn.batches, tries=3)
        return None if other in self._drawn.known or unmet(other, self.requires) else other

    def _diverging(self, case: Case, number: int) -> list[Case]:
        """Two requests whose prompts are equal but for the last token of a block, for caches that find prefixes again.

        The prompts of one request differ at the end of the first block, and then, in the next, at that of the second.
        """
        size = BLOCKS[number % len(BLOCKS)]
        length, made = 2 * size + 1, list[Case]()
        if self.bounds.prompt < length or self.bounds.rows < 2 or "empty" not in self.cache_states:
            return made
        barred = {case.pad_token_id, *case.eos_token_ids}
        ids = [token for token in range(case.vocab_size) if token not in barred]
        text = tuple(ids[(number + place) % len(ids)] for place in range(length))
        for end in (size, 2 * size):
            other = (*text[: end - 1], ids[(number - 1) % len(ids)], *text[end:])
            prompts = (text, other) if "batch-1" not in self.requires else (other,)
            made.append(Case(prompts=prompts, **{name: getattr(case, name) for name in _OF_DIVERGING}))
        return [one for one in made if one not in self._drawn.known and not unmet(one, self.requires)]

    def _lacking(self) -> list[Case]:
        """A case for each claim that none of the first ones tests; the rarest things come together seldom by chance."""
        met = {claim for case in self._drawn.order for claim in claims_in(case)}
        choose, added = Chance(Random(f"eqcheck {self.seed} opening")), list[Case]()
        for family in self.families:
            for state in (state for state in self.cache_states if fits(state, family, self.bounds)):
                if {Claim("family", family), Claim("cache state", state)} <= met:
                    continue
                narrow = replace(self.claims, families=(family,), cache_states=(state,))
                case = self._drawn_within(choose, narrow, Claim("cache state", state))
                if case is not None:
                    added.append(case)
                    met |= claims_in(case)
        for name in (name for name in DRAWN_OPTIONS if name in self.capabilities):
            if (claim := Claim("capability", name)) not in met and (
                case := self._drawn_within(choose, self.claims, claim)
            ):
                added.append(case)
                met |= claims_in(case)
        self._drawn.known.update(added)
        return added

    def _drawn_within(self, choose: Chance, claims: Claims, claim: Claim) -> Case | None:
        """A case within these claims that tests one of them; None where none of some is such."""
        for _ in range(_DRAWN):
            try:
                case = draw_case(choose, claims, self.bounds)
            except CaseError:
                continue
            if claim in claims_in(case) and not unmet(case, self.requires):
                return case
        return None

    def _candidates(self) -> list[_Candidate]:
        """The next cases to choose from: none that was kept before."""
        shard, count = self.shard
        of = "" if count == 1 else f" shard {shard} of {count}"
        choose = Chance(Random(f"eqcheck {self.seed}{of} {self._drawn.batches}"))
        candidates: dict[Case, _Candidate] = {}
        for number in range(_ENOUGH + _DRAWN):
            try:
                case = draw_case(choose, self.claims, self.bounds)
            except CaseError:  # beyond what a case may ask, which takes bounds far beyond the usual
                continue
            if number >= _ENOUGH or case not in self._drawn.known:
                candidates[case] = _Candidate.of(case)
            if len(candidates) == _DRAWN:
                break
        return list(candidates.values())


def _by_turns(cases: Sequence[Case]) -> list[Case]:
    """The cases in another order: next comes always the one that tests most of what none before it does."""
    left, order, met = list(cases), list[Case](), set[Claim]()
    while left:
        best = max(left, key=lambda case: len(claims_in(case) - met))
        left.remove(best)
        order.append(best)
        met |= claims_in(best)
    return order


def merged(sources: Sequence[Source], count: int) -> list[Case]:
    """Draw the first ``count`` cases of several sources: the first chunk of each in turn, then the second of each.

    >>> merged([Source(seed=1, families=("rotary",), padding_sides=("left",))], None)
    Traceback (most recent call last):
    eqcheck.contract.errors.UsageError: count: expected a number of cases of at least 1, got None
    """
    if not isinstance(count, int) or count < 1:  # with None the cases would never end
        raise UsageError(f"count: expected a number of cases of at least 1, got {count}")
    cases = list[Case]()
    for index in itertools.count():
        for source in sources:
            cases += source.chunk(index, min(CHUNK, count - len(cases)))  # to draw a case costs a third of decoding it
            if len(cases) == count:
                return cases
    raise AssertionError("unreachable")


@dataclass(frozen=True)
class _Candidate:
    case: Case
    ragged: int
    calls: int
    features: list[Feature]

    @classmethod
    def of(cls, case: Case) -> _Candidate:
        truth = truth_of(case)
        rounds = Schedule(case, truth).rounds
        calls = len(rounds) * (case.num_draft_tokens + 1)
        return cls(case, raggedness(rounds), calls, features(case, truth, rounds))

    def score(self, seen: Counter[Feature]) -> float:
        """Raggedness times rarity for the time it takes, and families in equal shares."""
        rarity = sum([(1 + seen[feature]) ** -2 for feature in self.features])
        cost = (_CALLS + self.calls) * (1 + seen[f"family={self.case.family}"])
        return (1 + min(self.ragged, 4) / 2) * rarity / cost


@dataclass
class _Drawn:
    """The cases that a source has drawn so far."""

    order: list[Case] = field(default_factory=list)
    known: set[Case] = field(default_factory=set)
    batches: int = 0
    _seen: Counter[Feature] = field(default_factory=Counter)

    def add(self, case: Case | None) -> None:
        """Keep a case that is given, whatever its score."""
        if case is not None:
            self.order.append(case)
            self.known.add(case)

    def keep(self, candidates: list[_Candidate]) -> None:
        """Keep the candidate of the highest score, then the next given that one, and so on."""
        self.batches += 1
        ranked = [(-candidate.score(self._seen), place) for place, candidate in enumerate(candidates)]
        heapify(ranked)
        for _ in range(min(_KEPT, len(candidates))):
            while True:  # scores only sink, so the first that has not sunk below the next is the highest
                place = heappop(ranked)[1]
                score = -candidates[place].score(self._seen)
                if not ranked or (score, place) <= ranked[0]:
                    break
                heappush(ranked, (score, place))
            best = candidates[place]
            self._seen.update(best.features)
            self.order.append(best.case)
            self.known.add(best.case)
