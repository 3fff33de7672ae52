"""A wrong token that is a lower choice of the target, or its prediction in another column, is named as that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from eqcheck.contract.completion import Completion
from eqcheck.contract.decoders import Generate
from eqcheck.core.case.record import Case
from eqcheck.core.explanation.records import Explanation
from eqcheck.core.explanation.text import render
from eqcheck.transparent.attribution.reading import Reader
from eqcheck.transparent.attribution.witnesses import choices, second_opinion, variants
from eqcheck.transparent.decoding import run
from eqcheck.transparent.oracle import judge

Pick = Callable[[torch.Tensor], torch.Tensor]  # of logits [rows, block, vocabulary], the choices [rows, block]
TWO = Case(((10,), (20, 21)), 8, 3, ((3, 2, 3), (1, 3, 0)), pad_token_id=127)


Tell = Callable[[torch.Tensor, torch.Tensor, int, int], list[float]]


def engine(pick: Pick, tell: Tell | None = None) -> Generate:
    """A left-padded batch; the target's choice in each column is picked from its logits.

    With ``tell``, log-probabilities are returned: those of so many tokens of a row in a round, out of those of the
    choices ``[rows, block]`` and of the whole vocabulary ``[rows, block, vocabulary]``.
    """

    def generate(target: Any, draft: Any, request: Any) -> Any:
        rows, k, width = len(request.prompts), request.num_draft_tokens, max(map(len, request.prompts))
        seen = torch.zeros(rows, width, dtype=torch.long)
        ids = torch.full((rows, width), request.pad_token_id)
        for row, prompt in enumerate(request.prompts):
            ids[row, width - len(prompt) :] = torch.tensor(prompt)
            seen[row, width - len(prompt) :] = 1
        caches, shown = (DynamicCache(), DynamicCache()), [seen, seen]

        def call(which: int, fed: torch.Tensor, real: torch.Tensor | None = None) -> torch.Tensor:
            before = torch.zeros(rows, dtype=torch.long) if real is not None else shown[which].sum(1)
            own = torch.ones_like(fed) if real is None else real
            shown[which] = own if real is not None else torch.cat([shown[which], own], 1)
            where = (before[:, None] + own.cumsum(1) - 1).clamp(min=0)
            model = (target, draft)[which]
            logits = model(fed, attention_mask=shown[which], position_ids=where, past_key_values=caches[which]).logits
            return torch.as_tensor(logits)

        first = call(0, ids, seen)[:, -1:].double().log_softmax(-1)
        newest = first.argmax(-1)
        told = first.gather(2, newest[..., None])[..., 0].tolist()
        call(1, ids, seen)
        out: list[list[int]] = newest.tolist()
        while min(map(len, out)) < request.max_new_tokens:
            block = newest
            for _ in range(k):
                block = torch.cat([block, call(1, block[:, -1:])[:, -1:].argmax(-1)], 1)
            call(1, block[:, -1:])
            laws = call(0, block).double().log_softmax(-1)
            chosen = pick(laws)
            count = (block[:, 1:] == chosen[:, :-1]).int().cumprod(1).sum(1)
            keep = torch.arange(k + 1) <= count[:, None]
            for which in (0, 1):
                shown[which] = torch.cat([shown[which][:, : -k - 1], keep.long()], 1)
            newest = chosen.gather(1, count[:, None])
            for row, tokens in enumerate(out):
                tokens += chosen[row, : int(count[row]) + 1].tolist()
                if tell:
                    told[row] += tell(laws.gather(2, chosen[..., None])[..., 0], laws, row, int(count[row]) + 1)
        limit = request.max_new_tokens
        if tell is None:
            return [tokens[:limit] for tokens in out]
        return [Completion(tuple(tokens[:limit]), logprobs=own[:limit]) for tokens, own in zip(out, told, strict=True)]

    return generate


def explained(pick: Pick, case: Case) -> Explanation | None:
    torch.set_num_threads(1)
    generate = engine(pick)
    done = run(generate, case)
    found = judge(done).explanation
    return found and second_opinion(generate, done, found, variants=variants(case))


def of_first_column(logits: torch.Tensor) -> torch.Tensor:
    """The i-th best of column 0 in column i, as a kernel gives it whose rows and k are swapped."""
    return logits[:, 0].topk(logits.shape[1]).indices


def second_at_the_end(logits: torch.Tensor) -> torch.Tensor:
    return torch.cat([logits[:, :-1].argmax(-1), logits[:, -1:].topk(2).indices[..., 1]], 1)


def of_next_row(logits: torch.Tensor) -> torch.Tensor:
    """In the last column the second choice of another row's."""
    own = logits.argmax(-1)
    own[:, -1] = logits[:, -1].topk(2).indices[:, 1].roll(1)
    return own


def drawn(logits: torch.Tensor) -> torch.Tensor:
    """In the last column an id that has nothing to do with the target's scores."""
    own = logits.argmax(-1)
    own[:, -1] = (own.sum(1) * 7919 + 13) % 63
    return own


@pytest.mark.parametrize(
    ("pick", "said"),
    [
        (of_first_column, "The returned token is the target's 2nd choice in column 0 of the same call and batch row"),
        (second_at_the_end, "The returned token is the target's 2nd choice there, in column 3 of batch row 0"),
        (of_next_row, "The returned token is the target's 2nd choice in column 3 of batch row 1 of the same call"),
    ],
)
def test_a_lower_choice_is_named(pick: Pick, said: str) -> None:
    assert explained(lambda logits: logits.argmax(-1), TWO) is None
    found = explained(pick, TWO)
    assert found is not None
    assert found.fingerprint == "bookkeeping/wrong-correction"
    assert said in render(found, width=400)


def test_a_match_that_other_ids_do_not_show_is_an_accident() -> None:
    """The drawn id is among the first choices of some column now and then, and never told as one."""
    accidents = 0
    for shift in range(40):
        case = Case(((shift,), (20 + shift, 11)), 8, 3, ((3, 2, 3), (3, 3, 0)), pad_token_id=63, vocab_size=64)
        done = run(engine(drawn), case)
        found = Reader(done).explain()
        if found is None or found.facts.get("statement") != "neither" or not choices(done, found):
            continue
        accidents += 1
        told = explained(drawn, case)
        assert told is not None
        assert "choice" not in render(told)
        if accidents == 3:
            return
    raise AssertionError("no accident was met")
