"""onnxruntime-genai 0.18: a top-p without a top-k leaves more tokens than it should, with and without drafts.

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


def drawn(of: og.Model, top_k: int) -> tuple[set[int], set[int]]:
    """The tokens that were drawn, and those that a top-p of 0.5 leaves."""
    tokens = set()
    for seed in range(400):
        params = og.GeneratorParams(of)
        params.set_search_options(
            max_length=6, do_sample=True, temperature=2.0, top_p=0.5, top_k=top_k, random_seed=seed
        )
        generator = og.Generator(of, params)
        generator.append_tokens(np.arange(5, dtype=np.int32))
        scores = generator.get_logits().reshape(-1).astype(np.float64) / 2.0
        generator.generate_next_token()
        tokens.add(int(generator.get_next_tokens()[0]))
    likely = np.argsort(-scores)
    shares = np.exp(scores - scores.max())[likely].cumsum() / np.exp(scores - scores.max()).sum()
    return tokens, set(likely[: int((shares < 0.5).sum()) + 1].tolist())


target = exported(sys.argv[1], "target")
(exact, left), (loose, _) = (drawn(model(target), top_k) for top_k in (target["model"]["vocab_size"], 0))
print(
    f"a top-p of 0.5 leaves {len(left)} tokens; drawn beside a top-k: {len(exact)}, of these {len(exact - left)} others"
)
print(f"drawn without a top-k: {len(loose)}, of these {len(loose - left)} others")
raise SystemExit(bool(loose - left) and not exact - left)
