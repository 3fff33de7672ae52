"""The tokens that a real target emits for a row alone: in float64, with its own mask and positions, and no decoder.

Those of a built checkpoint are its function's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from eqcheck.contract.cache_names import cache_argument
from eqcheck.contract.family import Family
from eqcheck.transparent.hashlm.hashing import Ints
from eqcheck.transparent.real.models import VOCAB_SIZE, emitted, model_of


@torch.no_grad()
def tokens_of(family: Family, seed: int, prompts: Sequence[tuple[int, ...]], count: int) -> Ints:
    """The ``count`` new tokens after each prompt, ``[rows, count]``.

    Rows stand in one batch, each from slot 0 on; a mask of four dimensions, which no decoder has a part in, lets each
    query see its own row alone.
    """
    assert family.target is not None
    if family.built:
        return np.array(emitted(family.target.architecture, prompts, count, seed), np.int64)
    model = model_of(family.target.architecture, "float64", seed)
    if family.counts_mask or family.stateful:
        return _recomputed(model, prompts, count)
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    longest = int(lengths.max())
    ids = torch.tensor([[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts])
    slots = torch.arange(longest)
    cache = DynamicCache()  # without a window: what a query sees is the mask's business
    window = family.window
    position = slots.expand(len(prompts), -1)
    answers = model(
        input_ids=ids,
        position_ids=position,
        attention_mask=_mask(model, position, position, window),
        **cache_argument(model, cache),
    ).logits
    new = np.zeros((len(prompts), count), np.int64)
    at = position
    last = answers[torch.arange(len(prompts)), lengths - 1]
    for number in range(count):
        chosen = last[:, :VOCAB_SIZE].argmax(-1)
        new[:, number] = chosen.numpy()
        if number + 1 == count:
            break
        here = (lengths + number)[:, None]
        hidden = torch.where(at == -1, -1, at)
        hidden = torch.where((torch.arange(at.shape[1]) < longest) & (at >= lengths[:, None]), -1, hidden)
        at = torch.cat([hidden, here], dim=1)
        mask = _mask(model, here, at, window)
        last = model(input_ids=chosen[:, None], position_ids=here, attention_mask=mask, **cache_argument(model, cache))
        last = last.logits[:, -1]
    return new


@torch.no_grad()
def scores_of(family: Family, seed: int, tokens: Sequence[int]) -> torch.Tensor:
    """The float64 target's scores ``[len(tokens), vocab_size]`` of the token after each beginning of these."""
    assert family.target is not None
    ids = torch.tensor([list(tokens)])
    model = model_of(family.target.architecture, "float64", seed)
    scores: torch.Tensor = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits[0]
    return scores


def _mask(model: Any, queries: torch.Tensor, keys: torch.Tensor, window: int | None) -> Any:
    """An additive mask by logical position, ``[rows, 1, queries, keys]``; a dict by kind where layers differ."""

    def build(width: int | None) -> torch.Tensor:
        distance = queries[:, :, None] - keys[:, None, :]
        seen = (distance >= 0) & (keys[:, None, :] >= 0)
        if width:
            seen &= distance < width
        return torch.zeros(seen.shape, dtype=torch.float64).masked_fill(~seen, -torch.inf)[:, None]

    kinds = set(getattr(model.config, "layer_types", None) or [])
    if len(kinds) > 1:
        return {kind: build(model.config.sliding_window if "sliding" in kind else None) for kind in kinds}
    return build(window)


def _recomputed(model: Any, prompts: Sequence[tuple[int, ...]], count: int) -> Ints:
    """The new tokens without a cache, for states and for models that read positions off a mask; rows end in padding."""
    rows = [list(prompt) for prompt in prompts]
    new = np.zeros((len(rows), count), np.int64)
    for number in range(count):
        longest = max(map(len, rows))
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        shown = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
        scores = model(input_ids=ids, attention_mask=shown, use_cache=False).logits
        for row, tokens in enumerate(rows):
            tokens.append(int(scores[row, len(tokens) - 1, :VOCAB_SIZE].argmax()))
            new[row, number] = tokens[-1]
    return new


def noise(architecture: str, dtype: str, seed: int) -> float:
    """The largest difference of a score in a dtype from the one in float64, over a few rows alone."""
    return 0.0 if dtype == "float64" else noise_and_gap(architecture, dtype, seed)[0]


@lru_cache(maxsize=16)
def noise_and_gap(architecture: str, dtype: str, seed: int) -> tuple[float, float]:
    """The noise of a dtype, and the widest gap between the two best tokens in float64."""
    exact, rounded = (model_of(architecture, name, seed) for name in ("float64", dtype))
    ids = torch.randint(0, VOCAB_SIZE, (16, 24), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones_like(ids)
    with torch.no_grad():
        one, other = (model(input_ids=ids, attention_mask=mask).logits for model in (exact, rounded))
    best = one.topk(2).values
    return float((one - other.double()).abs().max()), float((best[..., 0] - best[..., 1]).max())
