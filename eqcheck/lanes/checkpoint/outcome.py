"""One engine case decoded and judged by its tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eqcheck.case.engine import VOCAB_SIZE, EngineCase, EngineRow
from eqcheck.checkpoints import dictation
from eqcheck.checkpoints.judge import Judge, RowJudgement
from eqcheck.contract.errors import OutputError
from eqcheck.contract.escaping import one_line
from eqcheck.explanation.records import Explanation
from eqcheck.lanes.checkpoint.drawing import exercised
from eqcheck.result.outcome import Outcome
from eqcheck.result.tally import DICTATED
from eqcheck.result.verdict import check_rows

WRONG_TOKEN = "wrong token"
HELD_BACK, TOO_EARLY = "EOS-held-back", "EOS-too-early"  # where the row has a minimum of new tokens


@dataclass(frozen=True)
class EngineOutcome(Outcome):
    """A case's result. ``rows`` is empty when the engine failed or cannot do what the case asks."""

    rows: tuple[RowJudgement, ...] = ()

    @property
    def wrong(self) -> list[RowJudgement]:
        return [row for row in self.rows if row.first is not None]

    @property
    def ties(self) -> int:
        return sum(len(row.ties) for row in self.rows)

    @property
    def symptom(self) -> str:
        """The look of a case from outside: a crash, a wrong token, or how a row ends; empty for a right answer."""
        if self.explanation is not None:
            return self.explanation.fingerprint
        kinds = [_symptom(self.case.rows[row.row], row) for row in self.wrong]
        return WRONG_TOKEN if WRONG_TOKEN in kinds else next(iter(kinds), "")


def returned(case: EngineCase, answer: Mapping[str, Any]) -> tuple[tuple[tuple[int, ...], ...], Explanation | None]:
    """The rows of an answer, or the reason why they are none."""
    try:
        return check_rows(answer.get("outputs"), len(case.rows), VOCAB_SIZE), None
    except OutputError as error:
        return (), Explanation("crash", "invalid-output", detail=one_line(str(error)), subject="outputs")


def judged(judge: Judge, case: EngineCase, answer: Mapping[str, Any]) -> Outcome:
    """The outcome of an answer: the message of a worker, with ``outputs`` and what the decoder ``observed``."""
    outputs, failure = returned(case, answer)
    if failure:
        return EngineOutcome(case, "violation", explanation=failure)
    observed, shown = dict(answer.get("observed") or {}), set[str]()
    rounds = observed.pop("rounds", None)
    if rounds is not None and case.drafting == "dictated":
        counts, shown = dictation.played(case, outputs, rounds)
        observed |= {f"{DICTATED}{name}": count for name, count in counts.items()}
    rows = tuple(judge.rows(case, outputs))
    if observed.get("wrong_context"):
        shown |= (
            {"wrong_context"} if any(row.first is not None for row in rows) else {"wrong_context", "harmless_context"}
        )
    wrong, ties = [[row for row in rows if row.first is not None], any(row.ties for row in rows)]
    shares = [1.0 if row.first is None else row.first / max(1, len(row.observed)) for row in rows]
    return EngineOutcome(
        case,
        "violation" if wrong else "tie" if ties else "equivalent",
        exact_match=1 - len(wrong) / len(rows),
        prefix_match=sum(shares) / len(rows),
        coverage=frozenset(exercised(case, outputs, observed) | shown),
        outputs=outputs,
        observed=observed,
        rows=rows,
    )


def _symptom(row: EngineRow, seen: RowJudgement) -> str:
    options, first = row.options, seen.first
    assert first is not None
    if seen.end:
        return f"bookkeeping/{seen.end}"
    if options.min_new_tokens and seen.expected in options.eos_token_ids:
        return HELD_BACK
    if first + 1 <= options.min_new_tokens and seen.observed[first] in options.eos_token_ids:
        return TOO_EARLY
    return WRONG_TOKEN
