"""The paged engine of `field_faults` is right, and each fault in it changes some drawn case."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from field_faults import CLAIMS, FAULTS, Engine, Fault

from eqcheck.contract.completion import apart
from eqcheck.core.case.engine import EngineCase
from eqcheck.engines.checkpoints import dictation
from eqcheck.engines.checkpoints.row_judge import Judge
from eqcheck.engines.drawing import EngineCases

DRAWN = EngineCases(7, CLAIMS["capabilities"], kinds=CLAIMS["kinds"], varied=True)
JUDGE = Judge("float32")
MANY = 160
# In the first cases these show seldom or not at all: few of them draft by n-grams, or end at the last position.
SELDOM = {"padded_ngram", "orphan_index", "ngram_uncommitted", "idle_step", "end_of_context"}


def decoded(engine: Engine, case: EngineCase) -> tuple[Any, dict[str, Any]]:
    """Return the answer of an engine to a case, and its counts."""
    request = replace(case.request(), drafts=dictation.drafts(case))
    told = engine(f"{case.checkpoint}/target", f"{case.checkpoint}/draft", request)
    return apart(told), engine.observed


def wrong(engine: Engine, case: EngineCase) -> bool:
    """Whether a case is wrong, or ends with an exception."""
    from eqcheck.engines.engine_outcome import judged

    try:
        (outputs, told), observed = decoded(engine, case)
    except (IndexError, KeyError, TypeError):
        return True
    outcome = judged(JUDGE, case, {"outputs": outputs, "told": told, "observed": observed})
    return outcome.status not in ("equivalent", "tie")


def cases(count: int) -> list[EngineCase]:
    """Drawn cases, without those of the random checkpoint."""
    drawn = map(DRAWN.case, range(count))
    return [case for case in drawn if not case.checkpoint.startswith("llama")]


@pytest.mark.rest
def test_without_a_fault_the_engine_is_right() -> None:
    torch.set_num_threads(1)
    engine = Engine()
    assert not [case.id for case in cases(90) if wrong(engine, case)]


@pytest.mark.parametrize(
    "fault", [one for one in FAULTS.values() if not one.loses and one.name not in SELDOM], ids=lambda one: one.name
)
@pytest.mark.tiers(quick=0, rest=6)
def test_each_fault_makes_a_drawn_case_wrong(fault: Fault) -> None:
    torch.set_num_threads(1)
    engine = fault.engine()
    assert any(wrong(engine, case) for case in cases(MANY))


@pytest.mark.parametrize("fault", [one for one in FAULTS.values() if one.loses], ids=lambda one: one.name)
@pytest.mark.rest
def test_lost_drafts_change_no_token(fault: Fault) -> None:
    torch.set_num_threads(1)
    engine = fault.engine()
    assert not any(wrong(engine, case) for case in cases(60))
