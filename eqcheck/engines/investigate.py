"""Turn a failing case of an engine into a finding: the smallest case, what it needs, and what explains its tokens."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile

from eqcheck.contract.decoders import CAPABILITIES, Decoder
from eqcheck.contract.options import SCORING, stuck
from eqcheck.contract.requirements import unmet
from eqcheck.core.case.engine import SILENT, EngineCase
from eqcheck.core.case.sampling import SampledEngineCase
from eqcheck.core.explanation.records import Explanation
from eqcheck.core.explanation.statements import NOTHING
from eqcheck.core.result.findings import Finding
from eqcheck.core.result.outcome import HANG, UNTRIED, Outcome
from eqcheck.core.shrinking.items import kept, spans
from eqcheck.core.shrinking.numbers import below, put
from eqcheck.core.shrinking.options import PLAIN, plain, plainer
from eqcheck.core.shrinking.reducer import Budget, Enough, Shrinking, now
from eqcheck.core.shrinking.tokens import duller, halved
from eqcheck.engines.abduction import Abduced
from eqcheck.engines.checkpoints.row_judge import truth
from eqcheck.engines.drawing import alike, ending_like
from eqcheck.engines.engine_outcome import (
    HELD_BACK,
    TOO_EARLY,
    UNEXPLAINED,
    EngineOutcome,
    abduced,
    common,
    explain,
    fitting,
    left_behind,
    misused,
    read,
    wrong_token,
)

# Make a failing engine case small: engine options back to their defaults first, then rows, then what they ask.
#
# The failure needs each option that then is not at its default; `needs` names them.

MANY = 16  # rows that a failure needs, beyond which it is a matter of their number
_DRAFTING = {"ngram": "ngram", "dictated-drafts": "dictated"}
_ENGINE = ("token_budget", "kv_blocks", "prefix_caching")
_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "seed")
_ROW = (*_SAMPLING, "arrival", *SCORING, "eos_token_ids", "stop_sequences", "logprobs", "prompt_logprobs",
        "cancel_after", "n")  # fmt: skip
_ENDS = ("eos_token_ids", "stop_sequences")
_SEVERAL = (*_ENDS, "bad_words", "logit_bias")


def minimise(
    case: EngineCase,
    fails: Callable[[EngineCase], bool],
    seconds: float,
    capabilities: Collection[str] = CAPABILITIES,
    clock: Callable[[], float] = now,
) -> EngineCase:
    """The smallest case found that ``fails``, in so many seconds, and that a decoder of these capabilities takes."""

    def smaller(case: EngineCase) -> Iterator[EngineCase]:
        tried = candidates(case, capabilities)
        return (one for one in tried if not any(stuck(own.grammar, own.eos_token_ids) for own in one.options))

    budget = Budget.of(seconds, clock=clock)

    def shows(candidate: EngineCase, _: bool) -> bool | None:
        budget.spend()
        return fails(candidate) or None

    search = Shrinking(case, True, shows)
    search.run(lambda: search.greedy(smaller))
    return search.case


def needs(case: EngineCase) -> tuple[str, ...]:
    """The options of a case that are not at their defaults, by name: those of the engine, then those of rows."""
    names = [name for name, drafting in _DRAFTING.items() if case.drafting == drafting]
    names += [name for name in _ENGINE if getattr(case, name) is not None]
    names += [switched(case)] if case.switch else []
    names += [name for name in _ROW if any(getattr(options, name) != PLAIN[name] for options in case.options)]
    names += ["silent-rounds"] if any(SILENT in row.accepts for row in case.rows) else []
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
        elif name == "silent-rounds":
            rows = (replace(row, accepts=tuple(max(0, count) for count in row.accepts)) for row in case.rows)
            case = replace(case, rows=tuple(rows))
        elif name in _DRAFTING:
            case = replace(case, drafting="model", rows=tuple(replace(row, accepts=()) for row in case.rows))
        elif field in _ENGINE:
            case = replace(case, **{field: None})  # type: ignore[arg-type]
        elif field in PLAIN:
            case = case.with_options(plain(options, field) for options in case.options)
        else:  # what is no option is the name of a switch
            case = replace(case, switch=None)
    return case


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
    for gone in spans(len(case.rows), len(case.rows) // 2):
        yield replace(case, rows=kept(case.rows, gone))
    if not own:
        yield from map(case.with_options, plainer(case.options, _ROW, _SEVERAL))
    if sampled and case.drafting == "model":
        for size in (1, 3):
            yield replace(case, rows=tuple(replace(row, prompt=row.prompt[:size]) for row in case.rows))
    for number, row in enumerate(() if sampled else case.rows):
        smaller = [replace(row, prompt=prompt) for prompt in halved(row.prompt)]
        smaller += [replace(row, accepts=accepts) for accepts in duller(row.accepts)]
        ends = any(getattr(row.options, name) for name in _ENDS)
        smaller += [ending_like(row, candidate, alone) for candidate in smaller if ends and own]
        if own:
            smaller += [replace(row, options=options) for (options,) in plainer([row.options], _ROW, _SEVERAL)]
        for candidate in smaller:
            yield replace(case, rows=put(case.rows, (number,), candidate))
    k = case.num_draft_tokens
    for fewer in below(k, 1, 1, k // 2, k - 1):
        yield replace(case, num_draft_tokens=fewer)


MINIMISE_S, EXPLAIN_S = 20.0, 20.0  # for a finding, by the clock of work
# Tokens from the first wrong one on, with which a case may tell its cause: a smaller one without a cause looks like any
# other, and would count them all with its finding.
SAYING = 6
ENDS = (HELD_BACK, TOO_EARLY)
_OPTIONS = {name.replace("_", "-") for name in SCORING}
# Cases like a failing one that are decoded: for a wrong use of an option, for another cause, and rows of all of them. A
# wrong use makes one wrong token in a case, often the second best, so it takes many cases to show more than chance.
_ALIKE, _ALIKE_WRONG, _ALIKE_ROWS = 40, 12, 120


def evidence_of(outcome: Outcome) -> int:
    """Return how many tokens there are from the first wrong one of each row on: a few tell nothing."""
    wrong = outcome.wrong if isinstance(outcome, EngineOutcome) else ()
    return sum(len(row.observed) - (row.first or 0) for row in wrong)


@dataclass(frozen=True)
class Attempt:
    """An attempt to explain a case: the cause, if any, and whether there was the time to try."""

    found: Abduced | None = None
    tried: bool = True


@dataclass(frozen=True)
class Failure:
    """A failing case whose cause is looked for, and what the questions about it need: made once, and handed down.

    ``decode`` asks the engine about cases like it, which meet what it ``requires``; ``left`` says how long there is,
    and ``patience`` how many times as long as usual one question may take, by the ``clock``. ``minimised``: no smaller
    case fails like it. ``larger`` is what explains the larger case that it comes from.
    """

    outcome: Outcome
    decode: Callable[[EngineCase], Outcome]
    requires: tuple[str, ...]
    left: Callable[[], float]
    patience: int = 1
    minimised: bool = True
    larger: Abduced | None = None
    clock: Callable[[], float] = now

    @cached_property
    def scored(self) -> bool:
        """Return whether the case fails only with an option that changes scores."""
        return self.outcome.outputs is not None and bool(set(needs(self.outcome.case)) & _OPTIONS)

    @property
    def misused(self) -> bool:
        """Return whether to ask for a wrong use of that option: in a larger case it may be beside the point."""
        return self.scored and (self.minimised or not wrong_token(self.outcome))

    def believed(self, cause: Abduced | None) -> Abduced | None:
        """The cause, but no wrong use of an option: that makes one wrong token, which says little."""
        return None if cause is not None and self.scored and cause.component == "options" else cause

    def alike(self, most: int) -> tuple[list[Outcome], bool]:
        """The outcomes of the same case with other prompts, and whether there was time for half of them."""
        case, end = self.outcome.case, self.clock() + self.patience * EXPLAIN_S
        wanted = range(min(most, _ALIKE_ROWS // len(case.rows)))
        numbers = takewhile(lambda _: self.clock() < end and self.left() > 0, wanted)
        made = [self.decode(alike(case, number, self.requires)) for number in numbers]
        return made, 2 * len(made) >= len(wanted)


def by_tokens(failure: Failure, so_far: Attempt) -> Attempt:
    """The cause that the tokens of the case show by themselves."""
    return Attempt(failure.believed(abduced(failure.outcome)))


def by_option(failure: Failure, so_far: Attempt) -> Attempt:
    """The wrong use of an option, by what the engine makes of cases alike."""
    if so_far.found is not None or not failure.misused:
        return so_far
    made, enough = failure.alike(_ALIKE)
    others = [one for one in made if one.symptom in (failure.outcome.symptom, *ENDS, "")]
    return Attempt(misused([failure.outcome, *others]) if enough else None, enough)


def by_larger_case(failure: Failure, so_far: Attempt) -> Attempt:
    """The cause of the larger case, where it explains this one and is likelier than the cause found so far."""
    known = failure.believed(failure.larger)
    cause, found = fitting(failure.outcome, [known]) if known else None, so_far.found
    if cause is None or (found is not None and cause.search.chance >= found.search.chance):
        return so_far
    return Attempt(replace(cause, search=replace(cause.search, of="a larger case")))


def by_cases_alike(failure: Failure, so_far: Attempt) -> Attempt:
    """The cause that all wrong cases alike have in common."""
    if so_far.found is not None or failure.misused or not wrong_token(failure.outcome):
        return so_far
    made, enough = failure.alike(_ALIKE_WRONG)
    found = common([failure.outcome, *(one for one in made if wrong_token(one))])
    return Attempt(found, enough or found is not None)


# The questions about a cause, in this order: the tokens at hand cost no decode; the larger case comes after the option,
# for its cause replaces only a less likely one; cases alike are decoded last, for what nothing else explains.
QUESTIONS = (by_tokens, by_option, by_larger_case, by_cases_alike)


def cause(failure: Failure) -> Attempt:
    """Look for the cause of wrong tokens; where it was read inside the engine, or a row says it, nothing is asked."""
    attempt = Attempt()
    if read(failure.outcome) or failure.outcome.explanation is not None:
        return attempt
    for question in QUESTIONS:
        attempt = question(failure, attempt)
    return attempt


class Investigation:
    """The findings of failing cases; ``decode`` and ``repeats`` ask the engine, ``step`` hears what is done.

    ``causes`` are the explanations of findings, by their id. Limits count by the ``clock``, in seconds.
    """

    def __init__(
        self,
        decoder: Decoder,
        decode: Callable[[EngineCase], Outcome],
        repeats: Callable[[Outcome], bool],
        step: Callable[[str, str], None] = lambda step, symptom: None,
        clock: Callable[[], float] = now,
    ) -> None:
        self.decoder, self.decode, self.repeats, self.step, self.clock = decoder, decode, repeats, step, clock
        self.patience = 1  # times as long as usual
        self.causes: dict[str, Abduced] = {}

    def finding(self, outcome: Outcome, known: Abduced | None, left: Callable[[], float]) -> Finding:
        """The finding of a case that is seen to fail again; ``known`` is what explains it, if anything was found.

        ``left`` says how long there is.
        """
        self.step("shrink", outcome.symptom)
        smallest, larger, minimised = self._minimised(outcome, left)
        self.step("explain", outcome.symptom)
        elsewhere = known if smallest is not outcome else None
        explanation, likely = self.explained(smallest, left, minimised, elsewhere)
        if explanation.component == "unattributed" and (telling := self._telling(larger)) is not None and left() > 0:
            # A case can be made so small that one wrong token is left of its evidence, and then nothing can be shown.
            told, cause = self.explained(telling, left, minimised=False)
            if cause is not None and self.repeats(telling):
                smallest, explanation, likely = telling, told, cause
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
        requires, patience = self.decoder.requires, self.patience
        failure = Failure(outcome, self.decode, requires, left, patience, minimised, elsewhere, self.clock)
        attempt = cause(failure) if left() > 0 else Attempt(tried=False)
        left_over = left_behind(outcome, self.decode) if attempt.found is None else NOTHING
        return explain(outcome, attempt.found, UNEXPLAINED if attempt.tried else UNTRIED, left_over), attempt.found

    @staticmethod
    def _telling(larger: list[Outcome]) -> Outcome | None:
        """The last of ever smaller outcomes whose wrong rows go on long enough to tell a cause."""
        return next((one for one in reversed(larger) if wrong_token(one) and evidence_of(one) >= SAYING), None)

    def _minimised(self, outcome: Outcome, left: Callable[[], float]) -> tuple[Outcome, list[Outcome], bool]:
        """The smallest outcome of the same symptom found in time that repeats, with those that it was made from.

        At last, whether there is no smaller one.
        """
        if outcome.symptom == HANG:  # every try would take the whole time limit
            return outcome, [], False
        began, half = self.clock(), left() / 2
        seconds, until = self.patience * MINIMISE_S, now() + half
        smaller = [outcome]

        def fails(case: EngineCase) -> bool:
            if now() > until:
                raise Enough
            if unmet(case, self.decoder.requires):
                return False
            tried = self.decode(case)
            if tried.symptom == outcome.symptom:
                smaller.append(replace(tried, drawn=outcome.drawn))
            return tried.symptom == outcome.symptom

        minimise(outcome.case, fails, seconds, self.decoder.capabilities, self.clock)
        ended = self.clock() - began < seconds and now() < until
        if len(smaller) == 1 or self.repeats(smaller[-1]):
            return smaller[-1], smaller[:-1], ended
        known, beyond = 0, len(smaller) - 1  # what was decoded before them made the last ones fail
        while beyond - known > 1:
            middle = (known + beyond) // 2
            known, beyond = (middle, beyond) if self.repeats(smaller[middle]) else (known, middle)
        return smaller[known], smaller[:known], False

    def _plain(self, outcome: Outcome) -> str:
        """The engine's answer without speculation, in words; a decoder that is no engine cannot do without, and of one
        that never drafts there is nothing to say.

        An answer that is wrong in another way may be another fault: nothing is said then.
        """
        if not self.decoder.checkpoints or "no-drafts" in self.decoder.capabilities:
            return ""
        plain = self.decode(replace(outcome.case, drafting="none"))
        if plain.failed:
            return "wrong too" if plain.symptom == outcome.symptom else ""
        return "" if plain.declined else "right"
