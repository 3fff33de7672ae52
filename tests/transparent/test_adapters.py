"""The shipped decoders: what each is found to do wrong."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from eqcheck.audit.coverage_words import TRANSPARENT
from eqcheck.audit.loop import audit
from eqcheck.contract import registry
from eqcheck.core.result.findings import Audit, Options


@cache
def audited(name: str, cases: int, seed: int = 0) -> Audit:
    """An audit of how a shipped decoder decodes, without how it samples."""
    return audit(replace(registry.load(name), capabilities=(), seeds="none"), Options(cases=cases, seed=seed))


@pytest.mark.parametrize("name", ["hf_pr", "bsp", "dsd"])
@pytest.mark.long
def test_known_bad_decoders_show_what_they_declare(name: str) -> None:
    result = audited(name, 160)
    assert result.verdict == "violation"
    assert result.unknown == []
    assert {v.fingerprint for v in result.violations} == set(result.decoder.known)


@pytest.mark.rest
def test_first_causes() -> None:
    first = {name: audited(name, 160).violations[0].fingerprint for name in ("hf_pr", "bsp")}
    assert first == {"hf_pr": "bookkeeping/premature-stop", "bsp": "position/query-position"}


@pytest.mark.parametrize("name", ["eqspec", "exspec", "ragged", "transformers"])
@pytest.mark.tiers(quick=0, rest=1)
def test_right_decoders_have_no_undeclared_violation(name: str) -> None:
    result = audited(name, 60, seed=2)
    assert result.verdict == "equivalent" or result.decoder.known


@pytest.mark.parametrize("name", ["eqspec", "exspec", "ragged", "transformers"])
@pytest.mark.long
def test_right_samplers_have_no_undeclared_violation(name: str) -> None:
    result = audit(registry.load(name), Options(cases=20, seed=2))
    assert result.verdict == "equivalent" or result.decoder.known


@pytest.mark.rest
def test_batch_1_only_is_said() -> None:
    result = audited("transformers", 60, seed=2)
    assert any("refuses assisted generation of more than one row" in warning for warning in result.warnings)
    missed = TRANSPARENT.counters["batched_call"]
    assert any("VACUOUS" in warning and missed in warning for warning in result.warnings), result.warnings
