"""The evidence of many sampled cases, in an audit or where one case is drawn again and again; and how it is told."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from eqcheck.explanation.records import Explanation
from eqcheck.explanation.statements import power
from eqcheck.lanes.about import SAMPLING
from eqcheck.lanes.sampling.judge import IMPOSSIBLE
from eqcheck.result.outcome import Outcome
from eqcheck.sampling.exclusion import Exclusion
from eqcheck.sampling.naming import Named
from eqcheck.sampling.row import SampledRow
from eqcheck.sampling.wealth import DOUBT, VIOLATION, Wealth

NOTHING_SEEN = 10.0
"""A case drawn for ten times the tokens that it took is fixed where the evidence never was more than this."""
LONGER = 10


class Gathered:
    """The evidence of outcomes, in the order in which their cases were drawn; ``eps`` bounds what rounding changes."""

    def __init__(self, eps: float = 0.0) -> None:
        self.eps = eps
        self.wealth, self.outcomes = Wealth(), list[Outcome]()
        self._gains: list[tuple[float, int]] = []

    def add(self, outcome: Outcome) -> None:
        """Let the bets earn on what was decoded."""
        self.outcomes.append(outcome)
        if rows := rows_of(outcome):
            before = self.wealth.log_evidence
            self.wealth.add(rows, outcome.case.regime, self.eps)
            self._gains.append((before - self.wealth.log_evidence, len(self.outcomes) - 1))

    def telling(self) -> list[Outcome]:
        """The outcomes that have sampled tokens; the outcome that adds most to the evidence comes first."""
        return [self.outcomes[number] for _, number in sorted(self._gains)]

    @property
    def impossible(self) -> Outcome | None:
        """The first case with a token that has no probability."""
        kinds = (one for one in self.outcomes if one.explanation and one.explanation.kind == IMPOSSIBLE)
        return next(kinds, None)

    @property
    def crossed(self) -> bool:
        return self.wealth.supremum >= VIOLATION

    @property
    def violated(self) -> bool:
        """Return whether the law is wrong: the evidence says so, or a token that has no probability."""
        return self.crossed or self.impossible is not None

    def exclusion(self) -> Exclusion:
        """The counts that tell which faults the tokens exclude."""
        exclusion = Exclusion()
        for outcome in self.outcomes:
            exclusion.add(rows_of(outcome), outcome.case.regime, self.eps)
        return exclusion

    @property
    def most_telling(self) -> tuple[float, Outcome] | None:
        """The case that adds most to the evidence, and the natural logarithm of that; None without sampled tokens."""
        gain, number = min(self._gains, default=(0.0, None))
        return None if number is None else (-gain, self.outcomes[number])

    def explained(self, cause: Named | None, smallest: Outcome | None = None) -> Outcome:
        """The wrong law explained, on a case with an impossible token or the one that adds most to the evidence.

        ``smallest`` is such a case made small.
        """
        impossible = smallest or self.impossible
        return wrong_law(impossible or self.telling()[0], self.wealth, cause, impossible is not None)


def wrong_law(outcome: Outcome, wealth: Wealth, cause: Named | None, impossible: bool = False) -> Outcome:
    """The wrong law explained, on this case: ``impossible`` says that it has a token without probability."""
    best, crossed = wealth.best(), wealth.supremum >= VIOLATION
    evidence = f"{wealth.supremum:.2g}"
    first = outcome.explanation if impossible else None
    clauses = [cause.words] if cause and cause.words else []
    clauses += [first.detail] if first else []
    if crossed:
        clauses.append(
            f"after {wealth.tokens:,} tokens the evidence (e-value) against the target's distribution is "
            f"{power(wealth.supremum)}; a correct decoder reaches 10^6 in one audit of a million"
        )
    if not cause and crossed:
        clauses += _hints(wealth)
    kind = cause.kind if cause else IMPOSSIBLE if impossible else "stray-law"
    facts: dict[str, int | str] = {"evidence": evidence, "tokens": wealth.tokens, "bet": best[0][0].name}
    facts |= {"likelier": f"1e{cause.log_factor / math.log(10):.0f}"} if cause and cause.words else {}
    facts |= {"again": " ".join(f"{one.numbers}:{one.when}" for one in cause.again)} if cause and cause.again else {}
    explanation = replace(first or Explanation("sampling", kind), kind=kind, facts=facts).saying(*clauses)
    return replace(outcome, status="violation", explanation=explanation)


def _hints(wealth: Wealth) -> list[str]:
    """The only kind of case that shows a wrong law without a name.

    The bet that earned most is no hint: where no part of a round leads, the one that wins only happens to lie nearest.
    """
    (most, name), *others = sorted(((log, name) for name, log in wealth.by_regime().items()), reverse=True)
    if (
        others
        and most >= math.log(DOUBT)
        and others[0][0] < math.log(NOTHING_SEEN)
        and f"regime_{name}" in SAMPLING.counters
    ):
        return [f"it shows in one kind of case only: {SAMPLING.counters[f'regime_{name}']}"]
    return []


def rows_of(outcome: Outcome) -> list[SampledRow]:
    """The sampled rows of a case, in the order in which the bets take them."""
    sampled = getattr(outcome, "sampled", {})
    numbers = list(sampled)
    return [replace(row, twin=numbers.index(row.twin) if row.twin in numbers else None) for row in sampled.values()]


def drawn_again(
    case: Any,
    try_case: Callable[[Any], Outcome],
    most: int,
    until: float,
    rng: Random,
    gathered: Gathered | None = None,
) -> Gathered:
    """A case decoded again and again with other chance, until its law is violated or so many tokens are spent.

    ``until`` is on the monotonic clock. A case that fails for another reason, or is declined, ends it as well.
    """
    gathered = gathered or Gathered()
    while not gathered.violated and gathered.wealth.tokens < most and time.monotonic() < until:
        outcome = try_case(case.renewed(rng))
        gathered.add(outcome)
        if not rows_of(outcome) or (outcome.failed and gathered.impossible is None):
            break
    return gathered
