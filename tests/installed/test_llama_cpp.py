"""llama.cpp's server: draft tokens that nobody verified are caught; rows that wait for a slot are right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from eqcheck.audit.workers.interpreter import environment
from eqcheck.contract import registry
from eqcheck.contract.decoders import Decoder, RowOptions
from eqcheck.core.case.engine import EngineCase, EngineRow
from eqcheck.engines.drawing import EngineCases
from eqcheck.engines.engine_outcome import EngineOutcome, abduced, explain
from eqcheck.engines.lane import worker

# The engine's own switch for benchmarks: each draft token is accepted by chance, whatever the target says.
UNVERIFIED = """
import eqcheck
from eqcheck.adapters import llama_cpp as shipped

right = shipped.parameters

def parameters(target, draft, request):
    found = right(target, draft, request)
    if request.drafting == "model":
        found.speculative.synth_rates = [0.9] * request.num_draft_tokens
    return found

shipped.parameters = parameters
decoder = eqcheck.load("llama_cpp")
"""


def _outcomes(decoder: Decoder, cases: Sequence[EngineCase]) -> list[EngineOutcome]:
    with worker(decoder, environment(decoder, None)) as running:
        return [running.try_case(case) for case in cases]


def test_draft_tokens_that_nobody_verified_are_caught(tmp_path: Path) -> None:
    (tmp_path / "unverified.py").write_text(UNVERIFIED)
    decoder = registry.load(str(tmp_path / "unverified.py") + ":decoder")
    cases = list(islice(EngineCases(5, ("row-limits",)).cases(), 20))
    wrong = [outcome for outcome in _outcomes(decoder, cases) if outcome.status == "violation"]
    assert len(wrong) > 10
    components = {explain(outcome, abduced(outcome)).component for outcome in wrong[:5]}
    assert components <= {"bookkeeping", "unattributed"}  # no false cause


def test_rows_wait_for_a_slot_and_share_beginnings() -> None:
    decoder, beginning = registry.load("llama_cpp"), tuple(range(40))
    rows = tuple(EngineRow((*beginning, row, 3), RowOptions(12 + row)) for row in range(9))
    case = EngineCase(rows, 4, prefix_caching=True)
    outcomes = _outcomes(decoder, [case, replace(case, drafting="ngram"), replace(case, drafting="none")])
    assert [outcome.status for outcome in outcomes] == ["equivalent"] * 3
    assert [outcome.observed["prefix_hits"] > 0 for outcome in outcomes] == [True] * 3
