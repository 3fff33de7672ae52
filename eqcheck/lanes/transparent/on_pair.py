"""The decoder on trained models: the shipped pair in float64, a batch of ragged prompts, judged by tokens.

Here no cache can be read, so a wrong token has no cause; the cases on transparent models are for that.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import replace

import torch

from eqcheck import pair
from eqcheck.contract import Decoder, Request
from eqcheck.errors import Unsupported
from eqcheck.findings import RealPair
from eqcheck.harness import why
from eqcheck.oracle import Oracle
from eqcheck.text import render
from eqcheck.workers.local import set_up

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
STOPS = (10, 41, 58, 95)  # bytes that rows reach as EOS: most rows a newline
SPACE = 32  # a pad that prompts contain
_EQUAL = 15  # what prompts are cut to where they are to be of one length


def on_pair(decoder: Decoder) -> RealPair:
    """Decode the texts with the pair: to the limit, and to a stop token, each on a padding side that is claimed.

    Where the decoder declined, no row was decoded, and ``first`` says why.
    """
    began = time.perf_counter()
    target, draft = pair.load(torch.float64)
    oracle = Oracle(target)
    rows, equivalent, wrong, declined = 0, 0, "", ""
    with set_up(decoder, []) as generate, torch.no_grad():
        for request in _requests(decoder):
            prompts, eos = [list(prompt) for prompt in request.prompts], request.eos_token_ids
            pad = request.pad_token_id
            try:
                outputs = generate(target, draft, request)
                verdict = oracle.check(prompts, outputs, max_new_tokens=NEW, eos_token_ids=eos, pad_token_id=pad)
            except Unsupported as error:
                declined = declined or f"declined: {why(error)}"
                continue
            except Exception as error:  # the decoder's, or of the oracle at what it returned
                rows += len(prompts)
                wrong = wrong or f"{type(error).__name__}: {error}"
                continue
            rows += len(prompts)
            equivalent += sum(row.first is None for row in verdict.rows)
            if verdict.explanation is not None:
                wrong = wrong or render(verdict.explanation)
    return RealPair(rows, equivalent, wrong or declined, round(time.perf_counter() - began, 2))


def _requests(decoder: Decoder) -> list[Request]:
    """Two requests for all texts, or as many as it takes to meet what the decoder requires."""
    needs = decoder.requires
    prompts = [pair.encode(text)[: _EQUAL if "equal-lengths" in needs else None] for text in TEXTS]
    groups: dict[int, list[list[int]]] = defaultdict(list)
    for number, prompt in enumerate(prompts):
        key = number if "batch-1" in needs else len(prompt) if "equal-lengths" in needs else 0
        groups[key].append(prompt)
    requests = []
    for group in groups.values():
        fed = {token for prompt in group for token in prompt}
        stops = [stop for stop in STOPS if not ("eos-not-in-prompt" in needs and stop in fed)]
        eos = () if "no-eos" in needs else tuple(stops[:1])
        pad = 0 if "pad-not-in-prompt" in needs else SPACE
        plain = Request(group, NEW, K, (), 0, decoder.padding_sides[0])
        side = decoder.padding_sides[-1]
        requests += [plain, replace(plain, eos_token_ids=eos, pad_token_id=pad, padding_side=side)]
    return requests
