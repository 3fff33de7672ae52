"""Which part of a sampler is wrong: whole samplers with one error each, held against all that is known of the rounds.

A round draws a draft token, accepts it or not, corrects it, or adds a bonus. Where it is known what became of each
draft token, each of these has a law of its own (`eqcheck.sampling.rounds`), and a fault shows there 10 to 300 times as
soon as in the tokens alone. A kind is named only where it is `CLEAR` times as likely as all that is right and `NAMED`
times as likely as every other kind, and where nothing else is amiss.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from eqcheck.sampling.fit import misfit
from eqcheck.sampling.rounds import PARTS, Read, Sums, likelihoods, together
from eqcheck.sampling.row import SampledRow
from eqcheck.sampling.suspects import Sampler, right_samplers, wrong_samplers
from eqcheck.sampling.wealth import VIOLATION

NAMED = 1e3
CLEAR = 1e5  # many samplers are tried, and the likeliest of them is looked at
PLAIN, QUIET = 1e6, 10.0  # evidence against one part, and against the others, where no known error explains it

MANY = 8
"""Tokens without probability, fewer of which may come from anything."""
WITHIN_THE_LAW = (
    "under-acceptance",
    "threshold-acceptance",
    "draft-law",
    "wrong-draft-row",
    "shared-noise",
    "reused-noise",
)
"""Kinds that emit no token without probability: where there is one, they do not explain all."""
_NUMBER = re.compile(r"\d+(?:\.\d+)?")  # no words have more than one


class Named(NamedTuple):
    """What fits best: the kind, what was seen in words, and by which factor (its logarithm) it beats what is right.

    The words are empty where several errors of the kind fit about as well.
    """

    kind: str
    words: str
    log_factor: float


_OF_PARTS = {
    "draft": ("draft-law", "draft tokens do not follow the law that they are compared with"),
    "bonus": ("bonus-law", "a bonus does not follow the target's law"),
    "first": ("first-token", "the first token does not follow the target's law"),
    "correction": ("residual", "corrections are drawn neither from the residual nor by an error that has a name"),
}
MUCH = 10.0
"""Times as much (its logarithm) speaks against corrections as against acceptance where it is theirs alone."""


def named(reads: Iterable[Read]) -> Named | None:
    """The kind that the tokens show; ``stray-law`` where some law is wrong and none leads; None where none is."""
    reads = list(together(reads))
    sums = likelihoods(reads)
    rights = [(likelihood(sums, one), one) for one in right_samplers()]
    null = max(value for value, _ in rights)
    ordered = sorted(((likelihood(sums, one), one) for one in wrong_samplers()), key=lambda found: -found[0])
    (best, sampler), factor = ordered[0], ordered[0][0] - null
    if factor < math.log(CLEAR) or wrong_parts(reads, sampler):
        return _of_a_part(reads, [one for _, one in rights], factor)
    rivals = [one for value, one in ordered if best - value < math.log(NAMED)]
    best_of = {one.kind: one for one in reversed(rivals)}
    if any(kind != sampler.kind and not wrong_parts(reads, one) for kind, one in best_of.items()):
        return Named("stray-law", "", factor)
    if not borne_out(reads, sampler):
        return Named("stray-law", "", factor)
    return Named(sampler.kind, alike([one.words for one in rivals if one.kind == sampler.kind]), factor)


def alike(words: Sequence[str]) -> str:
    """The words of several samplers of one kind, with a range where only a number differs; empty where more does.

    >>> alike(["the ratio is about 1.3 times what is right", "the ratio is about 0.95 times what is right"])
    'the ratio is about 0.95 to 1.3 times what is right'
    >>> alike(["the ratio is inverted", "every draft token is accepted"])
    ''
    """
    if len({_NUMBER.sub("", one) for one in words}) > 1:
        return ""
    numbers = sorted({number for one in words for number in _NUMBER.findall(one)}, key=float)
    return _NUMBER.sub(f"{numbers[0]} to {numbers[-1]}", words[0]) if len(numbers) > 1 else words[0]


def argmax(rows: Iterable[SampledRow]) -> Named | None:
    """Whether every token is the target's likeliest, though that is hardly possible."""
    factor = 0.0
    for cells in (row.cells for row in rows):
        for t in np.flatnonzero(cells.live):
            if cells.at[t] < cells.p[t].max():
                return None
            factor -= math.log(cells.at[t])
    words = "sampled rows are answered as if they were greedy: the answer is the argmax"
    return Named("target-option", words, factor) if factor >= math.log(VIOLATION) else None


def borne_out(reads: list[Read], sampler: Sampler) -> bool:
    """Whether the tokens whose laws are known speak for a sampler, and not only a few without probability."""
    told = [read.beside_known(sampler.beside) for read in reads] if sampler.beside else reads
    possible = [read.possible() for read in told]
    odd = sum(map(len, told)) - sum(map(len, possible))
    if 0 < odd < MANY:
        told = possible
    if told is reads:
        return True
    sums = likelihoods(told)
    null = max(likelihood(sums, one) for one in right_samplers())
    return likelihood(sums, sampler) - null >= math.log(NAMED)


def _of_a_part(reads: list[Read], rights: list[Sampler], factor: float) -> Named | None:
    """What is wrong where a right sampler explains all parts of the rounds but one, and no wrong one explains all."""
    misfits = [_by_corrections(reads, right, wrong_parts(reads, right, QUIET)) for right in rights]
    found = min(
        misfits, key=lambda parts: (sum(value >= math.log(NAMED) for value in parts.values()), sum(parts.values()))
    )
    (part, evidence), *others = sorted(found.items(), key=lambda one: -one[1]) or [("", 0.0)]
    if evidence < math.log(NAMED):
        return None
    if others or part not in _OF_PARTS or evidence < math.log(PLAIN):
        return Named("stray-law", "", max(factor, evidence))
    return Named(*_OF_PARTS[part], max(factor, evidence))


def _by_corrections(reads: list[Read], right: Sampler, found: dict[str, float]) -> dict[str, float]:
    """The wrong parts without acceptance where wrong corrections explain it: a refused token that they draw again.

    It looks accepted then, so that draft tokens are accepted more often than is right, and never less often.
    """
    accept, correction = found.get("accept", 0.0), found.get("correction", 0.0)
    far = accept > 0 and correction >= MUCH * accept
    if far and misfit(reads, "accept", right.accept, less=True) < math.log(QUIET):
        return {part: value for part, value in found.items() if part != "accept"}
    return found


def likelihood(sums: Sums, sampler: Sampler) -> float:
    """How well a sampler explains what was seen; -inf where it means nothing here."""
    total = 0.0
    for part in PARTS:
        name = getattr(sampler, part)
        if not name:  # nothing is said of it: the likeliest stands for it
            total += max(sums[part].values(), default=0.0)
        elif sums[part]:
            total += sums[part].get(name, -math.inf)
    return total


def wrong_parts(reads: list[Read], sampler: Sampler, least: float = NAMED) -> dict[str, float]:
    """The parts of a round that do not follow the sampler, each with the logarithm of the evidence (at ``least``)."""
    found: dict[str, float] = {}
    for part in PARTS:
        if name := getattr(sampler, part):
            evidence = misfit(sampler.tells(reads, part), part, name)
            found |= {part: evidence} if evidence >= math.log(least) else {}
    return found
