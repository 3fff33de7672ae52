"""Tests read what is committed, and no test of slow Hypothesis fails on a busy machine."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from committed import ROOT, committed
from hypothesis import HealthCheck, settings

# What an audit writes in the folder where it runs: a test that lists these folders reads what a user left there.
LISTS_REPORTS = re.compile(r"""reports["') /]*\)?\.(?:r?glob|iterdir)\(|REPORTS\.(?:r?glob|iterdir)\(""")


def test_what_an_audit_wrote_is_not_listed(tmp_path: Path) -> None:
    for name in ("reports/vllm/report.json", "reports/mine/report.json"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("{}")
    with pytest.raises(RuntimeError, match="run in a clone"):
        committed("reports/*/report.json", tmp_path)
    for command in (["init", "--quiet"], ["add", "reports/vllm"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    assert committed("reports/*/report.json", tmp_path) == [tmp_path / "reports/vllm/report.json"]
    assert committed("reports/**/*.md", tmp_path) == []


def listing(text: str) -> list[str]:
    """The places of a text that list reports by what lies there."""
    return [match.group() for match in LISTS_REPORTS.finditer(text)]


def test_no_test_lists_the_reports_of_users() -> None:
    ours = [path for path in committed("tests/**/*.py") if path.name != Path(__file__).name]
    assert {str(path.relative_to(ROOT)): places for path in ours if (places := listing(path.read_text()))} == {}


def test_a_test_that_lists_them_is_seen() -> None:
    assert listing('sorted((ROOT / "reports").glob("*/report.json"))')
    assert listing('(ROOT / "reports" / "showcase").rglob("*")') == []
    assert listing("REPORTS.glob(pattern)")


def test_hypothesis_has_no_clock() -> None:
    assert settings().deadline is None
    assert HealthCheck.too_slow in settings().suppress_health_check
