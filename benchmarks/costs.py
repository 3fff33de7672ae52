"""What isolated forwards of a pair take: the target with so many columns, the draft with one, both with prompts."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from transformers import DynamicCache

from benchmarks.law import Costs
from benchmarks.measure import now
from benchmarks.pair import Pair
from eqcheck.contract.cache_names import cache_argument

COLUMNS = (1, 2, 3, 5, 7, 9)
TIMES = 7  # of which the middle one counts


@torch.no_grad()
def costs(pair: Pair, batch: int, length: int) -> Costs:
    """Seconds of forwards over ``batch`` rows of ``length`` tokens each."""
    ids = torch.randint(1, 200, (batch, length + max(COLUMNS)), generator=torch.Generator().manual_seed(0))
    ids = ids.to(pair.target.device)
    columns = {q: _seconds(pair.target, ids, length, q) for q in COLUMNS}
    prompt = sum(_middle(partial(model, ids[:, :length]), model.device) for model in (pair.target, pair.draft))
    return Costs(columns, _seconds(pair.draft, ids, length, 1), prompt)


def _seconds(model: Any, ids: torch.Tensor, length: int, q: int) -> float:
    cache = DynamicCache(config=model.config)
    model(ids[:, :length], **cache_argument(model, cache))

    def forward() -> None:
        model(ids[:, length : length + q], **cache_argument(model, cache))
        cache.crop(-q)

    return _middle(forward, model.device)


def _middle(forward: Callable[[], Any], device: torch.device) -> float:
    forward()
    found = []
    for _ in range(TIMES):
        began = now(device)
        forward()
        found.append(now(device) - began)
    return statistics.median(found)
