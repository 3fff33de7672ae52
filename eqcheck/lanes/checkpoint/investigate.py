"""Turn a failing case of an engine into a finding: the smallest case, what it needs, and what explains its tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import takewhile
from typing import Any

from eqcheck.abduction import Abduced
from eqcheck.case.engine import EngineCase
from eqcheck.case.reduction import put, reduced
from eqcheck.case.sampling import SampledEngineCase
from eqcheck.checkpoints.judge import truth
from eqcheck.contract.decoders import CAPABILITIES, Decoder, RowOptions
from eqcheck.contract.options import SCORING, simpler, stuck
from eqcheck.contract.requirements import unmet
from eqcheck.explanation.records import Explanation
from eqcheck.explanation.statements import NOTHING
from eqcheck.lanes.checkpoint.drawing import alike, ending_like
from eqcheck.lanes.checkpoint.outcome import (
    HELD_BACK,
    TOO_EARLY,
    UNEXPLAINED,
    abduced,
    common,
    explain,
    fitting,
    left_behind,
    misused,
    read,
    wrong_token,
)
from eqcheck.result.findings import Finding
from eqcheck.result.outcome import HANG, UNTRIED, Outcome

# Make a failing engine case small: engine options back to their defaults first, then rows, then what they ask.
#
# The failure needs each option that then is not at its default; `needs` names them.

MANY = 16  # rows that a failure needs, beyond which it is a matter of their number
_DRAFTING = {"ngram": "ngram", "dictated-drafts": "dictated"}
_ENGINE = ("token_budget", "kv_blocks", "prefix_caching")
_PLAIN: dict[str, Any] = {field.name: field.default for field in fields(RowOptions)}
_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "seed")
_ROW = (*_SAMPLING, "arrival", *SCORING, "eos_token_ids", "stop_sequences", "logprobs", "prompt_logprobs",
        "cancel_after", "n")  # fmt: skip
_ENDS = ("eos_token_ids", "stop_sequences")


def minimise(
    case: EngineCase, fails: Callable[[EngineCase], bool], seconds: float, capabilities: Collection[str] = CAPABILITIES
) -> EngineCase:
    """The smallest case found that ``fails``, in so many seconds, and that a decoder of these capabilities takes."""

    def smaller(case: EngineCase) -> Iterator[EngineCase]:
        tried = candidates(case, capabilities)
        return (one for one in tried if not any(stuck(own.grammar, own.eos_token_ids) for own in one.options))

    return reduced(case, True, smaller, lambda tried, _: fails(tried) or None, time.monotonic() + seconds)[0]


def needs(case: EngineCase) -> tuple[str, ...]:
    """The options of a case that are not at their defaults, by name: those of the engine, then those of rows."""
    names = [name for name, drafting in _DRAFTING.items() if case.drafting == drafting]
    names += [name for name in _ENGINE if getattr(case, name) is not None]
    names += [switched(case)] if case.switch else []
    names += [name for name in _ROW if any(getattr(options, name) != _PLAIN[name] for options in case.options)]
    names += ["many-rows"] if len(case.rows) >= MANY else []
    return tuple({"seed": "seeds"}.get(name, name.replace("_", "-")) for name in names)


def switched(case: EngineCase) -> str:
    """Return the name of a need of cases: that speculation is switched as in this one."""
    return f"switch {case.switch}"


def without(case: EngineCase, names: tuple[str, ...]) -> EngineCase:
    """The case with the named options at their defaults; sampled rows stay sampled."""
    for name in names:
        field = {"seeds": "seed"}.get(name, name.replace("-", "_"))
        if name == "many-rows":
            case = case.of(range(min(len(case.rows), MANY - 1)))
        elif name in _DRAFTING:
            case = replace(case, drafting="model", rows=tuple(replace(row, accepts=()) for row in case.rows))
        elif field in _ENGINE:
            case = replace(case, **{field: None})  # type: ignore[arg-type]
        elif field in _PLAIN:
            case = case.with_options(_plain(options, field) for options in case.options)
        else:  # what is no option is the name of a switch
            case = replace(case, switch=None)
    return case


def _plain(options: RowOptions, name: str) -> RowOptions:
    return _with(options, name, 1.0 if name == "temperature" and options.temperature else _PLAIN[name])


def _with(options: RowOptions, name: str, value: Any) -> RowOptions:
    return replace(options, **{name: value})


def candidates(case: EngineCase, capabilities: Collection[str] = CAPABILITIES) -> Iterator[EngineCase]:
    """Smaller cases; the most promising cases come first.

    To see whether a sampled case shows a wrong law takes many draws, so there are fewer: rows change together.
    """
    sampled = case.sampled if isinstance(case, SampledEngineCase) else []
    own = not sampled and {"row-limits", "row-eos"} <= set(capabilities)  # else rows share their options
    if len(case.rows) > 1:
        yield from (case.of([number]) for number in sampled)
        if sampled and len(case.rows) > 2:
            yield case.of([0, len(case.rows) - 1])  # they are twins
    alone = truth(case.checkpoint)
    for name in needs(case):
        if name == "dictated-drafts" and "only-dictated-drafts" in capabilities:
            continue
        yield without(case, (name,))
        if name.endswith("-penalty") and own:
            plain = zip(case.rows, without(case, (name,)).rows, strict=True)
            yield replace(case, rows=tuple(ending_like(row, other, alone) for row, other in plain))
    size = len(case.rows) // 2
    while size:
        for start in range(0, len(case.rows), size):
            yield replace(case, rows=case.rows[:start] + case.rows[start + size :])
        size //= 2
    if not own:
        yield from map(case.with_options, _simpler(case.options))
    if sampled and case.drafting == "model":
        for size in (1, 3):
            yield replace(case, rows=tuple(replace(row, prompt=row.prompt[:size]) for row in case.rows))
    for number, row in enumerate(() if sampled else case.rows):
        smaller = [replace(row, prompt=prompt) for prompt in _shorter(row.prompt)]
        smaller += [replace(row, accepts=accepts) for accepts in _duller(row.accepts)]
        ends = any(getattr(row.options, name) for name in _ENDS)
        smaller += [ending_like(row, candidate, alone) for candidate in smaller if ends and own]
        if own:
            smaller += [replace(row, options=options) for (options,) in _simpler([row.options])]
        for candidate in smaller:
            yield replace(case, rows=put(case.rows, (number,), candidate))
    for k in sorted({1, case.num_draft_tokens // 2, case.num_draft_tokens - 1} - {0, case.num_draft_tokens}):
        if k < case.num_draft_tokens:
            yield replace(case, num_draft_tokens=k)


def _simpler(rows: Sequence[RowOptions]) -> Iterator[list[RowOptions]]:
    """The options of rows made simpler, of all these rows at once."""
    for name in _ROW:
        if (plain := [_plain(options, name) for options in rows]) != list(rows):
            yield plain
    for name in (*_ENDS, "bad_words", "logit_bias"):
        if len(given := getattr(rows[0], name)) > 1:
            yield from ([_with(options, name, (one,)) for options in rows] for one in given)
    for grammar in simpler(rows[0].grammar):
        yield [_with(options, "grammar", grammar) for options in rows]
    limit = max(options.max_new_tokens for options in rows)
    drawn = any(options.temperature for options in rows)
    for most in sorted({limit // 2, limit // 2 if drawn else limit - 1} - {0, limit}):
        shorter = [(options, min(most, options.max_new_tokens)) for options in rows]
        yield [replace(o, max_new_tokens=n, min_new_tokens=min(n, o.min_new_tokens)) for o, n in shorter]


def _duller(accepts: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Fewer rounds in which something is accepted, and less."""
    for size in sorted({0, len(accepts) // 2, len(accepts) - 1} - {-1, len(accepts)}):
        yield accepts[:size]
    for number, count in enumerate(accepts):
        if count:
            yield put(accepts, (number,), 0)


def _shorter(prompt: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    for size in sorted({len(prompt) // 2, 1} - {0, len(prompt)}, reverse=True):
        yield prompt[size:]
        yield prompt[:-size]


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
            option = minimised or not wrong_token(outcome)  # else the options may be beside the point
        attempt = Attempt(cause)
        if attempt.found is None and option:
            attempt = self._as_option(outcome)
        if elsewhere is not None:
            attempt = self._as_larger(outcome, elsewhere, attempt)
        if attempt.found is None and not option and wrong_token(outcome):
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
        found = common([outcome, *(one for one in made if wrong_token(one))])
        return Attempt(found, enough or found is not None)
