"""The lane of sampling: what one case shows for certain, and what all tokens of an audit show together."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import SystemRandom
from typing import Any

from eqcheck.case.sampling import REGIMES, SampledCase
from eqcheck.contract.decoders import Decoder
from eqcheck.explanation.records import many
from eqcheck.lanes.lane import Lane
from eqcheck.lanes.sampling.conclusions import REGIMES as DRAWN_REGIMES
from eqcheck.lanes.sampling.conclusions import conclusions as of_tokens
from eqcheck.lanes.sampling.conclusions import law_finding
from eqcheck.lanes.sampling.drawing import SampledCases
from eqcheck.lanes.sampling.evidence import LONGER, NOTHING_SEEN, Gathered, drawn_again
from eqcheck.lanes.sampling.explain import cause
from eqcheck.lanes.sampling.judge import BY_LAW, IMPOSSIBLE, PROMISES, try_case
from eqcheck.lanes.sampling.reads import reads
from eqcheck.lanes.sampling.reduction import greedy_drawn, smallest
from eqcheck.lanes.transparent.judge import try_case as try_greedy
from eqcheck.result.findings import Audit, Finding, Options
from eqcheck.result.outcome import Outcome
from eqcheck.sampling.bets import HIGHEST
from eqcheck.sampling.naming import KnownRounds, Named, argmax
from eqcheck.sampling.rounds import Read

TOKENS, SECONDS = 20_000, 60.0  # of an audit, if its options say nothing else
TO_NAME, SOONER = 250, 1.4  # tokens at least that a name rests on; it is looked for again after so many times as many
SURE = 2000  # tokens after which a kind without words is kept, and a first name
MOST_TO_NAME = 4500  # a name is looked for so long, or six times as long as it took to see that the law is wrong
# The greatest error of samplers in float32: of 64 tokens each bound of an interval by one step of a uniform number,
# 2^-24, in total variation, times the greatest e-value; probabilities themselves by less than 1e-5.
SINGLE = 64 * 2**-24 * HIGHEST + 1e-5
AGAIN_S = 600.0  # for a case that is replayed; tokens end it long before
ENDS = ("premature-stop", "past-eos", "over-length", "pad-in-output", "prompt-in-output")


class SamplingLane(Lane):
    """One audit of sampled rows."""

    seconds, sampled = SECONDS, True
    source: Any
    regimes: tuple[str, ...] = REGIMES

    def __init__(self, decoder: Decoder, options: Options) -> None:
        super().__init__(decoder, options)
        self.total = None  # tokens decide
        self.gathered = self.new_gathered()
        self.to_name = self.at_most = 0  # tokens after which to look for a name, where the law is seen to be wrong
        self.last_name: Named | None = None
        self._named: tuple[Gathered, int, Named | None] | None = None
        self._read: tuple[Gathered | None, int, list[Read]] = (None, 0, [])  # what so many outcomes say
        self.begin()

    def new_gathered(self) -> Gathered:
        """Evidence to be gathered. The target's scores are exact, what a decoder makes of them need not be."""
        return Gathered(SINGLE)

    def begin(self) -> None:
        """Say what is audited, and where cases come from."""
        decoder, options = self.decoder, self.options
        families = tuple(dict.fromkeys(options.families)) or decoder.families
        self.result = Audit(decoder, options, "sampling", families, decoder.families)
        rows = min(8, options.bounds.rows)
        claimed = tuple(family for family in families if family in decoder.families) or families
        takes = decoder.padding_sides, decoder.capabilities, rows, decoder.seeds, decoder.option_order
        self.source = SampledCases(options.seed, claimed, *takes, decoder.requires)

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Decode one case after the other: in the order in which they are drawn they count as evidence."""
        with self.decoding(try_case) as self.running:
            yield

    def cases(self) -> Iterator[Any]:
        """Cases until there are tokens enough; where the law is seen to be wrong, enough for a name."""
        for case in self.source.cases():
            self._count()
            if self.enough():
                return
            yield case

    def enough(self) -> bool:
        """Whether there are tokens enough, for a violation with a name or for none.

        A name is looked for again and again, and is kept where the next look gives the same. That makes no name
        likelier: how much likelier than the truth a wrong sampler ever looks is bounded like wealth (`naming`).
        """
        tokens = self.gathered.wealth.tokens
        if not self.to_name:
            verdict = self.gathered.wealth.verdict()
            if verdict != "violation":  # where it is in doubt, a budget is used up
                return tokens >= TOKENS and not (verdict == "inconclusive" and self.options.budget)
            self.to_name = max(TO_NAME, tokens)
            # Where only a token without probability shows it, it is rare.
            most = max(MOST_TO_NAME, 6 * tokens)
            self.at_most = min(TOKENS, most) if self.gathered.wealth.crossed else TOKENS
        if self.to_name <= tokens < self.at_most:
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
            self.gathered.add(outcome)

    def asks(self, case: object) -> bool:
        return isinstance(case, SampledCase) and case.family in self.source.families

    def order(self, groups: list[list[Outcome]]) -> list[list[Outcome]]:
        """Cases first that say which token was to come, and small ones."""

        def key(outcome: Outcome) -> tuple[bool, int]:
            return outcome.explanation is None or outcome.explanation.expected is None, len(outcome.case.rows)

        return [sorted(group, key=key) for group in groups]

    def explain(
        self, outcome: Outcome, again: Outcome, group: list[Outcome], left: Callable[[], float]
    ) -> list[Finding] | None:
        return [replace(self.unsettled(self.shown(outcome)), seen=(outcome.symptom,))]

    def shown(self, outcome: Outcome) -> Outcome:
        """A failing case made smaller, or with the cause that can be asserted of it."""
        if outcome.explanation and outcome.explanation.kind in (IMPOSSIBLE, *PROMISES):
            return smallest(outcome, self.running.try_case)
        return self._asserted(outcome)

    def _asserted(self, outcome: Outcome) -> Outcome:
        """Assert the reading where a greedy request shows it, too: only there it can be checked by repair."""
        read = outcome.explanation
        if read is None or read.component in ("crash", "sampling") or read.kind in ENDS:
            return outcome
        right = read.component in ("unattributed", "bookkeeping")  # all contexts were
        if right and (drawn := greedy_drawn(outcome, self.running.try_case)):
            return drawn
        with self.decoding(try_greedy) as running:
            greedy = running.try_case(outcome.case.greedy(), opinion=True)
        if greedy.failed:
            return replace(greedy, drawn=outcome.drawn)
        detail = f"reading says {read.fingerprint} where rows are sampled; with greedy rows the request is right"
        unclear = replace(read, component="unattributed", kind="unattributed", detail=detail, facts={}, subject="")
        return replace(outcome, explanation=unclear)

    def unsettled(self, outcome: Outcome, why: str = "") -> Finding:
        return replace(super().unsettled(outcome, why), minimised=True)

    def again(self, case: Any, calls: bool) -> tuple[Outcome, str]:
        """A case decoded again; one whose law was wrong is drawn until that shows again, or plainly does not."""
        if "temperature" not in self.decoder.capabilities:
            declined = "the decoder does not declare the capability 'temperature'"
            return Outcome(case, "skipped", declined=declined), ""
        with self.drawing():
            first = self.running.try_case(case)
            if first.failed or first.declined or not case.crosses_after:
                return first, ""
            most = LONGER * case.crosses_after
            end = time.monotonic() + AGAIN_S
            found = drawn_again(case, self.running.try_case, most, end, SystemRandom(), self.new_gathered())
        if found.violated:
            return found.explained(self.cause(found)), ""
        last, wealth = (found.outcomes or [first])[-1], found.wealth
        spent = wealth.tokens >= most and wealth.supremum <= NOTHING_SEEN
        status = last.status if last.failed or last.declined or spent else "inconclusive"
        seen = {"tokens": wealth.tokens, "evidence": f"{wealth.supremum:.2g}"}
        return replace(last, status=status, observed={**last.observed, **seen}), ""

    def cause(self, gathered: Gathered) -> Named | None:
        """Which part of the sampler is wrong; None where nothing leads clearly, or tokens are too few for a name.

        It takes long, and is asked for more than once of the same tokens.
        """
        if self._named is None or self._named[:2] != (gathered, len(gathered.outcomes)):
            outcomes = [outcome for outcome in gathered.outcomes if getattr(outcome, "sampled", None)]
            self._named = gathered, len(gathered.outcomes), self.named(gathered, outcomes)
        return self._named[2]

    def named(self, gathered: Gathered, outcomes: list[Any]) -> Named | None:
        """The cause that these outcomes with sampled tokens show."""
        rows = [outcome.sampled.values() for outcome in outcomes]
        if gathered.wealth.tokens < TO_NAME:
            return argmax(row for case in rows for row in case)
        if self._read[0] is not gathered:
            self._read = gathered, 0, []
        _, count, known = self._read
        known += [read for outcome in outcomes[count:] for read in reads(outcome)]
        self._read = gathered, len(outcomes), known
        return cause(rows, gathered.wealth.best(), KnownRounds(known))

    def conclude(self) -> None:
        """Sum up the tokens, and name the law where they show that it is wrong."""
        self._count()
        gathered, result = self.gathered, self.result
        result.wealth, result.exclusion, result.telling = gathered.wealth, gathered.exclusion(), gathered.most_telling
        result.facts[DRAWN_REGIMES] = list(self.regimes)
        impossible = [finding for finding in result.findings if finding.explanation.kind == IMPOSSIBLE]
        if gathered.crossed or impossible:
            caused = [finding for finding in result.findings if self.by_law(finding)]
            kept = [finding for finding in result.findings if finding not in caused]
            result.findings = [*kept, self._finding(impossible)]
            result.findings.sort(key=lambda finding: finding.explanation.kind in PROMISES)
            result.warnings += [
                f"{many(finding.count, 'case')} of {finding.fingerprint}: a law that is wrong explains this, so it is "
                "no finding of its own; audit again when the law is mended"
                for finding in caused
                if finding.explanation.kind != IMPOSSIBLE
            ]

    def by_law(self, finding: Finding) -> bool:
        """Whether a law that is wrong explains a finding of single cases, so that it is none of its own."""
        return finding.explanation.kind in (*BY_LAW, "unattributed")

    conclusions = staticmethod(of_tokens)

    def _finding(self, impossible: list[Finding]) -> Finding:
        """The finding of the wrong law, with an ``impossible`` token or the case that added most to the evidence."""
        smallest = impossible[0].outcome if impossible else None
        outcome = self.gathered.explained(self.cause(self.gathered), smallest)
        tokens = self.gathered.wealth.crossed or self.gathered.wealth.tokens
        count = sum(one.count for one in impossible) or 1
        return law_finding(outcome, tokens, count, self.decoder.lossless is True)
