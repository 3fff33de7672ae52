"""The evidence of a stand-alone script: fewer bets than an audit has, on one request that is drawn again and again.

`eqcheck.lanes.checkpoint.sampled.script` copies this file and `eqcheck.truth.law` beside the scripts of an engine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from eqcheck.truth.law import law

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
        *((p**power / (p**power).sum()) for power in (1.36, 0.74)),
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
