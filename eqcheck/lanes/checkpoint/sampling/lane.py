"""The lane of engines that sample, on the checkpoints: evidence over all tokens, and a request that shows it alone."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from eqcheck.case.sampling import SampledEngineCase
from eqcheck.checkpoints.judge import Judge
from eqcheck.checkpoints.models import checkpoint
from eqcheck.contract.decoders import hook
from eqcheck.explanation.records import Explanation, many
from eqcheck.lanes.checkpoint.explain import abduced, explain
from eqcheck.lanes.checkpoint.lane import worker
from eqcheck.lanes.checkpoint.outcome import judged as greedily_judged
from eqcheck.lanes.checkpoint.sampling.drawing import SampledEngineCases
from eqcheck.lanes.checkpoint.sampling.investigate import Drawing, Smallest, needs
from eqcheck.lanes.checkpoint.sampling.judge import GREEDY, judged
from eqcheck.lanes.checkpoint.sampling.naming import named
from eqcheck.lanes.checkpoint.sampling.script import checked_script, evidence_files
from eqcheck.lanes.checkpoint.script import shared
from eqcheck.lanes.sampling.conclusions import conclusions as of_tokens
from eqcheck.lanes.sampling.evidence import Gathered
from eqcheck.lanes.sampling.lane import TOKENS, SamplingLane
from eqcheck.lanes.sampling.seeds import broken_promise, trials
from eqcheck.result import declining
from eqcheck.result.findings import Audit, Finding
from eqcheck.result.outcome import Outcome
from eqcheck.result.tally import SPEAKS
from eqcheck.sampling.naming import Named
from eqcheck.workers.interpreter import environment
from eqcheck.workers.worker import Workers

SECONDS, INVESTIGATING_S = 120.0, 45.0  # of an audit without a budget; at least for a finding
DRAWING, LOOKING = 0.75, 0.85  # of a budget: then cases are no longer drawn, and promises not looked into
NAMING, NAMING_LEAST = 4, 3000  # times the tokens of a violation, and tokens, that name it
PROMISES = 10  # cases with seeds that are decoded again
# Whatever accepts or reads a column wrongly does so for greedy rows, too; other faults of sampling leave them right.
OF_GREEDY_TOO = ("over-acceptance", "bonus-column", "correction-column")
_SHOWN = 5  # cases that are tried, until one shows a wrong law by itself


class CheckpointSamplingLane(SamplingLane):
    """One audit of sampled rows on checkpoints."""

    share, seconds = DRAWING, SECONDS

    def begin(self) -> None:
        decoder, options = self.decoder, self.options
        self.python = environment(decoder, options.python)
        families = (SampledEngineCase.family,)
        self.result = Audit(decoder, options, "checkpoint-sampling", families, families)
        takes = decoder.capabilities, min(6, options.bounds.rows), decoder.seeds, decoder.option_order
        self.source = SampledEngineCases(options.seed, *takes, decoder.requires)
        self.regimes = self.source.regimes
        self.found: tuple[Smallest | None, Outcome | None] = (None, None)

    def new_gathered(self) -> Gathered:
        """Evidence to be gathered; every row has its own bound on rounding."""
        return Gathered()

    @contextmanager
    def drawing(self) -> Iterator[None]:
        judge = partial(_judged, Judge(self.decoder.dtype), self.decoder.dtype)
        with worker(self.decoder, self.python, self.options.case_timeout, judge) as one:
            one.open()
            self.running = Workers([one], batch=1, ahead=True)
            self.result.version = one.version
            yield

    def asks(self, case: object) -> bool:
        return isinstance(case, SampledEngineCase) and case.checkpoint in ("", checkpoint().name)

    def enough(self) -> bool:
        wealth = self.gathered.wealth
        if wealth.crossed is None:
            return wealth.tokens >= TOKENS
        return wealth.tokens >= max(NAMING_LEAST, NAMING * wealth.crossed)

    def unsettled(self, outcome: Outcome, why: str = "") -> Finding:
        """The finding of one case is seen again as it is; only a wrong law is made small."""
        return replace(super().unsettled(outcome, why), minimised=False)

    def shown(self, outcome: Outcome) -> Outcome:
        """A wrong greedy row is explained where the request is wrong with greedy rows alone, too."""
        read = outcome.explanation
        if read is None or read.subject != GREEDY:
            return outcome
        greedy = self.running.try_case(outcome.case.greedy())
        if greedy.failed:
            return replace(greedy, explanation=explain(greedy, abduced(greedy)), drawn=outcome.drawn)
        detail = f"{read.detail}; with all rows greedy the request is right"
        return replace(outcome, explanation=replace(read, detail=detail))

    def named(self, gathered: Gathered, outcomes: list[Any]) -> Named | None:
        """As in the other lane; few tokens refute little: a replayed case is seen again, not named again."""
        return named(outcomes) if gathered.wealth.tokens >= NAMING_LEAST / 2 else None

    def conclude(self) -> None:
        self._count()
        violated = self.gathered.violated
        if not self.result.interrupted and (violated or self.decoder.seeds != "none"):
            with self.drawing():
                self._promises()
                if violated:
                    self._investigate()
        super().conclude()
        result = self.result
        result.findings = [self._with_script(finding) for finding in result.findings]

    def by_law(self, finding: Finding) -> bool:
        """As in the other lane, but a greedy row has no law that could explain it."""
        return super().by_law(finding) and finding.explanation.subject != GREEDY

    @staticmethod
    def conclusions(result: Audit) -> None:
        of_tokens(result)
        tally = result.tally
        if tally.run and not tally.observed[SPEAKS]:
            result.warnings.append(
                "the decoder does not say how many draft tokens it proposed: nothing shows that it speculated"
            )
        result.warnings += declining.too_many(tally.declined, tally.drawn)

    def _investigate(self) -> None:
        """The smallest request that shows the wrong law, and a request that is wrong with greedy rows, too."""
        left = self.begun + (self.options.budget or 0.0) - time.monotonic()
        drawing = Drawing(self.running.try_case, time.monotonic() + max(INVESTIGATING_S, left))
        telling = self.gathered.telling()
        wrong = drawing.greedy(telling)
        tokens = self.gathered.wealth.crossed or self.gathered.wealth.tokens
        found = drawing.smallest(telling[:_SHOWN], tokens)
        if found:
            found = replace(found, plain=drawing.plain(found) if self.decoder.checkpoints else "")
        self.found = found, wrong

    def _finding(self, impossible: list[Finding]) -> Finding:
        """The wrong law with the smallest request that shows it, where there is one."""
        finding = super()._finding(impossible)
        (request, wrong), audit = self.found, self.gathered.wealth
        if request is None:
            explanation = self._weighed(finding.explanation, wrong)
            shown, case, minimised, plain = finding.outcome, finding.case, False, ""
        else:
            tokens = request.gathered.wealth.crossed or request.gathered.wealth.tokens
            case, minimised, plain = replace(request.case, crosses_after=tokens), request.minimised, request.plain
            shown = request.gathered.explained(self.cause(self.gathered))
            assert shown.explanation is not None
            explanation = self._weighed(shown.explanation, wrong)
            *clauses, last = explanation.said
            clauses += [
                f"{last}. That is of the request below, drawn again and again",
                f"in the audit the evidence reached {audit.supremum:.2g} within {audit.tokens} tokens{self._where()}",
            ]
            if impossible:
                cases = many(sum(one.count for one in impossible), "case")
                clauses.append(
                    f"in {cases} of it a token was emitted that has no probability under the options of its row"
                )
            explanation = explanation.saying(*clauses)
        return replace(
            finding,
            outcome=replace(shown, case=case, explanation=explanation),
            explanation=explanation,
            seen=(explanation.fingerprint, *finding.seen),
            needs=needs(case),
            plain=plain,
            minimised=minimised,
        )

    def _where(self) -> str:
        """The evidence by regime, at the end."""
        logs = self.gathered.wealth.by_regime()
        said = [f"{name} 1e{round(log / math.log(10))}" for name, log in logs.items()]
        return f" (at the end, by regime: {', '.join(said)})" if len(said) > 1 else ""

    def _weighed(self, explanation: Explanation, wrong: Outcome | None) -> Explanation:
        """The cause, where greedy rows do not speak against it: ``wrong`` is a request that is wrong with them, too."""
        if wrong is None:
            return explanation
        if explanation.kind in OF_GREEDY_TOO:
            return explanation.saying(*explanation.said, "greedy rows are wrong as well")
        alone = "greedy rows are wrong as well, so the cause is not in the sampling alone"
        return replace(explanation.saying(*explanation.said, alone), component="unattributed", kind="unattributed")

    def _with_script(self, finding: Finding) -> Finding:
        """The finding with its script, if it was seen to show it."""
        if self.found[0] is None or self.result.interrupted or not getattr(finding.case, "crosses_after", 0):
            return finding
        text = checked_script(self.decoder, self.result.version, self.python, finding)
        if text is None:
            if hook(self.decoder.function, "script"):
                self.result.warnings.append(f"{finding.id}: a script of it alone does not show it")
            return finding
        self.result.files |= shared(self.decoder) | evidence_files()
        return replace(finding, script=text)

    def _promises(self) -> None:
        """Whether rows with seeds keep what is promised: a promise is broken where two cases show it alike.

        One difference may be rounding: it moves a draw that lies near a boundary.
        """
        broken: dict[str, list[Outcome]] = {}
        promised = [one for one in self.gathered.outcomes if one.outputs and one.case.promise != "none"]
        end = self.begun + self.options.budget * LOOKING if self.options.budget else float("inf")
        for outcome in promised[:PROMISES]:
            if time.monotonic() > end:
                break
            if seen := self._broken(outcome):
                broken.setdefault(seen.fingerprint, []).append(replace(outcome, status="violation", explanation=seen))
        for outcomes in broken.values():
            if len(outcomes) > 1:
                self.result.findings.append(replace(self.unsettled(outcomes[0]), count=len(outcomes)))

    def _broken(self, outcome: Outcome) -> Explanation | None:
        """The first promise that a seeded row of a case does not keep, rounding apart."""
        case, outputs = outcome.case, outcome.outputs
        seeded = [number for number in case.sampled if case.rows[number].options.seed is not None]
        if outputs is None or not seeded:
            return None
        for level, what, first, other, rows in trials(case, seeded):
            known = [outputs[row] for row in rows] if first is None else self.running.try_case(first).outputs
            tried = self.running.try_case(other).outputs
            if known is None or tried is None:
                continue
            for row, was, now in zip(rows, known, tried, strict=True):
                if row in seeded and now != was:
                    explanation = broken_promise(case, row, level, what, was, now)
                    # The laws at hand are those behind what was emitted in the case itself.
                    elsewhere = was[: explanation.token_index] != outputs[row][: explanation.token_index]
                    if not elsewhere and not _near(outcome, row, explanation):
                        return explanation
        return None


def _judged(judge: Judge, dtype: str, case: Any, answer: Mapping[str, Any]) -> Outcome:
    """A sampled case, or a greedy one."""
    if isinstance(case, SampledEngineCase):
        return judged(judge, dtype, case, answer)
    return greedily_judged(judge, case, answer)


def _near(outcome: Outcome, row: int, found: Explanation) -> bool:
    """Whether two tokens are equally likely, up to rounding: then it may decide between them."""
    sampled = getattr(outcome, "sampled", {}).get(row)
    index, tokens = found.token_index, (found.expected, found.observed)
    if sampled is None or index is None or None in tokens or index >= len(sampled.p):
        return False
    one, other = (float(sampled.p[index, token]) for token in tokens)
    return abs(one - other) <= float(max(sampled.eps)) * max(one, other)
