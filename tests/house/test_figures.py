"""CONTRIBUTING.md names each figure with its goal, and a figure that misses its goal says so."""

from __future__ import annotations

import re
from dataclasses import replace

import figures
import pytest
from committed import ROOT
from figures import FIGURES, Figure, main
from speed.first import first

PAGE = (ROOT / "CONTRIBUTING.md").read_text()


def test_the_page_has_every_figure_with_its_goal() -> None:
    rows = re.findall(r"^\| .*FIGURES='?([\w -]+)'?` \|[^|]*\| ?([^|]*?) ?\|$", PAGE, re.MULTILINE)
    goals = {name: goal for names, goal in rows for name in names.split()}
    assert set(goals) == set(FIGURES)
    for name, figure in FIGURES.items():
        said = re.match(r"[\d.,]+\d|\d|", goals[name])
        assert said is not None
        assert said.group().replace(",", "") == ("" if figure.most is None else f"{figure.most}"), name


def test_a_figure_that_misses_its_goal_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    long = Figure("length of README.md", lambda: 131, "lines", 130)
    monkeypatch.setattr(figures, "FIGURES", {"readme": long})
    assert main([]) == 1
    assert "131 lines; goal: at most 130 - MISSED" in capsys.readouterr().out
    monkeypatch.setattr(figures, "FIGURES", {"readme": replace(long, measured=lambda: 130)})
    assert main(["readme"]) == 0
    assert "130 lines; goal: at most 130\n" in capsys.readouterr().out
    assert main(["readmy"]) == 4


def test_an_audit_without_a_violation_has_no_first_one() -> None:
    with pytest.raises(RuntimeError, match=r"ended without a violation:\n.*nosuch"):
        first(["nosuch"])
