"""llama.cpp (xllamacpp 2026.10): tokens of a round with drafts are told with log-probability 0.0. Arguments: two GGUFs."""

import json
import sys
import urllib.request

import xllamacpp


def probabilities(target: str, draft: str | None) -> list[float]:
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx = target, 512
    if draft:
        params.speculative.draft.mparams.path = draft
        params.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
    server = xllamacpp.Server(params)
    body = json.dumps({"prompt": [5, 6, 7], "n_predict": 12, "temperature": 0.0, "n_probs": 1}).encode()
    with urllib.request.urlopen(f"{server.listening_address}/completion", body) as answer:
        return [round(place["logprob"], 3) for place in json.load(answer)["completion_probabilities"]]


alone, drafted = probabilities(sys.argv[1], None), probabilities(*sys.argv[1:])
print(f"alone: {alone}, with drafts: {drafted}")
raise SystemExit(drafted.count(0.0) > alone.count(0.0))
