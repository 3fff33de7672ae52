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
from eqcheck.case.record import Case
from eqcheck.catalogue import FAULTS, Fault, known_good
from eqcheck.contract.decoders import FAMILIES, Request, decoder
from eqcheck.contract.errors import UsageError
from eqcheck.contract.kinds import FINGERPRINTS, KINDS
from eqcheck.decoding.harness import run
from eqcheck.explanation.records import Deviation, Explanation, Given, Query, Search, Slot
from eqcheck.explanation.statements import say, searched
from eqcheck.explanation.text import render
from eqcheck.hashlm.model import HashConfig, HashLM
from eqcheck.lanes.transparent.search import Source
from eqcheck.oracle.check import judge

NO_ROW = ("draft", "crash", "options")  # told in one line, without a row
ONE_EACH = {fault.fingerprint: fault for fault in reversed(FAULTS) if fault.component not in NO_ROW}
Rows = list[list[int]]


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


def test_ids_that_speak_against_a_cause_are_shown() -> None:
    one = Explanation("bookkeeping", "over-accept", 0, 1, expected=4, observed=5, permuted=(0, 0, 4))
    assert "Other ids: 0 of 4 cases with other ids show the same; 4 are right." in render(one)
    assert "Other ids" not in render(replace(one, permuted=(0, 0, 0)))


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


@pytest.mark.parametrize("fault", ONE_EACH.values(), ids=ONE_EACH)
@pytest.mark.tiers(quick=4, rest=24)
def test_every_number_says_what_it_counts(fault: Fault) -> None:
    explanation = explained(fault)
    text = render(explanation)
    prose = text.partition("\n\n")[0]
    assert not re.search(r"(?<!new )\btokens? [\d\[]", text, re.IGNORECASE)
    assert re.search(r"prompt ids .*, pad id \d+, (no EOS id|EOS ids? [\d ]+), K = \d+\.", prose)
    named = set(map(int, re.findall(r"(?<=\bid )\d+", prose.partition("Then")[2])))
    query = {explanation.query.token} if explanation.query else set()
    tokens = {d.token for d in explanation.deviations}
    assert named <= query | tokens | {explanation.expected, explanation.observed}
    if explanation.observed is not None:
        assert f"new token {explanation.token_index} is id {explanation.observed}" in prose.lower().replace("\n", " ")
    for line in prose.splitlines()[1:]:
        assert line.endswith((".", ":"))
        assert line.count(". ") == 0


def given(**more: Any) -> Explanation:
    values: dict[str, Any] = {"row": 1, "token_index": 1, "expected": 9, "observed": 7, "round": 2}
    values |= {"expected_row": (4, 9), "observed_row": (4, 7), "given": Given((3, 1, 4), 7, (9, 11), 2)}
    return Explanation("bookkeeping", "over-accept", **{**values, **more})


def test_ids_that_mean_something_are_marked() -> None:
    text = render(given(drafted=(7,), basis="the query that had to predict it saw exactly its row"))
    assert text.splitlines() == [
        "bookkeeping/over-accept - a draft token is emitted that the target rejected",
        "  Let   row 1 have the prompt ids 3 1 4, pad id 7, EOS ids 9 11, K = 2.",
        "        It is expected to emit ids 4 [9].",
        "        It is observed to emit ids 4 [7].",
        "  Then  new token 1 is the first that differs (round 2 of the row).",
        "        The query that had to predict it saw exactly its row.",
        "  However, new token 1 is id 7 (pad id, draft token) where id 9 (EOS) is right.",
    ]
    assert "no EOS id" in render(given(given=Given((3,), 7, (), 2)))
    unknown = render(given(given=Given((3,))))
    assert "have the prompt ids 3.\n" in unknown
    assert "EOS" not in unknown
    assert "the row ends before new token 1, where id 9 (EOS) is right" in render(given(observed=None))
    assert "new token 1 is id 7 (pad id) where the row should have ended" in render(given(expected=None))


def test_long_rows_are_shortened_in_the_middle() -> None:
    long = tuple(range(100, 200))
    text = render(given(given=Given(long), expected_row=long, observed_row=long[:60], token_index=50))
    assert "prompt ids 100 101 102 103 104 105 ... 194 195 196 197 198 199 (100 ids)." in text
    assert "expected to emit ids 100 101 102 103 104 105 ... 144 145 146 147 148 149 [150] 151" in text
    assert "156 ... 194" in text
    assert "153 154 155 156 157 158 159 (60 ids)." in text


def test_a_right_token_of_a_wrong_context_is_not_called_wrong() -> None:
    query = Query(call=3, call_row=1, column=0, token=4, logical_position=9, position=9, predicted=9, sees_from=2)
    seen = (Deviation("mask", "window", 3, 0, 1, slot=0, token_position=1),)
    text = render(given(observed=9, query=query, deviations=seen))
    assert "Even so, new token 1 is right." in text
    assert "It should see positions 2..9, each once." in text


@pytest.mark.parametrize(
    ("kind", "more", "clause"),
    [
        (
            "stale-entry",
            {"source": "draft", "of_row": 1, "of_position": 2},
            "slot 4 holds the rejected draft at position 2 and is",
        ),
        (
            "stale-entry",
            {"source": "other-draft", "of_row": 2, "of_position": 2},
            "the rejected draft at position 2 of row 2 and",
        ),
        (
            "wrong-row",
            {"source": "other-token", "of_row": 1, "of_position": 3},
            "slot 4 holds position 3 of row 1 and is seen",
        ),
        ("wrong-row", {"source": "draft model"}, "slot 4 holds an entry of the draft model and is seen"),
        ("pad-visible", {"source": "pad"}, "slot 4 holds a pad and is seen"),
        ("pad-visible", {"origin": "blank"}, "slot 4 was never written and is seen"),
        (
            "duplicate-entry",
            {"source": "token", "of_row": 1, "of_position": 3},
            "slot 4 holds position 3 again and is seen",
        ),
        (
            "future-visible",
            {"source": "token", "of_row": 1, "of_position": 3},
            "slot 4 holds the later position 3 and is seen",
        ),
        ("token-hidden", {}, "slot 4 holds position 5 and is hidden"),
        (
            "missing-entry",
            {"origin": "batch row 2 holds it"},
            "position 5 is not in the row's cache (batch row 2 holds it)",
        ),
        ("poisoned-entry", {}, "the entry of position 5 in slot 4 was written under an earlier fault"),
        ("unattributed", {"token": 12}, "slot 4 is seen and holds an entry of unknown standing (id 12)"),
    ],
)
def test_deviations_are_clauses(kind: str, more: dict[str, Any], clause: str) -> None:
    assert clause in say(Deviation(KINDS[kind].component, kind, 3, 0, 1, slot=4, token_position=5, **more))


def test_a_search_says_what_it_rests_on() -> None:
    found = Search("pads-seen", "pads are seen", 3, 4, 2e-6, 390, rivals=("mask/future-visible",))
    text = render(replace(given(), search=found))
    assert "           The reference emits 3 of 4 wrong tokens if pads are seen.\n" in text
    assert "           390 edits were tried, and any of them does so by chance with probability 2e-06.\n" in text
    assert text.endswith("           As much is explained by mask/future-visible.")
    many = replace(found, chance=0.0, of="cases like this one", cases=41, wrong_cases=6, rivals=())
    assert searched(many) == [
        "in 41 cases like this one, of which 6 are wrong, the reference emits 3 of 4 wrong tokens if pads are seen",
        "the options forbid a token that was emitted, so this is no chance",
    ]
    assert searched(replace(found, of="a larger case"))[0].startswith("in a larger case the reference emits 3 of 4")
    assert searched(Search("ends-early", "the row ends after 3 tokens")) == ["the row ends after 3 tokens"]


def test_positions_say_where_they_come_from() -> None:
    key = Deviation("position", "key-position", 3, 0, 1, slot=4, token_position=5, expected=7, observed=9)
    clause = "the key of position 5 in slot 4 carries position 9 where position 7 is right"
    assert say(key) == clause
    assert say(replace(key, origin="changed in the cache")) == f"{clause} (changed in the cache)"


def test_a_shift_that_is_forgiven_is_told() -> None:
    query = Query(call=3, call_row=1, column=0, token=9, logical_position=1, position=4, predicted=9)
    slots = [Slot(n, f"position {n}", 5, n + 3, n + 3, True, True, False, 1, n, "token") for n in range(2)]
    told = "All positions of the row are shifted by +3, which models of this family forgive."
    assert told in render(given(query=query, slots=tuple(slots)))
    doubtful = replace(given(query=query, slots=tuple(slots)), component="unattributed", kind="unattributed")
    assert "By that reading all positions of the row are shifted by +3" in render(doubtful)
    slots[1] = replace(slots[1], position=4, expected_position=1)
    assert "shifted" not in render(given(query=query, slots=tuple(slots)))


def test_other_wrong_rows_are_named() -> None:
    assert "wrong, too" not in render(given(wrong_rows=(1,)))
    assert "Row 2 is wrong, too.\n" in render(given(wrong_rows=(1, 2)))
    assert "Rows 0, 2 and 5 are wrong, too.\n" in render(given(wrong_rows=(0, 1, 2, 5)))
    twenty = render(given(wrong_rows=tuple(range(20))))
    assert "Rows 0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 and 7 more are wrong, too." in twenty


def test_a_slot_that_was_never_written_holds_no_id() -> None:
    query = Query(call=3, call_row=1, column=0, token=9, logical_position=1, position=4, predicted=9)
    text = render(given(query=query, slots=(Slot(0, "blank", 0, 0, None, True, False),)))
    assert text.splitlines()[-1].split() == ["0", "blank", "-", "-", "-", "yes", "no", "<--"]


def test_the_picture_names_positions_and_ids() -> None:
    slots = (
        Slot(0, "pad", 7, 0, None, False, False),
        Slot(1, "position 0", 3, 0, 0, True, True),
        Slot(2, "rejected draft at position 1", 9, 1, None, True, False),
    )
    query = Query(call=3, call_row=1, column=0, token=9, logical_position=1, position=1, predicted=9)
    lines = render(given(query=query, slots=slots)).splitlines()[-4:]
    assert lines[0].split() == ["slot", "holds", "id", "position", "should", "be", "seen", "should", "be"]
    assert [re.split(r"  +", line.strip())[:4] for line in lines[1:]] == [
        ["0", "pad", "7 (pad id)", "0"],
        ["1", "position 0", "3", "0"],
        ["2", "rejected draft at position 1", "9 (EOS)", "1"],
    ]


def test_the_oracle_says_what_it_was_asked_with() -> None:
    oracle = Oracle(HashLM(HashConfig(seed=1)).eval())
    row = oracle.truth([3, 1, 4], max_new_tokens=4)
    text = oracle.check([[3, 1, 4]], [row[:3]], max_new_tokens=4, eos_token_ids=(5,)).explain()
    assert "Let   row 0 have the prompt ids 3 1 4, limit 4, EOS id 5.\n" in text
    assert f"the row ends before new token 3, where id {row[3]} is right" in text


def test_what_was_not_looked_at_is_not_said_to_be_right() -> None:
    def ends_early(target: Any, draft: Any, request: Request) -> Rows:
        rows: Rows = known_good()["one_row"](target, draft, request)
        return [row[:-1] for row in rows]

    text = judge(run(ends_early, Case(prompts=((5, 7),), max_new_tokens=3))).explain()
    assert "The row is right so far." in text
    assert "saw exactly its row" not in text
