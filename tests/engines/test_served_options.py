"""Options on scores in engines: rows on which they change a token, and the causes of faults in them, in two builds."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from option_causes import BUILDS, CAUSES, cause
from option_faults import CLAIMS, FAULTS, NEW, Rounds

from eqcheck.contract.decoders import Request, RowOptions
from eqcheck.contract.errors import CaseError, UsageError
from eqcheck.core.case.engine import EngineCase, EngineRow
from eqcheck.engines.checkpoints.row_judge import Judge, truth
from eqcheck.engines.drawing import EngineCases, exercised
from eqcheck.engines.investigate import needs

DRAWN = EngineCases(4, (*CLAIMS, *NEW), kinds=("full",))


def _decoded(build: type[Rounds], case: EngineCase, fault: str = "") -> list[list[int]]:
    engine = type(build.__name__, (build,), {"fault": staticmethod(FAULTS[fault]) if fault else None})()
    request: Request = case.request()
    return list(engine("", "", request))


def _wrong(case: EngineCase, outputs: list[list[int]]) -> bool:
    return any(row.first is not None for row in Judge("float64").rows(case, outputs))


@pytest.mark.rest
def test_each_option_is_drawn_alone_and_with_others_and_changes_a_token() -> None:
    torch.set_num_threads(1)
    drawn, fired, alone = Counter[str](), Counter[str](), Counter[str]()
    for number in range(120):
        case = DRAWN.case(number)
        asked = [name for name in needs(case) if name in NEW]
        outputs = tuple(tuple(truth(case.checkpoint).row(row)) for row in case.rows)
        drawn.update(asked)
        fired.update(name.replace("_", "-") for name in exercised(case, outputs, {}))
        alone.update(asked if len({*needs(case)} - {"eos-token-ids"}) == 1 else ())
    for name in NEW:
        assert drawn[name] > 10
        assert fired[name] > 0.7 * drawn[name]
        assert alone[name]


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.tiers(quick=1, rest=1)
def test_a_right_engine_has_every_row_right(build: type[Rounds]) -> None:
    torch.set_num_threads(1)
    for number in range(20):
        case = DRAWN.case(number)
        assert not _wrong(case, _decoded(build, case))


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.tiers(quick=23, rest=22)
def test_every_fault_in_an_option_makes_a_row_wrong(build: type[Rounds], fault: str) -> None:
    torch.set_num_threads(1)
    assert any(_wrong(case, _decoded(build, case, fault)) for case in map(DRAWN.case, range(120)))


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize(("fault", "option", "edit"), CAUSES[:10])
@pytest.mark.tiers(quick=8, rest=1)
def test_a_fault_in_an_option_is_named(build: type[Rounds], fault: str, option: str, edit: str) -> None:
    """The others by ``python -m option_causes``."""
    torch.set_num_threads(1)
    found = cause(build, "full", fault, option)
    assert found is not None
    assert (found.component, found.search.edit.partition(":")[0]) == ("options", edit)
    assert cause(build, "full", "", option) is None


def test_options_that_cannot_be_meant_are_refused() -> None:
    row = RowOptions(4, logit_bias={3: 1.5, 8: -100.0})  # type: ignore[arg-type]
    assert row.logit_bias == ((3, 1.5), (8, -100.0))
    with pytest.raises(UsageError, match="bad_words: expected at least one token id in each"):
        RowOptions(4, bad_words=((),))
    with pytest.raises(UsageError, match="logit_bias: expected a finite number"):
        RowOptions(4, logit_bias=((3, float("nan")),))
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({"logit_bias": ((300, 1.0),)}, "logit_bias: expected token ids below 256"),
        ({"bad_words": ((1, 256),)}, r"bad_words\[0\]: expected token ids below 256"),
        ({"allowed_ids": (-1,)}, "allowed_ids: expected token ids below 256"),
        ({"logit_bias": ((3, 101.0),)}, "logit_bias: expected numbers from -100 to 100"),
    )
    for options, message in refused:
        with pytest.raises(CaseError, match=message):
            EngineRow((1,), RowOptions(4, **options))
