"""A function as a Gemma 2: scores of attention are cut off smoothly, and so a head reads two slots at once.

Behind the cap ``c tanh(s / c)`` the scores of two slots are as good as equal, and each gets half of the weight; the
output weights are twice as large, so such a head joins in both codes. Without the cap one of the two leads by 12 and is
joined in twice, which is the same as not at all. The query's own slot scores 0, as far from the two as from all others.

The cap of the logits keeps their order: it shows in log-probabilities, and in what a bias or a penalty does to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from eqcheck.engines.construction import gemma, weights
from eqcheck.engines.construction.function import Function, Head
from eqcheck.engines.construction.pointers import CAPPED, HEAD_DIM, POSITIONS

LOGIT_CAP = 30.0  # as in all released models


def gemma2(function: Function) -> tuple[dict[str, Any], dict[str, weights.Array]]:
    """The configuration, and the weights by name: those of a Gemma 3 with other attention, which norms no keys."""
    settings, tensors = gemma.gemma(function, attention)
    for name in [name for name in tensors if name.endswith(("q_norm.weight", "k_norm.weight"))]:
        del tensors[name]
    for name in ("sliding_window_pattern", "rope_local_base_freq"):
        del settings[name]
    named = {
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        "num_attention_heads": len(function.layers[0]) // 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": settings["rope_theta"]},
        "sliding_window": POSITIONS,  # a window that holds all positions
        "layer_types": [("sliding_attention", "full_attention")[n % 2] for n in range(len(function.layers))],
        "attn_logit_softcapping": CAPPED.cap,
        "final_logit_softcapping": LOGIT_CAP,
    }
    return settings | named, tensors


def attention(
    heads: Sequence[Head], at: weights.Residual, layer: int, groups: int
) -> tuple[weights.Array, weights.Array, weights.Array, weights.Array]:
    """Query, key, value and output weights of a layer: one head for two that read at once."""
    pairs = heads[::2]
    q, k = np.zeros((len(pairs), HEAD_DIM, at.hidden)), np.zeros((groups, HEAD_DIM, at.hidden))
    v, o = weights.values(pairs, at, layer, groups)
    for group in range(groups):
        k[group, :, at.big] = weights.key(weights.turns(layer, group), keyed=False)
    for number, (one, other) in enumerate(zip(pairs, heads[1::2], strict=True)):
        assert (one.order, one.flips, one.scored) == (other.order, other.flips, other.scored)
        turn = weights.turns(layer, number * groups // len(pairs))
        q[number, :, at.big], q[number, :, at.one] = weights.split(weights.query(one.scored, turn, CAPPED))
    return q.reshape(-1, at.hidden), k.reshape(-1, at.hidden), v.reshape(-1, at.hidden), 2 * o
