"""vLLM 0.32 on a CPU: log-probabilities of ids that a request names are not returned, if it speculates."""

import os

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from vllm import LLM, SamplingParams

torch.manual_seed(0)
sizes = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2, "num_hidden_layers": 2}
LlamaForCausalLM(LlamaConfig(**sizes, initializer_range=0.3)).save_pretrained("build/ids")
drafts = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 2}
told = []
for speculative in (None, drafts):
    settings = {"dtype": "float32", "enforce_eager": True, "skip_tokenizer_init": True, "max_model_len": 512}
    llm = LLM("build/ids", speculative_config=speculative, **settings)
    asked = SamplingParams(temperature=0, logprob_token_ids=[1, 2, 3], max_tokens=12, ignore_eos=True, detokenize=False)
    output = llm.generate({"prompt_token_ids": [5, 6, 7, 5, 6, 7]}, asked)[0].outputs[0]
    told.append([sorted(place) for place in output.logprobs or ()])
    print(f"{'with' if speculative else 'without'} drafts: {len(output.token_ids)} tokens, ids told: {told[-1][:2]} ...")
    del llm
raise SystemExit(told[0] != told[1])
