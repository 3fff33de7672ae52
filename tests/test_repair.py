"""Repair of the component at fault restores the output of planted faults."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from eqcheck.attribution.repair import repair
from eqcheck.attribution.witnesses import bearing, second_opinion
from eqcheck.audit.search import Source
from eqcheck.case import Case
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


@pytest.mark.parametrize("prompt", [(0, 0, 0, 0), (5, 7, 5, 7, 5, 7), (5, 6, 7, 8)])
def test_a_chunk_that_begins_one_token_early_is_a_duplicate_also_where_tokens_are_alike(
    prompt: tuple[int, ...],
) -> None:
    case = Case(prompts=(prompt,), max_new_tokens=2, num_draft_tokens=1, cache_state="chunked", prefill_chunk=3)
    (fault,) = (fault for fault in FAULTS if fault.id == "K4-chunk-border-twice.per_row")
    with fault.decoder().running() as generate:
        done = run(generate, case)
        explanation = judge(done).explanation
        assert explanation is not None
        told = second_opinion(generate, done, explanation)
    assert told.fingerprint == "cache/duplicate-entry"
    assert told.round == 1  # of the prompt's pieces, only the last asks for a new token
    assert told.query is not None
    assert told.query.logical_position == 3
