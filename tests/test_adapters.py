"""The shipped decoders: what each is found to do wrong."""

from __future__ import annotations

import pytest

from eqcheck import registry
from eqcheck.campaign.loop import audit
from eqcheck.findings import Options


@pytest.mark.parametrize("name", ["hf_pr", "bsp", "dsd"])
def test_known_bad_decoders_show_what_they_declare(name: str) -> None:
    result = audit(registry.load(name), Options(cases=160))
    assert result.verdict == "violation"
    assert result.unknown == []
    assert {v.fingerprint for v in result.violations} == set(result.decoder.known)


def test_first_causes() -> None:
    first = {
        name: audit(registry.load(name), Options(cases=150)).violations[0].fingerprint for name in ("hf_pr", "bsp")
    }
    assert first == {"hf_pr": "bookkeeping/premature-stop", "bsp": "position/query-position"}


@pytest.mark.parametrize("name", ["eqspec", "exspec", "ragged", "transformers"])
def test_right_decoders_have_no_undeclared_violation(name: str) -> None:
    result = audit(registry.load(name), Options(cases=60, seed=2))
    assert result.verdict == "equivalent" or result.decoder.known


def test_batch_1_only_is_said() -> None:
    result = audit(registry.load("transformers"), Options(cases=20))
    assert any("refuses assisted generation of more than one row" in warning for warning in result.warnings)
    assert any("VACUOUS" in warning and "batched_call" in warning for warning in result.warnings)
