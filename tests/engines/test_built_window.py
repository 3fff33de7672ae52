"""Built checkpoints with a window: a slot at either edge decides the next token, and models compute the function."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eqcheck.checkpoints import built
from eqcheck.engines.construction.function import CODES, Function, shuffled
from eqcheck.engines.construction.pointers import FAR, NEAR, NEAR_KEYED, WINDOW

NAMES = ("window", "mistral")
WINDOWED = {"window": (0, 2), "mistral": (0, 1, 2)}

torch = pytest.importorskip("torch")


def prompt(name: str, count: int) -> list[int]:
    return list((shuffled(CODES, "prompt", name) * 8)[:count])


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("built") / name
    built(name).save(path)
    return path


@pytest.fixture(params=("float32", "bfloat16", "float16"))
def model(request: pytest.FixtureRequest, folder: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, request.param)).eval()


def test_model_is_the_function(model: Any, name: str) -> None:
    ids = prompt(name, 300)
    with torch.inference_mode():
        logits = model(torch.tensor([ids])).logits[0].double()
    best = logits.topk(2)
    assert best.indices[:, 0].tolist() == built(name).function.choices(ids)
    assert float((best.values[:, 0] - best.values[:, 1]).min()) > 0.9


def test_model_is_the_function_over_calls(model: Any, name: str) -> None:
    """The cache of a window drops slots: calls of one token, of five and of more than the window read the same."""
    ids = prompt(name, 130)
    cache, chosen, at = None, [], 0
    with torch.inference_mode():
        for count in (20, 1, 5, 40, 1, 1, 5, 5, 33, 19):
            out = model(torch.tensor([ids[at : at + count]]), past_key_values=cache, use_cache=True)
            cache, at = out.past_key_values, at + count
            chosen += out.logits[0].argmax(-1).tolist()
    assert chosen == built(name).function.choices(ids)


@pytest.mark.tiers(quick=5, rest=1)
def test_padded_rows_are_the_function(model: Any, name: str) -> None:
    rows = [prompt(name, count) for count in (1, 5, WINDOW - 1, WINDOW, WINDOW + 1, 90)]
    pads = [90 - len(row) for row in rows]
    mask = torch.tensor([[0] * pad + [1] * (90 - pad) for pad in pads])
    with torch.inference_mode():
        logits = model(
            torch.tensor([[7] * pad + row for pad, row in zip(pads, rows, strict=True)]),
            attention_mask=mask,
            position_ids=(mask.cumsum(-1) - 1).clamp(min=0),
        ).logits[:, -1]
    assert logits.argmax(-1).tolist() == [built(name).next(row) for row in rows]


def test_draft_errs_as_the_function_says(name: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    draft = built(name).draft(0.5)
    draft.save(tmp_path / "draft")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "draft").eval()
    ids = prompt(name, 200)
    with torch.inference_mode():
        chosen = model(torch.tensor([ids])).logits[0].argmax(-1).tolist()
    right = built(name).function.choices(ids)
    assert chosen == draft.function.choices(ids)
    assert 0.35 < sum(a == b for a, b in zip(chosen, right, strict=True)) / len(ids) < 0.65


def with_window(name: str, window: int) -> Function:
    """The function of an engine whose windows are of another size."""
    from dataclasses import replace

    function = built(name).function
    layers = [[replace(head, window=window if head.window else None) for head in layer] for layer in function.layers]
    return Function(layers)


@pytest.mark.parametrize("window", [1, WINDOW // 2, WINDOW - 1, WINDOW + 1, WINDOW + 16, 10_000])
def test_window_of_another_size_changes_tokens(name: str, window: int) -> None:
    ids = prompt(name, 400)
    right, wrong = built(name).function.choices(ids), with_window(name, window).choices(ids)
    seen = min(window, WINDOW)
    assert wrong[: seen - 1] == right[: seen - 1]
    changed = [a != b for a, b in zip(right, wrong, strict=True)][2 * WINDOW :]
    assert sum(changed) / len(changed) > 0.98


def test_distances_in_the_window_are_read() -> None:
    near = {d for layer in NEAR for reads in layer for d in reads[-1:]} | {2}
    assert near | {d for pairs in NEAR_KEYED for pair in pairs for d in pair} == {*range(1, WINDOW)} - {28}
    assert all((WINDOW, WINDOW - 1) in layer for layer in NEAR)
    assert min(FAR) > WINDOW


def test_gemma_and_pattern_agree(folder: Path, name: str) -> None:
    """Engines of another age read the windows by a list, or by a period."""
    import json

    config = json.loads((folder / "config.json").read_text())
    if name == "window":
        by_period = [bool((i + 1) % config["sliding_window_pattern"]) for i in range(config["num_hidden_layers"])]
        assert by_period == [kind == "sliding_attention" for kind in config["layer_types"]]
        assert [i for i, windowed in enumerate(by_period) if windowed] == list(WINDOWED[name])
    assert config["sliding_window"] == WINDOW
