"""Faults in K, V, heads and layers change what an ordinary Llama emits, and builds that are right emit what it does."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from tiny import VOCABULARY, noisy, tiny

from eqcheck.catalogue import BUILDS, Fault
from eqcheck.catalogue.commits import COMMITS
from eqcheck.catalogue.tensors import TENSORS
from eqcheck.contract import Decoder, Request

NEW = 10
ARCHITECTURES = {
    "rotary": ("llama", "gpt_neox"),
    "learned": ("gpt2",),
    "mask-order": ("bloom",),
    "window": ("mistral",),
}
BUILDS_OF_THEIR_OWN = ("paged", "paged_small", "static", "staged", "packed")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def llama() -> Any:
    return tiny("llama")


def prompts(seed: int) -> list[list[int]]:
    drawn = random.Random(seed)
    return [[drawn.randrange(VOCABULARY) for _ in range(length)] for length in (1, 5, 13)]


def alone(model: Any, prompt: list[int]) -> list[int]:
    ids = list(prompt)
    while len(ids) < len(prompt) + NEW:
        ids.append(int(model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def decoded(decoder: Decoder, model: Any, rows: list[list[int]]) -> list[list[int]]:
    rows = [list(row) for row in rows]
    outputs: list[list[int]] = decoder(model, noisy(model), Request(rows, NEW, 3, (), 0, "left"))
    return outputs


@pytest.mark.parametrize("fault", [*TENSORS, *COMMITS], ids=lambda fault: fault.id)
def test_fault_changes_what_a_llama_emits(fault: Fault, llama: Any) -> None:
    with torch.no_grad():
        changed = (
            decoded(fault.decoder(), llama, rows) != [alone(llama, row) for row in rows]
            for rows in map(prompts, range(4))
        )
        assert any(changed)


@pytest.mark.parametrize("build", BUILDS_OF_THEIR_OWN)
def test_right_build_emits_what_the_model_does(build: str) -> None:
    for family in BUILDS[build].families:
        for kind in ARCHITECTURES.get(family, ()):
            model = tiny(kind)
            with torch.no_grad():
                right = [alone(model, row) for row in prompts(1)]
                assert decoded(BUILDS[build].decoder(build), model, prompts(1)) == right, kind
