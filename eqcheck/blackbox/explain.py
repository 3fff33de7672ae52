"""Why an engine's rows are wrong: what the row shows by itself, else what abduction finds, else nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from eqcheck.blackbox.abduction import Abduced, abduce, abduce_options
from eqcheck.blackbox.checkpoints import checkpoint
from eqcheck.blackbox.judge import truth
from eqcheck.blackbox.outcome import EngineOutcome
from eqcheck.verdict import Explanation

UNEXPLAINED = "no single edit of what the row saw, of those tried, makes the model emit these tokens"


def explain(outcome: EngineOutcome, alike: Sequence[EngineOutcome] = ()) -> Explanation:
    """The explanation of a failing case.

    ``alike`` are others that fail in the same way and are right once a penalty or minimum is at its default.
    """
    if outcome.answer.failure is not None:
        return outcome.answer.failure
    found = _abduced(outcome)
    if found is None and alike:
        several = [outcome, *alike]
        decoded = [(one.case, one.answer.outputs or ()) for one in several]
        found = abduce_options(*_models(outcome), decoded)
        found = found and replace(found, edit=f"{found.edit} (in {len(several)} cases)")
    component, kind = (found.component, found.kind) if found else ("unattributed", "unattributed")
    detail = _words(found) if found else UNEXPLAINED
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


def _abduced(outcome: EngineOutcome) -> Abduced | None:
    """What abduction says, where it is of one mind about the component."""
    found = abduce(*_models(outcome), outcome.case, outcome.answer.outputs or ())
    if found is None or any(rival.partition("/")[0] != found.component for rival in found.rivals):
        return None
    return found


def _models(outcome: EngineOutcome) -> tuple[Any, Any]:
    target, draft = checkpoint().models()
    return target, draft if outcome.case.drafting == "model" else None


def _words(found: Abduced) -> str:
    return (
        f"{found.edit}; explains {found.explained} of {found.surprising} wrong tokens, "
        f"by chance with probability {found.chance:.1g}"
    )
