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
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from eqcheck.audit.workers.fork import ForkWorker
from eqcheck.audit.workers.worker import Limits, Workers
from eqcheck.contract.decoders import Decoder
from eqcheck.contract.profiles import MOST_BEFORE
from eqcheck.core.case.record import Case
from eqcheck.core.result.outcome import HANG, Outcome
from eqcheck.core.shrinking.items import fewest
from eqcheck.transparent.attribution.leak import leaked
from eqcheck.transparent.attribution.witnesses import mechanism, redrawn, variants
from eqcheck.transparent.coverage import try_case
from eqcheck.transparent.drawing import Claims
from eqcheck.transparent.reduction import smallest
from eqcheck.transparent.search import Source

RERUNS = 9  # as many fresh processes have to agree; a decoder that is wrong half the time agrees once in 2**9 = 512
SEARCH_S = 60.0  # for one failing case
_QUICKLY = 3  # processes that have to agree before more is tried
_SIMPLER = 80  # tries


class Fresh:
    """A decoder in a process in which nothing was decoded before: `try_case` takes a new one for each case.

    ``decoder`` is a spec, or one that this process loaded and did not call (`eqcheck.audit.workers.fork.as_new`).
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
        # Alone first, and in a fresh process: a fault that needs no earlier request must not be told as state. Then the
        # sequences that were proved before, since one leak fails many cases, and only then the whole history.
        first = self.fresh.try_case(case, timeout)
        if first.explanation is not None:
            same = all(self.fresh.same.try_case(case, timeout).repeats(first) for _ in range(RERUNS))
            return first if same or self._fails_alike(case, first) else None
        if not self._right_alone(case, _QUICKLY):
            return None
        if (after := self._behind_proven(case)) is not None:
            return after
        history = outcome.history.cases if outcome.history else ()
        found = self._found(case, tuple(one for drawn in history for one in (*drawn.before, drawn.alone)))
        return self._smallest(replace(case, before=found)) if found else None

    def _behind_proven(self, case: Case) -> Outcome | None:
        """The case behind the first requests that are proven to break others and break this one, if any do."""
        for before in self.proven:
            after = self.fresh.try_case(replace(case, before=before), self._timeout)
            if after.explanation is not None:
                return replace(after, explanation=leaked(after.case, after.explanation))
        return None

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
        short = replace(case, before=fewest(case.before, fails))
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


# Turn a failing case into a finding: does the answer repeat, what is the smallest case, and does its cause hold?

MINIMISE_S = 60.0  # for one fingerprint
SLOW_TRIES, SLOW_S = 200, 20.0  # for one cause of lost draft tokens: what is slow is right
_HANG_AGAIN_S = 1.0
_LATER = 40  # cases that are tried for state behind a fingerprint
_ALONE_TRIES = 150  # where each takes a process of its own


def confirms(
    outcome: Outcome, runner: Workers, sequences: SequenceSearch | None, slowest: float, seconds: float
) -> Outcome | None:
    """The outcome if the case fails time and again, alone or (then it becomes a sequence) after earlier requests.

    A decoder that hung has to hang again within the whole limit: some are slow once, when they compile. After that it
    is given up sooner; ``slowest`` is the longest that a case took which ended.
    """
    if outcome.fingerprint == HANG and not runner.try_case(outcome.case).repeats(outcome):
        return None
    soon = max(_HANG_AGAIN_S, 20 * slowest) if outcome.fingerprint == HANG else None
    if sequences is not None:
        return sequences.examine(outcome, soon, seconds)
    if outcome.case.before:  # no process tells whether it needs them: what fails without them is no fault of state
        outcome = runner.try_case(outcome.case.alone, soon)
        if outcome.explanation is None:
            return None
    repeats = all(runner.try_case(outcome.case, soon).repeats(outcome) for _ in range(RERUNS))
    return outcome if repeats else None


def of_state(others: list[Outcome], runner: Workers, sequences: SequenceSearch, seconds: float) -> Outcome | None:
    """A sequence among the other cases of a fingerprint whose first case fails alone: one name, two faults."""
    if sequences.proven:
        return None
    runner.renew()
    for outcome in others[:_LATER]:
        if outcome.case.before:
            if runner.renew() and runner.try_case(outcome.case.alone).explanation is None:
                return sequences.examine(outcome, None, seconds)
            continue
        after_others, after_itself = runner.try_case(outcome.case), runner.try_case(outcome.case)
        if after_others.explanation is None or after_itself.explanation is None:
            found = sequences.examine(outcome, None, seconds)
            return found if found and found.case.before else None
    return None


def confirmed(outcome: Outcome, runner: Workers) -> Outcome:
    """The outcome with a second opinion: `unattributed`, with what each witness says, where they prove no cause.

    Where it rests on a coincidence of ids, and most cases without equal ids have one cause, one of them stands for it.
    """
    if outcome.fingerprint == HANG or outcome.case.before:
        return outcome
    # A new decoder for the second opinion: state of earlier tries is no part of this case. Another output means that
    # the case does not repeat, and then no witness says anything about it.
    runner.renew()
    again = runner.try_case(outcome.case, opinion=True)
    if again.outputs != outcome.outputs:
        return outcome
    if again.explanation and again.explanation.component == "unattributed" and again.explanation.permuted[1]:
        # `variants` from the fourth on draw ids anew; the others keep equal ids equal.
        others = [
            runner.try_case(case, opinion=True) for case in (*variants(outcome.case)[3:], redrawn(outcome.case, 6))
        ]
        proved = [one for one in others if one.explanation and one.explanation.component != "unattributed"]
        for fingerprint, count in Counter(one.fingerprint for one in proved).items():
            if 4 * count >= 3 * len(others):
                return next(one for one in proved if one.fingerprint == fingerprint)
    return again


def minimise(
    outcome: Outcome, source: Source, runner: Workers, families: Collection[str], seconds: float
) -> Outcome | None:
    """The smallest case that fails in the same way, within ``families``; None when it does not fail a second time.

    The same way is more than the fingerprint: `eqcheck.transparent.attribution.witnesses.mechanism`. A case that hangs
    is left alone: every try would take the whole time limit.
    """
    fingerprint, explanation = outcome.fingerprint, outcome.explanation
    if fingerprint == HANG or explanation is None:
        return outcome
    cause = mechanism(explanation)

    def fails(case: Case) -> bool:
        if case.family not in families:
            return False
        found = runner.try_case(case).explanation
        return found is not None and mechanism(found) == cause

    def fails_alone(case: Case) -> bool:
        return runner.renew() and fails(case)

    case, end = outcome.case, time.monotonic() + min(seconds, MINIMISE_S)
    runner.renew()
    smallest = source.minimise(case, fails, seconds=end - time.monotonic())
    hindered = not fails(smallest)  # by what was decoded before it
    runner.renew()
    last = runner.try_case(smallest)
    if hindered or last.fingerprint != fingerprint:
        if not runner.renew():
            return None
        smallest = source.minimise(case, fails_alone, tries=_ALONE_TRIES, seconds=max(1.0, end - time.monotonic()))
        runner.renew()
        last = runner.try_case(smallest)
    return replace(last, minimal=True) if last.fingerprint == fingerprint else None


def smallest_slow(
    outcomes: Sequence[Outcome], fingerprint: str, source: Source, runner: Workers, seconds: float
) -> tuple[Case, bool]:
    """The smallest case found that loses draft tokens by a cause, and whether there was time to make it small.

    Where a case of these ``outcomes`` loses by this cause first, the smallest one does so, too.
    """

    def loses(outcome: Outcome, first: bool) -> bool:
        names = [cause.fingerprint for cause in outcome.lost if not cause.window]
        return not outcome.failed and fingerprint in (names[:1] if first else names)

    first = any(loses(outcome, True) for outcome in outcomes)
    losing = [outcome for outcome in outcomes if loses(outcome, first)]
    chosen = min(losing, key=lambda outcome: sum(map(len, outcome.case.prompts)))
    if seconds <= 0:
        return chosen.case, False
    runner.renew()
    case = source.minimise(
        chosen.case,
        lambda case: case.family == chosen.case.family and loses(runner.try_case(case), first),
        tries=SLOW_TRIES,
        seconds=min(seconds, SLOW_S),
    )
    return case, True
