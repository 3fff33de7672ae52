"""The law of a row's next token: the target's scores, and the row's options applied in an order.

One implementation for the truth, for engines and for tests. Tokens outside every cut have the probability zero, and
how far the scores are from moving a cut is measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from eqcheck.options import ORDER, RowOptions


class Law(NamedTuple):
    """Probabilities ``[n, vocabulary]``, and ``margin`` ``[n]``: the change of the scores, in nats, that moves a cut.

    A margin is infinite where nothing is cut. What an engine's rounding changes by less is cut alike.
    """

    probabilities: torch.Tensor
    margin: torch.Tensor


def penalised(
    scores: torch.Tensor, options: RowOptions, prompt: Sequence[int], output: Sequence[int], start: int = 0
) -> torch.Tensor:
    """Scores ``[n, vocabulary]`` with the row's penalties and its minimum; row i comes after ``output[:start + i]``.

    A repetition penalty divides the scores of what is in prompt and output, or multiplies them below zero (Keskar and
    others, 2019, https://arxiv.org/abs/1909.05858); a presence penalty is taken from those of what is in the output.
    """
    if (options.repetition_penalty, options.presence_penalty, options.min_new_tokens) == (1.0, 0.0, 0):
        return scores
    scores = scores.clone()
    for number, score in enumerate(scores, start):
        before = output[:number]
        seen = sorted({*prompt, *before})
        penalty = options.repetition_penalty
        score[seen] = torch.where(score[seen] > 0, score[seen] / penalty, score[seen] * penalty)
        score[sorted(set(before))] -= options.presence_penalty
        if number < options.min_new_tokens:
            score[list(options.eos_token_ids)] = float("-inf")
    return scores


def law(scores: torch.Tensor, options: RowOptions | Sequence[RowOptions], order: Sequence[str] = ORDER) -> Law:
    """The law of scores ``[n, vocabulary]`` under the options of one row, or of a row each.

    A temperature of 0 is greedy: all is on the first of the highest scores, whatever else is cut.

    >>> p, margin = law(torch.tensor([[2.0, 1.0, 0.0]]).double(), RowOptions(1, temperature=1.0, top_k=2))
    >>> [round(float(x), 3) for x in p[0]], float(margin[0])
    ([0.731, 0.269, 0.0], 0.5)
    """
    rows = [options] * len(scores) if isinstance(options, RowOptions) else list(options)
    asked = [(row.temperature, row.top_k, row.top_p, row.min_p) for row in rows]
    columns = torch.tensor(asked, dtype=scores.dtype, device=scores.device).unsqueeze(-1).unbind(1)  # [n, 1] each
    values = dict(zip(ORDER, columns, strict=True))
    greedy = values["temperature"] == 0
    warm = values["temperature"].masked_fill(greedy, 1.0)
    first = scores.argmax(-1, keepdim=True)
    margin, scale = torch.full_like(warm, math.inf), torch.ones_like(warm)
    for step in order:
        if step == "temperature":
            scores, scale = scores / warm, warm
        elif any(row[ORDER.index(step)] != _OFF[step] for row in asked):
            kept, room = _CUTS[step](scores, values[step])
            off = values[step] == _OFF[step]
            scores = scores.masked_fill(~(kept | off), -math.inf)
            margin = torch.minimum(margin, (room * scale).masked_fill(off, math.inf))
    p = scores.softmax(-1)
    if any(not row[0] for row in asked):
        p = torch.where(greedy, torch.zeros_like(p).scatter_(1, first, 1.0), p)
    return Law(p, margin.masked_fill(greedy, math.inf)[:, 0])


def _top_k(scores: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What is not below the k-th highest score; ties with it stay."""
    ordered = _ascending(scores)
    at = (scores.shape[-1] - k.long()).clamp(0, scores.shape[-1] - 1)
    return scores >= ordered.gather(1, at), _gap(ordered, at)


def _top_p(scores: torch.Tensor, share: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The most likely tokens up to and with the one that makes their sum reach the share; ties with it stay."""
    ordered = _ascending(scores)
    below = ordered.softmax(-1).cumsum(-1)
    last = scores.shape[-1] - 1
    at = (below <= 1 - share).sum(-1, keepdim=True).clamp(max=last)  # the least likely one that is kept
    # Where no score changes by more than d, the log-odds of a sum of probabilities change by at most 2 d.
    sums = torch.cat([below.gather(1, (at - 1).clamp(min=0)), below.gather(1, at)], dim=1)
    near = (sums.logit() - (1 - share).logit()).abs() / 2
    near = near.masked_fill(torch.cat([at == 0, at == last], dim=1), math.inf)  # nothing, and everything, is no cut
    # And two tokens on either side of the cut may change places.
    return scores >= ordered.gather(1, at), torch.minimum(near.amin(-1, keepdim=True), _gap(ordered, at))


def _min_p(scores: torch.Tensor, share: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What is not less likely than this share of the most likely token."""
    most, best = scores.max(-1, keepdim=True)
    distance = scores - most - share.log()
    return distance >= 0, distance.abs().scatter_(1, best, math.inf).amin(-1, keepdim=True) / 2


def _ascending(scores: torch.Tensor) -> torch.Tensor:
    """Each row sorted; numpy is many times as fast as torch, which sorts places as well."""
    return torch.from_numpy(np.sort(scores.numpy())) if scores.device.type == "cpu" else scores.sort(-1).values


def _gap(ordered: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """Half of what lies between a sorted score and the one below it; infinite where none is."""
    below = ordered.gather(1, (at - 1).clamp(min=0))
    return ((ordered.gather(1, at) - below) / 2).masked_fill((at == 0) | (below == -math.inf), math.inf)


_CUTS: dict[str, Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]] = {
    "top-k": _top_k,
    "top-p": _top_p,
    "min-p": _min_p,
}
_OFF = {"top-k": 0, "top-p": 1, "min-p": 0}
