"""A decoder that masks rejected slots, crops a common tail and lets finished rows leave, and five mistakes in it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import DynamicCache

import eqcheck
from eqcheck.contract.decoders import Decoder, Request
from eqcheck.core.case.record import Case


class Side:
    """A model with its cache, its mask ``[rows, slots]`` and the tokens of each row that are held ``[rows, 1]``."""

    def __init__(self, model: Any, rows: int) -> None:
        self.model, self.cache = model, DynamicCache()
        self.mask, self.held = torch.zeros(rows, 0, dtype=torch.long), torch.zeros(rows, 1, dtype=torch.long)

    def fed(self, ids: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
        self.mask = torch.cat([self.mask, valid], 1)
        places = (self.held + valid.cumsum(1) - 1).clamp(min=0)
        self.held = self.held + valid.sum(1, keepdim=True)
        given = {"attention_mask": self.mask, "position_ids": places, "past_key_values": self.cache}
        choice: torch.Tensor = self.model(input_ids=ids, use_cache=True, **given).logits.argmax(-1)
        return choice

    def roll_back(self, fed: int, kept: torch.Tensor) -> None:
        self.mask[:, -fed:] = (torch.arange(fed)[None] < kept[:, None]).long()
        self.held = self.held - fed + kept[:, None]
        if spare := fed - int(kept.max()):
            self.cache.crop(-spare)
            self.mask = self.mask[:, :-spare]

    def select(self, rows: torch.Tensor) -> None:
        self.cache.batch_select_indices(rows)
        self.mask, self.held = self.mask[rows], self.held[rows]


def masked(fault: str = "") -> Decoder:
    """The decoder, with a mistake."""

    @eqcheck.decoder(name=f"masked {fault}".strip(), padding_sides=("left",))
    def generate(target: Any, draft: Any, request: Request) -> list[list[int]]:
        prompts, k = request.prompts, request.num_draft_tokens
        width = max(map(len, prompts))
        ids = torch.tensor([[request.pad_token_id] * (width - len(row)) + row for row in prompts])
        valid = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in prompts])
        if fault == "pads by their id":
            valid = (ids != request.pad_token_id).long()
        sides = big, small = Side(target, len(prompts)), Side(draft, len(prompts))
        for side in sides if width > 1 else ():
            side.fed(ids[:, :-1], valid[:, :-1])
        last, out, active = ids[:, -1:], [list[int]() for _ in prompts], list(range(len(prompts)))
        while active:
            ones = torch.ones(len(active), 1, dtype=torch.long)
            block = last
            for _ in range(k):
                block = torch.cat([block, small.fed(block[:, -1:], ones)[:, -1:]], 1)
            small.fed(block[:, -1:], ones)  # the caches stay level
            choice = big.fed(block, ones.expand(-1, k + 1))
            agree = (block[:, 1:] == choice[:, :-1]).long().cumprod(1).sum(1)
            big.roll_back(k + 1, agree + (fault != "a slot too few"))
            small.roll_back(k + 1, agree + 1)
            last = choice.gather(1, agree[:, None])
            stay = []
            for at, row in enumerate(active):
                out[row] = (out[row] + block[at, 1 : 1 + agree[at]].tolist() + [int(last[at])])[
                    : request.max_new_tokens
                ]
                ends = [n for n, token in enumerate(out[row]) if token in request.eos_token_ids]
                if fault == "EOS at the end of a round alone":
                    ends = [n for n in ends if n == len(out[row]) - 1]
                out[row] = out[row][: ends[0] + 1] if ends else out[row]
                stay += [at] if not ends and len(out[row]) < request.max_new_tokens else []
            if len(stay) < len(active):
                rows, active = torch.tensor(stay, dtype=torch.long), [active[at] for at in stay]
                for side in sides if stay else ():
                    side.select(rows)
                last = last[: len(stay)] if fault == "last tokens not selected" else last[rows]
        return out

    return generate


THREE = Case(prompts=((11,), (21,), (31,)), max_new_tokens=3, num_draft_tokens=1, accepts=((0, 1), (), ()))
EOS = Case(prompts=((10,),), max_new_tokens=2, num_draft_tokens=1, accepts=((1,),), eos_token_ids=(106,))
PADS = Case(prompts=((10, 11, 12, 13, 13),), max_new_tokens=1, num_draft_tokens=1, pad_token_id=13)
TWO = Case(prompts=((10,), (20,)), max_new_tokens=2, num_draft_tokens=1, accepts=((1,), ()))


def said(fault: str, case: Case) -> str:
    with pytest.raises(eqcheck.Violation) as raised:
        eqcheck.assert_equivalent(masked(fault), case)
    return str(raised.value)


@pytest.mark.parametrize("case", [THREE, EOS, PADS, TWO])
def test_it_is_right(case: Case) -> None:
    eqcheck.assert_equivalent(masked(), case)


def test_a_row_that_is_fed_another_rows_token_is_not_said_to_see_another_rows_cache() -> None:
    """The cache of each batch row is right, and the query that was blamed answers for another row."""
    assert said("last tokens not selected", THREE).startswith("unattributed/unattributed")


def test_a_bonus_is_no_draft_token() -> None:
    text = said("EOS at the end of a round alone", EOS)
    assert text.startswith("bookkeeping/past-eos")
    assert "draft token" not in text


def test_a_prompt_whose_last_tokens_are_taken_for_pads_was_fed() -> None:
    assert "unfinished-prompt" not in said("pads by their id", PADS)


def test_a_hidden_key_that_is_not_shifted_denies_a_shift_of_all() -> None:
    text = said("a slot too few", TWO)
    assert text.startswith("mask/token-hidden")
    assert "are shifted" not in text
    assert "position/query-position" in text
