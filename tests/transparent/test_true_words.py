"""Reports say what a decoder did: states without position ids, filled prefill calls, masks by their pattern."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from eqcheck.contract.decoders import Request, decoder
from eqcheck.core.case.record import Case
from eqcheck.core.explanation.records import Explanation
from eqcheck.core.explanation.text import render
from eqcheck.transparent.attribution.witnesses import permuted, redrawn
from eqcheck.transparent.decoding import run
from eqcheck.transparent.oracle import judge

Rows = list[list[int]]


def explained(generate: Any, case: Case) -> Explanation | None:
    torch.set_num_threads(1)
    return judge(run(decoder(name="one", families=(case.family,))(generate), case)).explanation


def states(target: Any, request: Request, pads: int, hidden: bool) -> Rows:
    """A state for each row; the prompt but its last token is prefilled with ids 0 behind it, masked or not."""
    rows = []
    for prompt in request.prompts:
        cache, text, held = DynamicCache(), list(prompt), len(prompt) - 1
        if held:
            mask = [1] * held + [int(not hidden)] * pads
            ids = torch.tensor([prompt[:-1] + [0] * pads])
            target(input_ids=ids, attention_mask=torch.tensor([mask]), past_key_values=cache)
        while len(text) - len(prompt) < request.max_new_tokens:
            logits = target(input_ids=torch.tensor([text[-1:]]), past_key_values=cache).logits
            text.append(int(logits[0, -1].argmax()))
        rows.append(text[len(prompt) :])
    return rows


CASE = Case(
    prompts=((10, 11, 12), (20, 21)), max_new_tokens=3, num_draft_tokens=2, pad_token_id=127, family="recurrent"
)


def test_a_right_state_is_right() -> None:
    assert explained(lambda target, draft, request: states(target, request, 0, True), CASE) is None


def test_masked_pads_behind_a_row_are_steps_and_no_wrong_position_ids() -> None:
    found = explained(lambda target, draft, request: states(target, request, 2, True), CASE)
    assert found is not None
    assert found.fingerprint == "mask/pad-visible"
    text = " ".join(render(found).split())
    assert "masked padding between the row's tokens, which a state of this kind takes as steps" in text
    assert "position id" not in text
    assert "until call" not in text, "two masked pads are alike, and none has moved"


def test_what_fills_up_a_prompt_is_no_draft() -> None:
    found = explained(lambda target, draft, request: states(target, request, 2, False), CASE)
    assert found is not None
    assert found.fingerprint == "mask/pad-visible"
    text = " ".join(render(found).split())
    assert "filler of call" in text
    assert "rejected draft" not in text
    assert "position id" not in text


# A state that skips masked tokens, as those of gated delta nets do in mlx-lm and vLLM.

SKIPPING = replace(CASE, family="masked-recurrent", accepts=((1, 0), (0, 2)))


@pytest.mark.parametrize("pads", [0, 1, 2])
def test_a_state_that_skips_masked_pads_is_right_with_pads_behind_a_row(pads: int) -> None:
    assert explained(lambda target, draft, request: states(target, request, pads, True), SKIPPING) is None


def test_pads_that_are_not_masked_are_wrong_for_a_state_that_skips_masked_ones() -> None:
    found = explained(lambda target, draft, request: states(target, request, 2, False), SKIPPING)
    assert found is not None
    assert found.fingerprint == "mask/pad-visible"
    assert "filler of call" in " ".join(render(found).split())


def padded_batch(target: Any, request: Request, steps: bool) -> Rows:
    """A batch with pads behind the shorter rows, and with ``steps`` a masked pad before each token."""
    longest = max(map(len, request.prompts))
    ids = torch.tensor([[*prompt, *[0] * (longest - len(prompt))] for prompt in request.prompts])
    mask = torch.tensor([[1] * len(prompt) + [0] * (longest - len(prompt)) for prompt in request.prompts])
    cache, lasts = DynamicCache(), torch.tensor([len(prompt) - 1 for prompt in request.prompts])
    logits = target(input_ids=ids, attention_mask=mask, past_key_values=cache).logits
    tokens = logits[torch.arange(len(ids)), lasts].argmax(-1)[:, None]
    rows = [tokens]
    while len(rows) < request.max_new_tokens:
        if steps:
            target(input_ids=tokens * 0, attention_mask=tokens * 0, past_key_values=cache)
        tokens = target(input_ids=tokens, past_key_values=cache).logits[:, -1].argmax(-1)[:, None]
        rows.append(tokens)
    return torch.cat(rows, dim=1).tolist()


@pytest.mark.parametrize("steps", [False, True])
def test_a_ragged_batch_needs_a_state_that_skips_masked_pads_also_in_a_step(steps: bool) -> None:
    def decode(target: Any, draft: Any, request: Request) -> Rows:
        return padded_batch(target, request, steps)

    assert explained(decode, SKIPPING) is None
    found = explained(decode, CASE)
    assert found is not None
    assert found.fingerprint == "mask/pad-visible"


def kept(target: Any, draft: Any, request: Request, restore: bool) -> Rows:
    """One row at a time with drafts of the prompt's first id; without ``restore`` rejected drafts stay in the state."""
    rows = []
    for prompt in request.prompts:
        cache, text = DynamicCache(), list(prompt)
        block = list(prompt)
        while len(text) - len(prompt) < request.max_new_tokens:
            before = copy.deepcopy(cache)
            logits = target(input_ids=torch.tensor([[*block, prompt[0]]]), past_key_values=cache).logits[0]
            text.append(int(logits[len(block) - 1].argmax()))
            if restore:
                cache = before
                target(input_ids=torch.tensor([block]), past_key_values=cache)
            block = text[-1:]
        rows.append(text[len(prompt) :])
    return rows


@pytest.mark.parametrize("case", [CASE, SKIPPING], ids=lambda case: case.family)
def test_a_state_that_keeps_rejected_drafts_is_wrong_whether_it_skips_masked_tokens_or_not(case: Case) -> None:
    assert explained(partial(kept, restore=True), case) is None
    found = explained(partial(kept, restore=False), case)
    assert found is not None
    assert found.fingerprint == "cache/stale-entry"


def test_other_ids_rename_the_id_0_where_it_is_no_pad() -> None:
    case = Case(prompts=((0, 7), (9, 0)), max_new_tokens=3, num_draft_tokens=1, pad_token_id=127)
    assert all(0 not in prompt for seed in (2, 4, 5) for prompt in redrawn(case, seed).prompts)
    assert permuted(case, 1).prompts[0][0] == 0, "a decoder that takes 0 for none fails only there"


def anchored(target: Any, request: Request, begin: bool) -> Rows:
    """Blocks of two tokens, the newest and a guess; with ``begin`` their triangle stands at slot 0."""
    rows = []
    for prompt in request.prompts:
        cache, text = DynamicCache(), list(prompt)
        block = list(prompt)
        while len(text) - len(prompt) < request.max_new_tokens:
            held, fed = cache.get_seq_length(), [*block, 1]
            slots, columns = torch.arange(held + len(fed)), torch.arange(len(fed))[:, None]
            mask = (slots <= columns + (0 if begin else held)).expand(len(fed), -1)[None, None]
            where = torch.arange(held, held + len(fed))[None]
            asked = {"attention_mask": mask, "position_ids": where, "past_key_values": cache}
            logits = target(input_ids=torch.tensor([fed]), **asked).logits
            cache.crop(-1)
            block = [int(logits[0, len(block) - 1].argmax())]
            text += block
        rows.append(text[len(prompt) :])
    return rows


def test_a_mask_that_is_a_triangle_at_slot_0_is_named_as_that() -> None:
    case = Case(prompts=((10, 11, 12),), max_new_tokens=4, num_draft_tokens=1)
    right = explained(lambda target, draft, request: anchored(target, request, False), case)
    assert right is None, right.detail
    found = explained(lambda target, draft, request: anchored(target, request, True), case)
    assert found is not None
    assert found.fingerprint == "mask/token-hidden"
    assert "column c of the block of 2 columns attends to exactly slots 0..c" in " ".join(render(found).split())
