"""The audit: draw cases, decode, judge, gather by fingerprint, confirm, minimise. It emits events and never prints."""

from __future__ import annotations

import multiprocessing
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch

from eqcheck import registry
from eqcheck.case import Case
from eqcheck.contract import Decoder, Generate, Request
from eqcheck.coverage import exercised, vacuous
from eqcheck.harness import run
from eqcheck.oracle import judge
from eqcheck.search import CHUNK, Source
from eqcheck.text import render
from eqcheck.verdict import Explanation, merge

HANGS_TO_GIVE_UP = 3


@dataclass(frozen=True)
class Options:
    """What an audit is asked: so many cases, or a time budget in seconds, or both (whichever ends first)."""

    cases: int | None = 300
    budget: float | None = None
    seed: int = 0
    jobs: int = 1
    families: tuple[str, ...] = ()
    case_timeout: float = 60.0


@dataclass(frozen=True)
class Outcome:
    """One case's result, picklable. ``outputs`` is None when the decoder failed, ``explanation`` when it did not."""

    case: Case
    status: str
    exact_match: float
    prefix_match: float
    coverage: frozenset[str]
    outputs: tuple[tuple[int, ...], ...] | None
    explanation: Explanation | None = None
    traceback: str = ""

    @property
    def fingerprint(self) -> str | None:
        return self.explanation.fingerprint if self.explanation else None


@dataclass(frozen=True)
class ViolationRecord:
    """One fingerprint: how often, and the smallest case in violation."""

    fingerprint: str
    count: int
    case: Case
    explanation: Explanation
    traceback: str = ""

    @property
    def text(self) -> str:
        return render(self.explanation)


@dataclass
class Audit:
    """The result of one decoder's audit."""

    decoder: Decoder
    options: Options
    families: tuple[str, ...]
    outcomes: list[Outcome] = field(default_factory=list)
    violations: list[ViolationRecord] = field(default_factory=list)
    inconclusive: int = 0
    warnings: list[str] = field(default_factory=list)
    elapsed: float = 0.0
    interrupted: bool = False

    @property
    def verdict(self) -> str:
        """``violation`` if one was confirmed, ``inconclusive`` if runs disagreed or nothing ran."""
        if self.violations:
            return "violation"
        unasked = self.outcomes and not self.coverage.get("target_called")
        statuses = ["inconclusive"] if self.inconclusive or self.interrupted or unasked else []
        return merge([*statuses, *(o.status for o in self.outcomes if o.status != "violation")])

    @property
    def coverage(self) -> dict[str, int]:
        """How many cases raised each counter."""
        counts = Counter(name for outcome in self.outcomes for name in outcome.coverage)
        return dict(sorted(counts.items()))

    @property
    def unknown(self) -> list[ViolationRecord]:
        """Violations that the adapter does not declare as known."""
        return [v for v in self.violations if v.fingerprint not in self.decoder.known]


@dataclass(frozen=True)
class Progress:
    """``done`` of ``total`` cases (``total`` None under a time budget) of one decoder, so many in violation."""

    decoder: str
    done: int
    total: int | None
    violations: int
    stage: str = "cases"


Listener = Callable[[Progress], None]


def audit(decoder: Decoder, options: Options, listen: Listener = lambda event: None) -> Audit:
    """Audit one decoder. ``KeyboardInterrupt`` ends it early with what there is, marked ``interrupted``.

    >>> from eqcheck.registry import load
    >>> audit(load("eqspec"), Options(cases=20)).verdict
    'equivalent'
    """
    families = tuple(options.families) or decoder.families
    result = Audit(decoder, options, families)
    source = Source(options.seed, families, decoder.padding_sides)
    start = time.monotonic()
    torch.set_num_threads(1)
    first: dict[str, tuple[int, Outcome]] = {}
    counts: Counter[str] = Counter()
    settled: set[str] = set()
    notes: dict[str, None] = {}
    try:
        with _interruptible() as check, _running(decoder, result.warnings) as generate:
            for index, outcome, note in _outcomes(decoder, generate, source, options):
                result.outcomes.append(outcome)
                check()
                notes.update(dict.fromkeys([note] if note else []))
                if outcome.fingerprint:
                    counts[outcome.fingerprint] += 1
                    first.setdefault(outcome.fingerprint, (index, outcome))
                listen(Progress(decoder.name, len(result.outcomes), options.cases, counts.total()))
                if counts["crash/hang"] >= HANGS_TO_GIVE_UP:
                    result.warnings.append(f"stopped after {HANGS_TO_GIVE_UP} cases that did not end")
                    break
            for fingerprint, (index, outcome) in first.items():
                listen(Progress(decoder.name, len(result.outcomes), options.cases, counts.total(), fingerprint))
                _confirm(result, source, generate, index, outcome, counts[fingerprint])
                settled.add(fingerprint)
                check()
    except KeyboardInterrupt:
        result.interrupted = True
        missing = [outcome for name, (_, outcome) in first.items() if name not in settled]
        result.violations += [_record(outcome, counts[str(outcome.fingerprint)]) for outcome in missing]
        result.warnings.append("interrupted; the cases below are not all minimised" if missing else "interrupted")
    result.violations.sort(key=lambda v: -v.count)
    result.warnings[:0] = [*([decoder.note] if decoder.note else []), *notes]
    if result.outcomes:
        result.warnings += vacuous(result.coverage)
    result.elapsed = time.monotonic() - start
    return result


@contextmanager
def _interruptible() -> Iterator[Callable[[], None]]:
    """Yield a check that raises ``KeyboardInterrupt`` after a first Ctrl-C; a second one raises at once.

    Raised anywhere, it can fall into a garbage collection callback, where Python drops it.
    """
    pending: list[int] = []

    def check() -> None:
        if pending:
            raise KeyboardInterrupt

    def note(*_: object) -> None:
        check()
        pending.append(1)

    if threading.current_thread() is not threading.main_thread():
        yield check
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _running(decoder: Decoder, warnings: list[str]) -> Iterator[Generate]:
    """The decoder set up; if that fails, a stand-in that fails every case with the same error."""
    with ExitStack() as stack:
        try:
            generate = stack.enter_context(decoder.running())
        except Exception as error:
            failure = error

            def generate(target: Any, draft: Any, request: Request) -> Any:
                raise failure

        yield generate
        closing = stack.pop_all()
        try:
            closing.close()
        except Exception as error:
            warnings.append(f"the decoder's close() raised {type(error).__name__}: {error}")


def try_case(generate: Generate, case: Case, timeout: float | None) -> Outcome:
    """Decode and judge one case."""
    done = run(generate, case, timeout)
    verdict = judge(done)
    matches = (verdict.exact_match, verdict.prefix_match)
    covered = frozenset(exercised(done))
    return Outcome(case, verdict.status, *matches, covered, done.outputs, verdict.explanation, done.failure_text)


def _outcomes(
    decoder: Decoder, generate: Generate, source: Source, options: Options
) -> Iterator[tuple[int, Outcome, str]]:
    """Outcomes with the number of their chunk and the decoder's note, in order, whatever the number of jobs."""
    end = time.monotonic() + options.budget if options.budget else float("inf")
    if options.jobs <= 1 or not decoder.spec:
        for index, size in _chunks(options, end):
            for case in source.chunk(index, size):
                if time.monotonic() > end:
                    return
                yield index, try_case(generate, case, options.case_timeout), getattr(generate, "note", "")
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, mp_context=context, initializer=_ignore_interrupt) as pool:
        waiting: deque[tuple[int, Future[tuple[list[Outcome], str]]]] = deque()
        try:
            for index, size in _chunks(options, end):
                job = pool.submit(_worker, decoder.spec, source, index, size, options.case_timeout)
                waiting.append((index, job))
                if len(waiting) == 2 * options.jobs:
                    yield from _finished(*waiting.popleft())
            while waiting:
                yield from _finished(*waiting.popleft())
        finally:
            for _, job in waiting:
                job.cancel()


def _chunks(options: Options, end: float) -> Iterator[tuple[int, int]]:
    """Numbers and sizes of the chunks an audit needs, while there is time."""
    left = options.cases
    for index in count():
        if left == 0 or time.monotonic() > end:
            return
        size = CHUNK if left is None else min(CHUNK, left)
        left = None if left is None else left - size
        yield index, size


def _finished(index: int, job: Future[tuple[list[Outcome], str]]) -> Iterator[tuple[int, Outcome, str]]:
    outcomes, note = job.result()
    return ((index, outcome, note) for outcome in outcomes)


def _ignore_interrupt() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _worker(spec: str, source: Source, index: int, size: int, timeout: float) -> tuple[list[Outcome], str]:
    torch.set_num_threads(1)
    outcomes: list[Outcome] = []
    with registry.load(spec).running() as generate:
        for case in source.chunk(index, size):
            outcomes.append(try_case(generate, case, timeout))
            if sum(outcome.fingerprint == "crash/hang" for outcome in outcomes) == HANGS_TO_GIVE_UP:
                break
        return outcomes, getattr(generate, "note", "")


def _confirm(result: Audit, source: Source, generate: Generate, index: int, first: Outcome, number: int) -> None:
    """Run the first case of a fingerprint again; if the answer repeats, minimise it and record the violation."""
    timeout, fingerprint = result.options.case_timeout, first.fingerprint
    last = try_case(generate, first.case, timeout)
    if (last.fingerprint, last.outputs) == (fingerprint, first.outputs) and fingerprint != "crash/hang":
        smallest = source.minimise(
            index, first.case, lambda case: try_case(generate, case, timeout).fingerprint == fingerprint
        )
        last = try_case(generate, smallest, timeout)
    elif last.outputs != first.outputs:
        last = Outcome(first.case, "inconclusive", 0.0, 0.0, frozenset(), None)
    if last.fingerprint == fingerprint:
        result.violations.append(_record(last, number))
        return
    result.inconclusive += number
    result.warnings.append(
        f"INCONCLUSIVE: {fingerprint} on case {first.case.id}: two runs of the same request gave different answers; "
        "the decoder is not deterministic"
    )


def _record(outcome: Outcome, number: int) -> ViolationRecord:
    assert outcome.explanation is not None
    explanation = outcome.explanation
    return ViolationRecord(explanation.fingerprint, number, outcome.case, explanation, outcome.traceback)
