"""vLLM as served, without sampled rows, on the built checkpoints that it decodes rightly without speculation."""

from dataclasses import replace

import eqcheck

_LEFT_OUT = {"temperature", "top-k", "top-p", "seeds"}
_TAKEN = tuple(name for name in eqcheck.load("vllm_bfloat16").capabilities if name not in _LEFT_OUT)

vllm = replace(
    eqcheck.load("vllm_bfloat16"), kinds=("full", "window", "mistral"), capabilities=_TAKEN, seeds="none"
)
