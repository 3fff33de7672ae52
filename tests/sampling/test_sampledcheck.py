"""The sampled part of the self-check: it sees faults, accuses no right sampler, and says what it measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from eqcheck.catalogue.samplers import RIGHT, SAMPLED_FAULTS
from eqcheck.selfcheck.samplers import check_right_sampler, check_sampled_fault, named_as_planted, table


@pytest.mark.rest
def test_a_fault_is_seen_and_a_right_sampler_is_not_accused() -> None:
    number = [fault.name for fault in SAMPLED_FAULTS].index("correction-argmax")
    broken = check_sampled_fault(number, "realigned", cases=24)
    right = check_right_sampler(list(RIGHT).index("rejection"), "realigned", cases=6)
    lossy = check_right_sampler(list(RIGHT).index("lenient"), "realigned", cases=6)
    assert (broken.id, broken.named) == ("L33-correction-argmax.realigned", "sampling/residual")
    assert 0 < broken.tokens < 500
    assert not broken.failure
    assert (right.named, right.failure) == (lossy.named, lossy.failure) == ("", "")
    assert "as planted" in table([broken, right])
    assert named_as_planted([broken, right], held_back=True) == (1, 0, 1)
    stray, wrong = (replace(broken, named=f"sampling/{kind}") for kind in ("stray-law", "draft-law"))
    assert named_as_planted([broken, stray, wrong]) == (1, 1, 3)


def test_what_is_not_seen_and_who_is_accused_is_a_failure() -> None:
    result = check_right_sampler(0, cases=1)
    assert "accused of sampling/residual" in replace(result, named="sampling/residual").failure
    assert "not seen" in replace(result, expected="sampling/residual").failure
    assert not replace(result, expected="sampling/residual", required=False).failure
