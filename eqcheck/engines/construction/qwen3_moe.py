"""A function as a Qwen 3 with experts: a token's expert is that which knows three bits of its code.

An expert does not look at the bits that chose it. So all experts together compute the same function as one MLP, and a
token that is sent to a wrong expert gets wrong bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from eqcheck.engines.construction import llama, weights
from eqcheck.engines.construction.function import BITS, Function, shuffled

CHOOSING = 3  # bits
EXPERTS = 2**CHOOSING
ROUTED = 8.0  # a bit that does not agree costs an expert twice as much


def qwen3_moe(function: Function) -> tuple[dict[str, Any], dict[str, weights.Array]]:
    """The configuration, and the weights by name."""
    settings, tensors = llama.qwen3(function)
    at = weights.Residual(len(function.layers))
    known = weights.signs(range(EXPERTS))[:, :CHOOSING]
    for layer in range(at.layers):
        name = f"model.layers.{layer}.mlp"
        gate, up, down = (tensors.pop(f"{name}.{part}_proj.weight") for part in ("gate", "up", "down"))
        places = [at.code(layer)[bit] for bit in shuffled(BITS, "expert", layer)[:CHOOSING]]
        router = np.zeros((EXPERTS, at.hidden))
        router[:, places] = known * ROUTED
        tensors[f"{name}.gate.weight"] = router
        for expert, bits in enumerate(known):
            told = gate.copy()
            told[:, at.big], told[:, at.one] = weights.split(gate[:, [at.big, at.one, *places]] @ [1, 1, *bits])
            told[:, places] = 0
            for part, matrix in (("gate", told), ("up", up), ("down", down)):
                tensors[f"{name}.experts.{expert}.{part}_proj.weight"] = matrix
    experts = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_experts": EXPERTS,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": weights.UNITS,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }
    return settings | experts, tensors
