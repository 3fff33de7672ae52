"""The gate in one process: a decoder against a model of a folder, without a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from eqcheck.cli import main
from eqcheck.contract.decoders import Request, decoder
from eqcheck.gate.compared_rows import Wanted
from eqcheck.gate.process import Plain, sides

MINE = '''
import torch
import eqcheck


@eqcheck.decoder(name="mine", capabilities=("row-limits", "temperature"))
@torch.no_grad()
def generate(target, draft, request):
    """The target alone; with a fault two tokens behind the limit."""
    rows = []
    for prompt, its in zip(request.prompts, request.rows):
        tokens = list(prompt)
        for at in range(its.max_new_tokens + 2 * FAULT):
            scores = target(input_ids=torch.tensor([tokens])).logits[0, -1]
            warm = its.temperature and (scores / its.temperature).softmax(-1)
            tokens.append(int(torch.multinomial(warm, 1) if its.temperature else scores.argmax()))
        rows.append(tokens[len(prompt) :])
    return rows
'''


@pytest.mark.parametrize(("fault", "temperature", "verdict"), [(1, "0", "violation"), (0, "0.7", "inconclusive")])
def test_a_decoder_is_held_to_a_model_in_bfloat16(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: int, temperature: str, verdict: str
) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=40, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        initializer_range=0.4, bos_token_id=None, eos_token_id=None, pad_token_id=None, tie_word_embeddings=False,
    )  # fmt: skip
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(tmp_path / "model")
    (tmp_path / "mine.py").write_text(f"FAULT = {fault}\n{MINE}")
    prompts = [{"prompt": torch.randint(0, 40, (3 + at % 7,)).tolist()} for at in range(24)]
    (tmp_path / "prompts.jsonl").write_text("".join(f"{json.dumps(prompt)}\n" for prompt in prompts))
    words = [
        "--plain",
        f"hf:{tmp_path}/model",
        "--draft",
        f"{tmp_path}/model",
        "--prompts",
        f"{tmp_path}/prompts.jsonl",
    ]
    words += [
        "--requests",
        "12",
        "--max-tokens",
        "6",
        "--concurrency",
        "4",
        "--json",
        "--junit",
        f"{tmp_path}/gate.xml",
    ]
    main(["gate", "--speculative", f"{tmp_path}/mine.py", *words, "--temperature", temperature])
    report = json.loads(capsys.readouterr().out)
    assert report["verdict"] == verdict, report
    assert report["sampled"] == (0 if fault else 9)
    suite = ElementTree.parse(tmp_path / "gate.xml").getroot()[0]
    assert [suite.get(name) for name in ("tests", "failures", "errors")] == (
        ["2", "2", "0"] if fault else ["1", "0", "1"]
    )
    assert [each["kind"] for each in report["violations"]] == ["over-length"] * fault


def test_a_row_is_scored_in_pieces_with_a_cache(tmp_path: Path) -> None:
    config = LlamaConfig(
        vocab_size=40, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    plain = Plain(tmp_path, "plain")
    whole, parts = (way((5, 6, 7), (1, 2, 3, 4, 5, 6, 7)) for way in (plain.scored, plain.in_pieces))
    assert [place.token for place in parts] == [1, 2, 3, 4, 5, 6, 7]
    assert [place.score for place in parts] == pytest.approx([place.score for place in whole], abs=1e-5)
    plain.target = lambda input_ids: None  # takes no cache
    assert plain.in_pieces((5, 6, 7), (1, 2, 3)) == []


def test_prompts_need_a_tokenizer_or_ids(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gate", "--speculative", "eqspec", "--plain", "hf:nowhere"]) == 4
    assert "--draft" in capsys.readouterr().err
    assert main(["gate", "--speculative", "eqspec", "--plain", f"hf:{tmp_path}", "--draft", str(tmp_path)]) == 4
    assert "no model can be loaded" in capsys.readouterr().err
    assert main(["gate", "--speculative", "eqspec", "--plain", f"hf:{tmp_path}", "--draft", "hf:nowhere"]) == 4
    assert "--draft nowhere: expected the folder of a draft model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("vocab_size", "checkpoints", "known"), [(40, False, True), (48, False, False), (0, True, False)]
)
def test_a_draft_is_asked_where_it_can_be(tmp_path: Path, vocab_size: int, checkpoints: bool, known: bool) -> None:
    """One of other ids is no witness, and a folder that holds no model is none: a decoder may know how to read it."""
    (tmp_path / "draft").mkdir()
    for name, size in (("model", 40), ("draft", vocab_size)):
        if size:
            config = LlamaConfig(
                vocab_size=size, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
            )
            LlamaForCausalLM(config).save_pretrained(tmp_path / name)
    handed = []

    @decoder(checkpoints=checkpoints)
    def mine(target: Any, draft: Any, request: Request) -> Any:
        handed.append((target, draft))
        return [[1] for _ in request.prompts]

    decoding, plain, draft = sides(mine, tmp_path / "model", tmp_path / "draft")
    assert (draft is not None) == known
    decoding.complete(Wanted((1, 2), 1))
    assert (
        handed == [(str(tmp_path / "model"), str(tmp_path / "draft"))] if checkpoints else handed[0][0] is plain.target
    )
    decoding.close()
