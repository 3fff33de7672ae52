"""Draw cases from a seed, harder than by chance.

Of every `_DRAWN` cases drawn at random those `_KEPT` are kept that add most, by raggedness times rarity: how seldom the
case's features came so far, two at a time. It costs little to draw a case and to look at it, beside decoding it. Now
and then a case comes again at once with other ids.

MEASURED
``tests/transparent/test_search.py`` holds the search against random drawing.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import cycle, islice, pairwise, product
from random import Random

import numpy as np

from eqcheck.contract.decoders import TAKEN
from eqcheck.contract.errors import CaseError, UsageError
from eqcheck.contract.family import FAMILY
from eqcheck.contract.profiles import BLOCKS, SIZES, WIDE, Bounds
from eqcheck.contract.requirements import checked, prompts_meeting, unmet
from eqcheck.core.case.record import Case
from eqcheck.core.result.claims import Claim, claims_in
from eqcheck.transparent.attribution.witnesses import permuted
from eqcheck.transparent.coverage import Feature, features, raggedness
from eqcheck.transparent.decoding import Schedule, truth_of
from eqcheck.transparent.drawing import DRAWN_OPTIONS, VOCAB_SIZE, Chance, Claims, Prompt, draw_case, fits, unused_id
from eqcheck.transparent.hashlm.hashing import mix
from eqcheck.transparent.reduction import smallest
from eqcheck.transparent.truth.continuation import continue_rows, continued

# Cases that are made for one thing each, where drawing meets it too seldom: they stand among the drawn ones.
#
# `Made.lengths` has prompts and rows of every length modulo the sizes of blocks, pages, chunks, windows and buckets,
# those at their ends oftener, in batches between the usual buckets. Prompts are long and limits short: an end is
# crossed by three new tokens as well as by thirty. `Made.shared` has prompts that share their first block only, or a
# later one only. `Made.repeating` has rows that emit a token twice and more in a row. `Made.reweighted` asks a
# request again when target, draft or both have got other weights.

_LIMIT = 3  # new tokens of a row that crosses an end
_ROWS = (7, 9, 5, 11, 6, 3, 10)  # between buckets of 1, 2, 4, 8, 16
_SHORT = 6  # tokens of a prompt that is drawn often
_FEW_IDS = 8
_TRIED = 64  # prompts, of which the rows are kept that repeat themselves most
_CHANGES: tuple[tuple[int, int | None], ...] = ((1, None), (1, 0), (0, 1), (2, None))
"""Seeds of target and draft (None: the same) after both were 0."""


def lengths(most: int) -> Iterator[int]:
    """Lengths up to ``most`` without end, all that are seldom drawn in turn; of seven, two are at the end of a block.

    >>> [*islice(lengths(136), 7)]
    [128, 7, 8, 1, 9, 10, 11]
    >>> {*range(7, 129)} <= {*islice(lengths(136), 140)}
    True
    """
    every = range(1, most + 1)
    ends = {n: max(size for size in SIZES if n % size in (0, 1, size - 1)) for n in every if _at_end(n)}
    at_ends = cycle(sorted(ends, key=lambda n: (-ends[n], n % ends[n] != 0, n)) or every)
    between = cycle([n for n in every if _SHORT < n < SIZES[-1] and not _at_end(n)] or every)
    while True:
        yield next(at_ends)
        yield from islice(between, 2)
        yield next(at_ends)
        yield from islice(between, 3)


def _at_end(length: int) -> bool:
    return any(length % size in (0, 1, size - 1) for size in SIZES if size >= 16)


def longest_rows(case: Case, count: int) -> Case:
    """The case with its longest rows alone."""
    rows = sorted(range(len(case.prompts)), key=lambda row: -len(case.prompts[row]))[:count]
    return replace(
        case, prompts=tuple(case.prompts[row] for row in rows), accepts=tuple(case.accepts[row] for row in rows)
    )


@dataclass
class Made:
    """Make cases within claims and bounds; the same for the same seed."""

    seed: int
    claims: Claims
    bounds: Bounds

    def __post_init__(self) -> None:
        self._lengths = lengths(self.bounds.prompt)
        self._numbers = dict[str, int]()

    def lengths(self) -> list[Case]:
        """A case whose rows have the next lengths."""
        number, random = self._next("lengths")
        rows = min(_ROWS[number % len(_ROWS)], self.bounds.rows)
        state = {}
        if number % 3 == 2 and "chunked" in self.claims.cache_states:
            state = {"cache_state": "chunked", "prefill_chunk": SIZES[number // 3 % len(SIZES)]}
        limit = max(min(_LIMIT, self.bounds.new_tokens), 2 if "min-limit-2" in self.claims.requires else 1)
        texts = [self._text(random, length) for length in islice(self._lengths, rows)]
        return self._cases(number, random, texts, limit, **state)

    def shared(self) -> list[Case]:
        """Prompts of two blocks: the second and third share one with the first, either in a batch or after it."""
        number, random = self._next("shared")
        sizes = [size for size in SIZES if 2 * size < self.bounds.prompt]
        if not sizes or self.bounds.rows < 2:
            return []
        size = sizes[number % len(sizes)]
        first, second, third, fourth = (self._text(random, size) for _ in range(4))
        ends = [self._text(random, 1 + n) for n in (0, 1, 2)]
        blocks = ((first, second), (third, second), (first, fourth))
        texts = [(*one, *other, *end)[: self.bounds.prompt] for (one, other), end in zip(blocks, ends, strict=True)]
        texts = texts[: self.bounds.rows]
        if number % 2 == 0:
            return self._cases(number, random, texts, _LIMIT)
        earlier = self._cases(number, random, texts[:1], _LIMIT)
        later = self._cases(number, random, texts[1:], _LIMIT)
        return [replace(last, before=(before,)) for before, last in zip(earlier, later, strict=True)]

    def repeating(self) -> list[Case]:
        """Rows that emit a token several times in a row: of few ids in half of the cases."""
        number, random = self._next("repeating")
        family = self.claims.families[number % len(self.claims.families)]
        if FAMILY[family].target or self.bounds.prompt < 2:
            return []
        few = number % 2 == 1 and not {"pad-not-in-prompt"} & {*self.claims.requires}
        ids = _FEW_IDS if few else FAMILY[family].vocab_size
        limit = min(10 if few else 4, self.bounds.new_tokens)
        start = self._text(random, random.randint(1, min(6, self.bounds.prompt - 1)), ids)
        tried = [(*start, last) for last in range(ids)]
        while len(tried) < _TRIED:
            tried.append(self._text(random, len(start) + 1, ids))
        new, _ = continued(family, ids, 0, tried, limit)
        rows = [(*prompt[-1:], *tokens) for prompt, tokens in zip(tried, new.tolist(), strict=True)]
        best = sorted(range(len(tried)), key=lambda n: -sum(one == other for one, other in pairwise(rows[n])))
        chosen = [tried[n] for n in best[: min(1 + number % 3, self.bounds.rows)]]
        return self._cases(number, random, chosen, limit, vocab_size=ids, family=family)

    def reweighted(self, case: Case) -> list[Case]:
        """A request that was asked before, as it was or with another end, when weights have changed in between."""
        number, random = self._next("reweighted")
        family = FAMILY[case.family]
        if "same-weights" in self.claims.requires or case.before or case.vocab_size != family.vocab_size:
            return []
        seed, draft_seed = _CHANGES[number % len(_CHANGES)]
        if family.target and draft_seed is not None:  # a real draft follows from its target
            seed, draft_seed = 1, None
        prompts = case.prompts
        if number % 3 == 2:  # what was computed for all but the last tokens may be found again
            end = [token for token in self._text(random, len(prompts)) if token not in case.eos_token_ids]
            prompts = (
                tuple((*prompt[:-1], last) for prompt, last in zip(prompts, end, strict=False)) if end else prompts
            )
        if len(prompts) != len(case.prompts):  # too few ids are none of its EOS
            prompts = case.prompts
        try:
            return [replace(case, prompts=prompts, seed=seed, draft_seed=draft_seed, before=(case,))]
        except CaseError:  # an end that takes away the common prefix
            return [replace(case, seed=seed, draft_seed=draft_seed, before=(case,))]

    def _next(self, name: str) -> tuple[int, Random]:
        """The number of the next case of this name, counted from 0, and the chance for it."""
        number = self._numbers.get(name, 0)
        self._numbers[name] = number + 1
        return number, Random(f"eqcheck {self.seed} {name} {number}")

    def _text(self, random: Random, length: int, ids: int = VOCAB_SIZE) -> Prompt:
        words = mix(np.arange(length, dtype=np.uint64) + np.uint64(random.getrandbits(40) << 16))
        return tuple((words % np.uint64(ids)).tolist())

    def _cases(self, number: int, random: Random, texts: Sequence[Prompt], limit: int, **fields: object) -> list[Case]:
        """The case with these prompts, changed as little as the decoder requires; none where that is not enough."""
        claims, k = self.claims, min(1 + number % 4, self.bounds.draft_tokens)
        if fields.get("cache_state", "empty") not in claims.cache_states:
            return []
        family = str(fields.get("family", claims.families[number % len(claims.families)]))
        size = int(str(fields.get("vocab_size", FAMILY[family].vocab_size)))
        apart = size == _FEW_IDS or random.randrange(2) == 0
        truth = [tokens for tokens, _ in continue_rows(family, size, 0, texts, limit)]
        pad = size if apart and "pad-not-in-prompt" not in claims.requires else unused_id(texts, truth, VOCAB_SIZE)
        prompts = prompts_meeting(claims.requires, texts, pad, min(size, VOCAB_SIZE))
        accepts = tuple(tuple(random.randint(0, k) for _ in range(limit)) for _ in prompts)
        given = {"family": family, "vocab_size": size, **fields}
        case = Case(
            prompts=tuple(prompts),
            max_new_tokens=limit,
            num_draft_tokens=k,
            accepts=accepts,
            pad_token_id=pad,
            padding_side=claims.padding_sides[number // 2 % len(claims.padding_sides)],  # type: ignore[arg-type]
            **given,  # type: ignore[arg-type]
        )
        return [] if unmet(case, claims.requires) else [case]


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
    few are enough, and some are made for one thing each (`eqcheck.transparent.search`); frozen profiles have
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
        # The cases that a batch adds depend on the number of the batch alone, never on time or results: shards and
        # replays have to draw the same cases.
        start = index * CHUNK
        while len(self._drawn.order) < start + size:
            self._drawn.keep(self._candidates())
            if self.opening and self._drawn.batches == 1:
                self._drawn.order[:] = _by_turns([*self._drawn.order, *self._lacking()])
            if self._drawn.batches % _AGAIN == 0:
                self._drawn.add(self._alike(self._drawn.order[-1]))
            if self._drawn.batches % _DIVERGE == _DIVERGE - 1:
                self._drawn.add(*self._diverging(self._drawn.order[-1], self._drawn.batches // _DIVERGE))
            if self.opening:
                self._drawn.add(*self._made_now())
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
        # Each case that is added may meet further claims, so those met are counted on: fewer cases open the audit.
        met = {claim for case in self._drawn.order for claim in claims_in(case)}
        choose, added = Chance(Random(f"eqcheck {self.seed} opening")), list[Case]()
        # A case for one claim often tests others, which are met then.
        for family, state in product(self.families, self.cache_states):
            if not fits(state, family, self.bounds) or {Claim("family", family), Claim("cache state", state)} <= met:
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

    def add(self, *cases: Case | None) -> None:
        """Keep the cases that are given, whatever their scores."""
        made = [case for case in cases if case is not None]
        self.order.extend(made)
        self.known.update(made)

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
