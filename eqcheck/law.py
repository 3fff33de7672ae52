"""The law of a row's next token: the target's scores, and the row's options applied in an order.

One implementation for the truth, for engines and for tests. Tokens outside every cut have the probability zero, and
how far the scores are from moving a cut is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

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

    def column(name: str) -> torch.Tensor:
        return torch.tensor([getattr(row, name) for row in rows], dtype=scores.dtype, device=scores.device)[:, None]

    warm = column("temperature")
    greedy = warm == 0
    first = scores.argmax(-1, keepdim=True)
    warm = torch.where(greedy, torch.ones_like(warm), warm)
    margin, scale = torch.full_like(warm, float("inf")), torch.ones_like(warm)
    for step in order:
        if step == "temperature":
            scores, scale = scores / warm, warm
        else:
            name, cut = _CUTS[step]
            value = column(name)
            if (value != _OFF[step]).any():
                kept, room = cut(scores, value)
                kept |= value == _OFF[step]
                room = torch.where(value == _OFF[step], torch.full_like(room, float("inf")), room)
                scores = scores.masked_fill(~kept, float("-inf"))
                margin = torch.minimum(margin, room * scale)
    p = scores.softmax(-1)
    best = torch.zeros_like(p).scatter_(1, first, 1.0)
    return Law(torch.where(greedy, best, p), torch.where(greedy, torch.full_like(margin, float("inf")), margin)[:, 0])


def _top_k(scores: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What is not below the k-th highest score; ties with it stay."""
    ordered = scores.sort(-1, descending=True).values
    last = (k.long() - 1).clamp(0, scores.shape[-1] - 1)
    least = ordered.gather(1, last)
    following = ordered.gather(1, (last + 1).clamp(max=scores.shape[-1] - 1))
    room = torch.where(torch.isfinite(following) & (last + 1 < scores.shape[-1]), (least - following) / 2, float("inf"))
    return scores >= least, room


def _top_p(scores: torch.Tensor, share: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The most likely tokens up to and with the one that makes their sum reach the share."""
    ordered, order = scores.sort(dim=-1, stable=True)
    below = ordered.softmax(-1).cumsum(-1)
    kept = below > 1 - share
    kept[:, -1] = True
    # Where no score changes by more than d, the log-odds of a sum of probabilities change by at most 2 d.
    distance = (below[:, :-1].logit() - (1 - share).logit()).abs().amin(-1, keepdim=True) / 2
    first = kept.long().argmax(-1, keepdim=True)  # and two tokens on either side of the cut may change places
    outside = ordered.gather(1, (first - 1).clamp(min=0))
    gap = torch.where((first > 0) & torch.isfinite(outside), (ordered.gather(1, first) - outside) / 2, float("inf"))
    return torch.zeros_like(kept).scatter_(1, order, kept), torch.minimum(distance, gap)


def _min_p(scores: torch.Tensor, share: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What is not less likely than this share of the most likely token."""
    behind = scores - scores.amax(-1, keepdim=True)
    distance = behind - share.log()
    counts = torch.isfinite(distance) & (
        torch.arange(scores.shape[-1], device=scores.device) != scores.argmax(-1)[:, None]
    )
    return distance >= 0, torch.where(counts, distance.abs(), float("inf")).amin(-1, keepdim=True) / 2


_Cut = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
_CUTS: dict[str, tuple[str, _Cut]] = {
    "top-k": ("top_k", _top_k),
    "top-p": ("top_p", _top_p),
    "min-p": ("min_p", _min_p),
}
_OFF = {"top-k": 0.0, "top-p": 1.0, "min-p": 0.0}
