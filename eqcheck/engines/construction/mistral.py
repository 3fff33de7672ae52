"""A function as a Mistral: a Llama with a window in each layer."""

from __future__ import annotations

from typing import Any

from eqcheck.engines.construction import weights
from eqcheck.engines.construction.function import Function
from eqcheck.engines.construction.llama import llama


def mistral(function: Function) -> tuple[dict[str, Any], dict[str, weights.Array]]:
    """The configuration, and the weights by name."""
    config, tensors = llama(function)
    named = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
    return {**config, **named, "sliding_window": function.layers[0][0].window}, tensors
