"""Decoders that return or do anything end no audit and no suite: what eqcheck itself must survive is drawn."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from unruly import LANES, Deed, Unruly, draw, failures, programs

QUICK = {"transparent": 4, "engine": 6, "engine-sampling": 10}
LONG = 400  # of each lane: 2,000 in all, `python tests/tools/unruly.py 2000`


@pytest.mark.parametrize("lane", list(reversed(QUICK)))
@pytest.mark.tiers(quick=2, rest=1)
def test_a_few_decoders_in_process(lane: str) -> None:
    draw(lane, QUICK[lane])


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.long
def test_two_thousand_decoders(lane: str) -> None:
    draw(lane, LONG)


@pytest.mark.rest
def test_a_decoder_that_is_right_and_then_raises_is_no_error_of_the_suite() -> None:
    program = Unruly([Deed("raise", 1, "target", ValueError("drawn"))], lambda rows: rows, 2, "eqspec")
    assert failures("pytest", program) == []


def test_the_draw_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A judge that cannot read an odd counter trips it, as it did before counters were looked at."""
    monkeypatch.setattr("eqcheck.engines.engine_outcome.observed_of", lambda told, *_: dict(told or {}))
    read = r"NoneType|not supported|unsupported|iterable|has no|sub-exceptions|distinct failures"
    with pytest.raises(BaseException, match=read):
        draw("engine", 300)


@settings(max_examples=1, deadline=None, database=None)
@given(programs("transparent"))
def test_what_is_drawn_leaves_the_process_as_it_was(program: Any) -> None:
    import torch

    before = torch.get_default_dtype()
    failures("transparent", program)
    assert torch.get_default_dtype() == before
