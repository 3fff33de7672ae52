"""The tables in reports/README.md and docs/engines.md say what the published reports of engines do."""

from __future__ import annotations

from pathlib import Path

import pytest

from eqcheck.contract.escaping import inline
from eqcheck.explanation.statements import reason
from eqcheck.lanes.about import CHECKPOINT
from eqcheck.report import load
from eqcheck.report.content import percent
from eqcheck.report.schema import Condition, Report, ReportedViolation
from eqcheck.store.casefile import read_case

ROOT = Path(__file__).parents[1]
ENGINES = ("openvino_genai", "vllm", "vllm_dictated", "mlx_vlm", "llama_cpp")


def _report(engine: str) -> Report:
    return load(ROOT / "reports" / engine)


def summary_row(report: Report) -> str:
    decoder, right = report.decoder, percent(report.equivalence.exact_match)
    conditions = sum(len(violation.conditions) for violation in report.violations)
    return (
        f"| {decoder.name} {decoder.version} | {report.cases.run} | {right} | {report.ties} "
        f"| {report.acceptance:.2f} | "
        f"{report.cases_per_second} | {len(report.violations)} | {conditions} |"
    )


def cause_row(report: Report, violation: ReportedViolation) -> str:
    """A cause, and the conditions under which it shows, each with its script."""
    shows = [f"{_when(one)}: {one.count} {_script(report.decoder.name, one)}" for one in violation.conditions]
    what = inline(reason(violation.evidence) or violation.cause.meaning).replace("|", "/")
    return f"| {report.decoder.name} | `{violation.fingerprint}` | {what} | {'; '.join(shows)} |"


def _when(condition: Condition) -> str:
    """What it needs; where nobody looked, nothing is said of that."""
    return ", ".join(condition.needs) or ("the defaults" if condition.minimised else "not made smaller")


def _script(engine: str, condition: Condition) -> str:
    return f"([script]({engine}/{Path(condition.script).name}))" if condition.script else "(no script)"


@pytest.mark.parametrize("engine", ENGINES)
def test_the_tables_are_those_of_the_reports(engine: str) -> None:
    report = _report(engine)
    inner = (ROOT / "reports" / "README.md").read_text()
    assert summary_row(report) in inner
    assert summary_row(report) in (ROOT / "docs" / "engines.md").read_text()
    for violation in report.violations:
        assert cause_row(report, violation) in inner
        for one in violation.conditions:
            assert one.without_speculation in ("right", "wrong too") or not (one.script or one.minimised)


def test_what_was_exercised_is_that_of_the_reports() -> None:
    inner = (ROOT / "reports" / "README.md").read_text()
    reports = {engine: _report(engine) for engine in ENGINES}
    sampled = {name: what for name, what in CHECKPOINT.sampled.items() if name not in CHECKPOINT.counters}
    for counters, engines in ((CHECKPOINT.counters, ENGINES), (sampled, ENGINES[:2])):
        for name, what in counters.items():
            counts = " | ".join(str(reports[engine].coverage.get(name) or "-") for engine in engines)
            assert f"| {what} | {counts} |\n" in inner


def _with_what_it_imports(script: Path) -> set[Path]:
    beside = [name for name in ("_engine", "_sampling") if f"\nfrom {name} import " in script.read_text()]
    return {script, *(script.with_name(f"{name}.py") for name in beside)}


@pytest.mark.parametrize("engine", ENGINES)
def test_every_finding_has_a_case_and_a_script_and_nothing_else_is_there(engine: str) -> None:
    report, folder = _report(engine), ROOT / "reports" / engine
    assert report.cases.run >= 1000
    named = {folder / "report.json", folder / "report.md", *folder.glob("_adapter.py")}
    for violation in (*report.violations, *report.inconclusive):
        for condition in violation.conditions:
            case = ROOT / condition.reproduce.removeprefix("eqcheck replay ").partition(" --adapter ")[0]
            assert str(read_case(case).fingerprint).startswith(violation.fingerprint)
            named |= {case, *(_with_what_it_imports(ROOT / condition.script) if condition.script else [])}
    assert named == {path for path in folder.rglob("*") if path.is_file()}
