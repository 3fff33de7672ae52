"""The lane of the transparent target: causes are read from what every query saw, and checked by repair."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

from eqcheck.audit.lane import Lane
from eqcheck.audit.workers.fork import as_new
from eqcheck.contract.decoders import POISONED, Decoder
from eqcheck.contract.family import FAMILY, claimed_by
from eqcheck.core.case.record import Case
from eqcheck.core.explanation.notice import INCONCLUSIVE, Notice
from eqcheck.core.explanation.statements import CALLS_UNSEEN, Doubt, not_counted
from eqcheck.core.result.claims import Claim
from eqcheck.core.result.findings import Audit, Finding, Options
from eqcheck.core.result.outcome import HANG, DrawnDecode, Outcome
from eqcheck.transparent.attribution.lost_drafts import by_cause
from eqcheck.transparent.conclusions import table, with_axes
from eqcheck.transparent.coverage import traits, try_calls, try_case, try_slow
from eqcheck.transparent.decoding import truth_of
from eqcheck.transparent.drawing import DRAWN_OPTIONS, fits
from eqcheck.transparent.memory import probe_case, try_memory
from eqcheck.transparent.search import CHUNK, Source
from eqcheck.transparent.sequences import (
    Fresh,
    SequenceSearch,
    confirmed,
    confirms,
    minimise,
    of_state,
    smallest_slow,
    verdict,
)

MOST_SLOW = 4  # causes of lost draft tokens that are looked into, the most tokens first


class TransparentLane(Lane):
    """One audit on the transparent target."""

    def __init__(self, decoder: Decoder, options: Options) -> None:
        super().__init__(decoder, options)
        families = tuple(dict.fromkeys(options.families)) or decoder.families
        claimed = decoder.families
        if targets := [family for family in families if FAMILY[family].target]:
            claimed = tuple(family for family in targets if claimed_by(decoder.families, family))
        states = tuple(state for state in decoder.cache_states if not (targets and state in POISONED))
        sides, requires = decoder.padding_sides, decoder.requires
        self.source = Source(
            options.seed,
            families,
            sides,
            states,
            requires,
            options.bounds,
            capabilities=decoder.capabilities,
            opening=not options.profile,
        )
        self.result = Audit(decoder, options, "transparent", families, claimed)
        self.sequences: SequenceSearch | None = None
        self._drawing = ExitStack()

    @contextmanager
    def drawing(self) -> Iterator[None]:
        with self._drawing:
            self.running = self._drawing.enter_context(self.decoding(try_case, self.jobs))
            yield

    def cases(self) -> Iterator[Case]:
        return (self.source.chunk(number // CHUNK, number % CHUNK + 1)[number % CHUNK] for number in count())

    def claimed(self) -> list[Claim]:
        families = [family for family in self.source.families if family in self.result.claimed_families]
        states = [s for s in self.source.cache_states if any(fits(s, one, self.source.bounds) for one in families)]
        options = [name for name in DRAWN_OPTIONS if name in self.source.capabilities]
        claimed = [Claim("family", family) for family in families]
        claimed += [Claim("padding side", side) for side in self.source.padding_sides] if families else []
        claimed += [Claim("cache state", state) for state in states]
        return claimed + ([Claim("capability", name) for name in options] if families else [])

    def asks(self, case: Any) -> bool:
        source = self.source
        within = super().asks(case) and case.padding_side in source.padding_sides
        stops = "stop-sequences" in source.capabilities or not any(row.stop_sequences for row in case.options)
        stops &= "cancel" in source.capabilities or not any(row.cancel_after for row in case.options)
        stops &= "logprobs" in source.capabilities or not any(row.logprobs for row in case.options)
        return within and stops and case.cache_state in source.cache_states and all(map(self.asks, case.before))

    @contextmanager
    def settling(self, check: Callable[[], None]) -> Iterator[None]:
        """Settle in processes in which nothing was decoded before, so that what is found can be replayed."""
        if not self.decoder.spec:
            yield
            return
        self._drawing.close()
        own = self.decoder.spec if self.isolate or self.jobs > 1 else as_new(self.decoder)
        with Fresh(own, self.limits) as fresh:
            if fresh.usable:
                self.running, self.sequences = fresh.same, SequenceSearch(fresh, check, self.source.claims)
                yield
                return
        if not self.isolate:
            self.result.warnings.append("no worker process can be started: failures were confirmed in this one")
        with self.decoding(try_case) as self.running:
            yield

    def explain(self, outcome: Outcome, group: list[Outcome], left: Callable[[], float]) -> list[Finding] | None:
        slowest = max((o.seconds for o in self.result.outcomes if o.symptom != HANG), default=0.0)
        again = confirms(outcome, self.running, self.sequences, slowest, left())
        if again is None:
            return None
        # A group may hold two faults of one symptom: a decoder that leaks state may fail alone, too. The rest of the
        # group is asked for sequences, so that the simpler fault does not hide the leak.
        leaks: list[Finding] = []
        if self.sequences and outcome.symptom != HANG and not again.case.before:
            others = [other for other in group if other is not outcome and other.drawn]
            leak = of_state(others, self.running, self.sequences, left())
            leaks = [replace(self.unsettled(leak), minimised=True)] if leak else []
        failing, minimal = again, outcome.minimal or bool(again.case.before)
        # A stored case was the smallest of the decoder as it was then, and may have a smaller one now.
        if not again.case.before and (outcome.drawn or outcome.minimal) and left() > 0:
            claimed = self.result.claims(outcome.case)
            families = [
                family for family in self.source.families if (family in self.result.claimed_families) == claimed
            ]
            self.on_step("shrink", outcome.symptom)
            smallest = minimise(failing, self.source, self.running, families, left())
            if smallest is None:
                return None
            failing, minimal = smallest, True
        shown = confirmed(failing, self.running)
        assert shown.explanation is not None
        read = failing if shown.case == failing.case else shown  # what replays compare with: as it was read
        finding = self.unsettled(
            replace(
                outcome,
                case=shown.case,
                explanation=shown.explanation,
                traceback=shown.traceback,
                traits=traits(shown.case, truth_of(shown.case)),
            )
        )
        finding = replace(finding, outcome=replace(finding.outcome, explanation=read.explanation), minimised=minimal)
        finding = replace(finding, story=shown.story)
        return [replace(finding, seen=(outcome.symptom,)), *leaks]

    def again(self, case: Case, calls: bool) -> tuple[Outcome, DrawnDecode | str]:
        decoder = self.decoder
        if decoder.checkpoints:
            return Outcome(case, "skipped", declined="it loads checkpoints, and the case is for transparent models"), ""
        for earlier in (*case.before, case):
            if declined := _not_taken(decoder, earlier):
                return Outcome(case, "skipped", declined=declined), ""
        outcome = self._again(case)
        return outcome, "" if outcome.declined or not calls else self._calls(outcome)

    def _again(self, case: Case) -> Outcome:
        """A case decoded again; one with earlier requests also without them, each time in a process of its own."""
        if case.before:
            with Fresh(self.decoder.spec, self.limits) as fresh:
                if fresh.usable:  # as often as an audit does it; else what is seen at once
                    proof = SequenceSearch(fresh, lambda: None, self.source.claims).proof(case)
                    return proof or verdict(fresh, case)
        with self.decoding(try_case) as running:
            return running.try_case(case, opinion=True)

    def _calls(self, outcome: Outcome) -> DrawnDecode | str:
        if outcome.fingerprint == HANG:
            return CALLS_UNSEEN["hung"]
        task = partial(try_calls, explanation=outcome.explanation)
        with self.decoding(task, said=[]) as running:
            again = running.try_case(outcome.case)
        shown: DrawnDecode | None = again.observed.get("calls")
        if shown is None:
            return CALLS_UNSEEN["ended"]
        if again.outputs != outcome.outputs:
            return replace(shown, story=None, note=CALLS_UNSEEN["differs"])
        return shown

    def conclude(self) -> None:
        result = self.result
        result.outcomes[:] = map(_with_traits, result.outcomes)
        result.findings = [replace(one, outcome=_with_traits(one.outcome)) for one in result.findings]
        if result.options.memory and not result.interrupted:
            self._measure_memory()
        if not result.interrupted:
            result.findings += self._explain_losses()
        result.warnings += [self._in_doubt(finding) for finding in result.doubtful]
        result.findings = with_axes(result)

    def _explain_losses(self) -> Iterator[Finding]:
        """A finding for each cause by which draft tokens are lost, with the smallest case that does so."""
        result = self.result
        told = by_cause(result.tally.losses, result.tally.lost)
        end = self.begun + self.budget if self.budget else float("inf")
        for place, name in enumerate(list(told)[:MOST_SLOW]):
            losing = [one for one in result.claimed if any(cause.fingerprint == name for cause in one.lost)]
            # Each cause gets an equal share of the time that is left.
            left = (end - time.monotonic()) / (len(told) - place)
            if not any(_lost_by_fault(one, name) for one in losing):
                continue
            self.on_step("shrink", name)
            with self.decoding(try_case, said=[]) as running:
                case, small = smallest_slow(losing, name, self.source, running, left)
            with self.decoding(partial(try_slow, fingerprint=name), said=[]) as running:
                shown = running.try_case(case)
            if shown.slow is None:
                continue
            failing = Counter(place for outcome in losing for place in outcome.case.axes.items())
            run = result.tally.places(lambda one: one.claimed and one.status != "violation" and not one.declined)
            yield Finding(
                shown,
                shown.slow,
                count=len(losing),
                standing="slow",
                minimised=small,
                axes=table(failing, run),
                tokens=(told[name], 0),
            )

    def _measure_memory(self) -> None:
        """Decode the case that memory is measured on, by a new instance of the decoder."""
        result, decoder = self.result, self.decoder
        families = [name for name in result.claimed_families if not FAMILY[name].target]
        if not families:
            result.warnings.append("--memory measures nothing on real models; leave out --target")
            return
        case = probe_case(families[0], decoder.padding_sides[0], decoder.requires)
        with self.decoding(try_memory, said=[]) as running:
            outcome = running.try_case(case)
        result.facts["memory"] = {name: found for name, found in outcome.observed.items() if name != "warnings"}
        result.warnings += outcome.observed.get("warnings", ())
        if not outcome.observed:
            why = outcome.declined or "what it emits there is not right"
            result.warnings.append(f"--memory: nothing was measured: {why}")

    def _in_doubt(self, finding: Finding) -> str:
        case = finding.case.id
        why: Doubt = "two-answers"
        if finding.fingerprint == HANG:
            why = "hung"
        elif self.sequences:
            why = "unlike" if case in self.sequences.unlike else "passed"
        return Notice(not_counted(finding.fingerprint, case, why), INCONCLUSIVE)


def _with_traits(outcome: Outcome) -> Outcome:
    """The outcome with its traits, which the worker that was lost in the case did not hand over."""
    if outcome.traits or outcome.declined:
        return outcome
    return replace(outcome, traits=traits(outcome.case, truth_of(outcome.case)))


def _not_taken(decoder: Decoder, case: Case) -> str:
    """The request of a case that the decoder does not take, in words; a file may ask anything of it."""
    for what, asked, taken in (
        ("padding side", case.padding_side, decoder.padding_sides),
        ("cache state", case.cache_state, decoder.cache_states),
    ):
        if asked not in taken:
            return f"it does not take the {what} {asked}, only {', '.join(taken)}"
    if case.stop_sequences and "stop-sequences" not in decoder.capabilities:
        return "it does not take stop sequences"
    if any(case.cancel_after) and "cancel" not in decoder.capabilities:
        return "it cancels no rows"
    if case.logprobs and "logprobs" not in decoder.capabilities:
        return "it returns no log-probabilities"
    return ""


def _lost_by_fault(outcome: Outcome, name: str) -> bool:
    """Return whether draft tokens are lost by this cause, and not because the draft sees only the newest tokens."""
    return any(cause.fingerprint == name and not cause.window for cause in outcome.lost)
