"""Which part of a sampler is wrong, from its tokens alone: what became of draft tokens is not known, and summed over.

A hypothesis says how draft tokens are drawn, accepted, corrected, and how a bonus is drawn. The column of a token in
its round is hidden; the forward algorithm of a hidden Markov model sums over it, so that a hypothesis gives every token
a probability. All right schemes give the target's. A kind is named only where its best hypothesis is `NAMED` times as
likely as the target's law, as the best of every other kind, and as every bet of the portfolio; and where nothing speaks
against that hypothesis as loud as `AGAINST`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from eqcheck.sampling.bets import POWERS, RAW_POWERS
from eqcheck.sampling.naming import NAMED, Named
from eqcheck.sampling.row import Floats, Ints

AGAINST = 1e2
_FLOOR = 0.002  # no hypothesis calls anything impossible: one odd token must not decide
_FACTORS = (0.27, 0.53, 0.78, 0.88, 1.13, 1.3, 1.57, 1.95, 4.2)
_POWERS = (0.51, 0.72, 1.38, 1.96)
# Bets that say the same as a kind, in other words: they are no rivals of it.
_SAY = {
    "draft": "over-acceptance",
    "residual": "under-acceptance",
    "residual-unused": "residual",
    "drawn-again": "residual",
    "coin-kept": "reused-noise",
    "argmax": "target-option",
    "tighter": "target-option",
    "first-row-options": "target-option",
    "first-argmax": "first-token",
    "first-raw": "first-token",
    **{f"power-{power}": "target-option" for power in POWERS},
    **{f"raw-{power}": "target-option" for power in RAW_POWERS},
}
Hypothesis = tuple[str, str]  # a kind, and what was seen in words


class Seen(NamedTuple):
    """One sampled row: its tokens ``[n]``, and the laws at their prefixes ``[n, V]``.

    ``p`` and ``q`` are those of target and draft; ``misused_p`` and ``misused_q`` are they with the row's options got
    wrong, by what is wrong ("without top-k"), where that makes a difference. ``behind [n, m, V]`` are the target's laws
    behind each of some ``likeliest`` draft tokens ``[n, m]`` (none: m is 0). ``q`` sums to 0 where nothing is proposed.
    ``others`` are the draft's of the other rows at the same new token. ``drafts`` is K; ``looked_up`` says that draft
    tokens come from the row itself.
    """

    tokens: Ints
    p: Floats
    q: Floats
    misused_p: Mapping[str, Floats]
    misused_q: Mapping[str, Floats]
    behind: Floats
    likeliest: Ints
    others: Sequence[Floats]
    drafts: int
    looked_up: bool


class RoundLaws(NamedTuple):
    """The laws of a round at every prefix ``[n, V]``: a token accepted, corrected, and drawn without a draft token.

    ``unverified``: the first draft token of a round is accepted whatever it is.
    """

    accepted: Floats
    corrected: Floats
    bonus: Floats
    unverified: bool = False


def ranked(rows: Sequence[Seen]) -> list[tuple[float, Hypothesis]]:
    """The best hypothesis of each kind, after the logarithm of the factor by which it beats the target's law."""
    gains: dict[Hypothesis, float] = {}
    for row in rows:
        right = float(_logs(row, row.p).sum())
        for hypothesis, laws in hypotheses(row):
            likelihood = float(_logs(row, predicted(row, laws)).sum())
            gains[hypothesis] = gains.get(hypothesis, 0.0) + likelihood - right
    kinds: dict[str, tuple[float, Hypothesis]] = {}
    for hypothesis, gain in gains.items():
        kinds[hypothesis[0]] = max(kinds.get(hypothesis[0], (-np.inf, hypothesis)), (gain, hypothesis))
    return sorted(kinds.values(), reverse=True)


def named(rows: Sequence[Seen], ranking: Sequence[tuple[float, Hypothesis]], bets: Mapping[str, float]) -> Named | None:
    """The kind that leads a ranking, where it leads clearly. ``bets`` are what the portfolio earns on the same rows."""
    if not ranking:
        return None
    (best, (kind, words)), *others = ranking
    rivals = [0.0, *(gain for gain, _ in others)]
    rivals += [gain for name, gain in bets.items() if _SAY.get(name.partition(":")[0]) != kind]
    if best - max(rivals) < np.log(NAMED) or _refuted(rows, (kind, words)):
        return None
    return Named(kind, f"of what was tried, the tokens fit best: {words}", best)


def predicted(row: Seen, laws: RoundLaws) -> Floats:
    """The law of every token given those before it ``[n, V]``, the columns of rounds summed over."""
    either = laws.accepted + laws.corrected
    proposed = row.q.sum(-1) > 0
    found = np.empty_like(row.p)
    columns = np.zeros(row.drafts + 1)
    columns[0] = columns[-1] = 0.5  # some engines draw the first token without a draft
    for t, token in enumerate(row.tokens):
        if not proposed[t]:  # of rows that look up: a new round begins
            found[t] = laws.bonus[t]
            columns = np.eye(1, row.drafts + 1)[0]
            continue
        before, last = columns[:-1], columns[-1]
        free = before[0] if laws.unverified else 0.0
        verified = before.sum() - free
        found[t] = free * row.q[t] + verified * either[t] + last * laws.bonus[t]
        ended = verified * laws.corrected[t, token] + last * laws.bonus[t, token]
        columns = np.concatenate([[ended], before * laws.accepted[t, token]])
        if laws.unverified:
            columns[1] = free * row.q[t, token]
        total = columns.sum()
        columns = columns / total if total > 1e-300 else np.full(row.drafts + 1, 1 / (row.drafts + 1))
    return found


def hypotheses(row: Seen) -> Iterator[tuple[Hypothesis, RoundLaws]]:
    """Every way to be wrong, as the laws of its round."""
    if row.looked_up:
        yield from _matching(row, row.q, "tokens looked up")
    else:
        yield from _matching(row, _best(row.q), "the draft's likeliest tokens")
        yield from _matching(row, row.q, "draft tokens, matched")
        yield from _rejecting(row)
    bonuses = {
        ("bonus-law", "a bonus is the target's likeliest"): _best(row.p),
        ("bonus-column", "a bonus is drawn from the column before"): _before(row.p),
        **{("bonus-law", f"a bonus is drawn {how}"): law for how, law in row.misused_p.items()},
        **{("bonus-law", f"a bonus is drawn at {1 / w:.2g} times the temperature"): _power(row.p, w) for w in _POWERS},
    }
    schemes = [("looked-up", row.q)] if row.looked_up else [("", row.q), ("greedy", _best(row.q))]
    for which, q in schemes:
        right = _round(row, q, q) if which == "" else _match(row, q)
        for (kind, words), bonus in bonuses.items():
            yield (kind, words + (" (the draft is greedy)" if which == "greedy" else "")), right._replace(bonus=bonus)
    everywhere = {
        "are the target's likeliest": _best(row.p),
        **{f"are drawn {how}": law for how, law in row.misused_p.items()},
        **{f"are drawn at {1 / power:.2g} times the temperature": _power(row.p, power) for power in _POWERS},
    }
    for words, law in everywhere.items():
        yield ("target-option", f"all tokens {words}"), RoundLaws(np.zeros_like(law), law, law)
        first = row.p.copy()
        first[:1] = law[:1]
        yield ("first-token", f"first tokens {words}"), RoundLaws(np.zeros_like(first), first, first)


def _rejecting(row: Seen) -> Iterator[tuple[Hypothesis, RoundLaws]]:
    """Rejection sampling with a draft that samples, got wrong."""
    p, q = row.p, row.q
    ratio = _ratio(p, q)
    residual = _residual(p, q)
    everything = np.ones_like(p)
    known = row.likeliest.shape[1] > 0  # what stands behind draft tokens
    crossed = _crossed(p, q)
    for words, chance in (
        ("every draft token is accepted", everything),
        ("the ratio is inverted", np.minimum(1, _ratio(q, p))),
        ("draft tokens are accepted where they are the target's likeliest", _best(p)),
        ("the ratio is the draft's of the draft token to the target's of another token", crossed),
    ):
        yield ("over-acceptance", words), _put(row, q, chance, residual)
        if chance is everything:
            continue  # nothing is corrected
        if known:
            behind = _put(row, q, chance, _behind(row, q * (1 - chance)))
            yield ("over-acceptance", f"{words}, and corrections are drawn from the column behind"), behind
        yield ("over-acceptance", f"{words}, and corrections are drawn from the target's law"), _put(row, q, chance, p)
    free = _put(row, q, ratio, residual)._replace(unverified=True)
    yield ("over-acceptance", "the first draft token of a round is accepted unverified"), free
    for factor in _FACTORS:
        kind = "over-acceptance" if factor > 1 else "under-acceptance"
        yield (kind, f"the ratio is {factor:.2g} times what is right"), _put(row, q, factor * ratio, residual)
    yield ("under-acceptance", "no draft token is accepted"), _put(row, q, 0 * ratio, residual)
    for words, law in (
        ("the residual is not used: corrections are drawn from the target's law", p),
        ("corrections are the likeliest of the residual", _best(residual)),
        ("corrections are the target's likeliest", _best(p)),
        ("corrections are drawn from the absolute difference", _normal(abs(p - q), p)),
    ):
        yield ("residual", words), _put(row, q, ratio, law)
    yield ("correction-column", "corrections are drawn from the column before"), _put(row, q, ratio, _before(p))
    if known:
        behind = _put(row, q, ratio, _behind(row, q * (1 - ratio)))
        yield ("correction-column", "corrections are drawn from the column behind"), behind
    for how, law in {"as if rows were greedy": _best(p), **row.misused_p}.items():
        wrong = _put(row, q, _ratio(law, q), _residual(law, q))
        corrected = _put(row, q, ratio, _residual(law, q))
        yield ("target-option", f"draft tokens are verified {how}"), wrong
        yield ("target-option", f"the ratio is taken {how}"), _put(row, q, _ratio(law, q), residual)
        yield ("residual", f"the residual is taken {how}"), corrected
    for words, drawn, compared in (
        ("draft tokens are the draft's likeliest, and compared as if they were drawn", _best(q), q),
        *((f"draft tokens are drawn {how}, and compared with the row's options", law, q) for how, law in _of(row)),
        *((f"draft tokens are compared {how}", q, law) for how, law in _of(row)),
        *((f"draft tokens are drawn at {1 / w:.2g} times the temperature", _power(q, w), q) for w in _POWERS),
    ):
        yield ("draft-law", words), _put(row, drawn, _ratio(p, compared), _residual(p, compared))
    if row.others:
        rounds = [_put(row, q, _ratio(p, other), _residual(p, other)) for other in row.others]
        mean = RoundLaws(*(np.mean(parts, axis=0) for parts in zip(*rounds, strict=True)))
        yield ("wrong-draft-row", "acceptance and correction take the draft's law of another row"), mean


def _matching(row: Seen, q: Floats, what: str) -> Iterator[tuple[Hypothesis, RoundLaws]]:
    """A draft token is accepted where the target draws the same, or with the probability that it has; got wrong."""
    p = row.p
    for words, chance in (
        ("all accepted", np.ones_like(p)),
        ("accepted where they are the target's likeliest", _best(p)),
    ):
        yield ("over-acceptance", f"{what}, {words}"), _match(row, q, chance)
    for factor in _FACTORS:
        kind = "over-acceptance" if factor > 1 else "under-acceptance"
        words = f"{what}, are accepted {factor:.2g} times as often as is right"
        yield (kind, words), _match(row, q, np.minimum(1, factor * p))
    again = (q * (1 - p)).sum(-1, keepdims=True) * p
    yield (
        ("residual", f"{what}: corrections may be the refused draft token again"),
        RoundLaws(q * p, again, p),
    )
    yield (
        ("residual", f"{what}: corrections are the target's likeliest"),
        _match(row, q)._replace(corrected=(q * (1 - p)).sum(-1, keepdims=True) * _best(p)),
    )
    for how, law in {"as if rows were greedy": _best(p), **row.misused_p}.items():
        wrong = _match(row._replace(p=law), q)._replace(bonus=p)
        yield ("target-option", f"{what}, are verified {how}"), wrong


def _of(row: Seen) -> list[tuple[str, Floats]]:
    return list(row.misused_q.items())


def _put(row: Seen, drawn: Floats, chance: Floats, correction: Floats) -> RoundLaws:
    """A round whose draft tokens are accepted with this chance each, and else corrected from one law."""
    accepted = drawn * np.clip(chance, 0, 1)
    refused = np.maximum(drawn.sum(-1, keepdims=True) - accepted.sum(-1, keepdims=True), 0)
    return RoundLaws(accepted, refused * correction, row.p)


def _round(row: Seen, drawn: Floats, compared: Floats) -> RoundLaws:
    return _put(row, drawn, _ratio(row.p, compared), _residual(row.p, compared))


def _match(row: Seen, q: Floats, chance: Floats | None = None) -> RoundLaws:
    """A round whose corrections are drawn from the target's law without the refused draft token."""
    p = row.p
    chance = p if chance is None else chance
    with np.errstate(divide="ignore", invalid="ignore"):
        weight = np.where(p < 1, q * (1 - chance) / (1 - p), 0.0)
    return RoundLaws(q * chance, p * (weight.sum(-1, keepdims=True) - weight), p)


def _ratio(p: Floats, q: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(q > 0, np.minimum(p / q, 1.0), (p > 0) * 1.0)


def _behind(row: Seen, refused: Floats) -> Floats:
    """The target's law behind a refused draft token, each weighed by how often it is refused."""
    weights = np.take_along_axis(np.maximum(refused, 0.0), row.likeliest, -1)
    weights = _normal(weights, np.full_like(weights, 1 / weights.shape[1]))
    return np.asarray(np.einsum("nm,nmv->nv", weights, row.behind))


def _crossed(p: Floats, q: Floats) -> Floats:
    """The mean of ``min(1, q(d)/p(s))`` over s drawn from p: sums over the tokens that are likelier than q(d)."""
    found = np.empty_like(p)
    for t in range(len(p)):
        ordered = np.sort(p[t])[::-1]
        above = np.searchsorted(-ordered, -q[t])  # so many have p > q(d): each of them adds q(d)
        found[t] = above * q[t] + 1 - np.concatenate([[0.0], ordered.cumsum()])[above]
    return np.clip(found, 0.0, 1.0)


def _residual(p: Floats, q: Floats) -> Floats:
    return _normal(np.maximum(p - q, 0), p)


def _normal(weights: Floats, otherwise: Floats) -> Floats:
    total = weights.sum(-1, keepdims=True)
    return np.where(total > 1e-12, weights / np.maximum(total, 1e-12), otherwise)


def _before(p: Floats) -> Floats:
    return np.concatenate([p[:1], p[:-1]])


def _best(law: Floats) -> Floats:
    best = np.zeros_like(law)
    best[np.arange(len(law)), law.argmax(-1)] = 1.0
    return np.where(law.sum(-1, keepdims=True) > 0, best, 0.0)


def _power(law: Floats, power: float) -> Floats:
    raised = np.where(law > 0, law, 0.0) ** power
    return np.asarray(raised / np.maximum(raised.sum(-1, keepdims=True), 1e-300))


def _logs(row: Seen, law: Floats) -> Floats:
    at = law[np.arange(len(row.tokens)), row.tokens]
    return np.asarray(np.log((1 - _FLOOR) * at + _FLOOR / law.shape[1]))


def _refuted(rows: Sequence[Seen], hypothesis: Hypothesis) -> bool:
    """Whether a law near the hypothesis's is far likelier than it: then it is not what the sampler does."""
    gains: dict[str, float] = {}
    for row in rows:
        law = next((predicted(row, laws) for one, laws in hypotheses(row) if one == hypothesis), row.p)
        law = (1 - _FLOOR) * law + _FLOOR / law.shape[1]
        law = law / law.sum(-1, keepdims=True)
        index = np.arange(len(row.tokens))
        at = law[index, row.tokens]
        near = {"p": row.p, "q": row.q, "uniform": np.full_like(law, 1 / law.shape[1]), "best": _best(row.p)}
        near |= {"best of q": _best(row.q), "residual": _residual(row.p, row.q), "before": _before(row.p)}
        for name, other in near.items():
            for share in (0.05, 0.3):
                ratio = 1 - share + share * other[index, row.tokens] / at
                gains[f"{name} {share}"] = gains.get(f"{name} {share}", 0.0) + float(np.log(ratio).sum())
        for name, order in (("id", np.broadcast_to(np.arange(law.shape[1]), law.shape)), ("p", row.p)):
            own = order[index, row.tokens][:, None]
            below = (law * (order < own)).sum(-1) + 0.5 * (law * (order == own)).sum(-1)  # the middle of the interval
            for tilt in (-0.5, 0.5):
                key = f"{name} {tilt}"
                gains[key] = gains.get(key, 0.0) + float(np.log(1 + tilt * (2 * below - 1)).sum())
    return bool(max(gains.values()) >= np.log(AGAINST))
