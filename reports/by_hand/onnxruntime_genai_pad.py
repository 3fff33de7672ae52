"""onnxruntime-genai 0.18: with a draft model and `get_logits`, tokens behind an emitted pad token are wrong.

eqcheck checkpoint write full target --draft draft && python <this file> target draft
"""

import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np

os.environ["HF_HUB_OFFLINE"] = "1"
import onnxruntime_genai as og
from onnxruntime_genai.models.builder import create_model, parse_extra_options

FOLDER = Path(tempfile.mkdtemp())


def exported(source: str, name: str) -> dict:
    asked = "", source, str(FOLDER / name), "fp32", "cpu", str(FOLDER / "cache")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        create_model(*asked, **parse_extra_options(*asked, ["hf_token=false"]))
    told = json.loads((FOLDER / name / "genai_config.json").read_text())
    told["model"]["decoder"]["filename"] = f"{name}/model.onnx"
    return told


def model(told: dict, **settings: object) -> og.Model:
    (FOLDER / "genai_config.json").write_text(json.dumps({**told, "model": {**told["model"], **settings}}))
    return og.Model(str(FOLDER))


def row(of: og.Model, looks: bool) -> list[int]:
    params = og.GeneratorParams(of)
    params.set_search_options(max_length=17)
    generator = og.Generator(of, params)
    generator.append_tokens(np.arange(5, dtype=np.int32))
    tokens = []
    while not generator.is_done():
        if looks:
            generator.get_logits()
        generator.generate_next_token()
        tokens.append(int(generator.get_next_tokens()[0]))
    return tokens


target, draft = (exported(source, name) for source, name in zip(sys.argv[1:3], ("target", "draft"), strict=True))
right = row(model(target), looks=True)
pad = {"pad_token_id": right[1]}  # the second token that the target emits
alone, pair = model(target, **pad), {"draft": draft["model"]["decoder"], **pad}
unseen, seen = row(model(target, **pair), looks=False), [row(model(target, **pair), looks=True) for _ in range(3)]
print(f"without a draft: {right}, the pad is {right[1]}\nwith a draft, in three runs: {seen}")
raise SystemExit(right == row(alone, looks=True) == unseen and right not in seen)
