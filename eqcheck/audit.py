"""The audit: draw cases, decode, judge, gather by fingerprint, confirm, minimise. It emits events and never prints."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field

import torch

from eqcheck import registry
from eqcheck.case import Case
from eqcheck.contract import Decoder, Generate
from eqcheck.coverage import exercised, vacuous
from eqcheck.harness import run
from eqcheck.oracle import judge
from eqcheck.search import CHUNK, Source
from eqcheck.verdict import Explanation, Verdict, merge

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
    """One case's result; small and picklable. ``outputs`` is None when the decoder failed."""

    case: Case
    status: str
    fingerprint: str | None
    outputs: tuple[tuple[int, ...], ...] | None
    exact_match: float
    prefix_match: float
    coverage: frozenset[str]


@dataclass(frozen=True)
class ViolationRecord:
    """One fingerprint: how often, the smallest case, its explanation."""

    fingerprint: str
    count: int
    case: Case
    explanation: Explanation
    text: str
    traceback: str = ""


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
        statuses = ["inconclusive"] if self.inconclusive or self.interrupted else []
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
    where: dict[str, tuple[int, Outcome]] = {}
    notes: dict[str, None] = {}
    hangs = 0
    try:
        with decoder.running() as generate:
            for index, outcomes, note in _chunks(decoder, generate, source, options):
                for outcome in outcomes:
                    result.outcomes.append(outcome)
                    if outcome.fingerprint:
                        where.setdefault(outcome.fingerprint, (index, outcome))
                        hangs += outcome.fingerprint == "crash/hang"
                notes.update(dict.fromkeys([note] if note else []))
                listen(_progress(decoder, result, options))
                if hangs >= HANGS_TO_GIVE_UP:
                    result.warnings.append(f"stopped after {hangs} cases that did not end")
                    break
            for fingerprint, (index, first) in where.items():
                listen(Progress(decoder.name, len(result.outcomes), options.cases, len(where), fingerprint))
                _confirm(result, source, generate, index, first)
    except KeyboardInterrupt:
        result.interrupted = True
        missing = [f for f in where if f not in {v.fingerprint for v in result.violations}]
        result.warnings.append("interrupted: " + (f"not minimised: {', '.join(missing)}" if missing else "partial"))
        for fingerprint in missing:
            _record_as_found(result, fingerprint, where[fingerprint][1].case)
    result.violations.sort(key=lambda v: -v.count)
    result.warnings[:0] = [*([decoder.note] if decoder.note else []), *notes]
    if result.outcomes:
        result.warnings += vacuous(result.coverage)
    result.elapsed = time.monotonic() - start
    return result


def try_case(generate: Generate, case: Case, timeout: float | None) -> tuple[Outcome, Verdict, str]:
    """Decode and judge one case: the outcome, the verdict, and the traceback if the decoder raised."""
    done = run(generate, case, timeout)
    verdict = judge(done)
    fingerprint = verdict.explanation.fingerprint if verdict.explanation else None
    matches = (verdict.exact_match, verdict.prefix_match)
    outcome = Outcome(case, verdict.status, fingerprint, done.outputs, *matches, frozenset(exercised(done)))
    return outcome, verdict, done.failure_text


def _chunks(
    decoder: Decoder, generate: Generate, source: Source, options: Options
) -> Iterator[tuple[int, list[Outcome], str]]:
    """Chunks of outcomes in order, the same whatever the number of jobs."""
    end = time.monotonic() + options.budget if options.budget else None
    left = options.cases if options.cases is not None else None
    if options.jobs <= 1 or not decoder.spec:
        index = 0
        while (left is None or left > 0) and (end is None or time.monotonic() < end):
            size = CHUNK if left is None else min(CHUNK, left)
            outcomes = _run_chunk(generate, source, index, size, options.case_timeout, end)
            yield index, outcomes, getattr(generate, "note", "")
            left = None if left is None else left - size
            index += 1
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, mp_context=context, initializer=_ignore_interrupt) as pool:
        waiting: list[tuple[int, Future[tuple[list[Outcome], str]]]] = []
        index = 0
        try:
            while True:
                more = (left is None or left > 0) and (end is None or time.monotonic() < end)
                if more and len(waiting) < 2 * options.jobs:
                    size = CHUNK if left is None else min(CHUNK, left)
                    job = pool.submit(_worker, decoder.spec, source, index, size, options.case_timeout)
                    waiting.append((index, job))
                    left = None if left is None else left - size
                    index += 1
                elif waiting:
                    first, job = waiting.pop(0)
                    yield (first, *job.result())
                else:
                    return
        finally:
            for _, job in waiting:
                job.cancel()


def _ignore_interrupt() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _worker(spec: str, source: Source, index: int, size: int, timeout: float) -> tuple[list[Outcome], str]:
    torch.set_num_threads(1)
    with registry.load(spec).running() as generate:
        return _run_chunk(generate, source, index, size, timeout, None), getattr(generate, "note", "")


def _run_chunk(
    generate: Generate, source: Source, index: int, size: int, timeout: float, end: float | None
) -> list[Outcome]:
    outcomes: list[Outcome] = []
    hangs = 0
    for case in source.chunk(index, size):
        if (end is not None and time.monotonic() > end) or hangs >= HANGS_TO_GIVE_UP:
            break
        outcome, _, _ = try_case(generate, case, timeout)
        hangs += outcome.fingerprint == "crash/hang"
        outcomes.append(outcome)
    return outcomes


def _confirm(result: Audit, source: Source, generate: Generate, index: int, first: Outcome) -> None:
    """Run the first case of a fingerprint again; if the answer repeats, minimise it and record the violation."""
    timeout, fingerprint, case = result.options.case_timeout, first.fingerprint, first.case
    assert fingerprint is not None
    count = sum(o.fingerprint == fingerprint for o in result.outcomes)

    def inconclusive() -> None:
        result.inconclusive += count
        result.warnings.append(
            f"INCONCLUSIVE: {fingerprint} on case {case.id}: two runs of the same request gave different answers; "
            "the decoder is not deterministic"
        )

    again, verdict, traceback = try_case(generate, case, timeout)
    if (again.fingerprint, again.outputs) != (fingerprint, first.outputs):
        inconclusive()
        return
    smallest = case
    if fingerprint != "crash/hang":
        smallest = source.minimise(index, case, lambda c: try_case(generate, c, timeout)[0].fingerprint == fingerprint)
        last, verdict, traceback = try_case(generate, smallest, timeout)
        if last.fingerprint != fingerprint:
            inconclusive()
            return
    assert verdict.explanation is not None
    result.violations.append(
        ViolationRecord(fingerprint, count, smallest, verdict.explanation, verdict.explain(), traceback)
    )


def _record_as_found(result: Audit, fingerprint: str, case: Case) -> None:
    count = sum(o.fingerprint == fingerprint for o in result.outcomes)
    component, _, kind = fingerprint.partition("/")
    explanation = Explanation(component, kind.partition(":")[0], detail="interrupted before it was explained")
    text = "interrupted before it was explained; replay the case"
    result.violations.append(ViolationRecord(fingerprint, count, case, explanation, text))


def _progress(decoder: Decoder, result: Audit, options: Options) -> Progress:
    violations = sum(o.status == "violation" for o in result.outcomes)
    return Progress(decoder.name, len(result.outcomes), options.cases, violations)
