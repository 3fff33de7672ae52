"""The ends and counts that are told beside a row, held against the row; and rows that go on behind a stop sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from eqcheck.contract.completion import Completion
from eqcheck.contract.decoders import RowOptions
from eqcheck.decoding.run import Run
from eqcheck.explanation.records import Explanation, Given
from eqcheck.explanation.statements import Statement, state
from eqcheck.result.verdict import RowVerdict, common_start
from eqcheck.truth.logprobs import Logprobs, logprobs


def told_wrongly(
    completions: Sequence[Completion | None],
    prompts: Sequence[Ids],
    options: Sequence[RowOptions],
    rows: Sequence[Ids],
    own: Callable[[int], Logprobs | None] = lambda row: None,
    of_prompt: Callable[[int], Logprobs | None] = lambda row: None,
) -> Explanation | None:
    """The first completion that tells another end of its row, other counts or probabilities; None if all are right.

    The rows are the target's own; ``own`` are the logarithms of the target's probabilities of a row, ``of_prompt`` of
    the tokens of its prompt behind the first.

    >>> told_wrongly([Completion((5,), "stop")], [(1,)], [RowOptions(1)], [(5,)]).fingerprint
    'bookkeeping/finish-reason'
    """
    for number, told in enumerate(completions):
        if told is None:
            continue
        for kind, statement in (
            ("finish-reason", _reason(told, options[number], rows[number])),
            ("usage", _usage(told, prompts[number], rows[number])),
            ("logprobs", _logprobs(told.logprobs, own(number)) if told.logprobs is not None else None),
            ("logprobs", _of_prompt(told, prompts[number], partial(of_prompt, number))),
        ):
            if statement:
                return Explanation("bookkeeping", kind, row=number, **statement._asdict())
    return None


def otherwise(case: Any, completions: Sequence[Completion | None], rows: Sequence[Ids]) -> Explanation | None:
    """The first row that the engine answers otherwise than without drafts, in its tokens or in what is beside them."""
    for number, (told, row) in enumerate(zip(completions, rows, strict=True)):
        alone = dict(told.alone or {}) if told else {}
        tokens, margins = tuple(alone.pop("tokens", row)), alone.pop("margins", ())
        if row != tokens:
            index, eos = common_start(row, tokens), case.options[number].eos_token_ids
            if margins[index : index + 1] and index < len(row) and margins[index] < _TIE:
                continue
            return Explanation(
                *("options", "ignored-option"),
                row=number,
                token_index=index,
                expected=tokens[index] if index < len(tokens) else None,
                observed=row[index] if index < len(row) else None,
                expected_row=tokens,
                observed_row=row,
                wrong_rows=(number,),
                given=Given(
                    case.prompts[number], case.pad_token_id, eos, case.num_draft_tokens, requests=len(case.prompts)
                ),
                subject=case.switch,
                **state("switched", switch=case.switch)._asdict(),
            )
        for name, own in alone.items():
            place = _differ((told.beside or {}).get(name) if told else None, own)
            if place is not None:
                at = f", first at new token {place[0]}" if place else ""
                said = state("beside", switch=case.switch, what=name.replace("_", " "), place=at)
                return Explanation("options", "ignored-option", row=number, subject=case.switch, **said._asdict())
    return None


_NOISE, _TIE = 1e-3, 1e-2  # of numbers in float32, where blocks are computed in other shapes


def _differ(told: Any, own: Any) -> tuple[int, ...] | None:
    """Where two values differ, as indices; None if nowhere. Numbers may differ a little, NaN always does."""
    if isinstance(told, list | tuple) and isinstance(own, list | tuple) and len(told) == len(own):
        found = ((index, _differ(one, other)) for index, (one, other) in enumerate(zip(told, own, strict=True)))
        return next(((index, *place) for index, place in found if place is not None), None)
    if isinstance(told, int | float) and isinstance(own, int | float):
        return None if told == own or abs(told - own) <= _NOISE * (1 + abs(own)) else ()
    return None if told == own else ()


def told_wrongly_of(run: Run) -> Explanation | None:
    """The first completion of a run that tells something wrong of its row, where all rows are right."""
    case, rows, digests = run.case, run.truth.rows, run.truth.digests
    own = [partial(logprobs, case, row, rows[row], digests[row]) for row in range(len(rows))]
    wrong = told_wrongly(run.completions, case.prompts, case.options, rows, lambda row: own[row]())
    if wrong is None or wrong.row is None or wrong.kind != "logprobs":
        return wrong
    number, index = wrong.row, int(wrong.facts["index"])
    return replace(wrong, token_index=index, observed_row=rows[number], wrong_rows=(number,), given=case.given(number))


def _reason(told: Completion, options: RowOptions, row: Ids) -> Statement | None:
    """Return how a row ends, where something else is told;
    an EOS that completes a stop sequence may be told as either.
    """
    stops, by_eos = options.stops_of(row), row[-1:] != () and row[-1] in options.eos_token_ids
    reason = "stop" if stops or by_eos else "length"
    given = f"its stop sequence {_ids(stops[0])}" if stops else "an EOS" if by_eos else "its limit"
    if options.cancel_after is not None and len(row) >= options.cancel_after:
        return None  # engines have names of their own for it
    if told.finish_reason not in (None, reason):
        return state("reason", given=given, told=f"{told.finish_reason!r:.80}")
    stop = None if told.stop is None else tuple(told.stop)
    if stop is not None and stop not in stops:
        return state("reason", given=given, told=f"stop sequence {_ids(stop)}")
    return None


def _usage(told: Completion, prompt: Ids, row: Ids) -> Statement | None:
    for name, tokens in (("prompt_tokens", prompt), ("completion_tokens", row)):
        count = (told.usage or {}).get(name, len(tokens))
        if count != len(tokens):
            return state("usage", count=name, told=f"{count!r:.80}", tokens=len(tokens))
    return None


def _logprobs(told: Sequence[float], right: Logprobs | None) -> Statement | None:
    """The first log-probability that is not the target's own, and whose they all are from there on."""
    own, bound, asked = right or Logprobs([*told], 0.0)
    if asked:
        return _mixed(told, own, asked, bound)

    def differs(index: int, other: int) -> bool:
        return not abs(told[index] - own[other]) <= bound  # NaN differs

    places = range(len(own))
    first = next((index for index in places if differs(index, index)), None)
    if first is None:
        return None
    for name, by in (("logprob-before", -1), ("logprob-behind", 1)):
        moved = [index for index in places if index >= first and index + by in places]
        if len(moved) > 1 and not any(differs(index, index + by) for index in moved):
            return state(name, index=first)
    return state("logprob", index=first, told=f"{told[first]:.6g}", own=f"{own[first]:.6g}")


def _of_prompt(told: Completion, prompt: Ids, own: Callable[[], Logprobs | None]) -> Statement | None:
    """The first log-probability of a prompt's token that is not the target's own."""
    values = told.prompt_logprobs
    if values is None:
        return None
    if len(values) != len(prompt):
        return state("prompt-logprobs", told=len(values), tokens=len(prompt))
    right = own()
    for index, (value, one) in enumerate(zip(values[1:], right.own if right else (), strict=False), 1):
        if right and value is not None and not abs(value - one) <= right.bound:
            return state("prompt-logprob", index=index, told=f"{value:.6g}", own=f"{one:.6g}")
    return None


def _mixed(told: Sequence[float], own: Sequence[float], asked: Sequence[float], bound: float) -> Statement | None:
    """Return whether some log-probabilities are those with the row's options, and others those without;
    others say nothing.
    """
    near = [(abs(value - one) <= bound, abs(value - other) <= bound)
            for value, one, other in zip(told, own, asked, strict=True)]  # fmt: skip
    if not all(map(any, near)) or (False, True) not in near or (True, False) not in near:
        return None
    return state("logprob-mixed", index=near.index((False, True)), other=near.index((True, False)))


def without_passed_stops(run: Run) -> tuple[Run, Explanation | None]:
    """The run as if no row went on behind its stop sequence, and the explanation of the first that does, if any.

    The tokens of such a row are right, so other faults come first.
    """
    passed = [row for row in run.verdicts if _passes(run.case.options[row.row], row)]
    if not passed:
        return run, None
    ended, row = {one.row: one.expected for one in passed}, passed[0]
    said = state(
        "stop-passed",
        tokens=len(row.observed) - len(row.expected),
        stop=_ids(run.case.options[row.row].stops_of(row.expected)[0]),
    )
    explanation = Explanation(
        "options",
        "ignored-option",
        row=row.row,
        token_index=row.first,
        observed=row.observed[len(row.expected)],
        expected_row=row.expected,
        observed_row=row.observed,
        wrong_rows=tuple(ended),
        given=run.case.given(row.row),
        subject="stop-sequences",
        **said._asdict(),
    )
    return replace(run, outputs=tuple(ended.get(each.row, each.observed) for each in run.verdicts)), explanation


def _passes(options: RowOptions, row: RowVerdict) -> bool:
    """Return whether a row is right up to its stop sequence and goes on behind it; an EOS there is another fault."""
    expected = row.expected
    ended = bool(options.stops_of(expected)) and expected[-1] not in options.eos_token_ids
    return ended and len(row.observed) > len(expected) and row.first == len(expected)


def _ids(tokens: Ids) -> str:
    return " ".join(map(str, tokens))
