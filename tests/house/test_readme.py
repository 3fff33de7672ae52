"""README's example of `watch` runs as it stands, its commands take the smallest adapter, its sample is eqcheck's."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from committed import committed
from test_docs_site import loaded

from eqcheck.contract import registry
from eqcheck.core.case.record import Case
from eqcheck.core.explanation.text import render
from eqcheck.core.store.casefile import read_case
from eqcheck.report import load
from eqcheck.report.content import percent
from eqcheck.transparent.coverage import try_case

ROOT = Path(__file__).parents[2]
BOARD = loaded("scoreboard")
README, START = (ROOT / "README.md").read_text(), (ROOT / "docs" / "start.md").read_text()
ADAPTER, CHECKER = (ROOT / "docs" / "adapter.md").read_text(), (ROOT / "docs" / "checker.md").read_text()


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """The smallest adapter, which docs/adapter.md has."""
    (block,) = re.findall(r"```python\n(# mine\.py\n.*?)```", ADAPTER, re.DOTALL)
    path = tmp_path / "mine.py"
    path.write_text(block)
    return path


def _run(adapter: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=adapter.parent, capture_output=True, text=True, check=False
    )


@pytest.mark.long
def test_audit_as_written(adapter: Path) -> None:
    assert "$ eqcheck audit mine.py\n" in README
    done = _run(adapter, "eqcheck.cli", "audit", "mine.py", "--cases", "40")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (adapter.parent / "reports" / "mine" / "report.json").exists()


@pytest.mark.long
def test_pytest_as_written(adapter: Path) -> None:
    assert "$ pytest --adapter=mine.py\n" in README
    done = _run(adapter, "pytest", "-p", "no:cacheprovider", "--adapter=mine.py", "--eqcheck-cases=5")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "11 passed" in done.stdout


@pytest.mark.parametrize("path", committed("reports/showcase/**/cases/*.json"), ids=lambda p: p.stem)
def test_the_showcase_says_what_its_cases_give(path: Path) -> None:
    """If this fails because words have changed, ``make showcase`` writes the reports again."""
    stored = read_case(path)
    assert stored.adapter is not None
    assert isinstance(stored.case, Case)
    with registry.load(stored.adapter).running() as generate:
        explanation = try_case(generate, stored.case, 60.0, opinion=True).explanation
    assert explanation is not None
    assert render(explanation) == stored.explanation
    _, _, reported = render(explanation, ()).partition("\n")  # the heading has the first line
    assert f"```\n{reported}\n```" in (path.parents[1] / "report.md").read_text()


def test_watch_as_written(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(r"```python\n(# watch_mine\.py\n.*?)```", README, re.DOTALL)
    names: dict[str, Any] = {}
    exec(block, names)
    said = capsys.readouterr().out
    (kind, was, must) = re.findall(r"It prints `(.*)`: .* has position id (\d) and must have (\d)", README)[0]
    assert said.startswith(kind)
    assert re.search(rf"\b{was}\b.*\b{must}\b", said)
    with pytest.raises(AssertionError, match=kind):
        assert names["watch"].verdict, names["watch"].explain()
    right = "attention_mask=(ids != 0).long(), position_ids=((ids != 0).cumsum(-1) - 1).clamp(0)"
    exec(block.replace("attention_mask=(ids != 0).long()", right), {})
    assert capsys.readouterr().out.startswith("equivalent")


def test_the_sample_is_the_first_violation_of_the_showcase() -> None:
    report = load(ROOT / "reports" / "showcase" / "bsp")
    assert BOARD.with_finding(README, report) == README, "run `make showcase` and `python docs/scoreboard.py`"
    other = replace(report, violations=report.violations[1:])
    assert BOARD.with_finding(README, other) != README


@pytest.mark.parametrize("name", ["bsp", "dsd", "hf_pr"])
def test_the_table_of_the_start_page_is_that_of_the_showcase(name: str) -> None:
    report = json.loads((ROOT / "reports" / "showcase" / name / "report.json").read_text())
    equivalence, counts = report["equivalence"], Counter[str]()
    for violation in report["violations"]:
        counts[violation["component"]] += violation["count"]
    cells = [name, report["verdict"], str(report["cases"]["run"])]
    cells += [percent(equivalence["exact_match"]), percent(equivalence["prefix_match"])]
    cells.append(", ".join(f"{component} {count}" for component, count in counts.most_common()))
    assert cells in [re.split(r"  +", line) for line in START.splitlines()]


def test_figures_are_those_of_the_page_on_the_checker() -> None:
    """docs/checker.md has what `eqcheck selfcheck` and `make comparison` printed."""
    caught, right = re.findall(r"(\d+ of \d+) planted .*?0 of\s([\d,]+) cases of\s19", README, re.DOTALL)[0]
    assert caught in CHECKER
    assert f"0 of {right}" in CHECKER
    faults, vllm, own = re.findall(r"Of (\d+) planted .*?caught (\d+), and eqcheck (\d+)", README, re.DOTALL)[0]
    compared = (ROOT / "reports" / "comparison" / "README.md").read_text()
    assert f"caught of {faults} |" in compared
    assert f"| vLLM: 60 % of 100 prompts | as used | {vllm} (" in compared
    assert f"| **eqcheck** | as it is | {own} (" in compared


def test_the_readme_says_what_is_not_checked() -> None:
    for word in (
        "tensor parallelism",
        "disaggregation",
        "GPU kernels",
        "multimodal",
        "by hand",
        "Nothing has been filed",
    ):
        assert word in README, word
    for word in ("in a minute", "any decoder", "any engine", "each cause comes with"):
        assert word not in README, f"{word}: more than was run"
