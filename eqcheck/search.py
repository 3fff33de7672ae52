"""Draw cases from a seed, and shrink a failing one within its fingerprint."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any
from unittest import mock

from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import seed as with_seed
from hypothesis.internal.conjecture.providers import HypothesisProvider

from eqcheck.case import Case
from eqcheck.contract import TAKEN
from eqcheck.strategies import cases

CHUNK = 50
# Hypothesis begins to vary earlier examples after the first ten of a run, and then five in six are near copies.
_BATCH = 10
_QUIET: dict[str, Any] = {
    "max_examples": _BATCH,
    "database": None,
    "deadline": None,
    "verbosity": Verbosity.quiet,
    "suppress_health_check": list(HealthCheck),
    "print_blob": False,
    "report_multiple_bugs": False,
}


@dataclass(frozen=True)
class Source:
    """Where cases come from: same source, same cases, whatever the decoder does."""

    seed: int
    families: tuple[str, ...]
    padding_sides: tuple[str, ...]
    cache_states: tuple[str, ...] = TAKEN

    def chunk(self, index: int, size: int = CHUNK) -> list[Case]:
        """The first ``size`` distinct cases of the ``index``-th chunk."""
        drawn: dict[Case, None] = {}
        for batch in count():
            # Every run of Hypothesis begins with the simplest case of all; once is enough.
            new = self._batch(index, batch)[1 if index or batch else 0 :]
            drawn.update(dict.fromkeys(new))
            if len(drawn) >= size:
                break
        return list(drawn)[:size]

    def minimise(
        self, index: int, case: Case, fails: Callable[[Case], bool], *, tries: int = 500, seconds: float = 60.0
    ) -> Case:
        """The smallest case that ``fails``, shrunk from ``case``, which was drawn in chunk ``index``.

        Ends after ``tries`` decodes, so that the result does not depend on the machine's speed; ``seconds`` bounds slow
        decoders. What Hypothesis has reached by then is returned.
        """
        batch = next(number for number in count() if case in self._batch(index, number))
        smallest = case
        known = {case: True}
        reached = False
        end = time.monotonic() + seconds

        def check(candidate: Case) -> None:
            nonlocal smallest, reached
            reached = reached or candidate == case
            if not reached:
                return
            if candidate not in known:
                known[candidate] = len(known) < tries and time.monotonic() < end and fails(candidate)
            if known[candidate]:
                smallest = candidate
                raise _StillFails

        with suppress(_StillFails):
            self._explore(index, batch, [Phase.generate, Phase.shrink], check)
        return smallest

    def _batch(self, index: int, batch: int) -> list[Case]:
        drawn: list[Case] = []
        self._explore(index, batch, [Phase.generate], drawn.append)
        return drawn

    def _explore(self, index: int, batch: int, phases: list[Phase], use: Callable[[Case], None]) -> None:
        strategy = cases(
            families=self.families, padding_sides=self.padding_sides, cache_states=self.cache_states
        )

        @with_seed(f"eqcheck {self.seed} {index} {batch}")
        @settings(phases=phases, **_QUIET)
        @given(strategy)
        def explore(case: Case) -> None:
            use(case)

        # Hypothesis also draws constants that it finds in loaded modules: the decoder's own would change the cases.
        with mock.patch.object(HypothesisProvider, "_maybe_draw_constant", return_value=None, create=True):
            explore()


class _StillFails(Exception):
    """The candidate fails as the original did."""
