"""llama.cpp (xllamacpp 2026.10): wrong tokens behind checkpoints of a slot. Argument: a GGUF file with a window of 32."""

import json
import random
import sys
import urllib.request

import xllamacpp

draw = random.Random(0)
text = [draw.randrange(200) for _ in range(300)]
STALE = [text[:5], text[5:34], [*text[5:22], *text[40:46]]]  # the first shares nothing with the others
FIRST, OTHER, LAST = text[100:128], text[130:137], [*text[100:108], *text[140:165]]
SHORT = [text[:37], [*text[:32], *FIRST], [*text[:32], *OTHER], [*text[:32], *LAST]]  # the last parts from the second


def answers(model: str, prompts: list[list[int]]) -> list[int]:
    """The tokens that a new server with one slot emits for the last of some prompts, sent one after the other."""
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.verbosity = model, 512, 1, -1
    server = xllamacpp.Server(params)
    for prompt, count in zip(prompts, (15, 31, 37, 29)[-len(prompts) :]):
        asked = {"prompt": prompt, "n_predict": count, "temperature": 0.0, "return_tokens": True}
        with urllib.request.urlopen(f"{server.listening_address}/completion", json.dumps(asked).encode()) as answer:
            told = json.load(answer)
    print(f"behind {len(prompts) - 1} requests, {told['timings']['cache_n']} tokens cached: {told['tokens'][:8]}")
    return told["tokens"]


wrong = [answers(sys.argv[1], prompts[-1:]) != answers(sys.argv[1], prompts) for prompts in (STALE, SHORT)]
raise SystemExit(any(wrong))
