"""The decoder on trained models: the shipped pair in float64, a batch of ragged prompts, judged by tokens.

Here no cache can be read, so a wrong token has no cause; the cases on transparent models are for that.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import torch

from benchmarks import pair
from eqcheck.contract.decoders import Decoder, Generate, Request, RowOptions
from eqcheck.contract.requirements import barred, without_ids
from eqcheck.decoding.harness import answered
from eqcheck.decoding.run import Truth
from eqcheck.explanation.text import render
from eqcheck.hashlm.trace import Trace
from eqcheck.oracle.check import Oracle
from eqcheck.result.findings import RealPair
from eqcheck.result.outcome import HANG, Outcome
from eqcheck.workers.fork import decoding
from eqcheck.workers.worker import Limits

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


_USUAL = Limits()


@dataclass(frozen=True)
class PairCase:
    """A request to the pair, as what runs decoders wants a case to be."""

    asked: Request
    family: ClassVar[str] = ""
    before: ClassVar[tuple[()]] = ()
    known_ids: ClassVar[int] = pair.BYTES

    @property
    def alone(self) -> PairCase:
        return self

    @property
    def options(self) -> Sequence[RowOptions]:
        return self.asked.rows

    @property
    def prompts(self) -> list[list[int]]:
        return self.asked.prompts

    def request(self) -> Request:
        """What the decoder is asked; a fresh copy each time."""
        return deepcopy(self.asked)


def on_pair(decoder: Decoder, limits: Limits = _USUAL, *, isolate: bool = False) -> RealPair:
    """Decode the texts with the pair: to the limit, and to a stop token, each on a padding side that is claimed.

    Where the decoder declined, no row was decoded, and ``first`` says why. The first request that does not end is the
    last.
    """
    began = time.perf_counter()
    rows, equivalent, wrong, declined = 0, 0, "", ""
    with decoding(decoder, limits, try_request, [], isolate=isolate) as running:
        for request in _requests(decoder):
            outcome = running.try_case(PairCase(request))
            if outcome.declined:
                declined = declined or f"declined: {outcome.declined}"
                continue
            rows += len(request.prompts)
            equivalent += outcome.observed.get("right", 0)
            if (found := outcome.explanation) is not None:
                wrong = wrong or (found.detail if found.component == "crash" else render(found))
            if outcome.fingerprint == HANG:
                break
    return RealPair(rows, equivalent, wrong or declined, round(time.perf_counter() - began, 2))


def try_request(generate: Generate, case: PairCase, timeout: float | None, *, opinion: bool = False) -> Outcome:
    """Decode one request with the pair, and judge it by its tokens: ``observed["right"]`` counts the right rows."""
    target, draft = _models()
    done = answered(generate, case, Truth((), (), ()), Trace(), (target, draft), timeout)
    if done.outputs is None:
        return Outcome(case, "skipped", declined=done.declined, explanation=done.failure)
    eos, pad = case.asked.eos_token_ids, case.asked.pad_token_id
    verdict = Oracle(target).check(case.prompts, done.outputs, max_new_tokens=NEW, eos_token_ids=eos, pad_token_id=pad)
    right = sum(row.first is None for row in verdict.rows)
    return Outcome(case, verdict.status, explanation=verdict.explanation, observed={"right": right})


@cache
def _models() -> pair.Pair:
    return pair.load(torch.float64)


def _requests(decoder: Decoder) -> list[Request]:
    """Two requests for all texts, or as many as it takes to meet what the decoder requires."""
    needs = decoder.requires
    texts = [tuple(pair.encode(text)) for text in TEXTS]
    texts = without_ids(texts, barred(needs), 256)
    prompts = [list(text[: _EQUAL if "equal-lengths" in needs else None]) for text in texts]
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
        alike, sides = (RowOptions(NEW),) * len(group), decoder.padding_sides
        requests.append(Request(group, NEW, K, (), 0, sides[0], rows=alike))
        alike = (RowOptions(NEW, eos),) * len(group)
        requests.append(Request(group, NEW, K, eos, pad, sides[-1], rows=alike))
    return requests
