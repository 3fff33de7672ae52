"""The samplers of the catalogue: right ones have exactly the target's law, and every planted fault has another."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import Any

import pytest
import torch
from enumeration import Outputs, Remembering, distance, emitted_laws, second_winner

from eqcheck.catalogue.engines.builds import BUILDS
from eqcheck.catalogue.samplers import RIGHT, SAMPLED_BUILDS, SAMPLED_FAULTS, SampledFault, samplers
from eqcheck.catalogue.samplers.sampler_engine import Race, Sampler, engine_of
from eqcheck.catalogue.samplers.sampler_fault import SHOWS
from eqcheck.contract.decoders import Request, RowOptions
from eqcheck.transparent.drafting import ScriptedDraft
from eqcheck.transparent.hashlm.model import HashConfig, HashLM

EXACT = 1e-12
TWINS = {"temperature": 1.0, "top_k": 2}
FIRST = 3  # what the greedy row emits first


@lru_cache(maxsize=4)
def models(vocabulary: int, scale: float) -> tuple[Any, Any]:
    target = HashLM(HashConfig(vocabulary, spread=(scale, 0, 0.0))).eval()
    draft = ScriptedDraft(HashConfig(vocabulary, role=2, spread=(scale, 0, 0.5))).eval()
    return (Remembering(target), Remembering(draft)) if vocabulary == 4 else (target, draft)


def asked(*rows: dict[str, Any], k: int, limit: int, eos: tuple[int, ...] = (), twins: bool = False) -> Request:
    prompts = [[1, 2] if twins else [[3], [1, 2], [2, 2, 1]][i % 3] for i in range(len(rows))]
    return Request(prompts, limit, k, eos, 0, "left", rows=tuple(RowOptions(limit, eos, **row) for row in rows))


# Small enough to be enumerated; the row that is judged comes last, and those beside it leave nothing to chance.
REQUESTS = {
    "alone": asked({"temperature": 1.4}, k=1, limit=2),
    "chain": asked({"temperature": 0.7, "top_k": 2}, k=2, limit=3),
    "second": asked({"temperature": 1.0, "top_k": 1}, {"temperature": 1.4, "top_p": 0.8}, k=1, limit=2),
    "third": asked({"temperature": 0.0}, {"temperature": 0.7, "min_p": 0.3}, k=1, limit=3),
    "left alone": asked({"temperature": 0.0}, {"temperature": 1.4, "top_k": 3}, k=1, limit=3, eos=(FIRST,)),
    "twins": asked(TWINS, TWINS, k=1, limit=2, twins=True),
    "twins with seeds": asked({**TWINS, "seed": 5}, {**TWINS, "seed": 6}, k=1, limit=2, twins=True),
}
EXAMPLES, PAIRS = tuple(REQUESTS)[:5], tuple(REQUESTS)[5:]


ENUMERATED: dict[tuple[type[Sampler], str], dict[Outputs, float]] = {}


def emitted(scheme: type[Sampler], example: str) -> dict[Outputs, float]:
    if (scheme, example) not in ENUMERATED:
        ENUMERATED[scheme, example] = emitted_laws(scheme, *models(4, 0.5), REQUESTS[example])
    return ENUMERATED[scheme, example]


def off(scheme: type[Sampler], example: str, rows: tuple[int, ...] = ()) -> float:
    request = REQUESTS[example]
    rows = rows or (len(request.rows) - 1,)
    return distance(emitted(scheme, example), models(4, 0.5)[0], request, rows)


@pytest.mark.parametrize("name", [name for name, scheme in RIGHT.items() if scheme.lossless is True])
@pytest.mark.tiers(quick=2, rest=6)
def test_right_samplers_have_the_law_of_the_target(name: str) -> None:
    for example in EXAMPLES:
        assert off(RIGHT[name], example) < EXACT, example
    for example in PAIRS:
        assert off(RIGHT[name], example, (0, 1)) < EXACT, example


def test_a_lossy_sampler_says_so_and_has_another_law() -> None:
    lossy = [scheme for scheme in RIGHT.values() if scheme.lossless is not True]
    assert lossy
    for scheme in lossy:
        assert off(scheme, "chain") > 0.01


@pytest.mark.parametrize("fault", [one for one in SAMPLED_FAULTS if one.shows == "law"], ids=lambda one: one.id)
@pytest.mark.tiers(quick=19, rest=23)
def test_a_planted_fault_has_another_law(fault: SampledFault) -> None:
    assert any(off(fault.scheme, example) > 1e-4 for example in EXAMPLES)


@pytest.mark.parametrize("fault", [one for one in SAMPLED_FAULTS if one.shows == "rows"], ids=lambda one: one.id)
@pytest.mark.tiers(quick=3, rest=3)
def test_rows_that_depend_on_each_other_have_each_the_right_law(fault: SampledFault) -> None:
    for example in PAIRS:
        assert off(fault.scheme, example, (0,)) < EXACT
        assert off(fault.scheme, example, (1,)) < EXACT
    assert any(off(fault.scheme, example, (0, 1)) > 1e-3 for example in PAIRS)


@pytest.mark.parametrize("fault", [one for one in SAMPLED_FAULTS if one.shows == "greedy"], ids=lambda one: one.id)
@pytest.mark.rest
def test_greedy_rows_that_are_drawn_leave_the_law_of_sampled_ones(fault: SampledFault) -> None:
    assert off(fault.scheme, "third", (1,)) < EXACT
    assert off(fault.scheme, "third", (0,)) > 0.1


@pytest.mark.parametrize("fault", [one for one in SAMPLED_FAULTS if one.shows == "seeds"], ids=lambda one: one.id)
@pytest.mark.tiers(quick=2, rest=1)
def test_faults_of_seeds_leave_the_law_as_it_is(fault: SampledFault) -> None:
    assert max(off(fault.scheme, example) for example in ("alone", "second", "twins with seeds")) < EXACT


@pytest.mark.rest
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
    laws = emitted_laws(Sampler, *models(4, 0.5), REQUESTS["chain"])
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
@pytest.mark.tiers(quick=5, rest=22)
def test_greedy_rows_beside_sampled_ones_are_those_of_the_target(name: str, build: str) -> None:
    target, draft = models(64, 0.25)
    expected = BUILDS["one_row"].engine(target, draft, MIXED).decode()[1]
    rows = engine_of(RIGHT[name], build)(target, draft, MIXED).decode()
    assert rows[1] == expected
    assert [len(row) for row in rows] == [12] * 4


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.tiers(quick=1, rest=7)
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


@pytest.mark.rest
def test_seeds_do_not_keep_their_promise_where_that_is_planted() -> None:
    target, draft = models(64, 0.25)
    alone = Request(MIXED.prompts[2:3], 12, 3, (), 0, "left", rows=MIXED.rows[2:3])
    for fault in SAMPLED_FAULTS:
        if fault.shows == "seeds":
            engine = engine_of(fault.scheme, "uncached")

            def beside(neighbours: int, engine: type[Sampler] = engine) -> list[int]:
                # Rows without a seed draw from the global generator, and a batch-dependent row follows their lengths.
                torch.manual_seed(neighbours)
                return engine(target, draft, MIXED).decode()[2]

            assert beside(1) == beside(1), fault.id
            if fault.kind == "seed-ignored":
                assert beside(1) != beside(2), fault.id
            assert [beside(1)] != engine(target, draft, alone).decode(), fault.id


def test_decoders_say_what_they_take_and_promise() -> None:
    decoders = samplers()
    assert len({one.name for one in decoders}) == len(RIGHT) * len(SAMPLED_BUILDS)
    assert {one.seeds for one in decoders} == {"mates", "speculation"}
    assert [one.name for one in decoders if one.lossless is not True] == [f"lenient.{name}" for name in SAMPLED_BUILDS]
    target, draft = models(64, 0.25)
    assert len(decoders[1](target, draft, MIXED)) == 4
    broken = SAMPLED_FAULTS[0].decoders()[2]
    assert broken.name == "L1-every-draft-accepted.realigned"
    assert len(broken(target, draft, MIXED)) == 4


def test_ids_are_unique_and_every_third_is_held_back() -> None:
    assert len({fault.number for fault in SAMPLED_FAULTS}) == len(SAMPLED_FAULTS) >= 25
    held_back = [fault.number for fault in SAMPLED_FAULTS if fault.held_back]
    assert all(number % 3 == 0 for number in held_back)
    assert 0.25 < len(held_back) / len(SAMPLED_FAULTS) < 0.4
    assert all(fault.shows in SHOWS and fault.title for fault in SAMPLED_FAULTS)
