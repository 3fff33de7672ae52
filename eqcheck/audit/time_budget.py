"""The time of an audit: when cases are drawn, when no more failing ones are looked into, and when the user ends it."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from eqcheck.audit.lane import Lane
from eqcheck.core.result.outcome import Outcome

LOOKING = 0.9  # of a time budget; then scripts are finished
# A first look at a case of a new kind takes this share of the time left, and all such looks this share of the time so
# far, at most. Drawing goes on after that: a verdict rests on cases, and a report on causes.
FIRST_LOOK, LOOKS = 0.25, 0.5
# A verdict rests on cases, so half of the time that is left is for drawing until there are 1,000 of them; after that
# it is a fourth in each round, and the rest is for looking into what fails.
DRAWING, DRAWING_AT_MOST, VERDICT = 0.25, 0.5, 1000
# The first lane looks into its failing cases until this share of a budget is over, and other lanes begin after that.
# They draw less, but a violation that has been seen is worth more confirmed than a law that may be right.
SEEN_FIRST = 0.75
COUNTING = 0.25  # of the time of a lane at most
LEAST_ROUND = 0.08  # of the budget
_LAST_RESORT_S = 3600.0  # with cases and no budget: an audit of an engine ends all the same
DECLINED = 200  # so many cases of a decoder that takes none


def pointless(outcomes: Sequence[Outcome]) -> bool:
    """Return whether to draw no more cases, because the decoder declined all of the first ones."""
    return len(outcomes) == DECLINED and all(outcome.declined for outcome in outcomes)


class Pace:
    """The time of an audit in one lane.

    All cases are drawn before any is looked into: the first of its kind stands for all. In a lane that is conditional
    it takes a look to know what stands for what, so drawing and looking take turns. Under a budget the first failing
    case of a kind is looked into at once: who waits for ten like it has no time left for a cause. To start an engine
    and to load checkpoints for cases that are drawn is not charged: it can take longer than the budget.
    """

    def __init__(self, lane: Lane) -> None:
        self.lane, self.budget, self.drawn = lane, lane.budget, False
        self.until = float("inf")  # when cases are no longer made smaller
        self.end = float("inf")
        self.look_ends = float("inf")
        self.looked_s = self.uncharged_s = 0.0
        self.begins(lane.begun)

    def extends(self, seconds: float) -> None:
        """Have so many seconds more, which went by before a case could be decoded."""
        self.uncharged_s += seconds
        self.end += seconds

    def looks_now(self) -> bool:
        """Return whether to look into the first failing case of a kind before more cases are drawn."""
        lane = self.lane
        spent = time.monotonic() - lane.begun - self.uncharged_s
        return bool(lane.conditional and self.budget) and self.looked_s <= LOOKS * spent

    def begins(self, moment: float) -> None:
        """Count the time of the lane from this moment on; another lane may have had its own time before."""
        self.lane.begun = moment
        if self.lane.conditional:
            self.end = moment + (self.budget * LOOKING if self.budget else _LAST_RESORT_S)

    def has_at_least(self, seconds: float) -> None:
        """Take more time than was planned, where the lanes before this one needed less than theirs."""
        if self.budget:
            self.budget = max(self.budget, seconds)

    def replays(self) -> bool:
        """Return whether there is time for stored cases: where turns are taken, they may take half of a budget."""
        share = DRAWING_AT_MOST if self.lane.conditional else 1.0
        return not self.budget or share == 1.0 or time.monotonic() <= self.lane.begun + self.budget * share

    def draws_until(self, started: float) -> float | None:
        """Return when to look into what fails so far, on the monotonic clock; None: draw no more cases."""
        lane, left = self.lane, self.end - started
        if lane.conditional and self.budget:
            if left < self.budget * LEAST_ROUND:
                return None
            return started + left * (DRAWING_AT_MOST if 0 < len(lane.result.outcomes) < VERDICT else DRAWING)
        if lane.conditional:
            return self.end
        if self.drawn:
            return None
        lane.begun, self.drawn = started, True
        if self.budget:
            return started + self.budget * lane.share
        # With so many cases the same seed gives the same report, however slow it is here.
        return started + (lane.seconds if lane.total is None else float("inf"))

    def resumes(self, end: float) -> bool:
        """Return whether there is time to look into more until then; it is the end from now on, but for scripts."""
        left = end - time.monotonic()
        if not self.lane.conditional or left < (self.budget or 0.0) * LEAST_ROUND:
            return False
        self.end = time.monotonic() + left * LOOKING
        return True

    def settling(self, waiting: int, first: bool = False) -> None:
        """Begin to look into failing cases; so many are ``waiting``. A ``first`` look is short."""
        now = time.monotonic()
        self.look_ends = now + FIRST_LOOK * (self.end - now) if first else float("inf")
        self.until = now + (self.budget or float("inf"))
        self.half = now + (self._looks_until(waiting) - now) / 2

    def late(self, waiting: int, eager: bool = False) -> bool:
        """Return whether to stop looking into failing cases; so many are ``waiting``.

        ``eager``: into cases that may tell a cause. A slow search leaves half of the time to confirm any.
        """
        return self.end < float("inf") and time.monotonic() > (self.half if eager else self._looks_until(waiting))

    def _looks_until(self, waiting: int) -> float:
        """Return when to count cases with the findings there are: some are decoded several times for that."""
        result = self.lane.result
        expected = 3 * waiting * result.drawing_s / max(1, len(result.outcomes))
        return min(self.look_ends, self.end - min(expected, COUNTING * (self.end - self.lane.begun)))

    def left(self, groups: int, waiting: int) -> float:
        """Return how many seconds there are for a failing case, where so many ``groups`` and cases wait.

        Where turns are taken they have their own end.
        """
        now = time.monotonic()
        return self._looks_until(waiting) - now if self.lane.conditional else max(0.0, self.until - now) / groups


class WorkClock:
    """Count the seconds in which a search gets on, for limits that a busy machine should not use up.

    They are those of the CPU, of this process and of the engine, where they are fewer than those of the wall: a process
    that gets a tenth of a core searches as long as one alone. An engine that waits and uses no CPU at all still
    comes to an end, after `PATIENCE` times its limit. ``engine`` tells the CPU seconds of the engine's process.

    >>> clock = WorkClock(lambda: 0.0)
    >>> clock() <= clock()
    True
    """

    PATIENCE = 6

    def __init__(self, engine: Callable[[], float]) -> None:
        self._engine, self._counted = engine, 0.0
        self._seen = time.monotonic(), time.process_time(), 0.0

    def __call__(self) -> float:
        now = time.monotonic(), time.process_time(), self._engine()
        wall, own, engine = (new - old for new, old in zip(now, self._seen, strict=True))
        engine = engine if engine >= 0 else now[2]  # another process by now
        self._counted += min(wall, max(own + engine, wall / self.PATIENCE))
        self._seen = now
        return self._counted


@contextmanager
def interruptible() -> Iterator[Callable[[], None]]:
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
