"""The evidence of the gate in simulation: right servers stay far from 10^6 whatever the law of gaps."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch

from eqcheck.gate.bets import Lengths, SampledRows
from eqcheck.gate.compared_rows import Completed, Row, Scored, Wanted
from eqcheck.gate.comparison import Gate, Settings
from eqcheck.transparent.truth.rounding_evidence import CROSSES, Exceedances, OddOne, step, together

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
            bets[name].add_requests(zip(gaps, zip(noise[::2], noise[1::2], strict=True), strict=True))
            bets[name].compare_with(noise)
            bets[name].add(gaps)
        greatest = max(greatest, together([bet.log_evidence for bet in bets.values()]))
    return greatest


@pytest.mark.parametrize(("louder", "spread"), [(1.0, 0.0), (2.0, 0.0), (1.0, 0.7)])  # the factor of two is the room
@pytest.mark.parametrize("law", [normal, heavy, sparse], ids=lambda law: str(law.__name__))
def test_right_servers_stay_far_below(law: Law, louder: float, spread: float) -> None:
    rng = random.Random(law.__name__)
    worst = max(evidence(rng, law, lambda its: louder * law(its), spread) for _ in range(30))
    assert worst < math.log(CROSSES) / 2


@pytest.mark.parametrize("share", [0.4, 0.2])
def test_a_fault_in_some_rows_crosses(share: float) -> None:
    rng = random.Random(0)
    for _ in range(30):
        assert evidence(rng, normal, lambda its: 3.0 if its.random() < share else normal(its)) >= math.log(CROSSES)


def test_the_bet_on_the_largest_of_a_request_has_a_mean_of_one_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the room, and with rows that are alike within a request alone."""
    monkeypatch.setattr("eqcheck.transparent.truth.rounding_evidence.ROOM", 1.0)
    ends = []
    for seed in range(2000):
        rng, bet = random.Random(seed), Exceedances([0.5])
        size = [math.exp(rng.gauss(0, 1)) for _ in range(12)]
        bet.add_requests((rng.random() * its, [rng.random() * its, rng.random() * its]) for its in size)
        ends.append(math.exp(bet.largest.log_evidence))
    assert sum(ends) / len(ends) < 1.25


@pytest.mark.parametrize("others", [1, 2])
@pytest.mark.parametrize("room", [1.0, 2.0])
def test_the_bet_on_the_odd_one_has_a_mean_of_one_at_most(others: int, room: float) -> None:
    """Summed over all ways in which eight requests of a right server may go."""
    mean, share = 0.0, room / (room + others)
    for ways in itertools.product((True, False), repeat=8):
        bet = OddOne(room)
        for won in ways:
            bet.add(won, others)
        mean += math.exp(bet.log_evidence) * share ** sum(ways) * (1 - share) ** (8 - sum(ways))
    assert mean == pytest.approx(1.0)


def test_rows_that_end_at_random_are_no_evidence_and_shorter_ones_are() -> None:
    def ended(rng: random.Random, lost: int, request: int) -> Row:
        tokens = tuple(range(rng.randint(5, 12) - lost))
        return Row(request, Wanted((1,), 12), Completed(tokens, "stop", (1,)), (), 4, 0)

    for lost in (0, 6):
        rng, lengths = random.Random(lost), Lengths()
        for request in range(200):
            three = [ended(rng, lost * (not place), request) for place in range(3)]
            lengths.add(three[0], three[1:])
        assert lengths.crossed == (["shortest"] if lost else [])
    lengths = Lengths()
    different = [Row(0, Wanted((1,), 12), Completed((at,) * (3 + at), "stop", (1,)), (), 4, 0) for at in range(3)]
    lengths.add(different[0], different[1:])
    assert not lengths.bets["shortest"].counted


@pytest.mark.rest
def test_a_gate_whose_time_was_over_is_not_equivalent_with_some_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(Any, Any, [], Settings())  # type: ignore[arg-type]
    for evidence, out_of_time, doubtful in (
        (5.0, False, True),
        (1.0, False, False),
        (1.0, True, True),
        (-1.0, True, False),
    ):
        monkeypatch.setattr(Gate, "log_evidence", evidence)
        gate.out_of_time = out_of_time
        assert gate.doubtful == doubtful
        assert gate.verdict != "equivalent"
        assert not doubtful or gate.lacking >= 0


def row(rng: np.random.Generator, kind: str, noise: float = 0.03) -> Row:
    """A row of 24 tokens at a temperature of 0.8, and its scores with the noise of rounding."""
    places: tuple[list[Scored], list[Scored]] = ([], [])
    for _ in range(24):
        scores, other = 2 * rng.standard_normal(30), rng.standard_normal(30)
        p, q = ((logits / 0.8).astype(float) for logits in (scores, scores + other))
        p, q = (np.exp(each) / np.exp(each).sum() for each in (p, q))
        law = {"wrong-law": np.minimum(p, q) + (1 - np.minimum(p, q).sum()) * p, "warm": p ** (1 / 1.2)}.get(kind, p)
        token = int(rng.choice(30, p=law / law.sum()))
        for seen, logits in zip(places, (scores, scores + other + 0.5 * rng.standard_normal(30)), strict=True):
            told = logits + noise * rng.standard_normal(30)
            told = told - np.log(np.exp(told).sum())
            kept = {int(one): float(told[one]) for one in (token, *np.argsort(-told)[:20])}
            seen.append(Scored(token, kept[token], max(kept, key=lambda one, its=kept: its[one]), kept))  # type: ignore[misc]
    tokens = tuple(place.token for place in places[0])
    asked, answer = Wanted((1,), 24, 0.8), Completed(tokens, "length", (1,))
    return Row(0, asked, answer, tuple(places[0]), 4, 0, True, tuple(places[1]))


def sampled(kind: str, rows: int, seed: int = 0, **options: Any) -> SampledRows:
    rng, made = np.random.default_rng(seed), SampledRows()
    made.begin((1, 4))
    for _ in range(rows):
        made.add(row(rng, kind, **options), [row(rng, "right", **options) for _ in range(2)])
    return made


@pytest.mark.parametrize("kind", ["wrong-law", "warm"])
@pytest.mark.tiers(quick=0, rest=2)
def test_a_wrong_law_of_sampled_rows_crosses_and_a_right_one_does_not(kind: str) -> None:
    """Under noise that hides both from bets on the referee's law alone."""
    assert sampled(kind, 120).log_evidence > math.log(CROSSES)
    assert sampled("right", 20).log_evidence < 3


def test_the_evidence_of_right_sampled_rows_has_a_mean_of_one_at_most() -> None:
    """Also where the scores are worth nothing: rows of control and speculative server are exchangeable."""
    ends = [math.exp(sampled("right", 3, seed, noise=2.0).log_evidence) for seed in range(12)]
    assert sum(ends) / len(ends) < 1.5


def test_the_step_is_that_of_great_logits() -> None:
    """In bfloat16 a number of 4 to 8 is rounded in steps of 1/32, one below 1 in finer ones."""
    logits = torch.randn(200, 20, generator=torch.Generator().manual_seed(0)) * 2.5
    for dtype, least, most in ((torch.bfloat16, 2**-7, 2**-5), (torch.float16, 2**-10, 2**-8), (torch.float32, 0, 0)):
        laws = logits.to(dtype).float().log_softmax(-1).topk(2).values
        assert least <= step((laws[:, 0] - laws[:, 1]).tolist()) <= most
