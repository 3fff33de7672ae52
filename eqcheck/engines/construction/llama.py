"""A function as a Llama, or as a Qwen 3, which also norms queries and keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from eqcheck.engines.construction import weights
from eqcheck.engines.construction.function import VOCABULARY, Function, Head
from eqcheck.engines.construction.pointers import BASE, HEAD_DIM, POSITIONS


def grouped(heads: Sequence[Head], at: weights.Residual, layer: int) -> dict[str, weights.Array]:
    """The weights of attention by name."""
    matrices = weights.attention(heads, at, layer, weights.GROUPS)
    return {f"{letter}_proj": matrix for letter, matrix in zip("qkvo", matrices, strict=True)}


def llama(
    function: Function, attention: Callable[[Sequence[Head], weights.Residual, int], dict[str, weights.Array]] = grouped
) -> tuple[dict[str, Any], dict[str, weights.Array]]:
    """The configuration, and the weights by name."""
    at = weights.Residual(len(function.layers))
    tensors = {
        "model.embed_tokens.weight": weights.embeddings(function, at),
        "model.norm.weight": at.norm(function, at.layers + 1, at.layers),
        "lm_head.weight": weights.head(function, at),
    }
    for number, heads in enumerate(function.layers):
        layer = f"model.layers.{number}"
        gate, up, down = weights.mlp(function, at, number)
        tensors |= {
            f"{layer}.input_layernorm.weight": at.norm(function, number + 1, number),
            f"{layer}.post_attention_layernorm.weight": at.norm(function, number + 1, number + 1),
            **{f"{layer}.self_attn.{name}.weight": w for name, w in attention(heads, at, number).items()},
            f"{layer}.mlp.gate_proj.weight": gate,
            f"{layer}.mlp.up_proj.weight": up,
            f"{layer}.mlp.down_proj.weight": down,
        }
    return config(function), tensors


def qwen3(function: Function) -> tuple[dict[str, Any], dict[str, weights.Array]]:
    """The same with a norm of each query and key.

    All keys of a head have one length. All queries of a layer get the longest, so the margins of the others grow.
    """
    settings, tensors = llama(function)
    for layer in range(len(function.layers)):
        attention = f"model.layers.{layer}.self_attn"
        for name in "qk":
            rows = tensors[f"{attention}.{name}_proj.weight"].sum(axis=1).reshape(-1, HEAD_DIM)
            length = np.sqrt((rows**2).mean(axis=1)).max()
            tensors[f"{attention}.{name}_norm.weight"] = np.full(HEAD_DIM, length)
    return {**settings, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}, tensors


def config(function: Function) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": weights.HIDDEN,
        "intermediate_size": weights.UNITS,
        "num_hidden_layers": len(function.layers),
        "num_attention_heads": len(function.layers[0]),
        "num_key_value_heads": weights.GROUPS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "max_position_embeddings": POSITIONS,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": BASE},
        "rope_theta": BASE,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "dtype": "float32",
        "torch_dtype": "float32",
    }
