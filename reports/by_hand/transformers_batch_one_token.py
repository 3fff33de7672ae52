"""transformers 5.23: continuous batching ends where a prompt of one token asks for several sequences."""

import logging

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, LlamaConfig, LlamaForCausalLM

logging.disable(logging.CRITICAL)
torch.manual_seed(0)
sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2}
model = LlamaForCausalLM(LlamaConfig(**sizes)).eval()
paged = ContinuousBatchingConfig(page_size=16, num_blocks=64, max_batch_tokens=64)
asked = {"do_sample": True, "top_k": 1, "max_new_tokens": 4, "eos_token_id": -1, "pad_token_id": 0}

def answers(prompt: list[int]) -> list:
    drawn = GenerationConfig(**asked, num_return_sequences=3)
    told = model.generate_batch([prompt], generation_config=drawn, continuous_batching_config=paged)
    return [answer.error or answer.generated_tokens for answer in told.values()]

one, two = answers([5]), answers([5, 6])
print(f"a prompt of two tokens, three sequences: {two}")
print(f"a prompt of one token, three sequences: {one}")
raise SystemExit(len(one) < 3 == len(two))
