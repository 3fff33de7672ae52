"""Faults in what is made of a declared cache state (S): it is ignored, or missed by one; the output is right."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from eqcheck.catalogue.engines.engine import RoundEngine
from eqcheck.catalogue.faults.fault import OUTPUT_RIGHT, fault, planted, step
from eqcheck.contract.decoder import CLAIMED, Request


class Mistaken(RoundEngine):
    """Decodes another request than it was given."""

    def __init__(self, target: Any, draft: Any, request: Request) -> None:
        super().__init__(target, draft, self.mistaken(request))

    def mistaken(self, request: Request) -> Request:
        raise NotImplementedError


fault("S1-chunks-ignored", "options/ignored-option", "NVIDIA/TensorRT-LLM#16101").plant(
    "Prompts are fed whole, whatever the size of a chunk is to be",
    planted("realigned per_row", "paged", cache_states=("chunked",), no_edit=OUTPUT_RIGHT),
    step(Mistaken, mistaken=lambda right, self, request: replace(request, prefill_chunk=None)),
)


@planted("holes restored", "continuous", cache_states=("chunked",), no_edit=OUTPUT_RIGHT)
@fault("S1-chunk-one-too-long", "options/ignored-option", "NVIDIA/TensorRT-LLM#16101")
class ChunkOneTooLong(Mistaken):
    """A chunk of a prompt is one token longer than it may be."""

    def mistaken(self, request: Request) -> Request:
        return replace(request, prefill_chunk=request.prefill_chunk and request.prefill_chunk + 1)


fault("S2-arrivals-ignored", "options/ignored-option", "vllm-project/vllm#55894").plant(
    "All rows are fed at once, also those that have not arrived",
    planted("continuous", "per_row", cache_states=("late-rows",), rows=2, no_edit=OUTPUT_RIGHT),
    step(Mistaken, mistaken=lambda right, self, request: replace(request, arrivals=())),
)


@planted("continuous per_row", cache_states=("late-rows",), rows=2, no_edit=OUTPUT_RIGHT)
@fault("S2-calls-counted-twice", "options/ignored-option", "vllm-project/vllm#55894")
class CallsCountedTwice(Mistaken):
    """Every call of the target is counted twice, so rows join too early."""

    def mistaken(self, request: Request) -> Request:
        return replace(request, arrivals=tuple(arrival // 2 for arrival in request.arrivals))


@planted("realigned per_row", "continuous", cache_states=("prefix",), no_edit=OUTPUT_RIGHT)
@fault("S3-prefix-fed-again", "options/ignored-option", "vllm-project/vllm#53505")
class PrefixFedAgain(Mistaken):
    """A prefix whose cache is handed over is fed again with each prompt."""

    def mistaken(self, request: Request) -> Request:
        return replace(request, prefix_length=0, target_cache=None, draft_cache=None)


@planted("holes", "paged", families=CLAIMED, cache_states=("prefix",), no_edit=OUTPUT_RIGHT)
@fault("S3-last-prefix-token-fed-again", "options/ignored-option", "vllm-project/vllm#53505")
class LastPrefixTokenFedAgain(Mistaken):
    """The last token of a prefix whose cache is handed over is fed again."""

    def mistaken(self, request: Request) -> Request:
        if request.prefix_length < 2:
            return request
        target_cache, draft_cache = copy.deepcopy((request.target_cache, request.draft_cache))
        for cache in (target_cache, draft_cache):
            cache.crop(-1)
        length = request.prefix_length - 1
        return replace(request, prefix_length=length, target_cache=target_cache, draft_cache=draft_cache)


fault("S4-preallocated-ignored", "options/ignored-option", "sgl-project/sglang#19796").plant(
    "A cache of its own is used in place of the preallocated one that is handed over",
    planted("holes", "rolled_back", cache_states=("preallocated",), no_edit=OUTPUT_RIGHT),
    step(Mistaken, mistaken=lambda right, self, request: replace(request, target_cache=None, draft_cache=None)),
)
