"""Repair of the component at fault restores the output of planted faults."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import pytest
import torch

from eqcheck.catalogue import FAULTS, PLANTED, Fault
from eqcheck.contract.decoders import Generate
from eqcheck.core.case.record import Case
from eqcheck.core.explanation.records import Explanation
from eqcheck.transparent.attribution.repair import Repairer, repair
from eqcheck.transparent.attribution.witnesses import bearing, second_opinion
from eqcheck.transparent.decoding import Run, run
from eqcheck.transparent.hashlm.trace import Call, Fix
from eqcheck.transparent.oracle import judge
from eqcheck.transparent.search import Source

CASES, CHUNKS = 60, 5  # as many as an audit draws
TRIED = [
    "P1-positions-by-slot.holes",
    "P2-no-positions.expanded",
    "P4-scalar-advance.realigned",
    "P5-advance-by-k.continuous",
    "P8-clamped-at-one.uncached",
    "M1-no-mask.realigned",
    "M4-accepted-hidden.holes",
    "M7-sees-next-draft.rolled_back",
    "M8-short-draft-pads-visible.realigned",
    "M11-pads-accumulate.uncached",
    "K1-crop-to-max.realigned",
    "K2-crop-to-min-keep-tokens.rolled_back",
    "K2-one-too-many-dropped.continuous",
    "K3-never-cropped.continuous",
    "K4-last-token-twice.realigned",
    "K4-chunk-border-twice.restored",
    "K6-layer-not-moved.realigned",
    "K7-caches-exchanged.per_row",
    "K10-prefix-of-first-row-only.realigned",
    "K13-trim-without-effect.restored",
    "K14-first-token-skipped.per_row",
    "K21-length-not-rolled-back.continuous",
    "K23-prefix-not-copied.staged",
    "X2-stale-row-index.rolled_back",
    "K15-values-as-keys.static",
    "K16-heads-rolled.per_row",
    "K17-layers-exchanged.realigned",
    "K18-values-negated.per_row",
    "K26-viewed-not-transposed.continuous",
]  # a sixth of those with a context: on others, as X3-mask-of-first-row.expanded, repair may be silent
WITH_A_CONTEXT = [fault for fault in FAULTS if fault.component in ("position", "mask", "cache")]


def _first(fault: Fault, *, tied: bool = True) -> tuple[Generate, Run, Explanation]:
    """The first violation of a planted fault; if ``tied``, the query that is blamed answered what was emitted."""
    torch.set_num_threads(1)
    decoder = fault.decoder()
    source = Source(2, fault.families, decoder.padding_sides, fault.cache_states)
    with decoder.running() as generate:
        for case in chain.from_iterable(source.chunk(index, CASES) for index in range(CHUNKS)):
            done = run(generate, case)
            explanation = judge(done).explanation
            if explanation is not None and (explanation.tied or not tied):
                return generate, done, explanation
    raise AssertionError(f"{fault.id} was not caught in {CHUNKS * CASES} cases")


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.id in TRIED], ids=lambda fault: fault.id)
@pytest.mark.tiers(quick=2, rest=4)
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


@pytest.mark.parametrize(
    "case",
    [
        # a call number that is doubled may be that of a later call
        Case(prompts=((34,), (116, 90, 62, 28)), max_new_tokens=9, num_draft_tokens=1, family="learned"),
        # row 2's prompt ends with what row 0 goes on with
        Case(
            prompts=((25, 41, 54, 121, 19, 124), (46, 27), (4, 0, 127, 61, 122, 8), (74,)),
            max_new_tokens=9,
            num_draft_tokens=3,
            agreement=0.3,
            pad_token_id=33,
            family="mask-order",
        ),
    ],
)
def test_a_scaled_key_is_borne_out_by_repair(case: Case) -> None:
    (fault,) = (fault for fault in PLANTED if fault.id == "K18-keys-scaled.realigned")
    with fault.decoder().running() as generate:
        done = run(generate, case)
        explanation = judge(done).explanation
        assert explanation is not None
        told = second_opinion(generate, done, explanation)
    assert told.fingerprint == "cache/torn-entry"
    assert told.repair_confirms


def test_repair_that_cannot_be_carried_out_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    generate, done, explanation = _first(WITH_A_CONTEXT[0])

    def fails(self: Repairer, call: Call) -> Fix:
        raise KeyError("of eqcheck")

    monkeypatch.setattr(Repairer, "_fix", fails)
    opinion = repair(generate, done, explanation)
    assert str(opinion) == "eqcheck could not repair the run (KeyError: 'of eqcheck')"
    assert bearing(explanation, opinion) == "silent"


@pytest.mark.long
def test_repair_of_no_planted_fault_fails() -> None:
    for fault in WITH_A_CONTEXT[3::12]:
        generate, done, explanation = _first(fault, tied=False)
        assert not repair(generate, done, explanation).failed, fault.id
