"""Repair agrees with reading on planted faults, and says so when a reading is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from eqcheck.attribution.repair import Opinion, repair, second_opinion
from eqcheck.audit.search import Source
from eqcheck.catalogue import FAULTS, Fault
from eqcheck.contract import Generate
from eqcheck.harness import Run, run
from eqcheck.oracle import judge
from eqcheck.verdict import Explanation

CASES = 60
WITH_A_CONTEXT = [fault for fault in FAULTS if fault.component in ("position", "mask", "cache")]
OTHERS = {"position": "cache", "mask": "position", "cache": "position", "bookkeeping": "mask"}


def _first(fault: Fault) -> tuple[Generate, Run, Explanation]:
    """The first violation of a planted fault."""
    torch.set_num_threads(1)
    decoder = fault.decoder()
    source = Source(2, fault.families, decoder.padding_sides, fault.cache_states)
    with decoder.running() as generate:
        for case in source.chunk(0, CASES):
            done = run(generate, case)
            explanation = judge(done).explanation
            if explanation is not None:
                return generate, done, explanation
    raise AssertionError(f"{fault.id} was not caught in {CASES} cases")


@pytest.mark.parametrize("fault", WITH_A_CONTEXT[::6], ids=lambda fault: fault.id)
def test_repair_of_the_declared_component_restores_the_output(fault: Fault) -> None:
    generate, done, explanation = _first(fault)
    declared = replace(explanation, component=fault.component, kind=fault.kind)
    assert repair(generate, done, explanation).agrees(declared)


@pytest.mark.parametrize("component", OTHERS)
def test_a_wrong_reading_becomes_unattributed_with_both(component: str) -> None:
    fault = next(fault for fault in FAULTS if fault.component == component)
    generate, done, explanation = _first(fault)
    agreed = second_opinion(generate, done, explanation)
    assert agreed.fingerprint == explanation.fingerprint == fault.fingerprint
    assert agreed.repair
    wrong = replace(explanation, component=OTHERS[component], kind="planted")
    both = second_opinion(generate, done, wrong)
    assert both.fingerprint == "unattributed/unattributed"
    assert f"reading says {OTHERS[component]}/planted" in both.detail
    assert both.repair in both.detail


def test_bookkeeping_is_what_no_repair_restores() -> None:
    bookkeeping = Explanation("bookkeeping", "over-accept")
    assert Opinion((), ()).agrees(bookkeeping)
    assert not Opinion((("mask",),), ()).agrees(bookkeeping)
    assert not Opinion((), (("cache",),)).agrees(bookkeeping)


def test_hiding_a_stale_entry_is_as_good_as_removing_it() -> None:
    only_mask = Opinion((("mask",),), ())
    assert only_mask.agrees(Explanation("cache", "stale-entry"))
    assert not only_mask.agrees(Explanation("cache", "missing-entry"))


def test_two_faults_at_once_are_restored_by_a_pair() -> None:
    assert Opinion((("position", "cache"),), ()).agrees(Explanation("cache", "torn-entry"))
    assert str(Opinion((("position", "cache"),), ())) == "right position with cache restores the output"


def test_a_crash_has_no_second_opinion() -> None:
    fault = next(fault for fault in FAULTS if fault.component == "crash")
    generate, done, explanation = _first(fault)
    assert second_opinion(generate, done, explanation) is explanation
