"""Events of an audit while it runs. The terminal, and whatever else shows an audit, only listens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # the first line of an audit waits for this module
    from eqcheck.core.result.findings import Audit, Finding
    from eqcheck.core.result.outcome import Outcome


@dataclass(frozen=True)
class Event:
    """Something that happened in the audit of ``decoder``."""

    decoder: str


@dataclass(frozen=True)
class Started(Event):
    """The audit begins; ``total`` cases of ``families`` are to be drawn, None where time decides.

    ``sampled``: cases of another lane, which are sampled, follow. ``within``: the budget in seconds, or None.
    """

    lane: str
    total: int | None
    families: tuple[str, ...] = ()
    sampled: bool = False
    within: float | None = None


@dataclass(frozen=True)
class Loading(Event):
    """The engine takes long to load this checkpoint; no case is charged for it."""

    checkpoint: str


@dataclass(frozen=True)
class Loaded(Event):
    """An engine started, or loaded a checkpoint, while cases were drawn: the budget does not count the ``seconds``."""

    seconds: float


Step = Literal["models", "self-check", "decoder", "stored", "explain", "shrink", "script", "name", "report"]


@dataclass(frozen=True)
class Working(Event):
    """The work until the next event: a ``step``, and what it is about, in one name.

    ``decoder`` is empty where the step is for all of them.
    """

    step: Step
    subject: str = ""


@dataclass(frozen=True)
class CaseDone(Event):
    """A case of this ``lane`` was decoded and judged: the ``done``-th of ``total``; ``failing`` of them failed so far.

    ``stored``: it is one of the corpus, and is not counted. A cluster counts cases without their ``outcome``. Of
    sampled rows ``tokens`` are those drawn so far, ``evidence`` what they say against the target's distribution, as a
    decimal logarithm.
    """

    done: int
    total: int | None
    failing: int
    stored: bool = False
    lane: str = "transparent"
    outcome: Outcome | None = None
    tokens: int = 0
    evidence: float = 0.0


@dataclass(frozen=True)
class ViolationSeen(Event):
    """The first case that fails in its way, as it was seen: it is confirmed and made small later."""

    outcome: Outcome
    number: int  # of such events, from 1


@dataclass(frozen=True)
class Settling(Event):
    """A failing case with this symptom is confirmed, made small and explained now, for the cause of that ``number``.

    So far ``done`` of ``total`` failing cases belong to a cause. The first event comes before anything is set up for
    it. The last has no symptom: there are so many causes.
    """

    symptom: str
    number: int = 1
    done: int = 0
    total: int = 0


@dataclass(frozen=True)
class Settled(Event):
    """There is a new finding."""

    finding: Finding


@dataclass(frozen=True)
class Finished(Event):
    """The audit is done."""

    audit: Audit


Listener = Callable[[Event], None]
