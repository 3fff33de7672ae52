"""onnxruntime-genai 0.18: tokens that are appended behind emitted ones are answered wrongly, but with a draft model.

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


def behind(of: og.Model, *turns: list[int]) -> list[int]:
    """Eight tokens behind the last turn; each turn is appended behind eight tokens of the one before."""
    params = og.GeneratorParams(of)
    params.set_search_options(max_length=100)
    generator = og.Generator(of, params)
    for turn in turns:
        generator.append_tokens(np.array(turn, dtype=np.int32))
        tokens = []
        for _ in range(8):
            generator.generate_next_token()
            tokens.append(int(generator.get_next_tokens()[0]))
    return tokens


target, draft = (exported(source, name) for source, name in zip(sys.argv[1:3], ("target", "draft"), strict=True))
first, second = list(range(10)), [200, 201]
alone = model(target)
right = behind(alone, [*first, *behind(alone, first), *second])
continued, drafted = behind(alone, first, second), behind(model(target, draft=draft["model"]["decoder"]), first, second)
print(f"in one prompt: {right}\nappended: {continued}\nappended, with a draft model: {drafted}")
raise SystemExit(drafted == right != continued)
