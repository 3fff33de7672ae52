"""HashLM: positions and masks as in Llama and GPT-2, exact, and changed by anything a query sees."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, StaticCache

from eqcheck.case import Case
from eqcheck.contract import FAMILIES
from eqcheck.draft import ScriptedDraft
from eqcheck.harness import models, truth_of
from eqcheck.hashing import CALL, COLUMN, HEADS, LAYERS, MODEL, ROW, WIDTH, Bools, Words, continue_row
from eqcheck.hashlm import HashConfig, HashLM
from eqcheck.trace import DRAFT, TARGET, Call, Trace

torch.set_num_threads(1)
torch.set_grad_enabled(False)

VOCAB = 67
both = pytest.mark.parametrize("family", FAMILIES)


@lru_cache
def hash_lm(family: str) -> HashLM:
    return cast(HashLM, HashLM(HashConfig(vocab_size=VOCAB, seed=1, family=family)).eval())


def traced(family: str) -> tuple[HashLM, Trace]:
    model = hash_lm(family)
    model.trace = Trace()
    return model, model.trace


@lru_cache
def real(family: str) -> Any:
    """The architecture a family is like, tiny; with sdpa, because eager Llama turns float64's pads into NaN."""
    torch.manual_seed(3)
    sizes: dict[str, Any] = {"vocab_size": VOCAB, "tie_word_embeddings": False, "initializer_range": 0.3}
    if family == "rotary":
        heads = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
        model: Any = LlamaForCausalLM(LlamaConfig(hidden_size=32, intermediate_size=48, **heads, **sizes))
    else:
        model = GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=64, **sizes))
    model.set_attn_implementation("sdpa")
    return model.double().eval()


# Positions and masks -------------------------------------------------------------------------------------------------

IDS = torch.tensor([[3, 14, 15, 9, 26, 5, 35], [8, 9, 7, 9, 32, 38, 46]])
ALL = [1, 1, 1, 1, 1, 1, 1]
LEFT, RIGHT, HOLE = [0, 0, 1, 1, 1, 1, 1], [1, 1, 0, 0, 1, 1, 1], [1, 0, 1, 1, 1, 1, 1]


def first(**given: Any) -> dict[str, Any]:
    return {"input_ids": IDS[:, :4], **given}


def then(**given: Any) -> dict[str, Any]:
    return {"input_ids": IDS[:, 4:], **given}


def mask(*rows: list[int], to: int = 7) -> torch.Tensor:
    return torch.tensor([row[:to] for row in rows])


def at(*rows: list[int]) -> torch.Tensor:
    return torch.tensor(rows)


VARIANTS: dict[str, list[dict[str, Any]]] = {
    "bare": [first()],
    "left padded": [first(attention_mask=mask(LEFT, ALL, to=4))],
    "right padded": [first(attention_mask=mask(ALL, RIGHT, to=4))],
    "bool mask with a hole": [first(attention_mask=mask(HOLE, ALL, to=4).bool())],
    "mask too short": [first(attention_mask=mask(ALL, HOLE, to=3))],
    "mask too long": [first(attention_mask=mask(LEFT, ALL))],
    "positions": [first(attention_mask=mask(LEFT, ALL, to=4), position_ids=at([0, 0, 0, 1], [0, 1, 2, 3]))],
    "positions of one row for all": [first(position_ids=at([3, 4, 5, 6]))],
    "positions that jump": [first(position_ids=at([0, 1, 5, 6], [2, 2, 3, 9]))],
    "uncached": [first(use_cache=False)],
    "uncached, left padded": [first(use_cache=False, attention_mask=mask(LEFT, ALL, to=4))],
    "uncached, positions": [
        first(use_cache=False, attention_mask=mask(LEFT, ALL, to=4), position_ids=at([1, 1, 0, 1], [0, 1, 2, 3]))
    ],
    "uncached, positions that jump": [first(use_cache=False, position_ids=at([0, 0, 0, 1], [0, 1, 2, 3]))],
    "block": [first(), then()],
    "block, left padded": [first(attention_mask=mask(LEFT, ALL, to=4)), then(attention_mask=mask(LEFT, ALL))],
    "block, mask too short": [first(attention_mask=mask(LEFT, ALL, to=4)), then(attention_mask=mask(LEFT, ALL, to=5))],
    "block, mask too long": [first(), then(attention_mask=torch.cat([mask(HOLE, RIGHT), mask(ALL, ALL, to=4)], 1))],
    "block, positions": [
        first(attention_mask=mask(LEFT, ALL, to=4), position_ids=at([0, 0, 0, 1], [0, 1, 2, 3])),
        then(attention_mask=mask(LEFT, ALL), position_ids=at([2, 3, 4], [4, 5, 6])),
    ],
    "block over a hole": [
        first(),
        then(attention_mask=mask(RIGHT, HOLE), position_ids=at([2, 3, 4], [3, 4, 5])),
    ],
    "block, cache_position": [first(cache_position=torch.arange(4)), then(cache_position=torch.arange(4, 7))],
    "block, cache_position ahead": [first(), then(cache_position=torch.arange(5, 8))],
    "block, cache_position back": [first(), then(cache_position=torch.arange(2, 5), attention_mask=mask(HOLE, ALL))],
}


def play(model: Any, steps: list[dict[str, Any]], past: Any) -> list[torch.Tensor]:
    """Run a model step by step on one cache; the logits of each."""
    logits = []
    for step in steps:
        output = model(past_key_values=past, **step)
        past = output.past_key_values
        logits.append(output.logits)
    return logits


def spelled_out(step: dict[str, Any], call: Call) -> dict[str, Any]:
    """The same step with the recorded positions, and the recorded visibility as a 4-D mask."""
    visible = torch.from_numpy(call.visible)[:, None]
    return {**step, "position_ids": torch.from_numpy(call.positions), "attention_mask": visible}


def static_or_none(model: Any, static: bool) -> Any:
    return StaticCache(config=model.config, max_cache_len=9) if static else None


@pytest.mark.parametrize("static", [False, True], ids=["grown", "preallocated"])
@pytest.mark.parametrize("name", VARIANTS)
@both
def test_defaults_are_those_of_the_real_architecture(family: str, name: str, static: bool) -> None:
    steps = VARIANTS[name]
    static = static and "use_cache" not in steps[0]
    model, trace = traced(family)
    ours = play(model, steps, static_or_none(model, static))
    explicit = [spelled_out(step, call) for step, call in zip(steps, trace.calls, strict=True)]
    theirs = play(real(family), steps, static_or_none(real(family), static))
    same = play(real(family), explicit, static_or_none(real(family), static))
    for call, own, spelled in zip(trace.calls, theirs, same, strict=True):
        seeing = torch.from_numpy(call.visible.any(-1))
        assert seeing.any()
        torch.testing.assert_close(own[seeing], spelled[seeing], rtol=1e-9, atol=1e-9)
    for own, spelled in zip(ours, play(model, explicit, static_or_none(model, static)), strict=True):
        assert torch.equal(own, spelled)


@both
def test_the_real_architecture_tells_one_position_and_one_mask_bit(family: str) -> None:
    model, trace = traced(family)
    steps = VARIANTS["block, positions"]
    play(model, steps, None)
    explicit = [spelled_out(step, call) for step, call in zip(steps, trace.calls, strict=True)]
    right = play(real(family), steps, None)[1]
    moved, shown = explicit[1]["position_ids"].clone(), explicit[1]["attention_mask"].clone()
    moved[0, 1] += 1
    shown[1, 0, 2, 3] = False
    for step in ({"position_ids": moved}, {"attention_mask": shown}):
        wrong = play(real(family), [explicit[0], {**explicit[1], **step}], None)[1]
        assert (wrong - right).abs().max() > 1e-3


# generate() ----------------------------------------------------------------------------------------------------------

PROMPTS = ((5, 7, 9, 11), (3,), (60, 2))
NEW = 8


def truth(family: str, prompt: tuple[int, ...]) -> list[int]:
    return list(continue_row(family, VOCAB, 1, prompt, NEW)[0])


def generated(model: HashLM, ids: torch.Tensor, kept: torch.Tensor, **how: Any) -> list[list[int]]:
    output = model.generate(ids, attention_mask=kept, max_new_tokens=NEW, do_sample=False, pad_token_id=0, **how)
    return cast(list[list[int]], output[:, ids.shape[1] :].tolist())


def not_emitted(family: str, prompts: tuple[tuple[int, ...], ...]) -> int:
    return min(set(range(VOCAB)) - {token for prompt in prompts for token in truth(family, prompt)})


@pytest.mark.parametrize("how", [{}, {"use_cache": False}, {"cache_implementation": "static"}], ids=str)
@both
def test_generate_emits_the_truth_of_every_left_padded_row(family: str, how: dict[str, Any]) -> None:
    width = max(map(len, PROMPTS))
    ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in PROMPTS])
    kept = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in PROMPTS])
    wanted = [truth(family, prompt) for prompt in PROMPTS]
    assert generated(hash_lm(family), ids, kept, **how) == wanted
    for prompt, row in zip(PROMPTS, wanted, strict=True):
        alone = torch.tensor([prompt])
        assert generated(hash_lm(family), alone, torch.ones_like(alone), **how) == [row]


@pytest.mark.parametrize(("agreement", "fewest", "most"), [(0.0, NEW, NEW), (0.5, 3, NEW - 1), (1.0, 2, 2)])
@both
def test_assisted_generate(family: str, agreement: float, fewest: int, most: int) -> None:
    target, trace = traced(family)
    draft = ScriptedDraft.of(target)
    draft.script(agreement=agreement)
    draft.trace = trace
    draft.generation_config.num_assistant_tokens = 4
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0.0
    prompt = torch.tensor([PROMPTS[0]])
    eos = not_emitted(family, PROMPTS)
    output = generated(target, prompt, torch.ones_like(prompt), assistant_model=draft, eos_token_id=eos)
    assert output == [truth(family, PROMPTS[0])]
    assert trace.of(DRAFT)
    assert fewest <= len(trace.of(TARGET)) <= most


@both
def test_prompt_lookup_generate(family: str) -> None:
    looked_up = ((a, b, 4, a) for a in range(5, VOCAB) for b in range(5, VOCAB))
    prompt = next(one for one in looked_up if truth(family, one)[0] == one[1])
    target, trace = traced(family)
    ids, eos = torch.tensor([prompt]), not_emitted(family, (prompt,))
    how = {"prompt_lookup_num_tokens": 3, "eos_token_id": eos}
    assert generated(target, ids, torch.ones_like(ids), **how) == [truth(family, prompt)]
    assert len(trace.calls) < NEW
