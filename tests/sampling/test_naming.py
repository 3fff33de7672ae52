"""What a sampler is named from its rounds: each way to be wrong is told from the others, and nothing is made up."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import pytest

from eqcheck.contract.kinds import KINDS
from eqcheck.core.result.outcome import Outcome
from eqcheck.sampling import sampler_named
from eqcheck.sampling.betting.laws import (
    BESIDE,
    ERRORS,
    OPTIONS,
    PLACES,
    REJECTION,
    ROUNDS,
    TOKENS,
    Floats,
    PartLaw,
    SampledRow,
    SamplerLaws,
    Verification,
    in_words,
    right_samplers,
    tighter,
    wrong_samplers,
)
from eqcheck.sampling.betting.naming import MANY, NAMED, KnownRounds, Named
from eqcheck.sampling.betting.naming import named as named_by
from eqcheck.sampling.betting.round_laws import PARTS, PartLaws, Read, misfit, together
from eqcheck.sampling.betting.wealth import ALTERNATIVES, Wealth
from eqcheck.sampling.judge import wrong_law

V, COUNT = 10, 700
RIGHT = Verification(REJECTION)


def named(reads: Iterable[Read]) -> Named | None:
    return named_by(KnownRounds(reads))


Draw = Callable[[np.random.Generator, Floats, Floats], tuple[str, int, int]]


def pick(rng: np.random.Generator, weights: Floats) -> int:
    return int(rng.choice(len(weights), p=weights / weights.sum()))


def rejection(
    rng: np.random.Generator,
    p: Floats,
    q: Floats,
    *,
    draft: Callable[[Floats], Floats] = lambda q: q,
    accept: Callable[[float], float] = lambda ratio: ratio,
    left: Callable[[Floats, Floats], Floats] = lambda p, q: np.maximum(p - q, 0),
) -> tuple[str, int, int]:
    """What a round with one draft token emits there: its role, the token, and the draft token."""
    d = pick(rng, draft(q))
    if rng.random() < accept(p[d] / q[d]):
        return "accepted", d, d
    token = pick(rng, left(p, q))
    return ("accepted" if token == d else "corrected"), token, d


def matching(rng: np.random.Generator, p: Floats, q: Floats) -> tuple[str, int, int]:
    d, token = int(q.argmax()), pick(rng, p)
    return ("accepted" if token == d else "corrected"), token, d


def read(draw: Draw, bonus: Callable[[Floats], Floats] = lambda p: p, seed: int = 0, count: int = COUNT) -> Read:
    """So many tokens behind one draft token each, and half as many bonus tokens."""
    rng = np.random.default_rng(seed)
    p, q, warm = (rng.dirichlet(np.ones(V), count + count // 2) for _ in range(3))
    drawn = [draw(rng, p[i], q[i]) for i in range(count)]
    drawn += [("bonus", pick(rng, bonus(p[i])), -1) for i in range(count, len(p))]
    role, token, drafted = (np.array(column) for column in zip(*drawn, strict=True))
    of_p: dict[str, Floats] = {"": p, **dict.fromkeys(OPTIONS, p), "temperature": warm}
    of_q: dict[str, Floats] = {"": q, **dict.fromkeys(OPTIONS, q)}
    beside = {name: rng.dirichlet(np.ones(V), len(p)) for name in BESIDE}
    no = np.zeros(len(p), bool)
    around = {name: np.roll(p, 1 + place, axis=0) for place, name in enumerate(PLACES)}
    spent = np.where(role == "bonus", rng.random(len(p)), 1.0)
    return Read(
        role, ~no, token, drafted, 1 * (role == "bonus"), no, of_p, of_q, around, beside, spent, np.ones(len(p))
    )


def best(law: Floats) -> Floats:
    return np.asarray(np.eye(len(law))[law.argmax()])


WRONG: dict[str, tuple[str, dict[str, Any]]] = {
    "a halved coin": ("over-acceptance", {"accept": lambda ratio: 2 * ratio}),
    "every draft": ("over-acceptance", {"accept": lambda ratio: 1.0}),
    "a tenth off": ("under-acceptance", {"accept": lambda ratio: 0.7 * min(1.0, ratio)}),
    "the residual's likeliest": ("residual", {"left": lambda p, q: best(p - q)}),
    "corrections from p": ("residual", {"left": lambda p, q: p}),
    "the absolute difference": ("residual", {"left": lambda p, q: abs(p - q)}),
    "a greedy draft": ("draft-law", {"draft": best}),
}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", WRONG)
@pytest.mark.tiers(quick=3, rest=6)
def test_a_wrong_sampler_is_named(name: str, seed: int) -> None:
    kind, changes = WRONG[name]
    found = named([read(lambda rng, p, q: rejection(rng, p, q, **changes), seed=seed)])
    assert found is not None
    assert found.kind == kind
    assert found.log_factor >= np.log(NAMED)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("draw", [rejection, matching])
@pytest.mark.tiers(quick=1, rest=2)
def test_nothing_is_said_of_a_right_sampler(draw: Draw, seed: int) -> None:
    assert named([read(draw, seed=seed)]) is None


def test_a_wrong_bonus_is_named() -> None:
    found = named([read(rejection, bonus=lambda p: p**2)])
    assert found is not None
    assert (found.kind, found.words) == ("bonus-law", "a bonus is drawn at 0.54 times the temperature")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("before", "bonus-column"),
        ("first-column", "bonus-column"),
        ("round-before", "stale-bonus"),
        ("round-before-end", "stale-bonus"),
    ],
)
@pytest.mark.tiers(quick=2, rest=2)
def test_a_bonus_of_another_place_is_named(name: str, kind: str) -> None:
    elsewhere = read(rejection)
    laws = elsewhere.around[name][COUNT:]
    elsewhere.token[COUNT:] = [pick(np.random.default_rng(i), law) for i, law in enumerate(laws)]
    found = named([elsewhere])
    assert found is not None
    assert found.kind == kind


def test_a_number_that_accepted_a_draft_token_and_picks_the_bonus_is_named() -> None:
    one, rng = read(rejection), np.random.default_rng(5)
    for i in range(COUNT, len(one.token)):
        one.token[i] = (one.p[""][i].cumsum() <= rng.random() * one.spent[i]).sum()
    found = named([one])
    assert found is not None
    assert (found.kind, found.words) == (
        "reused-noise",
        "the random number that accepted the last draft token picks the bonus",
    )


@pytest.mark.parametrize(
    ("least", "count", "told"),
    [(0.5, COUNT, "0.(48|52)"), (0.5, 200, "0.48 to 0.52"), (0.33, COUNT, "0.33")],
)
def test_a_threshold_in_place_of_a_coin_is_named(least: float, count: int, told: str) -> None:
    found = named([read(partial(rejection, accept=lambda ratio: float(ratio >= least)), count=count)])
    assert found is not None
    assert found.kind == "threshold-acceptance"
    words = f"a draft token is accepted where its ratio exceeds about {told}: no random number decides"
    assert re.fullmatch(words, found.words)


def sampler_of(words: str, rights: int = -1) -> SamplerLaws:
    """The sampler with these words, of the right ones with this number."""
    found = [one for one in wrong_samplers(ROUNDS, right_samplers()[rights:][:1]) if in_words([one]) == words]
    assert len(found) == 1
    return found[0]


def test_words_have_one_number_at_most_and_of_several_a_range() -> None:
    for told in (ROUNDS, TOKENS):
        for sampler in wrong_samplers(told, right_samplers()):
            words = in_words([sampler])
            assert len(re.findall(r"\d+(?:\.\d+)?", words)) <= 1, words
            assert not re.search(r"\de[-+]|[{}]", words)
    ratios = [one for one in wrong_samplers(ROUNDS, right_samplers()[1:2]) if one.law.rule == "times"]
    assert in_words(ratios[-3:]) == "the ratio is about 0.54 to 0.88 times what is right"
    assert in_words([ratios[0], sampler_of("every draft token is accepted", 1)]) == ""


def test_every_kind_of_the_table_is_one_and_no_amount_is_that_of_a_planted_fault() -> None:
    assert {error.kind for error in ERRORS} <= set(KINDS)
    assert {bet.kind for bet in ALTERNATIVES} - {""} <= set(KINDS)
    amounts = {law.amount for error in ERRORS for law in error.laws} | {bet.amount for bet in ALTERNATIVES}
    assert amounts.isdisjoint({0.5, 0.7, 0.9, 1 / 0.9, 1 / 0.7, 1e-5})


@pytest.mark.parametrize("words", ["", "corrections are the target's likeliest"])
def test_the_meaning_of_a_kind_is_not_said_twice(words: str) -> None:
    """The heading has it."""
    wealth = Wealth()
    wealth.log_supremum = 30.0
    seen = wrong_law(Outcome(None, "equivalent"), wealth, Named("residual", words, 20.0)).explanation
    assert seen is not None
    assert seen.detail.startswith(f"{words}; after 0 tokens the evidence" if words else "after 0 tokens the evidence")
    assert KINDS["residual"].meaning not in seen.detail


@pytest.mark.rest
def test_what_no_sampler_of_the_list_does_has_no_name() -> None:
    """Draft tokens are accepted by what the row was before, and corrected by halves from two wrong laws."""

    def odd(rng: np.random.Generator, p: Floats, q: Floats) -> tuple[str, int, int]:
        d = pick(rng, q)
        if rng.random() < (0.9 if d % 3 else 0.1):
            return "accepted", d, d
        strange: Floats = np.linspace(0.0, 1.0, V) * np.maximum(p - q, 1e-3)
        law = strange if rng.random() < 0.5 else np.maximum(q - p, 0)
        law[d] = 0.0
        return "corrected", pick(rng, law), d

    found = named([read(odd)])
    assert found is not None
    assert found.kind == "stray-law"


def strange(p: Floats, q: Floats) -> Floats:
    """A law that no known error of corrections makes."""
    return np.asarray(np.linspace(1.0, 0.0, V) ** 2 * np.maximum(p - q, 0.02))


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.tiers(quick=1, rest=1)
def test_corrections_alone_that_follow_no_known_law_are_named(again: bool) -> None:
    """They may draw the refused draft token again, which then looks accepted too often."""

    def draw(rng: np.random.Generator, p: Floats, q: Floats) -> tuple[str, int, int]:
        d = pick(rng, q)
        if rng.random() < p[d] / q[d]:
            return "accepted", d, d
        law = strange(p, q)
        law[d] *= again
        token = pick(rng, law)
        return ("accepted" if token == d else "corrected"), token, d

    found = named([read(draw)])
    assert found is not None
    assert (found.kind, found.words) == (
        "residual",
        "corrections are drawn neither from the residual nor by an error that has a name",
    )


@pytest.mark.parametrize("accept", [lambda ratio: 0.4 * ratio**2, lambda ratio: 0.8])
@pytest.mark.tiers(quick=1, rest=1)
def test_corrections_are_not_named_alone_where_acceptance_is_wrong_as_well(accept: Callable[[float], float]) -> None:
    found = named([read(partial(rejection, accept=accept, left=strange))])
    assert found is not None
    assert found.kind == "stray-law"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.tiers(quick=1, rest=2)
def test_a_draft_that_races_with_the_noise_of_the_target_is_no_wrong_correction(seed: int) -> None:
    def coupled(rng: np.random.Generator, p: Floats, q: Floats) -> tuple[str, int, int]:
        times = rng.exponential(size=V)
        d, token = int((times / q).argmin()), int((times / p).argmin())
        return ("accepted" if token == d else "corrected"), token, d

    found = named([read(coupled, seed=seed)])
    assert found is None or found.kind == "stray-law"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.tiers(quick=1, rest=2)
def test_a_draft_that_has_the_targets_own_noise_is_not_taken_for_the_fault(seed: int) -> None:
    """A draft that races with the noise of the target is accepted more often than any ratio says; only bonuses lie."""

    def coupled(rng: np.random.Generator, p: Floats, q: Floats) -> tuple[str, int, int]:
        times = rng.exponential(size=V)
        d, token = int((times / q).argmin()), int((times / p).argmin())
        return ("accepted" if token == d else "corrected"), token, d

    found = named([read(coupled, bonus=best, seed=seed)])
    assert found is None or found.kind in ("stray-law", "bonus-law")


def test_the_words_say_no_more_than_the_kind_where_two_are_alike() -> None:
    """Here the laws without a temperature and without any option are the same: it cannot be told which was left out."""
    one = read(rejection)
    both = {**one.p, "options": one.p["temperature"]}
    rng = np.random.default_rng(1)
    warm = one.p["temperature"]
    drawn = [rejection(rng, warm[i], one.q[""][i]) for i in range(COUNT)]
    one.role[:COUNT], one.token[:COUNT], one.draft[:COUNT] = zip(*drawn, strict=True)
    told = named([one])
    alike = named([Read(**{**vars(one), "p": both})])
    assert told is not None
    assert alike is not None
    assert (told.kind, alike.kind) == ("target-option", "target-option")
    assert "without the row's temperature" in told.words
    assert alike.words == ""


@pytest.mark.parametrize("often", [False, True])
def test_a_few_tokens_without_probability_bear_out_no_words(often: bool) -> None:
    """Two odd tokens may come from anything."""
    one = read(rejection)
    cut = np.where(one.p[""] >= np.sort(one.p[""], axis=-1)[:, -4][:, None], one.p[""], 0.0)
    cut /= cut.sum(-1, keepdims=True)
    rng = np.random.default_rng(1)
    drawn = [rejection(rng, cut[i], one.q[""][i]) for i in range(COUNT)]
    one.role[:COUNT], one.token[:COUNT], one.draft[:COUNT] = zip(*drawn, strict=True)
    one.token[COUNT:] = cut[COUNT:].argmax(-1)
    for i in np.flatnonzero((one.role == "corrected") & (cut[np.arange(len(cut)), one.draft] == 0))[
        : 20 if often else 2
    ]:
        one.role[i], one.token[i] = "accepted", one.draft[i]
    told = Read(**{**vars(one), "p": {**dict.fromkeys(one.p, cut), "cuts": one.p[""], "options": one.p[""]}})
    sampler = sampler_of("the target's distribution is taken without the row's cuts where draft tokens are verified", 1)
    assert KnownRounds([told]).bears_out(sampler) == often


@pytest.mark.parametrize("everywhere", [True, False])
@pytest.mark.tiers(quick=0, rest=1)
def test_a_cut_that_takes_one_token_too_many_is_named(everywhere: bool) -> None:
    """It shows by what never comes; and a sampler whose law is right but for that does not fit."""
    one = read(rejection, count=4 * COUNT)
    cut = np.where(one.p[""] >= np.sort(one.p[""], axis=-1)[:, -4][:, None], one.p[""], 0.0)
    cut /= cut.sum(-1, keepdims=True)
    short = tighter(cut) if everywhere else cut
    rng, n = np.random.default_rng(2), 4 * COUNT
    drawn = [rejection(rng, short[i], one.q[""][i]) for i in range(n)]
    one.role[:n], one.token[:n], one.draft[:n] = zip(*drawn, strict=True)
    one.token[n:] = [pick(rng, law) for law in short[n:]]
    laws = {**dict.fromkeys(one.p, cut), "cuts": one.p[""], "options": one.p[""], "top-p-tighter": tighter(cut)}
    told = Read(**{**vars(one), "p": laws, "around": dict.fromkeys(one.around, cut)})
    found = named([told])
    if everywhere:
        assert found is not None
        assert found.kind == "target-option"
        assert misfit([told], "bonus", PartLaw()) > np.log(NAMED)
    else:
        assert found is None
        assert misfit([told], "bonus", PartLaw()) < np.log(NAMED)


@pytest.mark.parametrize("rate", [0.0, 0.01, 0.05])
@pytest.mark.tiers(quick=2, rest=1)
def test_impossible_tokens_that_are_accepted_now_and_then_are_named_where_there_are_enough(rate: float) -> None:
    one = read(rejection)
    cut = np.where(one.p[""] >= np.sort(one.p[""], axis=-1)[:, -4][:, None], one.p[""], 0.0)
    cut /= cut.sum(-1, keepdims=True)
    rng = np.random.default_rng(2)

    def accept(ratio: float) -> float:
        return ratio if ratio > 0 else rate

    drawn = [rejection(rng, cut[i], one.q[""][i], accept=accept) for i in range(COUNT)]
    one.role[:COUNT], one.token[:COUNT], one.draft[:COUNT] = zip(*drawn, strict=True)
    one.token[COUNT:] = [pick(rng, law) for law in cut[COUNT:]]
    odd = int((cut[np.arange(len(cut)), one.token] == 0).sum())
    found = named([Read(**{**vars(one), "p": {**dict.fromkeys(one.p, cut), "cuts": one.p[""], "options": one.p[""]}})])
    if odd >= MANY:
        assert found is not None
        assert found.words == "draft tokens are accepted that the target never emits"
    else:
        assert found is None or found.kind == "stray-law"
    assert (odd >= MANY) == (rate == 0.05)


def test_a_kind_within_the_law_is_not_named_beside_a_token_without_probability(monkeypatch: pytest.MonkeyPatch) -> None:
    law, no = np.array([[0.0, 1.0]]), np.zeros(1, bool)
    for kind, within in (("under-acceptance", True), ("residual", False)):
        monkeypatch.setattr(sampler_named, "named", lambda evidence, kind=kind: Named(kind, "", 20.0))
        for token in (0, 1):
            row = SampledRow(np.array([token]), law, law, law, no)
            found = sampler_named.cause([[row]], [(ALTERNATIVES[0], 0.0)], KnownRounds([]))
            assert (found is None) == (within and token == 0)


@pytest.mark.parametrize("part", ["draft", "accept", "correction", "bonus"])
def test_the_right_laws_fit_and_wrong_ones_do_not(part: str) -> None:
    reads = list(together([read(rejection)]))
    name = RIGHT if part in ("accept", "correction") else PartLaw()
    assert misfit(reads, part, name) < np.log(NAMED)
    wrong = [read(lambda rng, p, q: rejection(rng, p, q, accept=lambda r: 0.5 * r, left=lambda p, q: p**2, draft=best))]
    wrong[0].token[COUNT:] = 0
    assert misfit(wrong, part, name) > np.log(NAMED)


@pytest.mark.rest
def test_the_right_laws_seldom_misfit() -> None:
    """Evidence of 10 against what is right comes once in ten at most."""
    over = [
        misfit([read(rejection, seed=seed, count=200)], part, RIGHT if part in ("accept", "correction") else PartLaw())
        > np.log(10)
        for seed in range(40)
        for part in ("draft", "accept", "correction", "bonus")
    ]
    assert np.mean(over) <= 0.1


def test_noise_that_is_used_again_has_the_law_that_it_makes() -> None:
    """The corrections that one coin, or one race, makes for draft and correction, drawn and computed."""
    rng = np.random.default_rng(3)
    p, q = rng.dirichlet(np.ones(4), 2)
    raced, coined = np.zeros((4, 4)), np.zeros((4, 4))
    for _ in range(40_000):
        times = rng.exponential(size=4)
        d, coin = int((times / q).argmin()), rng.random()
        left = np.maximum(p - q, 0) / np.maximum(p - q, 0).sum()
        if coin * q[d] >= p[d]:
            coined[d, int((coin < left.cumsum()).argmax())] += 1
            raced[d, int(np.where(left > 0, times / np.maximum(left, 1e-12), np.inf).argmin())] += 1
    d = int(raced.sum(1).argmax())
    one = read(rejection, count=1)
    law = {"": p[None], **dict.fromkeys(OPTIONS, p[None])}
    drafts = {"": q[None], **dict.fromkeys(OPTIONS, q[None])}
    told = {
        **vars(one),
        "p": law,
        "q": drafts,
        "beside": {name: np.zeros((1, 4)) for name in BESIDE},
        "draft": np.array([d]),
        "token": np.array([0]),
    }
    told |= {"role": one.role[:1], "around": dict.fromkeys(PLACES, p[None]), "first": one.first[:1]}
    told |= {"spent": np.ones(1), "lowest": np.ones(1)}
    laws = PartLaws(Read(**{**told, "column": np.array([0]), "drafted": np.array([True])}))
    for rule, counts in (("coin", coined), ("race", raced)):
        assert laws.correction(RIGHT._replace(rule=PartLaw(rule)))[0] == pytest.approx(
            counts[d] / counts[d].sum(), abs=0.02
        )


def test_every_law_of_a_sampler_is_computed_and_gives_chances() -> None:
    one = read(matching, count=50)
    for part in PARTS[:4]:
        told = one.of(part)
        laws = PartLaws(told)
        for name in {getattr(sampler, part) for sampler in wrong_samplers(ROUNDS, right_samplers())} - {None}:
            chance = laws.chance(part, name)
            assert ((chance > 0) & (chance <= 1)).all(), name
            if part != "accept":
                assert laws.law(part, name).sum(-1) == pytest.approx(np.ones(len(told))), name
