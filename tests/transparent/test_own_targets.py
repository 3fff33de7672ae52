"""Targets that a user names himself: a checkpoint in a folder, and a model class of his own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from eqcheck import cli
from eqcheck.contract.errors import UsageError
from eqcheck.transparent.real.models import VOCAB_SIZE, draft_of, model_of
from eqcheck.transparent.real.targets import families_of

Printed = pytest.CaptureFixture[str]
SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
CLASS = """from transformers import LlamaConfig, LlamaForCausalLM
print("imported")
class MineConfig(LlamaConfig):
    model_type = "mine"
class Mine(LlamaForCausalLM):
    config_class = MineConfig
class Broken(Mine):
    def __init__(self, config):
        raise ValueError("no such layer")
class Other: pass
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A checkpoint with more ids than cases need, at ``./checkpoint``."""
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(vocab_size=300, **SMALL)).save_pretrained(tmp_path / "checkpoint")
    monkeypatch.chdir(tmp_path)
    return "./checkpoint"


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    name = f"models_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(CLASS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return f"{name}:Mine"


def audited(target: str, decoder: str, *more: str) -> int:
    options = ["--target", target, "--cases", "6", "--no-corpus", "--out", "out", "--allow-known", *more]
    return cli.main(["audit", decoder, *options])


@pytest.mark.long
def test_a_checkpoint_is_read(folder: str, capsys: Printed) -> None:
    assert audited(folder, "transformers") == 0
    assert audited(folder, "dsd", "--seed", "2") == 0  # its faults are known
    assert "mask/pad-visible" in capsys.readouterr().out
    target, draft = model_of(folder, "float64", 5), draft_of(folder, "float64", 5)
    assert target.get_input_embeddings().weight.shape == (VOCAB_SIZE + 1, 32)
    exact = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    whole = exact(input_ids=ids).logits[..., :VOCAB_SIZE]
    assert torch.allclose(target(input_ids=ids).logits[..., :VOCAB_SIZE], whole, atol=1e-9)
    assert not torch.equal(target(input_ids=ids).logits, draft(input_ids=ids).logits)


@pytest.mark.long
def test_a_class_is_built_and_read_and_never_run_unnamed(mine: str, tmp_path: Path, capsys: Printed) -> None:
    assert audited(mine, "bsp") == 0
    case = sorted((tmp_path / "out" / "bsp").rglob("*.json"))[0]
    stored = next(path for path in (tmp_path / "out" / "bsp" / "cases").glob("*.json"))
    report = json.loads((tmp_path / "out" / "bsp" / "report.json").read_text())
    assert case
    (command,) = {one["reproduce"] for one in report["violations"] if stored.stem in one["reproduce"]}
    assert command.endswith(f"--target {mine}")
    capsys.readouterr()
    assert cli.main(["replay", str(stored)]) == 4
    said = capsys.readouterr()
    assert "got code to run" in said.err
    assert f"--target {mine}" in said.err
    assert cli.main(["replay", str(stored), "--target", mine]) == 1
    assert "FAILS" in capsys.readouterr().out
    assert cli.main(["replay", str(stored), "--target", "other.module:Class"]) == 4


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("./none", "got one that is not there"),
        ("./empty", "got one without config.json"),
        ("./cut", "the checkpoint cannot be loaded"),
        ("./small", "expected a vocabulary of more than 128 ids, got 100"),
        ("./checkpoint@float8", "got one that is not there"),
        ("no.module:Mine", "it cannot be imported: ModuleNotFoundError"),
        ("{module}:Nope", "has no attribute 'Nope'"),
        ("{module}:Other", "expected a causal LM of transformers with a `config_class`"),
        ("{module}:Broken", "it cannot be built in float64, in which the truth is: ValueError: no such layer"),
    ],
)
def test_what_cannot_be_a_target_is_said(target: str, said: str, mine: str, folder: str) -> None:
    Path("empty").mkdir()
    Path("cut").mkdir()
    (Path("cut") / "config.json").write_text((Path("checkpoint") / "config.json").read_text())
    small = GPT2LMHeadModel(GPT2Config(vocab_size=100, n_embd=32, n_layer=1, n_head=2))
    small.save_pretrained("small")
    with pytest.raises(UsageError) as refused:
        families_of(target.format(module=mine.partition(":")[0]))
    assert said in str(refused.value)


def test_families_say_what_a_model_is_like(folder: str, mine: str) -> None:
    assert families_of(f"{folder},{mine}@float32") == (f"rotary@{folder}", f"rotary@{mine}@float32")
