"""Faults that need no statistics, in the smallest request that shows each: impossible tokens, promises, greedy rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np

from eqcheck.case.sampling import SampledCase
from eqcheck.explanation.records import Explanation
from eqcheck.lanes.sampling.decode import TARGET, scores
from eqcheck.lanes.sampling.laws import law_of
from eqcheck.result.outcome import Outcome
from eqcheck.sampling.laws import UNCUT
from eqcheck.sampling.naming import NAMED
from eqcheck.truth.continuation import digests_of

TryCase = Callable[[Any], Outcome]
_TRIES = 6  # other random numbers, for a smaller request to show the same


def smallest(outcome: Outcome, try_case: TryCase) -> Outcome:
    """The same kind of token without probability, or broken promise, in fewer rows and tokens; else as it was."""
    read = outcome.explanation
    if read is None or read.row is None or read.token_index is None:
        return outcome
    rng = Random(outcome.case.entropy)
    for rows in _fewer(outcome.case, read.row):
        fewer = outcome.case.of(rows)
        limit = min(read.token_index + 1, fewer.max_new_tokens)
        for options in (_shorter(fewer, limit), fewer):
            for case in (options, *(options.renewed(rng) for _ in range(_TRIES))):
                found = try_case(case)
                if found.symptom == outcome.symptom == try_case(case).symptom:
                    return replace(found, drawn=outcome.drawn)
    return outcome


def _fewer(case: SampledCase, row: int) -> Iterator[list[int]]:
    """The row alone, and with one other: the first, or a neighbour."""
    yield [row]
    for other in dict.fromkeys((0, row - 1, row + 1)):
        if 0 <= other < len(case.rows) and other != row:
            yield sorted((other, row))


def _shorter(case: SampledCase, limit: int) -> SampledCase:
    rows = tuple(replace(row, max_new_tokens=min(limit, row.max_new_tokens)) for row in case.rows)
    return replace(case, rows=rows)


def greedy_drawn(outcome: Outcome, try_case: TryCase) -> Outcome | None:
    """The outcome of a greedy row that is drawn: alone, or beside a sampled row; None where that does not show.

    It shows where other random numbers give other tokens, and the tokens that are not the likeliest come as often as
    their probabilities at a temperature of 1 have it: `NAMED` times as likely as any token alike.
    """
    case, read = outcome.case, outcome.explanation
    if read is None or read.row is None or case.rows[read.row].temperature:
        return None
    rng = Random(case.entropy)
    sampled = [[min(read.row, other), max(read.row, other)] for other, row in enumerate(case.rows) if row.temperature]
    for rows in ([read.row], *sampled[:2]):
        number, fewer = rows.index(read.row), case.of(rows)
        found = [try_case(fewer.renewed(rng)) for _ in range(_TRIES)]
        answers = [one.outputs[number] for one in found if one.outputs]
        failed = next((one for one in found if one.failed and one.outputs), None)
        if failed and len(set(answers)) > 1 and _fits(fewer, number, answers) >= math.log(NAMED):
            beside = "next to a sampled row" if len(rows) > 1 else "alone"
            return replace(failed, explanation=_explained(failed, number, beside), drawn=outcome.drawn)
    return None


def _fits(case: SampledCase, number: int, answers: list[tuple[int, ...]]) -> float:
    """Return how much likelier the tokens that are not the likeliest are at a temperature of
    1 than all others alike.
    """
    prompt, options = case.prompts[number], replace(case.rows[number], **UNCUT)
    total = 0.0
    for answer in answers:
        plain = scores(case, TARGET, number, answer, digests_of(case.family, [(*prompt, *answer)])[0])
        p = law_of(plain, options, case.order)
        at, best = p[np.arange(len(answer)), list(answer)], p.max(-1)
        odd = at < best
        total += float(np.log(at[odd] / (1 - best[odd]) * (p.shape[1] - 1)).sum())
    return total


def _explained(outcome: Outcome, row: int, beside: str) -> Explanation:
    read, output = outcome.explanation, (outcome.outputs or ())[row]
    assert read is not None
    detail = f"request {row} is greedy (temperature 0), but {beside} it returns other tokens with other random numbers"
    return Explanation(
        "sampling",
        "greedy-drawn",
        row=row,
        token_index=read.token_index if read.row == row else None,
        expected=read.expected if read.row == row else None,
        observed=read.observed if read.row == row else None,
        detail=f"{detail}: it is sampled",
        expected_row=read.expected_row if read.row == row else (),
        observed_row=output,
        wrong_rows=(row,),
        tied=True,
        given=read.given if read.row == row else None,
    )
