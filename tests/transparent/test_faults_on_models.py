"""Faults in K, V, heads and layers change what an ordinary Llama emits, and builds that are right emit what it does."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from tiny import VOCABULARY, noisy, tiny

from eqcheck.catalogue import BUILDS, PLANTED, Fault
from eqcheck.contract.decoders import Decoder, Request

NEW = 12
SHOWN_BY = (
    *("K15-", "K16-", "K17-", "K18-", "K19-", "K26-"),  # what is in K and V
    *("T14-correction-one-column-late", "T20-", "T21-", "T22-", "T23-", "T24-", "T25-", "T26-", "X10-", "X11-", "X12-"),
    *("K20-", "K22-", "K24-", "K25-", "K27-", "P11-"),  # blocks, long rows and large K
)
SHOWN = [fault for fault in PLANTED if fault.switch.startswith(SHOWN_BY)]
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
    """Rows of several lengths, two of them equal, and one that goes on where another ends."""
    drawn = random.Random(seed)
    rows = [[drawn.randrange(VOCABULARY) for _ in range(length)] for length in (1, 6, 13)]
    return [*rows, rows[0], [*rows[1], 5]]


def alone(model: Any, prompt: list[int]) -> list[int]:
    ids = list(prompt)
    while len(ids) < len(prompt) + NEW:
        ids.append(int(model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def decoded(decoder: Decoder, model: Any, draft: Any, seed: int, k: int) -> list[list[int]]:
    outputs: list[list[int]] = decoder(model, draft, Request(prompts(seed), NEW, k, (), 0, "left"))
    return outputs


@pytest.mark.parametrize("fault", SHOWN, ids=lambda fault: fault.id)
@pytest.mark.tiers(quick=2, rest=2)
def test_fault_changes_what_a_llama_emits(fault: Fault, llama: Any) -> None:
    with torch.no_grad():
        changed = (
            decoded(fault.decoder(), llama, draft, seed, k) != [alone(llama, row) for row in prompts(seed)]
            for seed, draft, k in ((1, noisy(llama), 3), (2, llama, 8), (3, noisy(llama), 8))
        )
        assert any(changed)


@pytest.mark.parametrize("build", BUILDS_OF_THEIR_OWN)
@pytest.mark.tiers(quick=1, rest=1)
def test_right_build_emits_what_the_model_does(build: str) -> None:
    for family in BUILDS[build].families:
        for kind in ARCHITECTURES.get(family, ()):
            model = tiny(kind)
            with torch.no_grad():
                right = [alone(model, row) for row in prompts(1)]
                assert decoded(BUILDS[build].decoder(build), model, noisy(model), 1, 3) == right, kind
