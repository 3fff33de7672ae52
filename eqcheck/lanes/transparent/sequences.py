"""State across requests: is a failure of the request, or of what the decoder kept from the requests before it?

A failing case is decoded alone, in a process in which nothing was decoded before. If it fails there, time and again, it
is a failure of the request. If it is right there, the requests that the decoder had decoded before are tried, the
latest first; where some make it fail, time and again, the sequence is shrunk (delta debugging, then simpler requests)
and is a violation, `state/leaks-from-earlier-request`. Where the weights change between the requests, and the case is
right after the same requests under its own weights, it is `state/stale-weights`. All tries are in fresh processes,
whose random generators begin in different states: a decoder that draws from them does not pass for one that keeps
something.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar

from eqcheck.attribution.state import leaked
from eqcheck.case.record import Case
from eqcheck.contract.decoders import Decoder
from eqcheck.contract.limits import MOST_BEFORE
from eqcheck.drawing.cases import Claims
from eqcheck.lanes.transparent.judge import try_case
from eqcheck.lanes.transparent.reduction import smallest
from eqcheck.result.outcome import Outcome
from eqcheck.workers.fork import ForkWorker
from eqcheck.workers.worker import Limits, Workers

T = TypeVar("T")
RERUNS = 9  # as many fresh processes have to agree; a decoder that is wrong half the time agrees once in 2**9 = 512
SEARCH_S = 60.0  # for one failing case
_QUICKLY = 3  # processes that have to agree before more is tried
_SIMPLER = 80  # tries


class Fresh:
    """A decoder in a process in which nothing was decoded before: `try_case` takes a new one for each case.

    ``decoder`` is a spec, or one that this process loaded and did not call (`eqcheck.workers.fork.as_new`).
    ``same`` is a runner that goes on with one process until it is told to renew it.
    """

    def __init__(self, decoder: str | Decoder, limits: Limits) -> None:
        self._worker = ForkWorker(decoder, limits, try_case, scattered=True)
        self.same = Workers([self._worker])

    def __enter__(self) -> Fresh:
        return self

    def __exit__(self, *failure: object) -> None:
        self._worker.__exit__(*failure)

    @property
    def usable(self) -> bool:
        """Return whether a process can be started, which needs a main module that can be imported."""
        return self._worker.ready()

    def try_case(self, case: Case, timeout: float | None = None, *, opinion: bool = False) -> Outcome:
        """Decode and judge one case, and before it what its ``before`` names."""
        self.same.renew()
        return self.same.try_case(case, timeout, opinion=opinion)


def verdict(fresh: Fresh, case: Case, timeout: float | None = None) -> Outcome:
    """The outcome of a sequence: a fault of state where its last request fails and not alone."""
    after = fresh.try_case(case, timeout)
    if after.explanation is None:
        return after
    alone = fresh.try_case(case.alone, timeout)
    if alone.explanation:
        return alone
    stale = case.unchanging != case and fresh.try_case(case.unchanging, timeout).explanation is None
    return replace(after, explanation=leaked(case, after.explanation, stale=stale))


@dataclass
class SequenceSearch:
    """The search for sequences in one audit.

    ``claims`` are those of the cases that the audit may draw. ``proven`` are earlier requests that made a later one
    fail, ``in_vain`` counts the searches that found none. ``unlike`` are the ids of cases that failed in each fresh
    process, but not in the same way in all.
    """

    fresh: Fresh
    check: Callable[[], None]
    claims: Claims
    proven: list[tuple[Case, ...]] = field(default_factory=list)
    in_vain: int = 0
    unlike: set[str] = field(default_factory=set)
    _timeout: float | None = field(default=None, init=False)  # of one try
    _end: float = field(default=0.0, init=False)  # of the search

    def examine(self, outcome: Outcome, timeout: float | None, seconds: float) -> Outcome | None:
        """A failing case that fails alone, or else the smallest sequence that ends with one like it; None for neither.

        A case that fails alone does so in each process; a sequence fails in each and its last request is right in each.
        """
        case, self._timeout = outcome.case, timeout
        self._end = time.monotonic() + min(seconds, SEARCH_S)
        if case.before:
            proof = self._sequence(case) if outcome.drawn else self.proof(case)
            return proof or self.examine(replace(outcome, case=case.alone), timeout, seconds)
        first = self.fresh.try_case(case, timeout)
        if first.explanation is not None:
            same = all(self.fresh.same.try_case(case, timeout).repeats(first) for _ in range(RERUNS))
            return first if same or self._fails_alike(case, first) else None
        if not self._right_alone(case, _QUICKLY):
            return None
        for before in self.proven:
            after = self.fresh.try_case(replace(case, before=before), timeout)
            if after.explanation is not None:
                return replace(after, explanation=leaked(after.case, after.explanation))
        history = outcome.history.cases if outcome.history else ()
        found = self._found(case, tuple(one for drawn in history for one in (*drawn.before, drawn.alone)))
        return self._smallest(replace(case, before=found)) if found else None

    def _sequence(self, case: Case) -> Outcome | None:
        """The smallest sequence that fails like a drawn one; None where that does not fail, or fails alone, too."""
        if not all(self._fails(case) for _ in range(_QUICKLY)) or not self._right_alone(case, _QUICKLY):
            return None
        return self._smallest(case)

    def _tried(self, case: Case) -> Outcome:
        self.check()
        return self.fresh.try_case(case, self._timeout)

    def _fails(self, case: Case) -> bool:
        return self._tried(case).explanation is not None

    def _right_alone(self, case: Case, times: int) -> bool:
        return not any(self._fails(case.alone) for _ in range(times))

    def _fails_alike(self, case: Case, first: Outcome) -> bool:
        """Return whether a case fails in as many fresh processes as it did ``first``; if in each, but otherwise,
        note it.
        """
        same = True
        for _ in range(RERUNS):
            again = self._tried(case)
            if again.explanation is None:
                return False
            same = same and again.repeats(first)
        self.unlike |= set() if same else {case.id}
        return same

    def _found(self, case: Case, history: tuple[Case, ...]) -> tuple[Case, ...] | None:
        """Earlier requests after which the case fails, several times in a row."""
        for before in suspects(history):
            if time.monotonic() > self._end or (self.in_vain > 1 and len(before) > 4):
                break
            if all(self._fails(replace(case, before=before)) for _ in range(_QUICKLY)):
                return before
        self.in_vain += 1
        return None

    def _smallest(self, case: Case) -> Outcome | None:
        def fails(before: tuple[Case, ...]) -> bool:
            return time.monotonic() < self._end and self._fails(replace(case, before=before))

        # A case that fails under one set of weights as well is no fault of new ones, and it is easier to read.
        if case.unchanging != case and all(self._fails(case.unchanging) for _ in range(_QUICKLY)):
            case = case.unchanging
        short = replace(case, before=shrunk(case.before, fails))
        together = self._together(short)
        for candidate in dict.fromkeys((together or self._simplest(short), short, case)):
            if proof := self.proof(candidate):
                self.proven.append(candidate.before)
                return proof
        return None

    def _together(self, case: Case) -> Case | None:
        """The case and its earlier request made small as one, where that may ask the same under other weights."""
        *others, earlier = case.before or (case,)
        if others or earlier.weights == case.weights or earlier.family != case.family:
            return None

        def after_itself(last: Case) -> Case:
            return replace(last, before=(replace(last, seed=earlier.seed, draft_seed=earlier.draft_seed),))

        def fails(last: Case) -> bool:
            return self._fails(after_itself(last)) and self._right_alone(last, 1)

        if not fails(case.alone):
            return None
        left = max(0.0, self._end - time.monotonic())
        return after_itself(smallest(case.alone, fails, self.claims, tries=_SIMPLER, seconds=left))

    def _simplest(self, case: Case) -> Case:
        """The case with requests as small as can be, as long as it fails after them and not alone.

        Twice, because how small one request can be may depend on another one.
        """

        def small(request: Case, fails: Callable[[Case], bool]) -> Case:
            tries, left = _SIMPLER // (len(case.before) + 1), max(0.0, self._end - time.monotonic())
            return smallest(request, fails, self.claims, tries=tries, seconds=left)

        def fails_as_last(last: Case) -> bool:
            return self._fails(replace(last, before=case.before)) and self._right_alone(last, 1)

        def with_earlier(number: int, request: Case) -> Case:
            return replace(case, before=(*case.before[:number], request, *case.before[number + 1 :]))

        for _ in range(2):
            before = case
            case = replace(small(case.alone, fails_as_last), before=case.before)
            for number, earlier in enumerate(case.before):
                case = with_earlier(number, small(earlier, lambda one, n=number: self._fails(with_earlier(n, one))))  # type: ignore[misc]
            if case == before:
                break
        return case

    def proof(self, case: Case) -> Outcome | None:
        """The outcome, if the case fails in the same way in `RERUNS` fresh processes and is right alone in as many."""
        first = self.fresh.try_case(case, self._timeout)
        fails = first.explanation is not None and all(self._tried(case).repeats(first) for _ in range(RERUNS - 1))
        if first.explanation is None or not fails or not self._right_alone(case, RERUNS):
            return None
        stale = case.unchanging != case and not any(self._fails(case.unchanging) for _ in range(RERUNS))
        return replace(first, explanation=leaked(case, first.explanation, RERUNS, stale))


def suspects(history: tuple[Case, ...]) -> Iterator[tuple[Case, ...]]:
    """Parts of what was decoded before, the likeliest first: the last request, the first, more and more of the last.

    >>> cases = [Case(prompts=((n,),)) for n in range(6)]
    >>> [tuple(case.prompts[0][0] for case in part) for part in suspects(tuple(cases))]
    [(5,), (0,), (2, 3, 4, 5), (0, 1, 2, 3, 4, 5)]
    """
    first, last = MOST_BEFORE // 8, MOST_BEFORE - MOST_BEFORE // 8
    whole = history if len(history) <= MOST_BEFORE else history[:first] + history[-last:]
    parts = (history[-1:], history[:1], history[-4:], history[-16:], history[-64:], whole)
    yield from (part for part in dict.fromkeys(parts) if part)


def shrunk(items: tuple[T, ...], fails: Callable[[tuple[T, ...]], bool]) -> tuple[T, ...]:
    """A part of ``items``, in order, that still ``fails``, and no longer without any single item of it.

    Delta debugging (Zeller, Hildebrandt 2002, https://doi.org/10.1109/32.988498).

    >>> shrunk((1, 2, 3, 4, 5), lambda part: {2, 5} <= set(part))
    (2, 5)
    """
    size = len(items)
    while items and size:
        at = 0
        size = min(size, len(items))
        while at < len(items):
            without = items[:at] + items[at + size :]
            if fails(without):
                items = without
            else:
                at += size
        size //= 2
    return items
