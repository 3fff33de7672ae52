"""vLLM 0.32 on a CPU: top-p 1e-6 leaves one token, and with drafts others are emitted; ``mend`` repairs the engine."""

import os
import sys

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
import torch
import vllm.v1.sample.rejection_sampler as sampler
from transformers import LlamaConfig, LlamaForCausalLM
from vllm import LLM, SamplingParams

if "mend" in sys.argv:  # the kernel writes into a copy of its output, and so temperatures are whatever was in memory
    rows = lambda ends: torch.diff(ends, prepend=ends.new_zeros(1)).long()
    put = lambda x, old, new: torch.where(x == old, torch.full_like(x, new), x)
    sampler.expand_batch_to_tokens = lambda x, ends, n, replace_from=0, replace_to=0: put(
        x, replace_from, replace_to
    ).repeat_interleave(rows(ends))
sizes = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2, "num_hidden_layers": 2}
LlamaForCausalLM(LlamaConfig(**sizes, initializer_range=0.3)).save_pretrained("build/law")
drafts = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 2}
llm = LLM("build/law", dtype="float32", enforce_eager=True, skip_tokenizer_init=True, speculative_config=drafts)
asked = [SamplingParams(**one, ignore_eos=True, detokenize=False) for one in ({"top_p": 1e-6}, {"temperature": 0})]
drawn, greedy = (llm.generate({"prompt_token_ids": [5, 6, 7] * 2}, one)[0].outputs[0].token_ids for one in asked)
print(f"top-p 1e-6: {drawn}, greedy: {greedy}")
raise SystemExit(drawn != greedy)
