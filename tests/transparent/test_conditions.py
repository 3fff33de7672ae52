"""The table of a violation: failing cases over cases run by axis, and what the counts allow to be said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from as_data import shown, to_dict, write

from eqcheck.audit.loop import audit
from eqcheck.catalogue import known_good
from eqcheck.contract.decoders import Request, decoder
from eqcheck.core.case.record import Case
from eqcheck.core.result.conditions import conditions
from eqcheck.core.result.findings import Options
from eqcheck.core.result.tally import Placed
from eqcheck.transparent import lane
from eqcheck.transparent.conclusions import Places, table, told
from eqcheck.transparent.coverage import traits
from eqcheck.transparent.decoding import Schedule, Truth, truth_of
from eqcheck.transparent.search import Source

Rows = list[list[int]]
right = known_good()["one_row"]
LEFT, RIGHT = (Case(prompts=((1,), (2,)), padding_side=side) for side in ("left", "right"))


def test_failing_cases_are_counted_by_every_axis() -> None:
    many = Case(prompts=((1,),) * 4, num_draft_tokens=7, padding_side="right", family="learned")
    assert table(places(many), places(LEFT, RIGHT, many, many)) == {
        "family": {"learned": (1, 2), "rotary": (0, 2)},
        "padding_side": {"left": (0, 1), "right": (1, 3)},
        "rows": {"2": (0, 2), "3+": (1, 2)},
        "cache_state": {"empty": (1, 4)},
        "num_draft_tokens": {"1": (0, 2), "5+": (1, 2)},
    }


def placed(cases: Sequence[Case], fails: bool) -> list[Placed]:
    """Cases as a tally keeps them; of equal ones the traits are found once."""
    known = {case: traits(case, truth_of(case)) for case in dict.fromkeys(cases)}
    return [Placed(True, "x" if fails else "", known[case]) for case in cases]


def only(failing: Sequence[Case], right: Sequence[Case], hidden: int = 0, smallest: Case | None = None) -> list[str]:
    small = traits(smallest, truth_of(smallest)) if smallest else ()
    found = conditions(placed(failing, True), placed(right, False), small)
    return told(found, places(*failing), places(*right), hidden)


def test_only_is_said_where_chance_cannot_have_spared_the_rest() -> None:
    statement = "only with right padding (12 of 20 cases), never with left padding (0 of 20)"
    assert only([RIGHT] * 12, [RIGHT] * 8 + [LEFT] * 20) == [statement]
    assert only([RIGHT] * 12, [RIGHT] * 8 + [LEFT] * 20, 3) == [f"{statement}; 3 cases of another failure not counted"]
    assert only([RIGHT] * 12, [RIGHT] * 8 + [LEFT] * 5) == []  # too few of the others
    assert only([RIGHT] * 3, [RIGHT] * 17 + [LEFT] * 20) == []  # too few failures
    assert only([RIGHT] * 12 + [LEFT], [RIGHT] * 8 + [LEFT] * 200) == []  # one of the others fails
    assert only([RIGHT] * 30, []) == only([], [LEFT] * 30) == []
    # The smallest failing case was made, not drawn, and its own side was spared by the drawn ones.
    assert only([RIGHT] * 12, [RIGHT] * 8 + [LEFT] * 20, smallest=LEFT) == []
    assert only([RIGHT] * 12, [RIGHT] * 8 + [LEFT] * 20, smallest=RIGHT) == [statement]


def places(*cases: Case) -> Places:
    return Counter(place for case in cases for place in case.axes.items())


def test_what_crashes_hide_is_said() -> None:
    shows, spared = places(*[RIGHT] * 12), places(*[RIGHT] * 8)
    assert told([], shows, spared) == []
    hidden = places(*[LEFT] * 180)
    assert told([], shows, spared, 180, hidden) == ["not known for left padding, where 180 cases crash"]
    both = places(*[LEFT] * 90, *[RIGHT] * 90)
    assert told([], places(*[RIGHT] * 3), places(*[RIGHT] * 17, *[LEFT] * 5), 180, both) == [
        "3 of 25 cases that do not fail in another way; no condition is certain; "
        "180 other cases crash, and may hide a condition"
    ]
    found = conditions(placed([RIGHT] * 12, True), placed([RIGHT] * 8 + [LEFT] * 20, False))
    shown = "only with right padding (12 of 20 cases), never with left padding (0 of 20)"
    sure = f"{shown}; 180 cases of another failure not counted"
    assert told(found, shows, spared + places(*[LEFT] * 20), 180, both) == [sure]


def test_a_cause_that_crashes_hide_is_told_with_them() -> None:
    def broken(target: Any, draft: Any, request: Request) -> Rows:
        if request.padding_side == "left":
            raise RuntimeError("no left padding here")
        rows: Rows = right(target, draft, request)
        return [row[:-1] for row in rows]

    known = decoder(name="mine", padding_sides=("left", "right"))(broken)
    found = {one.fingerprint: one.only for one in audit(known, Options(cases=60)).findings}
    assert any(one.startswith("not known for left padding, where ") for one in found["bookkeeping/premature-stop"])


def test_a_value_with_few_cases_is_neither_hit_nor_spared() -> None:
    sizes = {k: Case(prompts=((1,), (2,)), num_draft_tokens=k) for k in (1, 2, 3)}
    found = only([sizes[3]] * 24, [sizes[1]] * 43 + [sizes[2]] * 10 + [sizes[3]] * 40)
    assert found == [
        "only with K of 3 or more (24 of 64 cases), never with K of 1 (0 of 43), with 2 0 of 10, which may be chance"
    ]
    states = [Case(prompts=((1,),), cache_state=state) for state in ("empty", "preallocated", "pads-nan")]
    assert only([states[1]] * 20, [states[1]] * 20 + [states[0]] * 60 + [states[2]] * 3) == [
        "only with cache state preallocated (20 of 40 cases), never with cache state empty (0 of 60), "
        "with cache state pads-nan 0 of 3, which may be chance"
    ]


def test_a_condition_begins_where_the_failures_do() -> None:
    """A report that says 'K of 2 or more' of a fault that needs 3 sends its reader to cases that are right."""
    sizes = {k: Case(prompts=((1,),), num_draft_tokens=k) for k in range(1, 7)}
    right = [sizes[k] for k in (1, 2, 3, 4, 5, 6) for _ in range(20)]
    failing = [sizes[k] for k in (3, 4, 5, 6) for _ in range(20)]
    assert only(failing, right) == ["only with K of 3 or more (80 of 160 cases), never with K of 1 or 2 (0 of 40)"]
    # A smaller case fails with K = 2, so that the fault does not begin at 3; and one with K = 1 leaves nothing to say.
    assert only(failing, right + [sizes[1]] * 40, smallest=sizes[2]) == [
        "only with K of 2 or more (80 of 180 cases), never with K of 1 (0 of 60)"
    ]
    assert only(failing, right, smallest=sizes[1]) == []


def test_a_second_condition_has_to_say_more_than_the_first() -> None:
    """Rows that come late are several in each case here: that they are is the first condition again."""
    one, two = Case(prompts=((1,),)), Case(prompts=((1,), (2,)), num_draft_tokens=3)
    other = Case(prompts=((1,), (2,)))
    assert only([two] * 20, [one] * 30) in (
        ["only with 2 or more rows (20 of 20 cases), never with 1 row (0 of 30)"],
        ["only with K of 3 or more (20 of 20 cases), never with K of 1 (0 of 30)"],
    )
    assert only([two] * 20, [one] * 60 + [other] * 40) == [
        "only with K of 3 or more (20 of 20 cases), never with K of 1 (0 of 100)"
    ]


@pytest.mark.rest
def test_the_report_and_the_terminal_say_it(tmp_path: Path) -> None:
    def wrong_on_the_right(target: Any, draft: Any, request: Request) -> Rows:
        rows: Rows = right(target, draft, request)
        return [row[:-1] for row in rows] if request.padding_side == "right" else rows

    mine = decoder(name="mine", padding_sides=("left", "right"))(wrong_on_the_right)
    result = audit(mine, Options(cases=60))
    data = write(result, tmp_path)
    (violation,) = data["violations"]
    sides = violation["axes"]["padding_side"]
    count = sides["right"][0]
    assert sides == {"left": [0, 60 - count], "right": [count, count]}
    assert sum(of for _, of in violation["axes"]["rows"].values()) == 60
    statement, ends = violation["only"]
    assert ends == f"in all {count} failing cases only the last token of the row is missing, an EOS or not"
    assert (
        statement == f"only with right padding ({count} of {count} cases), never with left padding (0 of {60 - count})"
    )
    assert f"  Frequency      {statement}" in shown(data)
    text = (tmp_path / "report.md").read_text()
    assert f"\nO{statement[1:]}; {ends}.\n" in text


@pytest.mark.parametrize("other", [True, False])
@pytest.mark.tiers(quick=0, rest=1)
def test_cases_that_fail_otherwise_are_not_taken_for_right(other: bool) -> None:
    """One fault hides the other on the left: what is left there is too little to say 'right padding only'."""

    def wrong(target: Any, draft: Any, request: Request) -> Rows:
        rows: Rows = right(target, draft, request)
        if request.padding_side == "right":
            return [row[:-1] for row in rows]
        return [row + row[:1] for row in rows] if other else rows

    result = audit(decoder(name="mine", padding_sides=("left", "right"))(wrong), Options(cases=60))
    found = to_dict(result, Path("there"))["violations"]
    short = next(one for one in found if one["kind"] == "premature-stop")
    assert short["axes"]["padding_side"]["left"][0] == 0
    assert short["axes"]["padding_side"]["left"][1] > 20
    assert any("right padding" in one for one in short["only"]) != other


def test_a_cause_that_the_second_opinion_takes_back_keeps_its_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def short(target: Any, draft: Any, request: Request) -> Rows:
        return [row[:-1] for row in right(target, draft, request)]

    def doubted(outcome: Any, running: Any) -> Any:
        return replace(outcome, explanation=replace(outcome.explanation, component="unattributed", kind="unattributed"))

    monkeypatch.setattr(lane, "confirmed", doubted)
    result = audit(decoder(name="mine")(short), Options(cases=10))
    found = to_dict(result, Path("there"))["violations"][0]
    assert found["fingerprint"] == "unattributed/unattributed"
    assert found["axes"]["padding_side"] == {"left": [10, 10]}


SEEDS, CASES = 30, 150
Fault = Callable[[Case, Truth, Random], bool]


@cache
def drawn(seed: int) -> list[tuple[Case, Truth, Placed]]:
    source = Source(seed, ("rotary", "learned"), ("left", "right"), ("empty", "chunked", "late-rows"))
    cases = [source.chunk(at // 50, at % 50 + 1)[at % 50] for at in range(CASES)]
    truths = [truth_of(case) for case in cases]
    return [(case, truth, Placed(True, "", traits(case, truth))) for case, truth in zip(cases, truths, strict=True)]


def found_of(fault: Fault, seeds: int = SEEDS) -> Counter[tuple[str, str, int]]:
    """The conditions that are found of a fault, over seeds, by trait, way and bound."""
    found: Counter[tuple[str, str, int]] = Counter()
    for seed in range(seeds):
        rng = Random(seed)
        sides: dict[bool, list[Placed]] = {True: [], False: []}
        for case, truth, own in drawn(seed):
            sides[fault(case, truth, rng)].append(own)
        found.update((one.trait, one.way, one.bound) for one in conditions(sides[True], sides[False]))
    return found


@pytest.mark.rest
@pytest.mark.parametrize("share", [0.02, 0.1, 0.3, 0.8])
def test_a_fault_without_a_condition_has_none(share: float) -> None:
    """Also where it strikes a row or a token, so that longer cases are wrong more often."""

    def hit(times: int, rng: Random) -> bool:
        return rng.random() < 1 - (1 - share) ** times

    assert not found_of(lambda case, truth, rng: hit(1, rng))
    assert not found_of(lambda case, truth, rng: hit(len(case.prompts), rng))
    assert not found_of(lambda case, truth, rng: hit(sum(map(len, truth.rows)), rng))
    assert not found_of(lambda case, truth, rng: hit(sum(map(len, (*truth.rows, *case.prompts))) // 4, rng))
    assert not found_of(lambda case, truth, rng: hit(sum(map(len, Schedule(case, truth).rows)), rng))


def rejected_and_on(case: Case, truth: Truth) -> bool:
    """Whether a row has a round in which a draft token is rejected, and another round after it."""
    return any(own.accepted < case.num_draft_tokens for row in Schedule(case, truth).rows for own in row[:-1])


@pytest.mark.rest
@pytest.mark.parametrize("length", [8, 11, 14, 16])
def test_the_length_from_which_rows_fail_is_found(length: int) -> None:
    def too_long(case: Case, truth: Truth, rng: Random) -> bool:
        return any(len(p) + len(new) > length for p, new in zip(case.prompts, truth.rows, strict=True))

    found = found_of(too_long)
    assert {(trait, way) for trait, way, _ in found} == {("longest_row", "from")}
    assert found["longest_row", "from", length + 1] > 0.5 * SEEDS
    assert min(bound for _, _, bound in found) == length + 1


@pytest.mark.rest
@pytest.mark.parametrize(
    ("fault", "condition"),
    [
        (lambda case, truth, rng: case.max_new_tokens == 1, ("max_new_tokens", "to", 1)),
        (lambda case, truth, rng: not case.eos_token_ids, ("eos_ids", "to", 0)),
        (lambda case, truth, rng: len(case.eos_token_ids) > 1, ("eos_ids", "from", 2)),
        (lambda case, truth, rng: any(0 in row for row in truth.rows), ("zero_emitted", "among", 0)),
        (lambda case, truth, rng: any(0 in row for row in case.prompts), ("zero_in_prompt", "among", 0)),
        (lambda case, truth, rng: case.pad_token_id in case.eos_token_ids, ("pad_is_eos", "among", 0)),
        (lambda case, truth, rng: min(map(len, case.prompts)) == 1, ("shortest_prompt", "to", 1)),
        (lambda case, truth, rng: max(map(len, Schedule(case, truth).rows)) > 2, ("rounds", "from", 3)),
        (lambda case, truth, rng: rejected_and_on(case, truth), ("goes_on_after_rejection", "among", 0)),
        (lambda case, truth, rng: min(map(len, case.prompts)) > 1, ("shortest_prompt", "from", 2)),
        (lambda case, truth, rng: case.num_draft_tokens >= 3 and rng.random() < 0.5, ("num_draft_tokens", "from", 3)),
        (lambda case, truth, rng: len(case.prompts) >= 3, ("rows", "from", 3)),
        (lambda case, truth, rng: case.cache_state == "late-rows", ("cache_state", "among", 0)),
    ],
    ids=lambda one: one[0] if isinstance(one, tuple) else "",
)
def test_a_condition_is_found(fault: Fault, condition: tuple[str, str, int]) -> None:
    found = found_of(fault)
    assert found[condition] > 0.9 * SEEDS
    assert sum(found.values()) - found[condition] <= 0.1 * SEEDS  # another that has as few cases without the fault


@pytest.mark.rest
@pytest.mark.parametrize(
    ("wrong", "statement"),
    [
        (lambda case: case.max_new_tokens == 1, "only with max_new_tokens of 1 ("),
        (lambda case: not case.eos_token_ids, "only with no EOS id ("),
        (lambda case: len(case.prompts) > 2, "only with 3 or more rows ("),
    ],
)
def test_a_crash_has_conditions_and_its_smallest_case(wrong: Any, statement: str, tmp_path: Path) -> None:
    def crashing(target: Any, draft: Any, request: Request) -> Rows:
        if wrong(request):
            raise IndexError("index 1 is out of bounds")
        return list(right(target, draft, request))

    data = write(audit(decoder(name="mine")(crashing), Options(cases=80)), tmp_path)
    (violation,) = data["violations"]
    assert violation["fingerprint"] == "crash/exception:IndexError"
    assert violation["only"][0].startswith(statement)
    assert "request 0   prompt  10" in violation["explanation"]
    assert f"max_new_tokens {violation['case']['max_new_tokens']}" in violation["explanation"]
    assert "no EOS" in violation["explanation"]
