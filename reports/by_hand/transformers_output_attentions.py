"""transformers 5.23: speculation raises where `output_attentions` is asked of a model whose attention returns none."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2}
model = LlamaForCausalLM(LlamaConfig(**sizes, eos_token_id=None, bos_token_id=None)).eval()
ids = torch.tensor([[3, 4, 5, 3, 4, 5, 3, 4]])
asked = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
asked |= {"output_attentions": True, "return_dict_in_generate": True}


def said(**options: int) -> str:
    try:
        return str(model.generate(ids, **options, **asked).attentions)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


plain, assisted = said(), said(prompt_lookup_num_tokens=4)
print(f"attentions without speculation: {plain}\nwith it: {assisted}")
raise SystemExit("Error" in assisted and "Error" not in plain)
