"""From the failing cases of an audit to its findings: does the answer repeat, and what is the smallest case?"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from eqcheck.attribution.witnesses import mechanism
from eqcheck.campaign.result import ViolationRecord
from eqcheck.case import Case
from eqcheck.lanes.transparent.ids import variants
from eqcheck.lanes.transparent.outcome import Outcome
from eqcheck.lanes.transparent.search import Source
from eqcheck.lanes.transparent.sequences import RERUNS, Sequences
from eqcheck.workers.pool import HANG, Runner

MINIMISE_S = 60.0  # for one fingerprint
_HANG_AGAIN_S = 1.0
_LATER = 40
_ALONE_TRIES = 150  # where each takes a process of its own


@dataclass
class Sighting:
    """A fingerprint as it turns up: the case it stands for, and how many drawn cases show it by family.

    ``stored`` and ``minimised`` describe ``outcome``'s case; one that was drawn is neither. ``read`` is the fingerprint
    that the drawn cases have; a second opinion may change that of ``outcome``. ``later`` are some more drawn cases.
    """

    outcome: Outcome
    stored: bool = False
    minimised: bool = False
    drawn: Counter[str] = field(default_factory=Counter)
    read: str = ""
    later: list[Outcome] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.read = str(self.outcome.fingerprint)

    def see(self, outcome: Outcome) -> None:
        """Count a drawn case; it takes the place of a stored one that still has to be minimised."""
        self.drawn[outcome.case.family] += 1
        if outcome is not self.outcome and len(self.later) < _LATER:
            self.later.append(outcome)
        if self.stored and not self.minimised:
            self.outcome, self.stored = outcome, False

    def record(self) -> ViolationRecord:
        explanation = self.outcome.explanation
        assert explanation is not None
        return ViolationRecord(
            explanation.fingerprint,
            self.drawn.total(),
            self.outcome.case,
            explanation,
            self.outcome.traceback,
            self.stored,
            self.minimised,
            (self.read,),
        )


def confirms(sighting: Sighting, runner: Runner, sequences: Sequences | None, slowest: float, seconds: float) -> bool:
    """Whether the case fails time and again, alone or (then it becomes a sequence) after earlier requests.

    A decoder that hung is given up sooner than the first time: ``slowest`` is the longest that a case took which ended.
    """
    outcome = sighting.outcome
    soon = max(_HANG_AGAIN_S, 20 * slowest) if outcome.fingerprint == HANG else None
    if sequences is None:
        return all(runner.try_case(outcome.case, soon).repeats(outcome) for _ in range(RERUNS))
    found = sequences.examine(outcome, soon, seconds)
    if found is None:
        return False
    if found.case.before:
        sighting.minimised = True
    sighting.outcome = found
    return True


def of_state(sighting: Sighting, runner: Runner, sequences: Sequences, seconds: float) -> Outcome | None:
    """A sequence among the later cases of a fingerprint whose first case fails alone: one name, two faults."""
    if sighting.outcome.case.before or sequences.proven:
        return None
    runner.renew()
    for outcome in sighting.later:
        after_others, after_itself = runner.try_case(outcome.case), runner.try_case(outcome.case)
        if after_others.explanation is None or after_itself.explanation is None:
            found = sequences.examine(outcome, None, seconds)
            return found if found and found.case.before else None
    return None


def confirmed(outcome: Outcome, runner: Runner) -> Outcome:
    """The outcome with a second opinion: `unattributed`, with what each witness says, where they prove no cause.

    Where it rests on a coincidence of ids and most cases with other ids have one cause, one of those stands for it.
    """
    if outcome.fingerprint == HANG or outcome.case.before:
        return outcome
    runner.renew()
    again = runner.try_case(outcome.case, opinion=True)
    if again.outputs != outcome.outputs:
        return outcome
    if again.explanation and again.explanation.component == "unattributed" and again.explanation.permuted[1]:
        others = [runner.try_case(case, opinion=True) for case in variants(outcome.case)]
        proved = [one for one in others if one.explanation and one.explanation.component != "unattributed"]
        for fingerprint, count in Counter(one.fingerprint for one in proved).items():
            if 4 * count >= 3 * len(others):
                return next(one for one in proved if one.fingerprint == fingerprint)
    return again


def gather(records: list[ViolationRecord], record: ViolationRecord) -> None:
    """Add a record, or count it with an earlier one of its fingerprint: several can prove `unattributed`."""
    for number, earlier in enumerate(records):
        if earlier.fingerprint == record.fingerprint:
            records[number] = replace(earlier, count=earlier.count + record.count, read=earlier.read + record.read)
            return
    records.append(record)


def minimise(
    sighting: Sighting, source: Source, runner: Runner, families: Collection[str], seconds: float
) -> Outcome | None:
    """The smallest case that fails in the same way, within ``families``; None when it does not fail a second time.

    The same way is more than the fingerprint: `eqcheck.attribution.witnesses.mechanism`.

    A case that hangs is left alone: every try would take the whole time limit.
    """
    fingerprint = sighting.outcome.fingerprint
    if fingerprint == HANG:
        return sighting.outcome

    cause = sighting.outcome.explanation and mechanism(sighting.outcome.explanation)

    def fails(case: Case) -> bool:
        if case.family not in families:
            return False
        found = runner.try_case(case).explanation
        return found is not None and mechanism(found) == cause

    def fails_alone(case: Case) -> bool:
        return runner.renew() and fails(case)

    case, end = sighting.outcome.case, time.monotonic() + min(seconds, MINIMISE_S)
    runner.renew()
    smallest = source.minimise(case, fails, seconds=end - time.monotonic())
    hindered = not fails(smallest)  # by what was decoded before it
    runner.renew()
    last = runner.try_case(smallest)
    if hindered or last.fingerprint != fingerprint:
        if not runner.renew():
            return None
        smallest = source.minimise(case, fails_alone, tries=_ALONE_TRIES, seconds=max(1.0, end - time.monotonic()))
        runner.renew()
        last = runner.try_case(smallest)
    return last if last.fingerprint == fingerprint else None
