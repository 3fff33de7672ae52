"""A function as a Qwen 3.5: layers of a gated delta rule beside layers of gated attention with partly rotary positions.

The delta rule with orthogonal keys, beta of 1 and no decay is a dictionary by key. A key has a coordinate for each
class of codes: behind the convolution, whose taps choose the distances, silu lets one of them through. A value has two
coordinates for each bit, for a bit that is set and for one that is not, so all values are equally long, and the norm
behind the rule cannot tell them apart. A class that never came yields 0. So a rule takes 2 from the sums of its layer
where a sign is -1, and the sums start at the number of rules.

This architecture multiplies by one more than the weight of a norm. All are numbers that bfloat16 holds exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from eqcheck.engines.construction import weights
from eqcheck.engines.construction.function import BITS, VOCABULARY, DeltaRule, Function, Head
from eqcheck.engines.construction.pointers import BASE, HEAD_DIM, POSITIONS

HIDDEN = 256
BIG = 1024.0  # in place of `weights.BIG`: the sums of these layers start far from 0, and must not move the norms
HEADS, GROUPS = 16, 4
SIZE = 2 * HEAD_DIM  # of a head of attention: half of it is rotary
STATE = 64  # the sizes of a key and of a value: engines have kernels for 64 and 128
SHARE = 2  # rules by key head
WIDTH = 4  # of the convolution
OPEN = 32.0  # what passes a gate: silu lets 32 through, and 1e-12 of -32; a sigmoid is 1, and 1e-14
GATE = 16.0  # the constant behind the norm of a rule
INTERVAL = 2  # every second layer is attention


def qwen35(function: Function) -> tuple[dict[str, Any], dict[str, weights.Array]]:
    """The configuration, and the weights by name."""
    at = weights.Residual(len(function.layers), HIDDEN)
    norm = np.full(HIDDEN, BIG / math.sqrt(HIDDEN))  # the root of the mean square, within a thousandth
    norm[at.big] /= BIG
    table = weights.embeddings(function, at)
    table[:, at.big] = BIG
    tensors = {"model.norm.weight": norm - 1, "lm_head.weight": weights.head(function, at)}
    for number, heads in enumerate(function.layers):
        layer = f"model.layers.{number}"
        if rules := function.rules[number]:
            table[:, at.sums(number)] = len(rules)
        parts = _delta(rules, at, number) if rules else _attention(heads, at, number)
        gate, up, down = weights.mlp(function, at, number)
        tensors |= {
            f"{layer}.input_layernorm.weight": norm - 1,
            f"{layer}.post_attention_layernorm.weight": norm - 1,
            **{f"{layer}.{name}": weight for name, weight in parts.items()},
            f"{layer}.mlp.gate_proj.weight": gate,
            f"{layer}.mlp.up_proj.weight": up,
            f"{layer}.mlp.down_proj.weight": down,
        }
    return config(function), {**tensors, "model.embed_tokens.weight": table}


def _delta(rules: Sequence[DeltaRule], at: weights.Residual, layer: int) -> dict[str, weights.Array]:
    """A layer of rules: `SHARE` in turn have the same keys and queries."""
    count, code = len(rules), np.array(at.code(layer))
    queries, keys = (np.zeros((count // SHARE, STATE, HIDDEN)) for _ in range(2))
    values, gates = (np.zeros((count, STATE, HIDDEN)) for _ in range(2))
    taps = {name: np.zeros((n, STATE, WIDTH)) for name, n in (("q", len(queries)), ("k", len(keys)), ("v", count))}
    beta, decay, out = np.zeros((count, HIDDEN)), np.zeros((count, HIDDEN)), np.zeros((HIDDEN, count, STATE))
    for number, rule in enumerate(rules):
        head = number // SHARE
        first = rules[head * SHARE]
        assert (rule.key, rule.query, rule.key_distance) == (first.key, first.query, first.key_distance)
        queries[head], keys[head] = _classes(rule.query, at, layer), _classes(rule.key, at, layer)
        values[number, range(BITS), code] = -OPEN
        values[number, range(BITS, 2 * BITS), code] = OPEN
        taps["q"][head, :, -1] = taps["k"][head, :, -1 - rule.key_distance] = 1
        taps["v"][number, :, -1 - rule.value_distance] = 1
        gates[number, :, at.big] = GATE
        if rule.writing is None:
            beta[number, at.big] = OPEN
        else:
            beta[number, code[rule.writing]] = -OPEN
        decay[number, code[list(rule.forgetting)]] = -OPEN
        decay[number, at.big] = -OPEN * (len(rule.forgetting) - 1 if rule.forgetting else 1)
        for place, (source, flip) in enumerate(zip(rule.order, rule.flips, strict=True)):
            out[at.sums(layer)[place], number, source + BITS * flip] = -2 / GATE
    parts = [part.reshape(-1, HIDDEN) for part in (queries, keys, values)]
    return {
        "linear_attn.in_proj_qkv.weight": np.concatenate(parts),
        "linear_attn.in_proj_z.weight": gates.reshape(-1, HIDDEN),
        "linear_attn.in_proj_b.weight": beta,
        "linear_attn.in_proj_a.weight": decay,
        "linear_attn.conv1d.weight": np.concatenate([part.reshape(-1, 1, WIDTH) for part in taps.values()]),
        "linear_attn.dt_bias": np.zeros(count),
        "linear_attn.A_log": np.zeros(count),
        "linear_attn.norm.weight": np.full(STATE, math.sqrt(BITS / STATE)),  # a value has so many ones
        "linear_attn.out_proj.weight": out.reshape(HIDDEN, -1),
    }


def _classes(bits: Sequence[int], at: weights.Residual, layer: int) -> weights.Array:
    """``[STATE, hidden]``: a row for each pattern of these bits."""
    rows = np.zeros((STATE, HIDDEN))
    for pattern in range(2 ** len(bits)):
        rows[pattern] = weights.matching(bits, pattern, OPEN, at, layer)
    return rows


def _attention(heads: Sequence[Head], at: weights.Residual, layer: int) -> dict[str, weights.Array]:
    """Pointers whose queries the norm makes as long as the longest. The gate of the output is open by half."""
    q, k, v, o = weights.attention(heads, at, layer, GROUPS)
    queries, keys, values = (
        np.zeros((n, size, HIDDEN)) for n, size in ((HEADS, 2 * SIZE), (GROUPS, SIZE), (GROUPS, SIZE))
    )
    queries[:, :HEAD_DIM] = q.reshape(HEADS, HEAD_DIM, HIDDEN)
    keys[:, :HEAD_DIM], values[:, :HEAD_DIM] = k.reshape(GROUPS, HEAD_DIM, HIDDEN), v.reshape(GROUPS, HEAD_DIM, HIDDEN)
    out = np.zeros((HIDDEN, HEADS, SIZE))
    out[..., :HEAD_DIM] = 2 * o.reshape(HIDDEN, HEADS, HEAD_DIM)
    longest = float(np.linalg.norm(q.sum(-1).reshape(HEADS, HEAD_DIM), axis=-1).max())  # both constants are 1
    # A key's norm is KEY / 2 over all its coordinates, and the root of SIZE divides scores, not that of HEAD_DIM.
    return {
        "self_attn.q_proj.weight": queries.reshape(-1, HIDDEN),
        "self_attn.k_proj.weight": keys.reshape(-1, HIDDEN),
        "self_attn.v_proj.weight": values.reshape(-1, HIDDEN),
        "self_attn.o_proj.weight": out.reshape(HIDDEN, -1),
        "self_attn.q_norm.weight": np.full(SIZE, math.ceil(longest / math.sqrt(2 * SIZE)) - 1),
        "self_attn.k_norm.weight": np.full(SIZE, weights.KEY - 1),
    }


def config(function: Function) -> dict[str, Any]:
    """Some engines read the kinds of layers, others the interval of attention."""
    rotary = {
        "rope_type": "default",
        "rope_theta": BASE,
        "partial_rotary_factor": HEAD_DIM / SIZE,
        "mrope_section": [11, 11, 10],
        "mrope_interleaved": True,
    }
    return {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": weights.UNITS,
        "num_hidden_layers": len(function.layers),
        "num_attention_heads": HEADS,
        "num_key_value_heads": GROUPS,
        "head_dim": SIZE,
        "hidden_act": "silu",
        "attn_output_gate": True,
        "linear_conv_kernel_dim": WIDTH,
        "linear_key_head_dim": STATE,
        "linear_value_head_dim": STATE,
        "linear_num_key_heads": len(function.rules[0]) // SHARE,
        "linear_num_value_heads": len(function.rules[0]),
        "mamba_ssm_dtype": "float32",
        "layer_types": ["linear_attention" if rules else "full_attention" for rules in function.rules],
        "full_attention_interval": INTERVAL,
        "mtp_num_hidden_layers": 0,
        "max_position_embeddings": POSITIONS,
        "rms_norm_eps": 1e-6,
        "rope_parameters": rotary,
        "rope_theta": BASE,
        "partial_rotary_factor": HEAD_DIM / SIZE,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "dtype": "float32",
        "torch_dtype": "float32",
    }
