"""Pairs of options at work in the cases that are drawn for an engine, if all its rows are right.

    python -m benchmarks.pairs vllm 300

No engine is started. The report of an audit has the same table, by what the engine answered.
"""

from __future__ import annotations

import sys
from collections import Counter
from itertools import combinations, islice

import torch

from eqcheck.contract.registry import load
from eqcheck.core.result.findings import Options
from eqcheck.core.result.tally import PAIRED
from eqcheck.engines.checkpoints.row_judge import truth
from eqcheck.engines.drawing import exercised
from eqcheck.engines.lane import EngineLane


def main() -> None:
    """Print how many pairs of options are at work in one of so many cases, and which are not."""
    name, count = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    pairs = Counter[tuple[str, str]]()
    seen = set[str]()
    for case in islice(EngineLane(load(name), Options()).cases(), count):
        if case.switch:
            continue
        rows = tuple(tuple(map(int, truth(case.checkpoint).row(row))) for row in case.rows)
        counters = exercised(case, rows, {"late_rows": int(any(row.arrival for row in case.options))})
        counters |= {name for name in ("logprobs", "prompt_logprobs") if any(getattr(o, name) for o in case.options)}
        at_work = [name for name in PAIRED if name in counters]
        seen.update(at_work)
        pairs.update(combinations(at_work, 2))
    every = list(combinations([name for name in PAIRED if name in seen], 2))
    never = ["-".join(pair) for pair in every if not pairs[pair]]
    print(f"{name}, {count} cases: {len(every) - len(never)} of {len(every)} pairs of {len(seen)} options")
    print(f"never in one case: {', '.join(never) or 'none'}")


if __name__ == "__main__":
    main()
