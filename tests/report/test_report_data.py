"""Reports as data: one shape for every lane, its schema, and reading it back without a model."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from as_data import write
from committed import committed
from jsonschema import Draft202012Validator
from test_blackbox import ENGINE
from test_findings import made, right, short

from eqcheck.audit.loop import audit
from eqcheck.contract import registry
from eqcheck.contract.decoders import RowOptions
from eqcheck.contract.errors import UsageError
from eqcheck.core.case.engine import EngineCase, EngineRow
from eqcheck.core.explanation.records import Explanation
from eqcheck.core.result.findings import Audit, Finding, Options
from eqcheck.core.result.outcome import Outcome
from eqcheck.core.result.tally import Pair
from eqcheck.engines.checkpoints.row_judge import Judge, truth
from eqcheck.engines.engine_outcome import judged
from eqcheck.report import load
from eqcheck.report.content import Content
from eqcheck.report.schema import SCHEMA, schema, to_builtins
from eqcheck.report.terminal import summary

REPORTS = committed("reports/**/report.json")
VALID = Draft202012Validator(json.loads(SCHEMA.read_text()))


def test_the_committed_schema_is_that_of_the_dataclasses() -> None:
    assert SCHEMA.read_text() == schema(), "python -m eqcheck.report.schema writes it again"


@pytest.mark.parametrize("path", REPORTS, ids=lambda path: path.parent.name)
def test_published_reports_are_of_the_one_shape(path: Path) -> None:
    written = json.loads(path.read_text())
    VALID.validate(written)
    report = load(path)
    assert {"eqcheck", "python", "torch", "transformers", "hypothesis"} <= set(report.versions)
    read = to_builtins(report)
    assert {name: value for name, value in read.items() if name in written or value} == written  # but fields since then
    for violation in report.violations:
        assert violation.count == sum(condition.count for condition in violation.conditions)
        assert violation.fingerprint.startswith(f"{violation.cause.component}/{violation.cause.kind}")


def test_a_report_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    written = write(audit(made(short), Options(cases=10)), tmp_path)
    VALID.validate(written)
    assert to_builtins(load(tmp_path)) == to_builtins(load(tmp_path / "report.json")) == written
    (violation,) = load(tmp_path).violations
    assert (violation.evidence.component, violation.evidence.kind) == ("bookkeeping", "premature-stop")
    assert violation.evidence.expected_row[:-1] == violation.evidence.observed_row
    assert violation.conditions[0].case == violation.case
    assert write(audit(made(right), Options(cases=5)), tmp_path)["violations"] == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"format": "eqcheck-report/1"},
            "expected format 'eqcheck-report/2', got 'eqcheck-report/1'; audit",
        ),
        ({"cases": 3}, r"Expected `object`, got `int` - at `\$.cases`"),
        ({"lane": "nope"}, "lane: expected one of .*, got 'nope'"),
        ({"verdict": "fine"}, r"Invalid enum value 'fine' - at `\$.verdict`"),
        ({"equivalence": {"exact_match": 2.0, "prefix_match": 1.0}}, r"<= 1.0 - at `\$.equivalence.exact_match`"),
    ],
)
def test_a_file_that_is_no_report_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    data = write(audit(made(right), Options(cases=5)), tmp_path)
    (tmp_path / "report.json").write_text(json.dumps({**data, **change}))
    with pytest.raises(UsageError, match=message) as caught:
        load(tmp_path)
    assert str(caught.value).startswith(f"report {tmp_path / 'report.json'}: ")


def test_reading_a_case_or_a_report_imports_no_model() -> None:
    case = committed("reports/showcase/*/cases/*.json")[0]
    code = (
        "import sys\nfrom pathlib import Path\n"
        "import eqcheck.report\nfrom eqcheck.core.store.casefile import read_case\n"
        f"eqcheck.report.load(Path({str(REPORTS[-1])!r}))\nread_case(Path({str(case)!r}))\n"
        "from eqcheck.report.markdown import to_markdown\n"
        "print([name for name in ('torch', 'transformers', 'hypothesis', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.long
def test_a_report_of_the_other_lane_has_the_same_shape(tmp_path: Path) -> None:
    (tmp_path / "engine.py").write_text(ENGINE.replace("if token == 4", "if token % 2"))
    engine = registry.load(str(tmp_path / "engine.py"))
    written = write(audit(engine, Options(cases=3, case_timeout=20.0)), tmp_path / "report")
    VALID.validate(written)
    assert (written["lane"], written["versions"][engine.name]) == ("engine", "7.1")
    assert to_builtins(load(tmp_path / "report")) == written
    for violation in written["violations"]:
        assert violation["cause"]["subject"] == violation["evidence"]["subject"]
        assert all(condition["case"]["format"] == "eqcheck-engine-case/1" for condition in violation["conditions"])


def test_a_report_says_which_tokens_tied(tmp_path: Path) -> None:
    plain = EngineRow((1, 2, 3), RowOptions(max_new_tokens=1))
    best, other = truth("full").scores(plain, ())[0].topk(2).indices.tolist()
    lead = float(truth("full").scores(plain, ())[0, [best, other]].diff().neg())
    biased = replace(plain, options=replace(plain.options, logit_bias=((other, lead),)))
    case = EngineCase((biased,), checkpoint="full")
    kept, tied = (judged(Judge("float64"), case, {"outputs": [[token]]}) for token in sorted((best, other)))
    told = Audit(made(right), Options(), "transparent", outcomes=[kept, tied])
    written, report = write(told, tmp_path), load(tmp_path)
    line = f"case {case.id}, row 0, new token 0: {max(best, other)} for {min(best, other)}, margin 0, tolerance 0"
    assert (report.verdict, report.cases.tie, report.ties) == ("tie", 1, 1)
    assert [tie["index"] for tie in written["near_ties"]] == [0]
    assert f"- {line}" in (tmp_path / "report.md").read_text()
    assert f"\n  {line}\n" in summary([report], ["."])
    clean = replace(told, outcomes=[kept])
    assert (write(clean, tmp_path)["near_ties"], "near-tie" in summary([load(tmp_path)], ["."])) == ([], False)


@pytest.mark.parametrize(("plain", "said"), [("wrong too", True), ("right", False), ("", False)])
def test_a_case_that_is_wrong_without_speculation_says_so_though_it_is_not_minimised(
    plain: str, said: bool, tmp_path: Path
) -> None:
    case = EngineCase((EngineRow((1, 2, 3), RowOptions(max_new_tokens=1)),), checkpoint="full")
    outcome = judged(Judge("float64"), case, {"outputs": [[int(truth("full").row(case.rows[0])[0] == 5) + 5]]})
    e = Explanation("unattributed", "unattributed", detail="nothing was found")
    finding = Finding(outcome, e, plain=plain, minimised=False)
    write(Audit(made(right), Options(), "engine", outcomes=[outcome], findings=[finding]), tmp_path)
    words = "without speculation the engine is wrong, too: this is not a fault of speculation"
    texts = ((tmp_path / "report.md").read_text(), summary([load(tmp_path)], ["."]))
    assert [words in text for text in texts] == [said, said]
    assert not any("default settings" in text for text in texts)  # nobody tried the defaults


@pytest.mark.parametrize("of_law", [True, False])
def test_a_law_is_no_case_and_no_reader_sees_no_failing_case_without_a_word(of_law: bool, tmp_path: Path) -> None:
    case = EngineCase((EngineRow((1, 2, 3), RowOptions(max_new_tokens=1)),), checkpoint="full")
    outcome = judged(Judge("float64"), case, {"outputs": [truth("full").row(case.rows[0])[:of_law]]})
    e = Explanation("sampling", "residual", facts={"evidence": "2e+08", "tokens": 2195} if of_law else {})
    told = Audit(
        made(right),
        Options(),
        "engine",
        outcomes=[outcome],
        findings=[Finding(outcome, e, minimised=False)],
    )
    written, report = write(told, tmp_path), load(tmp_path)
    assert (written["verdict"], written["laws"], written["cases"]["violation"]) == ("violation", of_law, not of_law)
    texts = summary([report], ["."]), (tmp_path / "report.md").read_text(), (tmp_path / "report.html").read_text()
    assert ["by itself" in text for text in texts] == [of_law] * 3
    assert ["all sampled tokens" in text.lower() for text in texts] == [of_law] * 3


def test_a_report_counts_pairs_of_options_at_work_in_one_case(tmp_path: Path) -> None:
    case, drawn = EngineCase((EngineRow((1,), RowOptions(1)),)), []
    for counters in ({"grammar", "logit_bias", "several_rows"}, {"grammar", "logit_bias"}, {"grammar", "late_rows"}):
        drawn.append(Outcome(case, "equivalent", coverage=frozenset(counters)))
    result = audit(made(right), Options(cases=1))
    result.outcomes, result.lane = drawn, "engine"
    assert result.tally.pairs == {Pair("logit_bias", "grammar"): 2, Pair("grammar", "late_rows"): 1}
    assert (result.tally + result.tally).pairs[Pair("grammar", "late_rows")] == 2
    written = write(result, tmp_path)
    assert written["pairs"] == {"grammar late_rows": 1, "logit_bias grammar": 2}
    table = Content(load(tmp_path)).pairs()
    heads, _, *rows = [line.split() for line in table.splitlines()]
    assert heads == ["logit_bias", "grammar"]
    assert rows == [["grammar", "2"], ["late_rows", "0", "1"]]
