"""onnxruntime-genai 0.18: a top-p with `top_k=0` leaves more tokens than it should.

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

def exported(source: str) -> tuple[og.Model, int]:
    words = f"-i {source} -o {FOLDER / source} -p fp32 -e cpu -c {FOLDER} --extra_options hf_token=false"
    subprocess.run([*BUILDER, *words.split()], check=True, capture_output=True)
    told = json.loads((FOLDER / source / "genai_config.json").read_text())
    return og.Model(str(FOLDER / source)), told["model"]["vocab_size"]

def others(top_k: int) -> int:
    """How many tokens are drawn that a top-p of 0.5 does not leave."""
    params, drawn = og.GeneratorParams(model), set()
    for seed in range(400):
        params.set_search_options(max_length=6, do_sample=True, top_p=0.5, top_k=top_k, temperature=2.0, random_seed=seed)
        generator = og.Generator(model, params)
        generator.append_tokens(np.arange(5, dtype=np.int32))
        shares = np.exp(generator.get_logits().reshape(-1).astype(np.float64) / 2)
        generator.generate_next_token()
        drawn.add(int(generator.get_next_tokens()[0]))
    likely = np.argsort(-shares)
    return len(drawn - set(likely[: int((shares[likely].cumsum() < shares.sum() / 2).sum()) + 1].tolist()))

model, size = exported(sys.argv[1])
print(f"drawn beside a top-k of all tokens: {(exact := others(size))} others; without one: {(loose := others(0))}")
raise SystemExit(exact == 0 < loose)
