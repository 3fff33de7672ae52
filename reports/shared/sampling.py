# A copy, made by eqcheck 0.3.0.
"""The evidence of a stand-alone script: fewer bets than an audit has, on one request that is drawn again and again.

`eqcheck.engines.script` copies this file and its imports beside the scripts of an engine.
"""

from __future__ import annotations

import json
import math
import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from _checkpoint import build, request_of, unspeculative
from _law import law

CROSSES = 1e6  # a right engine's evidence ever gets there once in a million runs


def evidence(logs: Any) -> float:
    """The worth of all bets together: the mean of their products, from sums of logarithms ``[bets]``.

    >>> evidence(np.log([1.0, 3.0]))
    2.0
    """
    top = float(np.max(logs))
    return float(math.exp(min(top, 600.0)) * np.mean(np.exp(logs - top)))


def earned(models: Any, prompts: Any, options: Any, outputs: Any, order: Any) -> tuple[Any, int, bool]:
    """The gain of each bet by one answer, in logarithms ``[bets]``; its sampled tokens; whether one was impossible.

    ``models`` are the target and the draft in float64, and the target in float32. Where float32 may move a cut, 16
    times what it was seen to change, a token is skipped; the rest is divided by what 16 times as much rounding earns.
    """
    total, count, impossible = np.zeros(len(names())), 0, False
    seen: list[tuple[Any, Any, Any]] = []
    change = 1e-6  # at least, by a softmax in float32
    for prompt, asked, output in zip(prompts, options, outputs, strict=True):
        if not asked.temperature:
            continue
        n = len(output)
        ids = torch.tensor([[*prompt, *output]])
        with torch.no_grad():
            scores = [model(input_ids=ids).logits[0, len(prompt) - 1 : -1].double() for model in models]
        right, margin = law(scores[0], [asked] * n, order)
        p = right.numpy()
        q, near = (law(score, [asked] * n, order, measured=False)[0].numpy() for score in scores[1:])
        raw = scores[0].softmax(-1).numpy()
        likely = p >= 1e-7
        eps = 16 * np.maximum(np.abs(np.where(likely, near / np.maximum(p, 1e-7) - 1, 0.0)).max(-1), change)
        eps = eps + np.where(likely, 0.0, p).sum(-1)  # rare tokens are not bet on
        twin: Any = next((text for *key, text in seen if key == [prompt, asked_for(asked)]), None)
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
    gains = [1 - share + share * ratio for ratio in ratios for share in (0.05, 0.3, 0.95)]
    orders: Sequence[Any] = (np.arange(len(p)), -p, -p / np.maximum(q, 1e-300))
    for order in orders:
        before = float(p[(order < order[token]) | ((order == order[token]) & (np.arange(len(p)) < token))].sum())
        middle = 2 * before + float(p[token]) - 1
        gains += [1 + tilt * max(-1.0, min(1.0, middle)) for tilt in (-0.5, -0.2, 0.2, 0.5)]
    equal = (1 / p[token] if token == twin else 0.0) if twin >= 0 and p[twin] > 0 else 1.0
    return np.array([*gains, *(1 - share + share * equal for share in (0.3, 0.9))])


class Engine:
    """The engine beside this file, once it is started in a process of its own."""

    started: Any = None

    @classmethod
    def begin(cls, target: str, draft: str, request: Any) -> None:
        """Start it; random numbers are fresh in every run."""
        engine = import_module("_engine")
        engine.prepare()
        cls.started = engine.start(target, draft, request)
        random.seed()

    @classmethod
    def once(cls, request: Any) -> Any:
        return import_module("_engine").decode(cls.started, request)


def drawn(folders: Any, models: Any, request: Any, order: Any, most: int) -> tuple[float, int, int, int]:
    """Decode the request again and again: the evidence after the last token, tokens, requests, impossible tokens."""
    logs: Any = 0.0
    tokens, requests, impossible, greatest = 0, 0, 0, 1.0
    with ProcessPoolExecutor(1, get_context("spawn"), Engine.begin, (*folders, request)) as pool:
        while tokens < most and greatest < CROSSES and not impossible:
            for asked in request.rows:
                asked.seed = None if asked.seed is None else random.getrandbits(31)
            outputs = pool.submit(Engine.once, request).result()
            gains, count, odd = earned(models, request.prompts, request.rows, outputs, order)
            logs, tokens, requests, impossible = logs + gains, tokens + count, requests + 1, impossible + odd
            greatest = max(greatest, evidence(logs))
    return greatest, tokens, requests, impossible


def main(rows: Any, settings: dict[str, Any], order: Any, most: int) -> None:
    """Draw the request with speculation and without, say what was seen, and end with the exit code."""
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    request = request_of(rows, settings)
    folder = Path(tempfile.mkdtemp())
    try:
        folders = tuple(sys.argv[1:3]) or build(folder)
        pairs = ((folders[0], torch.float64), (folders[1], torch.float64), (folders[0], torch.float32))
        models = [AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval() for path, dtype in pairs]
        seen = {"with": drawn(folders, models, request, order, most)}
        if seen["with"][3] or seen["with"][0] >= CROSSES:
            count = max(3 * seen["with"][1], 500)
            seen["without"] = drawn(folders, models, unspeculative(request), order, count)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    wrongly = [name for name, (greatest, _, _, odd) in seen.items() if odd or greatest >= CROSSES]
    for name, (greatest, tokens, requests, impossible) in seen.items():
        odd = ", and a token that has no probability" if impossible else ""
        print(
            f"{name} speculation: {'WRONG' if name in wrongly else 'not shown'}: the evidence against the target's law "
            f"was {greatest:.3g} at most in {tokens} tokens of {requests} answers{odd}"
        )
    print("At 1e6 the law is wrong: a right engine gets there once in a million runs.")
    print(json.dumps({"wrong": wrongly}))
    sys.exit(len(seen) > 1)
