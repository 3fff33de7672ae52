"""A function as a DeepSeek V3 of dense layers: attention whose keys and values are stored compressed.

Positions turn a part of the key that all heads share. The rest of keys, and values, come from a latent vector: the
code. A head takes the bit of its key from there, so the bit is added to its score, as it is with learned positions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from eqcheck.engines.construction import llama, weights
from eqcheck.engines.construction.function import BITS, Function, Head
from eqcheck.engines.construction.pointers import COMPRESSED, COMPRESSED_BASE, HEAD_DIM, amplitudes
from eqcheck.engines.construction.weights import KEY, Array, Residual

RANK, STILL, VALUE = 512, 128, 128  # sizes of a DeepSeek V3, which kernels of engines are made for; `HEAD_DIM` turns
SHARP = 2.0  # queries are so much longer, for scores are divided by the root of `STILL + HEAD_DIM`


def deepseek(function: Function) -> tuple[dict[str, Any], dict[str, Array]]:
    """The configuration, and the weights by name."""
    settings, tensors = llama.llama(function, attention)
    sizes = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "num_key_value_heads": len(function.layers[0]),
        "head_dim": HEAD_DIM,
        "q_lora_rank": None,
        "kv_lora_rank": RANK,
        "qk_nope_head_dim": STILL,
        "qk_rope_head_dim": HEAD_DIM,
        "v_head_dim": VALUE,
        "rope_interleave": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": COMPRESSED_BASE},
        "rope_theta": COMPRESSED_BASE,
        "first_k_dense_replace": len(function.layers),
        "moe_layer_freq": 1,
        "moe_intermediate_size": weights.UNITS,
        "n_routed_experts": 2,
        "n_shared_experts": 1,
        "num_experts_per_tok": 1,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
    }
    return settings | sizes, tensors


def attention(heads: Sequence[Head], at: Residual, layer: int) -> dict[str, Array]:
    """The weights of attention, by name.

    The norm of the latent vector keeps the code as it is: the mean square is that of `BITS` signs.
    """
    turn = weights.turns(layer, 0)
    q = np.zeros((len(heads), STILL + HEAD_DIM, at.hidden))
    down = np.zeros((RANK + HEAD_DIM, at.hidden))
    up = np.zeros((len(heads), STILL + VALUE, RANK))
    o = np.zeros((at.hidden, len(heads), VALUE))
    down[range(BITS), at.code(layer)] = 1
    down[RANK:, at.big] = interleaved(KEY * 1j**turn)
    for number, pointer in enumerate(heads):
        cosines, sines = map(np.array, amplitudes(COMPRESSED)[pointer.reads])
        asked = np.concatenate([cosines[-1:], interleaved((cosines - 1j * sines)[:-1] * 1j**turn)]) * SHARP
        asked *= math.sqrt(HEAD_DIM) / KEY
        rows = [number, *range(STILL, STILL + HEAD_DIM)]
        q[number, rows, at.big], q[number, rows, at.one] = weights.split(asked)
        up[number, number, pointer.bit] = -KEY  # a set bit is -1
        shift = number % BITS
        for place, (source, flip) in enumerate(zip(pointer.order, pointer.flips, strict=True)):
            up[number, STILL + (source + shift) % BITS, source] = 1
            o[at.sums(layer)[place], number, (source + shift) % BITS] = -1 if flip else 1
    return {
        "q_proj": q.reshape(-1, at.hidden),
        "kv_a_proj_with_mqa": down,
        "kv_a_layernorm": np.full(RANK, math.sqrt(BITS / RANK)),
        "kv_b_proj": up.reshape(-1, RANK),
        "o_proj": o.reshape(at.hidden, -1),
    }


def interleaved(pairs: Any) -> Array:
    """The real and the imaginary part of each pair side by side."""
    return np.stack([pairs.real, pairs.imag], -1).round(4).reshape(-1)
