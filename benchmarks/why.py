"""Where the speed of each engine comes from: measured turn by turn, beside what the formulas predict.

Every speed-up is over plain decoding of the same prompts in the same turn, at the same batch size. Every output is
verified, as everywhere in the benchmark.
"""

from __future__ import annotations

import copy
import inspect
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import pair as trained
from benchmarks.costs import costs
from benchmarks.law import Acceptance, Costs, acceptance, best_k, predicted, schedule, waterfall
from benchmarks.measure import Clock, Failure, Timed, judged, processor_time
from benchmarks.pair.train import corpus
from benchmarks.run import GREEDY, Listen, machine
from benchmarks.sizes import saved
from benchmarks.traces import GENERATORS, MEASURED, accepted, described, rounds_for
from benchmarks.workload import Workload
from eqcheck.contract.decoders import Decoder

FORMAT = "eqcheck-law/1"
JOINING = ("ragged", "exspec")  # in which rows join while others go on


@dataclass(frozen=True)
class Plan:
    """What is measured: at these batch sizes, with so many turns; ``ks`` at ``k_batches``; ``budgets`` at ``focus``.

    Drafts of several sizes are measured once each, so on more prompts: what they accept is counted and not timed.
    """

    batches: tuple[int, ...] = (1, 2, 4, 8)
    num_draft_tokens: int = 4
    max_new_tokens: int = 40
    waves: int = 2
    prompts: int = 12
    turns: int = 3
    ks: tuple[int, ...] = (1, 2, 4, 6)
    k_batches: tuple[int, ...] = (1, 8)
    budgets: tuple[float, ...] = (1.0, 0.6, 0.35)
    budget_turns: int = 5
    focus: int = 8
    draft_prompts: int = 64

    def count(self, batch: int) -> int:
        return max(self.prompts, self.waves * batch)


QUICK = Plan(
    batches=(1, 4), prompts=6, waves=2, turns=1, ks=(1, 4), k_batches=(4,), budget_turns=1, focus=4, draft_prompts=8
)


@dataclass
class Law:
    """What was measured: ``speeds`` by engine and batch, ``best`` K by batch, throughput within ``budgets`` of memory,
    the ``traces`` of the generators, and the acceptance of ``drafts`` of several sizes."""

    plan: Plan
    machine: dict[str, Any]
    costs: dict[int, Costs] = field(default_factory=dict)
    speeds: list[dict[str, Any]] = field(default_factory=list)
    best: list[dict[str, Any]] = field(default_factory=list)
    budgets: list[dict[str, Any]] = field(default_factory=list)
    traces: list[dict[str, Any]] = field(default_factory=list)
    drafts: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        found = {name: value for name, value in vars(self).items() if name not in ("plan", "costs")}
        by_batch = {str(batch): one._asdict() for batch, one in self.costs.items()}
        return {"format": FORMAT, "plan": vars(self.plan), **found, "costs": by_batch}


def law(decoders: Sequence[Decoder], plan: Plan, drafts: Path | None, listen: Listen) -> Law:
    """Measure all of it, for those decoders that have an engine, and for the ``drafts`` of `benchmarks.sizes`.

    ``KeyboardInterrupt`` ends it early, with what there is and a note.
    """
    models = trained.load()
    workload = Workload(models, corpus()[1], "mixed", plan.count(max(plan.batches)), plan.max_new_tokens)
    found = Law(plan, machine(models.target.device) | {"threads": 1})
    found.traces = [_trace(name, plan.focus) for name in ("uniform", *GENERATORS)]
    try:
        with processor_time(models.target.device):
            _measure(found, [one for one in decoders if one.engine is not None], workload, drafts, listen)
    except KeyboardInterrupt:
        found.notes.append("interrupted; what is missing was not measured")
    return found


def _measure(found: Law, engines: list[Decoder], workload: Workload, drafts: Path | None, listen: Listen) -> None:
    plan = found.plan
    length = int(np.mean([len(one.token_ids) + one.max_new_tokens / 2 for one in workload.prompts]))
    for batch in plan.batches:
        listen(f"isolated forwards, batch {batch}")
        found.costs[batch] = costs(workload.pair, batch, length)
    for batch in reversed(plan.batches):
        _speeds(found, engines, workload, batch, listen)
    found.speeds.sort(key=lambda row: row["batch"])
    fastest = {row["engine"]: row["speed_up"] for row in found.speeds if row["batch"] == max(plan.batches)}
    for engine in sorted(engines, key=lambda one: fastest.get(one.name, 0.0))[-1:]:
        if drafts is not None:
            _drafts(found, engine, workload, drafts, listen)
        _best(found, engine, workload, listen)
    for engine in engines:
        if any("kv_bytes" in inspect.signature(kind.__init__).parameters for kind in engine.engine.__mro__):
            _budgets(found, engine, workload, listen)


def _turn(
    found: Law, decoder: Decoder, workload: Workload, batch: int, k: int, settings: dict[str, Any], count: int = 0
) -> Any:
    """One measurement: the figures, the seconds of each part, and what each round gave; or a `Failure`.

    It takes ``count`` prompts, or as many as are planned.
    """
    prompts = workload.prompts[: count or found.plan.count(batch)]
    timed: list[Timed] = []

    def make() -> Timed:
        timed.append(Timed(decoder, decoder.function, workload.pair.target, workload.pair.draft, k, batch, **settings))
        return timed[0]

    clock = Clock(most=k + 1)
    row = judged(workload, prompts, make, lambda one, some: one.measure(some, clock))
    if isinstance(row, Failure):
        note = f"{decoder.name} {row.message} at batch {batch}"
        found.notes += [note] if note not in found.notes else []
        return None
    return row, clock, timed[0]


def _speeds(found: Law, engines: Sequence[Decoder], workload: Workload, batch: int, listen: Listen) -> None:
    plan, k = found.plan, found.plan.num_draft_tokens
    turns: dict[str, list[Any]] = {one.name: [] for one in (GREEDY, *engines)}
    for turn in range(plan.turns):
        for decoder in (GREEDY, *engines):
            listen(f"batch {batch}, turn {turn + 1}: {decoder.name}")
            turns[decoder.name].append(_turn(found, decoder, workload, batch, k, {}))
    plain = turns.pop(GREEDY.name)
    prompts = workload.prompts[: plan.count(batch)]
    limits = [one.max_new_tokens for one in prompts]
    for name, measured in turns.items():
        pairs = [(a, b) for a, b in zip(plain, measured, strict=True) if a and b]
        if not pairs:
            continue
        ratios = [a[0]["seconds"] / b[0]["seconds"] for a, b in pairs]
        middle = sorted(range(len(ratios)), key=lambda i: ratios[i])[len(ratios) // 2]
        (before, _, _), (row, clock, timed) = pairs[middle]
        gave = acceptance(timed.committed, limits, k, batch)
        one = found.costs[batch]
        seconds = _seconds(before["seconds"], row, clock, timed.engine.stats, gave.tokens, one, batch, k)
        speed = ratios[middle]
        found.speeds.append(
            {
                "engine": name,
                "batch": batch,
                "speed_up": round(speed, 4),
                "turns": [round(ratio, 4) for ratio in ratios],
                "acceptance": {key: _rounded(value) for key, value in gave._asdict().items()},
                "factors": {key: round(value, 5) for key, value in waterfall(seconds).items()},
                "predicted": _predictions(found, name, gave, timed.committed, limits, batch),
                "verified": True,
            }
        )


def _rounded(value: float | tuple[float, ...]) -> float | list[float]:
    return round(value, 4) if isinstance(value, float) else [round(one, 4) for one in value]


def _seconds(
    plain: float, row: dict[str, Any], clock: Clock, stats: Any, tokens: float, one: Costs, batch: int, k: int
) -> list[float]:
    """The times between plain decoding and what was measured; see `benchmarks.law.STEPS`."""
    n, verify = row["tokens"], one.verify(k + 1)
    rounds = n / tokens / batch  # if no row were ever missing
    forwards = clock.seconds["verify"] + clock.seconds["draft"]
    # An engine counts its own seconds by the clock on the wall: of them only the share is taken.
    moved = (stats.seconds["realign"] + stats.seconds["group"]) / stats.seconds["total"] * row["seconds"]
    return [
        plain,
        n / batch * one.verify(1),
        rounds * one.verify(1),
        rounds * verify,
        rounds * one.round(k),
        clock.calls["verify"] * one.round(k),
        forwards,
        forwards + clock.seconds["prefill"],
        forwards + clock.seconds["prefill"] + moved,
        row["seconds"],
    ]


def _predictions(
    found: Law, name: str, gave: Acceptance, committed: Sequence[Sequence[int]], limits: Sequence[int], batch: int
) -> dict[str, float]:
    """The speed-up as the formula has it, with a rate for each row, and with rows that wait for each other."""
    k, one = found.plan.num_draft_tokens, found.costs[batch]
    batches, all_costs = sorted(found.costs), [found.costs[b] for b in sorted(found.costs)]
    gain = one.verify(1) / one.round(k)
    # Plain decoding feeds a static batch until its longest row has ended.
    steps = [batch] * sum(max(limits[at : at + batch]) for at in range(0, len(limits), batch))
    plain = predicted(steps, batches, lambda cost: cost.verify(1), all_costs, len(limits))
    calls = schedule([len(row) for row in committed], batch, name in JOINING)
    engine = predicted(calls, batches, lambda cost: cost.round(k), all_costs, len(limits))
    return {
        "same": round(gave.same * gain, 4),
        "by_row": round(gave.by_row * gain, 4),
        "waiting": round(plain / engine, 4),
    }


def _best(found: Law, engine: Decoder, workload: Workload, listen: Listen) -> None:
    """The tokens a second with several K, and what the formula says of them."""
    plan = found.plan
    for batch in plan.k_batches:
        rates, measured = [], {}
        for k in plan.ks:
            listen(f"best K at batch {batch}: {engine.name}, K = {k}")
            runs = [run for _ in range(plan.turns) if (run := _turn(found, engine, workload, batch, k, {}))]
            if runs:
                measured[k] = statistics.median(row["tokens"] / row["seconds"] for row, _, _ in runs)
                limits = [one.max_new_tokens for one in workload.prompts[: plan.count(batch)]]
                rates.append(acceptance(runs[0][2].committed, limits, k).a)
        if not measured:
            continue
        a = statistics.median(rates)
        best, gains = best_k(a, found.costs[batch], max(plan.ks))
        top = max(measured, key=lambda k: measured[k])
        found.best.append(
            {
                "engine": engine.name,
                "batch": batch,
                "a": round(a, 4),
                "predicted": best,
                "measured": top,
                "gains": {str(k): round(gain, 4) for k, gain in gains.items()},
                "tokens_per_second": {str(k): round(speed, 2) for k, speed in measured.items()},
                "lost_by_prediction": round(1 - measured.get(best, 0.0) / measured[top], 4)
                if best in measured
                else None,
            }
        )


def _budgets(found: Law, engine: Decoder, workload: Workload, listen: Listen) -> None:
    """The throughput within shares of the memory that the engine takes without a bound, turn by turn."""
    plan, batch = found.plan, found.plan.focus
    free = _turn(found, engine, workload, batch, plan.num_draft_tokens, {})
    if free is None:
        return
    whole = free[2].engine.stats.kv_bytes
    ratios: dict[float, list[float]] = {share: [] for share in plan.budgets}
    calls: dict[float, int] = {}
    for turn in range(plan.budget_turns):
        base = _turn(found, engine, workload, batch, plan.num_draft_tokens, {})
        for share in plan.budgets:
            listen(f"{engine.name} in {share:.0%} of its memory, turn {turn + 1}")
            settings = {"kv_bytes": int(share * whole)}
            run = _turn(found, engine, workload, batch, plan.num_draft_tokens, settings)
            if run and base:
                ratios[share].append(base[0]["seconds"] / run[0]["seconds"])
                calls[share] = run[2].engine.stats.verify_calls
                assert run[2].engine.stats.kv_bytes <= settings["kv_bytes"]
    for share, kept in ratios.items():
        if kept:
            found.budgets.append(
                {
                    "engine": engine.name,
                    "batch": batch,
                    "share": share,
                    "kv_bytes": int(share * whole),
                    "throughput_kept": round(statistics.median(kept), 4),
                    "turns": [round(one, 4) for one in kept],
                    "verify_calls": calls[share],
                }
            )


def _drafts(found: Law, engine: Decoder, workload: Workload, folder: Path, listen: Listen) -> None:
    """The tokens a round with each draft, on the same prompts."""
    plan = found.plan
    many = Workload(workload.pair, corpus()[1], "mixed", plan.draft_prompts, plan.max_new_tokens)
    limits = [one.max_new_tokens for one in many.prompts]
    for one in saved(folder):
        listen(f"draft {one.size} after {one.tokens:,} tokens")
        other = copy.copy(many)
        other.pair = trained.Pair(workload.pair.target, one.draft)
        run = _turn(found, engine, other, plan.focus, plan.num_draft_tokens, {}, plan.draft_prompts)
        if run:
            gave = acceptance(run[2].committed, limits, plan.num_draft_tokens)
            kept = {"size": one.size, "parameters": one.parameters, "tokens": one.tokens}
            found.drafts.append({**kept, "acceptance_length": round(gave.tokens, 4), "a": round(gave.a, 4)})


def _trace(name: str, batch: int, rows: int = 400, tokens: int = 128, k: int = 4) -> dict[str, Any]:
    """What rows of a generator need for so many tokens, and what a batch waits for."""
    if name == "uniform":
        noise = np.random.default_rng(0)
        counts = noise.integers(0, k + 1, (rows, tokens)).tolist()
    else:
        counts = [accepted(name, tokens, (0, row), k) for row in range(rows)]
    needed = np.array([rounds_for(tokens, row) for row in counts])
    slowest = needed[: rows // batch * batch].reshape(-1, batch).max(1).mean()
    found = {
        "name": name,
        "tokens_a_round": round(float(np.mean(counts)) + 1, 3),
        "rounds": sorted(needed.tolist()),
        "slowest_of_batch": round(float(slowest / needed.mean()), 4),
        "batch": batch,
    }
    if name in MEASURED:
        here = described(name, rows, tokens)
        found |= {"here": [round(one, 3) for one in here], "measured": list(MEASURED[name])}
    return found
