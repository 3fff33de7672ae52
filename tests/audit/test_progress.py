"""Progress: one line that a terminal rewrites, and in a log no more lines than a reader needs."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from eqcheck.audit.events import (
    CaseDone,
    Event,
    Loading,
    Settling,
    Started,
    Step,
    ViolationSeen,
    Working,
)
from eqcheck.audit.loop import audit
from eqcheck.contract import registry
from eqcheck.core.case.record import Case
from eqcheck.core.explanation.records import Explanation
from eqcheck.core.result.findings import Options
from eqcheck.core.result.outcome import Outcome
from eqcheck.report.progress import _LIMIT, _STEPS, progress
from eqcheck.sampling.betting.wealth import VIOLATION

Printed = pytest.CaptureFixture[str]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that have passed, which only the test moves."""
    passed = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: passed[0])
    return passed


def an_outcome(symptom: str = "mask/window") -> Outcome:
    component, _, kind = symptom.partition("/")
    return Outcome(Case(prompts=((3, 1),)), "violation", explanation=Explanation(component, kind, row=0))


def said(printed: Printed) -> list[str]:
    return printed.readouterr().err.splitlines()


def test_steps_are_told_at_once_and_then_in_their_time(clock: list[float], capsys: Printed) -> None:
    with progress() as listen:
        listen(Working("", "models"))
        clock[0] += 1
        listen(Working("", "self-check"))
        clock[0] += 1
        listen(Started("mine", "transparent", 300, ("rotary", "learned")))
        clock[0] += 1
        listen(CaseDone("mine", 1, 300, 0))
        clock[0] += 8
        listen(CaseDone("mine", 200, 300, 0))
        clock[0] += 1
        listen(CaseDone("mine", 210, 300, 3))
    lines = said(capsys)
    assert lines[:2] == ["loading torch", "mine: 300 cases; families rotary, learned"]
    assert lines[2].startswith("mine: 210 of 300 cases, 3 fail, about ")
    assert len(lines) == 3


def test_no_more_than_a_line_each_10_seconds_however_much_happens(clock: list[float], capsys: Printed) -> None:
    with progress() as listen:
        for number in range(1, 301):
            clock[0] += 0.5
            listen(CaseDone("mine", number, 300, number // 2))
    assert 14 <= len(said(capsys)) <= 16


def test_the_first_failing_case_of_each_kind_is_told_at_once(clock: list[float], capsys: Printed) -> None:
    with progress(known={"mine": {"mask/window"}}) as listen:
        listen(Started("mine", "transparent", 30))
        listen(ViolationSeen("mine", an_outcome(), 1))
        listen(ViolationSeen("mine", an_outcome("cache/stale-entry"), 2))
    case = an_outcome().case.id
    assert said(capsys)[-2:] == [
        f"mine: a case fails with mask/window (known), not confirmed yet: case {case}",
        f"mine: a case fails with cache/stale-entry, not confirmed yet: case {case}",
    ]


def test_a_request_that_fails_after_another_is_not_called_a_fault_of_state_at_once(
    clock: list[float], capsys: Printed
) -> None:
    with progress() as listen:
        listen(Started("mine", "transparent", 30))
        listen(ViolationSeen("mine", an_outcome("state/stale-weights"), 1))
    case = an_outcome().case.id
    assert said(capsys)[-1] == f"mine: a request after an earlier one fails, not looked into yet: case {case}"


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (
            Settling("mine", "position/query-position", 2, 40, 50),
            "explaining cause 2: position/query-position (40 of",
        ),
        (Settling("mine", "", 2, 50, 50), "2 causes explained (50 of 50 failing cases done)"),
        (Working("mine", "shrink", "mask/window"), "making the case of mask/window small"),
        (Working("mine", "script", "mask/window"), "writing the script of mask/window"),
        (Loading("mine", "window-9f0e"), "loading checkpoint window"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_done_stands_behind_the_evidence(clock: list[float], capsys: Printed, event: Event, words: str) -> None:
    with progress() as listen:
        listen(CaseDone("mine", 50, 50, 50))
        clock[0] += 10
        listen(event)
    assert said(capsys)[-1].startswith(f"mine: 50 of 50 cases, 50 fail; {words}")


@pytest.mark.parametrize(
    ("evidence", "words"), [(0.3, "2"), (151.2, "10^151.2"), (-400.0, "below 0.01"), (4000.0, "10^4000")]
)
def test_sampled_evidence_is_a_number_that_people_write(
    clock: list[float], capsys: Printed, evidence: float, words: str
) -> None:
    with progress() as listen:
        listen(CaseDone("mine", 12, 25, 0, lane="sampling", tokens=810, evidence=evidence))
    assert said(capsys) == [f"mine: 12 of at most 25 sampled cases, 810 tokens, evidence {words} of 10^6"]


def test_no_more_time_is_left_than_the_budget_has(clock: list[float], capsys: Printed) -> None:
    with progress() as listen:
        listen(Started("mine", "engine", 3000, within=60.0))
        for number in range(1, 22):
            clock[0] += 1
            listen(CaseDone("mine", number, 3000, 0, lane="engine"))
    assert said(capsys)[-1] == "mine: 20 of 3000 cases, about 40 s left"


def test_several_decoders_share_the_line(clock: list[float], capsys: Printed) -> None:
    with progress() as listen:
        listen(CaseDone("one", 3, 50, 0))
        clock[0] += 10
        listen(CaseDone("two", 4, 50, 1))
    assert said(capsys)[-1] == "one: 3 of 50 cases | two: 4 of 50 cases, 1 fails"


def test_a_log_gets_lines_also_while_nothing_happens(monkeypatch: pytest.MonkeyPatch, capsys: Printed) -> None:
    monkeypatch.setattr("eqcheck.report.progress._FIRST_S", 0.0)
    monkeypatch.setattr("eqcheck.report.progress._CLOCK_AFTER_S", 0.0)
    with progress() as listen:
        listen(Working("", "models"))
        before = {thread.name for thread in threading.enumerate()}
        time.sleep(2.5)
    assert len(said(capsys)) >= 2
    assert before, "the thread is seen by forkable(), which lets threads of eqcheck be forked away"


def test_a_terminal_rewrites_one_line(monkeypatch: pytest.MonkeyPatch, capsys: Printed) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress() as listen:
        listen(Started("mine", "transparent", 48))
        for number in range(48):
            listen(CaseDone("mine", number + 1, 48, number))
        listen(Settling("mine", "mask/window", 1, 0, 47))
        time.sleep(0.5)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err)
    lines = [line.strip() for line in re.split(r"[\r\n]", shown) if line.strip()]
    assert lines.count("mine: 48 cases") == 1
    assert all(len(line) <= 80 for line in lines)
    assert "explaining cause 1: mask/window" in lines[-1]


def test_quiet_says_nothing(capsys: Printed) -> None:
    with progress(quiet=True) as listen:
        listen(Started("mine", "transparent", 48))
        listen(ViolationSeen("mine", an_outcome(), 1))
    assert said(capsys) == []


def test_each_step_has_words_and_an_audit_tells_the_steps_that_take_long() -> None:
    assert set(_STEPS) == set(Step.__args__)  # type: ignore[attr-defined]
    heard: list[Event] = []
    audit(registry.load("bsp"), Options(cases=12), heard.append)
    steps: Iterator[Working] = (event for event in heard if isinstance(event, Working))
    assert {event.step for event in steps} >= {"shrink"}


def test_the_line_compares_with_the_evidence_that_is_a_violation() -> None:
    assert 10.0**_LIMIT == VIOLATION
