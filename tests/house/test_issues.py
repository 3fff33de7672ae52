"""The pages of reports/issues/ are those of the committed reports and notes, and a cause has one for its engine."""

from __future__ import annotations

from typing import Any

import pytest
from committed import committed
from test_docs_site import ROOT, loaded

BOARD, ISSUES = loaded("scoreboard"), loaded("issues")


def test_the_pages_are_those_of_the_reports_and_notes() -> None:
    made = ISSUES.issues(BOARD.committed(), ISSUES.notes())
    there = {path.name: path.read_text(encoding="utf-8") for path in committed("reports/issues/*")}
    assert made == there, "the reports or the notes changed: run `python docs/issues.py`"


def test_a_cause_in_several_reports_is_one_issue_and_unattributed_cases_are_a_number() -> None:
    made = ISSUES.issues(BOARD.committed(), [])
    (page,) = (text for name, text in made.items() if name.startswith("vllm-sampling-stray-law"))
    assert all(f"cases of `reports/{name}`" in page for name in ("vllm", "vllm_bfloat16"))
    assert not [name for name in made if "unattributed" in name]
    assert "failing cases of these reports have no cause" in made["README.md"]


@pytest.mark.parametrize("wrong", [{"fingerprint": "mask/window"}, {"origin": "https://example.org"}])
def test_a_note_without_a_report_is_seen(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no committed report has"):
        ISSUES.issues(BOARD.committed(), [{**ISSUES.notes()[0], **wrong}])


def test_what_was_read_is_marked_as_read_and_links_are_whole() -> None:
    for note in ISSUES.notes():
        assert "script" in note or "fingerprint" in note
        assert all(thread.startswith("<https://github.com/") for thread in note.get("threads", []))
    for page in committed("reports/issues/*.md"):
        text = page.read_text(encoding="utf-8")
        assert text.count("## Where") == text.count("## Where, by reading and not by running")
        assert str(ROOT) not in text
        heads = [line for part in text.split("```")[::2] for line in part.splitlines() if line.startswith("# ")]
        assert len(heads) == 1, page.name
        assert page.name == "README.md" or "## Expected" in text, page.name
