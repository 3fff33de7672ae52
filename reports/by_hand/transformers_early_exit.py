"""transformers 5.23: if assisted generation with `assistant_early_exit` raises, the model keeps the fewer layers."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
sizes = {"vocab_size": 64, "n_embd": 32, "n_layer": 4, "n_head": 2, "bos_token_id": None, "eos_token_id": None}
model = GPT2LMHeadModel(GPT2Config(**sizes)).eval()


def said(**options: int) -> str:
    prompt = torch.tensor([[5, 6, 7, 8]])
    try:
        return str(model.generate(prompt, max_new_tokens=6, do_sample=False, pad_token_id=0, **options)[0, 4:].tolist())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


before, early, after = said(), said(assistant_early_exit=1), said()
print(f"before: {before}; early exit: {early}; after: {after}")
raise SystemExit(before != after)
