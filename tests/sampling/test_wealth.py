"""The evidence of whole audits: the exact mean over all outcomes is 1 at most; sums, resuming, verdicts."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np
import pytest
from test_bets import contexts, draw, random_case

from eqcheck.audit import shards
from eqcheck.contract.errors import UsageError
from eqcheck.sampling.betting import wealth as wealth_module
from eqcheck.sampling.betting.laws import Floats, SampledRow
from eqcheck.sampling.betting.wealth import PAIRS, PORTFOLIO, Wealth

Tokens = tuple[int, ...]
R = TypeVar("R")


def plain(record: Any) -> Any:
    """All that a record of the evidence holds."""
    return msgspec.to_builtins(record, enc_hook=shards._encoded, order="deterministic")


def stored(record: R, **changes: Any) -> R:
    """The record as a shard's file gives it back, with some fields of the file changed."""
    data = json.loads(msgspec.json.encode(record, enc_hook=shards._encoded))
    return msgspec.convert({**data, **changes}, type(record), dec_hook=shards._decoded)


def law_at(row: int, prefix: Tokens, name: str, size: int = 2) -> Floats:
    """A law of its own at every prefix of a row."""
    rng = np.random.default_rng([row, len(name), *prefix, 7])
    law = np.exp(rng.normal(size=size))
    return np.asarray(law / law.sum())


def as_row(number: int, tokens: Tokens, seed: int | None = None, twin: int | None = None) -> SampledRow:
    content = 0 if twin is not None else number
    p, q, raw = (
        np.stack([law_at(content, tokens[:t], name) for t in range(len(tokens))]) for name in ("p", "q.", "raw")
    )
    return SampledRow(np.array(tokens), p, q, raw, np.zeros(len(tokens), bool), seed, twin)


def chance(row: SampledRow, change: float = 0.0) -> float:
    """The probability of the row; ``change`` takes so much of the likelier token's, relatively, as rounding might."""
    p = row.p.copy()
    least = p.argmin(-1)
    gained = change * p.min(-1)
    index = np.arange(len(p))
    p[index, least] += gained
    p[index, 1 - least] -= gained
    return float(np.prod(p[index, row.tokens]))


def evidence(*cases: Sequence[SampledRow], eps: float = 0.0) -> float:
    wealth = Wealth()
    for number, rows in enumerate(cases):
        wealth.add(rows, ("std", "near")[number % 2], eps)
    return wealth.evidence


OUTCOMES = list(itertools.product((0, 1), repeat=3))


@pytest.mark.parametrize("change", [0.0, 0.3])
@pytest.mark.tiers(quick=1, rest=1)
def test_the_mean_evidence_over_all_outcomes_is_1_at_most(change: float) -> None:
    """Two twins of three tokens: 64 outcomes, each with its probability. With rounding the bound needs its eps."""
    total = unbounded = 0.0
    for first, second in itertools.product(OUTCOMES, OUTCOMES):
        rows = [as_row(0, first), as_row(1, second, twin=0)]
        likely = chance(rows[0], change) * chance(rows[1], change)
        total += likely * evidence(rows, eps=change)
        unbounded += likely * evidence(rows)
    assert 0.1 < total <= 1 + 1e-12
    assert unbounded > 1.001 if change else unbounded == pytest.approx(1, abs=1e-9)


def test_the_mean_evidence_of_two_cases_is_1_at_most() -> None:
    total = 0.0
    for first, second in itertools.product(OUTCOMES, OUTCOMES):
        cases = [[as_row(0, first)], [as_row(3, second)]]
        total += chance(cases[0][0]) * chance(cases[1][0]) * evidence(*cases)
    assert total == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("together", [True, False])
def test_rows_that_repeat_a_seed_are_not_judged(together: bool) -> None:
    """The second row is the first again, as an engine promises; judged twice, its tokens would be evidence."""
    right = wrong = 0.0
    for tokens in OUTCOMES:
        rows = [as_row(0, tokens, seed=5), as_row(1, tokens, seed=5, twin=0)]
        fresh = [as_row(0, tokens, seed=5), as_row(1, tokens, seed=6, twin=0)]
        likely = chance(rows[0])
        right += likely * (evidence(rows) if together else evidence(rows[:1], [as_row(0, tokens, seed=5)]))
        wrong += likely * evidence(fresh)
    assert right == pytest.approx(1, abs=1e-9)
    assert wrong > 1.1


def cut_together(first: Tokens, second: Tokens) -> tuple[Tokens, Tokens]:
    """A decoder that breaks off both rows when the second emits a 1."""
    length = second.index(1) + 1 if 1 in second else len(second)
    return first[:length], second[:length]


def test_rows_that_were_broken_off_are_judged_each_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The length of the first row tells the tokens of the second: a bet on it would be none."""
    by_length = PORTFOLIO.index("other-rows:0.3")

    def knowing(row: SampledRow, earlier: Sequence[SampledRow], eps: float) -> Floats:
        gains = np.zeros((len(row.tokens), len(PORTFOLIO)))
        for t in range(len(row.tokens)):
            if earlier and t < len(earlier[0].tokens):
                expected = int(t == len(earlier[0].tokens) - 1)
                hit = row.tokens[t] == expected
                gains[t, by_length] = np.log(0.5 + 0.5 / row.p[t, expected] if hit else 0.5)
        return gains

    def mean(whole: bool) -> float:
        total = 0.0
        for first, second in itertools.product(OUTCOMES, OUTCOMES):
            likely = chance(as_row(0, first)) * chance(as_row(1, second, twin=0))
            rows = [as_row(0, cut_together(first, second)[0]), as_row(1, cut_together(first, second)[1], twin=0)]
            wealth = Wealth()
            wealth.add(rows, "std", whole=whole)
            total += likely * wealth.evidence
        return total

    assert mean(whole=False) == pytest.approx(1, abs=1e-9)
    monkeypatch.setattr(wealth_module, "_gains", knowing)
    assert mean(whole=True) > 1.001


def test_a_case_that_is_not_whole_is_looked_at_when_it_ends() -> None:
    rows, wealth, other = sampled(0, wrong=True), Wealth(), Wealth()
    wealth.add(rows, "std", whole=False)
    for row in rows:
        other.add([row], "std")
    assert wealth.evidence == pytest.approx(other.evidence)
    assert wealth.supremum == pytest.approx(max(wealth.evidence, 1.0))
    assert wealth.supremum <= other.supremum * (1 + 1e-9)
    assert (wealth.tokens, wealth.cases) == (other.tokens, 1)


def test_rows_that_are_left_out_for_their_tokens_are_a_false_alarm() -> None:
    """Why every decoded row counts: without those that lost, the mean is above 1."""
    total = sum(chance(as_row(0, tokens)) * max(evidence([as_row(0, tokens)]), 1.0) for tokens in OUTCOMES)
    assert total > 1.01


def sampled(seed: int, wrong: bool = False, rows: int = 3, n: int = 20) -> list[SampledRow]:
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(rows):
        p, q, raw = contexts(rng, n)
        found.append(SampledRow(draw(q if wrong else p, rng.random(n)), p, q, raw, rng.random(n) < 0.05))
    return found


def test_a_right_sampler_is_equivalent_and_a_wrong_one_is_not() -> None:
    right, wrong = Wealth(), Wealth()
    for seed in range(40):
        right.add(sampled(seed), "std")
        wrong.add(sampled(seed, wrong=True), "std")
    assert right.verdict() == "equivalent"
    assert right.supremum < 1e3
    assert right.evidence < 1
    assert wrong.verdict() == "violation"
    assert wrong.best()[0][0].law == "draft"
    assert right.tokens + right.skipped == 40 * 60
    assert right.counts == {"std": right.tokens}
    assert right.cases == 40


def test_verdicts_between_and_verdicts_that_stay() -> None:
    wealth = Wealth()
    assert wealth.verdict() == "inconclusive"  # nothing was judged
    seen = [wealth.verdict()]
    while seen[-1] != "violation":
        wealth.add(sampled(len(seen), wrong=True, rows=1, n=5), "std")
        seen.append(wealth.verdict())
    assert {"equivalent", "inconclusive"} == set(seen[:-1])
    for seed in range(100, 200):
        wealth.add(sampled(seed), "std")
    assert wealth.evidence < 1e6 < wealth.supremum
    assert wealth.verdict() == "violation"


def test_the_evidence_is_the_mean_of_what_the_alternatives_earned() -> None:
    """From the definition: products over all tokens, and over those of each regime, with their weights."""
    wealth = Wealth()
    everything = np.ones(len(PORTFOLIO))
    each = {"std": np.ones(len(PORTFOLIO)), "near": np.ones(len(PORTFOLIO))}
    for number in range(6):
        rows = sampled(number, wrong=number > 3, n=6)
        regime = ("std", "near")[number % 2]
        wealth.add(rows, regime, eps=1e-3)
        for i, row in enumerate(rows):
            gain = np.exp(wealth_module._gains(row, rows[:i], 1e-3).sum(0))
            everything, each[regime] = everything * gain, each[regime] * gain
    weights = {"std": 0.4 / 2, "near": 0.4 / 6}
    own = everything * 0.6 + sum(weights[name] * each[name] for name in each) + 0.4 / 3
    assert wealth.evidence == pytest.approx(own.mean())
    assert {bet.name: log for bet, log in wealth.best()} == pytest.approx(
        dict(zip(PORTFOLIO, np.log(own), strict=True))
    )


def test_the_supremum_is_seen_between_the_tokens_of_a_case() -> None:
    wrong, right = sampled(0, wrong=True)[0], sampled(1, n=200)[0]
    tokens, p, raw, skip = (
        np.concatenate([getattr(row, name) for row in (wrong, right)]) for name in ("tokens", "p", "raw", "skip")
    )
    whole, stepwise = Wealth(), []
    whole.add([SampledRow(tokens, p, None, raw, skip)], "std")
    for n in range(1, len(tokens) + 1):
        part = Wealth()
        part.add([SampledRow(tokens[:n], p[:n], None, raw[:n], skip[:n])], "std")
        stepwise.append(part.evidence)
    assert whole.supremum == pytest.approx(max(stepwise))
    assert whole.supremum > 2 * whole.evidence


def test_an_audit_in_two_parts_gives_the_same() -> None:
    whole, first = Wealth(), Wealth()
    for seed in range(10):
        row, earlier = random_case(seed)
        for wealth in (whole, first) if seed < 6 else (whole,):
            wealth.add([*earlier, row], ("std", "near", "far")[seed % 3])
    second = stored(first)
    for seed in range(6, 10):
        row, earlier = random_case(seed)
        second.add([*earlier, row], ("std", "near", "far")[seed % 3])
    assert plain(second) == plain(whole)
    assert whole.repeated_seeds
    assert whole.impossible
    assert whole.skipped
    assert (second.evidence, second.supremum, second.best()) == (whole.evidence, whole.supremum, whole.best())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"_all": {"shape": [1], "float64": "AAAAAAAAAAA="}}, "expected the wealth of "),
        ({"_all": {"shape": [3], "float64": "AAAA"}}, r"buffer size must be .* - at `\$._all`"),
        ({"_all": {"shape": [1], "float64": "AAAAAAAA8H8="}}, "expected finite numbers"),
        ({"_all": [0.0]}, "Expected `object`, got `array`"),
        ({"counts": {"std": 3}}, "of the same regimes"),
        ({"impossible": [{"row": 0}]}, "missing required field `case`"),
        ({"tokens": None}, "Expected `int`, got `null`"),
    ],
)
def test_what_no_evidence_is_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=said):
        stored(Wealth(), **changes)


def test_impossible_tokens_are_violations_without_evidence() -> None:
    law = np.array([[0.5, 0.5, 0.0]] * 3)
    wealth = Wealth()
    wealth.add([SampledRow(np.array([0, 1]), law[:2], None, law[:2], np.zeros(2, bool))], "std")
    wealth.add([SampledRow(np.array([0, 2, 2]), law, None, law, np.array([False, False, True]))], "std")
    assert wealth.impossible == [{"case": 1, "row": 0, "position": 1, "token": 2}]
    assert wealth.verdict() == "violation"
    assert wealth.supremum < 10


def test_what_is_wrong_is_refused_and_counts_nothing() -> None:
    wealth = Wealth()
    rows = sampled(0)
    before = plain(wealth)
    with pytest.raises(UsageError, match="eps"):
        wealth.add(rows, "std", eps=-1.0)
    with pytest.raises(UsageError, match="eps"):
        wealth.add(rows, "std", eps=float("nan"))
    with pytest.raises(UsageError, match="twin of row 1"):
        wealth.add(
            [rows[0], SampledRow(rows[1].tokens, *contexts(np.random.default_rng(0), 20), rows[1].skip, twin=1)], "std"
        )
    law = np.array([[0.5, 0.5]])
    with pytest.raises(UsageError, match="row 1: expected laws over 16 tokens, got 2"):
        wealth.add([rows[0], SampledRow(np.array([0]), law, law, law, np.array([False]))], "std")
    assert plain(wealth) == before


def test_no_row_and_rows_without_tokens_are_no_evidence() -> None:
    law = np.zeros((0, 3))
    wealth = Wealth()
    wealth.add([], "std")
    wealth.add([SampledRow(np.zeros(0, np.int64), law, law, law, np.zeros(0, bool))] * 2, "near")
    assert wealth.evidence == pytest.approx(1)
    assert (wealth.tokens, wealth.verdict()) == (0, "inconclusive")


def test_evidence_beyond_floats() -> None:
    wealth = Wealth()
    for seed in range(60):
        wealth.add(sampled(0, wrong=True, n=100)[:1] if seed else sampled(0, wrong=True, n=100), "std")
    assert wealth.log_evidence > 800
    assert np.isfinite(wealth.evidence)
    assert wealth.evidence > 1e300
    assert len(PAIRS) > 20


def test_the_course_is_thinned_starts_at_nothing_and_ends_at_the_evidence() -> None:
    wealth = Wealth()
    assert not wealth.course
    for number in range(30):
        wealth.add([as_row(number, (0,) * 50)], "std")
        (*_, last) = wealth.course
        assert last == (wealth.tokens, round(wealth.log_evidence / np.log(10), 3))
    tokens = [point[0] for point in wealth.course]
    assert tokens[0] == 0
    assert wealth.course[0][1] == 0
    assert tokens == sorted(set(tokens))
    assert 90 <= len(tokens) <= 201
    assert max(b - a for a, b in itertools.pairwise(tokens)) <= 16


def test_the_course_shows_the_evidence_within_a_case() -> None:
    whole, single = Wealth(), Wealth()
    rows = [as_row(0, (0, 1, 0, 0, 1))]
    whole.add(rows, "std")
    assert [point[0] for point in whole.course] == [0, 1, 2, 3, 4, 5]
    single.add([as_row(0, (0,))], "std")
    assert whole.course[1] == single.course[1]


def test_the_course_of_joined_shards_goes_on_from_one_end_to_the_next() -> None:
    first, second, joined = Wealth(), Wealth(), Wealth()
    for number, wealth in ((0, first), (1, second), (2, second)):
        wealth.add([as_row(number, (0, 1, 0))], "std")
    assert joined.join(first)
    assert joined.course == first.course
    assert joined.join(second)
    assert [point[0] for point in joined.course] == [0, 1, 2, 3, 9]
    assert joined.course[-1][1] == round(joined.log_evidence / np.log(10), 3)
