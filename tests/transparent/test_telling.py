"""A wrong log-probability of a right token: whose it is, and silence where nothing shows that."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from test_choices import TWO, Tell, engine

from eqcheck.core.case.record import Case
from eqcheck.core.explanation.records import Explanation
from eqcheck.core.explanation.text import render
from eqcheck.transparent.attribution.witnesses import second_opinion, variants
from eqcheck.transparent.decoding import run
from eqcheck.transparent.oracle import judge

ASKED = replace(TWO, logprobs=True)


def explained(tell: Tell, case: Case = ASKED) -> Explanation | None:
    torch.set_num_threads(1)
    generate = engine(lambda logits: logits.argmax(-1), tell)
    done = run(generate, case)
    found = judge(done).explanation
    return found and second_opinion(generate, done, found, variants=variants(case))


def right(told: torch.Tensor, laws: torch.Tensor, row: int, count: int) -> list[float]:
    return [float(one) for one in told[row, :count]]


def of_the_other_row(told: torch.Tensor, laws: torch.Tensor, row: int, count: int) -> list[float]:
    return [float(one) for one in told[row - 1, :count]]


def of_the_last_column(told: torch.Tensor, laws: torch.Tensor, row: int, count: int) -> list[float]:
    return [float(told[row, -1])] * count


def under_the_first_column(told: torch.Tensor, laws: torch.Tensor, row: int, count: int) -> list[float]:
    return [float(laws[row, 0, laws[row, column].argmax()]) for column in range(count)]


def of_nothing(told: torch.Tensor, laws: torch.Tensor, row: int, count: int) -> list[float]:
    return [float(one) * 1.01 for one in told[row, :count]]


@pytest.mark.parametrize(
    ("tell", "said"),
    [
        (of_the_other_row, "that of new token 1 of request 1, which the same call predicted (call 7, column 0 of"),
        (of_the_last_column, "that of new token 4 of request 0, which the same call predicted (call 7, column 3 of"),
        (under_the_first_column, "that of the same token under the scores in column 0 of batch row 0 of the same call"),
        (of_nothing, "was returned."),
    ],
)
def test_whose_log_probability_was_returned(tell: Tell, said: str) -> None:
    assert explained(right) is None
    found = explained(tell)
    assert found is not None
    assert found.fingerprint == "bookkeeping/logprobs"
    text = " ".join(render(found).split())
    assert said in text
    assert "2 requests, K = 3 request 0 prompt 10 options correct drafts per round [3 2 3] got 106 104" in text
    assert f"^ new token {found.token_index}" in text


def test_a_value_that_agrees_by_accident_belongs_to_nobody() -> None:
    """Log-probabilities of a round are few, so a wrong one is often that of some other column, too."""

    def of_a_fixed_value(told: torch.Tensor, laws: torch.Tensor, row: int, count: int) -> list[float]:
        return [-1.6272098] * count

    for shift in range(12):
        case = replace(ASKED, prompts=((10 + shift,), (40 + shift, 21)))
        found = explained(of_a_fixed_value, case)
        assert found is not None
        assert "that of" not in found.detail
