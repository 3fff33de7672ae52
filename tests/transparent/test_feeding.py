"""Another token fed in the place of a row's newest one is named, with what was fed; right engines are not accused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from eqcheck.contract.decoders import Generate
from eqcheck.core.case.record import Case
from eqcheck.core.explanation.records import Explanation
from eqcheck.core.explanation.text import render
from eqcheck.transparent.attribution.witnesses import second_opinion, variants
from eqcheck.transparent.decoding import run
from eqcheck.transparent.oracle import judge

Newest = Callable[[list[int], int], int]  # the id that is fed for the last of these, and the pad id


def engine(newest: Newest, drafting: str = "lookup", fed_prompt: Newest | None = None) -> Generate:
    """A cache for each row. Drafts are looked up in the row's own text, or the draft model's."""

    def one(target: Any, draft: Any, request: Any, row: int) -> list[int]:
        text, new, cache = list(request.prompts[row]), list[int](), DynamicCache()
        held, small = 0, DynamicCache()
        while True:
            block = [*text[held:-1], (newest if new else fed_prompt or newest)(text, request.pad_token_id)]
            drafts = _looked_up(text, request.num_draft_tokens) if drafting == "lookup" else []
            for _ in range(request.num_draft_tokens if drafting == "model" else 0):
                fed = [*text, *drafts][small.get_seq_length() :]
                drafts.append(int(_answers(draft, small, fed)[-1]))
            answers = _answers(target, cache, [*block, *drafts])[len(block) - 1 :]
            kept = next((i for i, (a, d) in enumerate(zip(answers, drafts, strict=False)) if a != d), len(drafts))
            for token in answers[: kept + 1]:
                text.append(token)
                new.append(token)
                if token in request.eos_token_ids or len(new) == request.max_new_tokens:
                    return new
            held = len(text) - 1
            for one in (cache, small):
                if (surplus := one.get_seq_length() - held) > 0:
                    one.crop(-surplus)

    def generate(target: Any, draft: Any, request: Any) -> list[list[int]]:
        return [one(target, draft, request, row) for row in range(len(request.prompts))]

    return generate


def _answers(model: Any, cache: DynamicCache, fed: list[int]) -> list[int]:
    start = cache.get_seq_length()
    where = torch.arange(start, start + len(fed))[None]
    logits = model(input_ids=torch.tensor([fed]), position_ids=where, past_key_values=cache).logits
    return [int(token) for token in logits[0].argmax(-1)]


def _looked_up(text: list[int], count: int) -> list[int]:
    """What followed the newest token where it stood before."""
    at = next((i for i in range(len(text) - 2, -1, -1) if text[i] == text[-1]), None)
    return [] if at is None else text[at + 1 : at + 1 + count]


def explained(generate: Generate, case: Case) -> Explanation | None:
    torch.set_num_threads(1)
    done = run(generate, case)
    found = judge(done).explanation
    return found and second_opinion(generate, done, found, variants=variants(case))


def right(text: list[int], pad: int) -> int:
    return text[-1]


def falsy(text: list[int], pad: int) -> int:
    return text[-1] or text[-2]


def before(text: list[int], pad: int) -> int:
    return text[-2]


ZERO = Case(prompts=((1, 64),), max_new_tokens=5, num_draft_tokens=2, pad_token_id=127)  # new token 1 is id 0


@pytest.mark.parametrize("drafting", ["lookup", "model", "none"])
def test_the_token_before_a_falsy_id_is_fed_in_its_place(drafting: str) -> None:
    assert run(engine(right), ZERO).outputs == ((9, 0, 119, 75, 98),)
    assert explained(engine(right, drafting), ZERO) is None
    found = explained(engine(falsy, drafting), ZERO)
    assert found is not None
    assert found.fingerprint == "bookkeeping/wrong-token-fed"
    assert (found.facts["unfed"], found.facts["also"]) == (0, "fed-before answer-to-it")
    at = found.token_index or 0
    text = render(found, width=400)
    assert f"New token {at - 1}, token 0, was not fed up to call {found.facts['call']}." in text
    assert f"feeds token {found.facts['fed']}, the token before it, in its place" in text


@pytest.mark.parametrize("drafting", ["lookup", "model"])
@pytest.mark.parametrize(
    ("newest", "said"),
    [(before, "fed-before"), (lambda text, pad: pad, "fed-pad"), (lambda text, pad: text[0], "fed-other")],
)
def test_what_is_fed_in_the_place_of_the_newest_token(newest: Newest, said: str, drafting: str) -> None:
    case = Case(prompts=((10, 11, 12), (20, 21)), max_new_tokens=5, num_draft_tokens=2, pad_token_id=3)
    found = explained(engine(newest, drafting, fed_prompt=right), case)
    assert found is not None
    assert (found.fingerprint, found.facts.get("also")) == ("bookkeeping/wrong-token-fed", f"{said} answer-to-it")
    assert found.permuted[0] > 3


def test_the_last_token_of_a_prompt_is_not_fed() -> None:
    case = Case(prompts=((10, 11, 12),), max_new_tokens=4, num_draft_tokens=2, pad_token_id=3)
    found = explained(engine(right, fed_prompt=lambda text, pad: pad), case)
    assert found is not None
    assert found.fingerprint == "bookkeeping/wrong-token-fed"
    assert "The last token of the prompt, token 12, was not fed up to call 1." in render(found, width=400)
