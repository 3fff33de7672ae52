"""Why an engine's rows are wrong: what the row shows by itself, else what abduction finds, else nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from eqcheck.blackbox.abduction import Abduced, abduce, abduce_options, fits
from eqcheck.blackbox.case import EngineCase
from eqcheck.blackbox.checkpoints import checkpoint
from eqcheck.blackbox.judge import truth
from eqcheck.blackbox.outcome import EngineOutcome
from eqcheck.verdict import Explanation

UNEXPLAINED = "no single edit of what the row saw, of those tried, makes the model emit these tokens"


def explain(outcome: EngineOutcome, larger: Abduced | None = None) -> Explanation:
    """The explanation of a failing case: its own, or that of the larger case it was minimised from, if that fits."""
    if outcome.answer.failure is not None:
        return outcome.answer.failure
    found, where = abduced(outcome), ""
    if found is None and larger is not None and _name(larger) in fits(*_models(outcome), *_decoded(outcome)):
        found, where = larger, ", found on larger or several cases"
    component, kind = (found.component, found.kind) if found else ("unattributed", "unattributed")
    detail = _words(found) + where if found else UNEXPLAINED
    row = outcome.wrong[0]
    index = row.first
    assert index is not None
    expected_row = row.observed[:index]
    if row.expected is not None:
        expected_row = tuple(truth().row(outcome.case.rows[row.row], row.observed[:index]))
    return Explanation(
        component,
        kind,
        row=row.row,
        token_index=index,
        expected=row.expected,
        observed=row.observed[index] if index < len(row.observed) else None,
        detail=detail,
        expected_row=expected_row,
        observed_row=row.observed,
        wrong_rows=tuple(one.row for one in outcome.wrong),
    )


def abduced(outcome: EngineOutcome, alike: Sequence[EngineOutcome] = ()) -> Abduced | None:
    """What abduction says, where it is of one mind about the component.

    ``alike`` are others that fail in the same way and are right once a penalty or minimum is at its default.
    """
    if outcome.answer.outputs is None:
        return None
    found = abduce(*_models(outcome), *_decoded(outcome))
    if (found is None or _open(found)) and alike:
        several = [outcome, *alike]
        found = abduce_options(*_models(outcome), [_decoded(one) for one in several])
        found = found and replace(found, edit=f"{found.edit} (in {len(several)} cases)")
    return None if found is None or _open(found) else found


def _open(found: Abduced) -> bool:
    return any(rival.partition("/")[0] != found.component for rival in found.rivals)


def _name(found: Abduced) -> str:
    return f"{found.component}/{found.kind}"


def _decoded(outcome: EngineOutcome) -> tuple[EngineCase, Sequence[Sequence[int]]]:
    return outcome.case, outcome.answer.outputs or ()


def _models(outcome: EngineOutcome) -> tuple[Any, Any]:
    target, draft = checkpoint().models()
    return target, draft if outcome.case.drafting == "model" else None


def _words(found: Abduced) -> str:
    return (
        f"{found.edit}; explains {found.explained} of {found.surprising} wrong tokens, "
        f"by chance with probability {found.chance:.1g}"
    )
