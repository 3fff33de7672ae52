"""Which bookkeeping fault a wrong row shows, once every context is known to have been right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eqcheck.verdict import RowVerdict, many

if TYPE_CHECKING:
    from eqcheck.harness import Run


@dataclass(frozen=True)
class Known:
    """What was known when a token was committed.

    ``drafted`` are the tokens the draft proposed there; ``astray`` what the target predicted after a rejected draft
    token of the row; ``nearby`` all it predicted for any row around that call; ``next_asked`` whether the token
    after was asked for, too.
    """

    drafted: set[int]
    astray: set[int]
    nearby: set[int]
    next_asked: bool


def kind_of(verdict: RowVerdict, index: int, run: Run, known: Known) -> tuple[str, str]:
    """The kind of a wrong row, and a detail in words."""
    expected, observed = verdict.expected, verdict.observed
    pad = run.case.pad_token_id
    swapped = _swapped_with(verdict, run)
    if swapped is not None:
        return "row-swap", f"the row holds exactly what row {swapped} should hold"
    uncut = run.truth.uncut[verdict.row]
    ran_on = len(observed) > len(expected) and observed[: len(uncut)] == uncut[: len(observed)]
    ran_on = ran_on and (len(observed) <= len(uncut) or pad in known.nearby)
    end = ends(expected, observed, run.case.eos_token_ids, -1 if ran_on else pad)
    if end is not None:
        return end
    token, wanted = observed[index], uncut[index:]
    if token in known.drafted:
        return "over-accept", "the emitted token is the draft token that the target rejected"
    if token in known.astray:
        return "wrong-correction", "the emitted token is what the target predicted after a rejected draft token"
    if index and token == observed[index - 1]:
        return "repeated-token", f"new token {index - 1} is emitted twice"
    if token in wanted[1:2] and known.next_asked:
        return "lost-token", f"new token {index} is missing, and the one after it stands in its place"
    for dropped in range(2, len(wanted)):
        if observed[index:][:2] == wanted[dropped:][:2]:
            return "lost-token", f"{dropped} tokens are missing, and the row goes on after them"
    if token == pad and token not in known.nearby and token not in expected:
        return "pad-in-output", f"new token {index} is the pad id"
    return "wrong-correction", "the emitted token is neither the draft token nor the target's prediction there"


def ends(
    expected: tuple[int, ...], observed: tuple[int, ...], eos: tuple[int, ...], pad: int
) -> tuple[str, str] | None:
    """The kind of a row that is right as far as it goes but ends too early or too late; None for any other."""
    if len(observed) < len(expected) and expected[: len(observed)] == observed:
        only_eos = len(observed) == len(expected) - 1 and expected[-1] in eos
        return "premature-stop", "only the EOS that ends the row is missing" if only_eos else (
            f"{len(observed)} of {len(expected)} tokens were emitted, all of them right"
        )
    if len(observed) > len(expected) and observed[: len(expected)] == expected:
        surplus = observed[len(expected) :]
        after_eos = bool(expected) and expected[-1] in eos
        if set(surplus) == {pad}:
            return "pad-in-output", f"the row goes on with {many(len(surplus), 'pad')} after its end"
        if after_eos:
            return "past-eos", f"the row goes on with {many(len(surplus), 'token')} after its EOS"
        return "over-length", f"the row has {many(len(observed), 'token')} where the limit is {len(expected)}"
    return None


def _swapped_with(verdict: RowVerdict, run: Run) -> int | None:
    """Another row whose truth this row emitted; for a single token only if all rows were merely exchanged."""
    assert run.outputs is not None
    exchanged = sorted(run.outputs) == sorted(run.truth.rows)
    if len(verdict.observed) < 2 and not exchanged:
        return None
    for other, truth in enumerate(run.truth.rows):
        if other != verdict.row and truth == verdict.observed:
            return other
    return None
