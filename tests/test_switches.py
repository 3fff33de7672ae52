"""Switches of an engine: what no target can be asked about is held against the engine without drafts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from eqcheck.case.engine import EngineCase, EngineRow
from eqcheck.checkpoints.judge import Judge
from eqcheck.contract.decoders import RowOptions
from eqcheck.lanes.checkpoint.drawing import EngineCases
from eqcheck.lanes.checkpoint.outcome import judged
from eqcheck.lanes.checkpoint.reduction import needs, without
from eqcheck.lanes.sampling.drawing import SampledEngineCases

BESIDE = "with guidance the engine returns other states with the row than it does without drafts"
CASE = EngineCase((EngineRow((1, 2), RowOptions(3)),), 2, checkpoint="full", switch="guidance")


def _judged(tokens: list[int], beside: Mapping[str, Any], alone: Mapping[str, Any]) -> Any:
    told = {"beside": beside, "alone": {"tokens": [5, 6, 7], **alone}}
    return judged(Judge("float32"), CASE, {"outputs": [tokens], "told": [told]})


def test_a_row_with_a_switch_is_right_if_the_engine_says_the_same_without_drafts() -> None:
    outcome = _judged([5, 6, 7], {"states": [[2, 1.0001]]}, {"states": [[2, 1.0]]})
    assert (outcome.status, outcome.explanation) == ("equivalent", None)
    assert {"switched", "switch_changed"} <= outcome.coverage


@pytest.mark.parametrize(
    ("tokens", "states", "said"),
    [
        ([5, 9, 7], [[2, 1.0]], "with guidance the engine emits other tokens here than it does without drafts"),
        ([5, 6], [[2, 1.0]], "with guidance the engine emits other tokens here than it does without drafts"),
        (
            [5, 6, 7],
            [[2, 1.1]],
            f"{BESIDE}, first at new token 0",
        ),
        (
            [5, 6, 7],
            [[2, float("nan")]],
            f"{BESIDE}, first at new token 0",
        ),
        ([5, 6, 7], [], BESIDE),
        ([5, 6, 7], None, BESIDE),
    ],
)
def test_what_is_other_with_drafts_is_named(tokens: list[int], states: Any, said: str) -> None:
    outcome = _judged(tokens, {"states": states}, {"states": [[2, 1.0]]})
    assert (outcome.symptom, outcome.explanation.detail) == ("options/ignored-option:guidance", said)


def test_a_switch_is_a_condition_and_may_be_turned_off() -> None:
    assert needs(CASE) == ("switch guidance",)
    assert without(CASE, needs(CASE)) == replace(CASE, switch=None)
    assert EngineCase.from_dict(CASE.to_dict()) == CASE


def test_each_switch_is_drawn_by_turns_and_other_cases_stay_as_they_were() -> None:
    plain, switched = EngineCases(3, ("ngram",)), EngineCases(3, ("ngram",), switches=("a", "b"))
    cases = [(plain.case(number), switched.case(number)) for number in range(12)]
    assert {other.switch for _, other in cases} == {None, "a", "b"}
    assert all(other == one for one, other in cases if not other.switch)


def test_a_near_tie_of_the_engine_itself_is_no_fault() -> None:
    tie, clear = ({"margins": [2.0, margin, 2.0]} for margin in (1e-4, 1.0))
    assert _judged([5, 9, 7], {}, tie).status == "equivalent"
    assert _judged([5, 9, 7], {}, clear).status == "violation"
    assert _judged([5], {}, tie).status == "violation"


def test_engines_are_asked_for_laws_that_leave_one_token() -> None:
    cases = SampledEngineCases(0, ("temperature", "top-k", "top-p", "min-p"))
    options = [row.options for number in range(80) for row in cases.case(number).rows]
    assert any(one.top_k == 1 for one in options)
    assert any(one.min_p == 0.99 for one in options)
    assert any(one.top_p == 0.002 for one in options)
