"""What is drawn of a decode is true: of right decoders all is right, and of a planted fault the fault is to be seen."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch

import eqcheck
from eqcheck.catalogue import FAULTS, Fault, known_good
from eqcheck.contract.decoders import FAMILIES, Decoder, Request
from eqcheck.core.case.record import Case
from eqcheck.core.explanation.records import Explanation
from eqcheck.core.result.outcome import DrawnCall, DrawnQuery, DrawnRound, DrawnRow, Story
from eqcheck.report.calls import view
from eqcheck.report.page import trace_page
from eqcheck.transparent.attribution.story import decode_of, drawn, story_of
from eqcheck.transparent.decoding import Run, Schedule, run, truth_of
from eqcheck.transparent.oracle import judge
from eqcheck.transparent.search import Source

CASE = Case(
    prompts=((5, 7, 9), (11,)), max_new_tokens=5, num_draft_tokens=2, accepts=((2, 0), (0, 1)), eos_token_ids=(1,)
)
# No drafts; rows wait for the one that accepts least; trees (tests/transparent/test_trees.py).
ROUNDS_OF_ITS_OWN = {"one_row", "rolled_back", "forked", "forked_rows"}
FOLLOWED = [fault for fault in FAULTS if fault.component in ("position", "mask", "cache")]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def wrong(row: DrawnRow, query: DrawnQuery) -> bool:
    """Whether a query is drawn as one that did not see its row: nothing is said where it is not known."""
    slots = zip(query.should, row.slots, strict=False)
    misplaced = any(due == "1" and slot.position_right is not True for due, slot in slots)
    return bool(query.should) and (query.sees != query.should or query.position != query.expected_position or misplaced)


def queries(calls: tuple[DrawnCall, ...]) -> Iterator[tuple[DrawnCall, DrawnRow, DrawnQuery]]:
    return ((call, row, query) for call in calls for row in call.rows for query in row.queries)


def stories(done: Run) -> list[Story]:
    """The rounds of every row."""
    found = (story_of(done, Explanation("bookkeeping", "lost-token", row, 0)) for row in range(len(done.case.prompts)))
    return [story for story in found if story]


@pytest.mark.parametrize("decoder", known_good().values(), ids=lambda decoder: decoder.name)
@pytest.mark.tiers(quick=3, rest=20)
def test_of_right_decoders_all_is_right(decoder: Decoder) -> None:
    source = Source(11, decoder.families, decoder.padding_sides, decoder.cache_states)
    known = told = 0
    for case in source.chunk(0)[:6]:
        done = run(decoder, case)
        for call, row, query in queries(drawn(done)):
            assert not wrong(row, query), (case.id, call.number, query)
            assert query.expected in (None, query.answer)
            known += bool(query.should) and call.model == "target"
        for story in stories(done):
            told += bool(story.rounds)
            assert not story.rounds or put_together(story.rounds) == done.truth.rows[story.row], case.id
            if decoder.name not in ROUNDS_OF_ITS_OWN:
                as_scripted(done, story)
    assert known > 75
    assert told > 5


def put_together(rounds: tuple[DrawnRound, ...]) -> tuple[int, ...]:
    return tuple(token for one in rounds for token in one.committed)


def as_scripted(done: Run, story: Story) -> None:
    """Each round of a row has the drafts accepted that the script says, and commits one more."""
    right = [rank == 0 for rank in Schedule(done.case, done.truth).ranks[story.row]]
    had, case = 0, done.case
    for one in story.rounds:
        block = [*right[had : had + len(one.drafted)], False]
        left = len(done.truth.rows[story.row]) - had
        if one.committed:  # a state that cannot be cropped is fed again, in calls of their own
            assert one.accepted == min(block.index(False), left), (case.id, story.row, one)
            assert one.agreed == block.index(False), (case.id, story.row, one)
            assert len(one.committed) == min(one.accepted + 1, left)
            own = one.committed[one.accepted :]
            assert one.last == ("" if not (own and one.drafted) else "correction" if False in block[:-1] else "bonus")
            assert one.last_id == (own[0] if one.last else None)
        had += len(one.committed)


@lru_cache(maxsize=16)
def chunk(cache_states: tuple[str, ...]) -> list[Case]:
    return Source(3, FAMILIES, ("left",), cache_states).chunk(0)


@pytest.mark.parametrize(("name", "ended_by"), [("holes", "EOS"), ("bsp", "limit")])
def test_a_draft_that_was_accepted_and_cut_away_is_not_called_rejected(name: str, ended_by: str) -> None:
    """The row ends behind the second of four draft tokens in a block, and the target agrees with all of them."""
    case = Case(prompts=((5, 7, 9), (11,)), max_new_tokens=3, num_draft_tokens=4, accepts=((4,), (1, 4)))
    if ended_by == "EOS":
        case = replace(case, max_new_tokens=6, eos_token_ids=(truth_of(case).rows[0][1],))
    done = run(known_good()["holes"] if name == "holes" else eqcheck.load(name), case)
    decode = decode_of(done)
    last = decode.rounds[0][-1]
    assert done.trace.calls[last.call - 1].predictions[0, -5:-1].tolist() == list(last.drafted)
    fates = [last.fate(number) for number in range(4)]
    assert fates == ["accepted", "accepted", "cut", "cut"]
    assert last.last == ""
    assert "2, 2 cut" in view(decode)
    page = trace_page(name, "c0ffee", "FIXED", decode)
    shown = page.split("Row 0, round by round")[1].split("</table>")[0]
    assert re.findall(r'class="token (accepted|cut|rejected)"', shown)[-4:] == fates
    call = next(call for call in decode.calls if call.number == last.call)
    assert [query.stands_for for query in call.rows[0].queries[-1:]] == (
        ["position 6"] if ended_by == "EOS" else ["draft after the row's end"]
    )
    assert "over-accepted" not in shown
    rejected = Counter(one.fate(number) for one in decode.rounds[1] for number in range(len(one.drafted)))["rejected"]
    assert rejected == (3 if ended_by == "EOS" else 0), "of a row that goes on, drafts are rejected as before"


def test_a_draft_that_is_emitted_though_the_target_answered_another_id_is_told_from_accepted_ones() -> None:
    done = run(eqcheck.load("dsd"), Case(prompts=((10,),), max_new_tokens=1, num_draft_tokens=1))
    decode = decode_of(done, judge(done).explanation)
    (one,) = decode.rounds[0]
    assert (one.accepted, one.agreed, one.fate(0)) == (1, 0, "over-accepted")
    assert "1, 1 over-accepted" in view(decode)
    assert (
        'class="token over-accepted" title="over-accepted: returned though the target predicted another token'
        in trace_page("dsd", "", "FAILS", decode)
    )


def test_where_something_else_is_returned_than_was_fed_no_right_token_is_marked_and_no_draft_is_judged() -> None:
    def loses_a_token(target: Any, draft: Any, request: Request) -> list[list[int]]:
        return [row[:1] + row[2:] for row in known_good()["holes"](target, draft, request)]

    done = run(loses_a_token, Case(prompts=((5, 7, 9),), max_new_tokens=6, num_draft_tokens=2, accepts=((0, 1),)))
    explanation = judge(done).explanation
    decode = decode_of(done, explanation)
    (*before, last) = decode.rounds[0]
    assert put_together(decode.rounds[0]) == done.truth.rows[0][: len(put_together(decode.rounds[0]))]
    assert (decode.first_wrong(0), decode.wrongly_committed(0)) == (1, None)
    assert all(one.known for one in before)
    assert (last.known, last.fates) == (False, "not known")
    rounds = view(decode).split("row 0, round by round")[1].split("returned for row 0")
    assert "[" not in rounds[0], "what was committed is right"
    assert "[" in rounds[1], "what was returned is not"
    page = trace_page("mine", "c0ffee", "FAILS", decode)
    shown = page.split("Row 0, round by round")[1].split("</table>")[0]
    assert "first-wrong" not in shown
    assert "not known: the row returned is not the row fed" in shown
    wrong = decode_of(run(eqcheck.load("bsp"), CASE))
    rounds_of_rows = trace_page("bsp", "", "FAILS", wrong).split('aria-label="Rounds of the row"', 1)[1]
    assert "first-wrong" in rounds_of_rows.split("</table>")[0], "of what was committed, it is"


def failing(fault: Fault, most: int) -> Iterator[tuple[Run, Explanation]]:
    decoder = fault.decoder()
    for case in chunk(fault.cache_states):
        if most and case.family in fault.families and case.cache_state in fault.cache_states:
            done = run(decoder, case)
            explanation = judge(done).explanation
            if explanation and explanation.query:
                most -= 1
                yield done, explanation


def named(story: Story) -> tuple[DrawnRow, DrawnQuery]:
    assert story.call is not None
    (row,) = [row for row in story.call.rows if row.batch_row == story.at]
    (query,) = [query for query in row.queries if query.column == story.column]
    return row, query


@pytest.mark.parametrize("fault", FOLLOWED[::7], ids=lambda fault: fault.id)
@pytest.mark.tiers(quick=7, rest=31)
def test_of_a_fault_the_fault_is_to_be_seen_and_nothing_before_it(fault: Fault) -> None:
    for done, explanation in failing(fault, 2):
        story = story_of(done, explanation)
        assert story is not None
        shows(story, explanation)
        assert story.call is not None
        for call, row, query in queries(drawn(done, explanation)):
            if call.number < story.call.number and call.model == "target" and row.row == story.row:
                assert not wrong(row, query), (done.case.id, call.number, query)


def shows(story: Story, explanation: Explanation) -> None:
    """The query of an explanation is drawn with every deviation that it has there, and as the text draws it."""
    row, query = named(story)
    for deviation in explanation.deviations:
        if deviation.kind == "query-position":
            assert (query.position, query.expected_position) == (deviation.observed, deviation.expected)
            assert query.position != query.expected_position
        elif deviation.kind == "key-position":
            assert row.slots[deviation.slot or 0].position_right is False
        elif deviation.kind == "missing-entry":
            held = [slot.holds for slot, due in zip(row.slots, query.should, strict=True) if due == "1"]
            assert f"position {deviation.token_position}" not in held
        elif deviation.kind == "torn-entry":
            held_torn = row.slots[deviation.slot or 0].holds
            assert ";" in held_torn or held_torn.startswith("torn") or held_torn == "what no model wrote"
        elif deviation.kind not in ("poisoned-entry", "misaligned"):
            assert query.sees[deviation.slot or 0] != query.should[deviation.slot or 0], deviation
    for slot in explanation.slots:
        if slot.index is not None:
            assert (query.sees[slot.index], query.should[slot.index]) == (
                "01"[slot.visible],
                "01"[slot.expected_visible],
            )


def test_a_false_picture_is_seen() -> None:
    done = run(eqcheck.load("bsp"), CASE)
    explanation = judge(done).explanation
    assert explanation is not None
    story = story_of(done, explanation)
    assert story is not None
    shows(story, explanation)
    assert wrong(*named(story))
    row, query = named(story)
    mended = replace(query, position=query.expected_position or 0)
    rows = tuple(replace(one, queries=(mended,)) if one == row else one for one in story.call.rows)  # type: ignore[union-attr]
    with pytest.raises(AssertionError):
        shows(replace(story, call=replace(story.call, rows=rows)), explanation)  # type: ignore[type-var]


def test_what_is_not_known_is_not_drawn() -> None:
    done = run(eqcheck.load("bsp"), CASE)
    kinds = Counter(
        (query.stands_for.split(" at ")[0], bool(query.should))
        for _, _, query in queries(drawn(done))
        if query.stands_for
    )
    assert {what: known for what, known in kinds if not what.startswith("position")} == {
        "pad": False,
        "rejected draft": False,
        "draft after the row's end": False,
    }
    twins = Case(prompts=((5, 7), (5, 7)), max_new_tokens=4, num_draft_tokens=2)
    same = run(known_good()["one_row"], twins)
    assert [put_together(story.rounds) in ((), row) for story, row in zip(stories(same), same.truth.rows, strict=True)]


def test_a_story_is_small() -> None:
    prompts = tuple(tuple(range(row + 1, row + 101)) for row in range(12))
    done = run(eqcheck.load("eqspec"), Case(prompts=prompts, max_new_tokens=4, num_draft_tokens=8))
    story = story_of(done, Explanation("bookkeeping", "lost-token", 5, 0, round=1))
    assert story is not None
    assert story.call is not None
    assert len(story.call.rows) + story.call.left_out == 12
    assert len(story.call.rows) < 8
    assert all(len(row.queries) < 18 for row in story.call.rows)
    assert named(story)[1].column == 99 + 0
