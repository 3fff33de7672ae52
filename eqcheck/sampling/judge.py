"""One sampled case judged as far as one case can be: the faults that are certain without any statistics."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, NamedTuple

from eqcheck.audit.coverage_words import SAMPLING
from eqcheck.contract.completion import observed_of
from eqcheck.contract.decoders import Generate
from eqcheck.contract.errors import one_line
from eqcheck.contract.options import sampling_of
from eqcheck.core.case.sampling import SampledCase, SampledEngineCase
from eqcheck.core.explanation.notice import INCONCLUSIVE, VACUOUS, Notice
from eqcheck.core.explanation.records import Explanation, many
from eqcheck.core.explanation.statements import ends_early, power, said, state
from eqcheck.core.result import declining, losses
from eqcheck.core.result.findings import Audit, Finding, LawEvidence
from eqcheck.core.result.outcome import DueDrafts, Outcome
from eqcheck.engines.checkpoints import acceptance
from eqcheck.engines.checkpoints.row_judge import Judge, RowJudgement, truth
from eqcheck.engines.conclusions import silent
from eqcheck.engines.drawing import answered
from eqcheck.engines.engine_outcome import returned
from eqcheck.sampling.betting.exclusion import Exclusion
from eqcheck.sampling.betting.laws import Floats, SampledRow
from eqcheck.sampling.betting.naming import Named
from eqcheck.sampling.betting.wealth import DOUBT, VIOLATION, Wealth
from eqcheck.sampling.decode import Mark, Outputs, SampledRun, broken, decode, laws_of, marks, repeated
from eqcheck.transparent.attribution.reading import Reader
from eqcheck.transparent.attribution.token_origins import changed

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
        end = options.end(output)
        if end.kind in kinds:
            statement = {
                "premature-stop": ends_early(len(output), options.max_new_tokens),
                "past-eos": state("goes-on", tokens=end.surplus),
                "over-length": state("too-long", tokens=len(output), limit=options.max_new_tokens),
            }[end.kind]
            read = explained(case, "bookkeeping", end.kind, number, end.first, output, statement.detail)
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
    """The features of a sampled case, by `eqcheck.audit.coverage_words.SAMPLING`, that do not depend on its answer."""
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
    observed = observed_of(answer.get("observed"), len(outputs))
    laws = laws_of(case, outputs, dtype)
    sampled = {number: own.row for number, own in laws.items()}
    ends = wrong_end(case, outputs)
    explanation = (
        ends or _greedy(judge, case, outputs) or impossible(case, sampled, outputs) or told.told_wrongly(judge, case)
    )
    status, raw_drafts = "violation" if explanation else "equivalent", {n: own.raw_draft for n, own in laws.items()}
    rounds = observed.pop("rounds", None)
    due = Counter[DueDrafts]()
    if explanation is None:
        due = acceptance.accepted_of_sampled(case, rounds, sampled, raw_drafts)
    return SampledOutcome(
        case,
        status,
        exact_match=float(not explanation),
        prefix_match=float(not explanation),
        coverage=frozenset([*exercised(case), *answered(case, outputs, observed)]),
        outputs=outputs,
        explanation=explanation,
        observed=observed,
        due=due,
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


# The evidence of many sampled cases, in an audit or where one case is drawn again and again; and how it is told.

NOTHING_SEEN = 10.0
"""A case drawn for ten times the tokens that it took is fixed where the evidence never was more than this."""
LONGER = 10


class Gathered:
    """The evidence of outcomes, in the order in which their cases were drawn; ``eps`` bounds what rounding changes."""

    def __init__(self, eps: float = 0.0) -> None:
        self.eps = eps
        self.wealth, self.outcomes = Wealth(), list[Outcome]()
        self._gains: list[tuple[float, int]] = []

    def add(self, outcome: Outcome) -> None:
        """Let the bets earn on what was decoded."""
        self.outcomes.append(outcome)
        if rows := rows_of(outcome):
            before = self.wealth.log_evidence
            self.wealth.add(rows, outcome.case.regime, self.eps)
            self._gains.append((before - self.wealth.log_evidence, len(self.outcomes) - 1))

    def telling(self) -> list[Outcome]:
        """The outcomes that have sampled tokens; the outcome that adds most to the evidence comes first."""
        return [self.outcomes[number] for _, number in sorted(self._gains)]

    @property
    def impossible(self) -> Outcome | None:
        """The first case with a token that has no probability."""
        kinds = (one for one in self.outcomes if one.explanation and one.explanation.kind == IMPOSSIBLE)
        return next(kinds, None)

    @property
    def crossed(self) -> bool:
        return self.wealth.supremum >= VIOLATION

    @property
    def violated(self) -> bool:
        """Return whether the law is wrong: the evidence says so, or a token that has no probability."""
        return self.crossed or self.impossible is not None

    def exclusion(self) -> Exclusion:
        """The counts that tell which faults the tokens exclude."""
        exclusion = Exclusion()
        for outcome in self.outcomes:
            exclusion.add(rows_of(outcome), outcome.case.regime, self.eps)
        return exclusion

    @property
    def most_telling(self) -> tuple[float, Outcome] | None:
        """The case that adds most to the evidence, and the natural logarithm of that; None without sampled tokens."""
        gain, number = min(self._gains, default=(0.0, None))
        return None if number is None else (-gain, self.outcomes[number])

    def explained(self, cause: Named | None, smallest: Outcome | None = None) -> Outcome:
        """The wrong law explained, on a case with an impossible token or the one that adds most to the evidence.

        ``smallest`` is such a case made small.
        """
        impossible = smallest or self.impossible
        return wrong_law(impossible or self.telling()[0], self.wealth, cause, impossible is not None)


def wrong_law(outcome: Outcome, wealth: Wealth, cause: Named | None, impossible: bool = False) -> Outcome:
    """The wrong law explained, on this case: ``impossible`` says that it has a token without probability."""
    best = wealth.best()
    evidence = f"{wealth.supremum:.2g}"
    # An impossible token needs no evidence over many tokens and stands first; what the bets say comes beside it.
    first = outcome.explanation if impossible else None
    clauses = [cause.words] if cause and cause.words else []
    clauses += [first.detail] if first else []
    if wealth.supremum >= VIOLATION:
        clauses.append(
            f"after {wealth.tokens:,} tokens the evidence (e-value) against the target's distribution is "
            f"{power(wealth.supremum)}; a correct decoder reaches 10^6 in one audit of a million"
        )
        clauses += _hints(wealth) if not cause else []
    unnamed = IMPOSSIBLE if impossible else "stray-law"
    kind = cause.kind if cause else unnamed
    facts: dict[str, int | str] = {"evidence": evidence, "tokens": wealth.tokens, "bet": best[0][0].name}
    if cause and cause.words:
        facts["likelier"] = f"1e{cause.log_factor / math.log(10):.0f}"
    if cause and cause.again:
        facts["again"] = " ".join(f"{one.numbers}:{one.when}" for one in cause.again)
    explanation = replace(first or Explanation("sampling", kind), kind=kind, facts=facts).saying(*clauses)
    return replace(outcome, status="violation", explanation=explanation)


def _hints(wealth: Wealth) -> list[str]:
    """The only kind of case that shows a wrong law without a name.

    The bet that earned most is no hint: where no part of a round leads, the one that wins only happens to lie nearest.
    """
    (most, name), *others = sorted(((log, name) for name, log in wealth.by_regime().items()), reverse=True)
    if (
        others
        and most >= math.log(DOUBT)
        and others[0][0] < math.log(NOTHING_SEEN)
        and f"regime_{name}" in SAMPLING.counters
    ):
        return [f"it shows in one kind of case only: {SAMPLING.counters[f'regime_{name}']}"]
    return []


def rows_of(outcome: Outcome) -> list[SampledRow]:
    """The sampled rows of a case, in the order in which the bets take them."""
    sampled = getattr(outcome, "sampled", {})
    numbers = list(sampled)
    return [replace(row, twin=numbers.index(row.twin) if row.twin in numbers else None) for row in sampled.values()]


def drawn_again(
    case: Any,
    try_case: Callable[[Any], Outcome],
    most: int,
    until: float,
    rng: Random,
    gathered: Gathered | None = None,
) -> Gathered:
    """A case decoded again and again with other chance, until its law is violated or so many tokens are spent.

    ``until`` is on the monotonic clock. A case that fails for another reason, or is declined, ends it as well.
    """
    gathered = gathered or Gathered()
    while not gathered.violated and gathered.wealth.tokens < most and time.monotonic() < until:
        outcome = try_case(case.renewed(rng))
        gathered.add(outcome)
        if not rows_of(outcome) or (outcome.failed and gathered.impossible is None):
            break
    return gathered


# The conclusions from all sampled tokens of one audit or of several shards: verdict, exclusions, omissions.

ENOUGH = 200  # tokens of a regime, below which it says little
REGIMES = "regimes"  # the fact that names the regimes that are drawn


def conclusions(result: Audit) -> None:
    """The verdict of the evidence, what becomes of findings that rest on it, and what a clean audit excludes."""
    wealth = result.wealth or Wealth()
    verdict = wealth.verdict()
    drafts = "no-drafts" not in result.decoder.capabilities
    result.evidence = LawEvidence(
        tokens=wealth.tokens,
        evidence=wealth.evidence,
        greatest=wealth.supremum,
        threshold=VIOLATION,
        verdict=verdict,
        excludes=result.exclusion.sentences(drafts=drafts) if verdict == "equivalent" and result.exclusion else (),
        regimes=dict(wealth.counts),
        course=wealth.course,
    )
    if verdict == "violation":
        result.findings += _seen_together(result, wealth)
    else:
        result.warnings += _doubts(result, wealth)
        result.findings = [replace(one, standing="inconclusive") if of_law(one) else one for one in result.findings]
    if result.decoder.lossless is not True:
        why = one_line(str(result.decoder.lossless), 120)
        result.warnings.append(f"the decoder does not claim to be lossless (lossless=): {why}")
    result.warnings += _vacuous(result, wealth)
    if result.lane == "engine-sampling":
        result.warnings += losses.warnings(losses.due(result.tally.due))
        result.warnings += silent(result.tally) if drafts else []
        result.warnings += declining.too_many(result.tally.declined, result.tally.drawn)


def of_law(finding: Finding) -> bool:
    """Return whether a finding is that of a wrong law, seen by its evidence."""
    return finding.explanation.of_law


def law_finding(outcome: Outcome, tokens: int, count: int, lossless: bool) -> Finding:
    """The finding of a wrong law, shown by this case; it was seen after so many ``tokens``."""
    shown = replace(outcome, case=replace(outcome.case, crosses_after=tokens))
    explanation = shown.explanation
    assert explanation is not None
    seen = (explanation.fingerprint, f"sampling/{IMPOSSIBLE}")
    return Finding(shown, explanation, count=count, standing="violation" if lossless else "discovery", seen=seen)


def _seen_together(result: Audit, wealth: Wealth) -> list[Finding]:
    """The finding of a law that the tokens of several shards show to be wrong, and those of none alone."""
    if result.telling is None or wealth.impossible or any(map(of_law, result.findings)):
        return []
    outcome = wrong_law(result.telling[1], wealth, None)
    return [law_finding(outcome, wealth.crossed or wealth.tokens, 1, result.decoder.lossless is True)]


def _doubts(result: Audit, wealth: Wealth) -> list[str]:
    doubts = []
    alone = sum(map(of_law, result.findings))
    if alone:
        said = (
            f"{many(alone, 'shard')} alone reached {power(VIOLATION)}, all together do not: by chance, as one of many "
        )
        said += "does. Rerun that shard's seed; if it repeats, suspect its machine"
        doubts.append(Notice(said, INCONCLUSIVE))
    if wealth.verdict() == "inconclusive" and wealth.tokens:
        said = f"the evidence against the target's distribution is {power(wealth.evidence)} after {wealth.tokens:,} "
        said += f"tokens: between {DOUBT:g} and the limit {power(VIOLATION)}. Draw more tokens: --budget 10m"
        doubts.append(Notice(said, INCONCLUSIVE))
    return list(doubts)


def _vacuous(result: Audit, wealth: Wealth) -> list[str]:
    few = [name for name in result.facts.get(REGIMES, ()) if wealth.counts.get(name, 0) < ENOUGH]
    if wealth.supremum >= VIOLATION or not few or not result.tally.run:
        return []
    said = f"fewer than {ENOUGH} sampled tokens in the regimes {one_line(', '.join(few), 70)}"
    if profile := result.options.profile:  # it says how few it draws
        return [f"{said}, in profile {profile.name}: an audit without a profile draws more"]
    return [Notice(f"{said}: draw more cases", VACUOUS)]
