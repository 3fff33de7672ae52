"""Engines within a number of bytes: the same tokens, never more memory, one clear error where nothing fits."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from benchmarks import pair
from eqcheck import Oracle
from eqcheck.contract.decoders import Request
from eqcheck.transparent.decoding import run
from eqcheck.transparent.hashlm.model import HashConfig, HashLM
from eqcheck.transparent.memory import TOKEN, watched
from eqcheck.transparent.oracle import judge
from eqcheck.transparent.search import Source

ragged, tree, serving, pool = (
    importlib.import_module(f"eqcheck.reference_impls.{name}") for name in ("ragged", "tree", "serving", "serving.pool")
)
Tree = tree.Tree
Ragged, Prompt, PromptError, Unsupported = ragged.Ragged, serving.Prompt, serving.PromptError, serving.Unsupported
decode, bytes_for, slots_within = serving.decode, pool.bytes_for, pool.slots_within
FAMILIES = ("rotary", "learned", "window")


def within(spare: float, batch_size: int = 8, engine: Any = Ragged) -> Any:
    """A decoder with room for its longest row and ``spare`` times as much."""

    def generate(target: Any, draft: Any, request: Request) -> list[list[int]]:
        longest = max(len(prompt) for prompt in request.prompts) + request.max_new_tokens
        size = bytes_for(int(longest * (1 + spare)), (target, draft))
        rows: list[list[int]] = decode(engine, target, draft, request, batch_size=batch_size, kv_bytes=size)
        return rows

    return generate


@pytest.mark.parametrize("engine", [Ragged, Tree])
@pytest.mark.parametrize("spare", [0.0, 0.5, 1.2, 3.0])
@pytest.mark.tiers(quick=1, rest=2)
def test_the_tokens_are_the_targets_in_any_budget(spare: float, engine: Any) -> None:
    source = Source(5, FAMILIES, ("left", "right"), ("empty", "chunked", "late-rows", "pads-nan"))
    for case in source.chunk(0)[::2]:
        done = run(within(spare, engine=engine), case)
        assert judge(done), f"{judge(done).explain()}\n{done.failure_text}"


@pytest.mark.parametrize("engine", [Ragged, Tree])
@pytest.mark.parametrize("spare", [0.0, 1.2])
@pytest.mark.tiers(quick=0, rest=1)
def test_no_more_is_ever_alive_than_was_given(spare: float, engine: Any) -> None:
    for case in Source(6, FAMILIES, ("left",), ("empty",)).chunk(0):
        longest = max(map(len, case.prompts)) + case.max_new_tokens
        done, ledger = watched(within(spare, engine=engine), case)
        given = int(longest * (1 + spare)) * bytes_for(1, done_models())
        assert all(sum(held.size for held in moment.held) <= given for moment in ledger.moments)
        # What a forward has just computed is not in the caches yet.
        fed = max(call.tokens.size for call in done.trace.calls)
        assert ledger.peak <= given + fed * TOKEN


def done_models() -> tuple[Any, Any]:
    return HashLM(HashConfig(seed=1)), HashLM(HashConfig(seed=1, role=2))


def test_rows_wait_and_drafts_become_fewer() -> None:
    target, draft = done_models()
    prompts = [[3, 1, 4, 1], [1, 5, 9, 2], [6, 5, 3, 5], [8, 9, 7, 9]]
    free = Ragged(target, draft, num_draft_tokens=4, batch_size=4)
    expected = free.generate(prompts, max_new_tokens=12)
    for rows, size in ((1, 16), (2, 32), (4, 64)):
        engine = Ragged(target, draft, num_draft_tokens=4, batch_size=4, kv_bytes=bytes_for(size, (target, draft)))
        assert engine.generate(prompts, max_new_tokens=12) == expected
        assert engine.stats.kv_bytes <= bytes_for(size, (target, draft))
        assert engine.stats.verify_calls >= free.stats.verify_calls * 4 / rows
        assert engine.stats.drafted <= free.stats.drafted


def test_a_prompt_that_never_fits_is_refused_before_anything_is_decoded() -> None:
    target, draft = done_models()
    calls: list[int] = []
    target.register_forward_pre_hook(lambda *_: calls.append(1))
    engine = Ragged(target, draft, kv_bytes=bytes_for(10, (target, draft)))
    with pytest.raises(PromptError, match=r"prompt 1: 5 tokens and 6 new ones need room for 11, and kv_bytes"):
        engine.generate([[1, 2], [1, 2, 3, 4, 5]], max_new_tokens=6)
    assert not calls
    assert len(engine.generate([[1, 2], [1, 2, 3, 4]], max_new_tokens=6)) == 2
    needed = bytes_for(11, (target, draft))
    assert Ragged(target, draft, kv_bytes=needed).most == 11
    assert Ragged(target, draft, kv_bytes=needed - 1).most == 10


@pytest.mark.parametrize("size", [0, -1, 1.5, True])
def test_a_budget_that_is_no_number_of_bytes_is_refused(size: Any) -> None:
    with pytest.raises(Unsupported, match="kv_bytes: expected an integer of at least 1"):
        Ragged(*done_models(), kv_bytes=size)


def test_what_arrives_later_waits_for_its_turn() -> None:
    target, draft = done_models()
    engine = Ragged(target, draft, batch_size=4, kv_bytes=bytes_for(20, (target, draft)))

    def arriving() -> Iterator[Any]:
        for number in range(5):
            yield Prompt([number + 1, 2, 3], 8, id=number)
            yield None

    found: dict[int, list[int]] = {}
    for update in engine.stream(arriving()):
        found.setdefault(update.id, []).extend(update.token_ids)
    oracle = Oracle(target)
    assert found == {number: oracle.truth([number + 1, 2, 3], max_new_tokens=8) for number in range(5)}


def test_on_the_trained_pair_too() -> None:
    target, draft = pair.load(torch.float64)
    prompts = [pair.encode(text) for text in ("def main(", "import os\nimport ", "x", "class Error(Exception):\n    ")]
    expected = Ragged(target, draft).generate(prompts, max_new_tokens=10)
    size = bytes_for(60, (target, draft))
    engine = Ragged(target, draft, kv_bytes=size)
    assert engine.generate(prompts, max_new_tokens=10) == expected
    assert 0 < engine.stats.kv_bytes <= size
    assert slots_within(size, (target, draft)) == 60
