"""`eqcheck replay` of a case whose law was wrong: drawn again until that shows, or until it plainly does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from eqcheck.cli.replaying import replay
from eqcheck.contract.decoders import RowOptions
from eqcheck.contract.errors import EQUIVALENT, INCONCLUSIVE, VIOLATION
from eqcheck.core.case.sampling import SampledCase
from eqcheck.core.store.casefile import StoredViolation

SAMPLER = """
import eqcheck
from eqcheck.catalogue.samplers import RIGHT, SAMPLED_FAULTS
from eqcheck.catalogue.samplers.sampler_engine import sampler

wrong = next(fault for fault in SAMPLED_FAULTS if fault.name == "bonus-argmax").decoder("per_row")
right = sampler(RIGHT["rejection"], "per_row", "right")
"""
ROWS = tuple(RowOptions(12, temperature=1.0) for _ in range(3))
CASE = SampledCase(((5, 7), (9,), (3, 3, 8)), ROWS, num_draft_tokens=1, mix=0.09375, crosses_after=150)


@pytest.fixture
def adapters(tmp_path: Path) -> Path:
    (tmp_path / "samplers.py").write_text(SAMPLER)
    return tmp_path


def replayed(folder: Path, name: str, case: SampledCase = CASE) -> int:
    path = folder / "case.json"
    path.write_text(StoredViolation(case, "eqspec", "sampling/bonus-law").to_json())
    return replay(path, f"{folder / 'samplers.py'}:{name}")


def test_a_law_that_is_wrong_still_fails(adapters: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert replayed(adapters, "wrong") == VIOLATION
    printed = capsys.readouterr().out
    assert printed.startswith("FAILS")
    assert "the evidence (e-value) against the target's distribution is 10^" in " ".join(printed.split())


@pytest.mark.rest
def test_a_law_that_was_mended_is_fixed_after_ten_times_the_tokens(
    adapters: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replayed(adapters, "right") == EQUIVALENT
    printed = capsys.readouterr().out
    assert printed.startswith("FIXED")
    assert "1512 tokens" in printed  # whole answers of 36


def test_too_few_tokens_say_nothing(
    adapters: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eqcheck.sampling.lane.AGAIN_S", 0.0)
    assert replayed(adapters, "right") == INCONCLUSIVE
    assert capsys.readouterr().out.startswith("INCONCLUSIVE")


def test_a_case_that_never_crossed_is_decoded_once(adapters: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert replayed(adapters, "wrong", replace(CASE, crosses_after=0)) == EQUIVALENT
    assert "tokens" not in capsys.readouterr().out
