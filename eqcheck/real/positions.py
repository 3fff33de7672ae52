"""The positions at which a model takes its tokens to be, read off the keys that it wrote, whatever it was told.

Key and value of the first layer are a function of token and position. So the written entry is held against the
entry of its token at the position that was said; where they differ, the position of the nearest entry in reach counts.
A model that takes no position ids counts by itself, and cannot be asked for entries at other positions than its count.
"""

from __future__ import annotations

from inspect import signature
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from eqcheck.contract.cache_names import cache_argument
from eqcheck.hashlm.hashing import Ints
from eqcheck.real.tap import Watched

_BELOW, _BEYOND = 8, 72  # positions in reach: below zero, and beyond the largest that was said
_TOLERANCE = {torch.float64: 1e-7, torch.float32: 1e-3, torch.float16: 0.03, torch.bfloat16: 0.08}


class Stop(BaseException):
    """Ends a forward once the first layer's keys are known."""


def entries(keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Keys and values of the first head, ``[batch, block, width]`` float64, from ``[batch, heads, block, width]`` each.

    Both, since caches of latents have the rotated part where others have values.
    """
    return torch.cat([keys[:, 0], values[:, 0]], dim=-1).double()


class Positions:
    """The keys of a model's first layer by token and position; filled as they are asked for."""

    def __init__(self, watched: Watched) -> None:
        self.watched = watched
        self._keys: dict[tuple[int, int], torch.Tensor] = {}
        parameter = next(watched.model.parameters())
        self._tolerance = _TOLERANCE.get(parameter.dtype, 0.03)
        self._counts = "position_ids" not in signature(watched.base.forward).parameters
        self.probing: list[torch.Tensor] | None = None  # takes what is written while keys are asked for

    def read(self, tokens: Ints, said: Ints, flat: torch.Tensor) -> Ints:
        """The positions ``[batch, block]`` of new `entries`; ``said`` where none fits."""
        if self._counts:
            return said
        self._ask({(int(t), int(p)) for t, p in zip(tokens.ravel(), said.ravel(), strict=True)})
        positions = said.copy()
        for row, column in np.ndindex(tokens.shape):
            token, position = int(tokens[row, column]), int(said[row, column])
            expected = self._keys.get((token, position))
            if expected is not None and len(expected) != flat.shape[-1]:
                return said  # latents in the cache, and none here: nothing to hold them against
            if expected is None or self._distance(expected, flat[row, column]) > self._tolerance:
                positions[row, column] = self._nearest(token, position, flat[row, column])
        return positions

    def _distance(self, expected: torch.Tensor, key: torch.Tensor) -> float:
        distance = (expected - key).norm() / expected.norm().clamp_min(1e-12)
        return float(distance.detach())  # torch warns where a tensor with a gradient becomes a number

    def _nearest(self, token: int, position: int, key: torch.Tensor) -> int:
        reach = range(-_BELOW, max(position, 0) + _BEYOND)
        self._ask({(token, at) for at in reach})
        known = {at: self._keys[token, at] for at in reach if (token, at) in self._keys}
        if not known:
            return position
        distances = (torch.stack(list(known.values())) - key).norm(dim=-1) / key.norm().clamp_min(1e-12)
        best = int(distances.argmin())
        return list(known)[best] if float(distances[best]) <= self._tolerance else position

    def _ask(self, pairs: set[tuple[int, int]]) -> None:
        missing = sorted(pair for pair in pairs if pair not in self._keys)
        learned = getattr(self.watched.model.config, "n_positions", None)
        if learned:  # a table of positions has no other
            missing = [(token, at) for token, at in missing if 0 <= at < learned]
        if not missing:
            return
        tokens, positions = (torch.tensor([[pair[i] for pair in missing]]) for i in (0, 1))
        self.probing = []
        try:
            self._forward(tokens, positions)
        except Stop:
            pass
        except Exception:  # layers before the first attention need more than tokens: then what was said counts
            return
        finally:
            probed, self.probing = self.probing, None
        if not probed:
            return
        for pair, key in zip(missing, probed[0][0], strict=True):
            self._keys[pair] = key

    def _forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> Any:
        base = self.watched.base
        mask = torch.eye(tokens.shape[1], dtype=torch.bool)[None, None]
        options = {"position_ids": positions, "attention_mask": mask, **cache_argument(base, DynamicCache())}
        return base(input_ids=tokens, use_cache=True, **options)
