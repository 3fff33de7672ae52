"""transformers 5.23: hidden states and attentions beside tokens of the first round are those of earlier places."""

import copy

import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2}
target = LlamaForCausalLM(LlamaConfig(**sizes, initializer_range=0.3, eos_token_id=None, bos_token_id=None)).double()
draft = copy.deepcopy(target)  # it agrees with the target, and so drafts are accepted
draft.generation_config.assistant_confidence_threshold = 0.0
ids = torch.tensor([[3, 4, 5, 3, 4, 5, 3, 4]])
asked = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
asked |= {"output_hidden_states": True, "return_dict_in_generate": True}
plain, assisted = target.generate(ids, **asked), target.generate(ids, assistant_model=draft, **asked)
assert plain.sequences.tolist() == assisted.sequences.tolist()
wrong = [n for n in range(12) if not torch.allclose(plain.hidden_states[n][-1], assisted.hidden_states[n][-1])]
prompt = [n for n in wrong if n <= 8 and torch.allclose(assisted.hidden_states[n][-1], plain.hidden_states[0][-1][:, n - 1 : n])]
print(f"the tokens are right; hidden states are wrong at new tokens {wrong}, of the prompt's tokens at {prompt}")
raise SystemExit(bool(wrong))
