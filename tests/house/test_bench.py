"""The benchmark: what it times is verified, what it dictates is kept, and what is wrong is not shown."""

from __future__ import annotations

import json
import re
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from clock import Clock as SetClock
from tiny import noisy, tiny

from benchmarks import measure
from benchmarks import run as bench_run
from benchmarks.arrivals import latencies
from benchmarks.command import main
from benchmarks.measure import Clock, Timed
from benchmarks.pair import Pair
from benchmarks.report import tables, write
from benchmarks.run import Scale, bench
from benchmarks.sampled import WAYS, cost
from benchmarks.workload import Workload
from eqcheck.contract import registry
from eqcheck.contract.decoders import Decoder

TEXT = torch.randint(0, 67, (4000,), generator=torch.Generator().manual_seed(0))
ENGINES = ("eqspec", "exspec", "ragged")
NEW = 12


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def models() -> Pair:
    target = tiny("llama", dtype=torch.float32, max_position_embeddings=512)
    return Pair(target, noisy(target))


@pytest.fixture(scope="module")
def workload(models: Pair) -> Workload:
    return Workload(models, TEXT, "mixed", 9, NEW)


def timed(name: str, workload: Workload, acceptance: float | None, batch: int = 4) -> Timed:
    decoder = registry.load(name)
    return Timed(decoder, decoder.function, workload.pair.target, workload.draft(acceptance), 3, batch)


def test_prompts_are_the_same_every_time_and_mixed(models: Pair, workload: Workload) -> None:
    again = Workload(models, TEXT, "mixed", 9, NEW)
    assert again.prompts == workload.prompts
    lengths = [len(one.token_ids) for one in workload.prompts]
    assert 16 <= min(lengths) < 40
    assert 120 < max(lengths) <= 256
    limits = [one.max_new_tokens for one in workload.prompts]
    assert NEW // 4 <= min(limits) < NEW // 2
    assert 3 * NEW // 2 < max(limits) <= 7 * NEW // 4
    assert sum(limits) / len(limits) == pytest.approx(NEW, rel=0.1)
    assert Workload(models, TEXT, "mixed", 4, NEW).prompts == workload.prompts[:4], (
        "the first prompts are always the same"
    )
    uniform = Workload(models, TEXT, "uniform", 9, NEW).prompts
    assert {(len(one.token_ids), one.max_new_tokens) for one in uniform} == {(64, NEW)}


@pytest.mark.parametrize("rate", [0.0, 0.6, 1.0])
@pytest.mark.tiers(quick=1, rest=2)
def test_acceptance_is_what_was_dictated_in_every_engine(workload: Workload, rate: float) -> None:
    """The draft finds its place in every kind of cache: engines of different build accept the same tokens."""
    found = {}
    for name in ENGINES:
        row, outputs = timed(name, workload, rate).measure(workload.prompts)
        assert workload.wrong(outputs) == ""
        found[name] = row["accepted_share"]
    assert len(set(found.values())) == 1, found
    expected = sum(rate**n for n in (1, 2, 3)) / 3
    assert found["ragged"] == pytest.approx(expected, abs=0.12 if 0 < rate < 1 else 0)


def test_the_library_drafts_as_many_tokens_as_the_others(workload: Workload) -> None:
    decoder = registry.load("transformers")
    with decoder.running() as generate:
        one = Timed(decoder, generate, workload.pair.target, workload.draft(1.0), 3, 1)
        prompts = sorted(workload.prompts, key=lambda one: one.max_new_tokens)[-3:]
        row, _ = one.measure(prompts)
    assert row["verify_calls"] == sum(-(-one.max_new_tokens // 4) for one in prompts)
    assert row["draft_calls"] >= 2.2 * row["verify_calls"]


def test_a_draft_out_of_place_is_accepted_less(workload: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    right = timed("eqspec", workload, 1.0).measure(workload.prompts)[0]["accepted_share"]
    module = __import__("importlib").import_module("eqcheck.reference_impls.eqspec")
    realign = module.AlignedModel.realign

    def shifted(self: Any, rows: Any, lengths: Any) -> None:
        realign(self, rows, lengths)
        if self.model is not workload.pair.target:
            for layer in self.cache.layers:
                layer.keys = layer.keys.roll(1, dims=2)

    monkeypatch.setattr(module.AlignedModel, "realign", shifted)
    assert timed("eqspec", workload, 1.0).measure(workload.prompts)[0]["accepted_share"] < right


def test_wrong_outputs_are_found(workload: Workload) -> None:
    truth = [list(row) for row in workload.truth]
    assert workload.wrong(truth) == ""
    truth[2][-1] = (truth[2][-1] + 1) % 67
    assert workload.wrong(truth).startswith(f"prompt 2, new token {len(truth[2]) - 1}: expected [")
    assert workload.wrong(workload.truth[:-1]) == "8 outputs for 9 prompts"
    assert workload.wrong([]) == "0 outputs for 9 prompts"
    short = [list(row) for row in workload.truth]
    short[1].pop()
    missing = workload.truth[1][-1]
    assert workload.wrong(short) == f"prompt 1, new token {len(short[1])}: expected [{missing}], got no more"
    short[1] += [missing, 0]
    assert workload.wrong(short) == f"prompt 1, new token {len(short[1]) - 1}: expected no more, got [0]"
    short[1] = [-1]
    assert workload.wrong(short) == "prompt 1, outputs[0][0]: expected a token in 0..66, got -1"


@pytest.mark.parametrize(("gap", "tie"), [(4e-6, True), (1e-2, False)])
def test_near_ties_are_told_from_wrong_tokens(gap: float, tie: bool) -> None:
    """Token 66 is token 5 again, a fixed gap less good: taking it is a tie or wrong by the gap, a third is wrong.

    Both tokens have the same weights, so rounding tells them apart by no more than their biases: every kernel prefers
    token 5. (Of two equal logits, some CPUs take the one and some the other.)
    """
    target = tiny("llama", dtype=torch.float32)
    with torch.no_grad():
        target.model.embed_tokens.weight[66] = target.model.embed_tokens.weight[5]
        target.lm_head.weight[66] = target.lm_head.weight[5]
        bias = torch.zeros(67)
        bias[5], bias[66] = 4, 4 - gap
        target.lm_head.bias = torch.nn.Parameter(bias)
    workload = Workload(Pair(target, target), TEXT, "uniform", 6, NEW)
    number, row = next((i, row) for i, row in enumerate(workload.truth) if 5 in row)
    assert not any(66 in row for row in workload.truth)
    ties = workload.ties  # of the truth itself
    outputs = [list(row) for row in workload.truth]
    outputs[number][row.index(5)] = 66
    assert (workload.wrong(outputs) == "") is tie
    assert workload.ties == ties + tie
    outputs[number][row.index(5)] = 7
    assert workload.wrong(outputs) != ""


def test_shares_are_of_one_whole(workload: Workload) -> None:
    for name in (*ENGINES, "hf_pr"):
        row, _ = timed(name, workload, 0.6, batch=1).measure(workload.prompts[:2])
        shares = [row[f"{part}_share"] or 0.0 for part in ("draft", "verify", "realign", "group", "other")]
        assert sum(shares) == pytest.approx(1, abs=1e-3)
        assert min(shares) >= 0
        assert row["verify_calls"] > 0
        assert row["draft_calls"] > row["verify_calls"]
    assert "forward" not in vars(workload.pair.target), "the clock must leave the model as it was"
    clock = Clock()
    with pytest.raises(KeyError), clock.watching(workload.pair.target, workload.pair.draft):
        raise KeyError
    assert "forward" not in vars(workload.pair.target)


def test_latency_counts_from_arrival(workload: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts that come one by one are done one by one: nobody waits for the next to come."""
    SetClock().put(monkeypatch, ["benchmarks.arrivals"])
    prompts = [one._replace(max_new_tokens=3) for one in workload.prompts[:5]]
    for name in ENGINES:
        engine = registry.load(name).engine(workload.pair.target, workload.pair.draft, num_draft_tokens=3, batch_size=8)
        seconds, outputs = latencies(engine, prompts, rate=1.0)
        assert workload.wrong(outputs, prompts) == ""
        assert sorted(seconds)[2] < 0.3, "a second lies between two arrivals"


def test_latency_counts_the_wait_for_a_place(workload: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SetClock().put(monkeypatch, ["benchmarks.arrivals"])
    clock.charge(monkeypatch, type(workload.pair.target), "forward", 0.01)
    for name in ENGINES:
        engine = registry.load(name).engine(workload.pair.target, workload.pair.draft, num_draft_tokens=3, batch_size=2)
        seconds, outputs = latencies(engine, workload.prompts, rate=200.0)
        assert workload.wrong(outputs) == ""
        assert all(second > 0 for second in seconds)
        assert max(seconds) > 2 * min(seconds), "all came at once: nobody waited for a place"


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.tiers(quick=1, rest=2)
def test_rows_sampled_at_the_lowest_temperature_have_the_rounds_of_greedy_ones(
    name: str, workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So their throughputs differ by what sampling costs, and by nothing else; and all laws are computed."""
    sampling = __import__("importlib").import_module("eqcheck.reference_impls.serving.sampling")
    law, laws = sampling.law, 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal laws
        laws += 1
        found = law(*args, **kwargs)
        assert set(found.probabilities.flatten().tolist()) == {0.0, 1.0}
        return found

    monkeypatch.setattr(sampling, "law", counted)
    keys = ("tokens", "verify_calls", "draft_calls", "accepted_share", "realignments", "prefill_calls")
    expected, outputs = timed(name, workload, 0.6).measure(workload.prompts)
    assert not laws
    for way in WAYS.values():
        laws = 0
        row, same = timed(name, workload, 0.6).measure([one._replace(sampling=way) for one in workload.prompts])
        assert same == outputs
        assert [row[key] for key in keys] == [expected[key] for key in keys]
        assert laws > row["verify_calls"]


def test_a_slow_sampler_has_a_low_ratio(workload: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    sampling = __import__("importlib").import_module("eqcheck.reference_impls.serving.sampling")
    clock = SetClock().charge(monkeypatch, sampling, "law", 0.02)
    clock.charge(monkeypatch, type(workload.pair.target), "forward", 0.01)
    monkeypatch.setattr(measure, "_now", ContextVar("now", default=clock.perf_counter))
    for first in (False, True):
        way = WAYS["temperature alone"]
        ratio = cost(workload, workload.prompts, lambda: timed("ragged", workload, None), way, sampled_first=first)
        assert isinstance(ratio, float)
        assert ratio < 0.7


@pytest.mark.rest
def test_a_wrong_sampler_has_no_ratio(small: Scale, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told of, for each way of sampling in which it is wrong; the other ways and greedy rows are right."""
    sampling = __import__("importlib").import_module("eqcheck.reference_impls.serving.sampling")
    blocks = sampling.Rejection.blocks

    def wrong(self: Any, *args: Any) -> list[list[int]]:
        found: list[list[int]] = blocks(self, *args)
        return found if self.rows[0].options.top_p == 1 else [[*row[:-1], (row[-1] + 1) % 67] for row in found]

    monkeypatch.setattr(sampling.Rejection, "blocks", wrong)
    plan = replace(small, batches=(2,), acceptances=(None,), lengths=("uniform",), arrival_prompts=2)
    found = bench([*map(registry.load, ("ragged", "transformers"))], plan, lambda _: None)
    assert {row["engine"] for row in found.sampled} == {"ragged"}, "the library has no engine with a stream"
    rows = {row["options"]: row for row in found.sampled}
    assert rows.pop("temperature alone")["verified"]
    assert len(rows) == len(WAYS) - 1
    assert all((row["ratio"], row["turns_ratio"], row["verified"]) == (None, [], False) for row in rows.values())
    text = tables(found)
    assert re.search(r"ragged +uniform +\S+ \(\S+\) +failed +failed\n", text)
    for way in rows:
        assert re.search(
            rf"ragged emits wrong tokens \(prompt .+\) when uniform prompts are sampled with {way}\.", text
        )


def _last_token_wrong(target: Any, draft: Any, request: Any) -> Any:
    rows = registry.load("eqspec").function(target, draft, request)
    return [[*row[:-1], (row[-1] + 1) % 67] if len(rows) > 1 else row for row in rows]


def _raises_on_batches(target: Any, draft: Any, request: Any) -> Any:
    if len(request.prompts) > 1:
        raise ValueError("no room")
    return registry.load("eqspec").function(target, draft, request)


@pytest.fixture
def small(models: Pair, monkeypatch: pytest.MonkeyPatch) -> Scale:
    monkeypatch.setattr("benchmarks.pair.load", lambda: models)
    monkeypatch.setattr(bench_run, "corpus", lambda: (None, TEXT))
    return Scale(
        batches=(1, 2, 4),
        acceptances=(None, 0.7),
        num_draft_tokens=3,
        max_new_tokens=8,
        waves=3,
        prompts=4,
        repeats=1,
        focus=2,
        focus_repeats=2,
        arrival_prompts=4,
    )


@pytest.mark.long
def test_bench(small: Scale, tmp_path: Path) -> None:
    """Speeds of right tokens are shown, those of wrong ones are not, and a decoder of one row is timed with one."""
    decoders = [*map(registry.load, ("eqspec", "ragged", "transformers")), Decoder("off", _last_token_wrong)]
    decoders.append(Decoder("raises", _raises_on_batches))
    told: list[str] = []
    found = bench(decoders, small, told.append)
    written = write(found, tmp_path)
    stored = json.loads((tmp_path / "bench.json").read_text())
    assert stored["format"] == "eqcheck-bench/1"
    rows = {(r["engine"], r["batch"], r["lengths"], r["acceptance"]): r for r in stored["results"]}
    for key in ("engine", "batch", "lengths", "acceptance", "tokens_per_second", "realign_share", "verified"):
        assert all(key in row for row in stored["results"])
    assert rows["ragged", 2, "mixed", 0.7]["verified"]
    assert rows["ragged", 2, "mixed", 0.7]["tokens_per_second"] > 0
    assert rows["off", 1, "uniform", None]["verified"]
    assert (
        rows["off", 2, "uniform", None] | {"tokens_per_second": None, "verified": False}
        == rows["off", 2, "uniform", None]
    )
    assert ("off", 4, "uniform", None) not in rows
    assert not rows["off", 2, "mixed", 0.7]["verified"], "told of each kind of prompts by itself"
    assert ("transformers", 1, "mixed", 0.7) in rows
    assert ("transformers", 2, "mixed", 0.7) not in rows
    assert ("greedy", 2, "mixed", None) in rows
    assert {row["engine"] for row in stored["arrivals"]} == {"eqspec", "ragged"}
    assert {(row["engine"], row["lengths"], row["options"]) for row in stored["sampled"]} == {
        (name, lengths, way) for name in ("eqspec", "ragged") for lengths in small.lengths for way in WAYS
    }
    assert all(row["verified"] and row["ratio"] > 0 and len(row["turns_ratio"]) == 2 for row in stored["sampled"])
    assert len(rows["ragged", 2, "mixed", None]["turns_tokens_per_second"]) == small.focus_repeats
    assert all(row["verified"] and 0 < row["p50_s"] <= row["p99_s"] for row in stored["arrivals"])
    text = tables(found)
    assert re.search(r"ragged +mixed( +\d\.\d\dx \(\d\.\d\d-\d\.\d\d\)){3}\n", text), "a column per way of sampling"
    assert "wrong" in text
    assert text.count("Speed over that of eqspec") == 2
    assert re.search(r"ragged +\d\.\d\dx +\d\.\d\dx \(\d\.\d\d-\d\.\d\d\)", text), "one turn, and the range of two"
    assert len(re.findall(r"off emits wrong tokens \(prompt 0, .+\) at batch 2, uniform prompts", text)) == 1
    assert "raises raised ValueError (no room) at batch 2, uniform prompts" in text
    assert len(re.findall(r"raises +\d+ +error +-\n", text)) == 4
    assert len(re.findall(r"off +\d+ +wrong +-\n", text)) == 4
    assert re.search(r"prompts +4 +6 +12\n", text)
    for name in ("throughput.png", "shares.png", "service.png"):
        assert name in written
        assert (tmp_path / name).stat().st_size > 10_000


class _Late:
    """Right, but fails when a prompt arrives while it is busy."""

    def __init__(self, target: Any, draft: Any, **settings: Any) -> None:
        self.engine = registry.load("ragged").engine(target, draft, **settings)
        self.stats = self.engine.stats

    @property
    def busy(self) -> bool:
        return bool(self.engine.busy)

    def stream(self, prompts: Any) -> Any:
        for prompt in self.engine.stream(prompts):
            if self.engine.stats.rounds > 12:
                raise ValueError("too late")
            yield prompt


@pytest.mark.rest
def test_an_engine_that_fails_when_prompts_arrive_does_not_end_the_run(
    small: Scale, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = replace(small, batches=(2,), acceptances=(None,), lengths=("uniform",), arrival_prompts=9)
    late = replace(registry.load("ragged"), name="late", engine=_Late)
    found = bench([registry.load("ragged"), late], plan, lambda _: None)
    assert {row["engine"]: row["verified"] for row in found.arrivals} == {"ragged": True, "late": False}
    assert "late raised ValueError (too late) when uniform prompts arrive one by one" in tables(found)
    assert re.search(r"late .* failed +failed", tables(found))


@pytest.mark.long
def test_bench_command(small: Scale, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(bench_run, "QUICK", small)
    command = ["--quick", "--adapter", "ragged", "--out", str(tmp_path / "out"), "--json"]
    assert main(command) == 0
    out = json.loads(capsys.readouterr().out)
    assert {row["engine"] for row in out["results"]} == {"greedy", "ragged"}
    assert main([*command[:-1]]) == 0
    assert "Speed over that of" not in capsys.readouterr().out, "nothing to compare with"
    (tmp_path / "file").write_text("")
    assert main(["--out", str(tmp_path / "file")]) == 4
    assert "cannot write there" in capsys.readouterr().err


def test_interrupt_tells_what_there_is_and_overwrites_nothing(
    small: Scale, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(bench_run, "FULL", small)
    measure, calls = Timed.measure, 0

    def interrupted(self: Timed, prompts: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 6:
            raise KeyboardInterrupt
        return measure(self, prompts)

    monkeypatch.setattr(Timed, "measure", interrupted)
    assert main(["--adapter", "ragged", "--out", str(tmp_path)]) == 2
    out = capsys.readouterr().out
    assert "Interrupted: nothing written." in out
    assert "ragged" in out
    assert list(tmp_path.iterdir()) == []
