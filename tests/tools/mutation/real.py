"""Whether a mutant changes the output of a real model: random ragged cases on a tiny Llama and a tiny GPT-2."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from tiny import VOCABULARY, noisy, tiny

from eqcheck import Unsupported
from eqcheck.contract.decoders import Generate, Request
from eqcheck.transparent.decoding import cut

KINDS = ("llama", "gpt2")
CASES = 24  # of each kind
NOISE = 0.015  # on the draft's weights, so that it agrees with the target on about half of the tokens
TIME_LIMIT = 4.0


@dataclass(frozen=True)
class Real:
    """A request to a tiny model of this ``kind``, and what the model emits for each row alone."""

    kind: str
    request: dict[str, Any]
    truth: list[list[int]]


@lru_cache(maxsize=2)
def models(kind: str) -> tuple[Any, Any]:
    """A target in float64 whose weights are spread well, and its draft."""
    target = tiny(kind, seed=1)
    return target, noisy(target, NOISE)


@torch.no_grad()
def alone(model: Any, prompt: list[int], new: int) -> list[int]:
    """What the model emits greedily for one row, without any cache."""
    tokens = list(prompt)
    for _ in range(new):
        tokens.append(int(model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


@lru_cache(maxsize=1)
def cases(count: int = CASES) -> tuple[Real, ...]:
    """The cases, in turns of each kind: 1 to 5 rows, EOS ids that occur, both padding sides, chunks, late rows."""
    draw = random.Random(16)
    found = []
    for number in range(count):
        rows = draw.choice((1, 2, 3, 3, 4, 5))
        prompts = [[draw.randrange(VOCABULARY) for _ in range(draw.randint(1, 9))] for _ in range(rows)]
        new = draw.randint(2, 14)
        asked: dict[str, Any] = {
            "prompts": prompts,
            "max_new_tokens": new,
            "num_draft_tokens": draw.randint(1, 5),
            "pad_token_id": draw.randrange(VOCABULARY),
            "padding_side": draw.choice(("left", "right")),
        }
        if number % 4 == 1:
            asked["prefill_chunk"] = draw.randint(1, 5)
        if number % 4 == 3:
            asked["arrivals"] = tuple(draw.randint(0, 4) for _ in prompts)
        places = [draw.random() for _ in range(draw.choice((0, 0, 1, 2)))]
        for kind in KINDS:
            uncut = [alone(models(kind)[0], prompt, new) for prompt in prompts]
            emitted = [token for row in uncut for token in row]
            eos = tuple(dict.fromkeys(emitted[int(place * len(emitted))] for place in places))
            truth = [list(cut(row, eos)) for row in uncut]
            found.append(Real(kind, {**asked, "eos_token_ids": eos}, truth))
    return tuple(found)


def changes(generate: Generate, count: int = CASES) -> tuple[str, str] | None:
    """The kind of the first model that gives other output, and how: ``tokens``, ``crash``, ``hang``, ``declines``."""
    for case in cases(count):
        how = _tried(generate, case)
        if how:
            return case.kind, how
    return None


def _tried(generate: Generate, case: Real) -> str:
    try:
        with torch.no_grad(), within(TIME_LIMIT):
            output = generate(*models(case.kind), Request(**{**case.request, "prompts": list(case.request["prompts"])}))
    except TimeUp:
        return "hang"
    except Unsupported:
        return "declines"
    except Exception:
        return "crash"
    return "" if output == case.truth else "tokens"


class TimeUp(BaseException):
    """A mutant did not answer in time."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise `TimeUp` after so many seconds."""

    def ring(*_: object) -> None:
        raise TimeUp

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, 0.5)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
