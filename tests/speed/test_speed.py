"""What a case costs, on one thread: ``make speed``.

The share of a case that oracle and trace take is ``1 - decode_alone / case``, from one run.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from eqcheck.contract import registry
from eqcheck.contract.decoders import CLAIMED, PADDING_SIDES
from eqcheck.core.case.record import Case
from eqcheck.transparent.coverage import try_case
from eqcheck.transparent.decoding import models, truth_of
from eqcheck.transparent.search import CHUNK, Source
from eqcheck.transparent.truth import continuation as alone

ROUNDS = 10
EQSPEC = registry.load("eqspec").function


@pytest.fixture(scope="module")
def drawn() -> list[Case]:
    torch.set_num_threads(1)
    return Source(0, CLAIMED, PADDING_SIDES).chunk(0)


def _measure(benchmark: Any, work: Any) -> None:
    def forget() -> None:
        alone._CONTINUED.clear()

    benchmark.pedantic(work, setup=forget, rounds=ROUNDS, warmup_rounds=1)
    if benchmark.stats:
        benchmark.extra_info["cases_per_second"] = round(CHUNK / benchmark.stats.stats.median, 1)


def test_draw_and_case(benchmark: Any) -> None:
    """All an audit does per case: draw, truth, decode, trace, verdict, coverage."""
    _measure(benchmark, lambda: [try_case(EQSPEC, case, None) for case in Source(0, CLAIMED, PADDING_SIDES).chunk(0)])


@pytest.mark.long
def test_case(benchmark: Any, drawn: list[Case]) -> None:
    """Truth, decode, trace, verdict and coverage of drawn cases."""
    _measure(benchmark, lambda: [try_case(EQSPEC, case, None) for case in drawn])


@pytest.mark.rest
def test_decode_alone(benchmark: Any, drawn: list[Case]) -> None:
    """The decoder's own time: no trace, no verdict, truth known beforehand."""
    truths = [truth_of(case) for case in drawn]

    def decode() -> None:
        for case, truth in zip(drawn, truths, strict=True):
            target, draft = models(case, truth)
            with torch.no_grad():
                EQSPEC(target, draft, case.request())

    _measure(benchmark, decode)
