"""One sampled case of an engine, judged as far as one case can be: what is certain without any statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from eqcheck.case.engine import VOCAB_SIZE
from eqcheck.case.sampling import SampledEngineCase, twins
from eqcheck.checkpoints.judge import Judge, RowJudgement, truth
from eqcheck.contract.errors import OutputError
from eqcheck.contract.escaping import one_line
from eqcheck.explanation.records import Explanation
from eqcheck.lanes.checkpoint.sampling.laws import laws_of
from eqcheck.lanes.sampling.judge import exercised, explained, impossible
from eqcheck.result.outcome import Outcome
from eqcheck.result.verdict import check_rows
from eqcheck.sampling.row import Floats, SampledRow

GREEDY = "greedy-row"
"""The subject of a wrong greedy row, as long as nobody has looked into it."""


@dataclass(frozen=True)
class SampledEngineOutcome(Outcome):
    """``sampled`` has each sampled row with its laws, by number, ``raw_drafts`` the draft's without its options."""

    sampled: Mapping[int, SampledRow] = field(default_factory=dict, compare=False, repr=False)
    raw_drafts: Mapping[int, Floats] = field(default_factory=dict, compare=False, repr=False)


def judged(judge: Judge, dtype: str, case: SampledEngineCase, answer: Mapping[str, Any]) -> Outcome:
    """The outcome of an answer: the message of a worker, with ``outputs`` and what the decoder ``observed``."""
    try:
        outputs = check_rows(answer.get("outputs"), len(case.rows), VOCAB_SIZE)
    except OutputError as error:
        failure = Explanation("crash", "invalid-output", detail=one_line(str(error)), subject="outputs")
        return SampledEngineOutcome(case, "violation", explanation=failure)
    observed = answer.get("observed") or {}
    laws = laws_of(case, outputs, dtype)
    sampled = {number: own.row for number, own in laws.items()}
    ends = _ends(case, outputs)
    explanation = ends or _greedy(judge, case, outputs) or impossible(case, sampled, outputs)
    status = "violation" if explanation else "equivalent"
    return SampledEngineOutcome(
        case,
        status,
        exact_match=float(not explanation),
        prefix_match=float(not explanation),
        coverage=frozenset(_exercised(case, outputs, observed)),
        outputs=outputs,
        explanation=explanation,
        observed=observed,
        sampled={} if ends else sampled,
        raw_drafts={number: own.raw_draft for number, own in laws.items()},
    )


def _ends(case: SampledEngineCase, outputs: Sequence[tuple[int, ...]]) -> Explanation | None:
    """A sampled row that ends too early, too late, or not at its EOS."""
    for number in case.sampled:
        output, options = outputs[number], case.rows[number].options
        if end := options.wrong_end(output):
            kind, index = end
            details = {
                "over-length": f"has {len(output)} new tokens, its limit is {options.max_new_tokens}",
                "past-eos": f"has {len(output) - index} tokens behind its EOS",
                "premature-stop": f"ends after {len(output)} of {options.max_new_tokens} tokens, without an EOS",
            }
            return explained(case, "bookkeeping", kind, number, index, output, f"row {number} {details[kind]}")
    return None


def _greedy(judge: Judge, case: SampledEngineCase, outputs: Sequence[tuple[int, ...]]) -> Explanation | None:
    """A greedy row among sampled ones that is not what the target emits."""
    numbers = [number for number in range(len(case.rows)) if number not in case.sampled]
    if not numbers:
        return None
    wrong = [
        replace(one, row=number)
        for number, one in zip(numbers, judge.rows(case.of(numbers), [outputs[n] for n in numbers]), strict=True)
        if one.first is not None
    ]
    return _wrong(case, wrong[0]) if wrong else None


def _wrong(case: SampledEngineCase, seen: RowJudgement) -> Explanation:
    assert seen.first is not None
    explanation = explained(
        case,
        "unattributed",
        "unattributed",
        seen.row,
        seen.first,
        seen.observed,
        f"row {seen.row} is greedy, beside sampled rows, and is not what the target emits",
    )
    row = tuple(truth().row(case.rows[seen.row], seen.observed[: seen.first])) if seen.expected is not None else ()
    row = row or seen.observed[: seen.first]  # it should have ended there
    return replace(explanation, expected=seen.expected, expected_row=row, subject=GREEDY, tied=False)


def _exercised(
    case: SampledEngineCase, outputs: Sequence[tuple[int, ...]], observed: Mapping[str, Any]
) -> Sequence[str]:
    """The features that a case exercised, by `eqcheck.lanes.about.CHECKPOINT`."""
    rows = range(len(case.rows))
    seen = {
        "ended_by_eos": any(
            output and output[-1] in row.options.eos_token_ids and len(output) < row.options.max_new_tokens
            for row, output in zip(case.rows, outputs, strict=True)
        ),
        "drafted": observed.get("drafted", 0) > 0,
        "accepted": observed.get("accepted", 0) > 0,
        "rejected": observed.get("drafted", 0) > observed.get("accepted", 0),
    }
    pairs = any(twins(case, i, j) for j in rows for i in range(j))
    return [*exercised(case, pairs), *(name for name, is_so in seen.items() if is_so)]
