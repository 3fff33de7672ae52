"""Switches of an engine: what no target can be asked about is held against the engine without drafts."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eqcheck.audit.loop import audit
from eqcheck.contract import registry
from eqcheck.contract.decoders import RowOptions
from eqcheck.core.case.engine import EngineCase, EngineRow
from eqcheck.core.result.findings import Options
from eqcheck.engines.checkpoints.row_judge import Judge
from eqcheck.engines.drawing import EngineCases
from eqcheck.engines.engine_outcome import judged
from eqcheck.engines.investigate import needs, without
from eqcheck.sampling.drawing import SampledEngineCases

BESIDE = "with guidance the states returned with the row differ from those without speculation"
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
        ([5, 9, 7], [[2, 1.0]], "with guidance the engine returns other tokens here than without speculation"),
        ([5, 6], [[2, 1.0]], "with guidance the engine returns other tokens here than without speculation"),
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


_RAISES = """
import eqcheck
from eqcheck.engines.checkpoints.folders import checkpoint
from eqcheck.engines.checkpoints.continuations import FunctionTruth
from eqcheck.core.case.engine import EngineRow


@eqcheck.decoder(name="raises", checkpoints=True)
class Engine:
    switches = ("a", "b")

    def __call__(self, target, draft, request):
        if {condition}:
            raise KeyError("no such layer")
        truth = FunctionTruth(checkpoint("full").built[0].function)
        rows = zip(request.prompts, request.rows, strict=True)
        told = [truth.row(EngineRow(tuple(prompt), row)) for prompt, row in rows]
        return [eqcheck.Completion(tokens, alone={{"tokens": tokens}}) for tokens in told] if request.switch else told
"""


@pytest.mark.parametrize(
    ("condition", "fingerprints"),
    [
        ("request.switch == 'b'", ["crash/exception:KeyError with b"]),
        ("len(request.prompts) > 2", ["crash/exception:KeyError"]),
        ("False", []),
    ],
)
@pytest.mark.rest
def test_a_crash_is_that_of_a_switch_if_it_needs_it(condition: str, fingerprints: list[str], tmp_path: Path) -> None:
    (tmp_path / "raises.py").write_text(_RAISES.format(condition=condition))
    found = audit(registry.load(str(tmp_path / "raises.py")), Options(cases=30, python=sys.executable))
    assert sorted({finding.fingerprint for finding in found.violations}) == fingerprints
    assert not found.doubtful


def test_a_wrong_row_with_a_switch_is_that_without_it_if_the_row_is_wrong_there_too(tmp_path: Path) -> None:
    """Each row of three tokens or more has a wrong last one, whatever the switch."""
    text = _RAISES.format(condition="False")
    body, _, _ = text.partition("        return [eqcheck.Completion")
    wrong = "        wrong = [[*row[:-1], row[-1] ^ 1] if len(row) > 2 else row for row in told]\n"
    pairs = "[eqcheck.Completion(row, alone={'tokens': own}) for row, own in zip(wrong, told)]"
    text = f"{body}{wrong}        return {pairs} if request.switch else wrong\n"
    (tmp_path / "wrong.py").write_text(text)
    found = audit(registry.load(str(tmp_path / "wrong.py")), Options(cases=24, python=sys.executable))
    assert found.violations
    assert not [finding.fingerprint for finding in found.violations if finding.explanation.component == "options"]
