"""What a batch row still has of the request that held it before, and faults that only look like it."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from eqcheck.catalogue import BUILDS, FAULTS
from eqcheck.contract.decoders import Decoder
from eqcheck.core.explanation.records import Explanation
from eqcheck.core.explanation.text import render
from eqcheck.transparent.attribution.witnesses import second_opinion
from eqcheck.transparent.decoding import run
from eqcheck.transparent.oracle import judge
from eqcheck.transparent.search import Source


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def planted(switch: str) -> list[Decoder]:
    found = [fault.decoder() for fault in FAULTS if fault.switch == switch]
    assert len(found) > 1
    return found


def read(decoder: Decoder, count: int = 40) -> list[Explanation]:
    """What is read of the drawn cases that are wrong."""
    drawn = Source(3, ("rotary", "learned"), ("left",)).chunk(0, count)
    return [e for case in drawn if (e := judge(run(decoder.function, case)).explanation)]


@pytest.mark.parametrize("decoder", planted("X3-mask-of-old-rows"), ids=lambda one: one.name)
@pytest.mark.tiers(quick=0, rest=1)
def test_a_mask_that_is_right_for_the_row_before_is_named(decoder: Decoder) -> None:
    found = read(decoder)
    named = Counter(one.fingerprint for one in found)
    assert named["mask/of-another-row"] > 2
    assert named["mask/of-another-row"] >= 0.6 * len(found), named
    (one, *_) = [one for one in found if one.kind == "of-another-row"]
    assert one.query is not None
    assert f", which was batch row {one.query.call_row} up to call " in " ".join(render(one).split())


@pytest.mark.parametrize("decoder", planted("X3-positions-of-old-rows"), ids=lambda one: one.name)
@pytest.mark.tiers(quick=1, rest=1)
def test_a_position_that_is_due_to_the_row_before_is_said(decoder: Decoder) -> None:
    found = read(decoder)
    assert {one.fingerprint for one in found} == {"position/query-position"}
    told = [one for one in found if one.facts.get("statement") == "due-to-another"]
    assert len(told) > 2
    assert len(told) >= 0.6 * len(found)
    for one in told:
        assert one.facts["due"] == one.deviations[0].observed
        assert f"{one.facts['due']} is the correct position id for row {one.facts['other_row']}, which was" in " ".join(
            render(one).split()
        )


@pytest.mark.parametrize(
    "switch",
    ["M4-rejected-visible", "M4-accepted-hidden", "M3-mask-by-token", "P1-positions-by-slot", "X2-stale-row-index"],
)
@pytest.mark.tiers(quick=0, rest=1)
def test_other_faults_of_masks_and_positions_are_no_handover(switch: str) -> None:
    for fault in [fault for fault in FAULTS if fault.switch == switch]:
        found = read(fault.decoder(), 30)
        assert not [one for one in found if one.kind == "of-another-row"], fault.id


@pytest.mark.long
def test_right_engines_hand_rows_over() -> None:
    for name in ("holes", "rolled_back", "realigned", "continuous", "static"):
        assert not read(BUILDS[name].decoder(name), 20)


def test_the_witnesses_bear_it_out() -> None:
    decoder = planted("X3-mask-of-old-rows")[0]
    for case in Source(3, ("rotary", "learned"), ("left",)).chunk(0, 40):
        done = run(decoder.function, case)
        found = judge(done).explanation
        if found is not None and found.kind == "of-another-row":
            told = second_opinion(decoder.function, done, found)
            assert (told.fingerprint, told.repair_confirms) == ("mask/of-another-row", True)
            return
    pytest.fail("no case shows it")
