"""The search: what it draws beside random drawing, what it depends on, and that whatever it drew can be minimised."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from itertools import combinations
from random import Random

import pytest

from eqcheck.contract import registry
from eqcheck.contract.decoders import CACHE_STATES, FAMILIES, REQUIREMENTS
from eqcheck.contract.errors import UsageError
from eqcheck.contract.requirements import unmet
from eqcheck.core.case.record import Case
from eqcheck.strategies import cases
from eqcheck.transparent.coverage import Feature, features, raggedness
from eqcheck.transparent.decoding import Schedule, truth_of
from eqcheck.transparent.drawing import Chance, draw_case
from eqcheck.transparent.search import CHUNK, Source, merged

# Draws in a process of its own: as it is, and with a generator that is salted with what no case may depend on.
DRAW = """
import sys
from itertools import combinations
from hashlib import sha256
from random import Random
from eqcheck.contract import registry
from eqcheck.contract.decoders import CACHE_STATES, FAMILIES
from eqcheck.transparent import search

for name in sys.argv[1:]:
    registry.load(name)
salts = {"nothing": lambda: "", "modules": lambda: len(sys.modules), "sets": lambda: list({"a", "b", "c", "d", "e"})}
for name, salt in salts.items():
    search.Random = lambda seed: Random(f"{seed}{salt()}")
    drawn = search.Source(3, FAMILIES, ("left", "right"), tuple(CACHE_STATES)).chunk(1)
    print(name, len(drawn), sha256(repr(drawn).encode()).hexdigest())
"""

BOTH = ("rotary", "learned")
SIDES = ("left", "right")


def at_random(source: Source, count: int) -> list[Case]:
    """Distinct cases drawn without looking at them."""
    choose = Chance(Random(f"random {source.seed}"))
    drawn: dict[Case, None] = {}
    while len(drawn) < count:
        drawn[draw_case(choose, source.claims, source.bounds)] = None
    return list(drawn)


def searched(source: Source, count: int) -> list[Case]:
    return [case for index in range(count // CHUNK) for case in source.chunk(index)]


def named(case: Case) -> list[Feature]:
    truth = truth_of(case)
    return features(case, truth, Schedule(case, truth).rounds)


def spread(case: Case) -> int:
    return raggedness(Schedule(case, truth_of(case)).rounds)


@pytest.mark.rest
def test_cases_are_more_ragged_than_at_random() -> None:
    sources = [Source(seed, BOTH, SIDES) for seed in (7, 8)]
    found, chance = (
        [spread(case) for source in sources for case in draw(source, 200)] for draw in (searched, at_random)
    )
    ragged, ragged_by_chance = (sum(one > 0 for one in spreads) for spreads in (found, chance))
    assert ragged >= 1.25 * ragged_by_chance
    assert sum(found) >= 1.3 * sum(chance)


@pytest.mark.long
def test_rare_features_are_not_hit_later_than_at_random() -> None:
    def combinations(cases: list[Case]) -> int:
        return len({name for case in cases for name in named(case)})

    sources = [Source(seed, BOTH, SIDES) for seed in (7, 8, 9)]
    found, chance = (sum(combinations(draw(source, 100)) for source in sources) for draw in (searched, at_random))
    assert found >= 0.985 * chance


@pytest.mark.rest
def test_every_family_side_and_cache_state_is_drawn() -> None:
    cases = searched(Source(0, FAMILIES, SIDES, tuple(CACHE_STATES)), 800)
    assert {case.family for case in cases} == set(FAMILIES)
    assert {case.padding_side for case in cases} == set(SIDES)
    assert {case.cache_state for case in cases} == set(CACHE_STATES)
    assert {case.family for case in cases if case.cache_state == "wrapped"} == {"window", "hybrid-window"}


@pytest.mark.rest
def test_cases_are_distinct_and_do_not_depend_on_how_they_are_asked_for() -> None:
    source = Source(3, BOTH, SIDES)
    cases = searched(source, 3 * CHUNK)
    assert len(set(cases)) == 3 * CHUNK
    assert source.chunk(1, 7) == cases[CHUNK : CHUNK + 7]
    assert len(set(Source(4, BOTH, SIDES).chunk(0)) & set(cases)) < 5


def _drawn_apart(hash_seed: str, *decoders: str) -> list[list[str]]:
    command, environment = [sys.executable, "-c", DRAW, *decoders], {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return [line.split() for line in done.stdout.splitlines()]


@pytest.mark.long
def test_cases_depend_neither_on_what_is_loaded_nor_on_the_order_of_sets() -> None:
    """Two processes draw; where the generator is salted with either, the cases differ, so this test can fail."""
    one, other = _drawn_apart("0"), _drawn_apart("2", *registry.names())
    assert [line[:2] for line in one] == [[name, str(CHUNK)] for name in ("nothing", "modules", "sets")]
    assert [mine == theirs for mine, theirs in zip(one, other, strict=True)] == [True, False, False]


@pytest.mark.rest
def test_sources_do_not_disturb_each_other() -> None:
    alone = [Source(3, BOTH, SIDES).chunk(index) for index in range(2)]
    one, other = Source(3, BOTH, SIDES), Source(3, BOTH, SIDES)
    random.seed(1)
    in_turn = [source.chunk(index) for index in range(2) for source in (one, other)]
    assert in_turn == [alone[0], alone[0], alone[1], alone[1]]
    assert random.random() == random.Random(1).random()  # nor does anybody who uses Python's own generator


@pytest.mark.rest
def test_one_shard_is_the_whole_and_shards_are_distinct() -> None:
    assert Source(3, BOTH, SIDES, shard=(0, 1)).chunk(0) == Source(3, BOTH, SIDES).chunk(0)
    shards = [Source(3, BOTH, SIDES, shard=shard) for shard in ((0, 3), (1, 3), (2, 3), (0, 2), (0, 1))]
    cases = [case for source in shards for case in source.chunk(0)]
    assert len(set(cases)) > len(cases) - 5
    with pytest.raises(UsageError, match=r"0 <= i < n, got \(3, 3\)"):
        Source(3, BOTH, SIDES, shard=(3, 3))


@pytest.mark.rest
def test_shards_are_merged_by_chunks_in_turn() -> None:
    one, other = (Source(3, BOTH, SIDES, shard=(number, 2)) for number in range(2))
    expected = [*one.chunk(0), *other.chunk(0), *one.chunk(1), *other.chunk(1, 7)]
    fresh = [Source(3, BOTH, SIDES, shard=(number, 2)) for number in range(2)]
    fresh[1].chunk(1)  # what was drawn before changes nothing
    assert merged(fresh, 3 * CHUNK + 7) == expected


@pytest.mark.long
def test_shards_cover_as_much_as_one_source() -> None:
    """Combinations of features in 300 cases of six shards: 0.95 to 1.03 of one source's by seed, 0.99 over eight."""

    def covered(*shards: tuple[int, int]) -> int:
        found = 0
        for seed in (7, 8, 9):
            cases = merged([Source(seed, BOTH, SIDES, shard=shard) for shard in shards], 6 * CHUNK)
            found += len({name for case in cases for name in named(case)})
        return found

    whole = covered((0, 1))
    assert covered(*((number, 6) for number in range(6))) >= 0.97 * whole
    assert covered(*[(0, 6)] * 6) < 0.8 * whole  # 0.75: what shards that all draw the same would cover


@pytest.mark.parametrize("index", [0, 2])
@pytest.mark.tiers(quick=1, rest=1)
def test_every_drawn_case_can_be_minimised(index: int) -> None:
    source = Source(5, BOTH, SIDES)
    for case in source.chunk(index)[-4:]:
        rows = len(case.prompts)
        tried = 0

        def fails(candidate: Case, rows: int = rows) -> bool:
            nonlocal tried
            tried += 1
            return len(candidate.prompts) >= rows

        found = source.minimise(case, fails)
        assert [len(prompt) for prompt in found.prompts] == [1] * rows
        assert (found.max_new_tokens, found.num_draft_tokens, found.family) == (1, 1, "rotary")
        assert tried <= 500
        assert source.minimise(case, fails) == found


def test_minimising_ends_after_its_tries_and_its_time() -> None:
    source = Source(5, BOTH, SIDES)
    case = max(source.chunk(0), key=lambda case: len(case.prompts))
    tried: list[Case] = []

    def fails(candidate: Case) -> bool:
        tried.append(candidate)
        return len(candidate.prompts) > 1

    source.minimise(case, fails, tries=5)
    assert len(tried) <= 5
    tried.clear()
    assert source.minimise(case, fails, seconds=0.0) == case
    assert tried == []


def test_what_never_fails_again_stays_as_it_was() -> None:
    source = Source(5, BOTH, SIDES)
    case = source.chunk(0)[9]
    assert source.minimise(case, lambda candidate: False) == case


def test_the_script_of_a_case() -> None:
    case = Case(prompts=((1, 2), (3,)), max_new_tokens=7, num_draft_tokens=3, accepts=((3, 1), (0, 2)))
    rounds = Schedule(case, truth_of(case)).rounds
    assert [[step.accepted for step in steps] for steps in rounds] == [[3, 0], [1, 2], [0, 0], [0], [0]]
    assert [[step.emitted for step in steps] for steps in rounds] == [[4, 1], [2, 3], [1, 1], [1], [1]]
    assert raggedness(rounds) == 3 + 1


@pytest.mark.parametrize("name", [*REQUIREMENTS, "all"])
@pytest.mark.tiers(quick=2, rest=1)
def test_every_case_meets_what_is_required(name: str) -> None:
    requires = tuple(REQUIREMENTS) if name == "all" else (name,)
    plain, met = Source(6, BOTH, SIDES, tuple(CACHE_STATES)), Source(6, BOTH, SIDES, tuple(CACHE_STATES), requires)
    # Rows of these cases are greedy, and a plain source has no earlier requests.
    met_by_all = name in ("one-temperature", "one-sampling", "sampled-n", "same-weights")
    assert any(unmet(case, requires) for case in searched(plain, 100)) != met_by_all
    cases = searched(met, 100)
    assert not any(unmet(case, requires) for case in cases)
    case = max(cases, key=lambda case: len(case.prompts))
    assert not unmet(met.minimise(case, lambda candidate: len(candidate.prompts) == len(case.prompts)), requires)


def test_a_precondition_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match="got 'one-oes'; did you mean 'one-eos'"):
        cases(requires=("one-oes",))


def test_a_source_minimises_what_it_did_not_draw() -> None:
    case = Source(5, BOTH, SIDES).chunk(0)[-1]
    for seed in range(6):
        Source(seed, BOTH, SIDES).chunk(0, 1)
    found = Source(5, BOTH, SIDES).minimise(case, lambda candidate: True)
    assert (found.prompts, found.max_new_tokens, found.num_draft_tokens) == (((10,),), 1, 1)


@pytest.mark.rest
def test_prompts_that_differ_in_the_last_token_of_a_block_are_drawn() -> None:
    cases = [case for index in range(3) for case in Source(1, ("rotary",), ("left",)).chunk(index)]
    pairs = [case.prompts for case in cases if len(case.prompts) == 2 and len({*map(len, case.prompts)}) == 1]
    apart = [[at for at, (a, b) in enumerate(zip(*pair, strict=True)) if a != b] for pair in pairs]
    ends = {(at[0] + 1, len(pair[0])) for at, pair in zip(apart, pairs, strict=True) if len(at) == 1}
    assert {(8, 17), (16, 17), (16, 33), (32, 33)} <= ends


def test_rows_that_come_later_share_beginnings_and_blocks() -> None:
    """Within a block, and behind another beginning: such cases show faults of caches that share blocks."""
    cases = Source(3, ("rotary",), ("left",), ("late-rows",)).chunk(0, 50)
    pairs = [pair for case in cases for pair in combinations(case.prompts, 2)]
    shared = [next((at for at, (a, b) in enumerate(zip(*pair, strict=False)) if a != b), 0) for pair in pairs]
    assert any(count > 8 and count % 8 for count in shared)
    assert any(a[:8] != b[:8] and (a[8:16] == b[8:16] or a[8:16] == b[:8]) and len(b) > 16 for a, b in pairs)
