"""One engine case decoded and judged by its tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from eqcheck.attribution.completions import otherwise, told_wrongly
from eqcheck.case.engine import VOCAB_SIZE, EngineCase, EngineRow
from eqcheck.checkpoints import acceptance, dictation
from eqcheck.checkpoints.judge import BUILT_NOISE, Judge, RowJudgement, truth
from eqcheck.checkpoints.models import checkpoint
from eqcheck.construction.function import VOCABULARY
from eqcheck.contract.completion import Completion, split, told
from eqcheck.contract.escaping import one_line
from eqcheck.contract.observed import observed_of
from eqcheck.contract.options import PAST_STOP
from eqcheck.explanation.records import Explanation
from eqcheck.lanes.checkpoint.drawing import exercised
from eqcheck.result.outcome import NearTie, Outcome
from eqcheck.result.tally import DICTATED, DUE
from eqcheck.result.verdict import check_rows

WRONG_TOKEN = "wrong token"
PASSED = "options/ignored-option:stop-sequences"
HELD_BACK, TOO_EARLY = "EOS-held-back", "EOS-too-early"  # where the row has a minimum of new tokens


@dataclass(frozen=True)
class EngineOutcome(Outcome):
    """A case's result. ``rows`` is empty when the engine failed or cannot do what the case asks.

    ``noise`` is that of the engine's scores of a built checkpoint, at most.
    """

    rows: tuple[RowJudgement, ...] = ()
    noise: float = BUILT_NOISE

    @property
    def wrong(self) -> list[RowJudgement]:
        return [row for row in self.rows if row.first is not None]

    @property
    def ties(self) -> tuple[NearTie, ...]:
        return tuple(tie for row in self.rows for tie in row.ties)

    @property
    def symptom(self) -> str:
        """The look of a case from outside: a crash, a wrong token, or how a row ends; empty for a right answer."""
        if self.explanation is not None:
            return self.explanation.fingerprint
        kinds = [_symptom(self.case.rows[row.row], row) for row in self.wrong]
        return WRONG_TOKEN if WRONG_TOKEN in kinds else next(iter(kinds), "")


class Returned(NamedTuple):
    """The rows of an answer, and the completion of each that came as one; ``failure`` says why they are none."""

    outputs: tuple[tuple[int, ...], ...] = ()
    completions: tuple[Completion | None, ...] = ()
    failure: Explanation | None = None

    def told_wrongly(self, judge: Judge, case: EngineCase) -> Explanation | None:
        """The first completion that tells something wrong of its row, where all rows are right."""
        return told_wrongly(
            self.completions,
            case.prompts,
            case.options,
            self.outputs,
            lambda row: judge.logprobs(case, row, self.outputs[row]),
            lambda row: judge.prompt_logprobs(case, row),
        )

    @property
    def coverage(self) -> set[str]:
        """The counters of what is told beside rows."""
        return {name for name, holds in told(self.completions).items() if holds}


def returned(case: EngineCase, answer: Mapping[str, Any]) -> Returned:
    """The rows of an answer, or the reason why they are none."""
    sampled = any(row.options.temperature for row in case.rows)  # the special ids of a built checkpoint have a chance
    ids = VOCABULARY if sampled and checkpoint(case.checkpoint).built else VOCAB_SIZE
    rows, beside = answer.get("outputs"), answer.get("told")
    try:
        if beside:
            whole = zip(rows or (), beside, strict=True)
            rows = [row if fields is None else Completion(row, **fields) for row, fields in whole]
        tokens, completions = split(rows)
        return Returned(check_rows(tokens, len(case.rows), ids), completions)
    except Exception as error:  # OutputError, or anything that looking at the decoder's answer raises
        failure = Explanation("crash", "invalid-output", detail=one_line(str(error)), subject="outputs")
        return Returned(failure=failure)


def judged(judge: Judge, case: EngineCase, answer: Mapping[str, Any]) -> Outcome:
    """The outcome of an answer: the message of a worker, with ``outputs`` and what the decoder ``observed``."""
    answered = returned(case, answer)
    if answered.failure:
        return EngineOutcome(case, "violation", explanation=answered.failure)
    outputs = answered.outputs
    if case.switch:
        return _switched(case, answered)
    observed, shown = observed_of(answer.get("observed"), len(outputs), (DICTATED, DUE)), set[str]()
    rounds = observed.pop("rounds", None)
    if rounds is not None and case.drafting == "dictated":
        counts, shown = dictation.played(case, outputs, rounds)
        observed |= {f"{DICTATED}{name}": count for name, count in counts.items()}
    rows = tuple(judge.rows(case, outputs))
    if all(row.first is None for row in rows):
        told = acceptance.accepted(case, outputs, {**observed, "rounds": rounds})
        observed |= {f"{DUE}{name}": count for name, count in told.items()}
    if observed.get("wrong_context"):
        shown |= (
            {"wrong_context"} if any(row.first is not None for row in rows) else {"wrong_context", "harmless_context"}
        )
    wrong, ties = [[row for row in rows if row.first is not None], any(row.ties for row in rows)]
    explanation = None if wrong else answered.told_wrongly(judge, case)
    shares = [1.0 if row.first is None else row.first / max(1, len(row.observed)) for row in rows]
    return EngineOutcome(
        case,
        "violation" if wrong or explanation else "tie" if ties else "equivalent",
        exact_match=1 - len(wrong) / len(rows),
        prefix_match=sum(shares) / len(rows),
        coverage=frozenset(exercised(case, outputs, observed) | answered.coverage | shown),
        outputs=outputs,
        explanation=explanation,
        observed=observed,
        rows=rows,
        noise=judge.noise,
    )


def _switched(case: EngineCase, answered: Returned) -> Outcome:
    """The outcome of a case with a switch: its rows are held against the engine's own without drafts."""
    explanation = otherwise(case, answered.completions or (None,) * len(case.rows), answered.outputs)
    alone = [Completion(()) if told is None else told for told in answered.completions]
    plain = truth(case.checkpoint).emitted(case.rows, max(row.options.max_new_tokens for row in case.rows))
    changed = any(
        told.beside or tuple(told.alone["tokens"]) != row.options.cut(right)
        for told, row, right in zip(alone, case.rows, map(tuple, plain), strict=False)
        if told.alone
    )
    right = float(explanation is None)
    return EngineOutcome(
        case,
        "violation" if explanation else "equivalent",
        exact_match=right,
        prefix_match=right,
        coverage=frozenset({"switched", "switch_changed"} if changed else {"switched"}) | answered.coverage,
        outputs=answered.outputs,
        explanation=explanation,
    )


def _symptom(row: EngineRow, seen: RowJudgement) -> str:
    options, first = row.options, seen.first
    assert first is not None
    if seen.end:
        return PASSED if seen.end == PAST_STOP else f"bookkeeping/{seen.end}"
    if options.min_new_tokens and seen.expected in options.eos_token_ids:
        return HELD_BACK
    if first + 1 <= options.min_new_tokens and seen.observed[first] in options.eos_token_ids:
        return TOO_EARLY
    return WRONG_TOKEN
