"""Every built checkpoint: the same bytes everywhere, margins of its pointers, the function in float64 and bfloat16."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from eqcheck.checkpoints import built
from eqcheck.cli import main
from eqcheck.contract.errors import UsageError
from eqcheck.engines.abduction.queries import Program, answers, plain_row
from eqcheck.engines.checkpoints import folders as models
from eqcheck.engines.construction.function import CODES, shuffled
from eqcheck.engines.construction.layouts import LAYOUTS
from eqcheck.engines.construction.pointers import (
    AHEAD,
    COMPRESSED,
    HEAD_DIM,
    KEYED_PAIRS,
    LEARNED,
    MARGIN,
    POSITIONS,
    ROTARY,
    Rotation,
    amplitudes,
)

NAMES = tuple(LAYOUTS)
DIGESTS: dict[str, str] = json.loads((Path(__file__).parent / "built_digests.json").read_text())
ROWS = [random.Random(row).choices(range(CODES), k=120) for row in range(2)]


@pytest.fixture(scope="module", params=NAMES)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The name of a checkpoint, and its folder."""
    folder = tmp_path_factory.mktemp(request.param)
    built(request.param).save(folder)
    return request.param, folder


@pytest.mark.tiers(quick=6, rest=4)
def test_a_checkpoint_has_the_bytes_that_are_written_down(saved: tuple[str, Path]) -> None:
    """A checkpoint that is meant to change gets the digest that this test prints."""
    name, folder = saved
    digest = hashlib.sha256(b"".join((folder / file).read_bytes() for file in ("config.json", "model.safetensors")))
    assert {name: digest.hexdigest()} == {name: DIGESTS.get(name)}


@torch.no_grad()
@pytest.mark.tiers(quick=4, rest=2)
def test_the_function_is_that_of_the_model_in_float64_and_bfloat16(saved: tuple[str, Path]) -> None:
    name, folder = saved
    options = {"experts_implementation": "eager"} if name in ("moe", "sinks") else {}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, **options).eval()
    right = torch.tensor([built(name).function.choices(row) for row in ROWS])[..., None]
    for dtype in (torch.float64, torch.bfloat16):
        scores = model.to(dtype)(torch.tensor(ROWS)).logits.double()
        others = scores.scatter(-1, right, -torch.inf).amax(-1)
        assert (scores.gather(-1, right)[..., 0] - others).min() > 0.8  # a wrong bit costs 1 to 1.875


@pytest.mark.parametrize("rotation", [ROTARY, LEARNED, COMPRESSED], ids=lambda rotation: rotation.file)
def test_each_read_scores_more_than_the_next_and_the_last_more_than_all_others(rotation: Rotation) -> None:
    angles = np.outer(np.arange(-AHEAD, POSITIONS), rotation.frequencies)
    turning = np.isin(np.arange(HEAD_DIM // 2), KEYED_PAIRS)
    for reads, (cosines, sines) in amplitudes(rotation).items():
        count = len(rotation.frequencies)
        parts = np.cos(angles) * cosines[:count] + np.sin(angles) * sines[:count]
        straight, turned = parts.sum(-1), np.zeros(len(angles))
        if rotation.adds:
            turned += cosines[count]
        else:
            straight, turned = parts[:, ~turning].sum(-1), parts[:, turning].sum(-1)
        left = np.stack([straight + turned, straight - turned], 1)  # the scores of slots that are not read yet
        levels = []
        for distance, sign in reads:
            levels.append(left[distance + AHEAD, : 1 if sign else 2].copy())
            left[distance + AHEAD, : 1 if sign else 2] = np.nan
        levels.append(left[~np.isnan(left)])
        assert min(one[~np.isnan(one)].min() - two.max() for one, two in pairwise(levels)) > 0.9 * MARGIN, reads


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.tiers(quick=7, rest=4)
def test_a_draft_agrees_in_its_share_of_contexts(name: str) -> None:
    row = [*ROWS[0][:5], *shuffled(CODES, "each id once")]
    right = built(name).function.choices(row)[-CODES:]
    for agreement in (0.0, 0.25, 0.6, 1.0):
        drafted = built(name).draft(agreement).function.choices(row)[-CODES:]
        assert sum(a != b for a, b in zip(right, drafted, strict=True)) == round((1 - agreement) * CODES)


def _edited(change: Callable[[Program], None], torn: str = "") -> Program:
    program = plain_row(0, ROWS[0][:60], 20)
    program.sees = [list(seen) for seen in program.sees]
    program.torn = torn
    change(program)
    return program


def _from(program: Program, first: int, change: Callable[[list[int]], list[int]]) -> None:
    for query in range(first, len(program.sees)):
        program.sees[query] = change(list(program.sees[query]))


def shifted(program: Program) -> None:
    program.positions = [position + (position >= 30) for position in program.positions]


def hidden(program: Program) -> None:
    _from(program, 31, lambda seen: [column for column in seen if column != 30])


def doubled(program: Program) -> None:
    """A rejected draft stands at the position of the token that took its place."""
    draft = program.write((program.tokens[30] + 9) % CODES, 30, 29)
    program.sees[-1] = [*range(30), draft]
    for query in range(30, 60):
        program.sees[query] = [*program.sees[query], draft]


def future(program: Program) -> None:
    for query in range(30, 59):
        program.sees[query] = [*program.sees[query], query + 1]


def blank(program: Program) -> None:
    column = program.blank()
    _from(program, 31, lambda seen: [column if other == 30 else other for other in seen])


def torn(program: Program) -> None:
    column = program.column(30, 12)
    _from(program, 31, lambda seen: [column if other == 30 else other for other in seen])


EDITS = {
    "plain": _edited(lambda program: None),
    "shifted": _edited(shifted),
    "hidden": _edited(hidden),
    "doubled": _edited(doubled),
    "future": _edited(future),
    "blank": _edited(blank),
    **{f"torn {part}": _edited(torn, part) for part in ("values", "layers", "heads")},
}


def test_edits_are_evaluated_as_the_model_of_full_answers_them() -> None:
    model = models.checkpoint("full").models()[0]
    function = built("full").function
    for name, program in EDITS.items():
        (by_function,), (by_model,) = answers(function, [program]), answers(model, [program])
        told, right = (torch.stack([by[key] for key in program.queries]) for by in (by_function, by_model))
        assert (told - right).abs().max() < 0.05, name
        assert torch.equal(told.argmax(-1), right.argmax(-1)), name
        plain = function.choices(ROWS[0][:60])[19:]
        assert (told.argmax(-1).tolist() == plain) == (name == "plain")


def _said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(["checkpoint", *words])
    said = capsys.readouterr()
    return code, said.out + said.err


def test_the_command_lists_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = _said(capsys, "list")
    assert code == 0
    assert all(f"\n{name} " in said for name in NAMES)
    target, draft = tmp_path / "target", tmp_path / "draft"
    words = ("write", "full", str(target), "--draft", str(draft), "--agreement", "0.75", "--dtype", "bfloat16")
    assert _said(capsys, *words) == (0, f"target: {target}\ndraft: {draft}\n")
    whole = {file.name: file.read_bytes() for file in target.iterdir()}
    assert whole == built("full").files("bfloat16")
    (target / "model.safetensors").write_bytes(whole["model.safetensors"][:1000])  # a torn folder
    assert _said(capsys, *words)[0] == 0
    assert {file.name: file.read_bytes() for file in target.iterdir()} == whole


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["ful", "new"], "checkpoint 'ful': expected one of full, .*; did you mean 'full'"),
        (["full", "new", "--dtype", "int8"], "dtype: expected one of float32, bfloat16, float16, got 'int8'"),
        (["full", "held"], "held: expected a new or empty folder, or one with a checkpoint; the folder holds notes"),
        (["full", "held/notes"], "notes: expected a new or empty folder, .* it is a file"),
        (["full", "new", "--draft", "other", "--agreement", "1.5"], "agreement: expected a share from 0 to 1, got 1.5"),
        (["full", "new", "--agreement", "0.5"], "--agreement: expected together with --draft FOLDER, got it alone"),
    ],
)
def test_the_command_says_what_is_wrong(
    words: list[str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("held").mkdir()
    Path("held/notes").write_text("mine")
    code, said = _said(capsys, "write", *words)
    assert code == 4
    assert re.search(expected, said)
    assert len(said.splitlines()) == 1
    assert Path("held/notes").read_text() == "mine"
    assert not Path("new").exists()


def test_a_changed_folder_in_the_cache_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    models.checkpoint.cache_clear()
    try:
        weights = models.checkpoint("full").target / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-8])
        models.checkpoint.cache_clear()
        with pytest.raises(UsageError, match=r"it was changed or is torn; remove .* and it is written anew"):
            models.checkpoint("full")
    finally:
        models.checkpoint.cache_clear()
