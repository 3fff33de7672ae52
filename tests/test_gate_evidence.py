"""The evidence of the gate in simulation: right servers stay far from 10^6 whatever the law of gaps."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import TypeAlias

import pytest

from eqcheck.gate.evidence import CROSSES, Exceedances, together

Law: TypeAlias = "Callable[[random.Random], float]"


def normal(rng: random.Random) -> float:
    return 0.02 * math.exp(rng.gauss(0, 1))


def heavy(rng: random.Random) -> float:
    """Gaps without a mean."""
    return 0.01 * (rng.paretovariate(1) - 1)


def sparse(rng: random.Random) -> float:
    """Most rows have no gap."""
    return 0.06 * rng.random() * (rng.random() < 0.05)


def evidence(rng: random.Random, control: Law, speculative: Law, spread: float = 0.0) -> float:
    """The greatest logarithm of a gate's evidence: 16 chunks of 16 rows; ``spread`` is noise that a chunk shares."""
    bets = {name: Exceedances() for name in ("all", "1", "4", "16")}
    greatest = 0.0
    for chunk in range(16):
        shared, other = (math.exp(spread * rng.gauss(0, 1)) for _ in range(2))
        noise, gaps = [shared * control(rng) for _ in range(32)], [other * speculative(rng) for _ in range(16)]
        for name in ("all", ("1", "4", "16")[chunk % 3]):
            bets[name].control = [*bets[name].control, *noise]
            bets[name].add(gaps)
        greatest = max(greatest, together(list(bets.values())))
    return greatest


@pytest.mark.parametrize(("louder", "spread"), [(1.0, 0.0), (2.0, 0.0), (1.0, 0.7)])  # the factor of two is the room
@pytest.mark.parametrize("law", [normal, heavy, sparse], ids=lambda law: str(law.__name__))
def test_right_servers_stay_far_below(law: Law, louder: float, spread: float) -> None:
    rng = random.Random(law.__name__)
    worst = max(evidence(rng, law, lambda its: louder * law(its), spread) for _ in range(30))
    assert worst < math.log(CROSSES) / 2


def test_a_fault_in_two_of_five_rows_crosses() -> None:
    rng = random.Random(0)
    for _ in range(30):
        assert evidence(rng, normal, lambda its: 1.0 if its.random() < 0.4 else normal(its)) >= math.log(CROSSES)
