"""Turn a failing case of an engine into a finding: the smallest case, what it needs, and what explains its tokens."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import takewhile

from eqcheck.abduction import Abduced
from eqcheck.case.engine import EngineCase
from eqcheck.contract.decoders import Decoder
from eqcheck.contract.options import SCORING
from eqcheck.contract.requirements import unmet
from eqcheck.explanation.records import Explanation
from eqcheck.explanation.statements import NOTHING
from eqcheck.lanes.checkpoint.drawing import alike
from eqcheck.lanes.checkpoint.explain import UNEXPLAINED, abduced, common, explain, fitting, left_behind, misused, read
from eqcheck.lanes.checkpoint.outcome import HELD_BACK, TOO_EARLY, WRONG_TOKEN
from eqcheck.lanes.checkpoint.reduction import minimise, needs
from eqcheck.result.findings import Finding
from eqcheck.result.outcome import HANG, UNTRIED, Outcome

MINIMISE_S, EXPLAIN_S = 20.0, 20.0  # for a finding
ENDS = (HELD_BACK, TOO_EARLY)
_OPTIONS = {name.replace("_", "-") for name in SCORING}
# Cases like a failing one that are decoded: for a wrong use of an option, for another cause, and rows of all of them.
_ALIKE, _ALIKE_WRONG, _ALIKE_ROWS = 40, 12, 120


@dataclass(frozen=True)
class Attempt:
    """An attempt to explain a case: the cause, if any, and whether there was the time to try."""

    found: Abduced | None = None
    tried: bool = True


class Investigation:
    """The findings of failing cases; ``decode`` and ``repeats`` ask the engine, ``step`` hears what is done.

    ``causes`` are the explanations of findings, by their id.
    """

    def __init__(
        self,
        decoder: Decoder,
        decode: Callable[[EngineCase], Outcome],
        repeats: Callable[[Outcome], bool],
        step: Callable[[str, str], None] = lambda step, symptom: None,
    ) -> None:
        self.decoder, self.decode, self.repeats, self.step = decoder, decode, repeats, step
        self.patience = 1  # times as long as usual
        self.causes: dict[str, Abduced] = {}

    def finding(self, outcome: Outcome, known: Abduced | None, left: Callable[[], float]) -> Finding:
        """The finding of a case that is seen to fail again; ``known`` is what explains it, if anything was found.

        ``left`` says how long there is.
        """
        self.left = left
        self.step("shrink", outcome.symptom)
        smallest, minimised = self._minimised(outcome)
        self.step("explain", outcome.symptom)
        elsewhere = known if smallest is not outcome else None
        explanation, likely = self.explained(smallest, left, minimised, elsewhere)
        finding = Finding(
            smallest,
            explanation,
            seen=(outcome.symptom,),
            needs=needs(smallest.case),
            plain=self._plain(smallest),
            stored=smallest is outcome and not outcome.drawn,
            minimised=minimised,
        )
        if likely is not None:
            self.causes.setdefault(finding.id, likely)
        return finding

    def explained(
        self, outcome: Outcome, left: Callable[[], float], minimised: bool = True, elsewhere: Abduced | None = None
    ) -> tuple[Explanation, Abduced | None]:
        """The explanation of a failing case, and its cause if one was found: in an audit and whenever it is replayed.

        ``elsewhere`` is what explains a larger case, ``minimised`` whether this is the smallest.
        """
        self.left = left
        cause = self._cause(outcome, minimised, elsewhere) if self.left() > 0 else Attempt(tried=False)
        left_over = left_behind(outcome, self.decode) if cause.found is None else NOTHING
        return explain(outcome, cause.found, UNEXPLAINED if cause.tried else UNTRIED, left_over), cause.found

    def _minimised(self, outcome: Outcome) -> tuple[Outcome, bool]:
        """The smallest outcome of the same symptom found in time that repeats, and whether there is no smaller one."""
        if outcome.symptom == HANG:  # every try would take the whole time limit
            return outcome, False
        until = time.monotonic() + min(self.patience * MINIMISE_S, self.left() / 2)
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

    def _plain(self, outcome: Outcome) -> str:
        """The engine's answer without speculation, in words; a decoder that is no engine cannot do without.

        An answer that is wrong in another way may be another fault: nothing is said then.
        """
        if not self.decoder.checkpoints:
            return ""
        plain = self.decode(replace(outcome.case, drafting="none"))
        if plain.failed:
            return "wrong too" if plain.symptom == outcome.symptom else ""
        return "" if plain.declined else "right"

    def _alike(self, case: EngineCase, most: int) -> tuple[list[Outcome], bool]:
        """The outcomes of the same case with other prompts, and whether there was time for half of them."""
        end = time.monotonic() + min(self.patience * EXPLAIN_S, self.left())
        wanted = range(min(most, _ALIKE_ROWS // len(case.rows)))
        numbers = takewhile(lambda _: time.monotonic() < end, wanted)
        made = [self.decode(alike(case, number, self.decoder.requires)) for number in numbers]
        return made, 2 * len(made) >= len(wanted)

    def _cause(self, outcome: Outcome, minimised: bool, elsewhere: Abduced | None) -> Attempt:
        """The explanation of a small failing case: each attempt is made where those before it leave the case open."""
        if read(outcome) or outcome.explanation is not None:
            return Attempt()
        option = outcome.outputs is not None and bool(set(needs(outcome.case)) & _OPTIONS)
        cause = abduced(outcome)
        if option:  # one token says little
            cause, elsewhere = (one if one and one.component != "options" else None for one in (cause, elsewhere))
            option = minimised or outcome.symptom != WRONG_TOKEN  # else the options may be beside the point
        attempt = Attempt(cause)
        if attempt.found is None and option:
            attempt = self._as_option(outcome)
        if elsewhere is not None:
            attempt = self._as_larger(outcome, elsewhere, attempt)
        if attempt.found is None and not option and outcome.symptom == WRONG_TOKEN:
            attempt = self._as_common(outcome)
        return attempt

    def _as_option(self, outcome: Outcome) -> Attempt:
        """The wrong use of an option, by what the engine makes of cases alike."""
        made, enough = self._alike(outcome.case, _ALIKE)
        others = [one for one in made if one.symptom in (outcome.symptom, *ENDS, "")]
        return Attempt(misused([outcome, *others]) if enough else None, enough)

    def _as_larger(self, outcome: Outcome, elsewhere: Abduced, attempt: Attempt) -> Attempt:
        """The explanation of the larger case, where it fits and is likelier than the one at hand."""
        larger, found = fitting(outcome, [elsewhere]), attempt.found
        if larger is None or (found is not None and larger.search.chance >= found.search.chance):
            return attempt
        return Attempt(replace(larger, search=replace(larger.search, of="a larger case")))

    def _as_common(self, outcome: Outcome) -> Attempt:
        """The explanation that all wrong cases alike have in common."""
        made, enough = self._alike(outcome.case, _ALIKE_WRONG)
        found = common([outcome, *(one for one in made if one.symptom == WRONG_TOKEN)])
        return Attempt(found, enough or found is not None)
