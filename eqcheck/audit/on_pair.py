"""The decoder on trained models: the shipped pair in float64, a batch of ragged prompts, judged by tokens.

Here no cache can be read, so a wrong token has no cause; the cases on transparent models are for that.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from eqcheck import pair
from eqcheck.contract import Decoder, Request
from eqcheck.oracle import Oracle
from eqcheck.text import render

TEXTS = (
    "import os\nimport sys\n\n\ndef main(",
    '    """Return the ',
    "class Error(Exception):\n    pass\n\n\nclass ",
    "x",
    "    def __init__(self, name, value=None):\n        self.name = name\n        self.",
    "for i in range(",
    "The following functions are defined:\n\n.. function:: ",
    "    if not isinstance(value, str):\n        raise TypeError(",
)
NEW, K = 24, 4


@dataclass(frozen=True)
class OnPair:
    """How many rows were decoded, how many are what the target emits alone, and what is wrong with the first other."""

    rows: int
    equivalent: int
    first: str
    seconds: float

    @property
    def wrong(self) -> bool:
        return self.equivalent < self.rows

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def on_pair(decoder: Decoder) -> OnPair:
    """Decode two batches with the pair: to the limit, and to a stop token, each on a padding side that is claimed."""
    began = time.perf_counter()
    target, draft = pair.load(torch.float64)
    oracle = Oracle(target)
    asked = Request([pair.encode(text) for text in TEXTS], NEW, K, (), 0, decoder.padding_sides[0])
    newline, space = 10, 32  # an EOS that most rows reach, and a pad that prompts contain
    requests = [
        asked,
        replace(asked, eos_token_ids=(newline,), pad_token_id=space, padding_side=decoder.padding_sides[-1]),
    ]
    equivalent, first = 0, ""
    with decoder.running() as generate, torch.no_grad():
        for request in requests:
            prompts, eos = [list(prompt) for prompt in request.prompts], request.eos_token_ids
            try:
                outputs = generate(target, draft, request)
                verdict = oracle.check(
                    prompts, outputs, max_new_tokens=NEW, eos_token_ids=eos, pad_token_id=request.pad_token_id
                )
            except Exception as error:  # the decoder's, or of the oracle at what it returned
                first = first or f"{type(error).__name__}: {error}"
                continue
            equivalent += sum(row.first is None for row in verdict.rows)
            if verdict.explanation is not None:
                first = first or render(verdict.explanation)
    return OnPair(len(requests) * len(TEXTS), equivalent, first, round(time.perf_counter() - began, 2))
