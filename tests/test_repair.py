"""Repair of the component at fault restores the output of planted faults."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from eqcheck.attribution.repair import repair
from eqcheck.attribution.witnesses import bearing
from eqcheck.audit.search import Source
from eqcheck.catalogue import FAULTS, Fault
from eqcheck.contract import Generate
from eqcheck.harness import Run, run
from eqcheck.oracle import judge
from eqcheck.verdict import Explanation

CASES = 60
WITH_A_CONTEXT = [fault for fault in FAULTS if fault.component in ("position", "mask", "cache")]


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
    assert bearing(declared, repair(generate, done, explanation)) == "confirms"
