"""The whole benchmark: every engine on every workload, side by side, each output verified."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from benchmarks import pair
from benchmarks.arrivals import latencies
from benchmarks.measure import Failure, Timed, judged
from benchmarks.pair.train import corpus
from benchmarks.sampled import WAYS, cost
from benchmarks.workload import LENGTHS, Workload, greedy
from eqcheck import __version__
from eqcheck.contract.decoders import Decoder, Generate

FORMAT = "eqcheck-bench/1"
GREEDY = Decoder("greedy", greedy, origin="transformers' own generate() of a padded batch, without a draft")
ONE_ROW = "transformers"  # decodes one row at a time, so greater batches tell nothing new
BASELINE = "eqspec"  # the others are compared with it, turn by turn
LOAD = 0.6  # arrivals, as a share of the prompts a second that the slowest engine with a stream gets through


@dataclass(frozen=True)
class Scale:
    """What is measured. ``acceptances`` are rates per draft token; None is the pair's own draft."""

    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    lengths: tuple[str, ...] = LENGTHS
    acceptances: tuple[float | None, ...] = (None, 0.5, 0.7, 0.9)
    num_draft_tokens: int = 4
    max_new_tokens: int = 40
    waves: int = 8  # prompts for each place in the batch, two with a dictated draft,
    prompts: int = 32  # and at least so many, a quarter of it with a dictated draft
    repeats: int = 3  # of which the middle one is shown
    focus: int = 8  # the batch size that is looked at closely, with the pair's own draft
    focus_repeats: int = 7
    arrival_prompts: int = 100

    def count(self, batch: int, acceptance: float | None = None) -> int:
        """How many prompts are decoded."""
        if acceptance is not None:
            return max(self.prompts // 4, 2 * batch)
        return max(self.prompts, self.waves * batch)

    def turns(self, batch: int, acceptance: float | None) -> int:
        """How often they are."""
        return self.focus_repeats if (batch, acceptance) == (self.focus, None) else self.repeats


FULL = Scale()
QUICK = Scale(
    batches=(1, 8),
    acceptances=(None, 0.7),
    max_new_tokens=32,
    waves=3,
    prompts=16,
    repeats=1,
    focus_repeats=1,
    arrival_prompts=16,
)


@dataclass
class _Measured:
    """A decoder that is set up, and whether its failure has been noted."""

    decoder: Decoder
    generate: Generate
    noted: bool = False


Engines = dict[str, _Measured]
Listen = Callable[[str], None]


@dataclass
class Results:
    """What was measured: a row per engine and configuration, the latencies under arrivals, what sampling costs."""

    plan: Scale
    machine: dict[str, Any]
    results: list[dict[str, Any]] = field(default_factory=list)
    arrivals: list[dict[str, Any]] = field(default_factory=list)
    sampled: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False

    def note(self, text: str) -> None:
        """Something to say, once."""
        if text not in self.notes:
            self.notes.append(text)

    def reject(self, engine: _Measured, config: dict[str, Any], failure: Failure) -> None:
        """The engine failed: no speed is shown, and with greater batches of these prompts it is not measured."""
        shown = {"tokens_per_second": None, "realign_share": None, "verified": False, "failure": failure.kind}
        self.results.append({**config, **shown})
        if not engine.noted:
            where = f"batch {config['batch']}, {config['lengths']} prompts"
            self.note(
                f"{config['engine']} {failure.message} at {where}; where it failed, greater batches were not tried"
            )
            engine.noted = True

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "format": FORMAT,
            "machine": self.machine,
            "plan": {k: list(v) if isinstance(v, tuple) else v for k, v in vars(self.plan).items()},
            "results": self.results,
            "arrivals": self.arrivals,
            "sampled": self.sampled,
            "notes": self.notes,
            "interrupted": self.interrupted,
        }


def bench(decoders: Sequence[Decoder], plan: Scale, listen: Listen) -> Results:
    """Measure plain decoding and these decoders; of one that fails no greater batch of such prompts is measured.

    ``KeyboardInterrupt`` ends it early with what there is, marked ``interrupted``.
    """
    torch.manual_seed(0)
    text = corpus()[1]
    models = pair.load()
    found = Results(plan, machine(models.target.device))
    with ExitStack() as stack:
        engines = {d.name: _Measured(d, stack.enter_context(d.running())) for d in (GREEDY, *decoders)}
        try:
            for lengths in plan.lengths:
                workload = Workload(models, text, lengths, plan.count(max(plan.batches)), plan.max_new_tokens)
                for acceptance in plan.acceptances:
                    _measure(found, engines, workload, acceptance, listen)
                    if acceptance is None:
                        _arrivals(found, engines, workload, listen)
                        _sampled(found, engines, workload, listen)
                if workload.ties:
                    found.note(f"{workload.ties} outputs differ in a near-tie only ({lengths} prompts)")
        except KeyboardInterrupt:
            found.interrupted = True
            found.note("interrupted; what is missing was not measured")
    return found


def _measure(found: Results, engines: Engines, workload: Workload, acceptance: float | None, listen: Listen) -> None:
    """All engines at all batch sizes, taking turns, so that a slow moment of the machine meets them all."""
    plan, draft = found.plan, workload.draft(acceptance)
    failed: set[str] = {GREEDY.name} if acceptance is not plan.acceptances[0] else set()  # it has no draft
    for batch in plan.batches:
        prompts = workload.prompts[: plan.count(batch, acceptance)]
        config = {"batch": batch, "lengths": workload.lengths, "acceptance": acceptance}
        runs: dict[str, list[dict[str, Any]]] = {
            name: [] for name in engines if name not in failed and (batch == 1 or name != ONE_ROW)
        }
        for turn in range(plan.turns(batch, acceptance) + 1):  # the first warms up
            for name in list(runs):
                engine = engines[name]
                if turn:
                    listen(f"{workload.lengths}, acceptance {acceptance or 'real'}, batch {batch}, {turn}: {name}")
                some = prompts if turn else prompts[:batch]
                models = (workload.pair.target, draft)
                make = partial(Timed, engine.decoder, engine.generate, *models, plan.num_draft_tokens, batch)
                with engine.decoder.inside():
                    row = judged(workload, some, make, Timed.measure)
                if isinstance(row, Failure):
                    found.reject(engine, {"engine": name, **config}, row)
                    failed.add(name)
                    del runs[name]
                elif turn:
                    runs[name].append(row)
                if note := getattr(engine.generate, "note", ""):
                    found.note(note)
        for name, rows in runs.items():
            middle = sorted(rows, key=_speed)[len(rows) // 2]
            turns = {
                "prompts": len(prompts),
                "turns_tokens_per_second": [_speed(row) for row in rows],
                "verified": True,
            }
            found.results.append({"engine": name, **config, **middle, **turns})


def _speed(row: dict[str, Any]) -> float:
    return float(row["tokens_per_second"])


def _serving(found: Results, engines: Engines, workload: Workload) -> dict[str, float]:
    """How fast those that are engines and emitted the right tokens were at the batch size that is looked at closely."""
    return {
        row["engine"]: row["tokens_per_second"]
        for row in found.results
        if row["verified"]
        and (row["batch"], row["lengths"], row["acceptance"]) == (found.plan.focus, workload.lengths, None)
        and engines[row["engine"]].decoder.engine is not None
    }


def _arrivals(found: Results, engines: Engines, workload: Workload, listen: Listen) -> None:
    """Engines that take prompts as they come, at one rate: a share of what the slowest of them gets through."""
    plan, speeds = found.plan, _serving(found, engines, workload)
    if not speeds:
        return
    rate = LOAD * min(speeds.values()) / plan.max_new_tokens
    prompts = [workload.prompts[i % len(workload.prompts)] for i in range(plan.arrival_prompts)]
    runs: dict[str, list[list[float]]] = {name: [] for name in speeds}
    for turn in range(plan.repeats):
        for name in list(runs):
            listen(f"{workload.lengths} prompts, {rate:.2f} arrivals a second, {turn + 1}: {name}")
            settings = {"num_draft_tokens": plan.num_draft_tokens, "batch_size": plan.focus}
            make = partial(engines[name].decoder.engine, workload.pair.target, workload.pair.draft, **settings)
            with engines[name].decoder.inside():
                seconds = judged(workload, prompts, make, partial(latencies, rate=rate))
            if isinstance(seconds, Failure):
                found.note(f"{name} {seconds.message} when {workload.lengths} prompts arrive one by one")
                del runs[name]
            else:
                runs[name].append(seconds)
    for name in speeds:
        p50, p99 = ([round(float(np.percentile(seconds, p)), 3) for seconds in runs.get(name, ())] for p in (50, 99))
        found.arrivals.append(
            {
                "engine": name,
                "batch": plan.focus,
                "lengths": workload.lengths,
                "arrivals": len(prompts),
                "arrivals_per_second": round(rate, 3),
                "p50_s": statistics.median(p50) if p50 else None,
                "p99_s": statistics.median(p99) if p99 else None,
                "turns_p99_s": p99,
                "verified": name in runs,
            }
        )


def _sampled(found: Results, engines: Engines, workload: Workload, listen: Listen) -> None:
    """What sampling costs the engines that sample, in each way, turn by turn."""
    plan = found.plan
    able = [n for n in _serving(found, engines, workload) if "temperature" in engines[n].decoder.capabilities]
    runs: dict[tuple[str, str], list[float]] = {(name, way): [] for name in able for way in WAYS}
    for turn in range(plan.focus_repeats):
        for name, way in list(runs):
            listen(f"{workload.lengths} prompts, sampled with {way}, {turn + 1}: {name}")
            engine = engines[name]
            models = (workload.pair.target, workload.pair.draft)
            make = partial(Timed, engine.decoder, engine.generate, *models, plan.num_draft_tokens, plan.focus)
            with engine.decoder.inside():
                ratio = cost(workload, workload.prompts[: plan.prompts], make, WAYS[way], sampled_first=turn % 2 > 0)
            if isinstance(ratio, Failure):
                found.note(f"{name} {ratio.message} when {workload.lengths} prompts are sampled with {way}")
                del runs[name, way]
            else:
                runs[name, way].append(ratio)
    for name in able:
        for way in WAYS:
            ratios = runs.get((name, way), [])
            found.sampled.append(
                {
                    "engine": name,
                    "lengths": workload.lengths,
                    "batch": plan.focus,
                    "options": way,
                    "turns_ratio": [round(ratio, 4) for ratio in ratios],
                    "ratio": round(statistics.median(ratios), 4) if ratios else None,
                    "verified": bool(ratios),
                }
            )


def machine(device: torch.device) -> dict[str, Any]:
    """What the figures were measured on."""
    cpu = next(
        (line.partition(": ")[2] for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor() or platform.machine(),
    )
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "eqcheck": __version__,
    }


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
