"""llama.cpp (xllamacpp 2026.10): the server aborts where a batch is smaller than a round of all slots.

The arguments are two files of GGUF. SIGABRT ends this process; exit code 0: all requests were answered.
"""

import json
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path, params.n_parallel, params.n_ctx = sys.argv[1], 4, 2048
params.n_batch = params.n_ubatch = 24  # a round of four slots has 4 * (1 + 6) tokens
params.speculative.draft.mparams.path, params.speculative.draft.n_max = sys.argv[2], 6
params.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
server = xllamacpp.Server(params)


def answer(first: int) -> list[int]:
    body = json.dumps({"prompt": [first, 6, 7], "n_predict": 40, "temperature": 0.0, "return_tokens": True}).encode()
    with urllib.request.urlopen(f"{server.listening_address}/completion", body) as response:
        return json.load(response)["tokens"]


with ThreadPoolExecutor(4) as pool:
    print([len(tokens) for tokens in pool.map(answer, range(4))])
