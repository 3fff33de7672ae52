"""The README's adapter works as written, with the README's commands; its sample is what eqcheck says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from committed import committed

from eqcheck.case.record import Case
from eqcheck.contract import registry
from eqcheck.explanation.text import render
from eqcheck.lanes.transparent.judge import try_case
from eqcheck.report.content import percent
from eqcheck.store.casefile import read_case

ROOT = Path(__file__).parent.parent
README, START = (ROOT / "README.md").read_text(), (ROOT / "docs" / "start.md").read_text()


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    blocks = re.findall(r"```python\n(import eqcheck\nimport torch\n.*?)```", README, re.DOTALL)
    assert len(blocks) == 1
    path = tmp_path / "mine.py"
    path.write_text(blocks[0])
    return path


def _run(adapter: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=adapter.parent, capture_output=True, text=True, check=False
    )


@pytest.mark.long
def test_audit_as_written(adapter: Path) -> None:
    assert "$ eqcheck audit mine.py " in README
    done = _run(adapter, "eqcheck.cli", "audit", "mine.py", "--cases", "40")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (adapter.parent / "reports" / "mine" / "report.json").exists()


@pytest.mark.long
def test_pytest_as_written(adapter: Path) -> None:
    assert "$ pytest --adapter=mine.py\n" in README
    done = _run(adapter, "pytest", "-p", "no:cacheprovider", "--adapter=mine.py", "--eqcheck-cases=5")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "10 passed" in done.stdout


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
    assert f"```\n{stored.explanation}\n```" in (path.parents[1] / "report.md").read_text()


def test_the_sample_is_the_first_violation_of_the_showcase() -> None:
    report = json.loads((ROOT / "reports" / "showcase" / "bsp" / "report.json").read_text())
    first = report["violations"][0]
    command = first["reproduce"].replace("showcase/", "")
    assert f"```\n{first['explanation']}\n  Reproduce: {command}\n```" in README
    for name in ("bsp", "dsd", "hf_pr"):
        report = json.loads((ROOT / "reports" / "showcase" / name / "report.json").read_text())
        equivalence, counts = report["equivalence"], Counter[str]()
        for violation in report["violations"]:
            counts[violation["component"]] += violation["count"]
        cells = [name, report["verdict"], str(report["cases"]["run"])]
        cells += [percent(equivalence["exact_match"]), percent(equivalence["prefix_match"])]
        cells.append(", ".join(f"{component} {count}" for component, count in counts.most_common()))
        assert cells in [re.split(r"  +", line) for line in START.splitlines()]
