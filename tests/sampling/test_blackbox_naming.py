"""Names from tokens alone: rounds are hidden, and what became of draft tokens is summed over."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from eqcheck.sampling.betting.laws import OPTIONS, TOKENS, Floats, wrong_samplers
from eqcheck.sampling.betting.naming import Named, named
from eqcheck.sampling.betting.token_laws import RIGHTS, Seen, predicted
from eqcheck.sampling.betting.token_laws import Tokens as Hidden

V, N = 12, 20
Laws = tuple[Floats, Floats]


def softmax(scores: Floats) -> Floats:
    raised = np.exp(scores)
    return np.asarray(raised / raised.sum(-1, keepdims=True))


def best(law: Floats) -> Floats:
    return np.asarray(np.eye(V)[law.argmax(-1)])


def seen(rng: np.random.Generator, decide: Callable[..., tuple[list[int], bool]], drafts: int) -> Seen:
    """A row whose laws do not depend on its tokens; ``decide`` draws the tokens of one column."""
    one, other = rng.normal(size=(2, N, V))
    p, q = softmax(1.5 * one), softmax(1.2 * one + 0.9 * other)
    tokens: list[int] = []
    while len(tokens) < N:
        for column in range(drafts + 1):
            if len(tokens) == N:
                break
            t = len(tokens)
            drawn, goes_on = decide(rng, p, q, t, column == drafts)
            tokens += drawn
            if not goes_on:
                break
    misused = {"": p, **dict.fromkeys(OPTIONS, p), "greedy": best(p), "temperature": softmax(2 * np.log(p))}
    nothing = np.zeros((N, 0, V)), np.zeros((N, 0), np.int64)
    return Seen(
        np.array(tokens), misused, {"": q, **dict.fromkeys(OPTIONS, q), "greedy": best(q)}, *nothing, {}, drafts, False
    )


def rejection(
    ratio: Callable[[float], float] = lambda r: r,
    correction: Callable[[Floats, Floats], Floats] = lambda p, q: np.maximum(p - q, 0),
    bonus: Callable[[Floats, int], Floats] = lambda p, t: p[t],
) -> Callable[..., tuple[list[int], bool]]:
    def decide(rng: np.random.Generator, p: Floats, q: Floats, t: int, last: bool) -> tuple[list[int], bool]:
        if last:
            law = bonus(p, t)
            return [int(rng.choice(V, p=law))], False
        d = int(rng.choice(V, p=q[t]))
        if rng.random() < ratio(p[t, d] / q[t, d]):
            return [d], True
        law = correction(p[t], q[t])
        return [int(rng.choice(V, p=law / law.sum()))], False

    return decide


def rows(decide: Callable[..., tuple[list[int], bool]], count: int = 150) -> list[Seen]:
    rng = np.random.default_rng(5)
    return [seen(rng, decide, int(rng.integers(1, 4))) for _ in range(count)]


def test_a_right_sampler_gives_every_token_the_law_of_the_target() -> None:
    (row,) = rows(rejection(), 1)
    for right in RIGHTS:
        np.testing.assert_allclose(predicted(row, right), row.p[""], atol=1e-12)


def test_what_a_sampler_predicts_is_a_law() -> None:
    (row,) = rows(rejection(), 1)
    row = row._replace(beside=dict.fromkeys(("q-next-row", "q-row-before", "q-first-row"), row.q[""][::-1]))
    for sampler in wrong_samplers(TOKENS, RIGHTS):
        if sampler.law.of == "behind" or (sampler.beside and sampler.beside not in row.beside):
            continue  # nothing is known of it here
        law = predicted(row, sampler)
        assert (law >= -1e-12).all(), sampler
        np.testing.assert_allclose(law.sum(-1), 1.0, atol=1e-9, err_msg=str(sampler))


def told(found: list[Seen], *earned: tuple[str, float]) -> Named | None:
    return named(Hidden(found, earned))


@pytest.mark.parametrize(
    ("kind", "decide"),
    [
        ("over-acceptance", rejection(ratio=lambda r: 1.0)),
        ("over-acceptance", rejection(ratio=lambda r: 2 * r)),
        ("residual", rejection(correction=lambda p, q: p)),
        ("residual", rejection(correction=lambda p, q: abs(p - q))),
        ("bonus-law", rejection(bonus=lambda p, t: np.eye(V)[p[t].argmax()])),
        ("bonus-column", rejection(bonus=lambda p, t: p[max(t - 1, 0)])),
    ],
)
@pytest.mark.tiers(quick=0, rest=1)
def test_a_fault_is_named_by_what_fits_best(kind: str, decide: Callable[..., tuple[list[int], bool]]) -> None:
    found = rows(decide)
    name = told(found)
    assert name is not None
    assert name.kind == kind


@pytest.mark.rest
def test_nothing_is_named_where_the_rows_are_right() -> None:
    found = rows(rejection())
    assert told(found) is None


@pytest.mark.rest
def test_nothing_is_named_where_the_tokens_come_from_elsewhere() -> None:
    def stray(rng: np.random.Generator, p: Floats, q: Floats, t: int, last: bool) -> tuple[list[int], bool]:
        law = 0.6 * p[t] + 0.4 * p[(t + 7) % N]
        return [int(rng.choice(V, p=law))], True

    found = rows(stray)
    assert max(gain for gain, _ in Hidden(found).likelihoods()) > 7  # something beats the right law, and is refuted
    name = told(found)
    assert name is None or name.kind == "stray-law"


@pytest.mark.long
def test_a_bet_that_earns_as_much_leaves_no_name() -> None:
    found = rows(rejection(correction=lambda p, q: p))
    best = max(gain for gain, _ in Hidden(found).likelihoods())
    stray, residual = told(found, ("stray-law", best)), told(found, ("residual", best))  # that says the same
    assert stray is not None
    assert residual is not None
    assert (stray.kind, residual.kind) == ("stray-law", "residual")
