"""What a clean audit excludes would have been seen: by simulation, by sums from the definition, and when resumed."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from test_bets import contexts, draw, normal, random_case
from test_wealth import plain, stored

from eqcheck.sampling.betting.exclusion import CHANGES, EXPONENTS, SIZES, Exclusion, _alternatives, _moments, _wrong
from eqcheck.sampling.betting.laws import Floats, SampledRow
from eqcheck.sampling.betting.wealth import PORTFOLIO, Wealth, bets, laws


def audit(seed: int, size: float = 0.0, change: float = 0.0, cases: int = 60) -> tuple[Wealth, Exclusion]:
    """An audit of a sampler that draws a share from the draft, or at a temperature higher by a change."""
    rng = np.random.default_rng(seed)
    wealth, exclusion = Wealth(), Exclusion()
    for _ in range(cases):
        p, q, raw = contexts(rng, 50)
        wrong = normal((1 - size) * p + size * q if size else p ** (1 / (1 + change)))
        rows = [SampledRow(draw(wrong, rng.random(50)), p, q, raw, np.zeros(50, bool))]
        wealth.add(rows, "std")
        if not seed:
            exclusion.add(rows, "std")
    return wealth, exclusion


def test_an_engine_that_never_drafts_excludes_no_fault_of_a_draft() -> None:
    exclusion = audit(0)[1]
    with_draft, without = exclusion.sentences(), exclusion.sentences(drafts=False)
    assert len(with_draft) == len(set(with_draft)) == 2  # one for all tokens, and one for the only regime
    assert all(said.count("would have shown") == said.count("sampled tokens") == 1 for said in with_draft)
    assert any("drawn from the draft" in said for said in with_draft)
    assert without
    assert not any("draft" in said or "residual" in said for said in without)


@pytest.mark.rest
def test_what_is_excluded_is_seen() -> None:
    found = {(one.regime, one.law): one for one in audit(0)[1].excluded()}
    share, change = found["std", "draft"], found["", "temperature-higher"]
    assert share.tokens == change.tokens == 3000
    assert share.size is not None
    assert change.size is not None
    assert 1 / 50 < share.size < 1
    assert 0.02 < change.size < 1
    for seed in range(1, 9):
        assert audit(seed, size=share.size)[0].verdict() == "violation"
        assert audit(seed, change=change.size)[0].verdict() == "violation"
        assert audit(seed)[0].verdict() == "equivalent"


def test_a_few_tokens_exclude_nothing() -> None:
    found = audit(0, cases=1)[1].excluded()
    assert [one for one in found if one.size is None and one.law == "drawn-again"]
    assert all("would have shown no" in one.sentence for one in found if one.size is None)
    assert len({one.law for one in found}) * 2 == len(found) == 20


def test_more_tokens_exclude_more() -> None:
    few, many = (audit(0, cases=cases)[1].excluded() for cases in (10, 60))
    for one, other in zip(few, many, strict=True):
        assert (other.size or 2) <= (one.size or 2)
    assert any((other.size or 2) < (one.size or 2) for one, other in zip(few, many, strict=True))


def from_the_definition(row: SampledRow, truth: Floats, alternative: str, power: float) -> float:
    """``log sum_x r(x) e(x)^-c`` over a row, with e-values as the audit computes them, token by token."""
    total, number = 0.0, PORTFOLIO.index(alternative)
    for t in range(len(row.tokens)):
        if row.skip[t]:
            continue
        mean = 0.0
        for token in range(row.p.shape[1]):
            tokens = row.tokens.copy()
            tokens[t] = token
            other = SampledRow(tokens, row.p, row.q, row.raw, row.skip)
            mean += truth[t, token] * float(np.exp(-power * bets(other)[t, number]))
        total += float(np.log(mean))
    return total


@pytest.mark.parametrize("law", ["draft", "residual", "uniform", "prefix-before", "temperature-lower"])
@pytest.mark.tiers(quick=2, rest=3)
def test_the_sums_are_those_of_the_definition(law: str) -> None:
    checked = 0
    for seed in range(40):
        row, _ = random_case(seed)
        if row.q is None or row.cells.p[:, -1].any():  # rare tokens are one cell, and draw as one
            continue
        cells = row.cells.p
        truths = _wrong(law, cells, laws(row).get((law, 0), cells))
        sums = _moments(row, 0.0)[law]
        alternative = _alternatives(law)[0].name
        for size, power in ((0, 3), (4, 6)):
            expected = from_the_definition(row, truths[size], alternative, EXPONENTS[power])
            assert sums[0, size, power] == pytest.approx(expected, abs=1e-9)
            checked += 1
    assert checked > 20


def test_greater_sizes_are_excluded_too() -> None:
    """Sums are concave in a share and fall once they are negative; in a temperature they are monotone."""
    for seed in range(60):
        row, _ = random_case(seed)
        found = _moments(row, 0.0)
        for sums in (found["draft"], found["uniform"], found["residual-unused"]):
            for i in range(len(SIZES) - 1):  # from the greatest size down
                assert (sums[:, i][sums[:, i + 1] < 0] <= sums[:, i + 1][sums[:, i + 1] < 0] + 1e-9).all()
        for law in ("temperature-higher", "temperature-lower"):
            assert (np.diff(found[law], axis=1) >= -1e-9).all()
    assert list(CHANGES) == sorted(CHANGES, reverse=True)


def test_it_counts_what_the_evidence_counts() -> None:
    wealth, exclusion = Wealth(), Exclusion()
    for seed in range(30):
        row, earlier = random_case(seed)
        for one in (wealth, exclusion):
            one.add([] if seed % 4 == 0 else [*earlier, row], f"regime {seed % 4}")
    assert exclusion.tokens == wealth.counts
    assert list(exclusion.tokens) == list(wealth.counts)
    assert wealth.repeated_seeds


def test_rounding_excludes_less() -> None:
    for seed in range(20):
        row, _ = random_case(seed)
        exact, rounded = _moments(row, 0.0), _moments(row, np.expm1(0.01))
        for law, sums in exact.items():
            np.testing.assert_allclose(
                rounded[law] - sums, np.broadcast_to(EXPONENTS * 0.01 * (~row.skip).sum(), sums.shape)
            )


def test_a_resumed_exclusion_says_the_same() -> None:
    whole, first = Exclusion(), Exclusion()
    for seed in range(8):
        row, earlier = random_case(seed)
        for one in (whole, first) if seed < 5 else (whole,):
            one.add([*earlier, row], ("std", "near")[seed % 2])
    second = stored(first)
    for seed in range(5, 8):
        row, earlier = random_case(seed)
        second.add([*earlier, row], ("std", "near")[seed % 2])
    assert plain(second) == plain(whole)
    assert second.excluded() == whole.excluded()
    for changes, said in (({"tokens": {}}, "of the same regimes"), ({"_sums": {"std": {}, "near": {}}}, "every fault")):
        with pytest.raises(msgspec.ValidationError, match=said):
            stored(whole, **changes)
