"""A function as a gpt-oss: each head has a sink that takes its attention where nothing is to be read, and experts.

A slot that is read adds its sign less one to the sums of its layer, and a sink adds nothing; the sums start at the
number of heads, so what a sink takes counts as a sign of +1: a code of zero, which is joined in without effect. A head
without its sink reads the next best slot there.

An expert's gate is cut off at `LIMIT`, so one unit is a whole step. Constants stand in biases.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from eqcheck.engines.construction import llama, weights
from eqcheck.engines.construction.function import BITS, Function, Head, shuffled
from eqcheck.engines.construction.pointers import HEAD_DIM, POSITIONS
from eqcheck.engines.construction.qwen3_moe import CHOOSING, EXPERTS, ROUTED
from eqcheck.engines.construction.weights import GROUPS, Array, Residual

LIMIT = 7.0  # of a gate, as in all released models
MIDDLE = 4.0  # a gate at the place of its step: about half of the limit, in few bits
UNITS = 160  # of an expert


def gpt_oss(function: Function) -> tuple[dict[str, Any], dict[str, Array]]:
    """The configuration, and the weights by name."""
    at = Residual(len(function.layers))
    tensors = {
        "model.embed_tokens.weight": weights.embeddings(function, at),
        "model.norm.weight": at.norm(function, at.layers + 1, at.layers),
        "lm_head.weight": weights.head(function, at),
    }
    for number, heads in enumerate(function.layers):
        parts = {
            "input_layernorm.weight": at.norm(function, number + 1, number),
            "post_attention_layernorm.weight": at.norm(function, number + 1, number + 1),
            **{f"self_attn.{name}": weight for name, weight in _attention(heads, at, number).items()},
            **{f"mlp.{name}": weight for name, weight in _experts(function, at, number).items()},
        }
        tensors |= {f"model.layers.{number}.{name}": weight for name, weight in parts.items()}
    return config(function), tensors


def _attention(heads: Sequence[Head], at: Residual, layer: int) -> dict[str, Array]:
    """Pointers; the constant parts of queries, keys and values are biases, and so is what the sums start at."""
    q, k, v, o = weights.attention(heads, at, layer, GROUPS)
    v.reshape(GROUPS, HEAD_DIM, -1)[:, BITS, at.big] = 1
    o.reshape(at.hidden, len(heads), HEAD_DIM)[list(at.sums(layer)), :, BITS] = -1
    tensors = {"sinks": np.array([head.sink for head in heads])}
    for letter, matrix in zip("qkv", (q, k, v), strict=True):
        tensors[f"{letter}_proj.bias"] = matrix[:, at.big].copy()
        matrix[:, at.big] = 0
        tensors[f"{letter}_proj.weight"] = matrix
    start = np.zeros(at.hidden)
    start[at.sums(layer)] = len(heads)
    return tensors | {"o_proj.weight": o, "o_proj.bias": start}


def _experts(function: Function, at: Residual, layer: int) -> dict[str, Array]:
    """The parity of each bit, by experts of which each knows three bits of the code; gates and ups take turns."""
    gate, constant, down, start = _steps(function, at, layer)
    known = weights.signs(range(EXPERTS))[:, :CHOOSING]
    places = [at.code(layer)[bit] for bit in shuffled(BITS, "expert", layer)[:CHOOSING]]
    router = np.zeros((EXPERTS, at.hidden))
    router[:, places] = known * ROUTED
    both, biases = np.zeros((EXPERTS, at.hidden, 2 * UNITS)), np.zeros((EXPERTS, 2 * UNITS))
    for expert, bits in enumerate(known):
        told = gate.copy()
        biases[expert, ::2], told[:, at.one] = weights.split(constant + gate[:, places] @ bits)
        told[:, places] = 0
        both[expert, :, ::2] = told.T
    return {
        "router.weight": router,
        "router.bias": np.zeros(EXPERTS),
        "experts.gate_up_proj": both,
        "experts.gate_up_proj_bias": biases,
        "experts.down_proj": np.tile(down.T, (EXPERTS, 1, 1)),
        "experts.down_proj_bias": np.tile(start, (EXPERTS, 1)),
    }


def _steps(function: Function, at: Residual, layer: int) -> tuple[Array, Array, Array, Array]:
    """Gate ``[units, hidden]``, the constant of each, down ``[hidden, units]`` and what the new code starts at."""
    heads = function.joined(layer)
    gate, constant, down = np.zeros((UNITS, at.hidden)), np.full(UNITS, -LIMIT), np.zeros((at.hidden, UNITS))
    unit = 0
    for bit in range(BITS):
        flag = bit == 0 and layer == at.layers - 1
        for direction, place, weight in weights.staircase(heads, flag):
            steep = weights.slope(place) * direction
            gate[unit, [at.code(layer)[bit], at.sums(layer)[bit]]] = steep
            gate[unit, at.flag] = 2 * steep * flag
            constant[unit] = MIDDLE - steep * place
            down[at.code(layer + 1)[bit], unit] = weight / LIMIT
            unit += 1
    start = np.zeros(at.hidden)
    start[at.code(layer + 1)] = -1 if heads % 4 == 0 else 1
    return gate, constant, down, start


def config(function: Function) -> dict[str, Any]:
    """Every second layer has a window, as in released models: one that holds all positions."""
    return llama.config(function) | {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "intermediate_size": UNITS,
        "num_local_experts": EXPERTS,
        "num_experts_per_tok": 1,
        "swiglu_limit": LIMIT,
        "sliding_window": POSITIONS,
        "layer_types": [("sliding_attention", "full_attention")[n % 2] for n in range(len(function.layers))],
        "attention_bias": True,
    }
