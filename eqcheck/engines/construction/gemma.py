"""A function as a Gemma 3: layers with and without a window, norms on what attention and MLP add, tied embeddings.

All weights of norms are numbers that bfloat16 holds exactly, for Gemma multiplies by one more than they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from eqcheck.engines.construction import weights
from eqcheck.engines.construction.function import BITS, VOCABULARY, Function, Head
from eqcheck.engines.construction.pointers import BASE, HEAD_DIM, POSITIONS

ADDED = 1024.0  # a constant beside what attention and MLP add, which fixes the scale of the norm behind them
KEYS = 5.65625  # a key's norm multiplies by so much: then its pairs have the length 8, within 0.02 percent
EMBEDDED = math.sqrt(weights.HIDDEN)  # Gemma multiplies embeddings by this: 8

Attention = Callable[
    [Sequence[Head], weights.Residual, int, int], tuple[weights.Array, weights.Array, weights.Array, weights.Array]
]


def gemma(
    function: Function, attention: Attention = weights.attention
) -> tuple[dict[str, Any], dict[str, weights.Array]]:
    """The configuration, and the weights by name."""
    at = weights.Residual(len(function.layers))
    before = np.full(weights.HIDDEN, weights.BIG / EMBEDDED)  # the root of the mean square, within half a percent
    before[at.big] /= weights.BIG
    tensors = {
        "model.embed_tokens.weight": _embeddings(function, at),
        "model.norm.weight": _last(at),
    }
    for number, heads in enumerate(function.layers):
        name = f"model.layers.{number}"
        q, k, v, o = attention(heads, at, number, weights.GROUPS)
        v.reshape(weights.GROUPS, HEAD_DIM, -1)[:, BITS, at.big] = 8
        outputs = o.reshape(at.hidden, -1, HEAD_DIM)
        outputs[at.big, :, BITS] = ADDED / outputs.shape[1] / 8
        gate, up, down = _mlp(function, at, number)
        tensors |= {
            f"{name}.input_layernorm.weight": before - 1,
            f"{name}.pre_feedforward_layernorm.weight": before - 1,
            f"{name}.post_attention_layernorm.weight": _behind(at.sums(number)),
            f"{name}.post_feedforward_layernorm.weight": _behind(at.code(number + 1)),
            f"{name}.self_attn.q_norm.weight": np.full(HEAD_DIM, _queries(q)) - 1,
            f"{name}.self_attn.k_norm.weight": np.full(HEAD_DIM, KEYS) - 1,
            **{f"{name}.self_attn.{letter}_proj.weight": w for letter, w in zip("qkvo", (q, k, v, o), strict=True)},
            f"{name}.mlp.gate_proj.weight": gate,
            f"{name}.mlp.up_proj.weight": up,
            f"{name}.mlp.down_proj.weight": down,
        }
    return config(function), tensors


def _embeddings(function: Function, at: weights.Residual) -> weights.Array:
    """Embeddings that are the head, too: beside the code that a token has stands the code that names it.

    The last MLP takes the latter away before it writes the last code there.
    """
    return (weights.embeddings(function, at) + weights.head(function, at, (1,) * BITS)) / EMBEDDED


def _last(at: weights.Residual) -> weights.Array:
    """The last norm lets the last code through, by `LOGITS` and the embeddings' scale, plus 1 for bfloat16."""
    weight = np.zeros(weights.HIDDEN)
    weight[list(at.code(at.layers))] = 1 + weights.BIG * np.array(weights.LOGITS)
    return weight - 1


def _behind(written: range) -> weights.Array:
    """The norm behind attention or MLP lets through what the two have to add, and not their constant."""
    weight = np.zeros(weights.HIDDEN)
    weight[list(written)] = ADDED / EMBEDDED
    return weight - 1


def _queries(q: weights.Array) -> float:
    """Return the factor of the queries' norm: all get the length of the longest, which keeps its own."""
    vectors = q.reshape(-1, HEAD_DIM, weights.HIDDEN).sum(-1)  # both constants are 1 behind the norm
    longest = float(np.linalg.norm(vectors, axis=-1).max())
    return float(math.ceil(longest * weights.KEY / KEYS / math.sqrt(2) / math.sqrt(HEAD_DIM)))


def _mlp(function: Function, at: weights.Residual, layer: int) -> tuple[weights.Array, weights.Array, weights.Array]:
    """The parity of each bit, beside the constant; the last MLP also takes the embedded name away."""
    gate, up, down = weights.mlp(function, at, layer)
    spare = np.flatnonzero(~gate.any(1))
    gate[spare, at.big] = weights.STEEP
    down[at.big, spare[0]] = ADDED / weights.STEEP
    if layer == at.layers - 1:
        names = spare[1 : 1 + BITS]
        up[names] = np.eye(weights.HIDDEN)[list(at.code(at.layers))]
        down[list(at.code(at.layers)), names] = -1 / weights.STEEP
    return gate, up, down


def config(function: Function) -> dict[str, Any]:
    """Layers with a window are those whose heads have one. Older engines read the pattern and the bases by name."""
    windows = [layer[0].window for layer in function.layers]
    kinds = ["sliding_attention" if window else "full_attention" for window in windows]
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "vocab_size": VOCABULARY,
        "hidden_size": weights.HIDDEN,
        "intermediate_size": weights.UNITS,
        "num_hidden_layers": len(function.layers),
        "num_attention_heads": len(function.layers[0]),
        "num_key_value_heads": weights.GROUPS,
        "head_dim": HEAD_DIM,
        "query_pre_attn_scalar": HEAD_DIM,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": POSITIONS,
        "rms_norm_eps": 1e-6,
        "sliding_window": max(window or 0 for window in windows),
        "sliding_window_pattern": 1 + windows.index(None),
        "layer_types": kinds,
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": BASE} for kind in sorted(set(kinds))},
        "rope_theta": BASE,
        "rope_local_base_freq": BASE,
        "attention_bias": False,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "dtype": "float32",
        "torch_dtype": "float32",
    }
