"""The shipped pair of trained models: small, trained, of the acceptance that is stated; and the audit on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import pair
from benchmarks.pair import train
from benchmarks.pair.on_pair import on_pair
from eqcheck import cli
from eqcheck.contract import registry
from eqcheck.contract.decoders import Decoder, Request

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


@pytest.mark.parametrize("words", [["audit", "--pair"], ["bench", "--quick"]])
def test_without_weights_nothing_is_begun(
    words: list[str], tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sdists leave them out; that is said before the audit and not behind it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pair, "__file__", str(tmp_path / "__init__.py"))
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "model.safetensors").touch()
    assert cli.main(words) == 4
    told = capsys.readouterr()
    assert f"Copy draft from benchmarks/pair/ of eqcheck's repository into {tmp_path}" in told.err
    assert (told.out, sorted(tmp_path.iterdir())) == ("", [tmp_path / "target"])


@pytest.mark.parametrize("name", ["eqspec", "exspec", "ragged"])
@pytest.mark.tiers(quick=1, rest=1)
def test_right_decoders_are_right_on_it(name: str) -> None:
    found = on_pair(registry.load(name))
    assert (found.equivalent, found.rows, found.first) == (16, 16, "")


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


def _raises(target: Any, draft: Any, request: Request) -> list[list[int]]:
    raise ZeroDivisionError("no more")


@pytest.mark.long
def test_wrong_decoders_are_found_on_it() -> None:
    found = on_pair(Decoder("forgets", _without_mask))
    assert 2 <= found.equivalent < 16, "the longest row of each batch needs no mask"
    assert "unattributed" in found.first
    assert on_pair(Decoder("raises", _raises)).first == "ZeroDivisionError: no more"
    assert on_pair(Decoder("raises", _raises)).equivalent == 0


@pytest.mark.rest
def test_audit_says_what_it_found_there(tmp_path: Path, capsys: Any) -> None:
    source = tmp_path / "mine.py"
    source.write_text(
        "import eqcheck\n"
        "@eqcheck.decoder(name='odd')\n"
        "def odd(target, draft, request):\n"
        "    rows = eqcheck.load('eqspec')(target, draft, request)\n"
        "    real = target.config.model_type == 'llama'\n"
        "    return [row[:-1] if real and i == 3 else row for i, row in enumerate(rows)]\n"
    )
    command = ["audit", "--adapter", str(source), "--cases", "30", "--out", str(tmp_path), "--no-corpus"]
    assert cli.main(command) == 0
    assert cli.main([*command, "--pair"]) == 1
    assert "on trained models 14 of 16 rows are what the target returns alone" in capsys.readouterr().out
    report = json.loads((tmp_path / "odd" / "report.json").read_text())
    assert report["verdict"] == "violation"
    assert report["real_pair"]["equivalent"] == 14
    assert "14 of 16 rows" in (tmp_path / "odd" / "report.md").read_text().replace("\n", " ")


def test_a_decoder_that_declines_trained_models_was_not_tried_on_them(tmp_path: Path, capsys: Any) -> None:
    assert cli.main(["audit", "heads", "--cases", "12", "--out", str(tmp_path), "--no-corpus", "--pair"]) == 0
    said = "ot tried on trained models: declined: draft: expected one with a scripted head"
    assert said in " ".join(capsys.readouterr().out.split())
    assert said in (tmp_path / "heads" / "report.md").read_text()
