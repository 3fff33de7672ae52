"""The speed law: the formulas, the factors, the schedules, the generators of acceptance, and the pictures."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import why
from benchmarks.command import main
from benchmarks.law import STEPS, Costs, acceptance, best_k, expected, fitted, predicted, schedule, waterfall
from benchmarks.lawreport import laws, tables, write
from benchmarks.measure import now, processor_time
from benchmarks.run import machine
from benchmarks.sizes import saved
from benchmarks.traces import GENERATORS, MEASURED, accepted, described
from benchmarks.why import Law, Plan
from eqcheck.contract import registry
from eqcheck.contract.errors import UsageError


@pytest.mark.parametrize("a", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("k", [1, 4, 8])
def test_the_formula_is_the_mean_of_rounds_that_are_alike(a: float, k: int) -> None:
    counts = np.minimum(np.random.default_rng(0).geometric(1 - a, 40_000) - 1, k) + 1
    assert expected(a, k) == pytest.approx(counts.mean(), rel=0.02)


@pytest.mark.parametrize("spread", [False, True])
def test_the_acceptance_is_estimated_from_what_rounds_gave(spread: bool) -> None:
    noise = np.random.default_rng(1)
    committed, limits = [], []
    for _ in range(200):
        a = noise.beta(4, 2) if spread else 0.7
        row: list[int] = []
        limit = 400
        while (left := limit - sum(row)) > 0:
            row.append(min(int(noise.geometric(1 - a)), min(4, left - 1) + 1))
        committed.append(row)
        limits.append(limit)
    found = acceptance(committed, limits, 4)
    assert found.by_row == pytest.approx(found.tokens, rel=0.01)
    assert (found.same == pytest.approx(found.tokens, rel=0.01)) == (not spread)  # rows that differ are not alike
    assert found.positions == pytest.approx([found.a] * 4, abs=0.12 if spread else 0.02)
    assert (found.positions[3] - found.positions[0] > 0.02) == spread  # who was right three times is a good row
    assert found.waiting == found.same  # a batch of one waits for nobody
    assert acceptance(committed, limits, 4, batch=8).waiting < found.same


def test_factors_multiply_to_the_speed_up_whatever_the_times() -> None:
    seconds = np.random.default_rng(2).uniform(0.1, 9, len(STEPS) + 1).tolist()
    assert math.prod(waterfall(seconds).values()) == pytest.approx(seconds[0] / seconds[-1])
    with pytest.raises(ValueError, match="zip"):
        waterfall(seconds[:-1])


def test_the_best_k_is_where_one_token_more_costs_what_it_gives() -> None:
    cheap, dear = Costs({1: 1.0, 9: 1.1}, 0.01, 0.0), Costs({1: 1.0, 9: 9.0}, 0.3, 0.0)
    assert best_k(0.7, cheap)[0] > best_k(0.7, dear)[0] == 0
    for costs in (cheap, dear):
        best, gains = best_k(0.7, costs)
        assert gains[best] == max(gains.values())
        assert gains[0] == 1.0


def test_rows_that_join_leave_no_place_empty_for_long() -> None:
    rounds = np.random.default_rng(3).integers(5, 40, 64).tolist()
    static, joining = schedule(rounds, 8, joining=False), schedule(rounds, 8, joining=True)
    assert sum(static) == sum(joining) == sum(rounds)
    assert len(joining) < len(static)
    costs = [Costs({1: 1.0, 5: 2.0}, 0.1, 0.5)] * 2
    assert predicted([8, 4], [1, 8], lambda cost: cost.round(4), costs, rows=0) == pytest.approx(2 * 2.4)


def test_a_law_holds_only_where_points_lie_on_a_line() -> None:
    xs = [[float(x)] for x in range(16)]
    straight, noise = [2 + 0.5 * x for (x,) in xs], np.random.default_rng(4).normal(size=16).tolist()
    assert fitted(xs, straight).r2 == pytest.approx(1)
    assert fitted(xs, noise).r2 < 0.5
    assert fitted(xs, [*straight[:-1], 0.0]).left_out > 5


def test_generators_are_near_what_they_imitate() -> None:
    found = {name: described(name) for name in GENERATORS}
    for name, one in found.items():
        assert one.tokens == pytest.approx(MEASURED[name].tokens, rel=0.06)
    assert found["chat"].dispersion == pytest.approx(MEASURED["chat"].dispersion, rel=0.25)
    assert found["copy"].correlation == pytest.approx(MEASURED["copy"].correlation, rel=0.1)
    assert found["steady"].dispersion < found["chat"].dispersion < found["copy"].dispersion
    assert found["steady"].correlation < found["chat"].correlation < found["copy"].correlation


@pytest.mark.parametrize("name", GENERATORS)
def test_generators_repeat_themselves_and_keep_to_k(name: str) -> None:
    assert accepted(name, 50, (1, 2), 3) == accepted(name, 50, (1, 2), 3)
    assert accepted(name, 50, (1, 2), 3) != accepted(name, 50, (1, 3), 3)
    assert set(accepted(name, 500, (1, 2), 3)) <= {0, 1, 2, 3}
    with pytest.raises(ValueError, match="expected one of steady, chat, copy"):
        accepted("novel", 1, (0, 0))


def test_time_of_the_processor_leaves_out_who_else_is_there() -> None:
    import time

    cpu = torch.device("cpu")
    with processor_time(cpu):
        assert torch.get_num_threads() == 1
        began = now(cpu)
        time.sleep(0.2)
        assert now(cpu) - began < 0.1
    began = now(cpu)
    time.sleep(0.2)
    assert now(cpu) - began >= 0.2


def test_drafts_that_are_not_there_are_missed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no drafts there; `python -m benchmarks\.sizes"):
        list(saved(tmp_path))
    assert main(["--drafts", str(tmp_path), "--out", str(tmp_path / "out")]) == 4


PLAN = Plan(
    batches=(1, 2),
    max_new_tokens=6,
    waves=1,
    prompts=2,
    turns=1,
    ks=(1, 2),
    k_batches=(2,),
    budget_turns=1,
    focus=2,
)


@pytest.mark.rest
def test_all_of_it_is_measured_and_every_output_verified(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(why, "QUICK", PLAN)
    monkeypatch.setattr(why, "_trace", lambda name, batch: why_trace(name, batch))
    out = tmp_path / "law"
    assert main(["--law", "--quick", "--adapter", "ragged", "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads((out / "law.json").read_text())
    assert {row["batch"] for row in found["speeds"]} == {1, 2}
    for row in found["speeds"]:
        assert row["verified"]
        assert math.prod(row["factors"].values()) == pytest.approx(row["speed_up"], rel=0.001)
        assert 1 <= row["acceptance"]["tokens"] <= 5
    assert [row["share"] for row in found["budgets"]] == [1.0, 0.6, 0.35]
    assert all(row["throughput_kept"] > 0 for row in found["budgets"])
    assert {path.name for path in out.iterdir()} >= {"law.json", "law.md"}


def why_trace(name: str, batch: int) -> dict[str, Any]:
    return why_of(name, batch, rows=40, tokens=16)


why_of = why._trace


@pytest.mark.rest
def test_a_decoder_that_is_wrong_has_no_speed(monkeypatch: Any) -> None:
    decoder = registry.load("ragged")
    engine: Any = decoder.engine
    stream = engine.stream

    def wrong(self: Any, prompts: Any) -> Any:
        for update in stream(self, prompts):
            update.token_ids[-1] = (update.token_ids[-1] + 1) % 256
            yield update

    monkeypatch.setattr(engine, "stream", wrong)
    found = why.law([decoder], PLAN, None, lambda text: None)
    assert found.speeds == found.best == found.budgets == []
    assert any("ragged emits wrong tokens" in note for note in found.notes)


def made_up() -> Law:
    found = Law(Plan(), machine(torch.device("cpu")))
    factors = dict.fromkeys(STEPS, 1.1)
    for batch in (1, 2, 4, 8):
        found.speeds.append(
            {
                "engine": "ragged",
                "batch": batch,
                "speed_up": 2.0 - math.log2(batch) / 4,
                "turns": [1.0, 2.5],
                "acceptance": {
                    "tokens": 2.5,
                    "a": 0.7,
                    "same": 2.55,
                    "by_row": 2.5,
                    "waiting": 1.2,
                    "positions": [0.7],
                },
                "factors": factors,
                "predicted": {"same": 2.0, "by_row": 2.0, "waiting": 1.9},
                "verified": True,
            }
        )
    for size in (1e4, 1e5, 1e6):
        for tokens in (1e5, 1e6):
            length = 1 + 0.2 * math.log10(size) + 0.1 * math.log10(tokens)
            row = {"size": "x", "parameters": int(size), "tokens": int(tokens), "acceptance_length": length, "a": 0.5}
            found.drafts.append(row)
    return found


@pytest.mark.rest
def test_whether_a_law_holds_is_said_plainly(tmp_path: Path) -> None:
    found = made_up()
    first, second = laws(found)
    assert "+0.20 log10(parameters) +0.10 log10(tokens" in first
    assert first.endswith("The log-linear law holds on these 6 drafts.")
    assert second.endswith("-0.250 log2(B), R2 1.00: the law holds.")
    found.drafts[0]["acceptance_length"] = 5.0
    found.speeds[0]["speed_up"] = 1.0
    assert [text.rstrip(".").endswith("not hold") or "does not hold on" in text for text in laws(found)] == [True, True]
    assert "off" not in tables(found).partition("Speed-up")[0]
    found.speeds[0]["acceptance"]["same"] = 3.5
    assert "+40%, off" in tables(found)
    assert {"waterfall.png", "law.png"} <= set(write(found, tmp_path))
