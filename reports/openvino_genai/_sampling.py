"""The evidence of sampled scripts, by eqcheck 0.1.0: the law of each token, and bets against it."""

from __future__ import annotations

import math
import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import _engine

ORDER = ('temperature', 'top-k', 'top-p', 'min-p')
RowOptions = SimpleNamespace

import numpy as np
import torch
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


class Asked:
    """What rows ask for, as numbers for scores like these; made once where laws are needed again and again.

    All are ``[n, 1]``, or ``[n, 1, 1]`` for scores ``[n, columns, vocabulary]`` of n rows: ``warm`` is what scores are
    divided by, ``values`` where a sorted row is cut by top-k, what top-p leaves out, the logarithm of min-p. ``off``
    says where an option is off; where it is off for all rows it is not ``used``.
    """

    def __init__(self, rows: Sequence[RowOptions], like: torch.Tensor) -> None:
        table = [(row.temperature, row.top_k, row.top_p, row.min_p) for row in rows]
        numbers = torch.tensor(table, dtype=like.dtype, device=like.device).T
        given = dict(zip(ORDER, numbers.reshape(len(ORDER), -1, *(1,) * (like.dim() - 1)), strict=True))
        self.off = {name: value == _OFF[name] for name, value in given.items()}
        columns = zip(*table, strict=True)
        self.used = {name for name, column in zip(ORDER, columns, strict=True) if any(x != _OFF[name] for x in column)}
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
    margin, scale = scores.new_full((*scores.shape[:-1], 1), math.inf), torch.ones_like(asked.warm)
    ordered = least = None  # the scores of each row, sorted, and the lowest that is not cut
    for step in order:
        if step == "temperature":
            scores, scale = scores / asked.warm, asked.warm
            if ordered is not None and least is not None:
                ordered, least = ordered / asked.warm, least / asked.warm
        elif step in asked.used:
            if ordered is None or least is None:
                ordered = _ascending(scores)
            else:
                ordered = ordered.masked_fill(ordered < least, -math.inf)
            found = _LEAST[step](ordered, asked.values[step])
            if measured:
                room = _room(step, ordered, found, asked.values[step]) * scale
                margin = torch.minimum(margin, room.masked_fill(asked.off[step], math.inf))
            found = found.masked_fill(asked.off[step], -math.inf)
            least = found if least is None else torch.maximum(least, found)
    if least is not None:
        scores = scores.masked_fill(scores < least, -math.inf)
    p = scores.softmax(-1)
    if greedy is not None:
        p = torch.where(asked.off["temperature"], greedy, p)
        margin = margin.masked_fill(asked.off["temperature"], math.inf)
    return Law(p, margin[..., 0])


def _top_k(ordered: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """The score at this place of each sorted row; ties with it stay."""
    return ordered.gather(-1, at.expand(*ordered.shape[:-1], 1))


def _top_p(ordered: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
    """The score of the least likely token that is needed to leave out no more than this; ties with it stay."""
    at = (ordered.softmax(-1).cumsum(-1) <= rest).sum(-1, keepdim=True)
    return ordered.gather(-1, at.clamp(max=ordered.shape[-1] - 1))


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
    return torch.from_numpy(np.sort(scores.numpy())) if scores.device.type == "cpu" else scores.sort(-1).values


CROSSES = 1e6  # a right engine's evidence ever gets there once in a million runs


def evidence(logs: Any) -> float:
    """What all bets are worth together: the mean of their products, from sums of logarithms ``[bets]``.

    >>> evidence(np.log([1.0, 3.0]))
    2.0
    """
    top = float(np.max(logs))
    return float(math.exp(min(top, 600.0)) * np.mean(np.exp(logs - top)))


def earned(models: Any, prompts: Any, options: Any, outputs: Any, order: Any) -> tuple[Any, int, bool]:
    """What one answer earns each bet, in logarithms ``[bets]``; its sampled tokens; whether one was impossible.

    ``models`` are the target and the draft in float64, and the target in float32. Where float32 may move a cut, 16
    times what it was seen to change, a token is skipped; the rest is divided by what 16 times as much rounding earns.
    """
    total, count, impossible = np.zeros(len(names())), 0, False
    seen: list[tuple[Any, Any, Any]] = []
    change = 1e-10
    for prompt, asked, output in zip(prompts, options, outputs, strict=True):
        if not asked.temperature:
            continue
        n = len(output)
        ids = torch.tensor([[*prompt, *output]])
        with torch.no_grad():
            scores = [model(input_ids=ids).logits[0, len(prompt) - 1 : -1].double() for model in models]
        right, margin = law(scores[0], [asked] * n, order)
        p = right.numpy()
        q, near = (law(one, [asked] * n, order, measured=False)[0].numpy() for one in scores[1:])
        raw = scores[0].softmax(-1).numpy()
        likely = p >= 1e-7
        eps = 16 * np.maximum(np.abs(np.where(likely, near / np.maximum(p, 1e-7) - 1, 0.0)).max(-1), 1e-10)
        eps = eps + np.where(likely, 0.0, p).sum(-1)  # rare tokens are not bet on
        twin: Any = next((one[2] for one in seen if (one[0], one[1]) == (prompt, asked_for(asked))), None)
        for t, token in enumerate(output):
            change = max(change, float((scores[0][t] - scores[2][t]).abs().max()))
            if float(margin[t]) <= 16 * change:
                continue
            count += 1
            impossible |= bool(p[t, token] == 0)
            same = twin is not None and t < len(twin) and list(twin[:t]) == list(output[:t])
            if likely[t, token]:
                gains = bets(p[t], q[t], raw[t], token, twin[t] if same else -1)
                total = total + np.log(np.minimum(gains, 50.0) / (1 + eps[t]))
        seen.append((prompt, asked_for(asked), output))
    return total, count, impossible


def asked_for(asked: Any) -> tuple[Any, ...]:
    """A row's options but for its seed."""
    return asked.max_new_tokens, asked.temperature, asked.top_k, asked.top_p, asked.min_p


def names() -> list[str]:
    """The bets."""
    laws = ["draft", "residual", "draft-argmax", "argmax", "uniform", "colder", "warmer", "raw", "unused", "again"]
    tilts = [f"{order} {tilt}" for order in ("id", "p", "p/q") for tilt in (-0.5, -0.2, 0.2, 0.5)]
    return [f"{name} {share}" for name in laws for share in (0.05, 0.3, 0.95)] + tilts + ["twin 0.3", "twin 0.9"]


def bets(p: Any, q: Any, raw: Any, token: int, twin: int) -> Any:
    """``r(x)/p(x)`` of an emitted token for the laws r that a wrong sampler might follow; ``twin`` is its twin's."""
    both = np.minimum(p, q)
    rest = p - both
    laws = [
        q,
        rest / rest.sum() if rest.sum() > 1e-12 else p,
        np.arange(len(p)) == q.argmax(),
        np.arange(len(p)) == p.argmax(),
        np.full(len(p), 1 / len(p)),
        *((p**power / (p**power).sum()) for power in (1.43, 0.7)),
        raw,
        both + (1 - both.sum()) * p,
        p * (q + 1 - (p * q).sum()),
    ]
    ratios = [float(one[token]) / p[token] for one in laws]
    found = [1 - share + share * ratio for ratio in ratios for share in (0.05, 0.3, 0.95)]
    orders: Sequence[Any] = (np.arange(len(p)), -p, -p / np.maximum(q, 1e-300))
    for order in orders:
        before = float(p[(order < order[token]) | ((order == order[token]) & (np.arange(len(p)) < token))].sum())
        middle = 2 * before + float(p[token]) - 1
        found += [1 + tilt * max(-1.0, min(1.0, middle)) for tilt in (-0.5, -0.2, 0.2, 0.5)]
    equal = (1 / p[token] if token == twin else 0.0) if twin >= 0 and p[twin] > 0 else 1.0
    return np.array([*found, *(1 - share + share * equal for share in (0.3, 0.9))])


def begin(target, draft, request):
    """Start the engine, in a process of its own; random numbers are fresh in every run."""
    _engine.prepare()
    begin.engine = _engine.start(target, draft, request)
    random.seed()


def once(request):
    return _engine.decode(begin.engine, request)


def drawn(folders, models, request, order, most):
    """Decode the request again and again: the evidence after the last token, tokens, requests, impossible tokens."""
    logs, tokens, requests, impossible, greatest = 0.0, 0, 0, 0, 1.0
    with ProcessPoolExecutor(1, get_context("spawn"), begin, (*folders, request)) as pool:
        while tokens < most and greatest < CROSSES and not impossible:
            for asked in request.rows:
                asked.seed = None if asked.seed is None else random.getrandbits(31)
            outputs = pool.submit(once, request).result()
            gains, count, odd = earned(models, request.prompts, request.rows, outputs, order)
            logs, tokens, requests, impossible = logs + gains, tokens + count, requests + 1, impossible + odd
            greatest = max(greatest, evidence(logs))
    return greatest, tokens, requests, impossible


def main(rows, settings, order, most):
    """Draw the request with speculation and without, say what was seen, and end with the exit code."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    prompts, options = zip(*rows)
    request = SimpleNamespace(prompts=list(prompts), rows=list(options), **settings)
    plain = SimpleNamespace(**{**vars(request), "drafting": "none"})
    folder = Path(tempfile.mkdtemp())
    try:
        folders = _engine.build(folder)
        pairs = ((folders[0], torch.float64), (folders[1], torch.float64), (folders[0], torch.float32))
        models = [AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval() for path, dtype in pairs]
        seen = {"with": drawn(folders, models, request, order, most)}
        if seen["with"][3] or seen["with"][0] >= CROSSES:
            seen["without"] = drawn(folders, models, plain, order, max(3 * seen["with"][1], 500))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for name, (greatest, tokens, requests, impossible) in seen.items():
        wrong = impossible or greatest >= CROSSES
        odd = ", and a token that has no probability" if impossible else ""
        print(
            f"{name} speculation: {'WRONG' if wrong else 'not shown'}: the evidence against the target's law was "
            f"{greatest:.3g} at most in {tokens} tokens of {requests} answers{odd}"
        )
    print("At 1e6 the law is wrong: a right engine gets there once in a million runs.")
    sys.exit(len(seen) > 1)
