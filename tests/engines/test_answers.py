"""Several answers to one request: drawn, kept together, and held against the target one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from option_faults import CLAIMS, Rounds
from test_sampled_checkpoints import audited, right

from eqcheck.contract.decoders import Decoder, Request, RowOptions
from eqcheck.contract.errors import UsageError
from eqcheck.contract.requirements import unmet
from eqcheck.core.case.engine import EngineCase, EngineRow, answered_together
from eqcheck.engines.checkpoints.row_judge import Judge
from eqcheck.engines.drawing import EngineCases, alike
from eqcheck.engines.investigate import candidates, needs
from eqcheck.sampling.drawing import SampledEngineCases

DRAWN = EngineCases(2, (*CLAIMS, "n", "arrivals"), kinds=("full",))
Answers = Callable[[list[list[int]], Request], list[list[int]]]


def several(case: EngineCase) -> list[EngineRow]:
    """The rows of requests with several answers."""
    return [row for row in case.rows if row.options.n > 1]


def with_answers(count: int) -> list[EngineCase]:
    return [case for case in map(DRAWN.case, range(count)) if several(case)]


def test_a_request_with_several_answers_is_drawn_whole() -> None:
    cases = with_answers(100)
    assert len(cases) > 20
    for case in cases:
        rows = several(case)
        assert len(rows) == rows[0].options.n
        assert len(set(rows)) == 1
        assert "n" in needs(case)
        assert all(len(set(several(alike(case, number)))) <= 1 for number in range(4))


def test_no_greedy_request_has_several_answers_where_the_engine_refuses() -> None:
    drawn = replace(DRAWN, requires=("sampled-n",))
    assert not any(several(drawn.case(number)) for number in range(60))
    greedy = Request([[1]], 4, 1, (), 0, "left", rows=(RowOptions(4, n=2),))
    assert unmet(greedy, ("sampled-n",)) == ["sampled-n"]
    assert not unmet(replace(greedy, rows=(RowOptions(4, n=2, temperature=0.5),)), ("sampled-n",))


def test_a_row_that_is_left_out_or_changed_leaves_fewer_answers() -> None:
    row = EngineRow((1, 2), RowOptions(4, n=3))
    case = EngineCase((row, row, row, EngineRow((1, 2), RowOptions(5))))
    assert [one.options.n for one in case.rows] == [3, 3, 3, 1]
    assert [one.options.n for one in case.of([0, 2, 3]).rows] == [2, 2, 1]
    assert [one.options.n for one in case.of([0, 3, 1]).rows] == [1, 1, 1]
    assert [one.options.n for one in answered_together([row] * 5)] == [3, 3, 3, 2, 2]
    assert EngineCase.from_dict(case.to_dict()) == case
    assert any(len(one.rows) == 2 and one.rows[0].options.n == 2 for one in candidates(case))
    with pytest.raises(UsageError, match="n: "):
        RowOptions(4, n=0)


def as_first(outputs: list[list[int]], request: Request) -> list[list[int]]:
    """Each answer is that before it."""
    return [outputs[row - (row > 0 and request.rows[row].n > 1)] for row in range(len(outputs))]


def as_long_as_first(outputs: list[list[int]], request: Request) -> list[list[int]]:
    """An answer behind another begins with its last token."""
    behind = [row and options.n > 1 and options == request.rows[row - 1] for row, options in enumerate(request.rows)]
    return [[*outputs[row - 1][-1:], *tokens[:-1]] if behind[row] else tokens for row, tokens in enumerate(outputs)]


@pytest.mark.parametrize("wrong", [None, as_long_as_first])
def test_an_answer_that_is_not_the_targets_is_a_violation(wrong: Answers | None) -> None:
    torch.set_num_threads(1)
    judge, found = Judge("float64"), list[bool]()
    for case in with_answers(30):
        request = case.request()
        outputs = Rounds()("", "", request)
        told = judge.rows(case, wrong(outputs, request) if wrong else outputs)
        found.append(any(row.first is not None for row in told))
    assert any(found) == bool(wrong)


def sampled(change: Answers | None) -> Decoder:
    """A right sampler whose answers to one request are changed."""
    decoder: Decoder = right("rejection")

    def decode(target: Any, draft: Any, request: Request) -> list[list[int]]:
        outputs = decoder.function(target, draft, request)
        return change(outputs, request) if change else outputs

    return replace(decoder, function=decode, capabilities=(*decoder.capabilities, "n"))


def test_sampled_answers_are_drawn_apart() -> None:
    cases = list(map(SampledEngineCases(1, ("temperature", "n")).case, range(40)))
    together = [case for case in cases if several(case)]
    assert len(together) > 5
    assert all(case.twin(1) == 0 for case in together)


@pytest.mark.parametrize("change", [None, as_first])
@pytest.mark.rest
def test_sampled_answers_that_are_the_same_are_a_violation(change: Answers | None) -> None:
    _, result = audited(sampled(change), 48)
    assert [finding.fingerprint for finding in result.violations] == ["sampling/shared-noise"] * bool(change)
    assert result.coverage["answers"] > 3
