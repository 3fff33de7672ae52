"""A function as a dense Granite 4: layers of Mamba 2 beside layers of attention.

A head of Mamba 2 is a latch: where its time step is large it forgets what it held and takes a code, else it keeps it.
A rule has a head for each class of codes. A token opens the step of the head of its own class, and the gate of the head
that it asks. A group of heads is a rule, and has a norm of its own. Values are as those of a Qwen 3.5 (`qwen35`): a
class that never came yields 0, and the sums of a layer start at the number of its rules.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from eqcheck.engines.construction import weights
from eqcheck.engines.construction.function import BITS, VOCABULARY, DeltaRule, Function
from eqcheck.engines.construction.pointers import BASE, HEAD_DIM, POSITIONS

HEADS, GROUPS = 8, 4  # engines compute the size of a head as that of the model by the number of heads
HIDDEN = HEADS * HEAD_DIM
BIG = 1024.0  # in place of `weights.BIG`: the sums of these layers start far from 0, and must not move the norms
VALUE = 2 * BITS  # the size of a head of Mamba
EXPAND = 2
STATE = 16  # of these one coordinate is used
WIDTH = 4  # of the convolution
OPEN = 32.0  # what passes a gate
BIAS = 1.25  # silu makes about 1 of it: the constant that writes to the state, and reads it
EMBEDDED, ADDED, SCORED = 2.0, 0.5, 4.0  # multipliers of embeddings and of additions, divisor of logits


def granite(function: Function) -> tuple[dict[str, Any], dict[str, weights.Array]]:
    """The configuration, and the weights by name."""
    at = weights.Residual(len(function.layers), HIDDEN)
    norm = np.full(HIDDEN, BIG / math.sqrt(HIDDEN))  # the root of the mean square, within a thousandth
    norm[at.big] /= BIG
    table = weights.embeddings(function, at)
    table[:, at.big] = BIG
    tensors = {"model.norm.weight": norm, "lm_head.weight": weights.head(function, at) * SCORED}
    for number, heads in enumerate(function.layers):
        layer = f"model.layers.{number}"
        if rules := function.rules[number]:
            table[:, at.sums(number)] = len(rules)
            parts = {f"mamba.{name}": weight for name, weight in _mamba(rules, at, number).items()}
        else:
            q, k, v, o = weights.attention(heads, at, number, GROUPS)
            parts = {
                f"self_attn.{letter}_proj.weight": w for letter, w in zip("qkvo", (q, k, v, o / ADDED), strict=True)
            }
        gate, up, down = weights.mlp(function, at, number)
        tensors |= {
            f"{layer}.input_layernorm.weight": norm,
            f"{layer}.post_attention_layernorm.weight": norm,
            **{f"{layer}.{name}": weight for name, weight in parts.items()},
            f"{layer}.shared_mlp.input_linear.weight": np.concatenate([gate, up]),
            f"{layer}.shared_mlp.output_linear.weight": down / ADDED,
        }
    return config(function), {**tensors, "model.embed_tokens.weight": table / EMBEDDED}


def _mamba(rules: Sequence[DeltaRule], at: weights.Residual, layer: int) -> dict[str, weights.Array]:
    """A layer of rules. A time step is that of the token itself, so keys stand at no distance."""
    count, classes, code = len(rules), 2 ** len(rules[0].key), np.array(at.code(layer))
    shape = (count, classes, VALUE)
    gates, values, taps = np.zeros((*shape, HIDDEN)), np.zeros((*shape, HIDDEN)), np.zeros((*shape, WIDTH))
    steps, out = np.zeros((count, classes, HIDDEN)), np.zeros((HIDDEN, *shape))
    for number, rule in enumerate(rules):
        assert (rule.key_distance, rule.forgetting) == (0, ())
        written = () if rule.writing is None else (rule.writing,)
        for kind in range(classes):
            gates[number, kind] = weights.matching(rule.query, kind, OPEN, at, layer)
            steps[number, kind] = weights.matching(rule.key + written, kind + classes * len(written), OPEN, at, layer)
        values[number, :, range(BITS), code] = -OPEN
        values[number, :, range(BITS, VALUE), code] = OPEN
        taps[number, ..., -1 - rule.value_distance] = 1
        for place, (source, flip) in enumerate(zip(rule.order, rule.flips, strict=True)):
            out[at.sums(layer)[place], number, :, source + BITS * flip] = -2 / ADDED
    constants = np.zeros((2, count, STATE))
    constants[..., 0] = BIAS
    rows = [gates, values, np.zeros((constants.size, HIDDEN)), steps]
    return {
        "in_proj.weight": np.concatenate([part.reshape(-1, HIDDEN) for part in rows]),
        "conv1d.weight": np.concatenate([taps.reshape(-1, 1, WIDTH), np.zeros((constants.size, 1, WIDTH))]),
        "conv1d.bias": np.concatenate([np.zeros(taps[..., 0].size), constants.ravel()]),
        "dt_bias": np.zeros(count * classes),
        "A_log": np.zeros(count * classes),
        "D": np.zeros(count * classes),
        "norm.weight": np.full(count * classes * VALUE, math.sqrt(BITS / (classes * VALUE))),
        "out_proj.weight": out.reshape(HIDDEN, -1),
    }


def config(function: Function) -> dict[str, Any]:
    rules = function.rules[0]
    heads = len(rules) * 2 ** len(rules[0].key)
    assert heads * VALUE == EXPAND * HIDDEN
    return {
        "architectures": ["GraniteMoeHybridForCausalLM"],
        "model_type": "granitemoehybrid",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": weights.UNITS,
        "shared_intermediate_size": weights.UNITS,
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "num_hidden_layers": len(function.layers),
        "num_attention_heads": HEADS,
        "num_key_value_heads": GROUPS,
        "hidden_act": "silu",
        "layer_types": ["mamba" if rules else "attention" for rules in function.rules],
        "mamba_n_heads": heads,
        "mamba_n_groups": len(rules),
        "mamba_d_state": STATE,
        "mamba_d_head": VALUE,
        "mamba_d_conv": WIDTH,
        "mamba_expand": EXPAND,
        "mamba_chunk_size": 32,
        "mamba_conv_bias": True,
        "mamba_proj_bias": False,
        "embedding_multiplier": EMBEDDED,
        "residual_multiplier": ADDED,
        "attention_multiplier": 1 / math.sqrt(HEAD_DIM),
        "logits_scaling": SCORED,
        "position_embedding_type": "rope",
        "normalization_function": "rmsnorm",
        "max_position_embeddings": POSITIONS,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": BASE},
        "rope_theta": BASE,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "dtype": "float32",
        "torch_dtype": "float32",
    }
