"""onnxruntime-genai 0.18: with a draft model and `get_logits`, tokens behind an emitted pad token are wrong.

eqcheck checkpoint write full target --draft draft && python <this file> target draft
"""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import onnxruntime_genai as og

FOLDER, BUILDER = Path(mkdtemp()), [sys.executable, "-m", "onnxruntime_genai.models.builder"]

def exported(source: str) -> dict:
    words = f"-i {source} -o {FOLDER / source} -p fp32 -e cpu -c {FOLDER} --extra_options hf_token=false"
    subprocess.run([*BUILDER, *words.split()], check=True, capture_output=True)
    told = json.loads((FOLDER / source / "genai_config.json").read_text())
    told["model"]["decoder"]["filename"] = f"{source}/model.onnx"
    return told

def row(looks: bool, **settings: object) -> list[int]:
    (FOLDER / "genai_config.json").write_text(json.dumps({**target, "model": {**target["model"], **settings}}))
    params = og.GeneratorParams(model := og.Model(str(FOLDER)))
    params.set_search_options(max_length=17)
    (generator := og.Generator(model, params)).append_tokens(np.arange(5, dtype=np.int32))
    tokens = []
    while not generator.is_done():
        looks and generator.get_logits()
        tokens.append(generator.generate_next_token() or int(generator.get_next_tokens()[0]))
    return tokens

target, draft = map(exported, sys.argv[1:3])
right = row(True)
pad = {"pad_token_id": right[1]}  # the second token that the target emits
seen = [row(True, **pad, draft=draft["model"]["decoder"]) for _ in range(3)]
print(f"without a draft: {right}, the pad is {right[1]}\nwith a draft, in three runs: {seen}")
raise SystemExit(right == row(True, **pad) == row(False, **pad, draft=draft["model"]["decoder"]) and right not in seen)
