"""Every bet is an e-value: its mean under the right law, over all tokens, is 1 at most. And it grows when due."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from eqcheck.contract.errors import UsageError
from eqcheck.sampling.betting import wealth as bets_module
from eqcheck.sampling.betting.laws import Floats, Ints, SampledRow
from eqcheck.sampling.betting.wealth import AMOUNTS, HIGHEST, LAGS, ORDERS, bets, laws, pair_bets, shared

Bet = Callable[[SampledRow, Sequence[SampledRow]], Floats]
ALTERNATIVES, PAIRS = ({bet.name: bet for bet in some} for some in (bets_module.ALTERNATIVES, bets_module.PAIRS))
COLUMNS = {name: column for names in (ALTERNATIVES, PAIRS) for column, name in enumerate(names)}
LAWS = [(bet.law, amount) for bet in ALTERNATIVES.values() for amount in AMOUNTS.get(bet.law, (0,))]
KINDS = ("flat", "sharp", "cut", "rare", "certain", "tied")


def random_law(rng: np.random.Generator, n: int, size: int, kind: str) -> Floats:
    law = np.exp(rng.normal(size=(n, size)) * (6.0 if kind == "sharp" else 1.0))
    if kind == "cut":
        law[rng.random((n, size)) < 0.5] = 0.0
        law[:, 0] += 0.1
    if kind == "rare":
        law *= np.where(rng.random((n, size)) < 0.5, 10.0 ** rng.uniform(-30, -6, (n, size)), 1.0)
        law[:, -1] += 0.1
    if kind == "certain":
        law[:, 1:] = 0.0
    if kind == "tied":
        law = np.round(law) + 1.0
    return np.asarray(law / law.sum(-1, keepdims=True))


def random_row(rng: np.random.Generator, n: int, size: int, earlier: Sequence[SampledRow] = ()) -> SampledRow:
    p = random_law(rng, n, size, rng.choice(KINDS))
    q: Floats | None = random_law(rng, n, size, rng.choice(KINDS))
    assert q is not None
    style = rng.integers(5)
    if style == 0:
        q = None
    elif style == 1:
        q = p.copy()
    elif style == 2:
        q[rng.random(n) < 0.5] = 0.0
    tokens = rng.integers(0, size, n)
    twin = None
    if earlier and rng.random() < 0.7:  # a twin whose prefix is the same for a while
        twin = int(rng.integers(len(earlier)))
        shared = int(rng.integers(0, min(n, len(earlier[twin].tokens)) + 1))
        tokens[:shared] = earlier[twin].tokens[:shared]
        if rng.random() < 0.5:
            p[:shared] = earlier[twin].p[:shared]
    seed = None if rng.random() < 0.5 else int(rng.integers(3))
    raw = random_law(rng, n, size, rng.choice(KINDS))
    skip = rng.random(n) < 0.1
    first_row = random_law(rng, n, size, "cut") if rng.random() < 0.5 else None
    return SampledRow(tokens, p, q, raw, skip, seed, twin, first_row=first_row)


def random_case(seed: int) -> tuple[SampledRow, list[SampledRow]]:
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 9))
    earlier: list[SampledRow] = []
    for _ in range(rng.integers(0, 4)):
        earlier.append(random_row(rng, int(rng.integers(1, 6)), size, earlier))
    return random_row(rng, int(rng.integers(1, 12 if seed % 10 == 0 else 6)), size, earlier), earlier


def with_token(row: SampledRow, t: int, token: int) -> SampledRow:
    tokens = row.tokens.copy()
    tokens[t] = token
    return replace(row, tokens=tokens)


def means(bet: Bet, row: SampledRow, earlier: Sequence[SampledRow], t: int) -> Floats:
    """The exact mean of every e-value at a position under the right law: the sum over all tokens."""
    total = np.zeros(bet(row, earlier).shape[1])
    for token in range(row.p.shape[1]):
        total += row.p[t, token] * np.exp(bet(with_token(row, t, token), earlier)[t])
    return total


def every_bet(row: SampledRow, earlier: Sequence[SampledRow]) -> Floats:
    return np.concatenate([bets(row, earlier), pair_bets(row, earlier)], axis=1)


def exceeds(bet: Bet, bound: float, seeds: range) -> bool:
    """Whether the mean of some e-value at some position of these cases is above a bound."""
    cases = (random_case(seed) for seed in seeds)
    return any(means(bet, row, earlier, t).max() > bound for row, earlier in cases for t in range(len(row.tokens)))


@pytest.mark.parametrize("part", range(5))
@pytest.mark.tiers(quick=0, rest=1)
def test_no_alternative_has_a_mean_above_1(part: int) -> None:
    names = [*ALTERNATIVES, *PAIRS]
    for seed in range(part * 100, part * 100 + 100):
        row, earlier = random_case(seed)
        for t in range(len(row.tokens)):
            found = means(every_bet, row, earlier, t)
            worst = int(found.argmax())
            assert found[worst] <= 1 + 1e-9, (seed, t, names[worst])


def test_the_random_cases_hold_what_they_should() -> None:
    seen = set()
    for seed in range(500):
        row, earlier = random_case(seed)
        logs = every_bet(row, earlier)
        seen |= {"zero"} if (row.p == 0).any() else set()
        seen |= {"rare"} if (row.cells.x == row.p.shape[1]).any() else set()
        seen |= {"cut"} if (logs == np.log(HIGHEST)).any() else set()
        seen |= {"skip"} if row.skip.any() else set()
        seen |= {"impossible"} if row.impossible else set()
        seen |= {"no draft"} if row.q is None else set()
        for number, name in enumerate((*ALTERNATIVES, *PAIRS)):
            seen |= {name} if logs[:, number].any() else set()
    assert seen == {"zero", "rare", "cut", "skip", "impossible", "no draft", *ALTERNATIVES, *PAIRS}


def furthest_look_ahead(bet: Bet, seed: int) -> float:
    """How much a bet changes when tokens, laws and skipped positions after it do."""
    row, earlier = random_case(seed)
    rng = np.random.default_rng(seed)
    logs, furthest = bet(row, earlier), 0.0
    for t in range(len(row.tokens) - 1):
        p, raw, tokens, skip = row.p.copy(), row.raw.copy(), row.tokens.copy(), row.skip.copy()
        size, left = p.shape[1], len(p) - t - 1
        p[t + 1 :], raw[t + 1 :] = random_law(rng, left, size, "cut"), random_law(rng, left, size, "flat")
        tokens[t + 1 :], skip[t + 1 :] = rng.integers(0, size, left), rng.random(left) < 0.5
        q = row.q if row.q is None else row.q.copy()
        if q is not None:
            q[t + 1 :] = random_law(rng, left, size, "sharp")
        first_row = row.first_row if row.first_row is None else row.first_row.copy()
        if first_row is not None:
            first_row[t + 1 :] = random_law(rng, left, size, "flat")
        changed = bet(replace(row, p=p, q=q, raw=raw, tokens=tokens, skip=skip, first_row=first_row), earlier)
        furthest = max(furthest, float(abs(changed[: t + 1] - logs[: t + 1]).max()))
    return furthest


@pytest.mark.rest
def test_a_bet_knows_nothing_of_what_comes_later() -> None:
    assert max(furthest_look_ahead(every_bet, seed) for seed in range(200)) < 1e-12


def looking_ahead(row: SampledRow, earlier: Sequence[SampledRow]) -> Floats:
    """Bets on the law of the prefix that the token makes: its mean is 1 at every prefix, and it is no bet."""
    following = replace(row, p=np.concatenate([row.p[1:], row.p[-1:]]))
    ratio = following.p[np.arange(len(row.tokens)), row.tokens] / np.where(row.cells.live, row.cells.at, 1.0)
    return np.log(0.9 + 0.1 * ratio)[:, None] * row.cells.live[:, None]


def test_a_bet_that_looks_ahead_is_seen() -> None:
    assert not exceeds(looking_ahead, 1 + 1e-9, range(100))
    assert max(furthest_look_ahead(looking_ahead, seed) for seed in range(20)) > 0.01


def test_a_law_sums_to_1() -> None:
    for seed in range(100):
        row, earlier = random_case(seed)
        for name, law in laws(row, earlier).items():
            np.testing.assert_allclose(law.sum(-1), 1.0, atol=1e-9, err_msg=name)


# Bets that are none: each must be seen by the exact mean.


def peeking(row: SampledRow, earlier: Sequence[SampledRow]) -> Floats:
    """Bets on the token that came."""
    likely = np.where(row.cells.live, row.cells.at, 1.0)
    return np.asarray(np.log(0.9 + 0.1 / likely)[:, None] * row.cells.live[:, None])


def choosing(row: SampledRow, earlier: Sequence[SampledRow]) -> Floats:
    """Takes the better of two bets when the token is known."""
    return np.asarray(bets(row, earlier).max(-1, keepdims=True))


def skipping(row: SampledRow, earlier: Sequence[SampledRow]) -> Floats:
    """Passes over tokens that the bet loses on: a skip that depends on the token."""
    return np.maximum(bets(row, earlier), 0.0)


def its_own_pair(row: SampledRow, earlier: Sequence[SampledRow]) -> Floats:
    """Holds a row against itself."""
    return pair_bets(replace(row, seed=None, twin=0), [row])


def not_merged(row: SampledRow, earlier: Sequence[SampledRow]) -> Floats:
    """Gives each rare token the ratio of the whole cell to the token alone."""
    cells = row.cells
    law = laws(row, earlier)["uniform", 0][np.arange(len(cells.x)), cells.x]
    likely = np.where(cells.live, row.p[np.arange(len(cells.x)), row.tokens], 1.0)
    return np.log(np.minimum(0.7 + 0.3 * law / likely, 1e12))[:, None] * cells.live[:, None]


@pytest.mark.parametrize("invalid", [peeking, choosing, skipping, its_own_pair, not_merged])
@pytest.mark.tiers(quick=1, rest=4)
def test_a_bet_that_is_none_is_seen(invalid: Bet) -> None:
    assert exceeds(invalid, 1.01, range(100))


@pytest.mark.parametrize("name", dict.fromkeys(law for law in LAWS if not law[0].startswith("pit")))
@pytest.mark.tiers(quick=1, rest=28)
def test_a_law_that_peeks_is_seen(name: tuple[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    def peeks(row: SampledRow, earlier: Sequence[SampledRow] = ()) -> dict[tuple[str, float], Floats]:
        found = laws(row, earlier)
        if name in found:
            found[name] = np.zeros_like(found[name])
            found[name][np.arange(len(row.tokens)), row.cells.x] = 1.0
        return found

    monkeypatch.setattr(bets_module, "laws", peeks)
    assert exceeds(bets, 1.001, range(30))


# What each bet is for.


def contexts(rng: np.random.Generator, n: int, size: int = 16) -> tuple[Floats, Floats, Floats]:
    scores = rng.normal(size=(n, size)) * 1.5
    q = np.exp(scores + rng.normal(size=(n, size)))
    raw, p = np.exp(scores), np.exp(scores / 0.5)
    return normal(p), normal(q), normal(raw)


def draw(law: Floats, uniforms: Floats) -> Ints:
    return np.asarray(np.minimum((law.cumsum(-1) <= uniforms[:, None]).sum(-1), law.shape[1] - 1))


def one_hot(law: Floats) -> Floats:
    return np.asarray(np.eye(law.shape[1])[law.argmax(-1)])


def normal(law: Floats) -> Floats:
    return np.asarray(law / law.sum(-1, keepdims=True))


def wrong_law(bet: bets_module.Bet, p: Floats, q: Floats, raw: Floats, other: Floats) -> Floats:
    """What a sampler with the fault draws from."""
    if bet.law in ("power", "raw"):
        return normal((p if bet.law == "power" else raw) ** bet.amount)
    accepted = np.minimum(p, q)
    before = np.concatenate([p[:1], p[:-1]])
    found: dict[str, Floats] = {
        "draft": q,
        "residual": normal(p - accepted),
        "residual-unused": accepted + (1 - accepted.sum(-1, keepdims=True)) * p,
        "drawn-again": p * q + (1 - (p * q).sum(-1, keepdims=True)) * p,
        "draft-argmax": one_hot(q),
        "argmax": one_hot(p),
        "uniform": np.full_like(p, 1 / p.shape[1]),
        "prefix-before": before,
        "other-rows": other,
        "row-before": other,
        "tighter": normal(np.where(p > np.where(p > 0, p, 1.0).min(-1, keepdims=True), p, 0.0)),
        "first-row-options": normal(p**0.6),
        "first-argmax": one_hot(p),
        "first-raw": raw,
        "residual-of-before": normal(np.maximum(p - np.concatenate([q[:1], q[:-1]]), 0)),
    }
    if bet.law == "threshold":
        taken = q * (p / q >= bet.amount)
        return np.asarray(taken + (1 - taken.sum(-1, keepdims=True)) * found["residual"])
    return found[bet.law]


def kept_coins(rng: np.random.Generator, p: Floats, q: Floats, kept: bool) -> Ints:
    """Tokens, each picked by a number below p/q of the token before, or by a fresh one."""
    tokens, bound = [], 1.0
    for t in range(len(p)):
        tokens.append(int(draw(p[t : t + 1], rng.random(1) * bound)[0]))
        bound = min(1.0, p[t, tokens[-1]] / q[t, tokens[-1]]) if kept else 1.0
    return np.array(tokens)


@pytest.mark.parametrize("name", [name for name in ALTERNATIVES if name.startswith("coin-kept")])
def test_a_bet_on_a_kept_coin_earns_where_one_is_kept(name: str) -> None:
    rng = np.random.default_rng(5)
    earned = [0.0, 0.0]
    for _ in range(30):
        p, q, raw = contexts(rng, 100)
        for kept in (False, True):
            row = SampledRow(kept_coins(rng, p, q, kept), p, q, raw, np.zeros(100, bool))
            earned[kept] += float(bets(row)[:, COLUMNS[name]].sum())
    assert earned[0] < np.log(1e3)
    assert earned[1] > np.log(1e6)


def gain(name: str, law: Callable[[Floats, Floats, Floats, Floats], Floats], rows: int = 12, n: int = 200) -> float:
    """What an alternative earns on rows drawn from a law, each after another row drawn rightly."""
    rng = np.random.default_rng(5)
    total = 0.0
    for _ in range(rows):
        p, q, raw = contexts(rng, n)
        if name.startswith("tighter"):
            p = normal(np.where(p >= np.sort(p, axis=-1)[:, -5:-4], p, 0.0))
        other = SampledRow(draw(p, rng.random(n)), *contexts(rng, n), np.zeros(n, bool))
        tokens = draw(law(p, q, raw, other.p), rng.random(n))
        row = SampledRow(tokens, p, q, raw, np.zeros(n, bool), first_row=normal(p**0.6))
        total += float(bets(row, [other])[:, COLUMNS[name]].sum())
    return total


@pytest.mark.parametrize("name", [name for name in ALTERNATIVES if not name.startswith(("pit", "coin"))])
@pytest.mark.tiers(quick=5, rest=19)
def test_a_law_earns_where_it_is_followed_and_not_where_it_is_not(name: str) -> None:
    base = name.split(":")[0]
    rows, n = (400, 3) if base in ("first-argmax", "first-raw") else (20, 200)
    assert gain(name, lambda p, q, raw, other: p, rows, n) < np.log(1e3)
    assert gain(name, lambda p, q, raw, other: wrong_law(ALTERNATIVES[name], p, q, raw, other), rows, n) > np.log(1e6)


@pytest.mark.parametrize("name", [name for name in ALTERNATIVES if name.startswith("pit")])
@pytest.mark.tiers(quick=4, rest=14)
def test_a_pit_bet_earns_where_uniforms_are_tilted(name: str) -> None:
    assert name.startswith("pit-")
    order, degree, tilt = name.removeprefix("pit-").replace(":", "-", 1).split("-", 2)
    rng = np.random.default_rng(1)
    n = 12000
    p, q, raw = contexts(rng, n)
    candidates, coins = rng.random(40 * n), rng.random(40 * n)
    shape = np.polynomial.legendre.legval(2 * candidates - 1, np.eye(4)[int(degree)])
    tilted = candidates[coins < (1 + float(tilt) * shape) / 2][:n]
    key = {"id": np.zeros_like(p), "p": -p, "p/q": p / q}[order]
    ranks = np.argsort(key, axis=-1, kind="stable")
    number = COLUMNS[name]
    earned = []
    for uniforms in (tilted, rng.random(n)):
        tokens = np.take_along_axis(ranks, draw(np.take_along_axis(p, ranks, -1), uniforms)[:, None], -1)[:, 0]
        earned.append(float(bets(SampledRow(tokens, p, q, raw, np.zeros(n, bool)))[:, number].sum()))
    assert earned[0] > 5
    assert earned[0] > earned[1]
    assert earned[1] < np.log(1e3)
    assert {bet.law.rpartition("-")[0] for bet in ALTERNATIVES.values() if bet.law.startswith("pit")} == {
        f"pit-{order}" for order in ORDERS
    }


def pair_gain(name: str, noise: str, lag: int = 0) -> float:
    """What a pair bet earns where the second row repeats the noise of the first, or each its own from ``lag`` ago."""
    rng = np.random.default_rng(7)
    n, size, total = 60, 16, 0.0
    for _ in range(10):
        rows: list[SampledRow] = []
        uniforms, races = rng.random((2, n)), rng.exponential(size=(2, n, size))
        if noise in ("uniform", "uniform-by-p", "race"):
            uniforms[1], races[1] = uniforms[0], races[0]
        if lag:
            for t in range(lag, n):
                uniforms[:, t], races[:, t] = uniforms[:, t - lag], races[:, t - lag]
        twins = contexts(rng, n)
        for number in range(2):
            p, q, raw = twins if name.startswith("twin") else contexts(rng, n)
            ranks = (
                np.argsort(-p, axis=-1, kind="stable") if noise == "uniform-by-p" else np.tile(np.arange(size), (n, 1))
            )
            tokens = np.take_along_axis(ranks, draw(np.take_along_axis(p, ranks, -1), uniforms[number])[:, None], -1)[
                :, 0
            ]
            if noise in ("race", "own-race"):
                tokens = (races[number] / p).argmin(-1)
            row = SampledRow(
                tokens, p, q, raw, np.zeros(n, bool), None, 0 if number and name.startswith("twin") else None
            )
            total += float(pair_bets(row, rows)[:, COLUMNS[name]].sum())
            rows.append(row)
    return total


def shared_coins(name: str, shared: bool, cases: int = 300) -> float:
    """What a pair bet earns where three rows accept their draft tokens by one coin at each place, or by their own."""
    rng, total, n = np.random.default_rng(7), 0.0, 3
    for _ in range(cases):
        rows: list[SampledRow] = []
        coins = rng.random(n)
        for _ in range(3):
            p, q, raw = contexts(rng, n)
            drafts, index = draw(q, rng.random(n)), np.arange(n)
            accepted = (coins if shared else rng.random(n)) < p[index, drafts] / q[index, drafts]
            left = normal(np.maximum(p - q, 0))
            row = SampledRow(np.where(accepted, drafts, draw(left, rng.random(n))), p, q, raw, np.zeros(n, bool))
            total += float(pair_bets(row, rows)[:, COLUMNS[name]].sum())
            rows.append(row)
    return total


@pytest.mark.parametrize("name", [name for name in PAIRS if name.startswith("shared-coin")])
@pytest.mark.tiers(quick=0, rest=3)
def test_a_bet_on_coins_earns_where_rows_share_them(name: str) -> None:
    assert shared_coins(name, True) > np.log(1e6)
    assert shared_coins(name, False) < np.log(1e3)


@pytest.mark.parametrize("name", [name for name in PAIRS if not name.startswith("shared-coin")])
@pytest.mark.tiers(quick=10, rest=13)
def test_a_pair_bet_earns_where_noise_is_shared(name: str) -> None:
    kinds = {
        "twin-equal": "race",
        "shared-uniform": "uniform",
        "shared-uniform-by-p": "uniform-by-p",
        "shared-race": "race",
    }
    base = name.split(":")[0]
    if base in kinds:
        assert pair_gain(name, kinds[base]) > np.log(1e6)
    else:
        noise, lag = base.rsplit("-", 1)
        assert int(lag) in LAGS
        assert pair_gain(name, noise, int(lag)) > np.log(1e6)
    assert pair_gain(name, "fresh") < np.log(1e3)


def test_rows_of_one_seed_are_not_held_against_each_other() -> None:
    rng = np.random.default_rng(0)
    p, q, raw = contexts(rng, 20)
    row = SampledRow(draw(p, rng.random(20)), p, q, raw, np.zeros(20, bool), seed=3)
    same, other = replace(row, twin=0), replace(row, twin=0, seed=4)
    shared = [number for number, name in enumerate(PAIRS) if name.startswith(("twin", "shared"))]
    assert not pair_bets(same, [row])[:, shared].any()
    assert (pair_bets(other, [row])[:, shared].sum(0) > np.log(1e6)).any()


def test_rows_that_are_greedy_share_no_random_numbers() -> None:
    rng = np.random.default_rng(0)
    cases = []
    for _ in range(20):
        p, q, raw = contexts(rng, 20)
        first = SampledRow(p.argmax(-1), p, q, raw, np.zeros(20, bool))
        cases.append([first, replace(first, twin=0)])
    assert sum(pair_bets(twin, [row]).sum(0)[COLUMNS["twin-equal:0.3"]] for row, twin in cases) > np.log(1e6)
    for cause in {bet.cause for bet in PAIRS.values()}:
        assert shared(cases, cause) < np.log(10)
    drawn = [replace(row, tokens=draw(row.p, rng.random(20))) for row, _ in cases]
    assert shared([[row, replace(row, twin=0)] for row in drawn], PAIRS["twin-equal:0.3"].cause) > np.log(1e6)


def test_twins_are_not_held_against_each_other_once_they_differ() -> None:
    rng = np.random.default_rng(0)
    p, q, raw = contexts(rng, 20)
    row = SampledRow(draw(p, rng.random(20)), p, q, raw, np.zeros(20, bool))
    twin = replace(with_token(row, 5, (int(row.tokens[5]) + 1) % 16), twin=0)
    logs = pair_bets(twin, [row])[:, COLUMNS["twin-equal:0.3"]]
    assert (logs[:5] > 0).all()
    assert logs[5] == pytest.approx(np.log(0.7))
    assert not logs[6:].any()


def test_impossible_tokens_are_named_and_not_bet_on() -> None:
    law = np.array([[0.0, 1.0], [0.0, 1.0], [0.5, 0.5]])
    row = SampledRow(np.array([0, 0, 0]), law, law, law, np.array([False, True, False]))
    assert row.impossible == [0]
    assert not every_bet(row, [])[:2].any()


@pytest.mark.parametrize(
    "change",
    [
        {"p": np.array([[0.5, 0.4]])},
        {"p": np.array([[1.5, -0.5]])},
        {"q": np.array([[np.nan, 1.0]])},
        {"raw": np.array([[0.5, 0.5]], np.float32)},
        {"tokens": np.array([2])},
        {"tokens": np.array([0, 1])},
        {"skip": np.array([0])},
    ],
)
def test_what_is_no_law_is_refused(change: dict[str, np.ndarray]) -> None:
    law = np.array([[0.5, 0.5]])
    row = SampledRow(np.array([0]), law, law, law, np.array([False]))
    with pytest.raises(UsageError, match="expected"):
        replace(row, **change)  # type: ignore[arg-type]
