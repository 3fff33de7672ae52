"""The self-check passes as things are, and fails when the checker misses, misnames or invents; an audit then stops."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eqcheck import cli
from eqcheck.catalogue import BUILDS, FAULTS
from eqcheck.core.explanation.records import Explanation
from eqcheck.core.result.outcome import Verdict
from eqcheck.selfcheck import faults as module
from eqcheck.selfcheck.faults import SelfCheck, check_fault, check_known_good, in_processes, short
from eqcheck.selfcheck.samplers import SampledResult
from eqcheck.transparent.decoding import Run
from eqcheck.transparent.oracle import judge

FEW = FAULTS[::60]


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    short.cache_clear()
    yield
    short.cache_clear()


SEEN = SampledResult("L0", "sampling/residual", False, True, "std", None, 100, "sampling/residual", 1.0)


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FAULTS", FEW)
    monkeypatch.setattr(module, "BUILDS", {"realigned": BUILDS["realigned"]})
    monkeypatch.setattr(module, "sampled_checks", lambda: [lambda: SEEN])
    monkeypatch.setattr(module, "memory_checks", list)
    monkeypatch.setattr(module, "HEAD_BUILDS", {})
    monkeypatch.setattr(module, "HEAD_FAULTS", [])


def blind(run: Run) -> Verdict:
    return replace(judge(run), explanation=None)


def misnames(run: Run) -> Verdict:
    verdict = judge(run)
    if verdict.explanation is None:
        return verdict
    return replace(verdict, explanation=replace(verdict.explanation, component="position", kind="key-position"))


def accuses(run: Run) -> Verdict:
    verdict = judge(run)
    return replace(verdict, explanation=verdict.explanation or Explanation("mask", "pad-visible"))


def test_the_short_form_passes_and_has_every_component() -> None:
    check = short()
    assert check.failures == []
    assert {fault.component for fault in check.faults} == {"position", "mask", "cache", "bookkeeping", "draft"}
    assert all(fault.caught and fault.attributed for fault in check.faults)
    assert [good.violations for good in check.known_good] == [0, 0]


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [(blind, "not caught in 8 cases"), (misnames, "named as declared in"), (accuses, "called a violation: mask")],
)
@pytest.mark.tiers(quick=1, rest=1)
def test_a_broken_checker_is_noticed(
    broken: Callable[[Run], Verdict], complaint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "judge", broken)
    monkeypatch.setattr(module, "MOST_CASES", 8)
    assert any(complaint in failure for failure in short().failures)
    out = tmp_path / "reports"
    assert cli.main(["audit", "--adapter", "eqspec", "--cases", "5", "--out", str(out), "--no-corpus"]) == 3
    assert not list(out.rglob("report.json"))


@pytest.mark.usefixtures("_small")
@pytest.mark.long
def test_table_and_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    check, found = module.selfcheck, list[SelfCheck]()

    def once(*asked: Any) -> SelfCheck:
        """Run once, shown twice."""
        found[:] = found or [check(*asked)]
        return found[0]

    monkeypatch.setattr(module, "selfcheck", once)
    arguments = ["selfcheck", "--jobs", "1", "--cases", "12"]
    assert cli.main(arguments) == 0
    table = capsys.readouterr().out
    assert f"{len(FEW)} of {len(FEW)} faults caught" in table
    assert " mechanisms never developed on: " in table.splitlines()[0]
    assert "held back, other builds of a mechanism that was developed on: component" in table
    assert "sampling, all faults: 1 seen, 1 named as planted, 0 by another kind" in table
    assert cli.main([*arguments, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [fault["id"] for fault in data["faults"]] == [fault.id for fault in FEW]
    assert data["known_good"] == [{"name": "realigned", "cases": 12, "violations": 0, "first": ""}]
    for fault in data["faults"]:
        assert fault["id"] in table
        assert fault["caught"]
        assert fault["cases_to_catch"] >= 1


def test_a_fault_that_cannot_show_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FAULTS", [replace(FEW[0], id="T0-nothing.realigned", patches=(), draft_patches=())])
    monkeypatch.setattr(module, "MOST_CASES", 3)
    found = check_fault(0)
    assert not found.caught
    assert (found.cases_to_catch, found.seconds, found.judged) == (None, None, 0)


def test_known_good_cases_go_on_where_the_last_ended() -> None:
    assert check_known_good("uncached", 3, 2).cases == 2
    assert list(in_processes([int, str], 1)) == [0, ""]


def test_wrong_names_of_sampling_are_a_failure() -> None:
    assert not SelfCheck((), (), sampled=(SEEN,)).failures
    other = replace(SEEN, named="sampling/draft-law")
    assert SelfCheck((), (), sampled=(SEEN, other)).failures == [
        "of 2 faults of sampling 1 are named as planted, and 1 by another kind"
    ]
    assert "not seen" in SelfCheck((), (), sampled=(SEEN, replace(SEEN, named=""))).failures[0]
