"""vLLM 0.32 on a CPU: a sampled request with `top_k` raises in its first step, if speculation is on.

Every step is given to the rejection sampler, also the first, which has no drafts. Exit code 1: shown.
"""

import os

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from vllm import LLM, SamplingParams

torch.manual_seed(0)
sizes = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2}
folder = tempfile.mkdtemp()
LlamaForCausalLM(LlamaConfig(**sizes, eos_token_id=None, bos_token_id=None)).save_pretrained(folder)
drafts = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 2}
llm = LLM(folder, dtype="float32", enforce_eager=True, skip_tokenizer_init=True, speculative_config=drafts)
try:
    asked = SamplingParams(temperature=1.0, top_k=8, max_tokens=6, detokenize=False)
    llm.generate({"prompt_token_ids": [161, 43, 122, 15, 131]}, asked)
except RuntimeError as error:
    raise SystemExit(f"RuntimeError: {error}")
