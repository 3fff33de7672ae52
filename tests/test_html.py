"""Pages: one file each, that fetches nothing, in which no text of a decoder becomes markup."""

from __future__ import annotations

import re

import pytest

from eqcheck.report.html import page
from eqcheck.report.html.drawing import Column, cell, columns, committed, drafts
from eqcheck.story import DrawnCall, DrawnQuery, DrawnRound, DrawnRow, DrawnSlot, Story


def a_story(text: str = "") -> Story:
    """A row whose query in column 0 carries a wrong position, sees a rejected draft, and misses a token."""
    slots = (
        *(DrawnSlot(f"position {n}{text}", 100 + n, n, True, f"call 1, column {n}{text}") for n in range(12)),
        DrawnSlot(f"rejected draft at position 12{text}", 62, 12, None, f"call 2, column 1{text}"),
        DrawnSlot(f"position 12{text}", 104, 13, False, f"call 3, column 0{text}"),
        DrawnSlot(f"never written{text}", None, None, None, ""),
    )
    wrong = DrawnQuery(0, f"position 12{text}", 104, 13, 12, "0" + "1" * 13 + "0", "1" * 12 + "010", 73, 12)
    right = DrawnQuery(1, f"draft at position 13{text}", 7, 13, 13, "1" * 12 + "010", "1" * 12 + "010", 5, 5)
    row = DrawnRow(0, 0, 2, slots, (wrong, right))
    other = DrawnRow(1, None, 0, slots[:2], (DrawnQuery(0, text, 1, 1, None, "11", "", 5, None),))
    call = DrawnCall(3, f"target{text}", False, (row, other), {"0": (104, 73)}, left_out=2)
    rounds = (
        DrawnRound(1, 2, (104, 62), 1, f"correction{text}", 9, (104, 9)),
        DrawnRound(2, 3, (7,), 1, f"bonus{text}", 73, (7, 73)),
    )
    return Story(0, rounds, call, 0, 0)


def test_a_cell_says_what_is_seen_and_what_should_be() -> None:
    query = DrawnQuery(0, "", 1, 1, 1, "1010", "1001", 1, 1)
    assert [cell(query, n) for n in range(4)] == ["seen", "unseen", "wrongly-seen", "wrongly-hidden"]
    unjudged = DrawnQuery(0, "", 1, 1, None, "10", "", 1, None)
    assert [cell(unjudged, n) for n in range(3)] == ["seen-unjudged", "unseen-unjudged", "unseen-unjudged"]


def test_neighbours_that_are_alike_are_gathered_and_wrong_ones_never() -> None:
    story = a_story()
    assert story.call is not None
    found = columns(story.call.rows[0])
    assert [(one.label, one.alike) for one in found[:5]] == [("0", 0), ("1", 0), ("2..10", 9), ("11", 0), ("12", 0)]
    assert [one.kind for one in found[-3:]] == ["draft", "token", "blank"]
    assert found[-2].wrong
    assert not any("wrongly" in state for one in found if one.alike for state in one.cells)


@pytest.mark.parametrize(
    ("holds", "kind"), [("row 1, position 3", "other"), ("pad", "pad"), ("draft model", "other"), ("?", "unknown")]
)
def test_what_a_slot_holds_has_a_class_of_a_fixed_list(holds: str, kind: str) -> None:
    assert Column("0", DrawnSlot(holds, 1, 1, True, ""), (), False).kind == kind


def test_rounds_say_which_drafts_were_accepted_and_where_tokens_lie_in_the_output() -> None:
    first, second = a_story().rounds
    assert drafts(first) == [(104, True), (62, False)]
    assert committed([first, second])[1] == (second, [(2, 7), (3, 73)])


def test_a_page_fetches_nothing_and_runs_only_its_own_script() -> None:
    text = page("a title", "page.jinja")
    assert not re.search(r"""(src|href)=|url\(|@import|https?:""", text)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    assert "default-src &#39;none&#39;" in policy
    assert "unsafe" not in policy
    assert not re.search(r"\sstyle=|\son\w+=", text)
