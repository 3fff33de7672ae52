"""The simulation of samplers: right ones draw from the target's law, and the tables are written."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import sampling_simulation
from sampling_simulation import UNEQUAL, false_alarms, main, power
from simulated_faults import FAULTS, RIGHT
from simulated_samplers import REGIMES, World, decode


def distance(name: str, regime: str, wrong: bool = False) -> float:
    """The total variation between the law of one context that leads to itself and the tokens drawn there."""
    world = World(REGIMES[regime], UNEQUAL[:1], 8, 1, 3)
    sampler = FAULTS[name].sampler if wrong else RIGHT[name]
    rows = 4000
    zeros = np.zeros(rows, np.int64)
    tokens = decode(sampler, world, zeros, zeros, np.arange(rows), 12, np.random.default_rng(2))
    return float(abs(np.bincount(tokens.ravel(), minlength=8) / tokens.size - world.p[0, 0]).sum() / 2)


@pytest.mark.parametrize("regime", ["std", "near4", "far"])
@pytest.mark.parametrize("name", RIGHT)
def test_right_samplers_draw_from_the_law(name: str, regime: str) -> None:
    assert distance(name, regime) < 0.01


def test_wrong_samplers_do_not() -> None:
    assert distance("residual not used", "std", wrong=True) > 0.015
    assert distance("every draft accepted", "std", wrong=True) > 0.1


@pytest.mark.rest
def test_right_samplers_are_equivalent() -> None:
    found = false_alarms(len(RIGHT), 32, 5)
    assert found["impossible"] == found["supremum_at_least"]["1000"] == 0
    assert found["tokens"] >= 2500 * len(RIGHT)


@pytest.mark.rest
def test_tables_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = {name: FAULTS[name] for name in ("every draft accepted", "all noise shared between rows")}
    monkeypatch.setattr(sampling_simulation, "FAULTS", chosen)
    monkeypatch.setattr("sys.argv", ["sampling_simulation", "--out", str(tmp_path), "--audits", "1", "--trials", "1"])
    main()
    found = json.loads((tmp_path / "sampling.json").read_text())
    assert [one["fault"] for one in found["power"]] == list(chosen)
    assert all(one["std"]["tokens"] < 500 for one in found["power"])
    assert all(name in (tmp_path / "sampling.md").read_text() for name in chosen)


@pytest.mark.rest
def test_rounding_to_bfloat16_is_no_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "p and q rounded to bfloat16"
    monkeypatch.setattr(sampling_simulation, "FAULTS", {name: FAULTS[name]})
    monkeypatch.setattr(sampling_simulation, "LIMIT", 3000)
    assert power(1, 32, 1)[0]["std"]["tokens"] is None
