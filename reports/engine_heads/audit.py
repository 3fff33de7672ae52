"""Head methods of engines, audited by their tokens: ``python audit.py ENGINE PYTHON METHOD...``.

PYTHON is the engine's. Each method decodes cases of one to eight rows with prompts and limits of their own, with three
draft tokens a round, `mtp` with one. Every row is held against the target alone, in float64, but for near-ties.
``ENGINE.json`` is written.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import checkpoints
import torch
from transformers import AutoModelForCausalLM

from eqcheck.truth.ties import bound

HERE = Path(__file__).parent
CASES = 60


def cases(count: int, seed: int = 1) -> list[dict[str, Any]]:
    """Prompts and limits; the first rows of a case often begin alike."""
    chance, found = random.Random(seed), []
    for _ in range(count):
        rows = chance.choice((1, 2, 3, 4, 6, 8))
        prompts = [[chance.randrange(checkpoints.SIZE) for _ in range(chance.randint(1, 24))] for _ in range(rows)]
        if chance.random() < 0.3:
            prompts = [prompts[0][: chance.randint(1, 24)] + prompt for prompt in prompts]
        found.append({"prompts": prompts, "limits": [chance.randint(1, 40) for _ in range(rows)]})
    return found


@torch.no_grad()
def wrong(models: tuple[Any, Any], prompt: list[int], limit: int, row: list[int]) -> str:
    """What is wrong with a row: nothing, ``tie`` or the first place where it differs; by one forward of the target."""
    if len(row) != limit:
        return f"{len(row)} tokens where {limit} are right"
    ids = torch.tensor([prompt + row])
    exact, rounded = (model(ids).logits[0, len(prompt) - 1 : -1].double() for model in models)
    best, tie = exact.argmax(-1), bound([exact], [rounded])
    said = ""
    for place, token in enumerate(row):  # what follows a tie is judged after the engine's own tokens
        if token != int(best[place]):
            if exact[place].max() - exact[place, token] > tie:
                return f"new token {place} of {limit}"
            said = "tie"
    return said


def audit(engine: str, python: str, method: str, k: int, folder: Path) -> dict[str, Any]:
    """One method with so many draft tokens."""
    asked = cases(CASES)
    command = [python, str(HERE / "decode.py"), engine, method, str(folder), str(k)]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines()]
        last = max((n for n, line in enumerate(lines) if "Error:" in line), default=len(lines) - 2)
        return {"method": method, "k": k, "runs": False, "error": " ".join(lines[max(0, last) :][:2])[:300]}
    answer = json.loads(done.stdout.splitlines()[-1])
    truth = folder / ("mtp-truth" if method.startswith("mtp") else "target")
    models = tuple(AutoModelForCausalLM.from_pretrained(truth, dtype=dtype) for dtype in (torch.float64, torch.float32))
    found = [
        {"case": number, "row": i, "wrong": said}
        for number, (case, rows) in enumerate(zip(asked, answer["rows"], strict=True))
        if not isinstance(rows, str)
        for i, (prompt, limit, row) in enumerate(zip(case["prompts"], case["limits"], rows, strict=True))
        if (said := wrong(models, prompt, limit, row))
    ]
    return {
        "method": method,
        "k": k,
        "runs": True,
        "version": answer["version"],
        "cases": len(asked),
        "refused": {
            said[:300]: [number for number, rows in enumerate(answer["rows"]) if rows == said]
            for said in answer["rows"]
            if isinstance(said, str)
        },
        "cases_with_a_prompt_of_one_token": [n for n, case in enumerate(asked) if min(map(len, case["prompts"])) == 1],
        "rows": sum(len(case["prompts"]) for case in asked),
        "ties": sum(one["wrong"] == "tie" for one in found),
        "wrong": [one for one in found if one["wrong"] != "tie"],
        "drafted": answer["drafted"],
        "accepted": answer["accepted"],
    }


if __name__ == "__main__":
    engine, python, *methods = sys.argv[1:]
    results = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "made"
        checkpoints.build(folder)
        for method in methods:
            k = 1 if method == "mtp" else checkpoints.STEPS
            results.append(audit(engine, python, method, k, folder))
            print(results[-1], flush=True)
    (HERE / f"{engine}.json").write_text(json.dumps(results, indent=1) + "\n")
