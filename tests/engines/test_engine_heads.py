"""The audit of engines' head methods: its target, its heads, and that a wrong row is seen. No engine is needed."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "reports" / "engine_heads"


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("checkpoints"), importlib.import_module("audit")


def alone(model: Any, prompt: list[int], limit: int) -> list[int]:
    ids = torch.tensor([prompt])
    for _ in range(limit):
        ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], dim=1)
    return [int(token) for token in ids[0, len(prompt) :]]


def test_a_wrong_row_is_seen(scripts: tuple[Any, Any]) -> None:
    checkpoints, audit = scripts
    model = checkpoints.Family("llama").model
    models = model.double().eval(), checkpoints.Family("llama").model.eval()
    with torch.no_grad():
        row = alone(models[0], [3, 1, 4], 12)
    assert audit.wrong(models, [3, 1, 4], 12, row) == ""
    assert audit.wrong(models, [3, 1, 4], 12, row[:-1]) == "11 tokens where 12 are right"
    other = [*row[:5], (row[5] + 1) % checkpoints.SIZE, *row[6:]]
    assert audit.wrong(models, [3, 1, 4], 12, other) == "new token 5 of 12"
    assert audit.wrong(models, [3, 1, 5], 12, row).startswith("new token")


def test_a_head_is_right_as_often_as_the_target_keeps_to_the_cycle(scripts: tuple[Any, Any]) -> None:
    checkpoints, _ = scripts
    family = checkpoints.Family("llama")
    model, follows = family.model.eval(), family.follows
    with torch.no_grad():
        rows = torch.tensor([[start, *alone(model, [start], 16)] for start in range(0, 64, 8)])
    kept = float((follows[rows[:, :-1]] == rows[:, 1:]).double().mean())
    assert 0.5 < kept < 0.95  # some drafts are accepted, some rejected
    head = checkpoints.medusa(family)[1]["lm_heads.0.weight"]
    assert (family.embedding @ head.T).argmax(-1).tolist() == follows[follows].tolist()


@torch.no_grad()
def test_rows_of_another_law_are_seen(scripts: tuple[Any, Any]) -> None:
    checkpoints, audit = scripts
    model = checkpoints.Family("llama").model.double().eval()
    torch.manual_seed(3)

    def drawn(prompt: list[int], heat: float) -> list[int]:
        ids = torch.tensor([prompt])
        for _ in range(12):
            ids = torch.cat([ids, (model(ids).logits[0, -1:] / heat).softmax(-1).multinomial(1)], dim=1)
        return ids[0, len(prompt) :].tolist()

    asked: list[Any] = [{"prompts": [[n, 3], [n]], "temperature": 0.5} for n in range(10)]
    right = [[drawn(prompt, 0.5) for prompt in case["prompts"]] for case in asked]
    colder = [[drawn(prompt, 0.2) for prompt in case["prompts"]] for case in asked]
    assert audit.sampled(model, asked, right)["greatest"] < 100
    assert audit.sampled(model, [*asked, asked[0]], [*colder, "refused"])["verdict"] == "violation"


@pytest.mark.parametrize("engine", ["openvino_genai", "vllm"])
def test_what_was_found_is_what_the_page_says(engine: str) -> None:
    page = (FOLDER.parents[1] / "docs" / "served.md").read_text()
    for found in json.loads((FOLDER / f"{engine}.json").read_text()):
        if found["runs"] and found["method"] != "none":
            right = found["cases"] - sum(map(len, found["refused"].values())) - len({o["case"] for o in found["wrong"]})
            said = f"| {engine} {found['version']} | `{found['method']}` | yes | {right} of {found['cases']} |"
            assert said in page, said
            assert found["sampled"]["verdict"] == "violation"
            if mended := found.get("sampled_mended"):
                assert mended["verdict"] == "equivalent"
                assert f"wrong; mended right, {mended['accepted']} of {mended['drafted']}" in page
