"""vLLM 0.32 on a CPU: a thought that begins among draft tokens outruns `thinking_token_budget`. Exit code 1: shown."""

import os

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
import tempfile

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from vllm import LLM, SamplingParams

torch.manual_seed(0)
sizes = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2}
folder = tempfile.mkdtemp()
config = LlamaConfig(**sizes, num_hidden_layers=2, initializer_range=0.3, eos_token_id=None, bos_token_id=None)
LlamaForCausalLM(config).save_pretrained(folder)
tokenizer = Tokenizer(models.WordLevel({f"[{n}]": n for n in range(256)}, unk_token="[0]"))
tokenizer.pre_tokenizer = pre_tokenizers.Split("]", "merged_with_previous")
PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[0]").save_pretrained(folder)
drafts = {"method": "draft_model", "model": folder, "num_speculative_tokens": 4}  # the target itself
prompt, end = {"prompt_token_ids": [161, 43, 122, 15, 131]}, [7, 9]


def answered(budget=None, begin=8, speculative=None):
    strings = {"reasoning_start_str": f"[{begin}]", "reasoning_end_str": "".join(f"[{n}]" for n in end)}
    settings = {"dtype": "float32", "enforce_eager": True, "max_model_len": 256, "reasoning_config": strings}
    llm = LLM(folder, **settings, speculative_config=speculative)
    asked = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, thinking_token_budget=budget)
    return list(llm.generate(prompt, asked, use_tqdm=False)[0].outputs[0].token_ids)


begin = answered()[1]
said = [answered(1, begin, speculative) for speculative in (None, drafts)]
for name, tokens in zip(("without", "with"), said):
    count = next((n for n in range(2, 12) if tokens[n : n + 2] == end), 12) - 2
    print(f"{name} drafts: {count} tokens of thought where the budget is 1, {tokens}")
raise SystemExit(said[0] != said[1])
