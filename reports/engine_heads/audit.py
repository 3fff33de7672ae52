"""Head methods of engines, audited by their tokens: ``python audit.py ENGINE PYTHON METHOD...``.

PYTHON is the engine's. Each method decodes cases of one to eight rows with prompts and limits of their own, with three
draft tokens a round, `mtp` with one. Every row is held against the target alone, in float64, but for near-ties. Then
it samples the rows of other cases: their tokens are evidence against the law of the target
(`eqcheck.sampling.betting.wealth`). vLLM's sampler is wrong on a CPU, whatever drafts. So its rows are drawn a second time by an
engine in which that is repaired. ``ENGINE.json`` is written.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import torch
from transformers import AutoModelForCausalLM

from eqcheck.sampling.betting.laws import SampledRow
from eqcheck.sampling.betting.wealth import Wealth
from eqcheck.transparent.truth.ties import bound

HERE = Path(__file__).parent
CASES = 60
TEMPERATURES = (0.2, 0.3, 0.5)  # so that a third to a half of the draft tokens is accepted
ROUNDING = 1e-3  # of a probability, relative: a hundred times what float32 changes here


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


@torch.no_grad()
def sampled(model: Any, asked: list[dict[str, Any]], answers: list[Any]) -> dict[str, Any]:
    """The evidence against the law of the target, of all cases that were answered."""
    wealth = Wealth()
    for case, rows in zip(asked, answers, strict=True):
        if isinstance(rows, str):
            continue
        judged = []
        for prompt, row in zip(case["prompts"], rows, strict=True):
            scores = model(torch.tensor([prompt + row])).logits[0, len(prompt) - 1 : -1].double()
            p, raw = ((scores / heat).softmax(-1).numpy() for heat in (case["temperature"], 1.0))
            judged.append(SampledRow(np.array(row), p, None, raw, np.zeros(len(row), bool)))
        wealth.add(judged, str(case["temperature"]), eps=ROUNDING)
    best = [(bet.name, round(gained)) for bet, gained in wealth.best()[:2]]
    told = {"verdict": wealth.verdict(), "greatest": float(f"{wealth.supremum:.3g}"), "impossible": wealth.impossible[:3]}
    return {"cases": wealth.cases, "tokens": wealth.tokens, **told, "best": best}


def audit(engine: str, python: str, method: str, k: int, folder: Path) -> dict[str, Any]:
    """One method with so many draft tokens."""
    asked, chance = cases(CASES), cases(CASES, seed=2)
    for number, case in enumerate(chance):
        case["temperature"] = TEMPERATURES[number % len(TEMPERATURES)]
    command = [python, str(HERE / "decode.py"), engine, method, str(folder), str(k)]

    def decode(*lists: Any, **environment: str) -> subprocess.CompletedProcess[str]:
        given, env = json.dumps(lists), os.environ | environment
        return subprocess.run(command, input=given, env=env, capture_output=True, text=True, check=False)

    done = decode(asked, chance)
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines()]
        last = max((n for n, line in enumerate(lines) if "Error:" in line), default=len(lines) - 2)
        return {"method": method, "k": k, "runs": False, "error": " ".join(lines[max(0, last) :][:2])[:300]}
    answer, drawn = json.loads(done.stdout.splitlines()[-1])
    truth = folder / ("mtp-truth" if method.startswith("mtp") else "target")
    models = tuple(AutoModelForCausalLM.from_pretrained(truth, dtype=dtype) for dtype in (torch.float64, torch.float32))
    laws = {"sampled": drawn}
    if engine == "vllm":
        (laws["sampled_mended"],) = json.loads(decode(chance, MEND="1").stdout.splitlines()[-1])
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
        **{
            name: sampled(models[0], chance, told["rows"]) | {name: told[name] for name in ("drafted", "accepted")}
            for name, told in laws.items()
        },
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
