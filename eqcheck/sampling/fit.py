"""Check that a name fits all tokens: bets that learn as they go, against each law of the round.

A name may be the likeliest of all and still be false, where the fault is one that nobody has named. Each bet is an
e-process against the law that is tested: the chance that a table of counts gives what comes next, over the chance that
the law gives it (Krichevsky and Trofimov, 1981, https://doi.org/10.1109/TIT.1981.1056331). Where the law is right, it
exceeds 1,000 once in 1,000 audits.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from eqcheck.sampling.reuse import tighter
from eqcheck.sampling.rounds import PartLaws, Read, bounded
from eqcheck.sampling.row import Floats, Ints

BINS = 6
STRAY, WAITING = 1e-3, 10
"""Tokens that a law forbids may come this often, for a round may be read wrongly; so many count before the first."""


def misfit(reads: Sequence[Read], part: str, name: Any, less: bool = False) -> float:
    """The logarithm of the evidence that a part of the rounds does not follow the law of this name.

    ``less`` looks only for draft tokens that are accepted less often than the law has it.
    """
    told = [read for read in (read.of(part) for read in reads) if len(read)]
    if part != "accept":
        seen = (read.draft if part == "draft" else read.token for read in told)
        return misfit_of_laws(
            (PartLaws(read).law(part, name), read.q[""], tokens) for read, tokens in zip(told, seen, strict=True)
        )
    tables = [_Acceptance(by, less) for by in ("chance", "column", "p")]
    for read in told:
        for t, chance in enumerate(bounded(PartLaws(read).acceptance(name)).tolist()):
            for table in tables:
                table.see(read, t, chance)
    return _together([table.log for table in tables])


def misfit_of_laws(told: Iterable[tuple[Floats, Floats, Ints]]) -> float:
    """The logarithm of the evidence that tokens ``[n]`` do not follow laws ``[n, V]``; each with the draft's laws."""
    orders = [_Order(by) for by in ("id", "likely", "draft")]
    least = 0.0  # of a bet that the least likely token that the law allows never comes
    for laws, drafts, tokens in told:
        own, short = (law[np.arange(len(tokens)), tokens] for law in (laws, tighter(laws)))
        least += float(np.log((1 + np.divide(short, own, out=np.ones_like(own), where=own > 0)) / 2).sum())
        for law, draft, token in zip(laws, drafts, tokens.tolist(), strict=True):
            for order in orders:
                order.see(law, draft, token)
    return _together([*(order.log for order in orders), least])


def _together(logs: list[float]) -> float:
    return float(np.logaddexp.reduce(logs) - math.log(len(logs)))


class _Acceptance:
    """Learn how often draft tokens are accepted, for each of some groups of chances."""

    def __init__(self, by: str, less: bool = False) -> None:
        self.by, self.less, self.log = by, less, 0.0
        self.ups: dict[object, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])  # accepted, expected, all

    def see(self, read: Read, t: int, chance: float) -> None:
        likely = float(read.p[""][t, read.draft[t]])
        group = {"chance": int(chance * BINS), "column": (int(read.column[t]), chance > 0.5), "p": int(likely * BINS)}
        table = self.ups[group[self.by]]
        accepted, expected, count = table
        # The learnt chance lies from the law's by what the group showed so far, as if two more had gone as expected.
        rate, usual = (accepted + 2 * chance) / (count + 2), (expected + 2 * chance) / (count + 2)
        learnt = min(max(_logistic(_logit(chance) + _logit(_open(rate)) - _logit(_open(usual))), 0.01), 0.99)
        learnt = min(learnt, chance) if self.less else learnt
        taken = read.role[t] == "accepted"
        self.log += math.log((learnt if taken else 1 - learnt) / (chance if taken else 1 - chance))
        self.ups[group[self.by]] = [accepted + taken, expected + chance, count + 1]


class _Order:
    """Learn where tokens fall in an order of all, as shares of equal parts of the distribution."""

    def __init__(self, by: str) -> None:
        self.by, self.log = by, 0.0
        self.counts = np.full(BINS, 1.0)
        self.strays, self.seen = 0, 0

    def see(self, law: Floats, q: Floats, token: int) -> None:
        own = float(law[token])
        rate = (self.strays + WAITING * STRAY) / (self.seen + WAITING)
        self.seen += 1
        if own <= 0:
            self.log += math.log(rate / STRAY)
            self.strays += 1
            return
        self.log += math.log((1 - rate) / (1 - STRAY))
        key = {"id": np.arange(len(law)), "likely": -law, "draft": law / np.maximum(q, 1e-9)}[self.by]
        ahead = (key < key[token]) | ((key == key[token]) & (np.arange(len(law)) < token))
        start = float(law[ahead].sum())
        edges = np.linspace(0, 1, BINS + 1)
        end = min(start + own, 1.0)
        shares = np.maximum(np.minimum(end, edges[1:]) - np.maximum(start, edges[:-1]), 0.0)
        if shares.sum() <= 0:  # too little to say where it falls
            return
        shares /= shares.sum()
        self.log += math.log(float((shares * self.counts).sum()) * BINS / self.counts.sum())
        self.counts += shares


def _logit(x: float) -> float:
    return math.log(x / (1 - x))


def _logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def _open(x: float) -> float:
    return min(max(x, 1e-3), 1 - 1e-3)
