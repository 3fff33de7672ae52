"""transformers 5.23: with ids and their embeddings, speculation looks for the target's tokens in the wrong places."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2}
target = LlamaForCausalLM(LlamaConfig(**sizes, initializer_range=0.3, eos_token_id=None, bos_token_id=None)).double()
ids = torch.tensor([[3, 4, 5, 3, 4, 5, 3, 4]])
asked = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
embedded = {"inputs_embeds": target.get_input_embeddings()(ids)}

plain = target.generate(input_ids=ids, **embedded, **asked)[0, 8:].tolist()
tokens = target.generate(input_ids=ids, **embedded, prompt_lookup_num_tokens=4, **asked)[0, 8:].tolist()
print(f"with embeddings of the ids: {tokens}, without speculation: {plain}")
print(f"with ids alone: {target.generate(ids, prompt_lookup_num_tokens=4, **asked)[0, 8:].tolist()}")
raise SystemExit(tokens != plain)
