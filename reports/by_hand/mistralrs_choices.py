"""mistral.rs 0.9.5, Python: a stream of several choices ends before all of them have, and those lose tokens.

eqcheck checkpoint write mistral target && python <this file> target
"""

import json
import os
import sys
import tempfile
from pathlib import Path

os.environ |= {"RAYON_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "RUST_LOG": "off", "RUST_BACKTRACE": "0"}
from mistralrs import ChatCompletionRequest, ModelDType, Runner, Which

target = Path(sys.argv[1])
tokenizer = json.loads((target / "tokenizer.json").read_text())
tokenizer["decoder"] = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}
with tempfile.TemporaryDirectory() as folder:
    for name in ("config.json", "model.safetensors"):
        (Path(folder) / name).write_bytes((target / name).read_bytes())
    (Path(folder) / "tokenizer.json").write_text(json.dumps(tokenizer))
    (Path(folder) / "tokenizer_config.json").write_text('{"chat_template": "{{ messages[0].content }}"}')
    runner = Runner(Which.Plain(folder, dtype=ModelDType.F32))
asked = {"model": "default", "max_tokens": 6, "temperature": 0.0, "ignore_eos": True, "n_choices": 2}
whole = runner.send_chat_completion_request(ChatCompletionRequest("[1][2][3]", **asked))
streamed = ["", ""]
for chunk in runner.send_chat_completion_request(ChatCompletionRequest("[1][2][3]", stream=True, **asked)):
    for choice in chunk.choices:
        streamed[choice.index] += choice.delta.content
print("not streamed:", *[choice.message.content for choice in whole.choices])
print("streamed:    ", *streamed)
print(f"usage: {whole.usage.completion_tokens} completion tokens")
raise SystemExit([choice.message.content for choice in whole.choices] != streamed)
