"""The audit: replay, draw, decode, judge, gather by fingerprint, settle. It emits events and never prints."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count

from eqcheck.attribution.state import leaked
from eqcheck.campaign.corpus import Corpus
from eqcheck.campaign.result import Audit, Listener, Options, Progress, ViolationRecord, about_claims, stored_violation
from eqcheck.case import Case
from eqcheck.contract import Decoder
from eqcheck.lanes.transparent.outcome import Outcome
from eqcheck.lanes.transparent.search import CHUNK, Source
from eqcheck.lanes.transparent.sequences import Fresh, Sequences
from eqcheck.lanes.transparent.settle import Sighting, confirmed, confirms, gather, minimise, of_state
from eqcheck.requirements import unmet
from eqcheck.workers.forked import Limits
from eqcheck.workers.pool import HANG, HANGS_TO_GIVE_UP, Runner, runner


def audit(decoder: Decoder, options: Options, listen: Listener = lambda event: None) -> Audit:
    """Audit one decoder. ``KeyboardInterrupt`` ends it early with what there is, marked ``interrupted``.

    >>> from eqcheck.registry import load
    >>> audit(load("eqspec"), Options(cases=20)).verdict
    'equivalent'
    """
    start = time.monotonic()
    under_way = _UnderWay(decoder, options, listen)
    under_way.run()
    result = under_way.result
    result.elapsed = time.monotonic() - start
    return result


_Sightings = dict[tuple[bool, str], Sighting]


class _UnderWay:
    """An audit while it runs."""

    def __init__(self, decoder: Decoder, options: Options, listen: Listener) -> None:
        self.decoder, self.options, self.listen = decoder, options, listen
        families = tuple(dict.fromkeys(options.families)) or decoder.families
        self.result = Audit(decoder, options, families)
        takes = decoder.padding_sides, decoder.cache_states, decoder.requires
        self.source = Source(options.seed, families, *takes, options.bounds)
        self.corpus = Corpus(options.corpus, decoder.name) if options.corpus else None
        self.sightings: _Sightings = {}
        self.notes: dict[str, None] = {}

    def run(self) -> None:
        """Replay, draw, settle; whatever happens, warnings are in order and nothing seen is lost."""
        decoder, options, result = self.decoder, self.options, self.result
        limits = Limits(options.case_timeout, options.case_memory if options.isolate else None)
        unsettled = self.sightings
        try:
            with _interruptible() as check:
                with runner(decoder, limits, options.jobs, options.isolate, result.warnings) as running:
                    self._replay(running, check)
                    self._draw(running, check)
                    unsettled = dict(self.sightings)
                    if not decoder.spec:
                        self._settle(running, None, unsettled, check)
                if unsettled and decoder.spec:
                    self._settle_apart(limits, unsettled, check)
        except KeyboardInterrupt:
            result.interrupted = True
            for (claimed, _), sighting in unsettled.items():
                (result.violations if claimed else result.discoveries).append(sighting.record())
            result.warnings.append("interrupted; the cases below are not all minimised" if unsettled else "interrupted")
        if result.doubtful and not result.keeps_state:
            result.doubtful += result.violations + result.discoveries
            result.violations, result.discoveries = [], []
        for records in (result.violations, result.discoveries, result.doubtful):
            records.sort(key=lambda record: -record.count)
        result.warnings[:0] = [*([decoder.note] if decoder.note else []), *self.notes]
        result.warnings += [*(dict.fromkeys(self.corpus.warnings) if self.corpus else ()), *about_claims(result)]

    def _replay(self, running: Runner, check: Callable[[], None]) -> None:
        """Run the stored cases that are within what was asked."""
        for path, stored in self.corpus.load().items() if self.corpus else ():
            case = stored.case
            if not (isinstance(case, Case) and self._asked(case)):
                continue
            outcome = running.try_case(case)
            if case.before and outcome.explanation:  # for `Sequences` to confirm or deny
                outcome = replace(outcome, explanation=leaked(case, outcome.explanation))
            self.result.replayed.append(outcome)
            if outcome.fingerprint != stored.fingerprint and self.corpus:
                self.corpus.retire(path)
            if outcome.fingerprint:
                minimised = stored.minimised and outcome.fingerprint == stored.fingerprint
                self._sight(outcome, Sighting(outcome, stored=True, minimised=minimised))
            self._tell("corpus")
            check()

    def _asked(self, case: Case) -> bool:
        source = self.source
        sides, states = source.padding_sides, source.cache_states
        within = case.family in source.families and case.padding_side in sides and case.cache_state in states
        return within and not unmet(case, source.requires) and all(map(self._asked, case.before))

    def _draw(self, running: Runner, check: Callable[[], None]) -> None:
        hung: Counter[bool | str] = Counter()
        for outcome in running.outcomes(self._cases()):
            family = outcome.case.family
            if family in running.given_up:
                continue
            self.result.outcomes.append(outcome)
            check()
            self.notes.update(dict.fromkeys([running.note] if running.note else []))
            if outcome.fingerprint:
                self._sight(outcome, Sighting(outcome)).see(outcome)
            self._tell()
            if outcome.fingerprint == HANG:
                claimed = family in self.decoder.families
                hung[claimed or family] += 1
                if hung[True] >= HANGS_TO_GIVE_UP:
                    self.result.warnings.append(f"stopped after {HANGS_TO_GIVE_UP} cases that did not end")
                    return
                if hung[family] >= HANGS_TO_GIVE_UP:
                    running.given_up.add(family)
                    self.result.warnings.append(
                        f"family {family}, not claimed: given up after {HANGS_TO_GIVE_UP} cases that did not end"
                    )

    def _cases(self) -> Iterator[Case]:
        """The cases to decode, drawn as they are needed, while there is time."""
        options = self.options
        end = time.monotonic() + options.budget if options.budget else float("inf")
        for index in count():
            done = index * CHUNK
            size = CHUNK if options.cases is None else min(CHUNK, options.cases - done)
            for position in range(max(size, 0)):
                if time.monotonic() > end:
                    return
                yield self.source.chunk(index, position + 1)[position]
            if size < CHUNK:
                return

    def _sight(self, outcome: Outcome, sighting: Sighting) -> Sighting:
        """Note a failing case, and store the first of its fingerprint before anything else can go wrong."""
        key = outcome.case.family in self.decoder.families, str(outcome.fingerprint)
        if key not in self.sightings:
            self.sightings[key] = sighting
            if not sighting.stored or not sighting.minimised:
                self._store(key[0], sighting.record())
        return self.sightings[key]

    def _store(self, claimed: bool, record: ViolationRecord) -> None:
        if self.corpus:
            self.corpus.store(stored_violation(self.result, record), claimed)

    def _settle_apart(self, limits: Limits, unsettled: _Sightings, check: Callable[[], None]) -> None:
        """Settle in processes in which nothing was decoded before, so that what is found can be replayed."""
        with Fresh(self.decoder.spec, limits) as fresh:
            if fresh.usable:
                self._settle(fresh.same, Sequences(fresh, check, self._asked), unsettled, check)
                return
        isolate = self.options.isolate
        if not isolate:
            self.result.warnings.append("no worker process can be started: failures were confirmed in this process")
        with runner(self.decoder, limits, 1, isolate, self.result.warnings) as running:
            self._settle(running, None, unsettled, check)

    def _settle(
        self, running: Runner, sequences: Sequences | None, unsettled: _Sightings, check: Callable[[], None]
    ) -> None:
        """Confirm and minimise each sighting; what is dealt with leaves ``unsettled``."""
        result = self.result
        end = time.monotonic() + (self.options.budget or float("inf"))
        slowest = max((o.seconds for o in result.outcomes if o.fingerprint != HANG), default=0.0)
        unminimised = 0
        for key, sighting in list(unsettled.items()):
            claimed, fingerprint = key
            self._tell(fingerprint)
            left = max(0.0, end - time.monotonic()) / len(unsettled)
            if not confirms(sighting, running, sequences, slowest, left):
                self._doubt(sighting, sequences is not None)
                del unsettled[key]
                continue
            records = result.violations if claimed else result.discoveries
            if sequences and fingerprint != HANG and (found := of_state(sighting, running, sequences, left)):
                leak = Sighting(found, minimised=True, drawn=Counter([found.case.family]))
                self._store(claimed, leak.record())
                gather(records, leak.record())
            check()
            left = max(0.0, end - time.monotonic()) / len(unsettled)
            if not (sighting.stored or sighting.minimised) and left > 0:
                families = [f for f in self.source.families if (f in self.decoder.families) == claimed]
                smallest = minimise(sighting, self.source, running, families, left)
                if smallest is None:
                    self._doubt(sighting, sequences is not None)
                    del unsettled[key]
                    continue
                sighting.outcome, sighting.minimised = smallest, True
            unminimised += not sighting.minimised
            self._store(claimed, sighting.record())
            sighting.outcome = confirmed(sighting.outcome, running)
            gather(records, sighting.record())
            del unsettled[key]
            check()
        if unminimised:
            result.warnings.append(f"{unminimised} cases are not minimised: the time budget was used up")

    def _doubt(self, sighting: Sighting, apart: bool) -> None:
        record = sighting.record()
        self.result.doubtful.append(record)
        why = (
            "in fresh processes, neither the request alone nor after those before it fails time and again; the decoder "
            "is not deterministic, or keeps state that no sequence was found for"
            if apart
            else "two runs of the same request gave different answers; the decoder is not deterministic or keeps state "
            "between requests, and has no spec: no fresh process can tell which"
        )
        self.result.warnings.append(
            f"INCONCLUSIVE: {record.fingerprint} on case {record.case.id}: {why}; so it does not count as a violation"
        )

    def _tell(self, stage: str = "cases") -> None:
        failing = sum(sighting.drawn.total() for (claimed, _), sighting in self.sightings.items() if claimed)
        self.listen(Progress(self.decoder.name, len(self.result.outcomes), self.options.cases, failing, stage))


@contextmanager
def _interruptible() -> Iterator[Callable[[], None]]:
    """Yield a check that raises ``KeyboardInterrupt`` after a first Ctrl-C; a second one raises at once.

    Raised anywhere, it can fall into a garbage collection callback, where Python drops it.
    """
    pending: list[int] = []

    def check() -> None:
        if pending:
            raise KeyboardInterrupt

    def note(*_: object) -> None:
        check()
        pending.append(1)

    if threading.current_thread() is not threading.main_thread():
        yield check
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)
