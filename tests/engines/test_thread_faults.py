"""Faults after public threads: each runs in two builds that are right without it, and some are named by an audit."""

from __future__ import annotations

import pytest
import torch
from option_right import CLAIMS, decoded
from thread_faults import BUILDS, FAULTS, Fault, broken
from thread_score import KINDS, checked

from eqcheck.engines.checkpoints.row_judge import Judge
from eqcheck.engines.drawing import EngineCases

DRAWN = EngineCases(4, CLAIMS, kinds=KINDS, varied=True)


@pytest.mark.parametrize("build", BUILDS)
def test_without_a_fault_the_builds_are_right(build: str) -> None:
    torch.set_num_threads(1)
    engine, judge = BUILDS[build](), Judge("float64")
    outcomes = [decoded(engine, judge, DRAWN.case(number)) for number in range(12)]
    assert {outcome.status for outcome in outcomes} <= {"equivalent", "tie"}


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_each_fault_runs_and_names_its_thread(fault: Fault, build: str) -> None:
    assert fault.thread.startswith("https://github.com/")
    torch.set_num_threads(1)
    engine = broken(fault, build)()
    assert decoded(engine, Judge("float64"), DRAWN.case(1)).outputs


@pytest.mark.parametrize(
    ("name", "build", "said"),
    [
        ("vmlx-357", "Slots", "options/ignored-option:option-over-proposed"),
        ("vllm-47025", "Compacted", "options/ignored-option:option-over-first-rejected"),
        # Of rows with one prompt a token from behind the end of another looks like a later one of the row's own.
        ("vllm-57053", "Slots", "bookkeeping/wrong-correction:first-token-from-behind"),
    ],
)
@pytest.mark.tiers(quick=0, rest=1)
def test_causes_that_had_no_edit_are_named(name: str, build: str, said: str) -> None:
    (fault,) = (fault for fault in FAULTS if fault.id == name)
    score = checked(fault, build)
    assert said in score.said
    assert score.result == "right"
