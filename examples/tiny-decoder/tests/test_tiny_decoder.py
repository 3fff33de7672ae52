"""The project's own test: on a real (tiny) Llama, the oracle says whether the outputs are those of the target alone."""

from __future__ import annotations

from typing import Any

import torch
from tiny_decoder import generate
from transformers import LlamaConfig, LlamaForCausalLM

import eqcheck


def llama(seed: int) -> Any:
    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=64, **sizes, initializer_range=0.3, tie_word_embeddings=False)
    return LlamaForCausalLM(config).to(torch.float64).eval()


def noisy(model: Any) -> Any:
    """A draft that agrees with the target now and then."""
    draft = llama(0)
    draft.load_state_dict(model.state_dict())
    torch.manual_seed(1)
    for parameter in draft.parameters():
        parameter.data += 0.03 * torch.randn_like(parameter)
    return draft


def test_a_batch_is_what_the_target_emits_alone() -> None:
    target = llama(0)
    prompts = [[5, 6, 7, 8, 9], [11, 12], [21, 22, 23]]
    outputs = generate(target, noisy(target), prompts, max_new_tokens=24, num_draft_tokens=4)
    verdict = eqcheck.Oracle(target).check(prompts, outputs, max_new_tokens=24)
    assert verdict, verdict.explain()
