"""Keep the smallest case that still shows a fault: candidates are tried once each, within a budget.

A *pass* goes over one field of the case and proposes candidates. Two ways to propose them are in use. A pass that waits
for the answer (`Shrinking.attempt`) can halve an interval, so it needs few tries for a large number. A pass that lists
candidates (`Shrinking.greedy`) is taken again from its beginning after each success, so the order of the list decides:
the candidates that save most come first. Passes are repeated until none of them helps, because a field often can be
made smaller only after another one was.

Who decodes a candidate spends from the budget; a candidate that the lane refuses without a decode costs nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

C = TypeVar("C", bound=Hashable)
Shown = TypeVar("Shown")


def now() -> float:
    """Return the seconds of the monotonic clock, read from the module at each call."""
    return time.monotonic()


class Enough(Exception):
    """The tries or the time are used up."""


@dataclass
class Budget:
    """Count what a search may spend: so many ``tries``, and no time after ``until`` on a clock, the monotonic one.

    The tries make a result independent of the machine's speed, the time bounds decoders that are slow.
    """

    tries: float = float("inf")
    until: float = float("inf")
    clock: Callable[[], float] = now

    @classmethod
    def of(cls, seconds: float, tries: float = float("inf"), clock: Callable[[], float] = now) -> Budget:
        """Return a budget that begins now."""
        return cls(tries, clock() + seconds, clock)

    def spend(self, tries: int = 1) -> None:
        """Take tries from the budget; raise `Enough` where they are not left, or the time is over."""
        self.tries -= tries
        if self.tries < 0 or self.clock() > self.until:
            raise Enough


class Shrinking(Generic[C, Shown]):
    """Hold the smallest ``case`` found so far, and what it has ``shown``.

    ``shows`` decodes a candidate, given what the case has shown: it returns what the candidate shows, or None where
    that is not the same fault. It spends from a `Budget` and lets `Enough` pass.

    >>> search = Shrinking(9, "odd", lambda n, _: "odd" if n % 2 and n > 2 else None)
    >>> search.run(lambda: search.greedy(lambda n: range(n)))
    True
    >>> search.case
    3
    """

    def __init__(self, case: C, shown: Shown, shows: Callable[[C, Shown], Shown | None]) -> None:
        self.case, self.shown, self._shows = case, shown, shows
        self._known: dict[C, Shown | None] = {case: shown}

    def run(self, *passes: Callable[[], object]) -> bool:
        """Repeat passes until none makes the case smaller; return whether the budget was enough for that."""
        before = None
        try:
            while before != self.case:
                before = self.case
                for one in passes:
                    one()
        except Enough:
            return False
        return True

    def attempt(self, candidate: C) -> bool:
        """Return whether a candidate shows the fault, now or when it was tried before; if so, it becomes the case."""
        if candidate not in self._known:
            self._known[candidate] = self._shows(candidate, self.shown)
        seen = self._known[candidate]
        if seen is None:
            return False
        self.case, self.shown = candidate, seen
        return True

    def greedy(self, smaller: Callable[[C], Iterable[C]]) -> None:
        """Take the first new candidate that shows the fault, and begin again with the candidates of that one."""
        candidates = iter(smaller(self.case))
        while (candidate := next((one for one in candidates if one not in self._known), None)) is not None:
            if self.attempt(candidate):
                candidates = iter(smaller(self.case))


def first(candidates: Iterable[C], shows: Callable[[C], Shown | None]) -> tuple[C, Shown] | None:
    """Return the first candidate that shows a fault, and what it shows; None where none does, or the budget ends.

    >>> first((1, 2, 3, 4), lambda n: n * 10 if n > 2 else None)
    (3, 30)
    """
    try:
        for candidate in candidates:
            if (shown := shows(candidate)) is not None:
                return candidate, shown
    except Enough:
        pass
    return None
