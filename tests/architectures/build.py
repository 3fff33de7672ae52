"""Tiny models of the architectures that transformers has, with random weights that answer with many tokens.

Every causal LM of the library is tried with the same small sizes; `OWN` has what an architecture names otherwise, or
needs besides. One that cannot be built small is left out of the table, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

VOCABULARY = 61
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 128,
    "sliding_window": 8,
    "attention_chunk_size": 8,
    "moe_intermediate_size": 32,
    "num_experts": 4,
    "n_routed_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
    "index_n_heads": 2,
    "index_head_dim": 16,
    "index_topk": 8,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "tie_word_embeddings": False,
}
IDS: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": None}
LONG = [1.0 + 0.1 * number for number in range(6)]
_STD = 0.25


@dataclass(frozen=True)
class Model:
    """One line of the table: the architecture, what is special in it, and its options beyond `SIZES`."""

    name: str
    kind: str
    options: dict[str, Any] = field(default_factory=dict)
    without: tuple[str, ...] = ()


def rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **more}}


# Options that an architecture needs besides, and names of `SIZES` that it cannot take.
OWN: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {}

ROPES = [
    Model("llama, linear", "llama", rope("linear", factor=4.0)),
    Model("llama, dynamic", "llama", {**rope("dynamic", factor=4.0), "max_position_embeddings": 12}),
    Model("llama, yarn", "llama", rope("yarn", factor=4.0, original_max_position_embeddings=12)),
    Model(
        "llama, longrope",
        "llama",
        rope(
            "longrope",
            short_factor=LONG,
            long_factor=[3 * one for one in LONG],
            factor=4.0,
            original_max_position_embeddings=12,
        ),
    ),
    Model(
        "llama, llama3",
        "llama",
        rope(
            "llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=12
        ),
    ),
    Model("llama, proportional", "llama", rope("proportional", partial_rotary_factor=0.5)),
    Model(
        "phi3, longrope",
        "phi3",
        {
            **rope("longrope", short_factor=LONG, long_factor=[3 * one for one in LONG]),
            "original_max_position_embeddings": 12,
        },
    ),
    Model(
        "gemma3, dynamic in full layers",
        "gemma3_text",
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
            "layer_types": ["sliding_attention", "full_attention"],
            "max_position_embeddings": 12,
        },
    ),
]


def models() -> Iterator[Model]:
    """All lines of the table: the architectures of the library, then the ropes."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    for kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        options, without = OWN.get(kind, ({}, ()))
        yield Model(kind, kind, options, without)
    yield from ROPES


def built(model: Model, dtype: torch.dtype, seed: int = 0) -> Any:
    """The model in evaluation mode. Raises whatever the library raises where it cannot be built."""
    from transformers import AutoModelForCausalLM

    config = configured(model.kind, model.options, model.without)
    with torch.device("meta"):
        size = sum(one.numel() for one in AutoModelForCausalLM.from_config(config).parameters())
    if size > 8_000_000:
        raise ValueError(f"it has {size} parameters with these sizes")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = AutoModelForCausalLM.from_config(config)
        spread(made)
    return made.to(dtype).eval()


def configured(kind: str, options: dict[str, Any], without: tuple[str, ...] = ()) -> Any:
    """The configuration of an architecture with small sizes, in its parts too."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config_class = CONFIG_MAPPING[kind]
    config = config_class(**_said(config_class, options, without))
    for one in (config, config.get_text_config()):
        one._experts_implementation = "eager"  # the other ones have no float64
    return config


def _said(config_class: Any, options: dict[str, Any], without: tuple[str, ...]) -> dict[str, Any]:
    usual = config_class()
    said = {name: value for name, value in SIZES.items() if _has(usual, name) and name not in without}
    parts = getattr(config_class, "sub_configs", {}) or {}
    for name, part in parts.items():
        kind = type(getattr(usual, name, None))
        if hasattr(kind, "model_type"):
            small = _said(kind, {}, ("vocab_size",) if "text" not in name else ())
            said[name] = {**small, **options.get(name, {})}
    if not parts:
        said |= IDS
    return {**said, **{name: value for name, value in options.items() if name not in parts}}


def _has(usual: Any, name: str) -> bool:
    """Return whether a configuration has a name with a value, which is then one that the model reads."""
    try:
        return getattr(usual, name, None) is not None
    except Exception:  # one that every layer has for itself
        return True


@torch.no_grad()
def spread(model: Any) -> None:
    """Large weights: with those of a fresh model nearly every context has the same answer."""
    for name, parameter in model.named_parameters():
        if parameter.dim() >= 2 and not name.endswith("A_log"):
            torch.nn.init.normal_(parameter, std=_STD)
        elif parameter.dim() == 1 and name.endswith(("sinks", "bias")):
            torch.nn.init.normal_(parameter, std=_STD)
