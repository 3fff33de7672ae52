"""The tests in use, as the comparison runs them, pass a right decoder and fail a broken one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from comparison.compare import COMPARED, DRAFT_SIDE, OTHER_SETUP, group
from comparison.methods import (
    AS_USED,
    BEST,
    METHODS,
    Method,
    Score,
    as_published,
    over_60_percent,
    over_80_percent,
    try_on,
)

from eqcheck.catalogue import BUILDS, FAULTS
from eqcheck.contract.decoders import Decoder


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def planted(name: str) -> Decoder:
    return next(fault for fault in FAULTS if fault.id == name).decoder()


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
@pytest.mark.tiers(quick=4, rest=1)
def test_passes_a_right_decoder_and_fails_a_broken_one(method: Method) -> None:
    setting = method.settings[AS_USED]
    few = min(20, setting.prompts)
    setting = replace(
        setting, prompts=few, batch=min(few, setting.batch), max_new_tokens=min(12, setting.max_new_tokens)
    )
    right = BUILDS["realigned"].decoder("right").function
    broken = planted("T10-correction-twice.realigned").function
    assert not try_on(setting, right, remember=True).failed
    assert try_on(setting, broken, remember=True).way == "tokens"


def test_at_its_best_sees_what_it_misses_as_used() -> None:
    settings = METHODS[0].settings
    faulty = planted("M1-no-mask.realigned").function  # there are no pads at batch 1
    assert not try_on(settings[AS_USED], faulty).failed
    assert try_on(settings[BEST], faulty, remember=True).way == "tokens"


@pytest.mark.parametrize("fault", ["X4-limit-never-retires.uncached", "X7-waiting-omitted.continuous"])
def test_a_hang_and_a_missing_row_count_as_crashes(fault: str) -> None:
    assert try_on(METHODS[0].settings[BEST], planted(fault).function, remember=True).way == "crash"


def test_thresholds() -> None:
    assert over_60_percent(Score(100, 61, 61.0))
    assert not over_60_percent(Score(100, 60, 99.0))
    assert not over_80_percent(Score(100, 80, 99.0))
    assert as_published(Score(100, 90, 95.0))
    assert not as_published(Score(100, 90, 94.0))


def test_faults_that_no_comparison_of_outputs_can_see_are_counted_apart() -> None:
    groups = {fault.id: group(fault) for fault in FAULTS}
    assert groups["K1-crop-to-max.realigned"] == COMPARED
    assert groups["M2-draft-without-mask.realigned"] == DRAFT_SIDE
    assert groups["K13-trim-without-effect.restored"] == OTHER_SETUP
