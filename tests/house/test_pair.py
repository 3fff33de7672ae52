"""The shipped pair of trained models: small, trained, of the acceptance that is stated; and decoders on it."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import pair
from benchmarks.command import main
from benchmarks.pair import train
from eqcheck import Oracle
from eqcheck.contract import registry
from eqcheck.contract.decoders import Generate, Request, RowOptions

FOLDER = Path(pair.__file__).parent


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def test_is_small_and_says_how_it_was_trained() -> None:
    assert sum(path.stat().st_size for path in FOLDER.rglob("*.safetensors")) <= 12 * 10**6
    made = json.loads((FOLDER / "training.json").read_text())
    assert made["seed"] == train.SEED
    steps = [point["step"] for point in made["curve"]]
    assert steps[0] == 0
    assert steps[-1] == made["steps"] == train.STEPS
    for name in ("target", "draft"):
        assert made["curve"][-1][name] < 0.4 * made["curve"][0][name]


@pytest.mark.rest
def test_is_what_the_loss_curve_says() -> None:
    """The shipped weights, in float16 on disk, have the loss and the agreement that training ended with."""
    models = pair.load()
    held_out = train.corpus()[1][: 16 * pair.CONTEXT]
    found = train.held_out_loss(*models, held_out)
    stated = json.loads((FOLDER / "training.json").read_text())["curve"][-1]
    assert found["target"] == pytest.approx(stated["target"], abs=0.25)
    assert found["agreement"] == pytest.approx(stated["agreement"], abs=0.08)


@pytest.mark.rest
def test_training_lowers_the_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script runs: a few steps on little text, and what it writes can be loaded."""
    text = torch.tensor(pair.encode("def f(x):\n    return x\n" * 500))
    monkeypatch.setattr(train, "HERE", tmp_path)
    monkeypatch.setattr(train, "STEPS", 8)
    monkeypatch.setattr(train, "CONTEXT", 64)
    monkeypatch.setattr(train, "corpus", lambda: (text, text))
    train.train()
    curve = json.loads((tmp_path / "training.json").read_text())["curve"]
    assert curve[-1]["target"] < curve[0]["target"]
    monkeypatch.setattr(pair, "__file__", str(tmp_path / "__init__.py"))
    assert pair.load().target.num_parameters() > 3_000_000


def test_without_weights_nothing_is_begun(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sdists leave them out; that is said before the measurement and not after it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pair, "__file__", str(tmp_path / "__init__.py"))
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "model.safetensors").touch()
    assert main(["--quick"]) == 4
    told = capsys.readouterr()
    assert f"Copy draft from benchmarks/pair/ of eqcheck's repository into {tmp_path}" in told.err
    assert (told.out, sorted(tmp_path.iterdir())) == ("", [tmp_path / "target"])


TEXTS = ("import os\nimport sys\n\n\ndef main(", '    """Return the ', "x", "for i in range(")


def right_rows(decode: Generate) -> int:
    """The rows that a decoder decodes right on the pair, which ends them at a newline."""
    target, draft = pair.load(torch.float64)
    prompts = [pair.encode(text) for text in TEXTS]
    request = Request(prompts, 24, 4, (10,), 32, "left", rows=(RowOptions(24, (10,)),) * len(prompts))
    outputs = decode(target, draft, deepcopy(request))
    verdict = Oracle(target).check(prompts, outputs, max_new_tokens=24, eos_token_ids=(10,), pad_token_id=32)
    return sum(row.first is None for row in verdict.rows)


@pytest.mark.parametrize("name", ["eqspec", "exspec", "ragged"])
@pytest.mark.tiers(quick=1, rest=1)
def test_right_decoders_are_right_on_it(name: str) -> None:
    assert right_rows(registry.load(name).function) == len(TEXTS)


def _without_mask(target: Any, draft: Any, request: Request) -> list[list[int]]:
    """Pads the batch on the left and forgets to say so."""
    width = max(map(len, request.prompts))
    ids = torch.tensor([[request.pad_token_id] * (width - len(p)) + p for p in request.prompts])
    for _ in range(request.max_new_tokens):
        newest = target(input_ids=ids).logits[:, -1].argmax(-1, keepdim=True)
        ids = torch.cat([ids, newest], dim=1)
    rows: list[list[int]] = ids[:, width:].tolist()
    return [
        row[: row.index(request.eos_token_ids[0]) + 1] if set(row) & set(request.eos_token_ids) else row for row in rows
    ]


@pytest.mark.rest
def test_a_wrong_decoder_is_found_on_it() -> None:
    assert 1 <= right_rows(_without_mask) < len(TEXTS), "the longest row needs no mask"
