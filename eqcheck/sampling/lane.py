"""The lane of sampling: what one case shows for certain, and what all tokens of an audit show together."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from random import SystemRandom
from typing import Any, ClassVar

from eqcheck.audit.lane import OF_SAMPLED_ROWS, Lane
from eqcheck.audit.workers.worker import Workers
from eqcheck.contract.decoders import Decoder
from eqcheck.core.explanation.notice import guarded
from eqcheck.core.explanation.records import many
from eqcheck.core.result.claims import Claim
from eqcheck.core.result.findings import Audit, Finding, Options
from eqcheck.core.result.outcome import Outcome
from eqcheck.sampling.betting.exclusion import Exclusion
from eqcheck.sampling.betting.naming import Named
from eqcheck.sampling.judge import (
    BY_LAW,
    IMPOSSIBLE,
    LONGER,
    NOTHING_SEEN,
    PROMISES,
    REGIMES,
    Gathered,
    drawn_again,
    law_finding,
)

TOKENS = 20_000  # of an audit, if its options say nothing else
TO_NAME, SOONER = 250, 1.4  # tokens at least that a name rests on; it is looked for again after so many times as many
SURE = 2000  # tokens after which a kind without words is kept, and a first name
MOST_TO_NAME = 4500  # a name is looked for so long, or six times as long as it took to see that the law is wrong
AGAIN_S = 600.0  # for a case that is replayed; tokens end it long before


class SampledTarget(ABC):
    """A target that rows are drawn from, for one audit of one decoder.

    ``source`` has the cases, of ``regimes`` and ``families``; the decoder claims the families ``claimed``.
    ``eps`` bounds what rounding changes where rows do not say it. Cases are drawn in this ``share`` of a budget, or for
    so many ``seconds``. A finding of one case is ``minimised``. ``naming`` says after how many times the tokens of a
    violation, and how many tokens at least, a name is looked for; None: again and again.
    """

    lane: ClassVar[str]
    eps: ClassVar[float] = 0.0
    share: ClassVar[float] = 1.0
    seconds: ClassVar[float] = 60.0
    minimised: ClassVar[bool] = True
    naming: ClassVar[tuple[int, int] | None] = None
    source: Any
    regimes: tuple[str, ...]
    families: tuple[str, ...]
    claimed: tuple[str, ...]

    def __init__(self, decoder: Decoder, options: Options) -> None:
        self.decoder = decoder

    @abstractmethod
    def drawing(self, lane: SampledLane) -> AbstractContextManager[Workers]:
        """Workers that decode one case after the other: in the order in which they are drawn they count as evidence."""

    @abstractmethod
    def attributed(self, outcome: Outcome, lane: SampledLane) -> Outcome:
        """A failing case with the cause that can be asserted of it, in an audit and whenever it is replayed."""

    def shown(self, outcome: Outcome, lane: SampledLane) -> Outcome:
        """A failing case made smaller where that can be, with the cause that can be asserted of it."""
        return self.attributed(outcome, lane)

    @abstractmethod
    def named(self, gathered: Gathered, outcomes: Sequence[Any]) -> Named | None:
        """The cause that these outcomes with sampled tokens show; None where nothing leads clearly."""

    def by_law(self, finding: Finding) -> bool:
        """Return whether a law that is wrong may explain a finding of single cases."""
        return True

    def look(self, lane: SampledLane) -> None:  # noqa: B027 - there may be nothing to look into
        """Decode again the cases that all evidence together singles out."""

    def finding(self, finding: Finding, lane: SampledLane, impossible: list[Finding]) -> Finding:
        """The finding of a wrong law, as it is shown best; it explains the findings of ``impossible`` tokens."""
        return finding

    def scripted(self, finding: Finding, lane: SampledLane) -> Finding:
        """The finding with a script that shows it without eqcheck, where there is one."""
        return finding


class SampledLane(Lane):
    """One audit of sampled rows, on a target."""

    sampled = True

    def __init__(self, decoder: Decoder, options: Options, target: type[SampledTarget]) -> None:
        super().__init__(decoder, options)
        self.target, self.usual = target(decoder, options), options.usual
        self.share, self.seconds = target.share, target.seconds
        self.result = Audit(decoder, options, target.lane, self.target.families, self.target.claimed)
        self.gathered = Gathered(target.eps)
        self.to_name = self.at_most = 0  # tokens after which to look for a name, where the law is seen to be wrong
        self.last_name: Named | None = None
        self._named: tuple[Gathered, int, Named | None] | None = None

    @contextmanager
    def drawing(self) -> Iterator[None]:
        with self.target.drawing(self) as self.running:
            yield

    @property
    def evidence(self) -> tuple[int, float]:
        wealth = self.gathered.wealth
        return wealth.tokens, wealth.log_evidence / math.log(10)

    def claimed(self) -> list[Claim]:
        names = (*OF_SAMPLED_ROWS, *(["n"] if "sampled-n" in self.decoder.requires else []))
        return [Claim("capability", name) for name in names if name in self.decoder.capabilities]

    def drawn_anew(self) -> Iterator[Any]:
        cases: Iterator[Any] = self.target.source.cases()
        return cases

    def cases(self) -> Iterator[Any]:
        """Cases until there are tokens enough; where the law is seen to be wrong, enough for a name."""
        for case in self.target.source.cases():
            self._count()
            if self.enough():
                return
            yield case

    def goes_on(self, drawn: int) -> bool:
        """Return whether the evidence is near its limit, and the number of cases was left to eqcheck.

        A wrong law that took so many tokens to get there crosses the limit with a few times as many; a right one seldom
        gets there. Where time ends the audit, `enough` goes on.
        """
        wealth = self.gathered.wealth
        self._count()
        more = self.usual and wealth.tokens < TOKENS and drawn < LONGER * (self.total or 0)
        return more and bool(wealth.tokens) and wealth.verdict() == "inconclusive"

    def enough(self) -> bool:
        """Return whether there are tokens enough, for a violation with a name or for none.

        A name is looked for again and again, and is kept where the next look gives the same. That makes no name
        likelier: how much likelier than the truth a wrong sampler ever looks is bounded like wealth (`naming`).
        """
        wealth = self.gathered.wealth
        tokens, crossed, verdict = wealth.tokens, wealth.crossed, wealth.verdict()
        if verdict != "violation":  # where it is in doubt, a budget is used up
            return tokens >= TOKENS and not (verdict == "inconclusive" and self.budget)
        if self.target.naming:
            times, least = self.target.naming
            return tokens >= (TOKENS if crossed is None else max(least, times * crossed))
        if not self.to_name:
            self.to_name = max(TO_NAME, tokens)
            # Where only a token without probability shows it, it is rare.
            self.at_most = min(TOKENS, max(MOST_TO_NAME, 6 * tokens)) if crossed else TOKENS
        if self.to_name <= tokens < self.at_most:
            self.on_step("name", "")
            found, self.to_name = self.cause(self.gathered), math.ceil(SOONER * tokens)
            vague = found is None or not found.words
            same = bool(found and self.last_name and found[:2] == self.last_name[:2])
            self.last_name = found
            if same + (not vague) + (tokens >= SURE) >= 2:
                self.at_most = tokens
        return tokens >= self.at_most

    def _count(self) -> None:
        """Let the bets earn on what was decoded since, in the order in which it was drawn."""
        for outcome in self.result.outcomes[len(self.gathered.outcomes) :]:
            with guarded(self.result.internal, "judge", outcome.case):
                self.gathered.add(outcome)

    def rank(self, outcome: Outcome) -> tuple[int, int]:
        """Cases come first that say which token was to come, and small ones."""
        return outcome.explanation is None or outcome.explanation.expected is None, len(outcome.case.rows)

    def explain(self, outcome: Outcome, group: list[Outcome], left: Callable[[], float]) -> list[Finding] | None:
        if not self.repeats(outcome):
            return None
        return [replace(self.unsettled(self.target.shown(outcome, self)), seen=(outcome.symptom,))]

    def unsettled(self, outcome: Outcome, why: str = "") -> Finding:
        return replace(super().unsettled(outcome, why), minimised=self.target.minimised)

    def again(self, case: Any, calls: bool) -> tuple[Outcome, str]:
        """A case decoded again; one whose law was wrong is drawn until that shows again, or plainly does not."""
        if "temperature" not in self.decoder.capabilities:
            declined = "the decoder does not declare the capability 'temperature'"
            return Outcome(case, "skipped", declined=declined), ""
        with self.drawing():
            first = self.running.try_case(case)
            if first.failed:
                return self.target.attributed(first, self), ""
            if first.declined or not case.crosses_after:
                return first, ""
            most = LONGER * case.crosses_after
            end = time.monotonic() + AGAIN_S
            found = drawn_again(case, self.running.try_case, most, end, SystemRandom(), Gathered(self.target.eps))
        if found.violated:
            return found.explained(self.cause(found)), ""
        last, wealth = (found.outcomes or [first])[-1], found.wealth
        spent = wealth.tokens >= most and wealth.supremum <= NOTHING_SEEN
        status = last.status if last.failed or last.declined or spent else "inconclusive"
        seen = {"tokens": wealth.tokens, "evidence": f"{wealth.supremum:.2g}"}
        return replace(last, status=status, observed={**last.observed, **seen}), ""

    def cause(self, gathered: Gathered) -> Named | None:
        """Return which part of the sampler is wrong; None where nothing leads clearly, or tokens are too few for a
        name.

        It takes long, and is asked for more than once of the same tokens.
        """
        if self._named is None or self._named[:2] != (gathered, len(gathered.outcomes)):
            outcomes = [outcome for outcome in gathered.outcomes if getattr(outcome, "sampled", None)]
            named = None
            with guarded(self.result.internal, "name", lane=self.result.lane):
                named = self.target.named(gathered, outcomes)
            self._named = gathered, len(gathered.outcomes), named
        return self._named[2]

    def conclude(self) -> None:
        """Sum up the tokens, and name the law where they show that it is wrong."""
        self._count()
        with guarded(self.result.internal, "explain", lane=self.result.lane):
            self.target.look(self)
        gathered, result = self.gathered, self.result
        result.wealth, result.exclusion, result.telling = gathered.wealth, Exclusion(), gathered.most_telling
        with guarded(result.internal, "conclude", lane=result.lane):
            result.exclusion = gathered.exclusion()
        result.facts[REGIMES] = list(self.target.regimes)
        impossible = [finding for finding in result.findings if finding.explanation.kind == IMPOSSIBLE]
        if gathered.crossed or impossible:
            self.on_step("name", "")
            caused = [finding for finding in result.findings if self._by_law(finding)]
            kept = [finding for finding in result.findings if finding not in caused]
            result.findings = [*kept, self._finding(impossible)]
            result.findings.sort(key=lambda finding: finding.explanation.kind in PROMISES)
            result.warnings += [
                f"{many(finding.count, 'case')} of {finding.fingerprint} may come from the wrong distribution: "
                "fix that, then audit again"
                for finding in caused
                if finding.explanation.kind != IMPOSSIBLE
            ]
        for number, finding in enumerate(result.findings):
            with guarded(result.internal, "render", finding.case):
                result.findings[number] = self.target.scripted(finding, self)

    def _by_law(self, finding: Finding) -> bool:
        """Return whether a law that is wrong explains a finding of single cases, so that it is none of its own."""
        return finding.explanation.kind in (*BY_LAW, "unattributed") and self.target.by_law(finding)

    def _finding(self, impossible: list[Finding]) -> Finding:
        """The finding of the wrong law, with an ``impossible`` token or the case that added most to the evidence."""
        smallest = impossible[0].outcome if impossible else None
        outcome = self.gathered.explained(self.cause(self.gathered), smallest)
        tokens = self.gathered.wealth.crossed or self.gathered.wealth.tokens
        count = sum(one.count for one in impossible) or 1
        finding = law_finding(outcome, tokens, count, self.decoder.lossless is True)
        return self.target.finding(finding, self, impossible)
