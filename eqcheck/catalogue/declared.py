"""Faults in what is made of a declared cache state (S): it is ignored, or missed by one; the output is right."""

from __future__ import annotations

from eqcheck.catalogue.fault import issue, plant
from eqcheck.contract import CLAIMED

_IGNORED = "options/ignored-option"

DECLARED = [
    *plant(
        "S1-chunks-ignored",
        _IGNORED,
        "prompts are fed whole, whatever the size of a chunk is to be",
        issue("NVIDIA/TensorRT-LLM", 16101),
        "realigned per_row",
        "paged",
        cache_states=("chunked",),
        rows=1,
    ),
    *plant(
        "S1-chunk-one-too-long",
        _IGNORED,
        "a chunk of a prompt is one token longer than it may be",
        issue("NVIDIA/TensorRT-LLM", 16101),
        "holes restored",
        "continuous",
        cache_states=("chunked",),
        rows=1,
    ),
    *plant(
        "S2-arrivals-ignored",
        _IGNORED,
        "all rows are fed at once, also those that have not arrived",
        issue("vllm-project/vllm", 55894),
        "continuous",
        "per_row",
        cache_states=("late-rows",),
    ),
    *plant(
        "S2-calls-counted-twice",
        _IGNORED,
        "every call of the target is counted twice, so rows join too early",
        issue("vllm-project/vllm", 55894),
        "continuous per_row",
        cache_states=("late-rows",),
    ),
    *plant(
        "S3-prefix-fed-again",
        _IGNORED,
        "a prefix whose cache is handed over is fed again with each prompt",
        issue("vllm-project/vllm", 53505),
        "realigned per_row",
        "continuous",
        cache_states=("prefix",),
        rows=1,
    ),
    *plant(
        "S3-last-prefix-token-fed-again",
        _IGNORED,
        "the last token of a prefix whose cache is handed over is fed again",
        issue("vllm-project/vllm", 53505),
        "holes",
        "paged",
        families=CLAIMED,
        cache_states=("prefix",),
        rows=1,
    ),
    *plant(
        "S4-preallocated-ignored",
        _IGNORED,
        "a cache of its own is used in place of the preallocated one that is handed over",
        issue("sgl-project/sglang", 19796),
        "holes",
        "rolled_back",
        cache_states=("preallocated",),
        rows=1,
    ),
]
