"""The scoreboard is that of the reports and notes, in short lines; pages of engines tell what was not tried."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from test_docs_site import ROOT, loaded

from eqcheck.engines.construction.layouts import LAYOUTS
from eqcheck.report import load
from eqcheck.report.schema import Report

BOARD = loaded("scoreboard")
VLLM = BOARD.engines()[0]
EFFECTS = {
    "wrong tokens",
    "wrong distribution",
    "wrong values",
    "missing values",
    "tokens after the end",
    "early end",
    "not reproducible",
    "crash",
}


@pytest.fixture(scope="module")
def served() -> Report:
    return load(ROOT / "reports" / "vllm_bfloat16")


def page_of(*reports: Report, version: str = "0.3.0") -> str:
    text: str = BOARD.engine_page(VLLM, reports, BOARD.findings(), version)
    return text


def rows(page: str, *start: str) -> list[list[str]]:
    """The rows of a page's tables that begin with these cells."""
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("|")]
    return [row for row in cells if row[: len(start)] == list(start)]


def test_the_page_is_that_of_the_reports_and_notes() -> None:
    said = "the reports or the notes changed: run `python docs/scoreboard.py`"
    assert BOARD.PAGE.read_text(encoding="utf-8") == BOARD.page(BOARD.committed(), BOARD.findings()), said


def test_the_front_page_has_the_table_of_the_reports() -> None:
    text, reports, causes = BOARD.README.read_text(encoding="utf-8"), BOARD.committed(), BOARD.findings()
    assert text == BOARD.front(text, reports, causes), "run `python docs/scoreboard.py`"
    assert text != BOARD.front(text, reports, causes[1:])
    assert text != BOARD.front(text, reports[:-1], causes)


def test_every_cause_of_every_report_is_in_the_one_table() -> None:
    page = BOARD.page(BOARD.committed(), BOARD.findings())
    linked = {finding.page for finding in BOARD.findings()}
    there = {path.name for path in (ROOT / "reports" / "issues").glob("*.md")} - {"README.md"}
    assert linked == there, "a page of reports/issues/ without a line, or a line without a page"
    assert all(f"]: ../reports/issues/{name}\n" in page for name in linked)
    assert {report.decoder.origin for report in BOARD.committed()} == {engine.origin for engine in BOARD.engines()}
    assert len([row for row in rows(page) if row[0] in {engine.name for engine in BOARD.engines()}]) == len(
        BOARD.engines()
    ) + len(linked)


def test_lines_are_short_and_the_pages_of_engines_are_not_in_git() -> None:
    page = BOARD.PAGE.read_text(encoding="utf-8")
    assert max(map(len, page.splitlines())) <= 160
    assert len(page.split()) < 1500
    assert not list((ROOT / "docs").glob("engine-*.md"))


def test_notes_name_effects_and_threads_of_the_same_fault() -> None:
    for finding in BOARD.findings():
        assert {*finding.effect.split(", ")} <= EFFECTS, finding.effect
        assert len(finding.name) <= 60
        assert "law" not in finding.title.split()
    threads = " ".join(thread for note in BOARD.notes() for thread in note.get("threads", ()))
    for url in (url for finding in BOARD.findings() for url in finding.known):
        assert f"<{url}>" in threads, f"{url}: known, and no thread of the page"
    with pytest.raises(ValueError, match="should hold the URL"):
        BOARD.short("https://example.org/1")


def test_a_row_holds_what_was_tried_and_the_cause_there(served: Report) -> None:
    page = page_of(served)
    assert rows(page, "window", "bfloat16") == [
        ["window", "bfloat16", "dictated", "58", "0", ""],
        ["window", "bfloat16", "ngram", "21", "0", ""],
    ]
    ((*_, causes),) = rows(page, "full", "bfloat16", "model")
    assert causes.endswith("`options/ignored-option:option-stale-for-bonus`")
    left = [kind for kind in LAYOUTS if kind not in {one.kind for one in served.served}]
    assert f"Checkpoints that were not tried: {', '.join(left)}." in page
    assert "Dtypes that were not tried: float32, float16." in page


def test_a_report_that_tells_no_checkpoints_apart_fills_no_row(served: Report) -> None:
    page = page_of(replace(served, served=()))
    assert not rows(page, "full")
    assert f"does not say what its {served.cases.run} cases ran on" in page


def test_a_report_of_another_version_of_the_tool_is_marked(served: Report) -> None:
    own = served.versions["eqcheck"]
    assert f"{own}, not 9.9.9" in page_of(served, version="9.9.9")
    assert ", not " not in page_of(served, version=own).partition("## Audits")[2].partition("##")[0]


def test_failing_cases_are_counted_for_the_options_that_they_need(served: Report) -> None:
    page = page_of(served)
    assert rows(page, "temperature") == [["temperature", "18"]]
    assert rows(page, "dictated-drafts") == [["dictated-drafts", "38"]]
    assert rows(page, "not known") == [["not known", "100"]], "crashes that were not made smaller: no fault of defaults"
    right = replace(served, violations=())
    assert "Options that failing cases need" not in page_of(right)


@pytest.mark.parametrize("mark", ["results", "finding"])
def test_a_mark_that_is_missing_is_told(mark: str, served: Report) -> None:
    text: Any = BOARD.README.read_text(encoding="utf-8").replace(f"<!-- /{mark} -->", "")
    with pytest.raises(ValueError, match=f"/{mark}"):
        BOARD.with_finding(BOARD.front(text, [served], BOARD.findings()), served)
