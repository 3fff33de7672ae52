"""One engine case decoded and judged."""

from __future__ import annotations

from dataclasses import dataclass

from eqcheck.lanes.checkpoint.case import EngineCase, Row
from eqcheck.lanes.checkpoint.drawing import exercised
from eqcheck.lanes.checkpoint.judge import Judge, RowJudgement
from eqcheck.workers.spawned import Answer

WRONG_TOKEN = "wrong token"
HELD_BACK, TOO_EARLY = "EOS held back", "EOS too early"  # where the row has a minimum of new tokens


@dataclass(frozen=True)
class EngineOutcome:
    """A case's result. ``rows`` is empty when the engine failed or cannot do what the case asks."""

    case: EngineCase
    answer: Answer
    rows: tuple[RowJudgement, ...] = ()
    coverage: frozenset[str] = frozenset()
    drawn: bool = True  # not of the corpus

    @property
    def wrong(self) -> list[RowJudgement]:
        return [row for row in self.rows if row.first is not None]

    @property
    def status(self) -> str:
        if self.answer.unsupported:
            return "skipped"
        if self.answer.failure or self.wrong:
            return "violation"
        return "tie" if any(row.ties for row in self.rows) else "equivalent"

    @property
    def symptom(self) -> str:
        """What is seen from outside: a crash, a wrong token, or how a row ends; empty for a right answer."""
        if self.answer.failure is not None:
            return self.answer.failure.fingerprint
        kinds = [_symptom(self.case.rows[row.row], row) for row in self.wrong]
        return WRONG_TOKEN if WRONG_TOKEN in kinds else next(iter(kinds), "")

    @property
    def exact_match(self) -> float:
        """Rows that are right, as a share."""
        return sum(row.first is None for row in self.rows) / len(self.rows) if self.rows else 0.0

    @property
    def prefix_match(self) -> float:
        """Leading right tokens as a share of the row, the mean over rows."""
        shares = [1.0 if row.first is None else row.first / max(1, len(row.observed)) for row in self.rows]
        return sum(shares) / len(shares) if shares else 0.0


def judged(judge: Judge, case: EngineCase, answer: Answer) -> EngineOutcome:
    """The outcome of an answer."""
    if answer.outputs is None:
        return EngineOutcome(case, answer)
    covered = frozenset(exercised(case, answer.outputs, answer.observed))
    return EngineOutcome(case, answer, tuple(judge.rows(case, answer.outputs)), covered)


def _symptom(row: Row, seen: RowJudgement) -> str:
    options, first = row.options, seen.first
    assert first is not None
    if seen.expected is None:
        return "bookkeeping/over-length" if first == options.max_new_tokens else "bookkeeping/past-eos"
    if first == len(seen.observed):
        return "bookkeeping/premature-stop"
    if options.min_new_tokens and seen.expected in options.eos_token_ids:
        return HELD_BACK
    if first + 1 <= options.min_new_tokens and seen.observed[first] in options.eos_token_ids:
        return TOO_EARLY
    return WRONG_TOKEN
