"""From the failing cases of an audit to its findings: does the answer repeat, and what is the smallest case?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from eqcheck.audit.outcome import Outcome
from eqcheck.audit.result import ViolationRecord
from eqcheck.audit.runner import HANG, Runner
from eqcheck.audit.search import Source
from eqcheck.case import Case

RERUNS = 9  # a decoder that is wrong half the time passes for deterministic once in 2**9 = 512
MINIMISE_S = 60.0  # for one fingerprint
_HANG_AGAIN_S = 1.0


@dataclass
class Sighting:
    """A fingerprint as it turns up: the case it stands for, and how many drawn cases show it by family.

    ``stored`` and ``minimised`` describe ``outcome``'s case; one that was drawn is neither. ``read`` is the fingerprint
    that the drawn cases have; a second opinion may change that of ``outcome``.
    """

    outcome: Outcome
    stored: bool = False
    minimised: bool = False
    drawn: Counter[str] = field(default_factory=Counter)
    read: str = ""

    def __post_init__(self) -> None:
        self.read = str(self.outcome.fingerprint)

    def see(self, outcome: Outcome) -> None:
        """Count a drawn case; it takes the place of a stored one that still has to be minimised."""
        self.drawn[outcome.case.family] += 1
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


def repeats(runner: Runner, outcome: Outcome, slowest: float) -> bool:
    """Whether the decoder gives the same answer to the same case `RERUNS` times more.

    A decoder that hung is given up sooner than the first time: ``slowest`` is the longest that a case took which ended.
    """
    soon = max(_HANG_AGAIN_S, 20 * slowest) if outcome.fingerprint == HANG else None
    return all(runner.try_case(outcome.case, soon).repeats(outcome) for _ in range(RERUNS))


def confirmed(outcome: Outcome, runner: Runner) -> Outcome:
    """The outcome with a second opinion: `unattributed`, with both, where repair does not agree with what was read."""
    if outcome.fingerprint == HANG:
        return outcome
    again = runner.try_case(outcome.case, opinion=True)
    return again if again.outputs == outcome.outputs else outcome


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
    """The smallest case with the sighting's fingerprint, within ``families``; None when it does not fail a second time.

    A case that hangs is left alone: every try would take the whole time limit.
    """
    fingerprint = sighting.outcome.fingerprint
    if fingerprint == HANG:
        return sighting.outcome

    def fails(case: Case) -> bool:
        return case.family in families and runner.try_case(case).fingerprint == fingerprint

    smallest = source.minimise(sighting.outcome.case, fails, seconds=min(seconds, MINIMISE_S))
    last = runner.try_case(smallest)
    return last if last.fingerprint == fingerprint else None
