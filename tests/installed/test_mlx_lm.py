"""mlx-lm's server: what a draft leaves in the cache of a request is missing where a later one goes on from there."""

from __future__ import annotations

from dataclasses import replace

from eqcheck.audit.workers.interpreter import environment
from eqcheck.contract import registry
from eqcheck.contract.decoders import RowOptions
from eqcheck.core.case.engine import EngineCase, EngineRow
from eqcheck.engines.checkpoints.folders import checkpoint
from eqcheck.engines.lane import worker


def test_a_request_that_goes_on_from_a_drafted_one_is_wrong() -> None:
    """As mlx-lm 0.32.2 is; nothing is wrong without the draft, or without the cache."""
    decoder = registry.load("mlx_lm_bfloat16")
    rows = (EngineRow(tuple(range(12)), RowOptions(7)),) * 2
    case = EngineCase(rows, 3, checkpoint=checkpoint("full").name, prefix_caching=True)
    cases = case, replace(case, drafting="none"), replace(case, prefix_caching=None)
    with worker(decoder, environment(decoder, None)) as running:
        outcomes = [running.try_case(one) for one in cases]
    assert [outcome.status for outcome in outcomes] == ["violation", "equivalent", "equivalent"]
