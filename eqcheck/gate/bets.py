"""Compare sampled rows of a server with rows that the plain server samples for the same requests.

The referee's law of a token is not exact below float32, so no bet looks at that law alone. Each request is sampled once
on the speculative server and several times on the plain one, with seeds of their own.

**Theorem.** Let the rows of each request be exchangeable, given all earlier requests: a right server that speculates
draws from the same law as the plain one, rounding included. Let each bet give a row x a worth w(x) > 0 by what the
referee tells of that row alone. Then the evidence ever reaches c with a probability of 1/c at most.

Proof. One bet multiplies its stake by ``(m + 1) w(x_0) / (w(x_0) + ... + w(x_m))``, where x_0 is the speculative
server's row and the others are the m rows of the control. Each of the m + 1 rows stands in the first place equally
often, and the factors of all m + 1 sum to m + 1. So the expected factor is 1, whatever w is: the product over requests
is a nonnegative martingale that starts at 1, and so is a mixture with weights that are fixed beforehand. Ville's
inequality bounds the probability that it ever reaches c. Noise of the scores makes w worse, and the bound no looser.

The worth of a row is the likelihood ratio of a wrong law, as `eqcheck.sampling.betting.wealth` has them. Many of these
need the draft's law. A server of the draft model tells it. Else the plain server stands in for the draft: a model that
sees the last few tokens alone is a weaker model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from eqcheck.gate.compared_rows import Row
from eqcheck.transparent.truth.rounding_evidence import CROSSES, ROOM, OddOne, together

if TYPE_CHECKING:
    from eqcheck.gate.compared_rows import Completed, Row, Scored
    from eqcheck.gate.servers import Server
    from eqcheck.sampling.betting.wealth import Bet


LEAST_REST = 1e-9
BACK, BLOCK = 3, 6  # a stand-in for a draft sees 3 to 8 tokens, and scores 6 tokens in a call
WARMER = 1.2  # a temperature that is off by so much has to show before sampled rows are called equivalent


class SampledRows:
    """The evidence that sampled rows of the speculative server do not follow the law of the control's rows."""

    def __init__(self) -> None:
        self.rows = 0
        self.would: dict[str, float] = {"temperature": 0.0}
        """What the bets would earn, about, if the temperature were off by `WARMER`, or corrections came from the
        target's law; the latter where the draft is known."""
        self._logs: dict[str, Any] = {}
        self._factors: list[tuple[Row, Any]] = []

    @property
    def log_evidence(self) -> float:
        """Return the evidence as a logarithm: half of the stake is on all rows, half on each concurrency."""
        if not self._logs:
            return 0.0
        each = {name: float(np.logaddexp.reduce(logs)) - math.log(len(logs)) for name, logs in self._logs.items()}
        return together([each.pop(""), together(list(each.values()))])

    @property
    def best(self) -> Bet:
        """Return the bet that earns most on all rows."""
        from eqcheck.sampling.betting.wealth import ALTERNATIVES

        return ALTERNATIVES[int(self._logs[""].argmax())]

    @property
    def by_weight(self) -> list[Row]:
        """Return the rows, first those on which this bet earns most."""
        best = int(self._logs[""].argmax())
        return [row for row, _ in sorted(self._factors, key=lambda pair: -float(pair[1][best]))]

    @property
    def lacking(self) -> int:
        """Return about how many more sampled rows the law that would earn least needs."""
        least, wanted = min(self.would.values()), self._wanted
        return math.ceil(self.rows * (wanted / max(least, 1e-3) - 1)) if 0 < least < wanted else 0

    @property
    def visible(self) -> list[str]:
        """Return the laws of `would` that would have crossed."""
        return [name for name, log in self.would.items() if log >= self._wanted]

    @property
    def _wanted(self) -> float:
        from eqcheck.sampling.betting.wealth import ALTERNATIVES

        return math.log(CROSSES * len(ALTERNATIVES) * 2)

    def begin(self, concurrency: Sequence[int], draft: bool = False) -> None:
        """Fix the weights before any row is seen. ``draft``: rows are seen by the draft itself."""
        self.would = {"temperature": 0.0} | ({"corrections": 0.0} if draft else {})
        from eqcheck.sampling.betting.wealth import ALTERNATIVES

        self._logs = {name: np.zeros(len(ALTERNATIVES)) for name in ("", *map(str, concurrency))}

    def add(self, row: Row, control: Sequence[Row]) -> None:
        """Count a row of the speculative server, and the rows that the plain server sampled for the same request."""
        from eqcheck.sampling.betting.wealth import bets

        made = [evidence_of(each) for each in (row, *control)]
        worth = np.array([bets(each).sum(0) for each in made])
        factor = math.log(len(made)) + worth[0] - np.logaddexp.reduce(worth)
        self.rows += 1
        self._factors.append((row, factor))
        for name in ("", str(row.concurrency)):
            self._logs[name] = self._logs[name] + factor
        for name in self.would:
            told = sum(_told(each.p, _WRONG[name](each.p, each.q)) for each in made) / len(made)
            self.would[name] += told * len(control) / len(made) / (1 + told)


def _told(p: Any, other: Any) -> float:
    """Return the divergence of wrong laws of a row ``[n, V]`` from its laws."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.where((p > 0) & (other > 0), other * np.log(other / p), 0.0).sum())


def _warmer(p: Any, _: Any) -> Any:
    other = p ** (1 / WARMER)
    return other / other.sum(-1, keepdims=True)


def _corrected(p: Any, q: Any) -> Any:
    """Return the laws of tokens whose corrections are drawn from the target's law."""
    both = np.minimum(p, q)
    return both + (1 - both.sum(-1, keepdims=True)) * p


_WRONG = {"temperature": _warmer, "corrections": _corrected}


def weaker(server: Server, answer: Completed) -> tuple[Scored, ...]:
    """Score a row's tokens with a short context, a few tokens before each: a stand-in for a draft."""
    prompt, tokens = answer.prompt, answer.tokens
    whole, seen = (*prompt, *tokens), list[Any]()
    for start in range(0, len(tokens), BLOCK):
        at = len(prompt) + start
        seen += server.scored((*whole[:1], *whole[max(1, at - BACK) : at]), tokens[start : start + BLOCK])
    return tuple(seen)


def law_of(place: Scored, temperature: float, count: int) -> tuple[list[int], list[float]]:
    """Return the likeliest ``count`` ids, and their probabilities followed by that of the rest.

    A server tells the row's own token beside the likeliest ones; it is left out where it is not one of them. Of the
    rest only its mass is known; at other temperatures than 1 it is taken to be as likely as the last of these.

    >>> from eqcheck.gate.compared_rows import Scored
    >>> half = math.log(0.5)
    >>> ids, law = law_of(Scored(1, half, 1, {1: half, 2: math.log(0.25)}), 1.0, 20)
    >>> ids, [round(p, 6) for p in law]
    ([1, 2], [0.5, 0.25, 0.25])
    """
    ids = sorted(place.likeliest, key=lambda one: -place.likeliest[one])[:count]
    logs = [place.likeliest[one] for one in ids]
    rest = max(LEAST_REST, 1 - sum(map(math.exp, logs)))
    weights = [math.exp(log / temperature) for log in logs]
    weights.append(rest * math.exp(min(logs) * (1 / temperature - 1)))
    total = sum(weights)
    return ids, [weight / total for weight in weights]


def evidence_of(row: Row) -> Any:
    """Return a row as evidence: a cell for each likely token of a place, and the last for the rest."""
    from eqcheck.gate.compared_rows import LIKELIEST_SAMPLED
    from eqcheck.sampling.betting.laws import SampledRow

    size = len(row.places)
    p, raw, q = (np.zeros((size, LIKELIEST_SAMPLED + 1)) for _ in range(3))
    tokens = np.full(size, LIKELIEST_SAMPLED, np.int64)
    for at, (place, weak) in enumerate(zip(row.places, row.by_draft, strict=True)):
        for laws, temperature in ((p, row.asked.temperature), (raw, 1.0)):
            ids, law = law_of(place, temperature, LIKELIEST_SAMPLED)
            laws[at, : len(ids)], laws[at, -1] = law[:-1], law[-1]
        seen = dict(zip(*law_of(weak, row.asked.temperature, LIKELIEST_SAMPLED), strict=False))
        q[at, : len(ids)] = [seen.get(one, 0.0) for one in ids]
        q[at, -1] = max(0.0, 1 - q[at].sum())
        tokens[at] = ids.index(place.token) if place.token in ids else LIKELIEST_SAMPLED
    return SampledRow(tokens, p, q / q.sum(-1, keepdims=True), raw, np.zeros(size, np.bool_))


# Bet on rows that end elsewhere than the plain server's rows of the same request, whatever finish_reason says.
#
# A bet is that of the rows of a request the speculative server's is the shortest, another that it is the longest. It
# counts where one row alone is so. Greedy rows have to be alike as far as they go, so that no rounding decides.
# `eqcheck.transparent.truth.rounding_evidence.OddOne` has the proof of the bound.

SHORTEST, LONGEST = "shortest", "longest"
LENGTHS = {SHORTEST: "premature-stop", LONGEST: "past-eos"}
"""The bets, and the kind of fault that each shows."""


class Lengths:
    """The two bets, and for each the speculative server's rows that won it, with a row of the control beside each."""

    def __init__(self) -> None:
        self.bets = {name: OddOne(ROOM) for name in LENGTHS}
        self.won: dict[str, list[tuple[Row, Row]]] = {name: [] for name in self.bets}

    @property
    def log_evidence(self) -> float:
        """Return the mean of both bets, as a logarithm."""
        return together([bet.log_evidence for bet in self.bets.values()])

    @property
    def crossed(self) -> list[str]:
        """Return the bets that decide, if the evidence does."""
        decides = self.log_evidence >= math.log(CROSSES)
        return [name for name, bet in self.bets.items() if decides and bet.log_evidence >= math.log(CROSSES)]

    def add(self, row: Row, control: Sequence[Row]) -> None:
        """Count a row of the speculative server, and those of the control that ask for the same."""
        asked = replace(row.asked, seed=None)
        others = [its for its in control if replace(its.asked, seed=None) == asked]
        for name, bet in self.bets.items() if others else ():
            ordered = sorted([row, *others], key=lambda its: len(its.answer.tokens), reverse=name == LONGEST)
            first, second = ordered[:2]
            if len(first.answer.tokens) == len(second.answer.tokens) or not _alike(ordered):
                continue
            bet.add(first is row, len(others))
            self.won[name] += [(row, second)] if first is row else []


def ends_so(length: str, row: Row, plain: Row) -> bool:
    """Return whether a greedy row ends before or after the plain server's same row. Sampled ones do by chance."""
    if row.asked.temperature:
        return False
    shorter, longer = (row, plain) if length == SHORTEST else (plain, row)
    return len(shorter.answer.tokens) < len(longer.answer.tokens) and _alike([row, plain])


def _alike(rows: Sequence[Row]) -> bool:
    """Return whether rows have the same tokens as far as both go; sampled ones need not."""
    if rows[0].asked.temperature:
        return True
    each = [row.answer.tokens for row in rows]
    return all(one[: len(other)] == other[: len(one)] for one in each for other in each)
