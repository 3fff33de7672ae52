"""Tiny real architectures whose greedy output is varied: untied, standard deviation 0.3."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

VOCABULARY = 67
POSITIONS = 96
_SIZES = {"vocab_size": VOCABULARY, "tie_word_embeddings": False, "initializer_range": 0.3}
_GENERIC = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": POSITIONS,
}
_OWN: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 2},
    "qwen3": {"num_key_value_heads": 2, "head_dim": 8},
    "mistral": {"num_key_value_heads": 2, "sliding_window": 8},
    "mixtral": {"num_key_value_heads": 2, "num_local_experts": 4, "sliding_window": None},
    "gpt_neox": {},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": POSITIONS},
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4},
    "mamba2": {"hidden_size": 32, "num_hidden_layers": 2, "head_dim": 16, "num_heads": 4, "state_size": 16},
    "gpt_neo": {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]},
    "falcon": {},
    "gemma2": {"num_key_value_heads": 2, "head_dim": 8},
}
KINDS = ("llama", "qwen3", "gpt2", "gpt_neox", "mixtral")


def tiny(kind: str, seed: int = 1, dtype: torch.dtype = torch.float64, **changes: Any) -> Any:
    """A model of this architecture with random weights."""
    torch.manual_seed(seed)
    generic = {} if kind in ("gpt2", "gpt_neo", "bloom", "mamba2") else _GENERIC
    config = CONFIG_MAPPING[kind](**{**_SIZES, **generic, **_OWN[kind], **changes})
    if hasattr(config, "_experts_implementation"):
        config._experts_implementation = "eager"  # the default of transformers 5 has no float64
    return AutoModelForCausalLM.from_config(config).to(dtype).eval()


def noisy(model: Any, scale: float = 0.02) -> Any:
    """A draft that agrees with the target now and then: a copy with noise on its weights."""
    draft = type(model)(model.config).to(model.dtype).eval()
    draft.load_state_dict(model.state_dict())
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator).to(parameter.dtype))
    return draft
