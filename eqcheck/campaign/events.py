"""What happens while an audit runs. The terminal, and whatever else shows an audit, only listens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from eqcheck.findings import Audit, Finding
from eqcheck.outcome import Outcome


@dataclass(frozen=True)
class Event:
    """Something that happened in the audit of ``decoder``."""

    decoder: str


@dataclass(frozen=True)
class Started(Event):
    """The audit begins; ``total`` cases are to be drawn, None where time decides."""

    lane: str
    total: int | None


@dataclass(frozen=True)
class CaseDone(Event):
    """A case was decoded and judged: the ``done``-th of ``total``; ``failing`` of them failed so far.

    ``stored``: it is one of the corpus, and is not among those that are counted.
    """

    done: int
    total: int | None
    failing: int
    stored: bool = False


@dataclass(frozen=True)
class ViolationSeen(Event):
    """The first case that fails in its way, as it was seen: it is confirmed and made small later."""

    outcome: Outcome
    number: int  # of such events, from 1


@dataclass(frozen=True)
class Settling(Event):
    """Failing cases with this symptom are confirmed, made small and explained now."""

    symptom: str


@dataclass(frozen=True)
class Settled(Event):
    """There is a new finding."""

    finding: Finding


@dataclass(frozen=True)
class Finished(Event):
    """The audit is done."""

    audit: Audit


Listener = Callable[[Event], None]
