# A copy, made by eqcheck 0.3.0.
"""The law of a row's next token: the target's scores, and the row's options applied in an order.

One implementation for the truth, for engines and for tests. Tokens outside every cut have the probability zero, and
how far the scores are from moving a cut is measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from types import SimpleNamespace as RowOptions

ORDER = ('temperature', 'top-k', 'top-p', 'min-p')


class Law(NamedTuple):
    """Probabilities ``[n, vocabulary]``, and ``margin`` ``[n]``: the change of the scores, in nats, that moves a cut.

    A margin is infinite where nothing is cut. Scores that an engine's rounding changes by less are cut alike.
    """

    probabilities: torch.Tensor
    margin: torch.Tensor


def penalised(
    scores: torch.Tensor, options: RowOptions, prompt: Sequence[int], output: Sequence[int], start: int = 0
) -> torch.Tensor:
    """Scores ``[n, vocabulary]`` with the row's options on scores; row i comes after ``output[:start + i]``.

    A bias is added first. A repetition penalty divides the scores of what is in prompt and output, or multiplies them
    below zero (Keskar and others, 2019, https://arxiv.org/abs/1909.05858); a presence penalty is taken from the scores
    of what is in the output, a frequency penalty as often as it is there. Then tokens are forbidden: the last one of a
    bad word whose others end the output, one that ends an n-gram which is in prompt and output before, every token that
    is not among the allowed ids, or that the grammar does not allow behind the output, and an EOS before the minimum.
    """
    asked = (options.repetition_penalty, options.presence_penalty, options.frequency_penalty, options.min_new_tokens)
    named = (options.logit_bias, options.bad_words, options.allowed_ids, options.grammar)
    if (*asked, options.no_repeat_ngram_size, *named) == (1.0, 0.0, 0.0, 0, 0, (), (), (), ()):
        return scores
    scores = scores.clone()
    for token, bias in options.logit_bias:
        scores[:, token] += bias
    for number, score in enumerate(scores, start):
        before = list(output[:number])
        if (penalty := options.repetition_penalty) != 1:
            seen = sorted({*prompt, *before})
            score[seen] = torch.where(score[seen] > 0, score[seen] / penalty, score[seen] * penalty)
        if options.presence_penalty or options.frequency_penalty:
            new = sorted(set(before))
            counts = torch.tensor([before.count(token) for token in new], dtype=score.dtype)
            score[new] -= options.presence_penalty + options.frequency_penalty * counts
        forbidden = [word[-1] for word in options.bad_words if before[number - len(word) + 1 :] == list(word[:-1])]
        forbidden += _ending_again(options.no_repeat_ngram_size, [*prompt, *before])
        if number < options.min_new_tokens:
            forbidden += options.eos_token_ids
        score[forbidden] = float("-inf")
    for score, kept in zip(scores, options.ruled(output, start, len(scores)) if options.grammar else (), strict=False):
        rest = score[kept]
        score[:] = float("-inf")
        score[kept] = rest
    if options.allowed_ids:
        scores[:, sorted({*range(scores.shape[-1])} - {*options.allowed_ids})] = float("-inf")
    return scores


def _ending_again(size: int, tokens: Sequence[int]) -> list[int]:
    """The tokens that would repeat an earlier sequence of so many tokens, as in transformers; none for a 0."""
    begun = list(tokens[len(tokens) - size + 1 :])
    starts = range(len(tokens) - size + 1) if size else ()
    return [tokens[at + size - 1] for at in starts if list(tokens[at : at + size - 1]) == begun]


class Asked:
    """The options of rows, as numbers for scores like these; made once where laws are needed again and again.

    All are ``[n, 1]``, or ``[n, 1, 1]`` for scores ``[n, columns, vocabulary]`` of n rows: ``warm`` divides the scores,
    ``values`` are the place where top-k cuts a sorted row, the share that top-p leaves out, the logarithm of min-p.
    ``off`` says where an option is off; where it is off for all rows it is not ``used``, where for some, it is
    ``partly`` so.
    """

    def __init__(self, rows: Sequence[RowOptions], like: torch.Tensor) -> None:
        table = [(row.temperature, row.top_k, row.top_p, row.min_p) for row in rows]
        numbers = torch.tensor(table, dtype=like.dtype, device=like.device).T
        given = dict(zip(ORDER, numbers.reshape(len(ORDER), -1, *(1,) * (like.dim() - 1)), strict=True))
        self.off = {name: value == _OFF[name] for name, value in given.items()}
        columns = zip(*table, strict=True)
        on = {name: [x != _OFF[name] for x in column] for name, column in zip(ORDER, columns, strict=True)}
        self.used = {name for name, rows_on in on.items() if any(rows_on)}
        self.partly = {name for name in self.used if not all(on[name])}
        self.some_greedy = any(not row.temperature for row in rows)
        self.warm = given["temperature"].masked_fill(self.off["temperature"], 1.0)
        vocabulary = like.shape[-1]
        at = (vocabulary - given["top-k"].long()).clamp(0, vocabulary - 1)
        self.values = {"top-k": at, "top-p": 1 - given["top-p"], "min-p": given["min-p"].log()}


def law(
    scores: torch.Tensor,
    options: RowOptions | Sequence[RowOptions] | Asked,
    order: Sequence[str] = ORDER,
    *,
    measured: bool = True,
) -> Law:
    """The law of scores ``[n, vocabulary]`` under the options of one row, or of a row each.

    A temperature of 0 is greedy: all is on the first of the highest scores, whatever else is cut. Where it is not
    ``measured`` no margin is looked for: all are infinite.

    >>> p, margin = law(torch.tensor([[2.0, 1.0, 0.0]]).double(), RowOptions(1, temperature=1.0, top_k=2))
    >>> [round(float(x), 3) for x in p[0]], float(margin[0])
    ([0.731, 0.269, 0.0], 0.5)
    """
    rows = [options] * len(scores) if isinstance(options, RowOptions) else options
    asked = rows if isinstance(rows, Asked) else Asked(rows, scores)
    greedy = torch.zeros_like(scores).scatter_(-1, scores.argmax(-1, keepdim=True), 1.0) if asked.some_greedy else None
    cuts = _Cuts(scores, asked, measured)
    for step in order:
        if step == "temperature":
            cuts.warm()
        elif step in asked.used:
            cuts.cut(step)
    p, margin = cuts.left().softmax(-1), cuts.margin
    if greedy is not None:
        p = torch.where(asked.off["temperature"], greedy, p)
        margin = margin.masked_fill(asked.off["temperature"][..., 0], math.inf)
    return Law(p, margin)


class _Cuts:
    """Scores under the steps of an order: ``ordered`` are those of each row, sorted, ``least`` the lowest left in.

    ``scale`` is what they were divided by.
    """

    def __init__(self, scores: torch.Tensor, asked: Asked, measured: bool) -> None:
        self.scores, self.asked, self.measured = scores, asked, measured
        self.margin = scores.new_full(scores.shape[:-1], math.inf)
        self.scale: torch.Tensor | None = None
        self.ordered: torch.Tensor | None = None
        self.least: torch.Tensor | None = None

    def warm(self) -> None:
        """Divide by the temperature."""
        self.scores, self.scale = self.scores / self.asked.warm, self.asked.warm
        if self.ordered is not None and self.least is not None:
            self.ordered, self.least = self.ordered / self.asked.warm, self.least / self.asked.warm

    def cut(self, step: str) -> None:
        """Leave out the tokens that one option leaves out."""
        asked, ordered = self.asked, self.ordered
        if ordered is None or self.least is None:
            ordered = _ascending(self.scores)
        elif self.measured or step == "top-p":  # of the others' cuts the greatest holds, whatever was cut before
            ordered = ordered.masked_fill(ordered < self.least, -math.inf)
        least = _LEAST[step](ordered, asked.values[step])
        if self.measured:
            room = _room(step, ordered, least, asked.values[step])
            room = room if self.scale is None else room * self.scale
            self.margin = torch.minimum(self.margin, room.masked_fill(asked.off[step], math.inf)[..., 0])
        if step in asked.partly:
            least = least.masked_fill(asked.off[step], -math.inf)
        self.ordered, self.least = ordered, least if self.least is None else torch.maximum(self.least, least)

    def left(self) -> torch.Tensor:
        """The scores, with each one that was cut as low as can be."""
        return self.scores if self.least is None else self.scores.masked_fill(self.scores < self.least, -math.inf)


def _top_k(ordered: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """The score at this place of each sorted row; ties with it stay."""
    return ordered.gather(-1, at.expand(*ordered.shape[:-1], 1))


def _top_p(ordered: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
    """The score of the least likely token that is needed to leave out no more than this; ties with it stay."""
    at = (ordered.softmax(-1).cumsum(-1)[..., :-1] <= rest).sum(-1, keepdim=True)  # the likeliest is never left out
    return ordered.gather(-1, at)


def _min_p(ordered: torch.Tensor, log_share: torch.Tensor) -> torch.Tensor:
    """The score at this share of the most likely token's probability."""
    return ordered[..., -1:] + log_share


_LEAST = {"top-k": _top_k, "top-p": _top_p, "min-p": _min_p}
_OFF = {"temperature": 0, "top-k": 0, "top-p": 1, "min-p": 0}


def _room(step: str, ordered: torch.Tensor, least: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """By how much sorted scores may change before this cut, at ``least``, moves; ``[..., 1]``."""
    last = ordered.shape[-1] - 1
    at = (ordered < least).sum(-1, keepdim=True).clamp(max=last)
    inside, outside = ordered.gather(-1, at), ordered.gather(-1, (at - 1).clamp(min=0))
    nothing = (at == 0) | (outside == -math.inf)  # is cut
    if step == "min-p":
        above = (inside - least).masked_fill(at == last, math.inf)  # the most likely token moves the cut with it
        return torch.minimum(above, (least - outside).masked_fill(nothing, math.inf)) / 2
    room = ((inside - outside) / 2).masked_fill(nothing, math.inf)  # then two tokens change places
    if step == "top-p":
        # Where no score changes by more than d, the log-odds of a sum of probabilities change by at most 2 d.
        below = ordered.softmax(-1).cumsum(-1)
        sums = torch.cat([below.gather(-1, (at - 1).clamp(min=0)), below.gather(-1, at)], dim=-1)
        near = (sums.logit() - value.logit()).abs() / 2
        near = near.masked_fill(torch.cat([at == 0, at == last], dim=-1), math.inf)
        room = torch.minimum(room, near.amin(-1, keepdim=True))
    return room


def _ascending(scores: torch.Tensor) -> torch.Tensor:
    """Each row sorted; numpy is many times as fast as torch, which sorts places as well."""
    if scores.device.type != "cpu":
        return scores.sort(-1).values
    ordered = scores.clone()
    ordered.numpy().sort()
    return ordered
