"""mistral.rs 0.9.5 on a CPU: the second turn of a dialogue is answered otherwise with the cache of the first one.

eqcheck checkpoint write mistral target && python <this file> target 40     # or `hybrid` with 2
eqcheck checkpoint write mistral target && python <this file> target 18 0.7      # a repetition penalty, no full window
"""

import json
import os
import random
import sys
import tempfile
from pathlib import Path

os.environ |= {"RAYON_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "RUST_LOG": "off", "RUST_BACKTRACE": "0"}
from mistralrs import CompletionRequest, ModelDType, Runner, Which

target = Path(sys.argv[1])
tokenizer = json.loads((target / "tokenizer.json").read_text())
tokenizer["decoder"] = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}
random.seed(1)
tokens = [f"[{random.randrange(250)}]" for _ in range(200)]


def answers(**settings):
    with tempfile.TemporaryDirectory() as folder:
        for name in ("config.json", "model.safetensors"):
            (Path(folder) / name).write_bytes((target / name).read_bytes())
        (Path(folder) / "tokenizer.json").write_text(json.dumps(tokenizer))
        runner = Runner(Which.Plain(folder, dtype=ModelDType.F32), **settings)
    options = {"model": "default", "max_tokens": 8, "temperature": 0.0, "ignore_eos": True}
    prompt = "".join(tokens[: int(sys.argv[2])])
    first = runner.send_completion_request(CompletionRequest(prompt, **options)).choices[0].text
    options["repetition_penalty"] = float((*sys.argv, "1")[3])
    second = CompletionRequest(prompt + first + "".join(tokens[190:194]), **options)
    return first, runner.send_completion_request(second).choices[0].text


plain, default = answers(prefix_cache_n=0), answers()
print("prefix_cache_n=0:", *plain, "\nby default:      ", *default)
raise SystemExit(plain != default)
