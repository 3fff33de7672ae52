"""What each row had in each target call: in whichever rows of the call it was fed, padded or packed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from eqcheck.attribution.parts import Part, parts
from eqcheck.case.record import Case
from eqcheck.catalogue import BUILDS
from eqcheck.contract.decoder import Request
from eqcheck.decoding.harness import run, truth_of
from eqcheck.decoding.run import Run

CASE = Case(
    prompts=((5, 7, 11), (9,), (40, 41)), max_new_tokens=6, num_draft_tokens=3, accepts=((3, 1), (0, 2, 1), (1, 3))
)
# By row, the draft tokens accepted and proposed in each round; the last of a row has little room.
ROUNDS = {0: [(3, 3), (1, 1)], 1: [(0, 3), (2, 3), (1, 1)], 2: [(1, 3), (3, 3)]}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def decoded(build: str, case: Case = CASE) -> Run:
    return run(BUILDS[build].decoder(build), case)


def by_row(found: list[Part]) -> dict[int, list[tuple[int, int]]]:
    return {
        request: [(part.accepted, part.proposed) for part in found if part.request == request]
        for request in sorted({part.request for part in found})
    }


# `Prefixed` feeds prompts by themselves, to share their blocks.
@pytest.mark.parametrize(
    "build",
    sorted({name for name in BUILDS if "prefixed" not in name} - {"one_row", "rolled_back", "forked", "forked_rows"}),
)
def test_rounds_are_the_same_in_every_build(build: str) -> None:
    """Left and right padded, packed into one row, as rows of their own: a row has the same rounds."""
    assert by_row(list(parts(decoded(build)))) == ROUNDS


def test_a_row_told_more_than_it_keeps() -> None:
    """`RolledBack` takes answers back; draft tokens count from what the target has told, so fewer are proposed."""
    assert by_row(list(parts(decoded("rolled_back"))))[0][:2] == [(3, 3), (0, 0)]


def test_pieces_of_a_prompt_propose_nothing() -> None:
    case = Case(**{**vars(CASE), "cache_state": "chunked", "prefill_chunk": 1})
    found = [part for part in parts(decoded("per_row", case)) if part.last + 1 < len(case.prompts[part.request])]
    assert len(found) == 3
    assert not any(part.accepted or part.proposed for part in found)


def test_equal_prompts_have_rounds_each() -> None:
    case = Case(prompts=((5, 7), (5, 7), (5, 7, 3)), max_new_tokens=6, num_draft_tokens=2, agreement=1.0)
    for build in ("realigned", "per_row", "continuous", "packed"):
        counts = Counter(part.request for part in parts(decoded(build, case)))
        assert counts == {0: 2, 1: 2, 2: 2}, build


@pytest.mark.parametrize("fed", [0, 97])
def test_pads_that_fill_up_a_row_are_no_draft_tokens(fed: int) -> None:
    """Only behind the end of another row's tokens; what stands in the last column of all rows was proposed."""
    case = Case(prompts=((5, 7, 11), (9,)), max_new_tokens=4, num_draft_tokens=2, pad_token_id=0)
    truth = truth_of(case).rows

    def generate(target: Any, draft: Any, request: Request) -> list[list[int]]:
        ids = torch.tensor([[5, 7, 11, 90, fed], [9, 91, 92, 0, 0]])
        target(input_ids=ids, attention_mask=torch.tensor([[1] * 5, [1, 1, 1, 0, 0]]))
        return [list(row) for row in truth]

    long, short = parts(run(generate, case))
    assert (long.refused, short.refused) == ((90, fed), (91, 92))
