"""Results for machines: JUnit, events, GitHub; with texts that would break each of them."""

from __future__ import annotations

import io
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from eqcheck.audit.coverage_words import TRANSPARENT
from eqcheck.audit.events import (
    CaseDone,
    Event,
    Finished,
    Listener,
    Loaded,
    Loading,
    Settled,
    Settling,
    Started,
    ViolationSeen,
    Working,
)
from eqcheck.cli import main
from eqcheck.contract import registry
from eqcheck.contract.decoders import Decoder
from eqcheck.core.case.record import Case
from eqcheck.core.explanation.records import Explanation
from eqcheck.core.result.findings import Audit, Finding, Options
from eqcheck.core.result.outcome import Outcome
from eqcheck.report import load
from eqcheck.report.checks import checks, commands_of, failing, junit, step_summary, untrusted
from eqcheck.report.ndjson import EventLog, told
from eqcheck.report.schema import Report

SHOWCASE = Path(__file__).parents[2] / "reports" / "showcase"
HOSTILE = "]]></failure>&<b>\x00\x1b[31m\ud800\ufffe\r\n::error::gotcha\n##[error]x|`%0A\u2028, a:b"
CAUSES = ["position/query-position", "bookkeeping/past-eos"]


@pytest.fixture(scope="module")
def report() -> Report:
    """A report with two causes, both of them declared as known."""
    return load(SHOWCASE / "bsp")


def unknown(report: Report, **changed: Any) -> Report:
    """The same, with nothing declared as known."""
    violations = tuple(replace(one, known=None, **changed) for one in report.violations)
    return replace(report, violations=violations)


def hostile(report: Report) -> Report:
    text = {"explanation": HOSTILE, "traceback": HOSTILE, "reproduce": HOSTILE, "fingerprint": HOSTILE}
    return replace(unknown(report, **text), decoder=replace(report.decoder, name=HOSTILE))


def statuses(report: Report, allow: bool = False) -> list[str]:
    return [check.status for check in checks(report, allow)]


def test_checks_say_what_fails(report: Report) -> None:
    assert statuses(unknown(report)) == ["failed", "failed", "failed"]
    assert statuses(report) == ["failed", "failed", "failed"]
    assert statuses(report, allow=True) == ["passed", "known", "known"]
    until = tuple(replace(one, known_until="2027-01-01") for one in report.violations)
    assert statuses(replace(report, violations=until)) == ["passed", "known", "known"]
    assert [check.name for check in failing(checks(report, False))] == CAUSES


def test_nothing_that_is_unclear_passes(report: Report) -> None:
    clean = replace(report, violations=(), verdict="equivalent")
    assert statuses(clean) == ["passed"]
    assert statuses(replace(clean, interrupted=True)) == ["inconclusive"]
    assert statuses(replace(clean, verdict="inconclusive")) == ["inconclusive"]
    assert statuses(replace(clean, cases=replace(clean.cases, run=0))) == ["inconclusive"]
    assert statuses(replace(clean, inconclusive=report.violations[:1])) == ["inconclusive", "inconclusive"]
    assert statuses(replace(clean, stale=("mask/window",)), allow=True) == ["failed"]
    assert [check.name for check in failing(checks(replace(clean, stale=("mask/window",)), True))] == ["verdict"]


def test_junit_counts_what_it_has(report: Report) -> None:
    (suite,) = ElementTree.fromstring(junit([unknown(report)], False))
    assert (suite.get("name"), suite.get("tests"), suite.get("failures"), suite.get("skipped")) == (
        "bsp",
        "3",
        "3",
        "0",
    )
    assert [case.get("name") for case in suite] == ["verdict", *CAUSES]
    failure = suite[1].find("failure")
    assert failure is not None
    assert str(failure.text).endswith(f"\n  Reproduce      {report.violations[0].reproduce}")
    assert suite[1].get("file") is None
    (suite,) = ElementTree.fromstring(junit([report], True, {"bsp": ("adapters/bsp.py", 31)}))
    assert {(case.get("file"), case.get("line")) for case in suite} == {("adapters/bsp.py", "31")}
    assert (suite.get("failures"), suite.get("skipped")) == ("0", "2")
    skipped = suite[1].find("skipped")
    assert skipped is not None
    assert "declared as known: https://" in str(skipped.get("message"))


def test_hostile_text_stays_text_in_xml(report: Report) -> None:
    (suite,) = ElementTree.fromstring(junit([hostile(report)], False))
    assert len(suite.findall(".//failure")) == 3
    assert "]]></failure>&<b>??[31m" in str(suite.findall(".//failure")[1].text)


def test_annotations_are_one_command_each(report: Report) -> None:
    found = commands_of([unknown(report)], False)
    assert [line[: len("::error title=eqcheck%3A bsp%3A ")] for line in found] == [
        "::error title=eqcheck%3A bsp%3A "
    ] * 2
    assert commands_of([report], True) == []
    many = [replace(report, decoder=replace(report.decoder, name=f"d{number}")) for number in range(20)]
    assert len(commands_of(many, False)) == 10
    assert commands_of(many, False)[-1] == "::error title=eqcheck::31 more are in the report"


def test_hostile_text_is_no_command(report: Report) -> None:
    for line in commands_of([hostile(report)], False):
        assert len(line.splitlines()) == 1
        command = re.fullmatch(r"::error title=([^:,]*)::(.*)", line)
        assert command
        assert "%25" in command[1]
    lines = untrusted("::error::gotcha", "token").split("\n")
    assert lines == ["::stop-commands::token", "::error::gotcha", "::token::"]


def test_step_summary_is_markdown_of_bounded_size(report: Report) -> None:
    page = step_summary([hostile(report), report], True)
    assert "<b>" not in re.sub(r"(?ms)^(`{3,})$.*?^\1$|(`+).+?\2", "", page)
    assert all(line.replace("\\|", "").count("|") == 5 for line in page.splitlines() if line.startswith("| "))
    assert page.count("\n### ") == 4
    long = step_summary([unknown(report, explanation="x" * 600_000)], False)
    assert len(long.encode()) < 2**20
    assert long.endswith("1 more are in the report.\n")


def events() -> list[Event]:
    decoder, explanation = registry.load("eqspec"), Explanation("mask", "window", row=0)
    outcome = Outcome(Case(prompts=((3, 1),)), "violation", explanation=explanation)
    finding = Finding(outcome, explanation, needs=(HOSTILE,))
    audit = Audit(decoder, Options(), findings=[finding], outcomes=[outcome], claimed_families=("rotary",))
    return [
        Started(HOSTILE, "transparent", None),
        Loading("eqspec", HOSTILE),
        Loaded("eqspec", 203.04),
        CaseDone("eqspec", 1, 2, 1, outcome=outcome),
        ViolationSeen("eqspec", outcome, 1),
        Settling("eqspec", "mask/window"),
        Settled("eqspec", finding),
        Finished("eqspec", audit),
    ]


def test_every_event_is_a_line_of_json() -> None:
    stream = io.StringIO()
    log = EventLog(stream)
    for event in events():
        log(event)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    names = ["started", "loading", "loaded", "case-done", "violation-seen", "settling", "settled", "finished"]
    assert [line["event"] for line in lines] == names
    assert lines[0]["format"] == "eqcheck-events/1"
    assert Case.from_dict(lines[4]["case"]) == Case.from_dict(lines[6]["case"]) == Case(prompts=((3, 1),))
    assert lines[2]["seconds"] == 203.0
    assert lines[7]["violations"] == {"mask/window": 1}
    assert "\x1b" not in stream.getvalue()


def test_a_case_is_told_with_its_verdict() -> None:
    done = next(event for event in events() if isinstance(event, CaseDone))
    line = told(done)
    assert line is not None
    assert (line["status"], line["fingerprint"], line["case"]["prompts"]) == ("violation", "mask/window", [[3, 1]])


def test_every_kind_of_event_is_told_but_what_is_worked_at() -> None:
    """`docs/ci.md` lists the events of a log; a step of the work is for the line of progress alone."""
    assert {type(event) for event in events()} == set(Event.__subclasses__()) - {Working}
    assert told(Event("eqspec")) is told(Working("eqspec", "shrink", "mask/window")) is None


def test_a_stream_that_fails_ends_the_events_and_nothing_else() -> None:
    class Full(io.StringIO):
        def flush(self) -> None:
            raise OSError(28, "No space left on device")

    stream = Full()
    log = EventLog(stream)
    for event in events():
        log(event)
    assert log.error == "No space left on device"
    assert len(stream.getvalue().splitlines()) == 1


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    monkeypatch.setattr("eqcheck.selfcheck.faults.short", lambda: type("Right", (), {"failures": []}))
    return tmp_path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--json", "--ndjson", "-"), "both want standard output"),
        (("--ndjson", "no/where.ndjson"), "--ndjson no/where.ndjson: cannot write there: No such file"),
        (("--junit", "no/where.xml"), "--junit no/where.xml: cannot write there"),
        (("--junit", "."), "--junit .: cannot write there"),
    ],
)
def test_what_cannot_be_written_is_said_first(
    work: Path, capfd: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert main(["audit", "eqspec", *words]) == 4
    printed = capfd.readouterr()
    assert (printed.out, len(printed.err.splitlines())) == ("", 1)
    assert said in printed.err


def fake_audit(decoder: Decoder, options: Options, listen: Listener) -> Audit:
    """An audit that finds the row of a noisy decoder too short, at once."""
    print("noise of the decoder")
    os.write(1, b"noise below Python\n")
    explanation = Explanation("bookkeeping", "premature-stop", row=0, token_index=0, detail="::error::gotcha")
    outcome = Outcome(Case(prompts=((3, 1),)), "violation", explanation=explanation)
    result = Audit(decoder, options, outcomes=[outcome], claimed_families=("rotary",))
    result.findings.append(Finding(outcome, explanation))
    result.facts["reached"] = dict.fromkeys(TRANSPARENT.reached, 1)
    listen(Started(decoder.name, "transparent", 1))
    listen(Finished(decoder.name, result))
    return result


def test_an_audit_tells_everybody(
    work: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eqcheck.audit.loop.audit", fake_audit)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(work / "page.md"))
    assert main(["audit", "--no-corpus", "eqspec", "--ndjson", "-", "--junit", "junit.xml"]) == 1
    printed = capfd.readouterr()
    assert [json.loads(line)["event"] for line in printed.out.splitlines()] == ["started", "finished"]
    assert "noise of the decoder\n" in printed.err
    assert "noise below Python\n" in printed.err
    assert "\n::error title=eqcheck%3A eqspec%3A bookkeeping/premature-stop::" in printed.err
    assert re.search(r"^::stop-commands::(\w{32})$(?s:.*)^::\1::$", printed.err, re.MULTILINE)
    assert "### eqspec: bookkeeping/premature-stop" in (work / "page.md").read_text()
    (suite,) = ElementTree.parse(work / "junit.xml").getroot()
    assert suite.get("failures") == "2"


def test_without_github_there_are_no_commands(
    work: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eqcheck.audit.loop.audit", fake_audit)
    assert main(["audit", "--no-corpus", "eqspec", "--json", "--ndjson", "events.ndjson"]) == 1
    printed = capfd.readouterr()
    assert list(json.loads(printed.out)) == ["reports"]
    assert len((work / "events.ndjson").read_text().splitlines()) == 2
    assert not [line for line in printed.err.splitlines() if line.startswith("::")]
