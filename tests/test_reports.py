"""The tables in reports/README.md and the README say what the published reports of engines do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eqcheck.campaign.casefile import read_case
from eqcheck.report.markdown import percent

ROOT = Path(__file__).parents[1]
ENGINES = ("openvino_genai", "vllm")


def _report(engine: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((ROOT / "reports" / engine / "report.json").read_text())
    return report


def summary_row(report: dict[str, Any]) -> str:
    decoder, right = report["decoder"], percent(report["equivalence"]["exact_match"])
    return (
        f"| {decoder['name']} {decoder['version']} | {report['cases']['run']} | {right} | {report['ties']} | "
        f"{report['acceptance']:.2f} | {report['cases_per_second']} | {len(report['violations'])} |"
    )


def finding_row(report: dict[str, Any], violation: dict[str, Any]) -> str:
    name, script = report["decoder"]["name"], Path(violation["script"])
    needs = ", ".join(violation["needs"]) or "nothing"
    fingerprint = f"{violation['component']}/{violation['kind']}"
    return (
        f"| {name} | {violation['details']['detail']} | {needs} | `{fingerprint}` | {violation['count']} | "
        f"[{script.stem}]({name}/{script.name}) |"
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_the_tables_are_those_of_the_reports(engine: str) -> None:
    report = _report(engine)
    inner = (ROOT / "reports" / "README.md").read_text()
    assert summary_row(report) in inner
    assert summary_row(report) in (ROOT / "README.md").read_text()
    for violation in report["violations"]:
        assert finding_row(report, violation) in inner
        assert violation["without_speculation"] in ("right", "wrong too")


@pytest.mark.parametrize("engine", ENGINES)
def test_every_finding_has_a_case_and_a_script_and_nothing_else_is_there(engine: str) -> None:
    report, folder = _report(engine), ROOT / "reports" / engine
    assert report["cases"]["run"] >= 1000
    named = {folder / "report.json", folder / "report.md"}
    for violation in report["violations"]:
        case = ROOT / violation["reproduce"].removeprefix("eqcheck replay ")
        assert read_case(case).fingerprint == violation["fingerprint"]
        named |= {case, ROOT / violation["script"]}
    assert named == {path for path in folder.rglob("*") if path.is_file()}
