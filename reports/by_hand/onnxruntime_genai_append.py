"""onnxruntime-genai 0.18: tokens that are appended behind emitted ones are answered wrongly, but with a draft model.

eqcheck checkpoint write full target --draft draft && python <this file> target draft
"""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import onnxruntime_genai as og

FOLDER = Path(mkdtemp())
BUILDER = [sys.executable, "-m", "onnxruntime_genai.models.builder"]

def exported(source: str) -> dict:
    words = f"-i {source} -o {FOLDER / source} -p fp32 -e cpu -c {FOLDER} --extra_options hf_token=false"
    subprocess.run([*BUILDER, *words.split()], check=True, capture_output=True)
    told = json.loads((FOLDER / source / "genai_config.json").read_text())
    told["model"]["decoder"]["filename"] = f"{source}/model.onnx"
    return told

def behind(*turns: list[int], **settings: object) -> list[int]:
    (FOLDER / "genai_config.json").write_text(json.dumps({**target, "model": {**target["model"], **settings}}))
    params = og.GeneratorParams(model := og.Model(str(FOLDER)))
    params.set_search_options(max_length=100)
    generator = og.Generator(model, params)
    for turn in turns:
        generator.append_tokens(np.array(turn, dtype=np.int32))
        tokens = [generator.generate_next_token() or int(generator.get_next_tokens()[0]) for _ in range(8)]
    return tokens

target, draft = map(exported, sys.argv[1:3])
first, second = list(range(10)), [200, 201]
right = behind([*first, *behind(first), *second])
continued, drafted = behind(first, second), behind(first, second, draft=draft["model"]["decoder"])
print(f"in one prompt: {right}\nappended: {continued}\nappended, with a draft model: {drafted}")
raise SystemExit(drafted == right != continued)
