"""Ties told from faults, where a target computes in less than float64.

A token is a tie where a query that saw exactly its row answered it, and the float64 target prefers its own by no more
than `eqcheck.truth.ties.bound`. What follows is judged after the token that was emitted: the truth goes on from there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from eqcheck.contract.family import FAMILY
from eqcheck.hashlm.trace import TARGET
from eqcheck.real.truth import noise, scores_of
from eqcheck.truth.ties import FACTOR

if TYPE_CHECKING:
    from eqcheck.decoding.run import Run


def ties_of(run: Run) -> Run:
    """The run with its truth going on after ties, and their count; as it is where the target computes in float64."""
    family = FAMILY[run.case.family]
    assert family.target is not None
    if run.outputs is None or family.target.dtype == "float64":
        return run
    bound = FACTOR * noise(family.target.architecture, family.target.dtype, run.case.seed)
    ties = 0
    for row in range(len(run.case.prompts)):
        while (index := _tied(run, row, bound)) is not None:
            run, ties = _after(run, row, index), ties + 1
    return replace(run, ties=ties)


def _tied(run: Run, row: int, bound: float) -> int | None:
    """Where a row first differs, if it does by a tie."""
    assert run.outputs is not None
    pairs = zip(run.truth.rows[row], run.outputs[row], strict=False)
    index = next((i for i, (right, got) in enumerate(pairs) if right != got), None)
    if index is None:
        return None
    prompt, right, got = run.case.prompts[row], run.truth.rows[row][index], run.outputs[row][index]
    digest = run.truth.digests[row][-1, len(prompt) + index - 1]
    answered = any(
        bool(((call.digests == digest) & (call.predictions == got)).any()) for call in run.trace.made(TARGET)
    )
    if not answered:
        return None
    scores = scores_of(FAMILY[run.case.family], run.case.seed, (*prompt, *run.truth.rows[row][:index]))
    return index if float(scores[right] - scores[got]) <= bound else None


def _after(run: Run, row: int, index: int) -> Run:
    """The run with a truth in which the row has the token that it emitted, and goes on behind it."""
    from eqcheck.decoding.run import Truth, cut
    from eqcheck.truth.continuation import continue_row, digests_of

    assert run.outputs is not None
    case, truth = run.case, run.truth
    kept = (*truth.uncut[row][:index], run.outputs[row][index])
    more: tuple[int, ...] = ()
    if (left := case.max_new_tokens - len(kept)) > 0:
        more, _ = continue_row(case.family, case.vocab_size, case.seed, (*case.prompts[row], *kept), left)
    uncut, digests = [*truth.uncut], [*truth.digests]
    uncut[row] = (*kept, *more)
    digests[row] = digests_of(case.family, [(*case.prompts[row], *uncut[row])])[0]
    rows = tuple(cut(tokens, case.eos_token_ids) for tokens in uncut)
    return replace(run, truth=Truth(rows, tuple(uncut), tuple(digests)))
