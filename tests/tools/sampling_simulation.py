"""False alarms and power of the evidence, by simulation.

    PYTHONPATH=tests/tools python -m sampling_simulation --out DIR

Writes ``sampling.json`` and ``sampling.md``. Numpy only, one process.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from simulated_faults import FAULTS, RIGHT, Fault
from simulated_samplers import REGIMES, Options, Sampler, World, as_case, decode

from eqcheck.sampling.betting.laws import Floats, SampledRow
from eqcheck.sampling.betting.wealth import PORTFOLIO, VIOLATION, Wealth
from eqcheck.sampling.drawing import DRAWN

WEIGHTS = {name: regime.share for name, regime in DRAWN.items()}
AUDIT, ROWS, LENGTH = 2500, 5, 25
UNEQUAL: tuple[Options, ...] = ((1.0, 0, 1.0), (0.7, 0, 1.0), (1.3, 20, 1.0), (1.0, 0, 0.9), (0.8, 10, 0.95))
LIMIT, TRIALS, BATCH = 30_000, 9, 8
_PIT = np.array([name.startswith("pit") for name in PORTFOLIO])


class Course(Wealth):
    """Evidence that also follows what its PIT bets would be worth alone, and when each first crosses 10^6."""

    def __init__(self) -> None:
        super().__init__()
        self.pit_crossed: int | None = None
        self._pit: Floats = np.zeros(int(_PIT.sum()))
        self._seen = 0

    def _earn(self, gains: Floats, regime: str) -> None:
        super()._earn(gains, regime)
        course = self._pit + np.cumsum(gains[:, _PIT], axis=0)
        over = np.flatnonzero(np.exp(np.minimum(course, 700)).mean(-1) >= VIOLATION)
        if len(over) and self.pit_crossed is None:
            self.pit_crossed = self._seen + int(over[0]) + 1
        self._pit, self._seen = course[-1], self._seen + len(gains)


def cases(
    sampler: Sampler, world: World, number: int, rng: np.random.Generator, skipping: bool
) -> list[list[SampledRow]]:
    """Cases of five rows; row 1 of each is the twin of row 0. They are decoded side by side."""
    option = rng.integers(0, len(world.options), (number, ROWS))
    context = rng.integers(0, world.contexts, (number, ROWS))
    option[:, 1], context[:, 1] = option[:, 0], context[:, 0]
    groups = np.repeat(np.arange(number), ROWS)
    tokens = decode(sampler, world, option.ravel(), context.ravel(), groups, LENGTH, rng).reshape(number, ROWS, LENGTH)
    return [as_case(world, option[i], context[i], tokens[i], twin=True, skipping=skipping) for i in range(number)]


def false_alarms(audits: int, size: int, seed: int) -> dict[str, Any]:
    """Audits of right samplers over all regimes, with unequal options, twins, skipped positions and greedy rows."""
    worlds = {name: World(regime, UNEQUAL, size, 512, seed + i) for i, (name, regime) in enumerate(REGIMES.items())}
    highest, final, tokens, impossible = [], [], 0, 0
    for audit in range(audits):
        rng = np.random.default_rng([seed, audit])
        sampler = list(RIGHT.values())[audit % len(RIGHT)]
        wealth = Wealth()
        while wealth.tokens < AUDIT:
            regime = str(rng.choice(list(WEIGHTS), p=list(WEIGHTS.values())))
            for rows in cases(sampler, worlds[regime], 4, rng, skipping=True):
                judged = rows[:-1] if rng.random() < 0.2 else rows  # the last row is greedy, and not handed in
                wealth.add(judged, regime)
        highest.append(wealth.log_supremum)
        final.append(wealth.log_evidence)
        tokens += wealth.tokens
        impossible += len(wealth.impossible)
    over = {str(bound): int((np.array(highest) >= np.log(bound)).sum()) for bound in (2, 5, 10, 20, 100, 1000, 10**6)}
    samplers = {name: max(highest[i :: len(RIGHT)], default=0.0) / np.log(10) for i, name in enumerate(RIGHT)}
    return {
        "audits": audits,
        "tokens": tokens,
        "impossible": impossible,
        "supremum_at_least": over,
        "final_at_least": {bound: int((np.array(final) >= np.log(float(bound))).sum()) for bound in over},
        "greatest_log10": max(highest) / np.log(10),
        "final_log10_quantiles": [float(x) for x in np.quantile(final, [0, 0.05, 0.5, 0.95, 1]) / np.log(10)],
        "mean_final": float(np.exp(np.minimum(final, 700)).mean()),
        "greatest_log10_by_sampler": samplers,
    }


Trial = tuple[int | None, int | None, str, int | None]


def trial(fault: Fault, worlds: dict[str, World], seed: list[int]) -> Trial:
    """Tokens until the evidence crosses 10^6, and until PIT bets alone do; the best alternative; tokens until one is
    impossible. Regimes are drawn by weight where there are several."""
    rng = np.random.default_rng(seed)
    weights = np.array([WEIGHTS[regime] for regime in worlds])
    course, impossible, batch = Course(), None, 1
    while course.tokens < LIMIT:
        regime = str(rng.choice(list(worlds), p=weights / weights.sum()))
        for rows in cases(fault.sampler, worlds[regime], batch, rng, skipping=False):
            before = course.tokens
            course.add(rows, regime)
            if course.impossible and impossible is None:
                impossible = before + sum(len(row.tokens) for row in rows)
            if course.crossed is not None and (course.pit_crossed is not None or course.tokens > 4 * course.crossed):
                return course.crossed, course.pit_crossed, course.best()[0][0].name, impossible
        batch = 1 if len(worlds) > 1 else BATCH
    return course.crossed, course.pit_crossed, course.best()[0][0].name, impossible


def median(found: list[int | None]) -> float | None:
    middle = sorted(LIMIT * 10 if one is None else one for one in found)[len(found) // 2]
    return None if middle > LIMIT else float(middle)


def power(trials: int, size: int, seed: int) -> list[dict[str, Any]]:
    """The median of tokens until 10^6 for every fault: in `std`, in one other regime, and in audits that
    draw their regimes."""
    found = []
    made: dict[Any, World] = {}
    for number, (name, fault) in enumerate(FAULTS.items()):
        entry: dict[str, Any] = {"fault": name, "other_regime": fault.other}
        entry |= {"before_std": fault.before_std, "before_other": fault.before_other}
        for place in dict.fromkeys(("std", fault.other, "mixed")):
            worlds = {}
            for regime in REGIMES if place == "mixed" else [place]:
                key = (regime, fault.options)
                if key not in made:
                    made[key] = World(REGIMES[regime], fault.options, size, 512, seed + len(made))
                worlds[regime] = made[key]
            outcomes: list[Trial] = []
            for one in range(trials):
                outcomes.append(trial(fault, worlds, [seed, number, one]))
                if one == 2 and all(outcome[0] is None for outcome in outcomes):
                    break
            names = [outcome[2] for outcome in outcomes]
            entry[place] = {
                "tokens": median([outcome[0] for outcome in outcomes]),
                "pit_alone": median([outcome[1] for outcome in outcomes]),
                "best": max(names, key=names.count),
                "trials": len(outcomes),
                "impossible": median([outcome[3] for outcome in outcomes]),
            }
        found.append(entry)
        print(name, entry, flush=True)
    return found


def shown(tokens: float | None, most: float = LIMIT) -> str:
    if tokens is None and most < LIMIT:
        return f"> {shown(most)}"
    return f"> {LIMIT // 1000}k" if tokens is None else f"{tokens:.0f}" if tokens < 1000 else f"{tokens / 1000:.1f}k"


def alone(one: dict[str, Any]) -> str:
    """What PIT bets need alone; they are given four times the tokens that all bets together need."""
    return shown(one["pit_alone"], 4 * (one["tokens"] or LIMIT))


def tables(found: dict[str, Any]) -> str:
    """Both tables as Markdown."""
    lines = ["# The evidence of sampled audits, simulated", ""]
    lines += ["`PYTHONPATH=tests/tools python -m sampling_simulation --out DIR` writes these tables.", ""]
    if "false_alarms" in found:
        one = found["false_alarms"]
        lines += [
            f"{one['audits']} audits of right samplers, {one['tokens']} tokens. The greatest evidence at any time was "
            f"10^{one['greatest_log10']:.2f}; {one['impossible']} impossible tokens; the mean of the final evidence is "
            f"{one['mean_final']:.3f} (1 at most is right).",
            "",
            "| evidence at least | audits, at any time | share | bound | audits, at the end |",
            "|---|---|---|---|---|",
        ]
        for bound, count in one["supremum_at_least"].items():
            share, most = count / one["audits"], 1 / float(bound)
            lines.append(f"| {bound} | {count} | {share:.2%} | {most:.2%} | {one['final_at_least'][bound]} |")
        by_sampler = ", ".join(f"{name} {value:.2f}" for name, value in one["greatest_log10_by_sampler"].items())
        lines += ["", f"Greatest evidence by sampler (log10): {by_sampler}.", ""]
    if "power" in found:
        lines += [
            "Median tokens until 10^6, of five rows a case, two of them twins. *Mixed*: regimes are drawn too.",
            "Three trials where none of them crosses, else nine. *Before*: an earlier study with other laws and bets.",
            "",
            "| fault | std | PIT alone | before | other regime | tokens | PIT alone | before | mixed | what wins |",
            "|---|---|---|---|---|---|---|---|---|---|",
        ]
        for one in found["power"]:
            std, best = one["std"], one[one["other_regime"]]
            lines.append(
                f"| {one['fault']} | {shown(std['tokens'])} | {alone(std)} | {one['before_std']} "
                f"| {one['other_regime']} | {shown(best['tokens'])} | {alone(best)} | {one['before_other']} "
                f"| {shown(one['mixed']['tokens'])} | {std['best']}; {best['best']} |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for sampling.json and sampling.md")
    parser.add_argument("--audits", type=int, default=2000, help="audits of right samplers (0: none)")
    parser.add_argument("--trials", type=int, default=TRIALS, help="trials of each fault (0: none)")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"seed": given.seed}
    for name, count in (("false_alarms", given.audits), ("power", given.trials)):
        if count:
            start = time.process_time()
            found[name] = (
                false_alarms(count, 64, given.seed) if name == "false_alarms" else power(count, 128, given.seed)
            )
            found[f"{name}_seconds"] = round(time.process_time() - start)
            (given.out / "sampling.json").write_text(json.dumps(found, indent=1) + "\n")
            (given.out / "sampling.md").write_text(tables(found))


if __name__ == "__main__":
    main()
