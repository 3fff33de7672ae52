"""The samplers of the catalogue: right ones have exactly the target's law, and every planted fault has another."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import Any

import pytest
import torch

from eqcheck.catalogue.builds import BUILDS
from eqcheck.catalogue.samplers import RIGHT, SAMPLED_BUILDS, SAMPLED_FAULTS, SampledFault
from eqcheck.catalogue.samplers.build import engine_of
from eqcheck.catalogue.samplers.chance import Race
from eqcheck.catalogue.samplers.engine import Sampler
from eqcheck.catalogue.samplers.exact import Remembering, distance, emitted_laws, second_winner
from eqcheck.catalogue.samplers.fault import SHOWS
from eqcheck.contract import Request, RowOptions
from eqcheck.draft import ScriptedDraft
from eqcheck.hashlm import HashConfig, HashLM

EXACT = 1e-12
TWINS = {"temperature": 1.0, "top_k": 3}


@lru_cache(maxsize=4)
def models(vocabulary: int, scale: float) -> tuple[Any, Any]:
    target = HashLM(HashConfig(vocabulary, spread=(scale, 0, 0.0))).eval()
    draft = ScriptedDraft(HashConfig(vocabulary, role=2, spread=(scale, 0, 0.5))).eval()
    return (Remembering(target), Remembering(draft)) if vocabulary == 4 else (target, draft)


def asked(*rows: dict[str, Any], k: int, limit: int, eos: tuple[int, ...] = (), twins: bool = False) -> Request:
    prompts = [[1, 2] if twins else [[3], [1, 2], [2, 2, 1]][i % 3] for i in range(len(rows))]
    return Request(prompts, limit, k, eos, 0, "left", rows=tuple(RowOptions(limit, eos, **row) for row in rows))


# Small enough to be enumerated; the row that is judged comes last, and those beside it leave nothing to chance.
EXAMPLES = {
    "alone": asked({"temperature": 1.4}, k=1, limit=2),
    "chain": asked({"temperature": 0.7, "top_k": 3}, k=2, limit=3),
    "second": asked({"temperature": 1.0, "top_k": 1}, {"temperature": 1.4, "top_p": 0.8}, k=1, limit=2),
    "third": asked({"temperature": 0.0}, {"temperature": 0.7, "min_p": 0.3}, k=1, limit=3),
    "left alone": asked({"temperature": 0.0}, {"temperature": 1.4}, k=1, limit=3, eos=(0,)),
}
PAIRS = {
    "twins": asked(TWINS, TWINS, k=1, limit=2, twins=True),
    "twins with seeds": asked({**TWINS, "seed": 5}, {**TWINS, "seed": 6}, k=1, limit=2, twins=True),
}
SLOW = {("sample-match", "chain"), ("position-keyed", "chain"), ("two-candidates", "chain")}


def off(scheme: type[Sampler], request: Request, rows: tuple[int, ...] = (-1,)) -> float:
    count = len(request.rows)
    return distance(scheme, *models(4, 0.5), request, [row % count for row in rows])


@pytest.mark.parametrize("name", [name for name, scheme in RIGHT.items() if scheme.lossless is True])
def test_right_samplers_have_the_law_of_the_target(name: str) -> None:
    for example, request in EXAMPLES.items():
        if (name, example) in SLOW:
            request = asked({"temperature": 0.7, "top_k": 2}, k=2, limit=3)
        assert off(RIGHT[name], request) < EXACT, example
    for example, request in PAIRS.items():
        assert off(RIGHT[name], request, (0, 1)) < EXACT, example


def test_a_lossy_sampler_says_so_and_has_another_law() -> None:
    lossy = [scheme for scheme in RIGHT.values() if scheme.lossless is not True]
    assert lossy
    for scheme in lossy:
        assert off(scheme, EXAMPLES["chain"]) > 0.01


@pytest.mark.parametrize("fault", [one for one in SAMPLED_FAULTS if one.shows == "law"], ids=lambda one: one.id)
def test_a_planted_fault_has_another_law(fault: SampledFault) -> None:
    assert any(off(fault.scheme, request) > 1e-4 for request in EXAMPLES.values())


@pytest.mark.parametrize("fault", [one for one in SAMPLED_FAULTS if one.shows == "rows"], ids=lambda one: one.id)
def test_rows_that_depend_on_each_other_have_each_the_right_law(fault: SampledFault) -> None:
    for request in PAIRS.values():
        assert off(fault.scheme, request, (0,)) < EXACT
        assert off(fault.scheme, request, (1,)) < EXACT
    assert any(off(fault.scheme, request, (0, 1)) > 1e-3 for request in PAIRS.values())


@pytest.mark.parametrize("fault", [one for one in SAMPLED_FAULTS if one.shows == "seeds"], ids=lambda one: one.id)
def test_faults_of_seeds_leave_the_law_as_it_is(fault: SampledFault) -> None:
    assert max(off(fault.scheme, request) for request in (EXAMPLES["alone"], EXAMPLES["second"])) < EXACT


def test_the_second_winner_of_a_race_is_that_of_many_races() -> None:
    q, r = torch.tensor([0.5, 0.2, 0.3, 0.0]), torch.tensor([0.1, 0.6, 0.0, 0.3])
    generator = torch.Generator().manual_seed(1)
    seen: Counter[int] = Counter()
    for _ in range(20_000):
        race = Race(torch.empty(4).exponential_(generator=generator))
        if race.winner(q) == 0:
            seen[race.winner(r)] += 1
    law = second_winner(q.tolist(), 0, r.tolist())
    assert abs(sum(law) - 1) < EXACT
    assert all(abs(seen[token] / seen.total() - law[token]) < 0.02 for token in range(4))


def test_every_branch_is_counted() -> None:
    laws = emitted_laws(Sampler, *models(4, 0.5), EXAMPLES["chain"])
    assert abs(sum(laws.values()) - 1) < EXACT
    assert all(len(tokens) == 3 for (tokens,) in laws)


MIXED = asked(
    {"temperature": 1.0, "seed": 7},
    {},
    {"temperature": 0.7, "top_k": 8, "top_p": 0.9, "seed": 8},
    {"temperature": 1.4, "min_p": 0.05},
    k=3,
    limit=12,
)


@pytest.mark.parametrize("build", SAMPLED_BUILDS)
@pytest.mark.parametrize("name", RIGHT)
def test_greedy_rows_beside_sampled_ones_are_those_of_the_target(name: str, build: str) -> None:
    target, draft = models(64, 0.25)
    expected = BUILDS["one_row"].engine(target, draft, MIXED).decode()[1]
    rows = engine_of(RIGHT[name], build)(target, draft, MIXED).decode()
    assert rows[1] == expected
    assert [len(row) for row in rows] == [12] * 4


@pytest.mark.parametrize("name", RIGHT)
def test_rows_with_a_seed_keep_their_promise_in_every_build(name: str) -> None:
    target, draft = models(64, 0.25)
    answers = [engine_of(RIGHT[name], build)(target, draft, MIXED).decode() for build in SAMPLED_BUILDS]
    assert answers[0][0] == answers[1][0] == answers[2][0]
    assert answers[0][2] == answers[1][2] == answers[2][2]
    alone = Request(MIXED.prompts[2:3], 12, 3, (), 0, "left", rows=MIXED.rows[2:3])
    assert engine_of(RIGHT[name], "realigned")(target, draft, alone).decode() == [answers[0][2]]
    if RIGHT[name].seeds == "speculation":
        alone.num_draft_tokens = 0
        assert engine_of(RIGHT[name], "per_row")(target, draft, alone).decode() == [answers[0][2]]


def test_ids_are_unique_and_every_third_is_held_back() -> None:
    assert len({fault.number for fault in SAMPLED_FAULTS}) == len(SAMPLED_FAULTS) >= 25
    held_back = [fault.number for fault in SAMPLED_FAULTS if fault.held_back]
    assert all(number % 3 == 0 for number in held_back)
    assert 0.25 < len(held_back) / len(SAMPLED_FAULTS) < 0.4
    assert all(fault.shows in SHOWS and fault.mechanism for fault in SAMPLED_FAULTS)
