"""The law of a row's next token, held against transformers' own processors; and what moves its cuts."""

from __future__ import annotations

import random
from functools import partial

import pytest
import torch
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    NoRepeatNGramLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from eqcheck.contract.decoders import RowOptions
from eqcheck.core.law import law, penalised


def options(draw: random.Random, vocabulary: int) -> RowOptions:
    return RowOptions(
        4,
        temperature=draw.choice([0.3, 0.7, 1.0, 2.0]),
        top_k=draw.choice([0, 1, 3, vocabulary, vocabulary + 5]),
        top_p=draw.choice([1.0, 0.9, 0.5, 0.05]),
        min_p=draw.choice([0.0, 0.05, 0.5, 1.0]),
    )


def by_transformers(scores: torch.Tensor, row: RowOptions) -> torch.Tensor:
    if row.temperature != 1:
        scores = TemperatureLogitsWarper(row.temperature)(None, scores)
    if row.top_k:
        scores = TopKLogitsWarper(row.top_k)(None, scores)
    if row.top_p < 1:
        scores = TopPLogitsWarper(row.top_p)(None, scores)
    if row.min_p:
        scores = MinPLogitsWarper(row.min_p)(None, scores)
    return scores.softmax(-1)


def is_that_of_transformers(seed: int) -> bool:
    draw = random.Random(seed)
    vocabulary = draw.choice([4, 16, 128])
    scores = torch.randn(3, vocabulary, generator=torch.Generator().manual_seed(seed)).double() * draw.choice([0.3, 4])
    rows = [options(draw, vocabulary) for _ in range(3)]
    alone = torch.cat([by_transformers(scores[i : i + 1], row) for i, row in enumerate(rows)])
    return torch.equal(law(scores, rows).probabilities, alone)


def test_the_law_is_that_of_transformers_bit_by_bit() -> None:
    assert [seed for seed in range(200) if not is_that_of_transformers(seed)] == []


def test_a_law_of_another_order_is_not_that_of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.law", partial(law, order=("top-p", "top-k", "min-p", "temperature")))
    assert len([seed for seed in range(50) if not is_that_of_transformers(seed)]) > 5


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_ngrams_that_may_not_occur_twice_are_those_of_transformers(size: int) -> None:
    draw = random.Random(size)
    for length in range(12):
        prompt, output = draw.choices(range(4), k=draw.randint(1, 5)), draw.choices(range(4), k=length)
        scores = torch.randn(length + 1, 8, dtype=torch.float64)
        ours = penalised(scores, RowOptions(20, no_repeat_ngram_size=size), prompt, output)
        for number, score in enumerate(scores):
            before = torch.tensor([[*prompt, *output[:number]]])
            assert torch.equal(NoRepeatNGramLogitsProcessor(size)(before, score[None])[0], ours[number])


def moves_a_cut(seed: int, share: float) -> bool:
    """Whether scores that change by a share of the margin give another set of tokens."""
    draw = random.Random(seed)
    scores = torch.randn(2, 16, generator=torch.Generator().manual_seed(seed)).double()
    row = options(draw, 16)
    probabilities, margin = law(scores, row)
    least = min(float(margin.min()), 5.0) * share
    shift = (torch.rand(2, 16, generator=torch.Generator().manual_seed(seed)).double() * 2 - 1) * least
    return not torch.equal(law(scores + shift, row).probabilities > 0, probabilities > 0)


def test_a_change_below_the_margin_moves_no_cut() -> None:
    assert [seed for seed in range(200) if moves_a_cut(seed, 0.999)] == []
    assert any(moves_a_cut(seed, 3.0) for seed in range(200))


def test_what_exceeds_a_margin_moves_its_cut() -> None:
    scores = torch.tensor([[2.0, 1.0, 0.5, 0.0]]).double()
    for row in (
        RowOptions(1, temperature=2.0, top_k=2),
        RowOptions(1, temperature=2.0, min_p=0.5),
    ):
        probabilities, margin = law(scores, row)
        shift = torch.where(probabilities > 0, -1.0, 1.0).double() * float(margin) * 1.01
        moved = law(scores + shift, row).probabilities > 0
        assert not torch.equal(moved, probabilities > 0), row


def test_a_temperature_of_zero_is_greedy_among_sampled_rows() -> None:
    scores = torch.tensor([[2.0, 1.0], [2.0, 1.0]]).double()
    probabilities, margin = law(scores, [RowOptions(1), RowOptions(1, temperature=1.0)])
    assert probabilities[0].tolist() == [1.0, 0.0]
    assert 0.73 < float(probabilities[1, 0]) < 0.74
    assert margin.tolist() == [float("inf")] * 2


def test_the_order_of_options_makes_another_law() -> None:
    scores = torch.randn(1, 32, generator=torch.Generator().manual_seed(1)).double() * 2
    row = RowOptions(1, temperature=2.0, top_p=0.6)
    first, last = (
        law(scores, row, order).probabilities for order in (("temperature", "top-p"), ("top-p", "temperature"))
    )
    assert float((first - last).abs().sum()) > 0.05


def test_greedy_is_the_first_of_equal_scores_whatever_is_cut() -> None:
    scores = torch.tensor([[1.0, 2.0, 2.0]]).double()
    for row in (RowOptions(1), RowOptions(1, top_p=0.1), RowOptions(1, top_k=1, min_p=1.0)):
        assert law(scores, row).probabilities.tolist() == [[0.0, 1.0, 0.0]]
