"""The samplers that are simulated: right ones, and one per fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from simulated_samplers import Bonus, Column, Options, Sampler, Verify, bonus_of, draw, positive, speculative

from eqcheck.sampling.betting.laws import Bools, Floats, Ints


def one_hot(s: Column) -> Floats:
    return np.asarray(np.eye(s.p.shape[1])[s.q.argmax(-1)])


def best(law: Floats) -> Ints:
    return np.asarray(law.argmax(-1))


def without(s: Column, d: Ints) -> Floats:
    """The target's law without the draft token."""
    rest = s.p.copy()
    rest[s.index, d] = 0.0
    return np.where(rest.sum(-1, keepdims=True) > 0, rest, s.p)


def likely(law: Callable[[Column], Floats]) -> Callable[[Column, Ints], Floats]:
    return lambda s, d: law(s)[s.index, d]


def matched(s: Column) -> tuple[Ints, Bools]:
    token = draw(s.p, s.uniform("coin"))
    return token, token == draw(s.q, s.uniform("draft"))


def two_drafts(recursive: bool) -> Verify:
    """Two draft tokens per column, one after the other (SpecInfer, https://arxiv.org/abs/2305.09781)."""

    def verify(s: Column) -> tuple[Ints, Bools]:
        d, e = draw(s.q, s.uniform("draft")), draw(s.q, s.uniform("draft 2"))
        first = s.uniform("coin") < s.p[s.index, d] / s.q[s.index, d]
        rest = positive(s.p, s.q)
        rest = rest / rest.sum(-1, keepdims=True)
        law = rest if recursive else s.p
        second = s.uniform("coin 2") < law[s.index, e] / s.q[s.index, e]
        final = draw(positive(rest, s.q) if recursive else rest, s.uniform("correction"))
        return np.where(first, d, np.where(second, e, final)), first | second

    return verify


def raced(s: Column) -> Ints:
    return np.asarray((-np.log1p(-s.uniform("bonus", s.p.shape[1])) / np.maximum(s.p, 1e-300)).argmin(-1))


def _nothing(s: Column) -> tuple[Ints, Bools]:
    raise AssertionError("no draft column")


MATCH_ONE_HOT = speculative(one_hot, likely(lambda s: s.p), without)
RIGHT = {
    "rejection": Sampler(speculative()),
    "one-hot": Sampler(MATCH_ONE_HOT),
    "sample-match": Sampler(matched),
    "block verification": Sampler(_nothing, block=True),
    "recursive tree": Sampler(two_drafts(recursive=True)),
    "plain": Sampler(_nothing, drafts=0),
    "plain, race": Sampler(_nothing, lambda s, before: raced(s), drafts=0),
}


def argmax_verified(s: Column) -> tuple[Ints, Bools]:
    return best(s.p), best(s.p) == draw(s.q, s.uniform("draft"))


def drawn_again(s: Column) -> tuple[Ints, Bools]:
    d = draw(s.q, s.uniform("draft"))
    equal = draw(s.p, s.uniform("coin")) == d
    return np.where(equal, d, draw(s.p, s.uniform("correction"))), equal


def gumbel_reused(s: Column) -> tuple[Ints, Bools]:
    noise = -np.log(-np.log(np.maximum(s.uniform("draft", s.p.shape[1]), 1e-300)))
    with np.errstate(divide="ignore"):
        d = best(np.log(s.q) + noise)
        again = best(np.log(positive(s.p, s.q)) + noise)
    accepted = s.uniform("coin") < s.p[s.index, d] / s.q[s.index, d]
    return np.where(accepted, d, again), accepted


def one_uniform(s: Column) -> tuple[Ints, Bools]:
    d, u = draw(s.q, s.uniform("draft")), s.uniform("coin")
    accepted = u < s.p[s.index, d] / s.q[s.index, d]
    return np.where(accepted, d, draw(positive(s.p, s.q), u)), accepted


def next_column(s: Column, d: Ints) -> Floats:
    other = s.after(d)
    return positive(other.p, other.q)


def _entropy(s: Column) -> Floats:
    return np.asarray(-(s.p * np.log(np.maximum(s.p, 1e-300))).sum(-1))


def typical(s: Column, d: Ints) -> Floats:
    return np.where(s.p[s.index, d] > np.minimum(0.09, 0.3 * np.exp(-_entropy(s))), 2.0, 0.0)


def other_q(s: Column) -> Floats:
    return np.roll(s.q, 1, axis=0)


def kept_share(s: Column) -> Floats:
    """The draft's law after top-k with the probabilities before it."""
    return np.asarray(s.q * np.where(s.q > 0, s.raw_q, 0.0).sum(-1, keepdims=True))


def rounded(law: Floats) -> Floats:
    """As bfloat16 stores it."""
    bits = law.astype(np.float32).view(np.uint32)
    return np.asarray(((bits + 0x8000) & 0xFFFF0000).view(np.float32).astype(np.float64))


@dataclass(frozen=True)
class Fault:
    """A sampler that is wrong, the options of its rows, another regime, and medians of a study done before."""

    sampler: Sampler
    other: str
    before_std: str = ""
    before_other: str = ""
    options: tuple[Options, ...] = ((0.7, 0, 1.0),)


def wrong(bonus: Bonus = RIGHT["rejection"].bonus, **parts: Any) -> Sampler:
    """Rejection sampling with some parts of `speculative` replaced."""
    return Sampler(speculative(**parts), bonus)


def over(law: Callable[[Column], Floats], under: Callable[[Column], Floats]) -> Callable[[Column, Ints], Floats]:
    """The ratio of two laws at the draft token."""
    return lambda s, d: law(s)[s.index, d] / np.maximum(under(s)[s.index, d], 1e-300)


def left(law: Callable[[Column], Floats], taken: Callable[[Column], Floats]) -> Callable[[Column, Ints], Floats]:
    """The residual of two laws."""
    return lambda s, d: positive(law(s), taken(s))


def sure(law: Callable[[Column], Floats]) -> Callable[[Column, Ints], Floats]:
    """All on the most likely token."""
    return lambda s, d: np.asarray(np.eye(s.p.shape[1])[best(law(s))])


def p(s: Column) -> Floats:
    return s.p


def q(s: Column) -> Floats:
    return s.q


def raw(s: Column) -> Floats:
    return s.raw


def half(s: Column) -> Floats:
    return s.uniform("coin") / 2


def coarse(s: Column) -> Floats:
    """One of 101 values; 0 is below every ratio, because the comparison is inclusive."""
    return np.asarray(np.floor(s.uniform("coin") * 101) / 100 - 1e-12)


def bfloat(law: Callable[[Column], Floats]) -> Callable[[Column], Floats]:
    return lambda s: rounded(law(s))


def certain(s: Column, before: Column) -> Ints:
    return best(s.p)


def late(s: Column, before: Column) -> Ints:
    return draw(before.p, s.uniform("bonus"))


def race(s: Column, before: Column) -> Ints:
    return raced(s)


def first(s: Column) -> Ints:
    return best(s.p)


CUT: tuple[Options, ...] = ((1.0, 20, 1.0),)
MIXED: tuple[Options, ...] = ((0.7, 0, 1.0), (1.0, 0, 1.0), (1.4, 0, 1.0))
ALL = ("draft", "coin", "correction", "bonus")
ONE_HOT: dict[str, Any] = {"drafted": one_hot, "ratio": likely(p)}
HALF_SURE = wrong(drafted=one_hot, ratio=lambda s, d: 2 * s.p[s.index, d], residual=without)
BARE = wrong(bonus_of(raw), ratio=over(raw, q), residual=left(raw, q))
TYPICAL = wrong(ratio=typical, residual=sure(p))
TOP_K = wrong(ratio=over(p, kept_share), residual=left(p, kept_share))
BFLOAT = wrong(ratio=over(bfloat(p), bfloat(q)), residual=left(bfloat(p), bfloat(q)))
FAULTS = {
    "correction from the next column": Fault(wrong(residual=next_column), "near4", "15"),
    "ratio inverted": Fault(wrong(ratio=over(q, p)), "near4", "20-40"),
    "every draft accepted": Fault(wrong(ratio=lambda s, d: np.full(len(d), 2.0)), "near4", "29"),
    "argmax verification": Fault(Sampler(argmax_verified, certain), "near4", "37"),
    "q of another row in the ratio": Fault(wrong(ratio=over(p, other_q)), "near4", "38"),
    "abs instead of relu in the residual": Fault(wrong(residual=lambda s, d: abs(s.p - s.q)), "near4", "55"),
    "temperature missing on the target": Fault(BARE, "near4", "103", "105"),
    "typical acceptance": Fault(TYPICAL, "near4", "107"),
    "correction is the argmax of the residual": Fault(wrong(residual=sure(lambda s: positive(s.p, s.q))), "few", "214"),
    "greedy draft, softmax q": Fault(wrong(drafted=one_hot), "near4", "233", "58"),
    "one-hot draft, threshold 0.5": Fault(HALF_SURE, "few", "289", "404"),
    "residual not used": Fault(wrong(residual=lambda s, d: s.p), "few", "299", "427"),
    "residual with another row's q": Fault(wrong(residual=left(p, other_q)), "few", "332", "566"),
    "uniforms of [0, 1/2)": Fault(wrong(coin=half), "near4", "351"),
    "two drafts, no recursive residual": Fault(Sampler(two_drafts(recursive=False)), "few", "370", "690"),
    "bonus from the column before": Fault(wrong(late), "near", "519", "10"),
    "temperature missing in the residual only": Fault(wrong(residual=left(raw, q)), "near4", "568"),
    "one-hot draft, not masked in the residual": Fault(
        wrong(residual=lambda s, d: s.p, **ONE_HOT), "near4", "576", "306"
    ),
    "ratio with q at temperature 1": Fault(wrong(ratio=over(p, lambda s: s.raw_q)), "near4", "734", "728"),
    "one uniform for coin and correction": Fault(Sampler(one_uniform), "near4", "1.4k", "2.8k"),
    "equal, else drawn again": Fault(Sampler(drawn_again), "few", "1.2-1.9k", "805"),
    "q not renormalised after top-k": Fault(TOP_K, "near4", "4.6k", "2.0k", CUT),
    "bonus is the argmax": Fault(wrong(certain), "near", "26k", "81"),
    "bonus at temperature 1": Fault(wrong(bonus_of(raw)), "near", "> 30k", "517"),
    "coin of 101 values, inclusive": Fault(wrong(coin=coarse), "far", "> 30k", "578"),
    "acceptance x 1/0.9": Fault(wrong(ratio=lambda s, d: over(p, q)(s, d) / 0.9), "near4", "29k", "6.7k"),
    "draft's Gumbel noise in the correction": Fault(Sampler(gumbel_reused), "far", "27k"),
    "p and q rounded to bfloat16": Fault(BFLOAT, "near4", "never", "never"),
    "options of row 0 for all rows": Fault(Sampler(speculative(), option_of_row_0=True), "near4", "103", "", MIXED),
    "first token is the argmax": Fault(Sampler(speculative(), first=first), "near4"),
    "all noise shared between rows": Fault(Sampler(speculative(), shared=ALL), "near", "6-26"),
    "draft's noise shared between rows": Fault(Sampler(speculative(), shared=("draft",)), "near4", "123"),
    "draft's noise and coins shared": Fault(Sampler(speculative(), shared=("draft", "coin")), "near4", "40"),
    "corrections' noise shared between rows": Fault(Sampler(speculative(), shared=("correction",)), "far", "220"),
    "plain sampling, one uniform for all rows": Fault(Sampler(_nothing, drafts=0, shared=ALL), "near", "17"),
    "plain sampling, one race for all rows": Fault(Sampler(_nothing, race, drafts=0, shared=ALL), "near", "119"),
    "noise repeated in every round": Fault(Sampler(speculative(), repeated=True), "near"),
}
"""The figures are medians of a study done before, with other laws and another portfolio."""
