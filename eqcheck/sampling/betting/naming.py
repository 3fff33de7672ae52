"""Name the wrong part of a sampler: whole samplers with one error each are compared with its tokens.

Where the fates of draft tokens are known, drafting, acceptance, correction and bonus have a law each (`KnownRounds`),
and a fault shows there 10 to 300 times as soon as in the tokens alone (`eqcheck.sampling.betting.token_laws`). The test
is the same for both.

**Rates.** Names are wrong once in 1 / `RATE` audits, for each other sampler that might be named; all bounds follow.

- `NAMED`: where the sampler that draws is on the list, the likelihood of another one over its own is a nonnegative
  martingale that starts at 1. By Ville's inequality it ever reaches 1 / `RATE` with a probability of `RATE` at most. So
  a kind has to lead every other by that factor, and evidence of that size refutes a sampler.
- `CLEAR`: of all errors in the table the likeliest is held against what is right. The mean of their likelihood ratios
  is such a martingale, and the greatest is at most as many times the mean as there are errors.
- `PLAIN`: where no sampler explains what is seen, a part of the round is named by evidence against its right law alone.
  Nothing else competes with it, so it has to do both: to refute the right law, and to
  stand for every error that is not listed.
- `QUIET`: then all other parts have to be in order. Evidence against a right part reaches that in one of 100 audits,
  ten times the rate: names are lost so more often than they are wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from eqcheck.sampling.betting.laws import (
    ERRORS,
    ROUNDS,
    SampledRow,
    SamplerLaws,
    in_words,
    right_samplers,
    wrong_samplers,
)
from eqcheck.sampling.betting.round_laws import PARTS, PartLaws, Read, Repeated, misfit, repeated, together
from eqcheck.sampling.betting.wealth import VIOLATION

RATE = 1e-3
NAMED, CLEAR, PLAIN = 1 / RATE, sum(len(error.laws) for error in ERRORS) / RATE, 1 / RATE**2
QUIET = 1 / (10 * RATE)
MANY = math.ceil(math.log(NAMED)) + 1
"""Tokens without probability, fewer of which may come from anything: a name has to rest on more than them.

Where each is as good as a factor e, so many reach `NAMED`.
"""
WITHIN_THE_LAW = (
    "under-acceptance",
    "threshold-acceptance",
    "draft-law",
    "wrong-draft-row",
    "shared-noise",
    "reused-noise",
)
"""Kinds that emit no token without probability: where there is one, they do not explain all."""


class Named(NamedTuple):
    """The best fit: the kind, the error in words, and by which factor (its logarithm) it beats what is right.

    The words are empty where several errors of the kind fit about as well. ``again`` are the random numbers that are
    used again, and when.
    """

    kind: str
    words: str
    log_factor: float
    again: tuple[Repeated, ...] = ()


class SamplerEvidence(Protocol):
    """The tokens of a sampler, with the laws around them; a ``hedge`` stands before a name that rests on few facts."""

    hedge: str

    def likelihoods(self) -> list[tuple[float, SamplerLaws]]:
        """The log-likelihood of every sampler, right and wrong."""

    def refutes(self, sampler: SamplerLaws) -> bool:
        """Return whether something speaks against a sampler that may yet be the likeliest."""

    def bears_out(self, sampler: SamplerLaws) -> bool:
        """Return whether enough tokens speak for a sampler, and not only a few without probability."""

    def rivals(self, kind: str) -> float:
        """The log-likelihood of whatever else explains the tokens by another kind."""

    def of_a_part(self, factor: float) -> Named | None:
        """The part that is wrong where no wrong sampler explains all; they beat right ones by a factor."""

    def repeats(self) -> list[Repeated]:
        """The random numbers that a row uses again, in the same round or in the next, as far as rounds are known."""


def named(evidence: SamplerEvidence) -> Named | None:
    """The kind that the tokens show; ``stray-law`` where some law is wrong and none leads; None where none is."""
    ordered = sorted(evidence.likelihoods(), key=lambda pair: -pair[0])
    null = max(value for value, other in ordered if not other.error)
    wrong = [(value, other) for value, other in ordered if other.error]
    (best, sampler), factor = wrong[0], wrong[0][0] - null
    if factor < math.log(CLEAR) or evidence.refutes(sampler):
        return evidence.of_a_part(factor)
    near = [other for value, other in wrong if best - value < math.log(NAMED)]
    best_of = {other.kind: other for other in reversed(near) if other.kind != sampler.kind}
    alone = not any(not evidence.refutes(other) for other in best_of.values())
    if not alone or best - evidence.rivals(sampler.kind) < math.log(NAMED) or not evidence.bears_out(sampler):
        return Named("stray-law", "", factor)
    words = in_words([other for other in near if other.kind == sampler.kind])
    return Named(sampler.kind, words and evidence.hedge + words, factor)


def argmax(rows: Iterable[SampledRow]) -> Named | None:
    """Return whether every token is the target's likeliest, though that is hardly possible."""
    factor = 0.0
    for cells in (row.cells for row in rows):
        for t in np.flatnonzero(cells.live):
            if cells.at[t] < cells.p[t].max():
                return None
            factor -= math.log(cells.at[t])
    words = "every sampled token is the target's likeliest, as if rows were greedy or an option left nothing else"
    return Named("target-option", words, factor) if factor >= math.log(VIOLATION) else None


_OF_PARTS = {
    "draft": ("draft-law", "draft tokens do not follow the law that they are compared with"),
    "bonus": ("bonus-law", "a bonus does not follow the target's law"),
    "first": ("first-token", "the first token does not follow the target's law"),
    "correction": ("residual", "corrections are drawn neither from the residual nor by an error that has a name"),
}
MUCH = 10.0
"""Times as much (its logarithm) speaks against corrections as against acceptance where it is theirs alone."""


class KnownRounds:
    """Tokens whose places in their rounds are known, and the laws around them."""

    hedge = ""

    def __init__(self, reads: Iterable[Read]) -> None:
        self.rows = list(reads)
        self.reads = list(together(self.rows))

    def likelihoods(self) -> list[tuple[float, SamplerLaws]]:
        samplers = (*right_samplers(), *wrong_samplers(ROUNDS, right_samplers()))
        return list(zip(_likelihoods(self.reads, samplers), samplers, strict=True))

    def refutes(self, sampler: SamplerLaws) -> bool:
        return bool(wrong_parts(self.reads, sampler))

    def bears_out(self, sampler: SamplerLaws) -> bool:
        """Return whether the tokens whose laws are known speak for a sampler,
        and not only a few without probability.
        """
        told = [read.beside_known(sampler.beside) for read in self.reads] if sampler.beside else self.reads
        possible = [read.possible() for read in told]
        odd = sum(map(len, told)) - sum(map(len, possible))
        if 0 < odd < MANY:
            told = possible
        if told is self.reads:
            return True
        value, *rights = _likelihoods(told, (sampler, *right_samplers()))
        return value - max(rights) >= math.log(NAMED)

    def rivals(self, kind: str) -> float:
        return -math.inf

    def repeats(self) -> list[Repeated]:
        return repeated(self.rows, NAMED)

    def of_a_part(self, factor: float) -> Named | None:
        """The part that is wrong where a right sampler explains all others, and no wrong one explains all."""
        misfits = [_by_corrections(self.reads, right) for right in right_samplers()]
        parts = min(
            misfits, key=lambda parts: (sum(value >= math.log(NAMED) for value in parts.values()), sum(parts.values()))
        )
        (part, evidence), *others = sorted(parts.items(), key=lambda pair: -pair[1]) or [("", 0.0)]
        if evidence < math.log(NAMED):
            return None
        if others or part not in _OF_PARTS or evidence < math.log(PLAIN):
            return Named("stray-law", "", max(factor, evidence))
        return Named(*_OF_PARTS[part], max(factor, evidence))


def _likelihoods(reads: Sequence[Read], samplers: Sequence[SamplerLaws]) -> list[float]:
    """Return how well samplers explain what was seen, as logarithms."""
    # Summed by part, since some 400 samplers share few laws of each: a law is evaluated once. Where a sampler says
    # nothing of a part it gets the best law there, so that leaving a part open is never what makes it lose.
    total = np.zeros(len(samplers))
    for part in PARTS:
        names = [getattr(sampler, part) for sampler in samplers]
        sums = dict.fromkeys(dict.fromkeys(name for name in names if name is not None), 0.0)
        for read in (read.of(part) for read in reads):
            laws = PartLaws(read)
            for name in sums if len(read) else ():
                sums[name] += float(np.log(laws.chance(part, name)).sum())
        likeliest = max(sums.values(), default=0.0)  # it stands for a part that a sampler leaves open
        total += [likeliest if name is None else sums[name] for name in names]
    return list(total)


def wrong_parts(reads: Sequence[Read], sampler: SamplerLaws, least: float = NAMED) -> dict[str, float]:
    """The parts of a round that do not follow the sampler, each with the logarithm of the evidence (at ``least``)."""
    parts: dict[str, float] = {}
    for part in PARTS:
        name = getattr(sampler, part)
        if name is None:
            continue
        told: Iterable[Read] = reads
        if sampler.first_columns_tell:
            told = (read.first_columns() for read in reads)
        elif part in ("accept", "correction") and name.q.rule == "beside":
            told = (read.beside_known(sampler.beside) for read in reads)
        evidence = misfit(list(told), part, name)
        parts |= {part: evidence} if evidence >= math.log(least) else {}
    return parts


def _by_corrections(reads: Sequence[Read], right: SamplerLaws) -> dict[str, float]:
    """The wrong parts without acceptance where wrong corrections explain it: a refused token that they draw again.

    It looks accepted then, so that draft tokens are accepted more often than is right, and never less often.
    """
    parts = wrong_parts(reads, right, QUIET)
    accept, correction = parts.get("accept", 0.0), parts.get("correction", 0.0)
    far = accept > 0 and correction >= MUCH * accept
    if far and misfit(reads, "accept", right.accept, less=True) < math.log(QUIET):
        return {part: value for part, value in parts.items() if part != "accept"}
    return parts
