"""From a failing case of an engine to a finding: the smallest case, what it needs, and what explains its tokens."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import takewhile

from eqcheck.abduction import Abduced
from eqcheck.case.engine import EngineCase
from eqcheck.contract.decoder import Decoder
from eqcheck.contract.requirements import unmet
from eqcheck.lanes.checkpoint.drawing import alike
from eqcheck.lanes.checkpoint.explain import abduced, common, explain, fitting, misused, read
from eqcheck.lanes.checkpoint.outcome import HELD_BACK, TOO_EARLY, WRONG_TOKEN
from eqcheck.lanes.checkpoint.shrink import minimise, needs
from eqcheck.result.findings import Finding
from eqcheck.result.outcome import HANG, UNTRIED, Outcome

MINIMISE_S, EXPLAIN_S = 20.0, 20.0  # for a finding
ENDS = (HELD_BACK, TOO_EARLY)
_OPTIONS = {"min-new-tokens", "repetition-penalty", "presence-penalty"}
# Cases like a failing one that are decoded: for a wrong use of an option, for another cause, and rows of all of them.
_ALIKE, _ALIKE_WRONG, _ALIKE_ROWS = 40, 12, 120


class Investigation:
    """What is found in failing cases; ``decode`` and ``repeats`` ask the engine, ``left`` says how long there is.

    ``causes`` are what explains findings, by their id.
    """

    def __init__(
        self,
        decoder: Decoder,
        decode: Callable[[EngineCase], Outcome],
        repeats: Callable[[Outcome], bool],
        left: Callable[[], float],
    ) -> None:
        self.decoder, self.decode, self.repeats, self.left = decoder, decode, repeats, left
        self.causes: dict[str, Abduced] = {}

    def finding(self, outcome: Outcome, cause: Abduced | None) -> Finding:
        """The finding of a case that is known to fail again; ``cause`` is what explains it, where that is known."""
        smallest, minimised = self._minimised(outcome)
        elsewhere = cause if smallest is not outcome else None
        tried, found = self._cause(smallest, minimised, elsewhere) if self.left() > 0 else (False, None)
        named = needs(smallest.case)
        explanation = explain(smallest, found) if tried else explain(smallest, None, UNTRIED)
        finding = Finding(
            smallest,
            explanation,
            seen=(outcome.symptom,),
            needs=named,
            plain=self._plain(smallest.case),
            stored=smallest is outcome and not outcome.drawn,
            minimised=minimised,
        )
        if found is not None:
            self.causes.setdefault(finding.id, found)
        return finding

    def _minimised(self, outcome: Outcome) -> tuple[Outcome, bool]:
        """The smallest outcome of the same symptom found in time that repeats, and whether there is no smaller one."""
        if outcome.symptom == HANG:  # every try would take the whole time limit
            return outcome, False
        until = time.monotonic() + min(MINIMISE_S, self.left() / 2)
        smaller = [outcome]

        def fails(case: EngineCase) -> bool:
            if unmet(case, self.decoder.requires):
                return False
            tried = self.decode(case)
            if tried.symptom == outcome.symptom:
                smaller.append(replace(tried, drawn=outcome.drawn))
            return tried.symptom == outcome.symptom

        minimise(outcome.case, fails, until - time.monotonic(), self.decoder.capabilities)
        ended = time.monotonic() < until
        if len(smaller) == 1 or self.repeats(smaller[-1]):
            return smaller[-1], ended
        known, beyond = 0, len(smaller) - 1  # what was decoded before them made the last ones fail
        while beyond - known > 1:
            middle = (known + beyond) // 2
            known, beyond = (middle, beyond) if self.repeats(smaller[middle]) else (known, middle)
        return smaller[known], False

    def _plain(self, case: EngineCase) -> str:
        """What the engine does without speculation; a decoder that is no engine cannot do without."""
        if not self.decoder.checkpoints:
            return ""
        status = self.decode(replace(case, drafting="none")).status
        return {"violation": "wrong too", "skipped": ""}.get(status, "right")

    def _alike(self, case: EngineCase, most: int) -> tuple[list[Outcome], bool]:
        """What the engine makes of the same case with other prompts, and whether there was time for half of them."""
        end = time.monotonic() + min(EXPLAIN_S, self.left())
        some = range(min(most, _ALIKE_ROWS // len(case.rows)))
        numbers = takewhile(lambda _: time.monotonic() < end, some)
        made = [self.decode(alike(case, number, self.decoder.requires)) for number in numbers]
        return made, 2 * len(made) >= len(some)

    def _cause(self, outcome: Outcome, minimised: bool, elsewhere: Abduced | None) -> tuple[bool, Abduced | None]:
        """What explains a small failing case, by itself or by others, and whether there was the time to try."""
        if read(outcome):
            return True, None
        found, tried = abduced(outcome), True
        option = bool(set(needs(outcome.case)) & _OPTIONS and outcome.outputs is not None)
        if option and elsewhere is not None and elsewhere.component == "options":
            elsewhere = None
        if option and not minimised and outcome.symptom == WRONG_TOKEN:  # the options may be beside the point
            option, found = False, found if found and found.component != "options" else None
        if option and (found is None or found.component == "options"):  # one token says little
            made, enough = self._alike(outcome.case, _ALIKE)
            others = [o for o in made if o.symptom in (outcome.symptom, *ENDS, "")]
            found = misused([outcome, *others]) if enough else None
            tried = enough
        if elsewhere is not None:
            larger = fitting(outcome, [elsewhere])
            if larger is not None and (found is None or larger.search.chance < found.search.chance):
                return True, replace(larger, search=replace(larger.search, of="a larger case"))
        if found is None and not option and outcome.symptom == WRONG_TOKEN:
            made, tried = self._alike(outcome.case, _ALIKE_WRONG)
            found = common([outcome, *(o for o in made if o.symptom == WRONG_TOKEN)])
        return tried or found is not None, found
