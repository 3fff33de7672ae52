"""From a wrong law to a finding: the smallest request that shows it when it is drawn again and again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from eqcheck.case.reduction import reduced
from eqcheck.case.sampling import SampledEngineCase
from eqcheck.lanes.checkpoint.reduction import candidates
from eqcheck.lanes.sampling.evidence import NOTHING_SEEN, Gathered, drawn_again
from eqcheck.result.outcome import Outcome

LEAST, MOST = 400, 6000  # tokens that a smaller request may take
SLOWER = 3  # times the tokens of the larger one
PLAIN_S = 30.0  # for what the engine does without speculation
CONTROLS = 6  # requests that are tried with greedy rows


@dataclass(frozen=True)
class Smallest:
    """A request whose law is seen to be wrong when it is drawn again and again: what was ``gathered`` then.

    ``minimised``: no smaller one was found in time. ``plain`` is what the engine does without speculation.
    """

    case: SampledEngineCase
    gathered: Gathered
    minimised: bool
    plain: str = ""


class Drawing:
    """Requests drawn again and again, with an engine that is set up; ``until`` is on the monotonic clock."""

    def __init__(self, decode: Callable[[Any], Outcome], until: float) -> None:
        self.decode, self.until = decode, until
        self.rng = Random()

    def shows(self, case: SampledEngineCase, tokens: int) -> Gathered | None:
        """The evidence of a request whose law is seen to be wrong in few more tokens than these; else None."""
        most = min(MOST, max(LEAST, SLOWER * tokens))
        gathered = drawn_again(case, self.decode, most, self.until, self.rng)
        return gathered if gathered.violated else None

    def smallest(self, outcomes: Sequence[Outcome], tokens: int) -> Smallest | None:
        """The smallest request, of these outcomes (the most telling first), that shows what took ``tokens``."""
        for outcome in outcomes:
            if found := self.shows(outcome.case, tokens):
                case, gathered, finished = reduced(outcome.case, found, candidates, self._still, self.until)
                return Smallest(case, gathered, finished)
        return None

    def _still(self, case: SampledEngineCase, larger: Gathered) -> Gathered | None:
        return self.shows(case, larger.wealth.tokens)

    def plain(self, request: Smallest) -> str:
        """How the engine does without speculation, drawn for twice the tokens; empty where that is unclear."""
        most = 2 * max(LEAST // 2, request.gathered.wealth.tokens)
        drawn = drawn_again(
            replace(request.case, drafting="none"), self.decode, most, time.monotonic() + PLAIN_S, self.rng
        )
        if drawn.violated:
            return "wrong too"
        clear = drawn.wealth.tokens >= most and drawn.wealth.supremum <= NOTHING_SEEN
        return "right" if clear else ""

    def greedy(self, outcomes: Sequence[Outcome]) -> Outcome | None:
        """The first of the same requests with greedy rows that is wrong, too."""
        tried = (self.decode(outcome.case.greedy()) for outcome in outcomes[:CONTROLS])
        return next((one for one in tried if one.failed), None)
