"""Explanations as text: every kind has a meaning, and every number says what it counts."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import pytest
import torch

from eqcheck import Oracle
from eqcheck.catalogue import FAULTS, Fault, known_good
from eqcheck.contract.decoders import FAMILIES, Request, decoder
from eqcheck.contract.errors import UsageError
from eqcheck.contract.kinds import FINGERPRINTS, KINDS
from eqcheck.core.case.record import Case
from eqcheck.core.explanation.records import Deviation, Explanation, Given, Query, Search, Slot
from eqcheck.core.explanation.statements import say, searched
from eqcheck.core.explanation.text import parts, render, slot_lines
from eqcheck.transparent.decoding import run
from eqcheck.transparent.hashlm.model import HashConfig, HashLM
from eqcheck.transparent.oracle import judge
from eqcheck.transparent.search import Source

NO_ROW = ("draft", "crash", "options")  # told in one line, without a row
ONE_EACH = {fault.fingerprint: fault for fault in reversed(FAULTS) if fault.component not in NO_ROW}
Rows = list[list[int]]


def flat(text: str) -> str:
    """The text without its line breaks."""
    return " ".join(text.split())


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def test_every_kind_has_a_meaning_and_can_be_declared() -> None:
    assert [kind.fingerprint for kind in KINDS.values() if not kind.meaning] == []
    for kind in KINDS.values():
        decoder(name="mine", known={kind.fingerprint: "https://example.org/1"})(lambda *_: [])


def test_a_kind_that_moved_is_named_in_the_error() -> None:
    message = "no violation 'option/ignored-option'; did you mean 'options/ignored-option'?"
    with pytest.raises(UsageError, match=re.escape(message)):
        decoder(name="mine", known={"option/ignored-option": "https://example.org/1"})(lambda *_: [])


def test_copies_with_other_ids_are_shown_where_one_confirms_the_cause() -> None:
    one = Explanation("bookkeeping", "over-accept", 0, 1, expected=4, observed=5, permuted=(2, 1, 4))
    assert (
        "2 of 7 copies of the case with other tokens fail in the same way; 1 fails in another way; 4 are correct."
        in flat(render(one))
    )
    assert "copies" not in render(replace(one, permuted=(0, 0, 4)))
    assert "copies" not in render(replace(one, permuted=(0, 0, 0)))


def test_names_of_kinds_are_unique_and_clauses_can_be_filled_in() -> None:
    assert len(KINDS) == len(FINGERPRINTS) == len(set(FINGERPRINTS))
    for kind in KINDS.values():
        assert "{" not in say(Deviation(kind.component, kind.name, 3, 0, 1, slot=4, token_position=5))


def test_cache_outranks_mask_and_mask_outranks_position() -> None:
    def ranks(component: str) -> list[int]:
        return [k.rank for k in KINDS.values() if k.component == component and not k.inherited]

    order = [ranks(component) for component in ("cache", "mask", "position", "bookkeeping", "unattributed")]
    assert all(max(one) < min(other) for one, other in pairwise(order))
    assert {kind.name for kind in KINDS.values() if kind.inherited} == {"poisoned-entry", "key-position"}


@lru_cache
def explained(fault: Fault) -> Explanation:
    """What is read in the first case that shows the fault."""
    mine = fault.decoder()
    for index in range(6):
        for case in Source(3, FAMILIES, ("left",), fault.cache_states).chunk(index):
            if case.family in fault.families and case.cache_state in fault.cache_states:
                explanation = judge(run(mine, case)).explanation
                if explanation and explanation.fingerprint.partition(":")[0] == fault.fingerprint:
                    return explanation
    raise AssertionError("no case shows it")


@pytest.mark.rest
def test_every_number_says_what_it_counts() -> None:
    """In the sentences of each kind: a token is given by its id, or as a numbered token of a row or of the output."""
    for fault in ONE_EACH.values():
        explanation = explained(fault)
        text = flat(render(explanation))
        prose = text.partition(" Cause ")[2].partition(" Confirmed ")[0].partition(" slot holds ")[0]
        assert prose, fault.fingerprint
        if (q := explanation.query) is not None:
            assert f"feeds token {q.token}" in prose, text
            assert re.search(rf"position {q.logical_position} of (the )?row\b", prose), prose
        assert not re.search(r"(?<!position )(?<!pad )\bids? \d", prose), prose
        if explanation.token_index is not None:
            assert f"^ new token {explanation.token_index}" in text, text
            assert "request" in text, text


def given(**more: Any) -> Explanation:
    values: dict[str, Any] = {"row": 1, "token_index": 1, "expected": 9, "observed": 7, "round": 2}
    values |= {"expected_row": (4, 9), "observed_row": (4, 7), "given": Given((3, 1, 4), 7, (9, 11), 2)}
    return Explanation("bookkeeping", "over-accept", **{**values, **more})


def test_tokens_that_mean_something_are_marked() -> None:
    text = render(given(drafted=(7,), basis="the query that had to predict it saw exactly its row"))
    assert text.splitlines() == [
        "bookkeeping/over-accept: a rejected draft token is returned",
        "  Case           K = 2",
        "    request 1   prompt    3 1 4",
        "                options   EOS 9 11, pad id 7",
        "                expected  4 9",
        "                got       4 7",
        "                            ^ new token 1 (expected an EOS, got the pad id, got a draft token)",
        "  Cause",
        "    The query that had to predict it saw exactly its row.",
    ]
    unknown = render(given(given=Given((3,))))
    assert "prompt    3\n" in unknown
    assert "EOS" not in unknown
    early = render(given(observed=None, observed_row=(4,))).splitlines()
    assert early[4:7] == [
        "                expected  4   9",
        "                got       4 end",
        "                            ^^^ new token 1 (expected an EOS)",
    ]
    late = render(given(expected=None, expected_row=(4,))).splitlines()
    assert late[4:6] == ["                expected  4 end", "                got       4   7"]


def test_long_rows_are_shortened_in_the_middle() -> None:
    long = tuple(range(100, 200))
    text = render(given(given=Given(long), expected_row=long, observed_row=long[:60], token_index=60, observed=None))
    assert "prompt    100 101 102 ... 197 198 199 (100 tokens)" in text
    expected, got, mark = (line for line in text.splitlines() if re.match(r" +(expected|got|\^)", line))
    assert expected.endswith("(100 tokens)")
    assert got.endswith("(60 tokens)")
    assert max(map(len, text.splitlines())) <= 100
    at = mark.index("^")
    assert (expected[at : at + 3], got[at : at + 3]) == ("160", "end"), "what is compared stands above one another"


def test_a_right_token_of_a_wrong_context_is_not_called_wrong() -> None:
    query = Query(call=3, call_row=1, column=0, token=4, logical_position=9, position=9, predicted=9, sees_from=2)
    seen = (Deviation("mask", "window", 3, 0, 1, slot=0, token_position=1),)
    text = render(given(observed=9, query=query, deviations=seen))
    assert "New token 1 is correct all the same." in text
    assert "It is at position 9 of the row and must attend to positions 2..9." in flat(text)


@pytest.mark.parametrize(
    ("kind", "more", "clause"),
    [
        (
            "stale-entry",
            {"source": "draft", "of_row": 1, "of_position": 2},
            "slot 4 holds a rejected draft token (6) and is attended",
        ),
        (
            "stale-entry",
            {"source": "other-draft", "of_row": 2, "of_position": 2},
            "a rejected draft token (6) of row 2 and",
        ),
        (
            "wrong-row",
            {"source": "other-token", "of_row": 1, "of_position": 3},
            "slot 4 holds position 3 of row 1 and is attended",
        ),
        ("wrong-row", {"source": "draft model"}, "slot 4 holds an entry of the draft model and is attended"),
        ("pad-visible", {"source": "pad"}, "slot 4 holds padding and is attended"),
        ("pad-visible", {"source": "blank"}, "slot 4 was never written and is attended"),
        (
            "duplicate-entry",
            {"source": "token", "of_row": 1, "of_position": 3},
            "slot 4 holds position 3 of the row a second time and is attended",
        ),
        (
            "future-visible",
            {"source": "token", "of_row": 1, "of_position": 3},
            "slot 4 holds position 3 of the row, which comes later, and is attended",
        ),
        ("token-hidden", {}, "slot 4 holds position 5 of the row and is masked"),
        (
            "missing-entry",
            {"origin": "found in batch row 2"},
            "position 5 of the row is not among what the call reads (found in batch row 2)",
        ),
        ("poisoned-entry", {}, "the entry of position 5 of the row in slot 4 was computed under an earlier fault"),
        ("unattributed", {"token": 12}, "slot 4 is attended and holds an entry of unknown origin (token 12)"),
    ],
)
def test_deviations_are_clauses(kind: str, more: dict[str, Any], clause: str) -> None:
    assert clause in say(
        Deviation(KINDS[kind].component, kind, 3, 0, 1, slot=4, token_position=5, **{"token": 6, **more})
    )


def test_a_search_says_what_it_rests_on() -> None:
    found = Search("pads-seen", "pads are attended to", 3, 4, 2e-6, 390, rivals=("mask/future-visible",))
    text = flat(render(replace(given(), search=found)))
    assert text.startswith("bookkeeping/over-accept: a rejected draft token is returned (likely) ")
    assert "Likely cause If pads are attended to, the reference model gives 3 of the 4 wrong tokens." in text
    assert "390 explanations were tried; the chance that any of them fits by accident is 1 in 500,000." in text
    assert text.endswith("Another explanation fits as well: mask/future-visible. The engine's internals were not read.")
    many = replace(found, explained=4, chance=0.0, of="cases like this one", cases=41, wrong_cases=6, rivals=())
    assert searched(many) == [
        "if pads are attended to, the reference model gives exactly the 4 wrong tokens of 41 similar cases, of which 6 "
        "fail",
        "the options forbid a returned token, so this is not an accident",
    ]
    larger = searched(replace(found, of="a larger case"))[0]
    assert larger.endswith("3 of the 4 wrong tokens of a larger case that fails in the same way")
    assert searched(Search("ends-early", "the row ends after 3 tokens")) == ["the row ends after 3 tokens"]


def test_certainty_is_one_of_a_few_words() -> None:
    titles = {
        "Cause": given(),
        "Likely cause": given(search=Search("pads-seen", "pads are attended to", 3, 4, 2e-6, 390)),
        "Cause unknown": replace(given(), component="unattributed", kind="unattributed"),
        "Error": Explanation("crash", "exception", detail="KeyError: 'x'", subject="KeyError"),
        "Evidence": replace(given(), component="sampling", kind="impossible-token", detail="so it is"),
    }
    for title, explanation in titles.items():
        words = {"Cause", "Likely cause", "Cause unknown", "Error", "Evidence"}
        assert {part.title for part in parts(explanation)} & words == {title}


def test_positions_say_where_they_come_from() -> None:
    key = Deviation("position", "key-position", 3, 0, 1, slot=4, token_position=5, expected=7, observed=9)
    clause = "the key of position 5 of the row in slot 4 has position id 9, but must have 7"
    assert say(key) == clause
    assert say(replace(key, origin="changed in the cache")) == f"{clause} (changed in the cache)"


def test_a_shift_that_is_allowed_is_said() -> None:
    query = Query(call=3, call_row=1, column=0, token=9, logical_position=1, position=4, predicted=9)
    slots = [Slot(n, f"token {n}", 5, n + 3, n + 3, True, True, False, 1, n, "token") for n in range(2)]
    said = "(All position ids of the row are shifted by +3; this model family allows that.)"
    assert said in flat(render(given(query=query, slots=tuple(slots))))
    apart = [slots[0], replace(slots[1], position=4, expected_position=1)]
    assert "shifted" not in render(given(query=query, slots=tuple(apart)))
    wrong = Deviation("position", "query-position", 3, 1, 0, token_position=1, expected=4, observed=9)
    found = replace(given(query=replace(query, position=9), slots=tuple(slots)), deviations=(wrong,))
    assert said in flat(render(found))  # it must be 4, counted like the row's entries
    assert "shifted" not in render(replace(found, deviations=(replace(wrong, expected=1, observed=4),)))


def test_other_wrong_rows_are_named() -> None:
    assert "wrong, too" not in render(given(wrong_rows=(1,)))
    assert "wrong, too: request 2\n" in render(given(wrong_rows=(1, 2)))
    assert "wrong, too: requests 0, 2 and 5\n" in render(given(wrong_rows=(0, 1, 2, 5)))
    twenty = render(given(wrong_rows=tuple(range(20))))
    assert "wrong, too: requests 0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 and 7 more" in twenty
    rows = tuple(Given((n,)) for n in range(6))
    shown = render(given(given=Given((3, 1, 4), 7, (9, 11), 2, rows=rows), wrong_rows=(1, 2, 5)))
    assert "request 2   prompt    2   (wrong, too)\n" in shown
    assert "and 2 more requests; wrong, too: 5\n" in shown
    assert "6 requests, K = 2" in shown
    assert "1 request" not in render(given()), "how many there are is not said where it is not known"


def test_a_slot_that_was_never_written_holds_no_token() -> None:
    query = Query(call=3, call_row=1, column=0, token=9, logical_position=1, position=4, predicted=9)
    slot = Slot(0, "blank", 0, 0, None, True, False, kind="blank")
    text = render(given(query=query, slots=(slot,)))
    assert text.splitlines()[-1] == "    >   0       never written  -        -              yes, must be no"


def test_slots_say_what_they_hold_and_what_is_wrong() -> None:
    slots = (
        Slot(0, "pad", 7, 0, None, False, False, kind="pad"),
        Slot(1, "position 0", 3, 0, 0, True, True, False, 1, 0, "token"),
        Slot(2, "rejected draft", 9, 1, None, True, False, False, 1, 1, "draft"),
        Slot(3, "position 1", 9, 2, 1, True, True, False, 1, 1, "token"),
        Slot(None, "position 2", 8, None, 2, False, True, False, 1, 2, "token"),
    )
    assert slot_lines(given(slots=slots)) == [
        ["", 0, "pad", 7, "0", "no"],
        ["", 1, "position 0", 3, "0", "yes"],
        [">", 2, "rejected draft", 9, "1", "yes, must be no"],
        [">", 3, "position 1", 9, "2, must be 1", "yes"],
        [">", "none", "position 2", 8, "-", "no, must be yes"],
    ]
    alike = tuple(Slot(n, f"token {n}", 5 + n, n, n, True, True, False, 1, n, "token") for n in range(6))
    assert slot_lines(given(slots=alike)) == [["", "0..5", "positions 0..5", "5 .. 10", "0..5", "yes"]]
    others = tuple(Slot(n, "", 5 + n % 5, n, None, False, False, False, 2, n, "other-token") for n in range(6))
    assert slot_lines(given(slots=others)) == [["", "0..5", "row 2, positions 0..5", "5 .. 5", "0..5", "no"]]
    apart = tuple(replace(slot, of_position=9 - n) for n, slot in enumerate(others))  # in no order: a line for each
    assert [line[1] for line in slot_lines(given(slots=apart))] == [*range(6)]


def test_masked_drafts_that_still_count_are_said_only_where_nothing_else_fits() -> None:
    query = Query(call=5, call_row=0, column=0, token=4, logical_position=2, position=3, predicted=9)
    wrong = Deviation("position", "query-position", 5, 0, 1, token_position=2, expected=2, observed=3)
    slots = (
        Slot(0, "token 0", 3, 0, 0, True, True, False, 1, 0, "token"),
        Slot(1, "token 1", 1, 1, 1, True, True, False, 1, 1, "token"),
        Slot(2, "rejected draft", 62, 2, None, False, False, False, 1, 2, "draft"),
        Slot(3, "token 2", 4, 3, 2, True, True, False, 1, 2, "token"),
    )
    counted = "The rejected draft in slot 2 is masked, as it should be; the position id is 1 too high, as if it still "
    counted += "counted."
    one = given(query=query, deviations=(wrong,), slots=slots)
    assert counted in flat(render(one))
    padded = (*slots[:1], replace(slots[2], index=1, kind="pad", holds="pad"), *slots[2:])
    assert counted not in flat(render(replace(one, slots=padded))), "padding has the same number"
    assert counted not in flat(render(replace(one, deviations=(replace(wrong, observed=4),))))


def test_the_oracle_says_what_it_was_asked_with() -> None:
    oracle = Oracle(HashLM(HashConfig(seed=1)).eval())
    row = oracle.truth([3, 1, 4], max_new_tokens=4)
    text = oracle.check([[3, 1, 4]], [row[:3]], max_new_tokens=4, eos_token_ids=(5,)).explain()
    assert "request 0   prompt    3 1 4\n" in text
    assert "options   max_new_tokens 4, EOS 5\n" in text
    assert re.search(rf"expected .* {row[3]}\n +got .* end\n", text)


def test_what_was_not_looked_at_is_not_said_to_be_right() -> None:
    def ends_early(target: Any, draft: Any, request: Request) -> Rows:
        rows: Rows = known_good()["one_row"](target, draft, request)
        return [row[:-1] for row in rows]

    text = judge(run(ends_early, Case(prompts=((5, 7),), max_new_tokens=3))).explain()
    assert "2 of 3 tokens were returned, all of them correct." in text
    assert "attended to exactly the right tokens" not in text


def test_one_slot_alone_is_that_of_the_query() -> None:
    before = Slot(4, "position 2", 4, 4, None, True, False, False, 1, 2, "token")
    own = Slot(1, "position 2", 4, 5, 5, True, True, False, 1, 2, "token")
    query = Query(call=5, call_row=0, column=0, token=4, logical_position=2, position=5, predicted=9)
    for slots in ((before, own), (own, before)):
        e = given(query=query, slots=slots)
        assert [line[1] for line in slot_lines(e) if line[2] == "position 2 (query)"] == [1]
