"""What each row had in each target call: in whichever rows of the call it was fed, padded or packed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
import torch

from eqcheck.catalogue import BUILDS
from eqcheck.contract.decoders import Request
from eqcheck.core.case.record import Case
from eqcheck.transparent.decoding import Run, run, truth_of
from eqcheck.transparent.rounds import Round

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


def by_row(found: Iterable[Round]) -> dict[int, list[tuple[int, int]]]:
    return {
        row: [(own.accepted, own.proposed) for own in found if own.row == row]
        for row in sorted({own.row for own in found})
    }


# `Prefixed` and `Rerun` feed prompts by themselves, and `Windowed` makes a mask for each type of layer.
OTHERS = {"one_row", "rolled_back", "forked", "forked_rows", "rerun", "checkpointed", "windowed"}


@pytest.mark.parametrize("build", sorted({name for name in BUILDS if "prefixed" not in name} - OTHERS))
def test_rounds_are_the_same_in_every_build(build: str) -> None:
    """Left and right padded, packed into one row, as rows of their own: a row has the same rounds."""
    assert by_row(decoded(build).rounds.every) == ROUNDS


def test_a_row_told_more_than_it_keeps() -> None:
    """`RolledBack` takes answers back; draft tokens count from what the target has told, so fewer are proposed."""
    assert by_row(decoded("rolled_back").rounds.every)[0][:2] == [(3, 3), (0, 0)]


def test_pieces_of_a_prompt_propose_nothing() -> None:
    case = Case(**{**vars(CASE), "cache_state": "chunked", "prefill_chunk": 1})
    found = [own for own in decoded("per_row", case).rounds.every if own.in_prompt]
    assert len(found) == 3
    assert not any(own.accepted or own.proposed for own in found)


def test_equal_prompts_have_rounds_each() -> None:
    case = Case(prompts=((5, 7), (5, 7), (5, 7, 3)), max_new_tokens=6, num_draft_tokens=2, agreement=1.0)
    for build in ("realigned", "per_row", "continuous", "packed"):
        counts = Counter(own.row for own in decoded(build, case).rounds.every)
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

    long, short = run(generate, case).rounds.every
    assert (long.refused, short.refused) == ((90, fed), (91, 92))
