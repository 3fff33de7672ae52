"""The situations that a case exercises, told from the case alone before any decoder has seen it, and from a run.

The search prefers cases with features that are still rare. They depend on no decoder, so the same seed gives the same
cases to all of them. The counters of a run let an audit say that it was vacuous.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, combinations, pairwise

from eqcheck.audit.coverage_words import TRANSPARENT
from eqcheck.contract.completion import told
from eqcheck.contract.decoders import Generate
from eqcheck.contract.family import FAMILY
from eqcheck.contract.options import cancelled
from eqcheck.contract.profiles import SIZES
from eqcheck.core.case.record import Case
from eqcheck.core.explanation.notice import VACUOUS, Notice
from eqcheck.core.explanation.records import Explanation
from eqcheck.core.result.conditions import TRAITS
from eqcheck.core.result.declining import lacking, unseen
from eqcheck.core.result.outcome import Outcome
from eqcheck.transparent.attribution.draft_causes import causes_of, explained
from eqcheck.transparent.attribution.labels import packs
from eqcheck.transparent.attribution.leak import with_stale_entries
from eqcheck.transparent.attribution.lost_drafts import all_losses
from eqcheck.transparent.attribution.reading import Reader
from eqcheck.transparent.attribution.story import decode_of, story_of
from eqcheck.transparent.attribution.witnesses import second_opinion, shown_by, variants
from eqcheck.transparent.decoding import Run, Schedule, ScriptedRound, Truth, run
from eqcheck.transparent.hashlm.trace import TARGET
from eqcheck.transparent.oracle import judge

ESSENTIAL = (
    "target_called",
    "ragged_prompts",
    "batched_call",
    "draft_called",
    "ragged_round",
    "all_rejected",
    "eos_inside_block",
)
_SIZES = SIZES[1:]  # that a row may grow past
_ENDS = SIZES[2:]  # that a prompt or a row may just fill
_SPECIAL = ("zero_in_prompt", "zero_emitted", "last_id_in_prompt", "last_id_emitted")
Feature = str | tuple[str, str]


def _of_case(case: Case, truth: Truth) -> dict[str, bool]:
    """The counters that a case raises whatever a decoder does."""
    eos, pad, last = set(case.eos_token_ids), case.pad_token_id, case.vocab_size - 1
    lengths = [len(prompt) for prompt in case.prompts]
    fed, emitted = (set().union(*rows) for rows in (case.prompts, truth.rows))
    relation = _alike(case.prompts)
    totals = [n + len(row) for n, row in zip(lengths, truth.rows, strict=True)]
    # Earlier requests count for shared blocks, too: a cache of prefixes outlives its request.
    longest, shared = max(totals), _shared_blocks([*case.prompts, *chain.from_iterable(e.prompts for e in case.before)])
    return {
        "several_rows": len(lengths) > 1,
        "ragged_prompts": len(set(lengths)) > 1,
        "eos_first": any(row[0] in eos for row in truth.rows),
        "eos_at_limit": any(len(row) == case.max_new_tokens and row[-1] in eos for row in truth.rows),
        "eos_absent": any(row[-1] not in eos for row in truth.rows),
        "eos_in_prompt": bool(eos & fed),
        "several_eos": len(eos) > 1,
        "pad_is_eos": pad in eos,
        "pad_in_prompt": pad in fed,
        "pad_emitted": pad in emitted,
        "pad_outside": pad == case.vocab_size,
        "zero_in_prompt": 0 in fed,
        "zero_emitted": 0 in emitted,
        "last_id_in_prompt": last in fed,
        "last_id_emitted": last in emitted,
        "equal_prompts": relation == "equal",
        "prompt_begins_another": relation == "beginning",
        "stops": any(case.stop_sequences),
        "stopped": any(options.stops_of(row) for options, row in zip(case.options, truth.rows, strict=True)),
        "stop_in_prompt": any(
            stop == prompt[at : at + len(stop)]
            for prompt, stops in zip(case.prompts, case.stop_sequences, strict=False)
            for stop in stops
            for at in range(len(prompt))
        ),
        "tree": bool(case.tree),
        "different_trees": len(set(case.tree)) > 1,
        **{f"row_past_{size}": longest > size for size in _SIZES[1:]},
        **{f"at_end_of_{size}": any(_at_end(n, size) for n in (*lengths, *totals)) for size in _ENDS},
        "between_buckets": len(lengths) > 2 and bool(len(lengths) & (len(lengths) - 1)),
        "shares_first_block": shared[0],
        "shares_later_block": shared[1],
        "repeats_a_token": any(
            one == other
            for prompt, row in zip(case.prompts, truth.rows, strict=True)
            for one, other in pairwise((prompt[-1], *row))
        ),
        "weights_changed": any(earlier.weights != case.weights for earlier in case.before),
    }


def traits(case: Case, truth: Truth) -> tuple[int | str, ...]:
    """Return what may be the condition of a fault, in the order of `TRAITS`; it depends on no decoder."""
    lengths = [len(prompt) for prompt in case.prompts]
    new = [len(row) for row in truth.rows]
    rounds = Schedule(case, truth).rows
    known: dict[str, int | str] = {
        **_of_case(case, truth),
        "family": case.family,
        "padding_side": case.padding_side,
        "cache_state": case.cache_state,
        "rows": len(lengths),
        "num_draft_tokens": case.num_draft_tokens,
        "max_new_tokens": case.max_new_tokens,
        "eos_ids": len(case.eos_token_ids),
        "longest_prompt": max(lengths),
        "shortest_prompt": min(lengths),
        "longest_row": max(map(sum, zip(lengths, new, strict=True))),
        "new_tokens": max(new),
        "rounds": max(map(len, rounds)),
        "goes_on_after_rejection": any(
            own.accepted < case.num_draft_tokens for of_row in rounds for own in of_row if not own.ends
        ),
        "ended_by_eos": any(row[-1] in case.eos_token_ids for row in truth.rows),
        "to_cancel": any(case.cancel_after),
        "logprobs": case.logprobs,
        "all_new_tokens": sum(new),
        "all_tokens": sum(lengths) + sum(new),
        "all_rounds": sum(map(len, rounds)),
    }
    values = [known[name] for name in TRAITS]
    return tuple(value if isinstance(value, str) else int(value) for value in values)


def _at_end(length: int, size: int) -> bool:
    """Return whether a text just fills blocks of a size, or lacks one token to that or has one more."""
    return length >= size - 1 and length % size in (0, 1, size - 1)


def _shared_blocks(prompts: Sequence[tuple[int, ...]]) -> tuple[bool, bool]:
    """Return whether two prompts have the same first block and another second one, and the other way round.

    >>> _shared_blocks([(1, 2, 3, 4, 5, 6, 7, 8, 9), (1, 2, 3, 4, 6, 5, 7, 8, 9)])
    (True, False)
    """
    first = later = False
    for size in SIZES:
        long = {(prompt[:size], prompt[size : 2 * size]) for prompt in prompts if len(prompt) >= 2 * size}
        first |= len({one for one, _ in long}) < len(long)
        later |= len({other for _, other in long}) < len(long)
    return first, later


def _alike(prompts: Sequence[tuple[int, ...]]) -> str:
    """``equal`` where two prompts are, ``beginning`` where one is the beginning of another; else nothing."""
    pairs = list(pairwise(sorted(prompts)))  # the one behind a prompt begins with it, if any does
    if any(prompt == other for prompt, other in pairs):
        return "equal"
    return "beginning" if any(prompt == other[: len(prompt)] for prompt, other in pairs) else ""


def _spreads(rounds: list[list[ScriptedRound]]) -> list[int]:
    """Return how far apart the rows of each round accept."""
    accepted = [[own.accepted for own in of_rows] for of_rows in rounds]
    return [max(counts) - min(counts) for counts in accepted]


def raggedness(rounds: list[list[ScriptedRound]]) -> int:
    """Return how far apart the rows of a round accept, summed over rounds."""
    return sum(_spreads(rounds))


def features(case: Case, truth: Truth, rounds: list[list[ScriptedRound]]) -> list[Feature]:
    """The features that a case will exercise: one name for each trait with its value, and every pair of names."""
    # Numbers are cut to a few steps: each value is a feature that drawing wants to meet, and no decoder tells K = 12
    # from K = 13.
    raised, lengths, spreads = _of_case(case, truth), [len(prompt) for prompt in case.prompts], _spreads(rounds)
    every = list(chain.from_iterable(rounds))
    accepted, ends = {own.accepted for own in every}, {own.ends for own in every}
    early = (of_rows for of_rows in rounds if any(own.ends for own in of_rows) and not all(own.ends for own in of_rows))
    # Numbers are put into steps: each pair of values is a feature, and of exact numbers there would be too many.
    traits = {
        "family": case.family,
        "side": case.padding_side,
        "state": case.cache_state,
        "rows": _step(len(lengths), 1, 2, 3, 4, 8),
        "k": _step(case.num_draft_tokens, 1, 2, 3, 4, 6, 7),
        "rounds": min(len(rounds), 4),
        "lengths": "equal" if len(set(lengths)) == 1 else "near" if max(lengths) - min(lengths) < 3 else "far",
        "spread": min(max(spreads, default=0), 3),
        "ragged rounds": min(sum(map(bool, spreads)), 3),
        "extremes": ("none" if 0 in accepted else "") + ("all" if case.num_draft_tokens in accepted else ""),
        "eos ids": len(case.eos_token_ids),
        "eos in prompt": raised["eos_in_prompt"],
        "eos first": raised["eos_first"],
        "eos at limit": raised["eos_at_limit"],
        "ends early": next((own.ends for of_rows in early for own in of_rows if own.ends), "together"),
        "eos inside": "eos-inside-the-block" in ends,
        "limit inside": any(own.ends == "limit" and own.emitted <= own.accepted for own in every),
        "pad": "eos" if raised["pad_is_eos"] else "p" * raised["pad_in_prompt"] + "e" * raised["pad_emitted"],
        "agreement": case.agreement is not None,
        "new": case.max_new_tokens > 10,
        "crossed": tuple(
            size for size in _SIZES if any(n <= size < n + len(row) for n, row in zip(lengths, truth.rows, strict=True))
        ),
        "blocks filled": any(n % 8 == 0 for n in lengths),
        "alike": (raised["equal_prompts"], raised["prompt_begins_another"]),
        "special ids": tuple(raised[name] for name in _SPECIAL),
    }
    singles = [f"{name}={value}" for name, value in traits.items()]
    return [*singles, *combinations(singles, 2)]


def _step(number: int, *ends: int) -> str:
    """Return which of the ranges up to each of ``ends`` a number is in."""
    return next((f"<={end}" for end in ends if number <= end), f">{ends[-1]}")


def exercised(run: Run) -> set[str]:
    """The counters that one run raises."""
    made = run.trace.made(TARGET)
    raised = _of_case(run.case, run.truth) | {
        "target_called": bool(made),
        "draft_called": bool(run.rounds.drafting or run.trace.heads or run.trace.drafts_told),
        "batched_call": any(len(call.tokens) > 1 for call in made) or packs(run) or _together(run),
        **told(run.completions),
        **cancelled(run.case.options, run.outputs or ()),
    }
    return {name for name, holds in (raised | _of_rounds(run)).items() if holds}


def _together(run: Run) -> bool:
    """Return whether one call answers two rows. Rows count if neither begins as the other:
    such may be read as one another.
    """
    rows = defaultdict[int, set[tuple[int, ...]]](set)
    for own in run.rounds.every:
        rows[own.call.number].add(run.case.prompts[own.row])
    pairs = (pair for prompts in rows.values() for pair in combinations(prompts, 2))
    return any(one[: len(other)] != other[: len(one)] for one, other in pairs)


def _of_rounds(run: Run) -> dict[str, bool]:
    """The counters that the rounds raise; a query with a right context is an accepted token fed, in whatever row."""
    case, truth = run.case, run.truth
    by_eos = {row for row, tokens in enumerate(truth.rows) if tokens[-1] in case.eos_token_ids}
    drafted_eos: set[int] = set()
    off_spine: set[bool] = set()
    answered: dict[int, int] = {}  # by row, the call that answers for its last token
    counts: dict[int, set[int]] = defaultdict(set)
    ranks = Schedule(case, truth).ranks if case.tree else []
    for own in run.rounds.every:
        left = len(truth.rows[own.row]) - own.answered  # new tokens of the row, the answer among them
        if ranks and own.accepted:
            off_spine.update(map(bool, ranks[own.row][max(0, own.known - own.start) : own.answered]))
        if own.proposed:
            counts[own.call.number].add(own.accepted)
        if left <= 1:
            answered.setdefault(own.row, own.call.number)
        if left <= 0 < left + own.accepted and own.row in by_eos:
            drafted_eos.add(own.row)
    # A row that is done may stay in its batch, so the first call that answers for its last token ends it.
    accepted = set().union(*counts.values())
    drafting = [call.number for call in run.rounds.drafting] + [call.number for call in run.trace.heads]
    last = max(answered.values(), default=0)
    # A row ends before others where something is called after it; with drafts, a draft as well, for the others.
    early = {
        row
        for row, call in answered.items()
        if call < last and (not drafting or any(call < number < last for number in drafting))
    }
    return {
        "all_rejected": 0 in accepted,
        "all_accepted": case.num_draft_tokens in accepted,
        "ragged_round": any(len(of_call) > 1 for of_call in counts.values()),
        "eos_before_others": bool(early & by_eos),
        "limit_before_others": bool(early - by_eos),
        "eos_inside_block": bool(drafted_eos),
        "eos_not_drafted": bool(by_eos - drafted_eos),
        "off_spine": True in off_spine,
    }


def vacuous(coverage: dict[str, int], requires: Sequence[str] = ()) -> list[str]:
    """A warning that names the essential counters that stayed at zero; none when there are none.

    The decoder ``requires`` something of all cases: counters that this keeps at zero are not essential.
    """
    missing = [TRANSPARENT.counters[name] for name in unseen(ESSENTIAL, coverage, requires)]
    warnings = [Notice(lacking(missing), VACUOUS)] if missing else []
    if coverage.get("tree") and not coverage.get("off_spine"):
        said = "only first choices of trees were accepted, as in a chain, so no entry had to move: draw more cases"
        warnings.append(Notice(said, VACUOUS))
    return list(warnings)


# One case on the transparent target, decoded and judged.


def luck_of(done: Run) -> tuple[str, str]:
    """The fingerprint of a wrong context behind which a real model is right all the same, and where; or nothing.

    A hash that sees anything else answers anything else, so there it is not looked for.
    """
    if done.outputs is None or not FAMILY[done.case.family].target:
        return "", ""
    unseen = Reader(done).unseen()
    if unseen is None or unseen.query is None or unseen.component == "unattributed":
        return "", ""
    query = unseen.query
    return unseen.fingerprint, f"call {query.call}, batch row {query.call_row}, column {query.column}"


def slots(done: Run) -> tuple[int, int]:
    """Return how many slots the target was handed in all its calls, and how many of them a query saw."""
    calls = done.trace.made(TARGET)
    handed = sum(len(call.visible) * call.visible.shape[2] for call in calls)
    return handed, sum(int(call.visible.any(axis=1).sum()) for call in calls)


def try_case(generate: Generate, case: Case, timeout: float | None, *, opinion: bool = False) -> Outcome:
    """Decode and judge one case; with ``opinion``, try by repair whether its explanation holds, and tell its story."""
    start = time.monotonic()
    done = run(generate, case, timeout)
    verdict = judge(done)
    explanation = verdict.explanation
    if case.before and explanation is not None:
        explanation = with_stale_entries(done, explanation)
    if opinion and explanation is not None:
        explanation = second_opinion(generate, done, explanation, timeout, variants(case))
    return Outcome(
        case,
        verdict.status,
        verdict.exact_match,
        verdict.prefix_match,
        frozenset() if done.declined else frozenset(exercised(done)),
        done.outputs,
        explanation,
        done.failure_text,
        tuple(all_losses(done).items()) if verdict else (),
        causes_of(done) if verdict else (),
        slow_of(generate, done, timeout) if verdict and opinion else None,
        declined=done.declined,
        tied=done.ties,
        luck=luck_of(done) if verdict else ("", ""),
        slots=slots(done) if verdict else (0, 0),
        traits=traits(case, done.truth),
        seconds=time.monotonic() - start,
        story=story_of(done, explanation) if opinion and explanation is not None else None,
    )


def slow_of(generate: Generate, done: Run, timeout: float | None, fingerprint: str = "") -> Explanation | None:
    """Explain a run that is right and lost draft tokens, if the case with other ids shows the same; else return None.

    The first cause is told, or the one with this ``fingerprint``.
    """
    explanation = explained(done, fingerprint)
    if explanation is None:
        return None
    agree = differ = passed = 0
    for case in variants(done.case):
        other = run(generate, case, timeout)
        causes = [cause.fingerprint for cause in causes_of(other)] if judge(other) else []
        agree += explanation.fingerprint in causes
        differ += bool(causes) and explanation.fingerprint not in causes
        passed += not causes and other.outputs is not None
    stable = shown_by(agree, differ, passed) == "stable"
    return replace(explanation, permuted=(agree, differ, passed)) if stable else None


def try_slow(
    generate: Generate, case: Case, timeout: float | None, *, opinion: bool = False, fingerprint: str = ""
) -> Outcome:
    """Decode one case that loses draft tokens by this cause, and explain that one, whatever else it loses."""
    done = run(generate, case, timeout)
    verdict = judge(done)
    return Outcome(case, verdict.status, slow=slow_of(generate, done, timeout, fingerprint) if verdict else None)


def try_calls(
    generate: Generate, case: Case, timeout: float | None, *, opinion: bool = False, explanation: Explanation | None
) -> Outcome:
    """Decode one case, and keep every call of the models as ``observed["calls"]``, with what they explain."""
    done = run(generate, case, timeout)
    return Outcome(case, "skipped", outputs=done.outputs, observed={"calls": decode_of(done, explanation)})
