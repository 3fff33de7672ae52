"""The scoreboard is that of the committed reports, and what was not tried is not told as right."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_docs_site import ROOT, loaded

from eqcheck.construction.layouts import LAYOUTS
from eqcheck.report import load
from eqcheck.report.schema import Report

BOARD = loaded("scoreboard")


@pytest.fixture(scope="module")
def served() -> Report:
    return load(ROOT / "reports" / "vllm_bfloat16")


def cells(page: str, row: str) -> list[str]:
    (line,) = (line for line in page.splitlines() if line.startswith(f"| {row} "))
    return [cell.strip() for cell in line.split("|")[2:-1]]


def test_the_page_is_that_of_the_reports() -> None:
    said = "the reports or the version changed: run `python docs/scoreboard.py`"
    assert BOARD.PAGE.read_text(encoding="utf-8") == BOARD.page(BOARD.committed()), said


def test_the_front_page_has_the_table_of_the_reports() -> None:
    text = BOARD.README.read_text(encoding="utf-8")
    assert text == BOARD.front(text, BOARD.shown()), "run `python docs/scoreboard.py`"
    assert text != BOARD.front(text, BOARD.shown()[1:])


def test_a_cell_holds_what_was_tried_and_the_cause_on_that_checkpoint(served: Report) -> None:
    page = BOARD.page([served])
    assert cells(page, "window") == ["not tried", "21 cases, none wrong", "58 cases, none wrong"]
    name = "options/ignored-option:option-stale-for-bonus"
    issue = "../reports/issues/vllm-options-ignored-option-option-stale-for-bonus.md"
    assert cells(page, "full")[0].endswith(f"[`{name}`]({issue})")
    assert (BOARD.PAGE.parent / issue).is_file()
    assert all(cells(page, kind) == ["not tried"] * 3 for kind in {*LAYOUTS} - {one.kind for one in served.served})


def test_a_report_that_tells_no_cells_apart_fills_none(served: Report) -> None:
    page = BOARD.page([replace(served, served=())])
    assert "none wrong" not in page
    assert f"{served.cases.run} cases; the report does not say" in page


def test_a_report_of_another_version_of_the_tool_is_marked(served: Report) -> None:
    own = served.versions["eqcheck"]
    assert f"{own}, not 9.9.9" in BOARD.page([served], "9.9.9")
    assert ", not " not in BOARD.page([served], own)


def test_wrong_cases_stand_by_the_options_that_they_need(served: Report) -> None:
    page = BOARD.page([served]).rpartition("wrong cases\n")[2]
    assert cells(page, "temperature") == ["18"]
    assert cells(page, "dictated-drafts") == ["38"]
    assert cells(page, "not told") == ["100"], "crashes that were not made smaller are no fault of the defaults"
    right = load(ROOT / "reports" / "mlx_vlm")
    assert "mlx_vlm" not in BOARD.page([served, right]).rpartition("wrong cases\n")[2], "no column without a wrong case"
