"""Why an engine's rows are wrong: what the row shows by itself, else what abduction finds, else nothing."""

from __future__ import annotations

from collections.abc import Sequence

from eqcheck.blackbox.abduction import Abduced, abduce
from eqcheck.blackbox.checkpoints import checkpoint
from eqcheck.blackbox.judge import truth
from eqcheck.blackbox.outcome import EngineOutcome
from eqcheck.verdict import Explanation

UNEXPLAINED = "no single edit of what the row saw, of those tried, makes the model emit these tokens"


def explain(outcome: EngineOutcome, others: Sequence[EngineOutcome] = ()) -> Explanation:
    """The explanation of a failing case, the smallest one; ``others`` show the same and may hold more evidence."""
    if outcome.answer.failure is not None:
        return outcome.answer.failure
    found = _abduced(outcome)
    source = ""
    if found is None:
        known = [(other, one) for other in others if (one := _abduced(other)) is not None]
        fingerprints = {f"{one.component}/{one.kind}" for _, one in known}
        if len(fingerprints) == 1:
            other, found = min(known, key=lambda pair: pair[1].chance)
            source = f" (found on the larger case {other.case.id})"
    component, kind = (found.component, found.kind) if found else ("unattributed", "unattributed")
    detail = _words(found) + source if found else UNEXPLAINED
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
    target, draft = checkpoint().models()
    outputs = outcome.answer.outputs or ()
    found = abduce(target, draft if outcome.case.drafting == "model" else None, outcome.case, outputs)
    if found is None or any(rival.partition("/")[0] != found.component for rival in found.rivals):
        return None
    return found


def _words(found: Abduced) -> str:
    return (
        f"{found.edit}; explains {found.explained} of {found.surprising} wrong tokens, "
        f"by chance with probability {found.chance:.1g}"
    )
