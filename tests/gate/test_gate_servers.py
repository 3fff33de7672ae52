"""The servers that the gate is tried on: right ones emit the target's tokens, each planted fault changes an answer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gate_servers.engine import FAULTS, Asked, Engine, Told
from gate_servers.server import weights

from benchmarks import pair

TEXTS = (
    "def main(",
    "import os\nimport sys\n",
    "x",
    "class Error(Exception):\n    pass\n\n\nclass ",
    "for i in range(",
)
ASKED = [
    Asked(tuple(pair.encode(text)), max_tokens, stops=frozenset({pair.END, 10} if stops else {pair.END}))
    for text, max_tokens, stops in zip(TEXTS * 3, range(20, 65, 3), [False, True, False] * 5, strict=True)
]
SAMPLED = [Asked(its.prompt, 24, 0.8, seed, its.stops) for seed, its in enumerate(ASKED)]


@pytest.fixture(scope="module")
def loaded() -> pair.Pair:
    return weights("float32")


def answers(engine: Engine, asked: list[Asked]) -> list[Told]:
    try:
        return [future.result(120) for future in [engine.ask(its) for its in asked]]
    finally:
        engine.close()


@pytest.fixture(scope="module")
def alone(loaded: pair.Pair) -> list[Told]:
    return answers(Engine(loaded.target, max_rows=1), ASKED)


@pytest.mark.parametrize("options", [{"max_rows": 16}, {"max_rows": 3, "last_first": True, "delay": 0.01}], ids=str)
@pytest.mark.parametrize("speculates", [False, True])
@pytest.mark.tiers(quick=0, rest=1)
def test_a_right_engine_emits_the_targets_tokens(
    loaded: pair.Pair, alone: list[Told], options: dict[str, Any], speculates: bool
) -> None:
    engine = Engine(loaded.target, loaded.draft if speculates else None, **options)
    found = answers(engine, ASKED)
    assert [its.tokens for its in found] == [its.tokens for its in alone]
    assert [its.finish_reason for its in found] == [its.finish_reason for its in alone]
    assert (engine.accepted > 50) == speculates
    for its, that in zip(found, alone, strict=True):
        assert torch.allclose(its.of_tokens, that.of_tokens, atol=1e-3)


@pytest.mark.rest
def test_a_score_is_the_law_of_the_decoded_tokens(loaded: pair.Pair, alone: list[Told]) -> None:
    rows = [Asked((*its.prompt, *told.tokens), score=True) for its, told in zip(ASKED, alone, strict=True)]
    for told, its in zip(alone, answers(Engine(loaded.target), rows), strict=True):
        assert torch.allclose(its.of_prompt[-len(told.tokens) - 1 : -1], told.of_tokens, atol=1e-3)


@pytest.mark.parametrize("fault", sorted(set(FAULTS) - {"wrong-law", "greedy-beside-sampled"}))
@pytest.mark.tiers(quick=0, rest=1)
def test_a_planted_fault_changes_an_answer(loaded: pair.Pair, alone: list[Told], fault: str) -> None:
    found = answers(Engine(loaded.target, loaded.draft, fault=fault), ASKED)
    assert [its.tokens for its in found] != [its.tokens for its in alone]


@pytest.mark.long
def test_a_greedy_row_beside_sampled_ones(loaded: pair.Pair, alone: list[Told]) -> None:
    asked = [row for both in zip(ASKED, SAMPLED, strict=True) for row in both]
    right = answers(Engine(loaded.target, loaded.draft), asked)[::2]
    wrong = answers(Engine(loaded.target, loaded.draft, fault="greedy-beside-sampled"), asked)[::2]
    assert [its.tokens for its in right] == [its.tokens for its in alone]
    assert [its.tokens for its in wrong] != [its.tokens for its in alone]


@torch.no_grad()
@pytest.mark.long
def test_sampled_tokens_have_the_targets_law(loaded: pair.Pair) -> None:
    """The first token of 400 rows: right within 3.5 standard errors, wrong beyond them."""
    prompt, far = tuple(pair.encode("class A")), {}
    law = (loaded.target(torch.tensor([prompt])).logits[0, -1] / 0.7).softmax(-1)
    for fault in ("", "wrong-law"):
        engine = Engine(loaded.target, loaded.draft, fault=fault, max_rows=64, num_draft_tokens=1)
        found = [its.tokens[0] for its in answers(engine, [Asked(prompt, 1, 0.7, seed) for seed in range(400)])]
        shares = torch.bincount(torch.tensor(found), minlength=256) / len(found)
        far[fault] = float(((shares - law) / (law * (1 - law) / len(found)).sqrt())[law > 0.01].abs().max())
    assert far[""] < 3.5 < far["wrong-law"], far
