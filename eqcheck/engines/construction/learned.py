"""A function as a GPT-2 or an OPT: learned positions, norms that subtract the mean, an MLP without a gate.

A table of positions holds cosines and sines, so a linear query and key make a score of their distance. A bit of a
token cannot turn such a key, so the key adds it. All that is written into the residual stream is written with the
other sign as well, a half further: its mean is 0, and a norm with a mean is one without.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from eqcheck.engines.construction import weights
from eqcheck.engines.construction.function import VOCABULARY, Function, Head
from eqcheck.engines.construction.pointers import HEAD_DIM, LEARNED, POSITIONS, amplitudes
from eqcheck.engines.construction.weights import HIDDEN, KEY, Array, Residual

PAIRS = len(LEARNED.frequencies)
BIT = 2 * PAIRS  # the coordinate of a key where its bit is added


def gpt2(function: Function) -> tuple[dict[str, Any], dict[str, Array]]:
    """The configuration, and the weights by name; matrices are ``[in, out]``."""
    parts = _parts(function)
    tensors: dict[str, Array] = {}
    for name, (weight, bias) in parts["layers"].items():
        matrix = not name.endswith(("ln_1", "ln_2"))
        tensors |= {f"transformer.{name}.weight": weight.T if matrix else weight, f"transformer.{name}.bias": bias}
    tensors |= {
        "transformer.wte.weight": parts["tokens"],
        "transformer.wpe.weight": parts["positions"],
        "transformer.ln_f.weight": parts["norm"],
        "transformer.ln_f.bias": np.zeros(len(parts["norm"])),
        "lm_head.weight": parts["head"],
    }
    return config(function), tensors


def opt(function: Function) -> tuple[dict[str, Any], dict[str, Array]]:
    """The configuration, and the weights by name; positions begin at the third row of their table."""
    parts = _parts(function)
    tensors: dict[str, Array] = {}
    names = {
        "attn.c_proj": "self_attn.out_proj",
        "mlp.c_fc": "fc1",
        "mlp.c_proj": "fc2",
        "ln_1": "self_attn_layer_norm",
        "ln_2": "final_layer_norm",
    }
    for name, (weight, bias) in parts["layers"].items():
        _, number, name = name.split(".", 2)
        layer = f"model.decoder.layers.{number}"
        if name == "attn.c_attn":
            for letter, w, b in zip("qkv", np.split(weight, 3), np.split(bias, 3), strict=True):
                tensors |= {f"{layer}.self_attn.{letter}_proj.weight": w, f"{layer}.self_attn.{letter}_proj.bias": b}
        else:
            tensors |= {f"{layer}.{names[name]}.weight": weight, f"{layer}.{names[name]}.bias": bias}
    tensors |= {
        "model.decoder.embed_tokens.weight": parts["tokens"],
        "model.decoder.embed_positions.weight": np.vstack([parts["positions"][:2] * 0, parts["positions"]]),
        "model.decoder.final_layer_norm.weight": parts["norm"],
        "model.decoder.final_layer_norm.bias": np.zeros(len(parts["norm"])),
        "lm_head.weight": parts["head"],
    }
    hidden, heads = len(parts["norm"]), len(function.layers[0])
    settings = {
        "architectures": ["OPTForCausalLM"],
        "model_type": "opt",
        "hidden_size": hidden,
        "word_embed_proj_dim": hidden,
        "ffn_dim": weights.UNITS,
        "num_hidden_layers": len(function.layers),
        "num_attention_heads": heads,
        "max_position_embeddings": POSITIONS,
        "activation_function": "relu",
        "do_layer_norm_before": True,
        "enable_bias": True,
        "layer_norm_elementwise_affine": True,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "layerdrop": 0.0,
    }
    return settings | _common(), tensors


def config(function: Function) -> dict[str, Any]:
    heads = len(function.layers[0])
    settings = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_embd": heads * HEAD_DIM,
        "n_inner": weights.UNITS,
        "n_layer": len(function.layers),
        "n_head": heads,
        "n_positions": POSITIONS,
        "n_ctx": POSITIONS,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
        "scale_attn_weights": True,
    }
    return settings | _common()


def _common() -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "dtype": "float32",
        "torch_dtype": "float32",
    }


def _parts(function: Function) -> dict[str, Any]:
    """Tables, norms and the matrices ``[out, in]`` of layers, by the names of GPT-2."""
    at, hidden = Residual(len(function.layers)), len(function.layers[0]) * HEAD_DIM
    layers: dict[str, tuple[Array, Array]] = {}
    for number, heads in enumerate(function.layers):
        gate, _, down = weights.mlp(function, at, number)
        qkv, o = attention(heads, at, number)
        matrices = {
            "attn.c_attn": reading(qkv, hidden),
            "attn.c_proj": mirrored(o.T, hidden).T,
            "mlp.c_fc": reading(gate, hidden),
            "mlp.c_proj": mirrored(down.T, hidden).T,
            "ln_1": norm(at.norm(function, number + 1, number), hidden),
            "ln_2": norm(at.norm(function, number + 1, number + 1), hidden),
        }
        layers |= {f"h.{number}.{name}": (weight, np.zeros(len(weight))) for name, weight in matrices.items()}
    return {
        "tokens": mirrored(weights.embeddings(function, at), hidden),
        "positions": mirrored(positions(), hidden),
        "layers": layers,
        "norm": norm(at.norm(function, at.layers + 1, at.layers), hidden),
        "head": reading(weights.head(function, at), hidden),
    }


def reading(rows: Array, hidden: int) -> Array:
    """Rows that read features, as wide as the stream."""
    return np.pad(rows, ((0, 0), (0, hidden - rows.shape[1])))


def mirrored(rows: Array, hidden: int) -> Array:
    """Rows that write features, as wide as the stream: each with the other sign as well, in its second half."""
    half = reading(rows, hidden // 2)
    return np.hstack([half, -half])


def norm(narrow: Array, hidden: int) -> Array:
    """The weight of a norm: features come twice, and positions beside them, ``PAIRS`` squares of 1 in each copy."""
    square = narrow[1] ** 2 * HIDDEN + 2 * PAIRS
    weight = np.full(hidden, math.sqrt(2 * square / hidden))
    weight[Residual.big] /= weights.BIG
    return weight


def positions() -> Array:
    """``[positions, features]``: cosines and sines, each twice, in steps that bfloat16 holds."""
    angles = np.outer(np.arange(POSITIONS), LEARNED.frequencies)
    cosines, sines = np.cos(angles).round(8), np.sin(angles).round(8)
    turning = np.hstack([cosines, cosines, sines, sines])  # twice, because a number of eight bits is a sum of two
    return np.hstack([np.zeros((POSITIONS, HIDDEN)), (turning * 256).round() / 256])


def attention(heads: Sequence[Head], at: Residual, layer: int) -> tuple[Array, Array]:
    """Queries, keys and values in one matrix ``[3 * heads * head_dim, features]``, and the output weights."""
    q, k, v = np.zeros((3, len(heads), HEAD_DIM, HIDDEN + 4 * PAIRS))
    v[:, :, :HIDDEN], o = weights.values(heads, at, layer, len(heads))
    for number, pointer in enumerate(heads):
        turn = weights.turns(layer, number)[:PAIRS]
        cosines, sines = map(np.array, amplitudes(LEARNED)[pointer.reads])
        k[number] = waves(KEY * 1j**turn)
        k[number, BIT, at.code(layer)[pointer.bit]] = -KEY  # a set bit is -1
        asked = np.array([*(cosines - 1j * sines)[:PAIRS] * 1j**turn, cosines[PAIRS]]) * math.sqrt(HEAD_DIM) / KEY
        q[number] = waves(asked[:PAIRS])
        q[number, BIT, at.big], q[number, BIT, at.one] = weights.split(asked[PAIRS].real)
    return np.concatenate([q, k, v]).reshape(-1, q.shape[-1]), o


def waves(amplitudes: Any) -> Array:
    """``[head_dim, features]``: what turns with the position, its real part first; in two summands."""
    rows = np.zeros((HEAD_DIM, HIDDEN + 4 * PAIRS))
    pair = np.arange(PAIRS)
    for copy, (real, turned) in enumerate(
        zip(weights.split(amplitudes.real), weights.split(amplitudes.imag), strict=True)
    ):
        cosine, sine = HIDDEN + copy * PAIRS + pair, HIDDEN + (2 + copy) * PAIRS + pair
        rows[pair, cosine], rows[pair, sine] = real, -turned
        rows[PAIRS + pair, cosine], rows[PAIRS + pair, sine] = turned, real
    return rows
