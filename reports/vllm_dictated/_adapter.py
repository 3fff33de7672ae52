"""vLLM as `adapters/vllm.py` drives it, with dictated drafts alone and without sampled rows."""

from dataclasses import replace

import eqcheck

_LEFT_OUT = {"ngram", "dictated-drafts", "temperature", "top-k", "top-p", "min-p", "seeds"}
_TAKEN = (name for name in eqcheck.load("vllm").capabilities if name not in _LEFT_OUT)

vllm = replace(eqcheck.load("vllm"), name="vllm_dictated", capabilities=("only-dictated-drafts", *_TAKEN))
