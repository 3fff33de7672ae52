"""vLLM 0.32 on a CPU: an LFM2 emits other tokens than its model, `plain` or with `drafts`; with a `cache` it raises.

The argument is one of these three, or `control`: without drafts, and with rotary positions in torch.
"""

import os
import sys

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
import torch
from transformers import Lfm2Config, Lfm2ForCausalLM
from vllm import LLM, SamplingParams

asked, prompt = sys.argv[1], [5, 6, 7, 8, 9, 5, 6, 7, 8]
torch.manual_seed(0)
sizes = {"vocab_size": 256, "hidden_size": 64, "block_dim": 64, "conv_dim": 64, "conv_dim_out": 64}
heads = {"num_attention_heads": 2, "num_heads": 2, "num_key_value_heads": 2, "tie_word_embeddings": True}
units = {"intermediate_size": 128, "block_ff_dim": 128, "block_multiple_of": 32, "block_ffn_dim_multiplier": 1.0}
layers = {"num_hidden_layers": 4, "layer_types": ["conv", "full_attention"] * 2, "block_auto_adjust_ff_dim": False}
made = Lfm2Config(**sizes, **heads, **units, **layers, initializer_range=0.3, eos_token_id=None, pad_token_id=0)
model = Lfm2ForCausalLM(made).eval()
model.save_pretrained("build/lfm2")
right = model.generate(torch.tensor([prompt]), max_new_tokens=24, do_sample=False)[0, len(prompt) :].tolist()
options = {"dtype": "float32", "enforce_eager": True, "skip_tokenizer_init": True}
options["enable_prefix_caching"] = asked == "cache"
if asked != "plain":  # rotary positions in torch, so that plain decoding is right
    options["compilation_config"] = {"custom_ops": ["-rotary_embedding"]}
    drafts = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 2}
    options["speculative_config"] = None if asked == "control" else drafts
llm = LLM("build/lfm2", **options)
greedy = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, detokenize=False)
given = llm.generate({"prompt_token_ids": prompt}, greedy)[0].outputs[0].token_ids
print(f"{asked}: {list(given)}, the model: {right}")
raise SystemExit(list(given) != right)
