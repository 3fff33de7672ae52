"""transformers 5.23: with a cache that holds tokens already, speculation feeds the whole prompt to the target again."""

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2}
target = LlamaForCausalLM(LlamaConfig(**sizes, initializer_range=0.3, eos_token_id=None, bos_token_id=None)).double()
ids = torch.tensor([[3, 4, 5, 3, 4, 5, 3, 4]])
asked = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}


def cache() -> DynamicCache:
    with torch.no_grad():
        return target(ids[:, :5], past_key_values=DynamicCache()).past_key_values


plain = target.generate(ids, past_key_values=cache(), **asked)[0, 8:].tolist()
tokens = target.generate(ids, past_key_values=cache(), prompt_lookup_num_tokens=4, **asked)[0, 8:].tolist()
print(f"with a cache of 5 of the 8 tokens: {tokens}, without speculation: {plain}")
raise SystemExit(tokens != plain)
