"""One engine case decoded and judged by its tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from eqcheck.contract.completion import REFUSED, Completion, observed_of, split, told
from eqcheck.contract.endings import EARLY, PAST_STOP
from eqcheck.contract.errors import one_line
from eqcheck.contract.kinds import FINGERPRINTS
from eqcheck.contract.options import options_of
from eqcheck.core.case.engine import PAD, VOCAB_SIZE, EngineCase, EngineRow
from eqcheck.core.explanation.records import Explanation, Given
from eqcheck.core.explanation.statements import NOTHING, Statement, state, together
from eqcheck.core.result.outcome import DictatedRounds, DueDrafts, NearTie, Outcome, RowVerdict, check_rows
from eqcheck.engines.abduction import EDITS, Abduced, Evidence, abduce, abduce_alike, abduce_options, fits
from eqcheck.engines.abduction.output_edits import lent
from eqcheck.engines.checkpoints import acceptance, dictation
from eqcheck.engines.checkpoints.folders import checkpoint
from eqcheck.engines.checkpoints.row_judge import BUILT_NOISE, Judge, RowJudgement, truth
from eqcheck.engines.construction.function import VOCABULARY
from eqcheck.engines.drawing import exercised
from eqcheck.transparent.attribution.bookkeeping import otherwise, prompt_returned, told_wrongly

HELD_BACK, TOO_EARLY = "EOS-held-back", "EOS-too-early"  # where the row has a minimum of new tokens


class Look(NamedTuple):
    """The look of a wrong row by itself: its name, and component, kind and subject where it shows them."""

    name: str
    component: str = ""
    kind: str = ""
    subject: str = ""

    @property
    def symptom(self) -> str:
        return f"{self.component}/{self.name}" if self.component else self.name


WRONG_TOKEN = Look("wrong token")
_PASSED = Look("ignored-option:stop-sequences", "options", "ignored-option", "stop-sequences")
_REFUSED = Look(f"{EARLY}:{REFUSED}", "bookkeeping", EARLY, REFUSED)


@dataclass(frozen=True)
class EngineOutcome(Outcome):
    """A case's result. ``rows`` is empty when the engine failed or cannot do what the case asks.

    ``noise`` is that of the engine's scores of a built checkpoint, at most; ``refused`` are the rows that it ended with
    an error.
    """

    rows: tuple[RowJudgement, ...] = ()
    noise: float = BUILT_NOISE
    refused: tuple[int, ...] = ()

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
        return self.look.symptom if self.look else ""

    @property
    def look(self) -> Look | None:
        """The look of the wrong rows, a wrong token before others; None where none is wrong or the cause is known."""
        wrong = self.wrong if self.explanation is None else []
        looks = [_look(self.case.rows[row.row], row, row.row in self.refused) for row in wrong]
        return WRONG_TOKEN if WRONG_TOKEN in looks else next(iter(looks), None)


def wrong_token(outcome: Outcome) -> bool:
    """Return whether nothing but a wrong token is seen of a failing case."""
    return isinstance(outcome, EngineOutcome) and outcome.look == WRONG_TOKEN


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
    def refused(self) -> tuple[int, ...]:
        """The rows that the engine ended with an error."""
        return tuple(n for n, told in enumerate(self.completions) if told and told.finish_reason == REFUSED)

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
    observed, shown = observed_of(answer.get("observed"), len(outputs)), set[str]()
    dictated, due = Counter[DictatedRounds](), Counter[DueDrafts]()
    rounds = observed.pop("rounds", None)
    if rounds is not None and case.drafting == "dictated":
        dictated, shown = dictation.played(case, outputs, rounds)
    rows = tuple(judge.rows(case, outputs))
    # Wrong tokens come first: what a completion tells of its row counts only where all rows are right.
    wrong, ties = [row for row in rows if row.first is not None], any(row.ties for row in rows)
    if not wrong:
        due = acceptance.accepted(case, outputs, {**observed, "rounds": rounds})
    if observed.get("wrong_context"):
        shown |= {"wrong_context"} if wrong else {"wrong_context", "harmless_context"}
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
        dictated=dictated,
        due=due,
        rows=rows,
        noise=judge.noise,
        refused=answered.refused,
    )


def part_of(whole: EngineOutcome, case: EngineCase, start: int, answer: Mapping[str, Any]) -> EngineOutcome:
    """The outcome of a case whose rows were decoded with others, and are right: they begin at ``start`` in the whole.

    ``answer`` is what the engine returned for them; counts of the whole batch are left out.
    """
    answered = returned(case, answer)
    rows = tuple(
        replace(seen, row=number, ties=tuple(replace(tie, row=number) for tie in seen.ties))
        for number, seen in enumerate(whole.rows[start : start + len(case.rows)])
    )
    return EngineOutcome(
        case,
        "tie" if any(row.ties for row in rows) else "equivalent",
        exact_match=1.0,
        prefix_match=1.0,
        coverage=frozenset(exercised(case, answered.outputs, {}) | answered.coverage),
        outputs=answered.outputs,
        history=whole.history,
        rows=rows,
        noise=whole.noise,
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


def _look(row: EngineRow, seen: RowJudgement, refused: bool) -> Look:
    options, first = row.options, seen.first
    assert first is not None
    if seen.end == EARLY and refused:
        return _REFUSED
    if seen.end:
        return _PASSED if seen.end == PAST_STOP else Look(seen.end, "bookkeeping", seen.end)
    if options.min_new_tokens and seen.expected in options.eos_token_ids:
        return Look(HELD_BACK)
    if first + 1 <= options.min_new_tokens and seen.observed[first] in options.eos_token_ids:
        return Look(TOO_EARLY)
    return WRONG_TOKEN


# The cause of an engine's wrong rows: as the row shows it by itself, else as abduction finds it, else none.

_FEW = 4  # rows of a case that are all told where the others may matter
UNEXPLAINED = "none of the explanations that were tried gives exactly these tokens"


def explain(
    outcome: Outcome, cause: Abduced | None, unexplained: str = UNEXPLAINED, left: Statement = NOTHING
) -> Explanation:
    """The explanation of a failing case by the cause that abduction found; ``unexplained`` says why there is none.

    ``left`` says which rows change the first wrong one, though they had ended before it arrived.
    """
    if not isinstance(outcome, EngineOutcome) or outcome.explanation is not None:
        assert outcome.explanation is not None
        return outcome.explanation
    component, kind = (cause.component, cause.kind) if cause else ("unattributed", "unattributed")
    search, statement = (cause.search, NOTHING) if cause else (None, Statement(unexplained, {}))
    if not cause and left is not NOTHING:
        component, kind, statement = "state", "leaks-from-earlier-request", left
    # A cause that was searched for is named after its edit; a case that nobody can explain, after how it looks.
    look = outcome.look or WRONG_TOKEN
    subject = "" if cause or look == WRONG_TOKEN else look.name
    if (look.component, look.kind) == (component, kind):
        subject = look.subject
    if search and search.surprising:
        subject = search.edit.partition(":")[0]
    row = outcome.wrong[0]
    if context := read(outcome):
        (component, kind), search, subject = context[0].split("/"), None, ""
        statement = Statement(f"read inside the engine: {context[1]}", {})
    elif whole := _returned_whole(outcome):
        component, kind, search, subject, statement = "bookkeeping", "prompt-in-output", None, "", whole[1]
        row = next(row for row in outcome.wrong if row.row == whole[0].row)
    elif search and search.edit.startswith("option-of-others:"):
        statement = _whose_option(outcome, row.row, search.edit.partition(":")[2].replace("-", "_"))
    if row.row in outcome.refused:
        statement = _with_error(statement, row)
    index = row.first
    assert index is not None
    request = outcome.case.rows[row.row]
    expected_row = row.observed[:index]
    if row.expected is not None:
        expected_row = tuple(truth(outcome.case.checkpoint).row(request, row.observed[:index]))
    return Explanation(
        component,
        kind,
        row=row.row,
        token_index=index,
        expected=row.expected,
        observed=row.observed[index] if index < len(row.observed) else None,
        detail=statement.detail,
        facts=statement.facts,
        expected_row=expected_row,
        observed_row=row.observed,
        wrong_rows=tuple(one.row for one in outcome.wrong),
        given=_given(outcome.case, row.row, cause is None or kind == "wrong-row"),
        search=search,
        subject=subject,
    )


def _whose_option(outcome: EngineOutcome, number: int, name: str) -> Statement:
    """The statement whose option a row got, and from which token on; nothing where no single one explains the row."""
    other = lent(evidence(outcome), number, name)
    if other is None:
        return NOTHING
    rows = " ".join(map(str, other.rows))
    facts: dict[str, int | str] = {"lent_to": number, "lent_rows": rows, "since": other.since}
    said = state("option-lent" if other.throughout else "option-lent-at-times", **facts, option=name)
    return together(said, state("lent-alike")) if len(other.rows) > 1 else said


def _with_error(statement: Statement, row: RowJudgement) -> Statement:
    """The statement, and that the engine ended the row with an error."""
    refused = state("refused" if row.end == EARLY else "refused-behind", emitted=len(row.observed))
    if "statement" in statement.facts:
        return together(statement, refused)
    return refused._replace(detail=f"{statement.detail}; {refused.detail}") if statement.detail else refused


def _given(case: EngineCase, number: int, needed: bool) -> Given:
    """A row as it was asked; the others, too, where options are unequal, for these may have been taken.

    Also where a few of them may be ``needed`` to be wrong.
    """
    asked = [(row.prompt, row.options, options_of(row.options)) for row in case.rows]
    rows = [Given(prompt, None, o.eos_token_ids, None, o.max_new_tokens, None, said) for prompt, o, said in asked]
    own = replace(rows[number], pad_token_id=PAD, num_draft_tokens=case.num_draft_tokens)
    told = len({said for _, _, said in asked}) > 1 or (needed and 1 < len(rows) <= _FEW)
    return replace(own, rows=tuple(rows) if told else (), requests=len(rows))


def read(outcome: Outcome) -> tuple[str, str] | None:
    """The first wrong context that was read inside the engine: its kind by fingerprint, and what was seen."""
    told = outcome.observed.get("wrong_context")
    if not isinstance(told, list | tuple) or len(told) != 2 or told[0] not in FINGERPRINTS:
        return None
    return str(told[0]), one_line(str(told[1]))


def left_behind(outcome: Outcome, decode: Callable[[EngineCase], Outcome]) -> Statement:
    """The statement that the first wrong row changes with prompts of rows that had ended before it arrived, if so.

    A fault that comes with the number or the place of rows stays the same with other prompts.
    """
    case = outcome.case
    if not isinstance(outcome, EngineOutcome) or outcome.look != WRONG_TOKEN or case.token_budget or case.kv_blocks:
        return NOTHING
    number = outcome.wrong[0].row
    due = [row.options.arrival + row.options.max_new_tokens for row in case.rows]
    latest = case.rows[number].options.arrival - len(case.rows)  # each row may wait for a step
    gone = [row for row, step in enumerate(due) if step < latest]
    ids = [tuple((token + VOCAB_SIZE // 3) % VOCAB_SIZE for token in row.prompt) for row in case.rows]
    rows = [replace(case.rows[row], prompt=ids[row]) if row in gone else case.rows[row] for row in range(len(ids))]
    other = decode(replace(case, rows=tuple(rows))) if gone else outcome
    if other.outputs is None or other.outputs[number] == outcome.wrong[0].observed:
        return NOTHING
    steps = case.rows[number].options.arrival - max(due[row] for row in gone)
    return state("left-behind", gone=" ".join(map(str, gone)), steps=steps)


def _returned_whole(outcome: EngineOutcome) -> tuple[RowVerdict, Statement] | None:
    """Return whether every wrong row is its prompt and what the target emits."""
    rows = outcome.case.rows
    wrong = [
        RowVerdict(one.row, tuple(truth(outcome.case.checkpoint).row(rows[one.row])), tuple(one.observed))
        for one in outcome.wrong
        if one.observed[: len(rows[one.row].prompt)] == rows[one.row].prompt
    ]
    if len(wrong) < len(outcome.wrong):
        return None
    return prompt_returned([row.prompt for row in rows], wrong, [row.options.max_new_tokens for row in rows], PAD)


@lru_cache(maxsize=48)  # more than the cases like one that are looked at together
def _evidence(case: EngineCase, outputs: tuple[tuple[int, ...], ...], noise: float) -> Evidence:
    pair = checkpoint(case.checkpoint)
    target, draft = (model.function for model in pair.built) if pair.built else pair.models()
    return Evidence(target, draft if case.drafting == "model" else None, case, outputs, noise=noise)


def evidence(outcome: Outcome) -> Evidence:
    """The evidence of an outcome, made once."""
    noise = outcome.noise if isinstance(outcome, EngineOutcome) else BUILT_NOISE
    return _evidence(outcome.case, outcome.outputs or (), noise)


def abduced(outcome: Outcome) -> Abduced | None:
    """The finding of abduction, where it is of one mind about the component."""
    if outcome.outputs is None:
        return None
    cause = _agreed(abduce(evidence(outcome)))
    # Whatever does not apply an option where it forbids a token explains that token: which edit it is, is not known.
    if cause and cause.component == "options" and cause.search.surprising and not cause.search.chance:
        edit = EDITS["forbidding-option-ignored"]
        return replace(cause, search=replace(cause.search, edit=edit.id, words=edit.words))
    return cause


def fitting(outcome: Outcome, elsewhere: Sequence[Abduced], partly: bool = False) -> Abduced | None:
    """Return the first finding of another case that explains every wrong token of this one; see `fits`."""
    known = [one for found in elsewhere for one in (found, *found.also)]
    fit = fits(evidence(outcome), [one.search.edit for one in known], partly) if known else set()
    return next((one for one in known if one.search.edit in fit), None)


def common(outcomes: Sequence[Outcome]) -> Abduced | None:
    """The explanation of the first of some wrong cases that are alike, if it is sure enough by all of them."""
    return _agreed(abduce_alike(list(map(evidence, outcomes))))


def misused(outcomes: Sequence[Outcome]) -> Abduced | None:
    """The wrong use of an option that explains the wrong tokens of cases that need it; the first one is wrong."""
    return _agreed(abduce_options(list(map(evidence, outcomes))))


def _agreed(found: Abduced | None) -> Abduced | None:
    return None if found is None or found.open else found
