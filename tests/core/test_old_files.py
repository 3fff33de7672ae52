"""Files that users have from bcb459f are read as before: adapters, cases, reports, a corpus, ``known.toml``.

`tests/old/` was made by that version: each decoder of `mine.py` audited (``--cases 60 --seed 3``; as engines with
``--python``), and nothing in it changed since but the folder in which it lay.
"""

from __future__ import annotations

import json
import shutil
from datetime import date
from pathlib import Path

import pytest

from eqcheck import report
from eqcheck.cli import main
from eqcheck.cli.replaying import replay
from eqcheck.contract import registry
from eqcheck.contract.known_violations import load

OLD = Path(__file__).parents[1] / "old"
CASES = {path.relative_to(OLD).as_posix(): path for path in sorted(OLD.glob("*/**/*.json")) if path.stem != "report"}
REPORTS = {path.parent.relative_to(OLD).as_posix(): path for path in sorted(OLD.rglob("report.json"))}
ALONE = "corpus/1/remembers/bookkeeping-premature-stop.json"  # it failed behind others, and without them it is right
ADAPTERS = {"short": "short", "warm": "warm", "remembers": "Remembers"}


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the files, in the working folder."""
    shutil.copytree(OLD, tmp_path / "old")
    monkeypatch.chdir(tmp_path / "old")
    return tmp_path / "old"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.json")}


def test_an_adapter_claims_the_same() -> None:
    right = registry.load(str(OLD / "mine.py:right"))
    assert (right.name, right.padding_sides, right.requires) == ("all-claims", ("left", "right"), ("no-eos",))
    assert right.known == {"bookkeeping/premature-stop": "https://example.org/1"}
    assert right.cache_states == ("empty", "pads-huge")


@pytest.mark.parametrize("name", CASES)
@pytest.mark.tiers(quick=4, rest=1)
def test_a_case_fails_as_it_did(old: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(old)
    spec = next(f"mine.py:{attribute}" for part, attribute in ADAPTERS.items() if part in Path(name).parts)
    code, said = replay(old / name, spec), capsys.readouterr().out
    if name == ALONE:
        assert (code, said.split(":")[0]) == (0, "FIXED")
    else:
        assert (code, said.split(":")[0]) == (1, "FAILS"), said
    assert "fails differently now" not in said
    assert contents(old) == before


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_is_shown_and_compared(old: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert report.load(old / name).verdict == ("equivalent" if name.endswith("all-claims") else "violation")
    before = contents(old)
    assert main(["report", name]) == 0
    assert main(["report", name, name]) == 0
    assert "Traceback" not in capsys.readouterr().out
    assert contents(old) == before


@pytest.mark.rest
def test_the_lane_of_engines_had_another_name() -> None:
    written = {name: json.loads(path.read_text())["lane"] for name, path in REPORTS.items()}
    assert "checkpoint" in written.values()
    assert {report.load(REPORTS[name]).lane for name, lane in written.items() if lane == "checkpoint"} == {"engine"}


def test_a_corpus_is_run_first_and_its_cases_stay(old: Path) -> None:
    before = contents(old / "corpus")
    code = main(["audit", "mine.py:short", "--cases", "1", "--corpus", "corpus", "--out", "out", "--json"])
    assert code == 1
    assert before.items() <= contents(old / "corpus").items()
    assert report.load(old / "out" / "short").corpus.replayed == 1


def test_known_violations_are_known() -> None:
    (entry,) = load(OLD / "known.toml")
    assert (entry.fingerprint, entry.until) == ("bookkeeping/premature-stop", date(2999, 12, 31))
