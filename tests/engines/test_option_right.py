"""Right engines with all options are right, and a slip in one of them is seen; 20,000 cases by the command."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import option_right
import pytest
from option_right import BUILDS, CLAIMS, Going, Rounds, decoded

from eqcheck.contract.decoders import RowOptions
from eqcheck.engines.checkpoints.row_judge import Judge
from eqcheck.engines.drawing import EngineCases

CASES = 24


def failing(engine: Rounds) -> list[str]:
    """How the first cases fail."""
    judge, drawn = Judge("float64"), EngineCases(3, CLAIMS, kinds=("full",))
    outcomes = [decoded(engine, judge, drawn.case(number)) for number in range(CASES)]
    return [outcome.symptom for outcome in outcomes if outcome.failed]


@pytest.mark.parametrize("build", BUILDS.values())
@pytest.mark.rest
def test_a_right_engine_with_all_options_is_right(build: type[Rounds]) -> None:
    assert failing(build()) == []


def test_options_that_are_applied_otherwise_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right: Callable[[RowOptions, Sequence[int], Sequence[int]], set[int]] = option_right.forbidden
    monkeypatch.setattr(option_right, "forbidden", lambda options, text, new: right(options, text, text))
    assert failing(Rounds())


def test_a_row_that_goes_on_for_a_token_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(Going):
        def take(self, token: int) -> None:
            ended = bool(self.stop)
            super().take(token)
            self.reason = self.reason if ended or self.reason != "stop" or not self.stop else ""

    monkeypatch.setattr(option_right, "Going", Late)
    assert failing(Rounds())
