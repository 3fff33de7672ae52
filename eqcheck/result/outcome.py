"""One case decoded and judged, in any lane."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from eqcheck.explanation.internal import InternalError
from eqcheck.explanation.records import Explanation
from eqcheck.result.story import Story

HANG = "crash/hang"
HANGS_TO_GIVE_UP = 3
UNTRIED = "the time ended before a cause was searched for"
UNJUDGED = "unjudged"  # the status of a case in whose judging eqcheck itself failed


class CaseLog(NamedTuple):
    """The cases that one instance of a decoder had decoded before: the first ``done`` cases of its ``log``."""

    log: list[Any]
    done: int

    @property
    def cases(self) -> tuple[Any, ...]:
        return tuple(self.log[: self.done])


@dataclass(frozen=True)
class NearTie:
    """An ``emitted`` token that is as good as the ``best``: the target prefers that by no more than ``bound``.

    It is new token ``index`` of a row; ``case`` is the id of the case. ``margin`` is by how much ``best`` is preferred.
    """

    row: int
    index: int
    best: int
    emitted: int
    margin: float
    bound: float
    case: str = ""

    def __str__(self) -> str:
        place = f"case {self.case}, row {self.row}, new token {self.index}"
        return f"{place}: {self.emitted} for {self.best}, margin {self.margin:.2g}, tolerance {self.bound:.2g}"


class DraftCause(NamedTuple):
    """Draft tokens that one case lost by one cause: the ``tokens``, and those of rows that are held to be ``waiting``
    for each other.

    Where the draft saw a row's newest tokens and nothing else, ``window`` is how many. ``doubtful``: that the draft
    predicted what was refused may be chance.
    """

    fingerprint: str
    window: int
    doubtful: bool
    tokens: int
    waiting: int


@dataclass(frozen=True)
class Outcome:
    """One case's result, picklable. ``outputs`` is None when the decoder failed.

    ``status`` is one of `eqcheck.result.verdict.VERDICTS`, or ``skipped`` where the decoder ``declined``, which says
    why. ``explanation`` is what judging alone shows; a lane may know more when it has looked into a failing case.
    ``coverage`` names what the case exercised, ``observed`` what the decoder itself counted, ``losses`` what the draft
    side lost where the output is right, ``lost`` by which cause; ``slow`` explains the first of these where a second
    look was taken. ``luck`` has the fingerprint and the place of a wrong context where the output is right all the
    same. ``traits`` are what is known of the case before it is decoded, in the order of `TRAITS` of
    `eqcheck.result.conditions`. ``tied`` are the tokens that rounding decided, ``slots`` those of its caches that the
    target was handed in all its calls, and those of them that a query saw. ``drawn`` is False for a case of the corpus,
    ``minimal`` is True where nothing smaller fails like it.

    ``internal`` is set where eqcheck itself failed: the case is not judged then, and its status is `UNJUDGED`.

    ``seconds`` is what decoding and judging took, ``history`` what the decoder decoded before, ``story`` what befell
    the row, which comes with a second look where calls are seen; two outcomes that differ in these alone are equal.
    """

    case: Any
    status: str
    exact_match: float = 0.0
    prefix_match: float = 0.0
    coverage: frozenset[str] = frozenset()
    outputs: tuple[tuple[int, ...], ...] | None = None
    explanation: Explanation | None = None
    traceback: str = ""
    losses: tuple[tuple[str, int], ...] = ()
    lost: tuple[DraftCause, ...] = ()
    slow: Explanation | None = field(default=None, compare=False)
    declined: str = ""
    observed: Mapping[str, Any] = field(default_factory=dict)
    tied: tuple[NearTie, ...] = ()
    slots: tuple[int, int] = (0, 0)
    luck: tuple[str, str] = ("", "")
    internal: InternalError | None = None
    traits: tuple[int | str, ...] = ()
    drawn: bool = True
    minimal: bool = field(default=False, compare=False)
    seconds: float = field(default=0.0, compare=False)
    history: CaseLog | None = field(default=None, compare=False, repr=False)
    story: Story | None = field(default=None, compare=False, repr=False)

    @property
    def fingerprint(self) -> str | None:
        return self.explanation.fingerprint if self.explanation else None

    @property
    def symptom(self) -> str:
        """The look of a failing case before anybody has looked into it; empty for one that is right."""
        return self.fingerprint or ""

    @property
    def ties(self) -> tuple[NearTie, ...]:
        """Tokens that another one was as likely as, up to rounding."""
        return self.tied

    @property
    def failed(self) -> bool:
        return self.status == "violation"

    def repeats(self, other: Outcome) -> bool:
        """Return whether a second run gave the same answer, or failed in the same way."""
        return (self.symptom, self.outputs) == (other.symptom, other.outputs)


def unjudged(internal: InternalError, case: Any) -> Outcome:
    """The outcome of a case in whose judging eqcheck itself failed."""
    return Outcome(case, UNJUDGED, internal=internal)
