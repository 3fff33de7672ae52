"""The command line: exit codes, what is printed where, what is left on disk, and that every report can be replayed."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eqcheck import cli
from eqcheck.contract import registry
from eqcheck.core.case.record import Case
from eqcheck.report import build
from eqcheck.transparent.search import CHUNK

DECODERS = """
import random

import eqcheck

@eqcheck.decoder(name="good", padding_sides=("left", "right"))
def good(target, draft, request):
    limits = {"max_new_tokens": request.max_new_tokens, "eos_token_ids": request.eos_token_ids}
    return [eqcheck.Oracle(target).truth(prompt, **limits) for prompt in request.prompts]

@eqcheck.decoder(name="short", known={"bookkeeping/past-eos": "https://example.org/1"}, version="2.1")
def short(target, draft, request):
    return [row[:-1] for row in good(target, draft, request)]

@eqcheck.decoder(name="raising")
def raising(target, draft, request):
    raise KeyError("no such layer")

@eqcheck.decoder(name="loud")
def loud(target, draft, request):
    print("decoding")
    return good(target, draft, request)

@eqcheck.decoder(name="fickle")
def fickle(target, draft, request):
    return [row[: random.randrange(len(row) + 1)] for row in good(target, draft, request)]
"""
SHORT = "bookkeeping/premature-stop"
Printed = pytest.CaptureFixture[str]


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, empty but for ``mine.py`` with some decoders."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(DECODERS)
    return tmp_path


def eqcheck(*words: str) -> int:
    return cli.main(words)


def audited(name: str, *words: str) -> int:
    return eqcheck("audit", "--adapter", f"mine.py:{name}", "--cases", "8", *words)


def stored(work: Path) -> Path:
    """The case file that an audit of ``short`` leaves."""
    assert audited("short") == 1
    return work / "reports" / "short" / "cases" / "bookkeeping-premature-stop.json"


def read(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.mark.parametrize(("name", "code"), [("good", 0), ("short", 1), ("raising", 1), ("fickle", 2)])
@pytest.mark.tiers(quick=1, rest=1)
def test_exit_code_and_verdict(work: Path, name: str, code: int) -> None:
    assert audited(name) == code
    verdict = read(work / "reports" / name / "report.json")["verdict"]
    assert verdict == ("equivalent", "violation", "inconclusive")[code]


def test_nothing_tested_exits_5(work: Path) -> None:
    assert eqcheck("audit", "--adapter", "mine.py:good", "--budget", "0.000000001") == 5


def test_internal_error_exits_3(work: Path, monkeypatch: pytest.MonkeyPatch, capsys: Printed) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("the disk is on fire")

    monkeypatch.setattr(build, "write", broken)
    assert audited("good") == 3
    printed = capsys.readouterr()
    assert printed.out == ""
    assert all(part in printed.err for part in ("the disk is on fire", "eqcheck: internal error"))


def test_report_has_what_the_contract_says(work: Path) -> None:
    audited("short", "--seed", "7", "--out", "out")
    data = read(work / "out" / "short" / "report.json")
    assert data["format"] == "eqcheck-report/2"
    assert data["decoder"] == {"name": "short", "origin": "", "version": "2.1"}
    assert (data["seed"], data["verdict"]) == (7, "violation")
    assert list(data["cases"]) == ["run", "equivalent", "tie", "violation", "inconclusive", "skipped"]
    assert data["cases"]["run"] == sum(list(data["cases"].values())[1:]) == 8
    assert 0 == data["equivalence"]["exact_match"] < data["equivalence"]["prefix_match"] < 1
    assert all(isinstance(count, int) and 0 < count <= 8 for count in data["coverage"].values())
    assert isinstance(data["elapsed_s"], float)
    assert not any("VACUOUS" in warning for warning in data["warnings"]), "noise where all cases fail"
    (violation,) = data["violations"]
    assert (violation["fingerprint"], violation["count"]) == (SHORT, 8)
    assert (violation["component"], violation["kind"]) == tuple(SHORT.split("/"))
    assert 0 <= violation["first"].pop("expected") < 128
    assert violation["first"] == {"row": 0, "token_index": 0, "round": 1, "observed": None}
    assert Case.from_dict(violation["case"]).to_dict() == violation["case"]
    markdown = (work / "out" / "short" / "report.md").read_text()
    for part in (
        violation["explanation"].partition("\n")[2],
        violation["reproduce"],
        "Not shown by a clean audit",
    ):
        assert part in markdown


def test_summary_shows_the_explanation(work: Path, capsys: Printed) -> None:
    audited("raising")
    printed = capsys.readouterr().out
    for part in ("crash/exception:KeyError", "no such layer", "8 of 8 cases", "Reproduce      eqcheck replay "):
        assert part in printed
    assert "no such layer" in (work / "reports" / "raising" / "report.md").read_text()


@pytest.mark.parametrize("name", ["short", "loud"])
@pytest.mark.tiers(quick=1, rest=1)
def test_json_prints_one_object_and_nothing_else(work: Path, name: str, capsys: Printed) -> None:
    audited(name, "--json")
    printed = capsys.readouterr().out
    assert json.loads(printed) == {"reports": [read(work / "reports" / name / "report.json")]}
    assert printed.count("\n") == 1


@pytest.mark.rest
def test_allow_known(work: Path) -> None:
    hf_pr = ("audit", "--adapter", "hf_pr", "--cases", "15")
    assert (eqcheck(*hf_pr), eqcheck(*hf_pr, "--allow-known")) == (1, 0)
    (violation,) = read(work / "reports" / "hf_pr" / "report.json")["violations"]
    assert violation["known"] == registry.load("hf_pr").known[violation["fingerprint"]]
    assert (audited("short", "--allow-known"), audited("fickle", "--allow-known")) == (1, 2)


@pytest.mark.rest
def test_several_adapters_get_a_report_each(work: Path, capsys: Printed) -> None:
    assert audited("good", "--adapter", "mine.py:short", "--families", "learned") == 1
    reports = [read(work / "reports" / name / "report.json") for name in ("good", "short")]
    assert [data["verdict"] for data in reports] == ["equivalent", "violation"]
    assert all(data["families"] == ["learned"] for data in reports)
    assert reports[1]["violations"][0]["case"]["family"] == "learned"
    assert "good: report: reports/good/report.html" in capsys.readouterr().out


@pytest.mark.long
def test_without_adapter_every_shipped_decoder_is_audited(work: Path) -> None:
    assert eqcheck("audit", "--cases", "3") == 1
    assert sorted(path.parent.name for path in work.glob("reports/*/report.json")) == sorted(registry.self_contained())


@pytest.mark.rest
def test_replay_fails_then_is_fixed(work: Path, capsys: Printed) -> None:
    case = stored(work)
    capsys.readouterr()
    assert eqcheck("replay", str(case), "--adapter", "mine.py:short") == 1
    failing = capsys.readouterr().out
    assert failing.startswith("FAILS: short\n")
    assert read(case)["explanation"] in failing
    assert eqcheck("replay", str(case), "--adapter", "mine.py:good") == 0
    assert capsys.readouterr().out == f"FIXED: good is equivalent on this case (was {SHORT})\n"
    assert eqcheck("replay", str(case), "--adapter", "mine.py:raising") == 1
    other = capsys.readouterr().out
    assert f"The stored violation was {SHORT}; it fails differently now." in other
    assert "no such layer" in other


@pytest.mark.rest
def test_replay_says_where_the_report_is_of_another_version(work: Path, capsys: Printed) -> None:
    words = ("replay", str(stored(work)), "--adapter", "mine.py:short")
    eqcheck(*words)
    assert "The report is of" not in capsys.readouterr().out
    path = work / "reports" / "short" / "report.json"
    path.write_text(path.read_text().replace('"version": "2.1"', '"version": "2.0"'))
    eqcheck(*words)
    assert "The report is of short 2.0, and this is 2.1." in capsys.readouterr().out


def test_replay_of_a_bare_case_needs_an_adapter(work: Path, capsys: Printed) -> None:
    (work / "case.json").write_text(json.dumps(Case(prompts=((1, 2), (3,))).to_dict()))
    assert eqcheck("replay", "case.json") == 4
    assert "give one with --adapter" in capsys.readouterr().err
    assert eqcheck("replay", "case.json", "--adapter", "mine.py:good") == 0
    assert eqcheck("replay", "case.json", "--adapter", "mine.py:short") == 1


@pytest.mark.rest
def test_replay_without_the_adapter_is_an_error(work: Path, capsys: Printed) -> None:
    case = stored(work)
    (work / "mine.py").unlink()
    capsys.readouterr()
    assert eqcheck("replay", str(case), "--adapter", "mine.py:short") == 4
    printed = capsys.readouterr()
    assert printed.out.startswith("ERROR")
    assert "there is no such file" in printed.err


BARE: dict[str, Any] = Case(prompts=((1, 2),)).to_dict()
VIOLATION = {"format": "eqcheck-violation/1", "adapter": "eqspec", "fingerprint": SHORT, "case": BARE}


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (None, "there is no such file"),
        ('{"format":', "cannot read it as JSON"),
        ([1], "got 'list'"),
        ({**BARE, "format": "eqcheck-case/9"}, "got 'eqcheck-case/9'"),
        ({"format": "eqcheck-violation/1", "adapter": "eqspec"}, "case"),
        ({**VIOLATION, "case": {**BARE, "prompts": [[500]]}}, "prompts[0]: expected 0..127, got 500"),
        ({**VIOLATION, "case": {**BARE, "family": "rotory"}}, "family: expected one of"),
        ({**VIOLATION, "case": {**BARE, "promts": []}}, "did you mean 'prompts'?"),
        ({**VIOLATION, "case": 5}, "expected an object"),
        ({**VIOLATION, "adapter": "eqspecc"}, "did you mean 'eqspec'?"),
        ({**VIOLATION, "adapter": 5}, "adapter"),
    ],
)
def test_malformed_case_file(work: Path, capsys: Printed, content: Any, what: str) -> None:
    path = work / "case.json"
    if content is not None:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    assert eqcheck("replay", str(path)) == 4
    error = capsys.readouterr().err
    assert error.startswith("eqcheck: ")
    assert what in error


@pytest.mark.rest
def test_reproduce_survives_spaces(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (work / "my decoders").mkdir()
    (work / "mine.py").rename(work / "my decoders" / "it's mine.py")
    out = work / "the reports" / "of today"
    words = ("--adapter", "my decoders/it's mine.py:short", "--cases", "8", "--out", str(out))
    assert eqcheck("audit", *words) == 1
    (violation,) = read(out / "short" / "report.json")["violations"]
    program, *arguments = shlex.split(violation["reproduce"])
    assert program == "eqcheck"
    monkeypatch.chdir("/")
    assert eqcheck(*arguments) == 1


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--cases", "0"), "--cases: expected an integer of at least 1, got '0'"),
        (("--budget", "soon"), "--budget: expected a time such as 90, 60s or 5m, got 'soon'"),
        (("--case-timeout", "0"), "--case-timeout: expected a time"),
        (("--case-timeout", "0.5s"), "--case-timeout: expected a time of 1s to 24h, got '0.5s'"),
        (("--families", "rotory"), "--families: unknown family 'rotory'; did you mean 'rotary'?"),
        (("--seed", "-1"), "--seed"),
        (("--jobs", "0"), "--jobs: expected an integer of at least 1, got '0'"),
        (("--out", "mine.py"), "--out mine.py: cannot write there"),
        (("--adapter", "mine.py:good"), "two adapters are named 'good'"),
        (("--adapter", "mine.py:godo"), "did you mean 'good'?"),
        (("--adapter", "hf_prr"), "unknown adapter 'hf_prr'; did you mean 'hf_pr'?"),
        (("--adapter", "absent.py"), "there is no such file"),
        (("--adapter", "broken.py"), "SyntaxError"),
        (("--adapter", "needy.py"), "No module named 'no_such_engine'"),
    ],
)
def test_usage_error_is_one_line(work: Path, capsys: Printed, words: tuple[str, ...], what: str) -> None:
    (work / "broken.py").write_text("def (")
    (work / "needy.py").write_text("import no_such_engine")
    assert eqcheck("audit", "--adapter", "mine.py:good", *words) == 4
    printed = capsys.readouterr()
    assert printed.out == ""
    last = printed.err.splitlines()[-1]
    assert last.startswith("eqcheck: ")
    assert what in last
    assert printed.err.count("eqcheck: ") == 1
    assert not list(work.rglob("report.json"))


def test_list_names_every_shipped_decoder(capsys: Printed) -> None:
    assert eqcheck("list") == 0
    printed = capsys.readouterr().out
    lines = {line.split()[0]: line for line in printed.splitlines()[2:]}
    assert set(lines) >= {"bsp", "dsd", "eqspec", "exspec", "hf_pr", "ragged", "transformers"}
    assert SHORT in lines["hf_pr"]
    assert "left, right" in lines["eqspec"]


@pytest.mark.long
def test_hang_is_bounded_by_the_case_timeout_also_when_replayed(work: Path) -> None:
    (work / "slow.py").write_text("import time\n" + DECODERS.replace('print("decoding")', "time.sleep(3)"))
    assert eqcheck("audit", "--adapter", "slow.py:loud", "--case-timeout", "1s") == 1
    (violation,) = read(work / "reports" / "loud" / "report.json")["violations"]
    assert violation["fingerprint"] == "crash/hang"
    assert eqcheck(*shlex.split(violation["reproduce"])[1:]) == 1


@pytest.mark.long
def test_interrupt_leaves_a_report(work: Path) -> None:
    command = [sys.executable, "-m", "eqcheck.cli", "audit", "--adapter", "eqspec", "--cases", "100000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        try:
            assert running.stderr is not None
            next(line for line in running.stderr if "of 100000 cases" in line)
            running.send_signal(signal.SIGINT)
            printed, errors = running.communicate(timeout=600)
        finally:
            running.kill()
    assert running.returncode == 2, errors
    data = read(work / "reports" / "eqspec" / "report.json")
    assert (data["interrupted"], data["verdict"]) == (True, "inconclusive")
    assert data["cases"]["run"] >= CHUNK
    assert "WARNING interrupted" in printed


def test_an_engine_without_its_environment_is_a_usage_error(work: Path, capsys: Printed) -> None:
    assert eqcheck("audit", "--adapter", "vllm", "--python", "/no/such/python") == 4
    assert "--python /no/such/python: expected the Python of an environment" in capsys.readouterr().err


@pytest.mark.long
def test_a_decoder_in_another_python_is_audited_and_its_case_replayed(
    work: Path, capsys: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eqcheck.engines.investigate.MINIMISE_S", 2.0)
    own = ("--python", sys.executable)
    assert audited("short", *own, "--cases", "2") == 1
    report = read(work / "reports" / "short" / "report.json")
    (violation,) = report["violations"]
    assert (report["cases"]["run"], report["cases"]["inconclusive"]) == (2, 0)
    assert violation["fingerprint"] == "bookkeeping/premature-stop"
    assert violation["case"]["format"] == "eqcheck-engine-case/1"
    (case,) = (work / "reports" / "short" / "cases").glob("*.json")
    capsys.readouterr()
    assert eqcheck("replay", str(case), "--adapter", "mine.py:short", *own) == 1
    assert capsys.readouterr().out.startswith("FAILS: short")
    assert eqcheck("replay", str(case), "--adapter", "mine.py:good", *own) == 0
