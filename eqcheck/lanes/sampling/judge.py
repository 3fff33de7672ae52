"""One sampled case judged as far as one case can be: the faults that are certain without any statistics."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from eqcheck.attribution.reading import Reader
from eqcheck.attribution.returned import changed
from eqcheck.case.sampling import SampledCase, SampledEngineCase
from eqcheck.checkpoints import acceptance
from eqcheck.checkpoints.judge import Judge, RowJudgement, truth
from eqcheck.contract.decoders import Generate
from eqcheck.contract.observed import observed_of
from eqcheck.contract.options import sampling_of
from eqcheck.explanation.records import Explanation
from eqcheck.explanation.statements import ends_early, said, state
from eqcheck.lanes.checkpoint.drawing import answered
from eqcheck.lanes.checkpoint.outcome import returned
from eqcheck.lanes.sampling.decode import Mark, SampledRun, decode, marks
from eqcheck.lanes.sampling.laws import laws_of
from eqcheck.lanes.sampling.seeds import Outputs, broken, repeated
from eqcheck.result.outcome import Outcome
from eqcheck.result.tally import DICTATED, DUE
from eqcheck.sampling.row import Floats, SampledRow

IMPOSSIBLE = "impossible-token"
BY_LAW = (IMPOSSIBLE, "shared-noise")  # a law that is wrong may be the cause of what single cases show
PROMISES = ("seed-ignored", "batch-dependent")  # a law that is wrong is no cause of these: they are promised exactly
OF_CHANCE = (*BY_LAW, *PROMISES)  # in every other case that fails, no token is drawn rightly


@dataclass(frozen=True)
class SampledOutcome(Outcome):
    """``sampled`` has each sampled row with its laws, by number: what the evidence of an audit is made of.

    ``marks`` say where the tokens of each of its rounds came from; of an engine that is not known, and there are
    ``raw_drafts``, the draft's laws without the row's options.
    """

    sampled: Mapping[int, SampledRow] = field(default_factory=dict, compare=False, repr=False)
    marks: Mapping[int, list[list[Mark]]] = field(default_factory=dict, compare=False, repr=False)
    raw_drafts: Mapping[int, Floats] = field(default_factory=dict, compare=False, repr=False)


def try_case(generate: Generate, case: SampledCase, timeout: float | None, *, opinion: bool = False) -> Outcome:
    """Decode and judge one case. A second ``opinion`` is not sought: the next decode would draw other tokens."""
    start = time.monotonic()
    done = decode(generate, case, timeout)
    run, explanation, readable = done.run, done.run.failure, True
    if run.outputs is not None:

        def outputs_of(other: SampledCase) -> Outputs | None:
            return decode(generate, other, timeout).run.outputs

        explanation, readable = certain(done)
        if explanation is None and case.promise != "none":
            explanation = broken(case, run.outputs, outputs_of)
        explanation = explanation or repeated(done, outputs_of)
    status = "skipped" if run.declined else "violation" if explanation else "equivalent"
    return SampledOutcome(
        case,
        status,
        exact_match=float(status == "equivalent"),
        prefix_match=float(status == "equivalent"),
        coverage=frozenset() if run.declined else frozenset(_exercised(done)),
        outputs=run.outputs,
        explanation=explanation,
        traceback=run.failure_text,
        declined=run.declined,
        seconds=time.monotonic() - start,
        **_to_name(done) if readable and (explanation is None or explanation.kind in OF_CHANCE) else {},  # type: ignore[arg-type]
    )


def _to_name(done: SampledRun) -> dict[str, object]:
    """The fields of an outcome with its sampled rows and marks, for the evidence and for naming the wrong part."""
    if done.run.outputs is None:
        return {}
    # Rows that begin alike share contexts, and whose a call is may show by what comes later only: these are not read.
    found = marks(done.run, {number for number in done.rows if _alone(done.case, number)})
    return {"sampled": done.rows, "marks": found}


def _alone(case: SampledCase, number: int) -> bool:
    """Return whether no other row has a prompt that is this row's, or begins it, or goes on with it."""
    prompt = case.prompts[number]
    others = [other for row, other in enumerate(case.prompts) if row != number]
    return not any(prompt[: len(other)] == other[: len(prompt)] for other in others)


class Certain(NamedTuple):
    """The fault that one case shows, if any, and whether its sampled tokens are ``readable``: no context is wrong."""

    explanation: Explanation | None
    readable: bool = True


def certain(done: SampledRun) -> Certain:
    """The first fault that shows whatever chance did: ends of rows, greedy rows, contexts, tokens without probability.

    Of one row, a wrong context and a token without probability come in the order of their places; of one token, and of
    several rows, the context comes first.
    """
    run, case = done.run, done.case
    assert run.outputs is not None
    if early := wrong_end(case, run.outputs, ("premature-stop",)):
        return Certain(early)
    reader = Reader(run)
    read, by_law = reader.explain() or reader.unseen(), impossible(case, done.rows, run.outputs)
    if read is None:
        return Certain(by_law)
    if read.row is not None and case.rows[read.row].temperature:
        # The truth of a sampled row is made of what it emitted: none of it is expected, and none was judged.
        read = _not_cached(done, reader, by_law) or replace(read, expected=None, expected_row=(), basis="")
    return Certain(by_law if by_law and _before(by_law, read) else read, readable=False)


def _before(by_law: Explanation, read: Explanation) -> bool:
    """Return whether a token without probability comes before what was read of its row, so does not come from that."""
    return (
        by_law.row == read.row
        and by_law.token_index is not None
        and read.token_index is not None
        and by_law.token_index < read.token_index
    )


def _not_cached(done: SampledRun, reader: Reader, by_law: Explanation | None) -> Explanation | None:
    """The first sampled token that was returned in place of the one that the decoder went on with."""
    case, outputs = done.case, done.run.outputs or ()
    rows = ((row, changed(done.run, reader.labels, row)) for row in case.sampled)
    first = min(((row, other) for row, other in rows if other), key=lambda pair: pair[1].index, default=None)
    if first is None:
        return None
    row, token = first
    read = explained(case, "bookkeeping", "changed-token", row, token.index, outputs[row], token.statement.detail)
    read = replace(read, facts=token.statement.facts)
    if by_law is None or (by_law.row, by_law.token_index) != (row, token.index):
        return read
    return read.saying(*said(read.facts), by_law.detail)


def wrong_end(
    case: Any, outputs: Sequence[tuple[int, ...]], kinds: Sequence[str] = ("premature-stop", "past-eos", "over-length")
) -> Explanation | None:
    """The first sampled row that ends in one of these wrong ways: too early, behind its EOS, or beyond its limit."""
    for number in case.sampled:
        output, options = outputs[number], case.options[number]
        kind, index = options.wrong_end(output) or ("", 0)
        if kind in kinds:
            statement = {
                "premature-stop": ends_early(len(output), options.max_new_tokens),
                "past-eos": state("goes-on", tokens=len(output) - index),
                "over-length": state("too-long", tokens=len(output), limit=options.max_new_tokens),
            }[kind]
            read = explained(case, "bookkeeping", kind, number, index, output, statement.detail)
            return replace(read, facts=statement.facts)
    return None


def impossible(case: Any, sampled: Mapping[int, SampledRow], outputs: Sequence[tuple[int, ...]]) -> Explanation | None:
    """A token without probability. Rows that one token alone may follow come first: they say what was to come."""
    places = [(number, index) for number, row in sampled.items() for index in row.impossible[:1]]
    for number, index in sorted(places, key=lambda place: sampled[place[0]].p[place[1]].max() < 1)[:1]:
        law, asked = sampled[number].p[index], sampling_of(case.options[number])
        detail = f"new token {index} has probability 0 under the options of request {number} ({asked})"
        only = int(law.argmax()) if law.max() == 1 else None
        if only is not None:
            alone = f"the options of request {number} ({asked}) allow only token {only}"
            detail = f"{alone} as new token {index}: the target's most likely one"
        return replace(explained(case, "sampling", IMPOSSIBLE, number, index, outputs[number], detail), expected=only)
    return None


def explained(
    case: Any, component: str, kind: str, row: int, index: int, output: tuple[int, ...], detail: str
) -> Explanation:
    """The explanation of one row of a sampled case at a new token, where nothing is expected of it."""
    return Explanation(
        component,
        kind,
        row=row,
        token_index=index,
        observed=output[index] if index < len(output) else None,
        detail=detail,
        observed_row=output,
        wrong_rows=(row,),
        tied=True,
        given=case.given(row),
    )


def exercised(case: Any) -> list[str]:
    """The features of a sampled case, by `eqcheck.lanes.about.SAMPLING`, that do not depend on its answer."""
    sampled = [options for options in case.options if options.temperature]
    seen = {
        "sampled_rows": bool(sampled),
        "greedy_among_sampled": 0 < len(sampled) < len(case.options),
        "unequal_options": len({(row.temperature, row.top_k, row.top_p, row.min_p) for row in sampled}) > 1,
        "twins": any(case.twin(number) is not None for number in case.sampled),
        "seeded_rows": bool(case.seeded),
        "cut_laws": any(row.top_k or row.top_p < 1 or row.min_p for row in sampled),
        "answers": any(row.n > 1 for row in sampled),
        f"regime_{case.regime}": True,
    }
    return [name for name, is_so in seen.items() if is_so]


def _exercised(done: SampledRun) -> list[str]:
    case, outputs = done.case, done.run.outputs
    if outputs is None:
        return []
    ends = zip(outputs, case.options, strict=True)
    seen = {
        "pinned_rows": any((row.p.max(-1) == 1).all() for row in done.rows.values() if len(row.p)),
        "ended_by_eos": any(output and output[-1] in options.eos_token_ids for output, options in ends),
    }
    return [*exercised(case), *(name for name, is_so in seen.items() if is_so)]


GREEDY = "greedy-row"
"""The subject of a wrong greedy row of an engine, as long as nobody has looked into it."""


def judged(judge: Judge, dtype: str, case: SampledEngineCase, answer: Mapping[str, Any]) -> Outcome:
    """The outcome of an answer: the message of a worker, with ``outputs`` and what the decoder ``observed``."""
    told = returned(case, answer)
    if told.failure:
        return SampledOutcome(case, "violation", explanation=told.failure)
    outputs = told.outputs
    observed = observed_of(answer.get("observed"), len(outputs), (DICTATED, DUE))
    laws = laws_of(case, outputs, dtype)
    sampled = {number: own.row for number, own in laws.items()}
    ends = wrong_end(case, outputs)
    explanation = (
        ends or _greedy(judge, case, outputs) or impossible(case, sampled, outputs) or told.told_wrongly(judge, case)
    )
    status, raw_drafts = "violation" if explanation else "equivalent", {n: own.raw_draft for n, own in laws.items()}
    rounds = observed.pop("rounds", None)
    if explanation is None:
        kept = acceptance.accepted_of_sampled(case, rounds, sampled, raw_drafts)
        observed |= {f"{DUE}{name}": count for name, count in kept.items()}
    return SampledOutcome(
        case,
        status,
        exact_match=float(not explanation),
        prefix_match=float(not explanation),
        coverage=frozenset([*exercised(case), *answered(case, outputs, observed)]),
        outputs=outputs,
        explanation=explanation,
        observed=observed,
        sampled={} if ends else sampled,
        raw_drafts=raw_drafts,
    )


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
        f"request {seen.row} is greedy, next to sampled ones, and is not what the target returns",
    )
    before = seen.observed[: seen.first]
    row = tuple(truth(case.checkpoint).row(case.rows[seen.row], before)) if seen.expected is not None else ()
    row = row or seen.observed[: seen.first]  # it should have ended there
    return replace(explanation, expected=seen.expected, expected_row=row, subject=GREEDY, tied=False)
