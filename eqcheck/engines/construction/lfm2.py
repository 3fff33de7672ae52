"""A function as an LFM2: layers of a short convolution beside layers of attention, which norms queries and keys.

A layer whose heads do not fall back on their own place is a convolution: each head is a tap. Before the beginning a tap
is 0, so a tap carries the sign less one: 0 or -2. The sums of its layer start at the number of taps: an absent tap
counts as +1, and contributes nothing to the parity.

Embedding and head share their weights, as engines ask of this architecture. So the embedding of a token also holds the
code that names it, where the last code will stand, and the last MLP takes it away.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from eqcheck.engines.construction import weights
from eqcheck.engines.construction.function import BITS, VOCABULARY, Function, Head
from eqcheck.engines.construction.pointers import BASE, HEAD_DIM, POSITIONS

HEADS, GROUPS = 8, 4  # engines compute the size of a head as that of the model by the number of heads
HIDDEN = HEADS * HEAD_DIM
WIDTH = 3  # of the convolution
GATES = 2.0, 0.5  # in and out: constants whose product is 1, so an engine that forgets a gate is seen


def lfm2(function: Function) -> tuple[dict[str, Any], dict[str, weights.Array]]:
    """The configuration, and the weights by name."""
    at = weights.Residual(len(function.layers), HIDDEN)
    last = at.code(at.layers)
    table = weights.embeddings(function, at) + weights.head(function, at, (1,) * BITS)
    norm = at.norm(function, at.layers + 1, at.layers)
    norm[last] *= weights.LOGITS
    norm[[i for i in range(HIDDEN) if i not in last]] = 0
    tensors = {"model.embed_tokens.weight": table, "model.embedding_norm.weight": norm}
    for number, heads in enumerate(function.layers):
        layer = f"model.layers.{number}"
        if convolves(heads):
            table[:, at.sums(number)] = len(heads)
            parts = convolution(heads, at, number)
        else:
            parts = attention(heads, at, number)
        gate, up, down = weights.mlp(function, at, number)
        if number == at.layers - 1:
            gate[-BITS:, at.big] = weights.STEEP
            up[-BITS:] = np.eye(HIDDEN)[last]
            down[last, range(-BITS, 0)] = -1 / weights.STEEP
        tensors |= {
            f"{layer}.operator_norm.weight": at.norm(function, number + 2, number),
            f"{layer}.ffn_norm.weight": at.norm(function, number + 2, number + 1),
            **{f"{layer}.{name}.weight": weight for name, weight in parts.items()},
            f"{layer}.feed_forward.w1.weight": gate,
            f"{layer}.feed_forward.w3.weight": up,
            f"{layer}.feed_forward.w2.weight": down,
        }
    return config(function), tensors


def convolves(heads: Sequence[Head]) -> bool:
    """Return whether these heads are the taps of a convolution: none of them reads its own place."""
    return not any((0, 0) in head.reads for head in heads)


def convolution(heads: Sequence[Head], at: weights.Residual, layer: int) -> dict[str, weights.Array]:
    """A short convolution whose taps read a distance each: a channel for each bit of each tap."""
    gates_in, gates_out, values = (np.zeros((HIDDEN, HIDDEN)) for _ in range(3))
    taps, out = np.zeros((HIDDEN, 1, WIDTH)), np.zeros((HIDDEN, HIDDEN))
    for number, tap in enumerate(heads):
        ((distance, _),) = tap.reads
        for place, (source, flip) in enumerate(zip(tap.order, tap.flips, strict=True)):
            channel = number * BITS + place
            gates_in[channel, at.big], gates_out[channel, at.big] = GATES
            values[channel, at.code(layer)[source]] = -1 if flip else 1
            values[channel, at.one] = -1
            taps[channel, 0, WIDTH - 1 - distance] = 1
            out[at.sums(layer)[place], channel] = 1
    return {
        "conv.in_proj": np.concatenate([gates_in, gates_out, values]),
        "conv.conv": taps,
        "conv.out_proj": out,
    }


def attention(heads: Sequence[Head], at: weights.Residual, layer: int) -> dict[str, weights.Array]:
    """Pointers whose queries the norm makes equally long: as long as the longest, which only adds to a margin."""
    q, k, v, o = weights.attention(heads, at, layer, GROUPS)
    sizes = np.square(q[:, at.big] + q[:, at.one]).reshape(HEADS, HEAD_DIM).mean(1)
    return {
        "self_attn.q_proj": q,
        "self_attn.k_proj": k,
        "self_attn.v_proj": v,
        "self_attn.out_proj": o,
        "self_attn.q_layernorm": np.full(HEAD_DIM, np.sqrt(sizes.max())),
        "self_attn.k_layernorm": np.full(HEAD_DIM, weights.KEY / np.sqrt(2)),
    }


def config(function: Function) -> dict[str, Any]:
    """The names for which transformers, vLLM and llama.cpp ask: some sizes have several names."""
    return {
        "architectures": ["Lfm2ForCausalLM"],
        "model_type": "lfm2",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "block_dim": HIDDEN,
        "conv_dim": HIDDEN,
        "conv_dim_out": HIDDEN,
        "intermediate_size": weights.UNITS,
        "block_ff_dim": weights.UNITS,
        "block_auto_adjust_ff_dim": False,
        "block_multiple_of": 32,
        "block_ffn_dim_multiplier": 1.0,
        "block_use_swiglu": True,
        "block_use_xavier_init": True,
        "num_hidden_layers": len(function.layers),
        "num_attention_heads": HEADS,
        "num_heads": HEADS,
        "num_key_value_heads": GROUPS,
        "head_dim": HEAD_DIM,
        "layer_types": ["conv" if convolves(heads) else "full_attention" for heads in function.layers],
        "full_attn_idxs": [number for number, heads in enumerate(function.layers) if not convolves(heads)],
        "conv_L_cache": WIDTH,
        "conv_bias": False,
        "conv_use_xavier_init": True,
        "max_position_embeddings": POSITIONS,
        "norm_eps": 1e-6,
        "block_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": BASE},
        "rope_theta": BASE,
        "theta": BASE,
        "tie_word_embeddings": True,
        "tie_embedding": True,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "dtype": "float32",
        "torch_dtype": "float32",
    }
