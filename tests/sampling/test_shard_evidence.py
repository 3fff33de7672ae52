"""Evidence of shards: joined it is what one audit would hold; a right sampler's stays small, a wrong one's adds up."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from sampling_simulation import UNEQUAL, cases
from simulated_faults import FAULTS, RIGHT
from simulated_samplers import REGIMES, Sampler, World
from test_wealth import OUTCOMES, as_row, chance, plain, stored

from eqcheck.audit.loop import concluded
from eqcheck.contract.decoders import decoder
from eqcheck.contract.options import RowOptions
from eqcheck.core.case.sampling import SampledCase
from eqcheck.core.result.findings import Audit, Options
from eqcheck.core.result.outcome import Outcome
from eqcheck.sampling.betting.exclusion import Exclusion
from eqcheck.sampling.betting.laws import SampledRow
from eqcheck.sampling.betting.wealth import PORTFOLIO, VIOLATION, Wealth
from eqcheck.sampling.judge import law_finding, wrong_law

WORLDS = {name: World(REGIMES[name], UNEQUAL, 32, 64, 3) for name in ("std", "near")}
WRONG = FAULTS["residual not used"].sampler


def shard(sampler: Sampler, number: int, tokens: int) -> tuple[Wealth, Exclusion, list[tuple[list[SampledRow], str]]]:
    """What one shard earns; the regime that it begins with is not that of the next one."""
    rng, names = np.random.default_rng([7, number]), itertools.cycle(list(WORLDS)[:: 1 if number % 2 else -1])
    wealth, exclusion, drawn = Wealth(), Exclusion(), list[tuple[list[SampledRow], str]]()
    while wealth.tokens < tokens:
        regime = next(names)
        for rows in cases(sampler, WORLDS[regime], 1, rng, skipping=False):
            wealth.add(rows, regime)
            exclusion.add(rows, regime)
            drawn.append((rows, regime))
    return wealth, exclusion, drawn


def joined(wealths: list[Wealth]) -> Wealth:
    together = Wealth()
    assert all(together.join(stored(wealth)) for wealth in wealths)
    return together


@pytest.mark.rest
def test_joined_evidence_is_that_of_one_audit_with_all_cases() -> None:
    found = [shard(WRONG, number, 300) for number in range(4)]
    one, excluded = Wealth(), Exclusion()
    for _, _, drawn in found:
        for rows, regime in drawn:
            one.add(rows, regime)
            excluded.add(rows, regime)
    together, exclusion = joined([wealth for wealth, _, _ in found]), Exclusion()
    for _, other, _ in found:
        exclusion.join(other)
    assert together.log_evidence == pytest.approx(one.log_evidence, abs=1e-9)
    assert (together.tokens, together.rows, together.cases) == (one.tokens, one.rows, one.cases)
    assert together.counts == one.counts
    assert list(together.by_regime()) == list(one.by_regime())  # the weight of a regime is that of its place
    assert together.log_supremum <= one.log_supremum + 1e-9
    assert exclusion.tokens == excluded.tokens
    assert exclusion.sentences() == excluded.sentences()


def test_the_mean_over_all_outcomes_is_1_at_most_whenever_a_shard_ends() -> None:
    """Exactly, over every outcome of two shards that look at their own tokens to decide whether to go on.

    The greatest of the shards' own evidence is on average above 1: it is no evidence.
    """
    total = greatest = product = 0.0
    ends = []
    for number in (0, 1):
        found = []
        for first in OUTCOMES:
            wealth = Wealth()
            wealth.add([as_row(2 * number, first)], "std")
            if first[0] != number:  # such a shard ends here
                found.append((chance(as_row(2 * number, first)), wealth))
                continue
            for second in OUTCOMES:
                longer = stored(wealth)
                longer.add([as_row(2 * number + 1, second)], "near")
                likely = chance(as_row(2 * number, first)) * chance(as_row(2 * number + 1, second))
                found.append((likely, longer))
        assert sum(likely for likely, _ in found) == pytest.approx(1)
        ends.append(found)
    for (one_likely, one), (other_likely, other) in itertools.product(*ends):
        likely = one_likely * other_likely
        total += likely * joined([one, other]).evidence
        product += likely * one.evidence * other.evidence
        greatest += likely * max(one.evidence, other.evidence)
    assert total == pytest.approx(1, abs=1e-9)
    assert product == pytest.approx(1, abs=1e-9)
    assert greatest > 1.01


@pytest.mark.rest
def test_a_right_sampler_stays_small_and_a_wrong_one_adds_up() -> None:
    """Sixteen short shards: joined they convict what none of them does; the mean never would, the product is weaker."""
    for name, sampler in RIGHT.items():
        assert joined([shard(sampler, number, 150)[0] for number in range(5)]).supremum < 1000, name
    found = [shard(WRONG, number, 100)[0] for number in range(16)]
    together = joined(found)
    assert together.verdict() == "violation"
    assert max(wealth.supremum for wealth in found) < VIOLATION
    assert together.crossed is not None
    assert together.tokens >= together.crossed > 200
    assert np.mean([wealth.evidence for wealth in found]) < VIOLATION
    assert sum(wealth.log_evidence for wealth in found) < together.log_evidence - math.log(len(PORTFOLIO))


def test_shards_that_share_the_seed_of_a_row_are_not_independent() -> None:
    one, other = Wealth(), Wealth()
    one.add([as_row(0, (0, 1, 1), seed=9)], "std")
    other.add([as_row(1, (1, 1, 0), seed=9)], "std")
    before = plain(one)
    assert not one.join(other)
    assert plain(one) == before


def audit_of(wealth: Wealth, findings: bool) -> Audit:
    """The merged audit of a sampler, in which one shard was sure of itself, or none was."""
    sampler: Any = decoder(name="mine", capabilities=("temperature",))(lambda target, draft, request: [])
    result = Audit(sampler, Options(), "sampling", sampler.families, sampler.families)
    case = SampledCase(((5, 7),), (RowOptions(4, temperature=1.0),))
    sure = shard(WRONG, 0, 1500)[0]
    result.wealth, result.telling = wealth, (3.0, Outcome(case, "equivalent", outputs=((1, 2),)))
    if findings:
        result.findings = [law_finding(wrong_law(Outcome(case, "equivalent"), sure, None), 900, 1, True)]
    return concluded([result])


@pytest.mark.rest
def test_what_the_shards_show_together_only_is_a_finding_without_a_name() -> None:
    result = audit_of(joined([shard(WRONG, number, 100)[0] for number in range(16)]), findings=False)
    (finding,) = result.violations
    assert finding.fingerprint == "sampling/stray-law"
    assert finding.case.crosses_after == result.wealth.crossed  # type: ignore[union-attr]


@pytest.mark.rest
def test_one_shard_of_many_that_is_sure_of_itself_convicts_nobody() -> None:
    right = joined([shard(next(iter(RIGHT.values())), number, 150)[0] for number in range(4)])
    result = audit_of(right, findings=True)
    assert (result.verdict, result.violations) == ("inconclusive", [])
    assert any("1 shard alone reached 10^6" in line for line in result.warnings)
