"""Sampled rows of engines, on the checkpoints: judged by tokens alone, and shown by a request that is drawn again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, NamedTuple

import numpy as np

from eqcheck.audit.lane import EXACT_LAW, LESS
from eqcheck.audit.workers.interpreter import environment
from eqcheck.audit.workers.worker import Workers
from eqcheck.contract.decoders import Decoder, hook
from eqcheck.core.case.sampling import SampledEngineCase
from eqcheck.core.explanation.records import Explanation, many
from eqcheck.core.explanation.statements import power
from eqcheck.core.result.findings import Finding, Options
from eqcheck.core.result.outcome import Outcome
from eqcheck.core.shrinking.reducer import Budget, Shrinking, first
from eqcheck.engines.checkpoints.row_judge import Judge
from eqcheck.engines.engine_outcome import abduced, explain
from eqcheck.engines.engine_outcome import judged as greedily_judged
from eqcheck.engines.investigate import candidates, needs
from eqcheck.engines.lane import engine
from eqcheck.engines.script import checked_script, shared, unscripted
from eqcheck.sampling.betting.naming import Named
from eqcheck.sampling.decode import broken
from eqcheck.sampling.drawing import SampledEngineCases
from eqcheck.sampling.judge import GREEDY, NOTHING_SEEN, Gathered, SampledOutcome, drawn_again, judged
from eqcheck.sampling.lane import SampledLane, SampledTarget
from eqcheck.sampling.sampler_named import named_by_tokens

INVESTIGATING_S = 45.0  # at least for a finding
LOOKING = 0.85  # of a budget; then promises are no longer looked into
PROMISES = 10  # cases with seeds that are decoded again
# Whatever accepts or reads a column wrongly does so for greedy rows, too; other faults of sampling leave them right.
OF_GREEDY_TOO = ("over-acceptance", "bonus-column", "correction-column")
_SHOWN = 5  # cases that are tried, until one shows a wrong law by itself
CONTROLS = 6  # requests that are tried with greedy rows
LEAST, MOST = 400, 6000  # tokens that a smaller request may take
SLOWER = 3  # times the tokens of the larger one
PLAIN_S = 30.0  # for what the engine does without speculation


class Smallest(NamedTuple):
    """A request whose law is seen to be wrong when it is drawn again and again: what was ``gathered`` then.

    ``minimised``: no smaller one was found in time. ``plain`` is what the engine does without speculation.
    """

    case: SampledEngineCase
    gathered: Gathered
    minimised: bool
    plain: str


class EngineTarget(SampledTarget):
    """The target of the checkpoints: every row has its own bound on rounding. Only a wrong law is made small."""

    lane = "engine-sampling"
    share, seconds = 0.75, 120.0
    minimised = False
    naming = 4, 3000

    def __init__(self, decoder: Decoder, options: Options) -> None:
        super().__init__(decoder, options)
        self.python = environment(decoder, options.python)
        self.families = self.claimed = (SampledEngineCase.family,)
        takes = decoder.capabilities, min(6, options.bounds.rows), decoder.seeds, decoder.option_order
        kind = EXACT_LAW if decoder.dtype in LESS else ""
        self.source = SampledEngineCases(options.seed, *takes, decoder.requires, kind, opening=not options.profile)
        self.regimes = self.source.regimes
        self.request: Smallest | None = None  # that shows the wrong law by itself
        self.greedy: Outcome | None = None  # a request that is wrong with greedy rows, too

    @contextmanager
    def drawing(self, lane: SampledLane) -> Iterator[Workers]:
        judge = partial(_judged, Judge(self.decoder.dtype), self.decoder.dtype)
        with engine(lane, self.python, judge) as running:
            yield running

    def attributed(self, outcome: Outcome, lane: SampledLane) -> Outcome:
        """A wrong greedy row is explained where the request is wrong with greedy rows alone, too."""
        read = outcome.explanation
        if read is None or read.subject != GREEDY:
            return outcome
        greedy = lane.running.try_case(outcome.case.greedy())
        if greedy.failed:
            return replace(greedy, explanation=explain(greedy, abduced(greedy)), drawn=outcome.drawn)
        detail = f"{read.detail}; with greedy rows the request is correct"
        return replace(outcome, explanation=replace(read, detail=detail))

    def named(self, gathered: Gathered, outcomes: Sequence[Any]) -> Named | None:
        """Few tokens refute little: a replayed case is seen again, not named again."""
        return named_by_tokens(outcomes) if 2 * gathered.wealth.tokens >= self.naming[1] else None

    def by_law(self, finding: Finding) -> bool:
        """Return whether a law that is wrong may explain a finding: a greedy row has none."""
        return finding.explanation.subject != GREEDY

    def look(self, lane: SampledLane) -> None:
        """Look into promises, and for the smallest request that shows the wrong law."""
        violated = lane.gathered.violated
        if not lane.result.interrupted and (violated or self.decoder.seeds != "none"):
            with lane.drawing():
                self._promises(lane)
                if violated:
                    self._investigate(lane)

    def _investigate(self, lane: SampledLane) -> None:
        """The smallest request that shows the wrong law, and a request that is wrong with greedy rows, too."""
        decode, telling, wealth = lane.running.try_case, lane.gathered.telling(), lane.gathered.wealth
        left = lane.begun + (lane.budget or 0.0) - time.monotonic()
        until = time.monotonic() + max(INVESTIGATING_S, left)
        self.greedy = _wrong_greedily(telling, decode)
        rng = Random()

        def shows(case: SampledEngineCase, tokens: int) -> Gathered | None:
            """The evidence of a request whose law is seen to be wrong in few more tokens than these; else None."""
            drawn = drawn_again(case, decode, min(MOST, max(LEAST, SLOWER * tokens)), until, rng)
            return drawn if drawn.violated else None

        budget = Budget(until=until)

        def still(case: SampledEngineCase, larger: Gathered) -> Gathered | None:
            budget.spend()
            return shows(case, larger.wealth.tokens)

        smaller = partial(candidates, capabilities=self.decoder.capabilities)
        cases = (outcome.case for outcome in telling[:_SHOWN])
        found = first(cases, lambda case: shows(case, wealth.crossed or wealth.tokens))
        if found is None:
            return
        search = Shrinking(found[0], found[1], still)
        finished = search.run(lambda: search.greedy(smaller))
        tokens = search.shown.wealth.tokens
        plain = self._plain(search.case, tokens, decode, rng) if self.decoder.checkpoints else ""
        self.request = Smallest(search.case, search.shown, finished, plain)

    def _plain(self, case: SampledEngineCase, tokens: int, decode: Callable[[Any], Outcome], rng: Random) -> str:
        """Return how the engine does without speculation, drawn for twice the tokens; empty where that is unclear."""
        most = 2 * max(LEAST // 2, tokens)
        drawn = drawn_again(replace(case, drafting="none"), decode, most, time.monotonic() + PLAIN_S, rng)
        if drawn.violated:
            return "wrong too"
        clear = drawn.wealth.tokens >= most and drawn.wealth.supremum <= NOTHING_SEEN
        return "right" if clear else ""

    def finding(self, finding: Finding, lane: SampledLane, impossible: list[Finding]) -> Finding:
        """The wrong law with the smallest request that shows it, where there is one."""
        request, audit = self.request, lane.gathered.wealth
        if request is None:
            explanation = self._weighed(finding.explanation)
            shown, case, minimised, plain = finding.outcome, finding.case, False, ""
        else:
            tokens = request.gathered.wealth.crossed or request.gathered.wealth.tokens
            case, minimised, plain = replace(request.case, crosses_after=tokens), request.minimised, request.plain
            shown = request.gathered.explained(lane.cause(lane.gathered))
            assert shown.explanation is not None
            explanation = self._weighed(shown.explanation)
            clauses = list(explanation.said)
            whole = f"in the whole audit the evidence is {power(audit.supremum)} after {audit.tokens:,} tokens"
            clauses.append(f"these tokens are of this request alone, sampled again and again; {whole}")
            if impossible:
                cases = many(sum(one.count for one in impossible), "case")
                named = 1 if "likelier" in explanation.facts else 0  # the cause comes first
                certain = f"in {cases} a token was returned that has probability 0 under its request's options"
                clauses.insert(named, certain)
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

    def _weighed(self, explanation: Explanation) -> Explanation:
        """The cause, where greedy rows do not speak against it."""
        if self.greedy is None:
            return explanation
        if explanation.kind in OF_GREEDY_TOO:
            return explanation.saying(*explanation.said, "greedy rows are wrong, too")
        alone = "greedy rows are wrong, too, so the cause is not only in the sampler"
        said = explanation.saying(*explanation.said, alone)
        return replace(said, component="unattributed", kind="unattributed", subject="")

    def scripted(self, finding: Finding, lane: SampledLane) -> Finding:
        """The finding with its script, if it was seen to show it."""
        result = lane.result
        if self.request is None or result.interrupted or not getattr(finding.case, "crosses_after", 0):
            return finding
        lane.on_step("script", finding.fingerprint)
        text = checked_script(self.decoder, result.version, self.python, finding, lane.ends)
        if text is None:
            if hook(self.decoder.function, "script"):
                result.warnings.append(f"{finding.fingerprint}: {unscripted(lane.ends())}")
            return finding
        result.files |= shared(self.decoder, finding.case)
        return replace(finding, script=text)

    def _promises(self, lane: SampledLane) -> None:
        """Add a finding where rows with seeds break a promise: two cases have to show it alike.

        One difference may be rounding: it moves a draw that lies near a boundary.
        """
        shown: dict[str, list[Outcome]] = {}
        promised = [one for one in lane.gathered.outcomes if one.outputs and one.case.promise != "none"]
        end = lane.begun + lane.budget * LOOKING if lane.budget else float("inf")
        for number, outcome in enumerate(promised[:PROMISES]):
            if time.monotonic() > end:
                asked = many(min(len(promised), PROMISES), "case")
                said = f"seeds= was checked in {number} of {asked}"
                lane.result.warnings.append(f"{said}: give the audit more time (--budget)")
                break
            excused = partial(_rounded, outcome)
            if read := broken(outcome.case, outcome.outputs, lambda case: lane.running.try_case(case).outputs, excused):
                shown.setdefault(read.fingerprint, []).append(replace(outcome, status="violation", explanation=read))
        for outcomes in (outcomes for outcomes in shown.values() if len(outcomes) > 1):
            self.greedy = _wrong_greedily(outcomes, lane.running.try_case)
            assert outcomes[0].explanation is not None
            first = replace(outcomes[0], explanation=self._weighed(outcomes[0].explanation))
            lane.result.findings.append(replace(lane.unsettled(first), count=len(outcomes)))


def _wrong_greedily(outcomes: Sequence[Any], decode: Callable[[Any], Outcome]) -> Outcome | None:
    """The first of some requests that is wrong with greedy rows, too."""
    tried = (decode(outcome.case.greedy()) for outcome in outcomes[:CONTROLS])
    return next((outcome for outcome in tried if outcome.failed), None)


def _judged(judge: Judge, dtype: str, case: Any, answer: Mapping[str, Any]) -> Outcome:
    """A sampled case, or a greedy one."""
    if isinstance(case, SampledEngineCase):
        return judged(judge, dtype, case, answer)
    return greedily_judged(judge, case, answer)


def _rounded(outcome: Outcome, read: Explanation) -> bool:
    """Return whether rounding may have decided between two tokens: they are equally likely up to it, or it is not
    known.

    The laws at hand are those behind what was emitted in the case itself.
    """
    row, index, tokens = read.row, read.token_index, (read.expected, read.observed)
    assert row is not None
    assert outcome.outputs is not None
    if read.expected_row[:index] != outcome.outputs[row][:index]:
        return True
    sampled = outcome.sampled.get(row) if isinstance(outcome, SampledOutcome) else None
    if sampled is None or index is None or None in tokens or index >= len(sampled.p):
        return False
    one, other = (float(sampled.p[index, token]) for token in tokens)
    return abs(one - other) <= float(np.max(sampled.eps)) * max(one, other)
