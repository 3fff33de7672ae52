"""Which part of a sampler is wrong: the laws of a round, each held against the ways in which it is got wrong.

A round draws a draft token, accepts it or not, corrects it, or adds a bonus. Where it is known what became of each
draft token, each of these has a law of its own, and a fault shows in one of them 10 to 300 times as soon as in the
tokens alone. First it is decided which lossless scheme the decoder follows: rejection sampling (Leviathan and others,
2023, https://arxiv.org/abs/2211.17192; Chen and others, 2023, https://arxiv.org/abs/2302.01318), or matching, where a
draft token is accepted if the target draws the same. A kind is named only where it is `NAMED` times as likely as what
is right, and as any other kind.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from eqcheck.sampling.row import Floats

NAMED = 1e3
_FLOOR = 0.005  # no hypothesis calls anything impossible: one odd token must not decide
_FACTORS = (0.25, 0.5, 0.8, 0.9, 1.11, 1.25, 1.5, 2.0, 4.0)
_POWERS = (0.5, 0.7, 1.43, 2.0)
_LAWS = ("draft", "accept", "correction", "bonus", "first")
_SCHEMES = ("rejection", "match")
_OF_REJECTION = (
    "ratio",
    "residual",
    "under rejection",
    "draft's law",
    "absolute difference",
)  # means nothing in matching

Hypothesis = tuple[str, str]  # a kind, and what was seen in words


class Drawn(NamedTuple):
    """One token of a sampled row and the laws around it, each ``[vocabulary]``.

    ``p`` and ``q`` are the laws of target and draft at its prefix, ``raw_p`` and ``raw_q`` without the row's options.
    ``before`` is the target's law one place earlier, ``behind`` that behind the refused draft token (its own where
    there is none), ``other_q`` the draft's of other rows in the same column, and of this row's next one. ``token`` was
    emitted; ``draft`` was verified there (-1: none). ``role`` is as in `eqcheck.attribution.sampling.Mark`.
    """

    role: str
    at: int
    token: int
    draft: int
    drafted: bool
    p: Floats
    q: Floats
    raw_p: Floats
    raw_q: Floats
    before: Floats
    behind: Floats
    other_q: tuple[Floats, ...]


class Named(NamedTuple):
    """What fits best: the kind, what was seen in words, and by which factor (its logarithm) it beats what is right."""

    kind: str
    words: str
    log_factor: float


class _Law:
    """One law of a round: the log-likelihoods of what is right in each scheme, and of each wrong hypothesis."""

    def __init__(self) -> None:
        self.right: dict[str, float] = defaultdict(float)
        self.wrong: dict[Hypothesis, float] = defaultdict(float)

    def see(self, right: dict[str, float], wrong: dict[Hypothesis, float]) -> None:
        for scheme, chance in right.items():
            self.right[scheme] += float(np.log(chance))
        for hypothesis, chance in wrong.items():
            self.wrong[hypothesis] += float(np.log(chance))

    def faults(self, scheme: str) -> dict[Hypothesis, float]:
        """The wrong hypotheses of a scheme: one that matches does not look at the draft's law."""
        of_matching = {one: value for one, value in self.wrong.items() if not any(w in one[1] for w in _OF_REJECTION)}
        return self.wrong if scheme == "rejection" else of_matching

    def named(self, scheme: str) -> Named | None:
        """The best kind, where it is far likelier than what is right; ``stray-law`` where another is as likely."""
        kinds: dict[str, tuple[float, str]] = {}
        for (kind, words), likelihood in self.faults(scheme).items():
            kinds[kind] = max(kinds.get(kind, (-np.inf, "")), (likelihood, words))
        ordered = sorted(((value, words, kind) for kind, (value, words) in kinds.items()), reverse=True)
        if not ordered or ordered[0][0] - self.right[scheme] < np.log(NAMED):
            return None
        best, words, kind = ordered[0]
        clear = len(ordered) < 2 or best - ordered[1][0] >= np.log(NAMED)
        return Named(kind if clear else "stray-law", words, best - self.right[scheme])


def named(drawn: Iterable[Drawn]) -> Named | None:
    """The kind that the tokens show; None where none leads clearly.

    The first law in the order of a round that is wrong is the cause. Where two kinds explain it alike, those of the
    later laws decide, if they agree.
    """
    laws = {name: _Law() for name in _LAWS}
    for one in drawn:
        if one.draft >= 0 and one.drafted:
            laws["draft"].see(*_draft(one))
            laws["accept"].see(*_accept(one))
        if one.role == "corrected" and one.drafted:
            laws["correction"].see(*_correction(one))
        if one.role in ("bonus", "plain"):
            laws["bonus" if one.at else "first"].see(*_bonus(one))
    scheme = max(_SCHEMES, key=lambda scheme: _fit(laws, scheme))
    judged = [law for name, law in laws.items() if not (name == "draft" and scheme == "match")]
    found = [kind for law in judged if (kind := law.named(scheme))]
    if found and found[0].kind == "stray-law":
        found = found if len({kind.kind for kind in found[1:]}) == 1 and found[1].kind != "stray-law" else []
        return found[1] if found else None
    return found[0] if found else None


def _fit(laws: dict[str, _Law], scheme: str) -> float:
    """How well a scheme explains what was accepted and corrected, where a wrong law may be far likelier than it."""
    return sum(
        max([law.right[scheme], *(likelihood - math.log(NAMED) for likelihood in law.faults(scheme).values())])
        for law in (laws["accept"], laws["correction"])
    )


def _draft(one: Drawn) -> tuple[dict[str, float], dict[Hypothesis, float]]:
    def of(q: Floats) -> float:
        return float(_soft(q)[one.draft])

    wrong = {
        "are the draft's likeliest": of(_best(one.q)),
        "are drawn without the row's options": of(one.raw_q),
        "are drawn uniformly": of(np.full(len(one.q), 1 / len(one.q))),
        **{f"are drawn at {1 / power:.2g} times the temperature": of(_power(one.q, power)) for power in _POWERS},
    }
    return dict.fromkeys(_SCHEMES, of(one.q)), {("draft-law", f"draft tokens {what}"): c for what, c in wrong.items()}


def _accept(one: Drawn) -> tuple[dict[str, float], dict[Hypothesis, float]]:
    d = one.draft

    def of(chance: float) -> float:
        chance = min(max(float(chance), _FLOOR), 1 - _FLOOR)
        return chance if one.role == "accepted" else 1.0 - chance

    def ratio(p: Floats, q: Floats) -> float:
        return float(p[d] / q[d]) if q[d] > 0 else float(p[d] > 0)

    r = ratio(one.p, one.q)
    wrong = {
        ("over-acceptance", "every draft token is accepted"): of(1.0),
        ("over-acceptance", "the ratio is inverted"): of(1 / r if r > 0 else 1.0),
        ("over-acceptance", "draft tokens are accepted where they are the target's likeliest"): of(d == one.p.argmax()),
        ("under-acceptance", "no draft token is accepted"): of(0.0),
        ("target-option", "the ratio takes the target's law without the row's options"): of(ratio(one.raw_p, one.q)),
        ("draft-law", "the ratio takes the draft's law without the row's options"): of(ratio(one.p, one.raw_q)),
        ("draft-law", "the ratio takes the draft token for certain"): of(float(one.p[d])),
        ("wrong-draft-row", "the ratio takes the draft's law of another row or column"): float(
            np.mean([of(ratio(one.p, q)) for q in one.other_q or (one.q,)])
        ),
    }
    for scheme, right in (("rejection", min(1.0, r)), ("matching", float(one.p[d]))):  # drawn again, it looks accepted
        again = right + (1 - right) * float(one.p[d])
        wrong["residual", f"under {scheme}, corrections may be the refused draft token again"] = of(again)
    for factor in _FACTORS:
        kind = "over-acceptance" if factor > 1 else "under-acceptance"
        wrong[kind, f"the ratio is {factor:.2g} times what is right"] = of(factor * r)
    return {"rejection": of(min(1.0, r)), "match": of(float(one.p[d]))}, wrong


def _correction(one: Drawn) -> tuple[dict[str, float], dict[Hypothesis, float]]:
    def of(weights: Floats) -> float:
        total = weights.sum()
        return float(_soft(weights / total if total > 0 else one.p)[one.token])

    others = np.where(np.arange(len(one.p)) == one.draft, 0.0, one.p)
    residual = np.maximum(one.p - one.q, 0)
    wrong = {
        ("residual", "the residual is not used: corrections are drawn from the target's law"): of(others),
        ("residual", "corrections are the likeliest of the residual"): of(_best(residual)),
        ("residual", "corrections are the target's likeliest"): of(_best(one.p)),
        ("residual", "corrections are drawn from the absolute difference"): of(abs(one.p - one.q)),
        ("target-option", "corrections are drawn without the row's options"): of(np.maximum(one.raw_p - one.q, 0)),
        ("draft-law", "corrections take the draft's law without the row's options"): of(
            np.maximum(one.p - one.raw_q, 0)
        ),
        ("correction-column", "corrections are drawn from the column before"): of(one.before),
        ("correction-column", "corrections are drawn from the column behind"): of(one.behind),
        ("wrong-draft-row", "corrections take the draft's law of another row or column"): float(
            np.mean([of(np.maximum(one.p - q, 0)) for q in one.other_q or (one.q,)])
        ),
    }
    return {"rejection": of(residual), "match": of(others)}, wrong


def _bonus(one: Drawn) -> tuple[dict[str, float], dict[Hypothesis, float]]:
    def of(p: Floats) -> float:
        return float(_soft(p)[one.token])

    kind, what = ("bonus-law", "a bonus") if one.at else ("first-token", "the first token")
    wrong = {
        (kind, f"{what} is the target's likeliest"): of(_best(one.p)),
        (kind, f"{what} is drawn without the row's options"): of(one.raw_p),
    }
    for power in _POWERS:
        wrong[kind, f"{what} is drawn at {1 / power:.2g} times the temperature"] = of(_power(one.p, power))
    if one.at:
        wrong["bonus-column", "a bonus is drawn from the column before"] = of(one.before)
    return dict.fromkeys(_SCHEMES, of(one.p)), wrong


def _soft(p: Floats) -> Floats:
    return np.asarray((1 - _FLOOR) * p + _FLOOR / len(p))


def _best(p: Floats) -> Floats:
    best = np.zeros_like(p)
    best[int(p.argmax())] = 1.0
    return best


def _power(p: Floats, power: float) -> Floats:
    raised = np.where(p > 0, p, 0.0) ** power
    return np.asarray(raised / raised.sum())
