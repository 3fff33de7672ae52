"""transformers 5.23: continuous batching takes a request's top-k of 0 for 1, and one beyond the vocabulary fails all."""

import logging

from transformers import ContinuousBatchingConfig, GenerationConfig, LlamaConfig, LlamaForCausalLM

logging.disable(logging.CRITICAL)
sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2}
model = LlamaForCausalLM(LlamaConfig(**sizes)).eval()
drawn = GenerationConfig(do_sample=True, top_k=9, max_new_tokens=6, eos_token_id=-1, pad_token_id=0)
paged = ContinuousBatchingConfig(page_size=16, num_blocks=64, max_batch_tokens=64, per_request_processors=True)

def answers(*top_ks: int) -> list:
    with model.continuous_batching_context_manager(drawn, continuous_batching_config=paged) as manager:
        names = [manager.add_request([5, 6, 7], top_k=top_k) for top_k in top_ks]
        told = {answer.request_id: answer for answer in (manager.get_result(timeout=30) for _ in names)}
    return [told[name].error or tuple(told[name].generated_tokens) for name in names]

zero, all_, one = (len({*answers(*[top_k] * 8)}) for top_k in (0, 64, 1))
beside = answers(100, 1)
print(f"of 8 rows differ: {zero} with top_k=0, {all_} with top_k=64, {one} with top_k=1")
print(f"top_k=100, and beside it top_k=1: {beside}")
raise SystemExit(zero == 1 < all_ or not isinstance(beside[1], tuple))
