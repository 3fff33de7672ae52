"""mistral.rs 0.9.5 on a CPU: two requests at a time are answered otherwise than alone. Numbers: tokens of the prompts.

eqcheck checkpoint write mistral target && python <this file> target 33 32     # wrong tokens; with 33 36 it panics
eqcheck checkpoint write hybrid target && python <this file> target 33 32      # an error
"""

import json
import os
import random
import sys
import tempfile
from pathlib import Path

os.environ |= {"RAYON_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "RUST_LOG": "off", "RUST_BACKTRACE": "0"}
from mistralrs import ChatCompletionRequest, ModelDType, Runner, Which

target = Path(sys.argv[1])
tokenizer = json.loads((target / "tokenizer.json").read_text())
tokenizer["decoder"] = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}
options = {"model": "default", "max_tokens": 12, "temperature": 0.0, "ignore_eos": True, "stream": True}


def answers(*prompts):
    with tempfile.TemporaryDirectory() as folder:
        for name in ("config.json", "model.safetensors"):
            (Path(folder) / name).write_bytes((target / name).read_bytes())
        (Path(folder) / "tokenizer.json").write_text(json.dumps(tokenizer))
        (Path(folder) / "tokenizer_config.json").write_text('{"chat_template": "{{ messages[0].content }}"}')
        runner = Runner(Which.Plain(folder, dtype=ModelDType.F32), prefix_cache_n=0)
    streams = [runner.send_chat_completion_request(ChatCompletionRequest(prompt, **options)) for prompt in prompts]
    return ["".join(chunk.choices[0].delta.content for chunk in stream) for stream in streams]


random.seed(1)
prompts = ["".join(f"[{random.randrange(250)}]" for _ in range(int(size))) for size in sys.argv[2:]]
alone = [answers(prompt)[0] for prompt in prompts]
together = next((told for _ in range(20) if (told := answers(*prompts)) != alone), alone)  # they meet in other steps
print("alone:   ", *alone, "\ntogether:", *together)
raise SystemExit(alone != together)
