"""What verifying a tree costs beside a chain of as many nodes: ``PYTHONPATH=tests/tools python -m comparison.trees``.

Batches of eight rows of the shipped pair, on one thread, in seconds of the processor: `tree` on chains and on trees of
K nodes, and `ragged` with K draft tokens, in turns. All commit the same tokens.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.pair import load
from eqcheck.core.case.record import Case

tree, ragged, rounds, serving = (
    import_module(f"eqcheck.reference_impls.{name}") for name in ("tree", "ragged", "serving.rounds", "serving")
)
ROWS, NEW, RUNS = 8, 64, 8  # the first run warms up
seconds: defaultdict[str, float] = defaultdict(float)


def timed(home: Any, function: str, name: str) -> None:
    """Count what a function takes under a name."""
    original: Callable[..., Any] = getattr(home, function)

    def counted(*args: Any, **more: Any) -> Any:
        begun = time.process_time()
        try:
            return original(*args, **more)
        finally:
            seconds[name] += time.process_time() - begun

    setattr(home, function, counted)


def costs(decode: Callable[[], Any]) -> tuple[dict[str, float], Any]:
    """Seconds of drafting and of verifying, and what was decoded."""
    seconds.clear()
    rows = decode()
    verify = seconds["verify"] + seconds["round"] - seconds["propose"]
    return {"draft": seconds["grow"] + seconds["propose"], "verify": verify}, rows


def main() -> None:
    torch.set_num_threads(1)
    pair, text = load(), Path(__file__).read_bytes()
    timed(tree.Tree, "_verify", "verify")
    timed(tree, "compact", "verify")
    timed(tree.Tree, "_grow", "grow")
    timed(ragged, "speculate", "round")
    timed(rounds, "propose", "propose")
    for k in (4, 8):
        chain = tuple((number, 0) for number in range(k))
        fork = (*chain[:-1], (0, 1))
        ratios: dict[str, list[float]] = {}
        for run in range(RUNS):
            rng = random.Random(run)
            starts = [rng.randrange(len(text) - 64) for _ in range(ROWS)]
            prompts = tuple(tuple(text[start : start + rng.randint(16, 48)]) for start in starts)
            request = Case(prompts, max_new_tokens=NEW, num_draft_tokens=k, vocab_size=256, pad_token_id=0).request()

            def decoded(kind: Any, request: Any = request, **more: Any) -> tuple[dict[str, float], Any]:
                with torch.no_grad():
                    return costs(lambda: serving.decode(kind, *pair, request, batch_size=ROWS, **more))

            plain, expected = decoded(ragged.Ragged)
            for name, shape in (("chain", chain), ("fork", fork)):
                found, rows = decoded(tree.Tree, shapes=lambda row, number, shape=shape: shape)
                assert rows == expected
                for part, spent in found.items() if run else ():
                    ratios.setdefault(f"{part}, {name}", []).append(spent / plain[part])
        for name, values in ratios.items():
            print(f"K {k}, {name}: {median(values):.2f} of ragged ({min(values):.2f} to {max(values):.2f})")


if __name__ == "__main__":
    main()
