"""Sampled rows of the transparent target: its laws are exact, and the rounds of a case can be read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from eqcheck.case.record import Case
from eqcheck.case.sampling import REGIMES
from eqcheck.contract.decoders import Decoder, Generate
from eqcheck.lanes.sampling.decode import seeded
from eqcheck.lanes.sampling.drawing import SampledCases
from eqcheck.lanes.sampling.evidence import Gathered
from eqcheck.lanes.sampling.judge import IMPOSSIBLE, PROMISES, try_case
from eqcheck.lanes.sampling.lane import TO_NAME, SampledLane, SampledTarget
from eqcheck.lanes.sampling.naming import cause
from eqcheck.lanes.sampling.reads import reads
from eqcheck.lanes.sampling.reduction import greedy_drawn, smallest
from eqcheck.lanes.transparent.judge import try_case as try_exact
from eqcheck.result.findings import Options
from eqcheck.result.outcome import Outcome
from eqcheck.sampling.bets import HIGHEST
from eqcheck.sampling.naming import KnownRounds, Named, argmax
from eqcheck.sampling.rounds import Read
from eqcheck.workers.worker import Workers

# The greatest error of samplers in float32: of 64 tokens each bound of an interval by one step of a uniform number,
# 2^-24, in total variation, times the greatest e-value; probabilities themselves by less than 1e-5.
SINGLE = 64 * 2**-24 * HIGHEST + 1e-5
ENDS = ("premature-stop", "past-eos", "over-length", "pad-in-output", "prompt-in-output")
CHANGED = "changed-token"  # which a row and its cache show, whatever was drawn


def try_greedy(generate: Generate, case: Case, timeout: float | None, *, opinion: bool = False) -> Outcome:
    """Decode and judge the greedy rows of a sampled case; a decoder that draws all the same draws alike each time."""
    with seeded(case.seed):
        return try_exact(generate, case, timeout, opinion=opinion)


class TransparentTarget(SampledTarget):
    """The transparent target. Its scores are exact; what a decoder makes of them need not be."""

    lane = "sampling"
    eps = SINGLE
    regimes = REGIMES

    def __init__(self, decoder: Decoder, options: Options) -> None:
        super().__init__(decoder, options)
        self.families = tuple(dict.fromkeys(options.families)) or decoder.families
        self.claimed = decoder.families
        drawn = tuple(family for family in self.families if family in self.claimed) or self.families
        takes = decoder.padding_sides, decoder.capabilities, min(8, options.bounds.rows)
        promised = decoder.seeds, decoder.option_order, decoder.requires
        self.source = SampledCases(options.seed, drawn, *takes, *promised, opening=not options.profile)
        self._read: tuple[Gathered | None, int, list[Read]] = (None, 0, [])  # what so many outcomes say

    @contextmanager
    def drawing(self, lane: SampledLane) -> Iterator[Workers]:
        with lane.decoding(try_case) as running:
            yield running

    def shown(self, outcome: Outcome, lane: SampledLane) -> Outcome:
        read = outcome.explanation
        if read and read.kind in (IMPOSSIBLE, CHANGED, *PROMISES):
            return smallest(outcome, lane.running.try_case)
        return self.attributed(outcome, lane)

    def attributed(self, outcome: Outcome, lane: SampledLane) -> Outcome:
        """The reading is asserted where a greedy request shows it, too: only there it can be checked by repair."""
        read = outcome.explanation
        if read is None or read.component in ("crash", "sampling") or read.kind in (*ENDS, CHANGED):
            return outcome
        right = read.component in ("unattributed", "bookkeeping")  # all contexts were
        if right and (drawn := greedy_drawn(outcome, lane.running.try_case)):
            return drawn
        with lane.decoding(try_greedy) as running:
            greedy = running.try_case(outcome.case.greedy(), opinion=True)
        if greedy.failed:
            return replace(greedy, drawn=outcome.drawn)
        if read.component == "unattributed":  # there is no reading to withhold
            return outcome
        detail = f"the trace of sampled rows shows {read.fingerprint}, but with greedy rows the request is correct"
        unclear = replace(read, component="unattributed", kind="unattributed", detail=detail, facts={}, subject="")
        return replace(outcome, explanation=unclear)

    def named(self, gathered: Gathered, outcomes: Sequence[Any]) -> Named | None:
        rows = [outcome.sampled.values() for outcome in outcomes]
        if gathered.wealth.tokens < TO_NAME:
            return argmax(row for case in rows for row in case)
        _, count, known = self._read if self._read[0] is gathered else (gathered, 0, list[Read]())
        known += [read for outcome in outcomes[count:] for read in reads(outcome)]
        self._read = gathered, len(outcomes), known
        return cause(rows, gathered.wealth.best(), KnownRounds(known))
