"""transformers 5.23: guidance keeps a cache of its own, and what rejected drafts and the draft model leave in it stays."""

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
asked["guidance_scale"] = 1.7
plain = target.generate(ids, **asked)[0, 8:].tolist()
wrong = 0
for name, drafting in {"draft model": {"assistant_model": draft}, "lookup": {"prompt_lookup_num_tokens": 4}}.items():
    tokens = target.generate(ids, **drafting, **asked)[0, 8:].tolist()
    wrong += tokens != plain
    print(f"{name}: {tokens}, alone: {plain}")
raise SystemExit(bool(wrong))
