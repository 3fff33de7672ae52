"""Latency under Poisson arrivals: prompts come at random times, whatever the engine is doing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.workload import Job


def latencies(engine: Any, prompts: Sequence[Job], rate: float, seed: int = 0) -> tuple[list[float], list[list[int]]]:
    """Seconds from arrival to last token of each prompt, at ``rate`` arrivals a second; and the outputs.

    The arrival times are the same for the same seed, rate and number of prompts.
    """
    due = np.random.default_rng(seed).exponential(1 / rate, len(prompts)).cumsum().tolist()
    outputs: list[list[int]] = [[] for _ in prompts]
    done = [0.0] * len(prompts)
    began = time.perf_counter()

    def arriving() -> Iterator[Job | None]:
        for number, (one, at) in enumerate(zip(prompts, due, strict=True)):
            while (wait := began + at - time.perf_counter()) > 0:
                if engine.busy:
                    yield None
                else:
                    time.sleep(wait)
            yield one._replace(id=number)

    for update in engine.stream(arriving()):
        outputs[update.id] += update.token_ids
        if update.finish_reason:
            done[update.id] = time.perf_counter() - began
    return [end - start for end, start in zip(done, due, strict=True)], outputs
