"""transformers 5.23: criteria are asked once a round, and so a row goes on behind the length at which one is true."""

import copy

import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2}
target = LlamaForCausalLM(LlamaConfig(**sizes, initializer_range=0.3, eos_token_id=None, bos_token_id=None)).double()
draft = copy.deepcopy(target)  # it agrees with the target, and so drafts are accepted
draft.generation_config.assistant_confidence_threshold = 0.0
ids = torch.tensor([[3, 4, 5, 3, 4, 5, 3, 4]])
asked = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 40, "do_sample": False, "pad_token_id": 0}


def third(tokens: torch.Tensor, scores: object, **options: object) -> torch.Tensor:
    return torch.tensor([tokens.shape[1] >= 8 + 3])


plain, assisted = (target.generate(ids, stopping_criteria=[third], assistant_model=each, **asked) for each in (None, draft))
print(f"to be stopped at 3 new tokens: {len(plain[0]) - 8} without speculation, {len(assisted[0]) - 8} with it")
raise SystemExit(len(assisted[0]) != len(plain[0]))
