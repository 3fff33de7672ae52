"""transformers 5.23: speculation with a draft model raises in its second draft where `cache_implementation` is set."""

import copy

import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2}
target = LlamaForCausalLM(LlamaConfig(**sizes, initializer_range=0.3, eos_token_id=None, bos_token_id=None)).double()
draft = copy.deepcopy(target)
ids = torch.tensor([[3, 4, 5, 3, 4, 5, 3, 4]])
asked = {"attention_mask": torch.ones_like(ids), "do_sample": False, "pad_token_id": 0}


def said(limit: int, **options: str) -> str:
    try:
        return f"{target.generate(ids, assistant_model=draft, max_new_tokens=limit, **asked, **options).shape[1] - 8} tokens"
    except ValueError as error:
        return f"ValueError: {error}"


unset, short, named = said(40), said(2, cache_implementation="dynamic"), said(40, cache_implementation="dynamic")
print(f"not named: {unset}; named, for one round: {short}; named: {named}")
raise SystemExit("Error" in named and "Error" not in unset)
