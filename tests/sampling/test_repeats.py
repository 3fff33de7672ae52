"""Random numbers that a row uses again: which they are, and when they were used before."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from eqcheck.sampling.betting.laws import Floats
from eqcheck.sampling.betting.round_laws import Read, in_words, repeated

V, K, ROUNDS, ROWS = 24, 3, 12, 60
LEAST = 1e3


class Numbers:
    """The random numbers of a row; those that are ``kept`` are the same in each round, or in each column of one."""

    def __init__(self, rng: np.random.Generator, kept: tuple[str, ...], race: bool) -> None:
        self.rng, self.kept, self.race = rng, kept, race
        self.known: dict[Any, Floats] = {}

    def of(self, purpose: str, round_: int, column: int) -> Floats:
        key = (purpose, round_, column)
        if purpose in self.kept:
            key = (purpose, 0, column)
        if f"{purpose} of a round" in self.kept:
            key = (purpose, round_, 0)
        if key not in self.known:
            self.known[key] = self.rng.random(V)
        return self.known[key]

    def draw(self, law: Floats, numbers: Floats) -> int:
        if self.race:
            return int(np.where(law > 0, -np.log(numbers) / np.maximum(law, 1e-300), np.inf).argmin())
        return int((law.cumsum() <= numbers[0] * law.sum()).sum())


def row(rng: np.random.Generator, kept: tuple[str, ...], race: bool) -> Read:
    """The tokens of a row that is drawn by rejection sampling, each context with laws of its own."""
    numbers, told = Numbers(rng, kept, race), defaultdict[str, list[Any]](list)

    def tell(role: str, token: int, draft: int, column: int, p: Floats, q: Floats) -> None:
        for name, value in (("role", role), ("token", token), ("draft", draft), ("column", column), ("p", p), ("q", q)):
            told[name].append(value)

    for number in range(ROUNDS):
        for column in range(K + 1):
            p, q = rng.dirichlet(np.ones(V) * 0.5, 2)
            if column == K:
                tell("bonus", numbers.draw(p, numbers.of("target", number, 0)), -1, column, p, q)
                break
            d = numbers.draw(q, numbers.of("draft", number, column))
            if numbers.of("coin", number, column)[0] < p[d] / q[d]:
                tell("accepted", d, d, column, p, q)
                continue
            left = np.maximum(p - q, 0)
            tell("corrected", numbers.draw(left / left.sum(), numbers.of("target", number, 0)), d, column, p, q)
            break
    count = len(told["token"])
    laws = {name: np.array(told[name]) for name in ("p", "q")}
    yes, no = np.ones(count, bool), np.zeros(count)
    role, token, draft, columns = (np.array(told[name]) for name in ("role", "token", "draft", "column"))
    return Read(role, yes, token, draft, columns, no > 0, {"": laws["p"]}, {"": laws["q"]}, {}, {}, no, no)


def rows(seed: int, kept: tuple[str, ...] = (), race: bool = True) -> Iterator[Read]:
    rng = np.random.default_rng(seed)
    return (row(rng, kept, race) for _ in range(ROWS))


@pytest.mark.parametrize("race", [True, False])
@pytest.mark.parametrize(
    ("kept", "found"),
    [
        (("draft",), {("draft", "round-before")}),
        (("coin",), {("acceptance", "round-before")}),
        (("target",), {("target", "round-before")}),
        (("draft", "coin"), {("draft", "round-before"), ("acceptance", "round-before")}),
        (("draft of a round",), {("draft", "round")}),
        (("coin of a round",), {("acceptance", "round")}),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, tuple) else "",
)
def test_the_numbers_that_are_used_again_are_named(kept: tuple[str, ...], found: set[Any], race: bool) -> None:
    assert {(one.numbers, one.when) for one in repeated(rows(1, kept, race), LEAST)} == found


def test_both_numbers_are_told_in_words() -> None:
    words = in_words(repeated(rows(1, ("draft", "coin")), LEAST))
    assert "draft tokens are drawn with the random numbers that drew those of the round before" in words
    assert "draft tokens are accepted or rejected by the random numbers of the round before" in words


@pytest.mark.parametrize("race", [True, False])
@pytest.mark.tiers(quick=1, rest=1)
def test_fresh_numbers_are_never_told_to_be_used_again(race: bool) -> None:
    assert not any(repeated(rows(seed, (), race), LEAST) for seed in range(4))
