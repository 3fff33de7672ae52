"""The three tiers of tests: each test is in one of them, and each tier is a command."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
TESTS = """
import pytest

def test_quick(): pass

@pytest.mark.rest
def test_slower(): pass

@pytest.mark.parametrize("number", range(5))
@pytest.mark.tiers(quick=1, rest=2)
def test_many(number): pass
"""
MARKERS = "[pytest]\nmarkers =\n  rest\n  long\n  tiers\n"


@pytest.mark.parametrize(
    ("chosen", "run"),
    [
        ("not rest and not long", ["test_quick", "test_many[0]"]),
        ("rest", ["test_slower", "test_many[1]", "test_many[2]"]),
        ("long", ["test_many[3]", "test_many[4]"]),
    ],
)
@pytest.mark.tiers(quick=2, rest=1)
def test_a_test_is_in_one_tier(pytester: pytest.Pytester, chosen: str, run: list[str]) -> None:
    pytester.makepyfile(TESTS)
    pytester.makeconftest((ROOT / "tests" / "conftest.py").read_text())
    pytester.makeini(MARKERS)
    done = pytester.runpytest_subprocess("--collect-only", "-q", "-p", "no:cacheprovider", "-m", chosen)
    assert [line.partition("::")[2] for line in done.outlines if "::" in line] == run


def test_each_tier_is_a_command() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for chosen in ('"not rest and not long"', "rest", "long"):
        assert f"pytest -n 3 -m {chosen} " in makefile
