"""The reference engines on real architectures: right in float64, and as right as the dtype allows in the others."""

from __future__ import annotations

import doctest
import importlib
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tiny import KINDS, VOCABULARY, noisy, tiny

from eqcheck.contract.cache_names import cache_of
from eqcheck.transparent.oracle import Oracle

ENGINES = {
    name: getattr(importlib.import_module(f"eqcheck.reference_impls.{name}"), name.capitalize())
    for name in ("eqspec", "exspec", "ragged", "tree")
}
serving = importlib.import_module("eqcheck.reference_impls.serving")
NEW = 14
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 4,
    "long_factor": [2.0] * 4,
    "factor": 2.0,
    "original_max_position_embeddings": 16,
}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def prompts(count: int, longest: int = 12, seed: int = 7) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest, (count,), generator=generator).tolist()
    return [torch.randint(0, VOCABULARY, (n,), generator=generator).tolist() for n in lengths]


def wrong(oracle: Oracle, asked: Sequence[Any], outputs: list[list[int]]) -> list[int]:
    """The rows that are not what the target emits alone, each under its own limit and stop ids."""
    return [
        i
        for i, (prompt, output) in enumerate(zip(asked, outputs, strict=True))
        if not oracle.check(
            [prompt.token_ids], [output], max_new_tokens=prompt.max_new_tokens, eos_token_ids=prompt.stop_token_ids
        )
    ]


def asked_of(oracle: Oracle, count: int = 7) -> list[Any]:
    """Prompts with limits from 1 to NEW, of which every other has a stop id that its output reaches."""
    asked = []
    for i, ids in enumerate(prompts(count)):
        truth = oracle.truth(ids, max_new_tokens=NEW)
        asked.append(serving.Prompt(ids, 1 + (5 * i + 3) % NEW if i % 3 else NEW, (truth[6],) if i % 2 else ()))
    return asked


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.tiers(quick=3, rest=11)
def test_real_architectures(kind: str, name: str) -> None:
    target = tiny(kind)
    oracle = Oracle(target)
    asked = asked_of(oracle)
    engine = ENGINES[name](target, noisy(target), num_draft_tokens=3, batch_size=3)
    outputs = engine.generate(asked)
    assert wrong(oracle, asked, outputs) == []
    assert len({token for row in outputs for token in row}) > 15, "greedy output is degenerate: the check would be weak"
    assert 0.02 < engine.stats.acceptance < 0.98, "acceptance is not ragged: the check would be weak"
    assert {len(row) == prompt.max_new_tokens for row, prompt in zip(outputs, asked, strict=True)} == {True, False}


@pytest.mark.parametrize("name", ["exspec", "ragged", "tree"])
@pytest.mark.tiers(quick=2, rest=1)
def test_sliding_window(name: str) -> None:
    target = tiny("mistral")
    oracle = Oracle(target)
    asked = [serving.Prompt(ids, NEW) for ids in prompts(5, longest=20)]
    engine = ENGINES[name](target, noisy(target), num_draft_tokens=3, batch_size=2)
    assert wrong(oracle, asked, engine.generate(asked)) == []
    engine = ENGINES[name](target, noisy(target), num_draft_tokens=3, batch_size=2)
    row_model = importlib.import_module("eqcheck.reference_impls.serving.row_cache").RowModel
    run = row_model.run

    def without_window(self: Any, *args: Any, **inputs: Any) -> Any:
        self.window = None
        return run(self, *args, **inputs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("eqcheck.reference_impls.serving.row_cache.RowModel.run", without_window)
        assert wrong(oracle, asked, engine.generate(asked)), "the window is not seen: the check would be weak"


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.tiers(quick=6, rest=6)
def test_dtypes(name: str, dtype: torch.dtype) -> None:
    """Every token is as good as the target's own choice, up to what the dtype resolves."""
    target = tiny("llama", dtype=dtype)
    engine = ENGINES[name](target, noisy(target), num_draft_tokens=3, batch_size=3)
    given = prompts(5)
    outputs = engine.generate(given, max_new_tokens=NEW)
    assert all(len(row) == NEW for row in outputs)
    assert worst_gap(target, given, outputs) < 64 * torch.finfo(dtype).eps
    outputs[2][4] = (outputs[2][4] + 1) % VOCABULARY
    assert worst_gap(target, given, outputs) > 64 * torch.finfo(dtype).eps


def worst_gap(target: Any, given: list[list[int]], outputs: list[list[int]]) -> float:
    """How much better than a row's own token the best one was, in units of the logits' spread, at worst."""
    gaps = []
    exact = tiny("llama")
    exact.load_state_dict(target.state_dict())
    for prompt, row in zip(given, outputs, strict=True):
        ids = torch.tensor([prompt + row])
        with torch.no_grad():
            logits = exact(input_ids=ids).logits[0, len(prompt) - 1 : -1]
        chosen = logits.gather(1, ids[0, len(prompt) :, None])[:, 0]
        gaps.append(float(((logits.amax(1) - chosen) / logits.std(1)).max()))
    return max(gaps)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_gpu(name: str) -> None:
    target = tiny("llama").cuda()
    given = prompts(5)
    engine = ENGINES[name](target, noisy(target).cuda(), num_draft_tokens=3, batch_size=3)
    assert Oracle(target).check(given, engine.generate(given, max_new_tokens=NEW), max_new_tokens=NEW)


@pytest.mark.parametrize("name", [*ENGINES, "serving.row_cache", "serving.rounds"])
def test_docstrings(name: str) -> None:
    module = importlib.import_module(f"eqcheck.reference_impls.{name}")
    result = doctest.testmod(module)
    assert result.failed == 0
    assert result.attempted or name.startswith("serving")


@pytest.mark.parametrize("name", ENGINES)
def test_models_that_are_refused(name: str) -> None:
    target = tiny("llama")

    def refusal(target: Any, draft: Any, **settings: Any) -> str:
        with pytest.raises(serving.Unsupported) as caught:
            ENGINES[name](target, draft, **settings)
        return str(caught.value)

    assert "target's vocabulary of 67 tokens, got one of 68" in refusal(target, tiny("llama", vocab_size=68))
    assert "num_draft_tokens: expected an integer of at least 1, got 0" in refusal(target, target, num_draft_tokens=0)
    assert "batch_size: expected an integer of at least 1, got -2" in refusal(target, target, batch_size=-2)
    assert "prefill_chunk: expected an integer of at least 1, got 0" in refusal(target, target, prefill_chunk=0)
    assert "cannot be rolled back" in refusal(tiny("mamba2"), target)
    assert "mixes full_attention and sliding_attention layers" in refusal(target, tiny("gemma2"))
    assert "takes no position_ids" in refusal(tiny("bloom"), target)
    assert "'longrope' positions" in refusal(tiny("llama", rope_scaling=LONGROPE), target)
    assert "masks of its own" in refusal(tiny("gpt_neo"), target)
    assert "ALiBi" in refusal(tiny("falcon", alibi=True), target)
    assert "is in training mode" in refusal(tiny("llama").train(), target)
    if name == "eqspec":
        assert "use ragged or exspec" in refusal(tiny("mistral"), target)

    class Words:
        def __init__(self, words: dict[str, int]) -> None:
            self.get_vocab = words.copy

    assert "tokenizers: expected two" in refusal(target, target, tokenizers=Words({}))
    told = refusal(target, target, tokenizers=(Words({"a": 1, "b": 2}), Words({"a": 1, "b": 3})))
    assert "'b' is 2 to the target and 3 to the draft" in told


@pytest.mark.parametrize("name", ENGINES)
def test_prompts_that_are_refused(name: str) -> None:
    target = tiny("llama")
    engine = ENGINES[name](target, target)
    for prompt, message in (
        ([], "expected at least one token id"),
        ([1, 67], r"expected token ids 0..66, Python's integers, got 67"),
        ([1, True], r"expected token ids 0..66, Python's integers, got True"),
        ("text", r"token_ids: expected a list of token ids \(of a tensor, .tolist\(\)\), got 'text'"),
        (serving.Prompt(None), r"token_ids: expected a list of token ids .* got None"),
        (serving.Prompt([1], 4, 5), r"stop_token_ids: expected a list of token ids .* got 5"),
        ([1] * 90, r"90 tokens and 14 new ones are more than the 96 positions .* shorten the prompt to 82 tokens"),
        (serving.Prompt([1], 0), "expected max_new_tokens of at least 1, got 0"),
        (serving.Prompt([1], 4, (99,)), r"expected token ids 0..66, Python's integers, got 99"),
    ):
        with pytest.raises(serving.PromptError, match=message):
            engine.generate([[1, 2], prompt], max_new_tokens=NEW)
    assert engine.generate([], max_new_tokens=4) == []
    longest = engine.generate([[3] * 82], max_new_tokens=NEW)
    assert Oracle(target).check([[3] * 82], longest, max_new_tokens=NEW)


@pytest.mark.parametrize("name", ENGINES)
def test_out_of_memory_says_what_fits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny("llama")
    engine = ENGINES[name](target, target, batch_size=4)
    per_row = 16 * 2.25 * 2 * 2 * (2 * 2 * 8) * 8  # slots, room, models, layers, K and V of two heads, bytes
    free: float | None = 0.0
    held: list[weakref.ref[torch.Tensor]] = []

    def look(device: torch.device) -> int | None:
        assert all(keys() is None for keys in held), "the caches that were too large still take memory"
        return None if free is None else int(free)

    monkeypatch.setattr("eqcheck.reference_impls.serving.checks.free_memory", look)
    forward = target.forward

    def full(*args: Any, **kwargs: Any) -> Any:
        held.clear()
        forward(*args, **kwargs)
        held.extend(weakref.ref(layer.keys) for layer in cache_of(kwargs).layers)
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:119] . DefaultCPUAllocator: can't allocate memory")

    def told() -> str:
        with monkeypatch.context() as patch:
            patch.setattr(target, "forward", full)
            with pytest.raises(serving.OutOfMemory) as caught:
                engine.generate([[1] * 11] * 4, max_new_tokens=4)
        assert "batch_size 4: keys and values of 4 rows in flight, 16 slots each" in str(caught.value)
        return str(caught.value)

    free = 2.5 * per_row
    assert told().endswith("a batch_size of 2 would fit")
    free = 0.5 * per_row
    assert told().endswith("not even a batch_size of 1 would fit: shorten the prompts")
    free = 1000 * per_row
    assert told().endswith("but a forward of 4 rows: lower batch_size or prefill_chunk")
    assert held
    free = None
    assert told().endswith("MiB; lower batch_size or prefill_chunk, or shorten the prompts")
    assert len(engine.generate([[1] * 11] * 4, max_new_tokens=4)) == 4, "an engine is usable after a failure"


def test_out_of_memory_for_real(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the allocator says when there is no memory is understood; another error is not taken for it."""
    target = tiny("llama", dtype=torch.float32)
    engine = ENGINES["ragged"](target, target)
    monkeypatch.setattr(target, "forward", lambda **_: torch.zeros(2**50))
    with pytest.raises(serving.OutOfMemory):
        engine.generate([[1, 2]], max_new_tokens=2)
    monkeypatch.setattr(target, "forward", lambda **_: torch.zeros(2).view(3))
    with pytest.raises(RuntimeError, match="shape") as caught:
        engine.generate([[1, 2]], max_new_tokens=2)
    assert not isinstance(caught.value, MemoryError)
