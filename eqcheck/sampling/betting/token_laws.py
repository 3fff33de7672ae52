"""Tokens alone, where nobody knows what became of draft tokens: the places of tokens in their rounds are summed over.

A sampler says how draft tokens are drawn, accepted and corrected, and how a bonus is drawn. The column of a token in
its round is hidden; the forward algorithm of a hidden Markov model sums over it, so that a sampler gives every token a
probability. All right samplers give the target's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from eqcheck.sampling.betting.laws import (
    MATCH,
    REJECTION,
    TOKENS,
    Floats,
    Ints,
    PartLaw,
    SamplerLaws,
    Verification,
    normal,
    wrong_samplers,
)
from eqcheck.sampling.betting.naming import QUIET, Named
from eqcheck.sampling.betting.round_laws import Repeated, accepting, drawn, likeliest, misfit_of_laws

_FLOOR = 0.002  # no sampler calls anything impossible: one odd token must not decide
LOOKED_UP, GREEDY = PartLaw("looked-up"), PartLaw("options", "greedy")
_MATCHING = Verification(MATCH)
RIGHTS = (
    SamplerLaws(None, PartLaw(), PartLaw(), Verification(REJECTION), Verification(REJECTION)),
    *(SamplerLaws(None, PartLaw(), draft, _MATCHING, _MATCHING) for draft in (PartLaw(), GREEDY, LOOKED_UP)),
)
"""Rejection, and matching with draft tokens that are drawn, the draft's likeliest, or looked up."""


class Seen(NamedTuple):
    """One sampled row: its tokens ``[n]``, and the laws at their prefixes ``[n, V]``.

    ``p`` and ``q`` are those of target and draft by the option that is got wrong, the right one (``""``) itself where
    that makes no difference. ``behind [n, m, V]`` are the target's laws behind each of some ``likeliest`` draft tokens
    ``[n, m]`` (none: m is 0). ``q`` sums to 0 where nothing is proposed. ``beside`` are the draft's laws of other rows
    at the same new token. ``drafts`` is K; ``looked_up`` says that draft tokens come from the row itself.
    """

    tokens: Ints
    p: Mapping[str, Floats]
    q: Mapping[str, Floats]
    behind: Floats
    likeliest: Ints
    beside: Mapping[str, Floats]
    drafts: int
    looked_up: bool


class RoundLaws(NamedTuple):
    """The laws of a round at every prefix ``[n, V]``: a token accepted, corrected, and drawn without a draft token.

    The last two are a token accepted and corrected where the draft token is the first of its round.
    """

    accepted: Floats
    corrected: Floats
    bonus: Floats
    first_accepted: Floats
    first_corrected: Floats


def round_of(row: Seen, sampler: SamplerLaws) -> RoundLaws:
    """The laws that a sampler gives a row."""
    p, bonus = row.p[""], sampler.bonus
    end = p if bonus is None else _before(p) if bonus.rule == "place" else drawn(row.p, bonus)
    q = drawn(row.q, sampler.draft or PartLaw())
    right = _ratio(row, sampler.accept)
    rule = sampler.accept.rule
    if rule.rule == "argmax":
        chances = [likeliest(p, 1)]
    elif rule.rule in ("", "first") or rule.redraws:
        chances = [right]
    else:
        chances = [accepting(rule, right, np.full(p.shape, place)) for place in (False, True)]
    parts = [_put(row, q, np.clip(chance, 0, 1), sampler.correction) for chance in chances]
    laws = RoundLaws(*parts[0], end, *parts[-1])
    if rule.rule != "first":
        return laws
    start = drawn(row.p, rule)[:1]
    return RoundLaws(
        *(
            np.concatenate([begin, law[1:]])
            for begin, law in zip((0 * start, start, start, 0 * start, start), laws, strict=True)
        )
    )


def _put(row: Seen, q: Floats, chance: Floats, correction: Verification) -> tuple[Floats, Floats]:
    """A draft token that is accepted with this chance, and else corrected."""
    accepted = q * chance
    refused = np.maximum(q - accepted, 0)
    law = _correction(row, correction, refused)
    if correction.scheme == MATCH and not correction.rule.redraws:  # it is not the draft token
        weights = np.divide(refused, 1 - law, out=np.zeros_like(law), where=law < 1)
        certain = np.where(law < 1, 0.0, refused).sum(-1, keepdims=True)  # leaves nothing else
        return accepted, law * (weights.sum(-1, keepdims=True) - weights) + certain * row.p[""]
    return accepted, refused.sum(-1, keepdims=True) * law


def _correction(row: Seen, how: Verification, refused: Floats) -> Floats:
    p, rule = row.p[""], how.rule
    if rule.rule == "again-place":
        return _before(p) if rule.of == "before" else _behind(row, refused)
    if rule.redraws:
        laws = {"again-absolute": normal(abs(p - row.q[""]), p), "again-argmax": likeliest(p, 1)}
        return laws.get(rule.rule, p)
    own = drawn(row.p, how.p)
    if how.scheme == MATCH:
        return own
    left = normal(np.maximum(own - _compared(row, how), 0), own)
    return likeliest(left, 1) if rule.rule == "argmax" else left


def _ratio(row: Seen, how: Verification) -> Floats:
    p = drawn(row.p, how.p)
    if how.scheme == MATCH:
        return p
    q = _compared(row, how)
    with np.errstate(over="ignore"):  # an infinite ratio is cut
        return np.asarray(np.minimum(np.divide(p, q, out=(p > 0) * 1.0, where=q > 0), 1.0))


def _compared(row: Seen, how: Verification) -> Floats:
    return row.beside[how.q.of] if how.q.rule == "beside" else drawn(row.q, how.q)


def _behind(row: Seen, refused: Floats) -> Floats:
    """The target's law behind a refused draft token, each weighed by how often it is refused."""
    weights = np.take_along_axis(refused, row.likeliest, -1)
    weights = normal(weights, np.full_like(weights, 1 / weights.shape[1]))
    return np.asarray(np.einsum("nm,nmv->nv", weights, row.behind))


def _before(p: Floats) -> Floats:
    return np.concatenate([p[:1], p[:-1]])


def states(row: Seen, at: Floats) -> Floats:
    """Return how likely each token stands in the first column of its round, a later one, or behind it: ``[n, 3, S]``.

    ``at [n, 5, S]`` has the laws of a `RoundLaws` at the emitted tokens, of S samplers.
    """
    proposed = row.q[""].sum(-1) > 0
    places = np.zeros((len(at), 3, at.shape[2]))
    columns = np.zeros((row.drafts + 1, at.shape[2]))
    columns[0] = columns[-1] = 0.5  # some engines draw the first token without a draft
    for t, (accepted, corrected, bonus, first_accepted, first_corrected) in enumerate(at):
        if not proposed[t]:  # of rows that look up: a new round begins
            places[t, 2] = 1.0
            columns = np.zeros_like(columns)
            columns[0] = 1.0
            continue
        places[t] = first, later, last = columns[0], columns[1:-1].sum(0), columns[-1]
        ended = first * first_corrected + later * corrected + last * bonus
        columns = np.concatenate([ended[None], (first * first_accepted)[None], columns[1:-1] * accepted])
        total = columns.sum(0)
        columns = np.where(total > 1e-300, columns / np.maximum(total, 1e-300), 1 / len(columns))
    return places


def predicted(row: Seen, sampler: SamplerLaws) -> Floats:
    """The law ``[n, V]`` of every token given those before it."""
    laws = round_of(row, sampler)
    place = states(row, _at(row, laws)[:, :, None])
    return np.asarray(sum(place[:, number] * law for number, law in enumerate(_emitted(laws))))


def _at(row: Seen, laws: RoundLaws) -> Floats:
    """The laws of a round at the tokens of the row, ``[n, 5]``."""
    index = np.arange(len(row.tokens))
    return np.stack([law[index, row.tokens] for law in laws], axis=1)


def _emitted(laws: RoundLaws) -> tuple[Floats, Floats, Floats]:
    """The tokens that are emitted, by their laws, in the first column of a round, a later one, and behind it."""
    return laws.first_accepted + laws.first_corrected, laws.accepted + laws.corrected, laws.bonus


class Tokens:
    """Rows whose tokens alone are known; ``earned`` has the gains of bets on other laws, by kind."""

    hedge = "of what was tried, the tokens fit best: "

    def __init__(self, rows: Sequence[Seen], earned: Sequence[tuple[str, float]] = ()) -> None:
        self.rows, self.earned = [row for row in rows if row.drafts], earned
        self.model = [one for one in wrong_samplers(TOKENS, RIGHTS) if one.draft != LOOKED_UP]
        self.looked_up = list(wrong_samplers(TOKENS, RIGHTS[-1:]))

    @cached_property
    def _gains(self) -> dict[SamplerLaws, tuple[float, SamplerLaws | None]]:
        """Return by how much each sampler is likelier than the target's distribution,
        and its like for looked-up drafts.
        """
        looked_up, model = self._sums(self.looked_up, True), self._sums(self.model, False)
        like = {(sampler.error, sampler.law.amount, sampler.law.of): sampler for sampler in looked_up}
        gains: dict[SamplerLaws, tuple[float, SamplerLaws | None]] = {
            sampler: (gain, None) for sampler, gain in looked_up.items()
        }
        for sampler, gain in model.items():
            other = like.get((sampler.error, sampler.law.amount, sampler.law.of))
            more = looked_up[other] if other else 0.0
            gains[sampler] = (gain + more, other) if more > 0 else (gain, None)
        return gains

    def _sums(self, samplers: Sequence[SamplerLaws], looked_up: bool) -> dict[SamplerLaws, float]:
        total = dict.fromkeys(samplers, 0.0)
        for row in self.rows:
            telling = [sampler for sampler in samplers if _differs(row, sampler)] if row.looked_up == looked_up else []
            if not telling:
                continue
            at = np.stack([_at(row, round_of(row, sampler)) for sampler in telling], axis=2)
            emitted = RoundLaws(*at.transpose(1, 0, 2))
            likely = sum(states(row, at)[:, number] * law for number, law in enumerate(_emitted(emitted)))
            right = _soft(row.p[""], row.p[""][np.arange(len(row.tokens)), row.tokens])
            gains = (np.log(_soft(row.p[""], np.asarray(likely))) - np.log(right)[:, None]).sum(0)
            for sampler, gain in zip(telling, gains, strict=True):
                total[sampler] += float(gain)
        return total

    def likelihoods(self) -> list[tuple[float, SamplerLaws]]:
        return [(0.0, RIGHTS[0]), *((gain, one) for one, (gain, _) in self._gains.items())]

    def bears_out(self, sampler: SamplerLaws) -> bool:
        return True

    def rivals(self, kind: str) -> float:
        return max((gain for of, gain in self.earned if of != kind), default=0.0)

    def of_a_part(self, factor: float) -> Named | None:
        return None

    def repeats(self) -> list[Repeated]:
        return []

    def refutes(self, sampler: SamplerLaws) -> bool:
        return self._misfit(sampler) >= math.log(QUIET)

    def _misfit(self, sampler: SamplerLaws) -> float:
        """The logarithm of the evidence that tokens do not follow the law that a sampler gives them."""
        samplers = {False: sampler, True: sampler if sampler.draft == LOOKED_UP else self._gains[sampler][1]}
        told = []
        for row in self.rows:
            one = samplers[row.looked_up]
            known = one is not None and row.looked_up == (one.draft == LOOKED_UP) and _differs(row, one)
            law = predicted(row, one) if one and known else row.p[""]
            told.append((_soft(law, law), row.q[""], row.tokens))
        return misfit_of_laws(told)


def _differs(row: Seen, sampler: SamplerLaws) -> bool:
    """Return whether an error makes a difference in a row, as far as is known there."""
    law = sampler.law
    if law.rule == "options":
        return row.p[law.of] is not row.p[""] or row.q[law.of] is not row.q[""]
    if law == PartLaw("again-place", "behind"):
        return bool(row.likeliest.shape[1])
    return law.rule != "beside" or law.of in row.beside


def _soft(law: Floats, at: Floats) -> Floats:
    """Probabilities with a little of all tokens mixed in."""
    return np.asarray((1 - _FLOOR) * at + _FLOOR / law.shape[1])
