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
_LATENT: tuple[dict[str, Any], tuple[str, ...]] = ({"num_key_value_heads": 4, "head_dim": 8}, ())
_DECODER = {
    "decoder_layers": 2,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 64,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
}
_SEQ2SEQ: tuple[dict[str, Any], tuple[str, ...]] = (_DECODER, ("num_hidden_layers", "num_attention_heads"))
_SAYS_IDS: tuple[dict[str, Any], tuple[str, ...]] = ({"bos_token_id": 1, "eos_token_id": 2}, ())
_LINEAR = ["linear_attention", "full_attention"]
_GATED_DELTA: dict[str, Any] = {
    "layer_types": _LINEAR,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 12,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "shared_expert_intermediate_size": 32,
}
_GEMMA4: dict[str, Any] = {
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_kv_shared_layers": 2,
    "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size_per_layer_input": 8,
}
_MAMBA: dict[str, Any] = {
    "mamba_n_heads": 8,
    "mamba_d_head": 12,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 8,
    "attn_layer_indices": [1],
}
OWN: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    **dict.fromkeys(
        ("axk1", "axk2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa", "sarvam_mla"),
        _LATENT,
    ),
    **dict.fromkeys(("minicpm3", "longcat_flash", "youtu"), _LATENT),
    "deepseek_v2": ({**_LATENT[0], "topk_group": 1, "n_group": 1, "num_experts_per_tok": 2}, ()),
    "kimi_linear": ({"num_key_value_heads": 4, "head_dim": 8, "layer_types": _LINEAR}, ()),
    **dict.fromkeys(
        ("bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "marian", "mbart", "mvp", "pegasus", "plbart"),
        _SEQ2SEQ,
    ),
    "prophetnet": (
        {
            "num_encoder_layers": 2,
            "num_decoder_layers": 2,
            "num_encoder_attention_heads": 4,
            "num_decoder_attention_heads": 4,
            "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 64,
        },
        ("num_hidden_layers", "num_attention_heads"),
    ),
    **dict.fromkeys(("cwm", "modernbert-decoder"), _SAYS_IDS),
    **dict.fromkeys(("qwen3_5_text", "qwen3_5_moe_text", "qwen3_next", "qwen4_exp_text"), (_GATED_DELTA, ())),
    **dict.fromkeys(("qwen3_5", "qwen3_5_moe", "qwen4_exp"), ({"text_config": _GATED_DELTA}, ())),
    "bailing_hybrid": ({"layer_types": _LINEAR, "num_key_value_heads": 4, "head_dim": 8}, ()),
    "bamba": (_MAMBA, ()),
    "granitemoehybrid": ({**_MAMBA, "layer_types": _LINEAR}, ()),
    "falcon_h1": ({**_MAMBA, "mamba_d_ssm": 96}, ()),
    "jamba": ({"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8, "mamba_dt_rank": 8}, ()),
    "mamba2": ({"num_heads": 8, "head_dim": 12, "state_size": 8, "n_groups": 1, "chunk_size": 8}, ()),
    "nemotron_h": (
        {
            "mamba_num_heads": 8,
            "mamba_head_dim": 12,
            "ssm_state_size": 8,
            "n_groups": 1,
            "chunk_size": 8,
            "moe_shared_expert_intermediate_size": 32,
        },
        ("num_hidden_layers",),
    ),
    "zamba": (
        {
            "layers_block_type": ["linear_attention", "hybrid"],
            "attention_hidden_size": 96,
            "attention_head_dim": 24,
            "mamba_d_state": 8,
            "mamba_dt_rank": 8,
            "num_key_value_heads": 4,
        },
        (),
    ),
    "zamba2": (
        {
            "layers_block_type": ["linear_attention", "hybrid"],
            "n_mamba_heads": 8,
            "mamba_d_state": 8,
            "chunk_size": 8,
            "num_key_value_heads": 4,
            "adapter_rank": 8,
            "hybrid_layer_ids": [1],
        },
        ("head_dim",),
    ),
    "recurrent_gemma": ({"num_hidden_layers": 3}, ()),
    "codegen": ({"rotary_dim": 8}, ()),
    "gptj": ({"rotary_dim": 8}, ()),
    "gpt_neo": ({"attention_types": [[["global", "local"], 1]], "window_size": 8}, ()),
    "falcon": ({"new_decoder_architecture": False, "multi_query": True, "alibi": False}, ("head_dim",)),
    "dots1": ({"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1}, ()),
    "cohere_compass_text": ({"layer_types": ["sliding_attention", "full_attention"]}, ()),
    "gemma3n_text": (
        {
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "num_kv_shared_layers": 2,
            "intermediate_size": [64] * 4,
            "activation_sparsity_pattern": [0.5, 0.0, 0.5, 0.0],
            "vocab_size_per_layer_input": VOCABULARY,
            "hidden_size_per_layer_input": 8,
            "laurel_rank": 8,
        },
        (),
    ),
    "gemma4_text": (_GEMMA4, ()),
    "gemma2": ({"num_hidden_layers": 4, "query_pre_attn_scalar": 12, "attn_logit_softcapping": 2.0}, ()),
    "lfm2_moe": ({"layer_types": ["conv", "full_attention"], "num_dense_layers": 1}, ()),
    "lfm2": ({"layer_types": ["conv", "full_attention"]}, ()),
    "ministral": ({"head_dim": 12}, ()),
    "hunyuan_v1_dense": ({"head_dim": 12}, ()),
    "hunyuan_v1_moe": ({"head_dim": 12, "moe_topk": 2}, ()),
    "nemotron": ({"head_dim": 12, "num_key_value_heads": 2}, ()),
    "reformer": (
        {
            "is_decoder": True,
            "axial_pos_embds": False,
            "attn_layers": ["local", "lsh"],
            "attention_head_size": 12,
            "feed_forward_size": 64,
            "num_buckets": 4,
            "lsh_attn_chunk_length": 4,
            "local_attn_chunk_length": 4,
        },
        (),
    ),
    "xlstm": ({}, ("v_head_dim",)),
    "xlnet": ({}, ("max_position_embeddings",)),
    "xmod": ({"is_decoder": True, "default_language": "en_XX"}, ()),
    "whisper": _SEQ2SEQ,
    "stablelm": (rope("default", partial_rotary_factor=0.5), ()),
    "zaya": ({"num_experts_per_tok": 1}, ()),
    "dots3_note_text": ({"num_key_value_heads": 4}, ()),
    "mllama": ({"text_config": _SAYS_IDS[0]}, ()),
    "emu3": ({"text_config": _SAYS_IDS[0]}, ()),
    "gemma4": ({"text_config": _GEMMA4}, ()),
    **dict.fromkeys(
        ("bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie", "megatron-bert"),
        ({"is_decoder": True}, ()),
    ),
    **dict.fromkeys(
        ("rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer", "xlm-roberta", "xlm-roberta-xl"),
        ({"is_decoder": True}, ()),
    ),
}

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
        rope("llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=12),
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
    if size > 16_000_000:
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
    for name in parts:
        kind = type(getattr(usual, name, None))
        if hasattr(kind, "model_type"):
            small = _said(kind, {}, ("vocab_size",) if "text" not in name else ())
            said[name] = {**small, **options.get(name, {})}
    if not parts:
        said |= {name: value for name, value in IDS.items() if name not in without}
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
        matrix = parameter.dim() >= 2 and not name.endswith("A_log")
        if matrix or name.endswith(("sinks", "bias")):
            torch.nn.init.normal_(parameter, std=_STD)
