"""onnxruntime-genai: a draft model, n-grams, logits that are read in between, and generators that are rewound."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest

from eqcheck.audit.loop import audit
from eqcheck.audit.workers.interpreter import environment
from eqcheck.contract import registry
from eqcheck.core.result.findings import Options
from eqcheck.engines.drawing import EngineCases
from eqcheck.engines.lane import worker

GREEDY = ("logprobs", "min-new-tokens", "ngram", "prefix-caching", "repetition-penalty", "row-eos", "row-limits")


@pytest.mark.parametrize("drafting", ["none", "model", "ngram"])
def test_the_engine_is_right_on_every_kind_with_and_without_cached_beginnings(drafting: str) -> None:
    decoder = registry.load("onnxruntime_genai")
    cases = EngineCases(7, GREEDY, kinds=decoder.kinds, block=4, varied=True).cases()
    with worker(decoder, environment(decoder, None)) as running:
        outcomes = [running.try_case(replace(case, drafting=drafting)) for case in islice(cases, 48)]
    assert {outcome.status for outcome in outcomes} <= {"equivalent", "skipped"}
    assert sum(outcome.status == "equivalent" for outcome in outcomes) > 40


def test_drafts_are_accepted_and_rejected() -> None:
    decoder = replace(registry.load("onnxruntime_genai"), capabilities=("row-eos", "row-limits"), seeds="none")
    found = audit(decoder, Options(cases=40, seed=11))
    assert found.verdict == "equivalent"
    assert found.coverage["accepted"] > 20
    assert found.coverage["rejected"] > 20
