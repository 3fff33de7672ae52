"""Ties told from faults, where a target computes in less than float64.

A token is a tie where a query that saw exactly its row answered it, and the float64 target prefers its own by no more
than `eqcheck.transparent.real.scores.tolerance`. Tokens behind a tie are judged after the emitted token: the truth goes
on from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from eqcheck.contract.family import FAMILY
from eqcheck.core.result.outcome import NearTie
from eqcheck.transparent.decoding.run import Run, Truth
from eqcheck.transparent.hashlm.trace import TARGET
from eqcheck.transparent.real.scores import scores_of
from eqcheck.transparent.truth.continuation import continue_row, digests_of
from eqcheck.transparent.truth.ties import tolerance


def ties_of(run: Run) -> Run:
    """The run with its truth going on after ties, and their count.

    It is as it is where the target computes in float64, or is a built checkpoint, which is exact in every dtype.
    """
    case, family = run.case, FAMILY[run.case.family]
    assert family.target is not None
    if run.outputs is None or family.target.dtype == "float64" or family.built:
        return run
    bound = tolerance(family.target.architecture, family.target.dtype, case.seed)
    for row in range(len(case.prompts)):
        while (index := answered(run, row)) is not None and (margin := _lead(run, row, index)) <= bound:
            run = after(
                run,
                row,
                index,
                lambda text, left: continue_row(case.family, case.vocab_size, case.seed, text, left)[0],
                (margin, bound),
            )
    return run


def answered(run: Run, row: int) -> int | None:
    """The place where a row first differs from the truth, if a query that saw exactly its row was answered with it."""
    verdict = run.verdicts[row]
    index, observed = verdict.first, verdict.observed
    if index is None or index in (len(verdict.expected), len(observed)):
        return None
    digest = run.truth.digests[row][-1, len(run.case.prompts[row]) + index - 1]
    return index if observed[index] in answers_to(run, int(digest)) else None


def answers_to(run: Run, digest: int) -> set[int]:
    """Return what the target predicts in this context, in any call; several tokens where rounding decides.

    A query whose head was not asked predicts nothing.
    """
    answers: set[int] = set()
    for call in run.trace.made(TARGET):
        for row, column in np.argwhere(call.digests == np.uint64(digest)).tolist():
            answers |= {int(call.predictions[row, column]), *run.trace.level.get((call.number, row, column), ())}
    return answers - {-1}


def _lead(run: Run, row: int, index: int) -> float:
    """The lead of the float64 target's own token over the one that was emitted."""
    verdict = run.verdicts[row]
    scores = scores_of(FAMILY[run.case.family], run.case.seed, (*run.case.prompts[row], *verdict.expected[:index]))[-1]
    return float(scores[verdict.expected[index]] - scores[verdict.observed[index]])


def after(
    run: Run,
    row: int,
    index: int,
    more: Callable[[tuple[int, ...], int], Sequence[int]],
    lead: tuple[float, float] = (0.0, 0.0),
) -> Run:
    """The run with one tie more, and a truth in which the row has the token that it emitted and goes on behind it.

    ``more`` gives so many tokens as the target has them after a text; ``lead`` is the margin of the tie, and its bound.
    """
    assert run.outputs is not None
    prompt, uncut, digests = run.case.prompts[row], [*run.truth.uncut], [*run.truth.digests]
    tie = NearTie(row, index, uncut[row][index], run.outputs[row][index], *lead)
    kept = (*uncut[row][:index], tie.emitted)
    left = run.case.max_new_tokens - len(kept)
    uncut[row] = (*kept, *more((*prompt, *kept), left)) if left > 0 else kept
    digests[row] = digests_of(run.case.family, [(*prompt, *uncut[row])])[0]
    rows = tuple(options.cut(tokens) for options, tokens in zip(run.case.options, uncut, strict=True))
    return replace(run, truth=Truth(rows, tuple(uncut), tuple(digests)), ties=(*run.ties, tie))
