"""The audit: every way in which a decoder can misbehave is reported as that, and none of them stops the audit."""

from __future__ import annotations

import importlib
import random
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from as_data import to_dict
from clock import TRANSPARENT, Clock

from eqcheck.audit.coverage_words import TRANSPARENT as COUNTED
from eqcheck.audit.events import CaseDone, Event, Finished, Started
from eqcheck.audit.loop import audit
from eqcheck.catalogue import known_good
from eqcheck.contract import registry
from eqcheck.contract.decoders import Decoder, Request, decoder
from eqcheck.core.explanation.text import render
from eqcheck.core.result.declining import lacking
from eqcheck.core.result.findings import Audit, Options
from eqcheck.transparent import search
from eqcheck.transparent.coverage import ESSENTIAL
from eqcheck.transparent.decoding import run
from eqcheck.transparent.oracle import judge
from eqcheck.transparent.search import CHUNK, Source

Rows = list[list[int]]
Generate = Callable[[Any, Any, Request], Any]
one_row: Callable[[Any, Any, Request], Rows] = known_good()["one_row"]


def made(function: Any, **claims: Any) -> Decoder:
    return decoder(name="mine", **claims)(function)


def changed(change: Callable[[Rows, Request], Any]) -> Generate:
    """A right decoder whose answer is changed before it is returned."""

    def generate(target: Any, draft: Any, request: Request) -> Any:
        return change(one_row(target, draft, request), request)

    return generate


def shortened(rows: Rows, request: Request) -> Rows:
    return [row[:-1] for row in rows]


def found(result: Audit) -> dict[str, int]:
    return {violation.fingerprint: violation.count for violation in result.violations}


def plain(result: Audit, folder: Path) -> dict[str, Any]:
    """The report without what depends on the machine's speed."""
    return {**to_dict(result, folder), "elapsed_s": None, "cases_per_second": None}


def raising(target: Any, draft: Any, request: Request) -> Rows:
    raise KeyError("layer 3")


def retyped(rows: Rows, request: Request) -> Rows:
    request.prompts[0] = torch.tensor(request.prompts[0])  # type: ignore[call-overload]
    return rows


MISBEHAVIOUR: dict[str, tuple[Generate, str]] = {
    "raises": (raising, "crash/exception:KeyError"),
    "exits": (changed(lambda rows, request: sys.exit(0)), "crash/exception:SystemExit"),
    "none": (changed(lambda rows, request: None), "crash/invalid-output:NoneType"),
    "tensor": (changed(lambda rows, request: torch.ones(len(rows), 2)), "crash/invalid-output:tensor"),
    "generator": (changed(lambda rows, request: (row for row in rows)), "crash/invalid-output:generator"),
    "generators": (changed(lambda rows, request: [iter(row) for row in rows]), "crash/invalid-output:list"),
    "tensors": (changed(lambda rows, request: [list(torch.tensor(r)) for r in rows]), "crash/invalid-output:tensor"),
    "array": (changed(lambda rows, request: np.ones((len(rows), 2), int)), "crash/invalid-output:ndarray"),
    "array-tokens": (changed(lambda rows, request: [[np.arange(2)] for _ in rows]), "crash/invalid-output:list"),
    "floats": (changed(lambda rows, request: [[1.0] for _ in rows]), "crash/invalid-output:list"),
    "too-few-rows": (changed(lambda rows, request: rows[1:]), "crash/invalid-output:list"),
    "outside-the-vocabulary": (changed(lambda rows, request: [[-1] for _ in rows]), "crash/invalid-output:list"),
    "request-changed": (changed(retyped), "crash/invalid-output:mutated-request"),
}


@pytest.mark.parametrize("name", MISBEHAVIOUR)
@pytest.mark.tiers(quick=4, rest=6)
def test_misbehaviour_is_reported_and_the_audit_goes_on(name: str) -> None:
    generate, fingerprint = MISBEHAVIOUR[name]
    result = audit(made(generate), Options(cases=8))
    assert found(result) == {fingerprint: 8}
    assert (len(result.outcomes), result.verdict) == (8, "violation")
    assert all(outcome.exact_match == 0 for outcome in result.outcomes)
    assert len(result.violations[0].case.prompts) == 1
    assert ("KeyError" in result.violations[0].outcome.traceback) == (name == "raises")
    text = " ".join(render(result.violations[0].explanation).split())
    assert ("call list(...) on it" in text) == name.startswith("generator")
    assert ("call .tolist() on it" in text) == (name in ("tensor", "tensors", "array", "array-tokens"))


def test_numpy_integers_are_taken() -> None:
    assert (
        audit(made(changed(lambda rows, request: [list(np.array(row)) for row in rows])), Options(cases=5)).verdict
        == "equivalent"
    )


def test_pads_in_the_output() -> None:
    def filled(rows: Rows, request: Request) -> Rows:
        return [row + [request.pad_token_id] * (request.max_new_tokens - len(row)) for row in rows]

    result = audit(made(changed(filled)), Options(cases=40))
    assert result.violations[0].fingerprint == "bookkeeping/pad-in-output"
    assert len(result.outcomes) == 40


def test_failing_on_some_cases_only() -> None:
    def choosy(target: Any, draft: Any, request: Request) -> Rows:
        return (raising if len(request.prompts) > 2 else one_row)(target, draft, request)

    result = audit(made(choosy), Options(cases=40))
    hit = [outcome for outcome in result.outcomes if len(outcome.case.prompts) > 2]
    assert 0 < len(hit) < 40
    assert found(result) == {"crash/exception:KeyError": len(hit)}
    assert len(result.violations[0].case.prompts) == 3
    counts = to_dict(result, Path("folder"))["cases"]
    assert (counts["run"], counts["violation"], counts["equivalent"]) == (40, len(hit), 40 - len(hit))


def endless(target: Any, draft: Any, request: Request) -> Rows:
    while True:
        target(input_ids=torch.tensor([[1]]), use_cache=False)


def endless_and_deaf(target: Any, draft: Any, request: Request) -> Rows:
    try:
        return endless(target, draft, request)
    except Exception:
        return [[] for _ in request.prompts]


def asleep(target: Any, draft: Any, request: Request) -> Rows:
    time.sleep(600)
    return []


@pytest.mark.parametrize("generate", [endless, endless_and_deaf, asleep])
@pytest.mark.tiers(quick=1, rest=0)
def test_decoders_that_do_not_end_are_given_up_after_three(generate: Generate) -> None:
    timeout = 0.2 if generate is asleep else 60.0
    result = audit(made(generate), Options(cases=20, case_timeout=timeout))
    assert found(result) == {"crash/hang": 3}
    assert len(result.outcomes) == 3
    assert any("stopped after 3 cases took more than" in warning for warning in result.warnings)


@pytest.mark.parametrize("wrong", [raising, changed(shortened)])
def test_answers_that_do_not_repeat_are_inconclusive(wrong: Generate) -> None:
    seen: set[str] = set()

    def fickle(target: Any, draft: Any, request: Request) -> Any:
        first = repr(request) not in seen
        seen.add(repr(request))
        return (wrong if first else one_row)(target, draft, request)

    result = audit(made(fickle), Options(cases=8))
    assert (result.violations, result.verdict) == ([], "inconclusive")
    assert any(warning.startswith("INCONCLUSIVE") and "gave two answers" in warning for warning in result.warnings)
    counts = to_dict(result, Path("folder"))["cases"]
    assert counts["inconclusive"] == result.inconclusive == 8 - counts["equivalent"] > 0
    assert counts["violation"] == 0


@pytest.mark.long
def test_a_seed_gives_the_same_report_and_another_seed_other_cases(tmp_path: Path) -> None:
    mine = made(changed(shortened))
    first, second, other = (audit(mine, Options(cases=60, seed=seed)) for seed in (3, 3, 4))
    assert plain(first, tmp_path) == plain(second, tmp_path)
    assert first.outcomes == second.outcomes
    cases, others = ({outcome.case for outcome in result.outcomes} for result in (first, other))
    assert len(cases - others) > 50


@pytest.mark.long
def test_jobs_do_not_change_the_report(tmp_path: Path) -> None:
    alone, together = (audit(registry.load("hf_pr"), Options(cases=60, jobs=jobs)) for jobs in (1, 2))
    assert together.outcomes == alone.outcomes
    assert plain(together, tmp_path) == plain(alone, tmp_path)


def drawn_afresh() -> list[Any]:
    source = Source(5, ("rotary",), ("left",))
    return [source.chunk(index) for index in range(3)]


def test_cases_depend_on_the_source_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = drawn_afresh()
    (tmp_path / "module_with_numbers.py").write_text(f"TOKENS = {list(range(100, 128))}\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("module_with_numbers")
    random.seed(1)
    assert drawn_afresh() == before


def test_cases_that_depended_on_something_else_would_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "Random", lambda seed: random)
    assert drawn_afresh() != drawn_afresh()


def decoded(result: Audit) -> int:
    """How many requests the cases of an audit have, those before the last one of a case as well."""
    return sum(1 + len(outcome.case.before) for outcome in result.outcomes)


def test_budget_ends_the_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock().put(monkeypatch, TRANSPARENT)

    def slow(target: Any, draft: Any, request: Request) -> Rows:
        clock.now += 0.125
        return one_row(target, draft, request)

    for cases in (None, 5000):
        result = audit(made(slow), Options(cases=cases, budget=2.0))
        assert decoded(result) in (16, 17), "a sequence is decoded to its end"
        assert result.verdict == "equivalent"
    assert len(audit(made(slow), Options(cases=5, budget=600.0)).outcomes) == 5
    nothing = audit(made(slow), Options(cases=None, budget=0.0625))
    assert len(nothing.outcomes) == 1
    monkeypatch.undo()
    nothing = audit(made(one_row), Options(cases=None, budget=1e-9))
    assert (nothing.outcomes, nothing.verdict) == ([], "inconclusive")


def one_row_of_many(rows: Rows, request: Request) -> Rows:
    return [row[:-1] if index and len(rows) > 1 else row for index, row in enumerate(rows)]


@pytest.mark.parametrize(("change", "rows"), [(shortened, 1), (one_row_of_many, 2)])
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.tiers(quick=1, rest=1)
def test_minimised_case(change: Callable[[Rows, Request], Rows], rows: int, seed: int) -> None:
    generate = changed(change)
    (violation,) = audit(made(generate), Options(cases=30, seed=seed)).violations
    case = violation.case
    assert violation.fingerprint == "bookkeeping/premature-stop"
    assert [len(prompt) for prompt in case.prompts] == [1] * rows
    assert (case.max_new_tokens, case.num_draft_tokens, case.eos_token_ids) == (1, 1, ())
    done = run(generate, case)
    assert judge(done).explanation == replace(violation.explanation, repair=None, permuted=(0, 0, 0))
    assert (
        str(violation.explanation.repair)
        == "no repair of position ids, attention mask or cache makes the output correct"
    )
    assert violation.explanation.fingerprint == violation.fingerprint


@pytest.mark.rest
def test_coverage_of_a_decoder_that_never_drafts() -> None:
    result = audit(made(one_row), Options(cases=60))
    assert result.verdict == "equivalent"
    never = {"draft_called", "batched_call", "ragged_round", "all_rejected", "eos_inside_block"}
    assert not never & set(result.coverage)
    assert result.coverage["ragged_prompts"] > 0
    missing = [COUNTED.counters[name] for name in ESSENTIAL if name in never]
    warnings = [warning for warning in result.warnings if warning.startswith("VACUOUS")]
    assert warnings == [f"VACUOUS: {lacking(missing)}"]


@pytest.mark.long
def test_coverage_of_a_decoder_that_does_all() -> None:
    result = audit(registry.load("eqspec"), Options(cases=60))
    assert result.verdict == "equivalent"
    assert result.warnings == []
    assert all(0 < result.coverage[name] <= 60 for name in ("several_rows", *ESSENTIAL))


def stopping(target: Any, draft: Any, request: Request) -> Rows:
    raise KeyboardInterrupt


@pytest.mark.parametrize("last", [9, CHUNK + 9])
@pytest.mark.tiers(quick=1, rest=1)
def test_interrupt_keeps_what_there_is(last: int) -> None:
    calls = count(1)

    def interrupted(target: Any, draft: Any, request: Request) -> Rows:
        return (stopping if next(calls) > last else one_row)(target, draft, request)

    result = audit(made(interrupted), Options(cases=2 * CHUNK))
    assert (result.interrupted, result.verdict) == (True, "inconclusive")
    assert decoded(result) in (last - 1, last), "a sequence that was cut short is no case"
    assert any("interrupted" in warning for warning in result.warnings)


def test_interrupt_while_minimising_keeps_the_violation(tmp_path: Path) -> None:
    calls = count(1)

    def interrupted(target: Any, draft: Any, request: Request) -> Rows:
        return (stopping if next(calls) > 11 else raising)(target, draft, request)

    result = audit(made(interrupted), Options(cases=10))
    assert (result.interrupted, result.verdict) == (True, "violation")
    assert found(result) == {"crash/exception:KeyError": 10}
    (violation,) = to_dict(result, tmp_path)["violations"]
    assert violation["fingerprint"] == "crash/exception:KeyError"
    assert violation["cause"]["subject"] == violation["evidence"]["subject"] == "KeyError"


def test_known_violations() -> None:
    known = {"bookkeeping/premature-stop": "https://example.org/1"}
    result = audit(made(changed(shortened), known=known), Options(cases=5))
    assert (result.unknown, result.verdict) == ([], "violation")
    result = audit(made(raising, known=known), Options(cases=5))
    assert result.unknown == result.violations != []


@pytest.mark.rest
def test_class_is_opened_and_closed_once_and_its_note_is_a_warning() -> None:
    log: list[str] = []

    class Engine:
        def open(self) -> None:
            log.append("open")

        def close(self) -> None:
            log.append("close")

        def __call__(self, target: Any, draft: Any, request: Request) -> Rows:
            log.append("call")
            self.note = "decoded on the spare device"
            return (stopping if len(log) > CHUNK + 10 else one_row)(target, draft, request)

    result = audit(made(Engine, note="an engine"), Options(cases=CHUNK + 5))
    assert len(result.outcomes) == CHUNK + 5
    assert log == ["open", *["call"] * decoded(result), "close"]
    assert result.warnings[:2] == ["an engine", "decoded on the spare device"]
    log.clear()
    assert audit(made(Engine), Options(cases=2 * CHUNK)).interrupted
    assert (log[0], log[-1], log.count("open"), log.count("close")) == ("open", "close", 1, 1)


@pytest.mark.rest
def test_decoder_without_spec_runs_in_one_process_and_reports_progress() -> None:
    events: list[Event] = []
    result = audit(made(one_row), Options(cases=CHUNK + 10, jobs=2), events.append)
    assert len(result.outcomes) == CHUNK + 10
    done = [event.done for event in events if isinstance(event, CaseDone)]
    assert done == list(range(1, CHUNK + 11))
    assert events[0] == Started("mine", "transparent", CHUNK + 10, ("rotary", "learned"))
    assert events[-2] == CaseDone("mine", CHUNK + 10, CHUNK + 10, 0, outcome=result.outcomes[-1])
    assert isinstance(events[-1], Finished)
