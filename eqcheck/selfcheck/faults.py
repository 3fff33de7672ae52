"""The self-check: every planted fault is caught and named, and no known-good decoder is accused.

It runs the catalogue through what an audit does with each case: decode, judge, and for the first violation repair.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from typing import Any, TypeVar, Union

import torch

from eqcheck.audit.events import CaseDone, Listener
from eqcheck.audit.workers.serve import begin_child
from eqcheck.catalogue import BUILDS, FAULTS, Fault
from eqcheck.catalogue.engines.builds import HEAD_BUILDS
from eqcheck.catalogue.engines.engine import Rows
from eqcheck.catalogue.faults import DEVELOPED, HEAD_FAULTS, LATE, PLANTED
from eqcheck.catalogue.faults.conjunctions import RARE, Answered, recording
from eqcheck.catalogue.faults.fault import SEED
from eqcheck.contract.decoders import CLAIMED, PADDING_SIDES, Request
from eqcheck.contract.family import LLAMA
from eqcheck.core.case.record import Case
from eqcheck.core.explanation.notice import kind_of
from eqcheck.core.explanation.records import Explanation
from eqcheck.core.result.outcome import Loss
from eqcheck.selfcheck.memory import MemoryResult, memory_checks
from eqcheck.selfcheck.samplers import SampledResult, named_as_planted, sampled_checks
from eqcheck.transparent.attribution.lost_drafts import all_losses, all_warnings
from eqcheck.transparent.attribution.witnesses import second_opinion, variants
from eqcheck.transparent.decoding import Run, run
from eqcheck.transparent.oracle import judge
from eqcheck.transparent.search import CHUNK, Source

MOST_CASES = 400  # a fault not caught by then is missed
JUDGED = 6  # cases of each fault whose attribution is scored
SOUND_CASES = 100
RARE_MOST, RARE_USUAL, RARE_LATE = 2000, 300, 0.1  # cases; how many rare conjunctions may take more than usual
COMPONENTS_RIGHT, KINDS_RIGHT = 0.99, 0.95
SAMPLED_RIGHT = 0.9  # of the planted faults of sampling that are seen
T = TypeVar("T")
_Result = Union["FaultResult", "KnownGoodResult", SampledResult, MemoryResult, tuple["RareResult", ...]]


@dataclass(frozen=True)
class FaultResult:
    """The result of the audits of one planted fault.

    ``cases_to_catch`` counts the cases until the first violation, ``seconds`` the time they took on one thread, drawing
    included; both None when it was not caught. ``attributed``: that violation is ``named`` as declared, after repair.
    Of ``judged`` violations ``component_right`` and ``kind_right`` were read as declared. ``unseen``: no fault of its
    ``mechanism`` was developed on.
    """

    id: str
    component: str
    kind: str
    families: tuple[str, ...]
    held_back: bool
    caught: bool
    attributed: bool
    cases_to_catch: int | None
    seconds: float | None
    judged: int = 0
    component_right: int = 0
    kind_right: int = 0
    named: str = ""
    mechanism: str = ""
    unseen: bool = False


@dataclass(frozen=True)
class KnownGoodResult:
    """A decoder that is right, and how many of its cases were called a violation."""

    name: str
    cases: int
    violations: int
    first: str = ""


@dataclass(frozen=True)
class RareResult:
    """Count the cases until a decoder that is wrong under one rare conjunction alone is caught; None: more."""

    id: str
    when: str
    held_back: bool
    cases: int | None


@dataclass(frozen=True)
class SelfCheck:
    """All results; ``failures`` says in words what is broken about the checker, nothing when it is sound."""

    faults: tuple[FaultResult, ...]
    known_good: tuple[KnownGoodResult, ...]
    rare: tuple[RareResult, ...] = ()
    sampled: tuple[SampledResult, ...] = ()
    memory: tuple[MemoryResult, ...] = ()
    seed: str = SEED

    @property
    def left_out(self) -> list[str]:
        """The planted faults that are not run, because cases do not meet them or they are named otherwise."""
        return [fault.id for fault in PLANTED if fault not in FAULTS]

    @property
    def missed(self) -> list[str]:
        """The faults that were not caught, and the right decoders that were accused."""
        missed = [f"{fault.id}: not caught in {MOST_CASES} cases" for fault in self.faults if not fault.caught]
        for good in self.known_good:
            if good.violations:
                accused = f"{good.violations} of {good.cases} cases of a right decoder called a violation"
                missed.append(f"{good.name}: {accused}: {good.first}")
        others: list[SampledResult | MemoryResult] = [*self.sampled, *self.memory]
        return missed + [one.failure for one in others if one.failure]

    @property
    def failures(self) -> list[str]:
        failures = self.missed
        late = [rare for rare in self.rare if rare.cases is None or rare.cases > RARE_USUAL]
        failures += [f"{rare.id}: not caught in {RARE_MOST} cases" for rare in late if rare.cases is None]
        if len(late) > RARE_LATE * len(self.rare):
            failures.append(f"{len(late)} of {len(self.rare)} rare conjunctions not met within {RARE_USUAL} cases")
        for what, share, least in (
            ("component", self.share("component_right", unseen=False), COMPONENTS_RIGHT),
            ("kind", self.share("kind_right", unseen=False), KINDS_RIGHT),
        ):
            if share < least:
                failures.append(
                    f"{what} named as declared in {share:.1%} of the violations, at least {least:.0%} expected"
                )
        right, wrong, seen = named_as_planted(self.sampled)
        if right < SAMPLED_RIGHT * seen:
            failures.append(f"of {seen} faults of sampling {right} are named as planted, and {wrong} by another kind")
        return failures

    def share(self, what: str, **chosen: bool) -> float:
        """Violations read as declared, as a share; ``what`` is ``component_right`` or ``kind_right``.

        ``chosen`` are values that a fault has: whether it is ``held_back``, and whether its mechanism is ``unseen``.
        """
        faults = [fault for fault in self.faults if all(getattr(fault, name) == chosen[name] for name in chosen)]
        judged = sum(fault.judged for fault in faults)
        return sum(getattr(fault, what) for fault in faults) / judged if judged else 1.0

    def seconds(self) -> tuple[float, float]:
        """Median and longest time to the first catch."""
        times = [fault.seconds for fault in self.faults if fault.seconds is not None]
        return (statistics.median(times), max(times)) if times else (0.0, 0.0)

    def to_dict(self) -> dict[str, Any]:
        """The contract's object."""
        return {**asdict(self), "failures": self.failures}


def selfcheck(jobs: int = 1, cases: int = SOUND_CASES, listen: Listener = lambda event: None) -> SelfCheck:
    """Run every known-good decoder on so many cases, and the whole catalogue."""
    work: list[Callable[[], _Result]] = [check_rare]
    for name in (*BUILDS, *HEAD_BUILDS):
        for start in range(0, cases, SOUND_CASES):
            work.append(partial(check_known_good, name, start, min(SOUND_CASES, cases - start)))
    work += [partial(check_fault, number) for number in range(len(FAULTS))]
    work += [partial(check_head, number) for number in range(len(HEAD_FAULTS))]
    work += [*memory_checks(), *sampled_checks()]
    results: list[_Result] = []
    for result in in_processes(work, jobs):
        results.append(result)
        wrong = len(_gathered(results).missed)
        listen(CaseDone("selfcheck", len(results), len(work), wrong))
    return _gathered(results)


@cache
def short() -> SelfCheck:
    """A second of it: the last fault of each kind that was developed on and is met soon, and two right decoders."""
    last: dict[str, int] = {}
    for number, fault in enumerate(FAULTS):
        usual = LLAMA in fault.families and fault.cache_states == ("empty",) and fault.component != "crash"
        if usual and fault.mechanism in DEVELOPED - LATE:
            last[fault.fingerprint] = number
    results: list[_Result] = [check_fault(number, judged=1, opinion=False) for number in last.values()]
    results += [check_known_good(name, 0, 10) for name in ("realigned", "per_row")]
    return _gathered(results)


def _gathered(results: list[_Result]) -> SelfCheck:
    good: dict[str, KnownGoodResult] = {}
    for part in _of(results, KnownGoodResult):
        before = good.get(part.name, KnownGoodResult(part.name, 0, 0))
        cases, violations = before.cases + part.cases, before.violations + part.violations
        good[part.name] = replace(part, cases=cases, violations=violations, first=before.first or part.first)
    rare: tuple[RareResult, ...] = next(iter(_of(results, tuple)), ())
    sampled, memory = _of(results, SampledResult), _of(results, MemoryResult)
    return SelfCheck(_of(results, FaultResult), tuple(good.values()), rare, sampled, memory)


def _of(results: list[_Result], kind: type[T]) -> tuple[T, ...]:
    return tuple(result for result in results if isinstance(result, kind))


def in_processes(work: list[Callable[[], T]], jobs: int) -> Iterator[T]:
    """The results of ``work``, in order, from so many processes."""
    if jobs == 1:
        yield from (one() for one in work)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), begin_child) as pool:
        yield from pool.map(_call, work)


def _call(one: Callable[[], T]) -> T:
    return one()


@cache
def _drawn(source: Source, number: int) -> tuple[Case, float]:
    """A case of a source, and the seconds it took to draw; several are drawn at once, on account of the first."""
    start = time.perf_counter()
    case = _first_such(source).chunk(number // CHUNK, number % CHUNK + 1)[number % CHUNK]
    return case, time.perf_counter() - start


@cache
def _first_such(source: Source) -> Source:
    """Return the first of equal sources, which keeps what it has drawn."""
    return source


def check_known_good(name: str, start: int, count: int) -> KnownGoodResult:
    """Run a known-good decoder on ``count`` cases from the ``start``-th on, over all it claims."""
    torch.set_num_threads(1)
    decoder = {**BUILDS, **HEAD_BUILDS}[name].decoder(name)
    source = Source(1, decoder.families, decoder.padding_sides, decoder.cache_states)
    accused, first = 0, ""
    losses: Counter[Loss] = Counter()
    with decoder.running() as generate:
        for number in range(start, start + count):
            case, _ = _drawn(source, number)
            finished = run(generate, case)
            verdict = judge(finished)
            if verdict.explanation is not None:
                accused += 1
                first = first or f"{verdict.explanation.fingerprint} on case {case.id}"
            else:
                losses += all_losses(finished)
    warnings = all_warnings(losses)
    return KnownGoodResult(name, count, accused + len(warnings), first or "".join(warnings[:1]))


def check_rare() -> tuple[RareResult, ...]:
    """Draw cases until each of the catalogue's rare conjunctions was met, and its decoder caught, or up to the most."""
    torch.set_num_threads(1)
    source = Source(1, CLAIMED, PADDING_SIDES)
    caught: dict[str, int] = {}
    for count in range(RARE_MOST):
        case, _ = _drawn(source, count)
        seen: list[Answered] = []
        run(partial(_noted, seen), case)
        for rare in RARE:
            if rare.id not in caught and rare.holds(seen[0]) and not judge(run(rare.decoder().function, case)):
                caught[rare.id] = count + 1
        if len(caught) == len(RARE):
            break
    return tuple(RareResult(rare.id, rare.when, rare.held_back, caught.get(rare.id)) for rare in RARE)


def _noted(seen: list[Answered], target: Any, draft: Any, request: Request) -> Rows:
    seen.append(recording(target, draft, request))
    return seen[0].outputs


def check_fault(number: int, judged: int = JUDGED, opinion: bool = True) -> FaultResult:
    """Run the fault ``FAULTS[number]`` until so many violations are judged; ``opinion``: the first by repair, too."""
    return _checked(FAULTS[number], judged, opinion)


def check_head(number: int) -> FaultResult:
    """Run the fault ``HEAD_FAULTS[number]``, and judge its warnings."""
    return _checked(HEAD_FAULTS[number], JUDGED, False)


def _checked(fault: Fault, judged: int, opinion: bool) -> FaultResult:
    torch.set_num_threads(1)
    decoder = fault.decoder()
    source = Source(1, fault.families, decoder.padding_sides, fault.cache_states)
    kinds: Counter[str] = Counter()
    losses = Counter[Loss]()
    named, caught_at, seconds = "", None, 0.0
    with decoder.running() as generate:
        for count in range(MOST_CASES):
            case, drawing = _drawn(source, count)
            start = time.perf_counter()
            done = run(generate, case, timeout=20.0)
            seen = _seen(fault, done, losses)
            seconds += drawing + time.perf_counter() - start if caught_at is None else 0.0
            if seen is None:
                continue
            if caught_at is None:
                caught_at = count + 1
                repaired = opinion and seen.component != "draft"
                named = (second_opinion(generate, done, seen, 20.0, variants(case)) if repaired else seen).fingerprint
            kinds[seen.fingerprint] += 1
            if kinds.total() == judged:
                break
    same_component = sum(n for name, n in kinds.items() if name.startswith(f"{fault.component}/"))
    return FaultResult(
        fault.id,
        fault.component,
        fault.kind,
        fault.families,
        fault.held_back,
        caught=caught_at is not None,
        attributed=_is(named, fault),
        cases_to_catch=caught_at,
        seconds=None if caught_at is None else round(seconds, 4),
        judged=kinds.total(),
        component_right=same_component,
        kind_right=sum(n for name, n in kinds.items() if _is(name, fault)),
        named=named,
        mechanism=fault.mechanism,
        unseen=fault.mechanism not in DEVELOPED,
    )


def _is(name: str, fault: Fault) -> bool:
    return name.partition(":")[0] == fault.fingerprint


def _seen(fault: Fault, done: Run, losses: Counter[Loss]) -> Explanation | None:
    """The violation of a run, or for a fault of the draft side the warning that this run and those before it give."""
    explanation = judge(done).explanation
    if explanation is None and fault.component == "draft":
        losses.update(all_losses(done))
        for warning in all_warnings(losses):
            component, _, kind = kind_of(warning).partition("/")
            return Explanation(component, kind)
    return explanation
