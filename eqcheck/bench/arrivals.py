"""Latency under Poisson arrivals: prompts come at random times, whatever the engine is doing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np


def latencies(
    engine: Any, prompts: Sequence[list[int]], max_new_tokens: int, rate: float, seed: int = 0
) -> tuple[list[float], list[list[int]]]:
    """Seconds from arrival to last token of each prompt, at ``rate`` arrivals a second; and the outputs.

    The arrival times are the same for the same seed, rate and number of prompts.
    """
    gaps = np.random.default_rng(seed).exponential(1 / rate, len(prompts))
    due = np.cumsum(gaps).tolist()
    outputs: list[list[int]] = [[] for _ in prompts]
    done = [0.0] * len(prompts)
    began = time.perf_counter()

    def clock() -> float:
        return time.perf_counter() - began

    for update in engine.stream(_arriving(engine, prompts, max_new_tokens, due, clock)):
        outputs[update.id] += update.token_ids
        if update.finish_reason:
            done[update.id] = clock()
    return [end - start for end, start in zip(done, due, strict=True)], outputs


def _arriving(
    engine: Any, prompts: Sequence[list[int]], max_new_tokens: int, due: list[float], clock: Callable[[], float]
) -> Iterator[Any]:
    for number, (prompt, at) in enumerate(zip(prompts, due, strict=True)):
        while (wait := at - clock()) > 0:
            if engine.rows:
                yield None
            else:
                time.sleep(wait)
        yield SimpleNamespace(token_ids=prompt, max_new_tokens=max_new_tokens, stop_token_ids=(), id=number)
