"""The conclusions from all counts of an audit or of several shards: facts, warnings, and where a cause shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from eqcheck.audit.coverage_words import TRANSPARENT, in_axis
from eqcheck.contract.decoders import CACHE_STATES
from eqcheck.contract.errors import one_line
from eqcheck.contract.family import FAMILY
from eqcheck.core.explanation.condition_words import ENDS, Restriction, ended_by, in_words
from eqcheck.core.explanation.records import many
from eqcheck.core.result import declining
from eqcheck.core.result.conditions import BY_CHANCE, conditions
from eqcheck.core.result.findings import ENOUGH_TO_CALL_STALE, Audit, Finding
from eqcheck.core.result.tally import ENDS_EARLY, Alike, Untried, gathered_by_chance
from eqcheck.transparent.attribution.bookkeeping import Ending, endings
from eqcheck.transparent.attribution.lost_drafts import all_warnings, but_for_windows, by_cause, lost, settled
from eqcheck.transparent.coverage import vacuous

_ENOUGH = 5  # failing cases that all show what may be chance in one
_NEARLY_ALL = 0.9  # of the failing cases
Places = Counter[tuple[str, str]]  # of so many cases, by axis and value


def conclusions(result: Audit) -> None:
    """Draw conclusions from the counts and the findings of ``result`` into its facts and warnings."""
    tally = result.tally
    unminimised = sum(not finding.minimised for finding in (*result.violations, *result.discoveries))
    if unminimised and not (result.interrupted or result.internal):
        said = f"the time ended before {many(unminimised, 'violation')} could be made small"
        result.warnings.append(f"{said}: give the audit more time (--budget)")
    keeps_state = any(finding.explanation.component == "state" for finding in result.findings)
    if result.doubtful and not keeps_state:  # what does not repeat once may not the next time either
        result.findings = [replace(finding, standing="inconclusive") for finding in result.findings]
    result.findings = with_tokens(result, with_axes(result))
    result.vacuous = bool(tally.run) and not result.coverage.get("target_called")
    losses = but_for_windows(tally.losses, tally.lost)
    result.facts |= {
        "reached": {**dict.fromkeys(TRANSPARENT.reached, 0), **tally.reached},
        "matrix": _matrix(result),
        "cache_states": _cache_states(result),
        "draft_losses": dict(sorted(settled(losses).items())),
        "draft_loss": lost(losses),
    }
    result.warnings += _about_claims(result)


def with_axes(result: Audit) -> list[Finding]:
    """The findings with the axes on which the cases lie that show them, beside the right cases.

    A finding of several shards has its failing cases by axis already: in each, they count with one finding.
    """
    slow = [finding for finding in result.findings if finding.standing == "slow"]  # their cases do not fail
    return [_with_axes(result, finding) for finding in result.findings if finding not in slow] + slow


def with_tokens(result: Audit, findings: list[Finding]) -> list[Finding]:
    """The findings, those of lost draft tokens with how many were lost, as far as they are told of all cases."""
    tally = result.tally
    told, allowed = by_cause(tally.losses, tally.lost), settled(tally.losses)["allowed"]
    return [
        replace(finding, tokens=(told.get(finding.fingerprint, 0), allowed)) if finding.standing == "slow" else finding
        for finding in findings
        if finding.standing != "slow" or finding.fingerprint in told
    ]


def _with_axes(result: Audit, finding: Finding) -> Finding:
    claimed = result.claims(finding.case)

    def places(holds: Callable[[Alike], bool]) -> Places:
        return result.tally.places(lambda one: one.claimed == claimed and not one.declined and holds(one))

    run, right = places(lambda one: True), places(lambda one: not one.symptom)
    failing = Counter(
        {(axis, value): failed for axis, values in finding.axes.items() for value, (failed, _) in values.items()}
    ) or places(lambda one: bool(one.symptom) and one.symptom in finding.seen)
    crashing = places(lambda one: one.crashed and one.symptom not in finding.seen)
    placed = [one for one in result.tally.placed if one.claimed == claimed]
    restrictions = conditions(
        [one for one in placed if one.symptom and one.symptom in finding.seen],
        [one for one in placed if not one.symptom],
        finding.outcome.traits,
    )
    hidden = _cases(run) - _cases(right) - _cases(failing)
    only = (*told(restrictions, failing, right, hidden, crashing), *_ends(result, finding))
    return replace(finding, axes=table(failing, run), only=only)


def _cases(places: Places) -> int:
    """Return how many cases are counted: each has one family."""
    return sum(count for (axis, _), count in places.items() if axis == "family")


def table(failing: Places, run: Places) -> dict[str, dict[str, tuple[int, int]]]:
    """Return per axis and value ``(failing cases, cases run)``; the failing ones are among those run."""
    counts: dict[str, dict[str, tuple[int, int]]] = {axis: {} for axis in TRANSPARENT.axes}
    for axis, value in sorted(run):
        counts[axis][value] = failing[axis, value], run[axis, value]
    return counts


def told(
    restrictions: Sequence[Restriction], failing: Places, right: Places, hidden: int = 0, crashing: Places | None = None
) -> list[str]:
    """The conditions that were found, in words, and what cannot be said of others.

    ``right`` are the cases that do not fail; ``hidden`` others fail otherwise, which may hide this failure. Of values
    on which each case is among the ``crashing`` ones nothing is known.
    """
    crashing = crashing or Counter()
    said = [*map(in_words, restrictions)]
    said[-1:] = [
        f"{last}; {many(hidden, 'case')} of another failure not counted" if hidden else last for last in said[-1:]
    ]
    if crashed := _cases(crashing):
        failed, total = _cases(failing), _cases(failing) + _cases(right)
        dark = [place for place in sorted(crashing) if not (failing[place] or right[place])]
        here = f"{many(crashing[dark[0]], 'case')} {_crash(crashing[dark[0]])}" if len(dark) == 1 else "cases crash"
        said += [f"not known for {', '.join(in_axis(*place) for place in dark)}, where {here}"] if dark else []
        shown = f"{failed} of {total} cases that do not fail in another way; no condition is certain"
        hides = f"{many(crashed, 'other case')} {_crash(crashed)}, and may hide a condition"
        said = said or [f"{shown}; {hides}"]
    return said


def _crash(count: int) -> str:
    return "crashes" if count == 1 else "crash"


def _ends(result: Audit, finding: Finding) -> list[str]:
    """Return what ends the rows that end too early, as far as was seen: one thing in all failing cases, or several.

    A thing is told where so many failing cases have it that chance has not gathered them there.
    """
    claimed = result.claims(finding.case)
    placed = [one for one in result.tally.placed if one.claimed == claimed]
    failing = [one.facts for one in placed if one.symptom and one.symptom in finding.seen]
    right = [one.ends for one in placed if not one.symptom]
    if finding.fingerprint != ENDS_EARLY or len(failing) < _ENOUGH:
        return []
    if always := _with_others(failing, right):
        return always
    # The last token is cut off whatever it is: one fault, which an EOS and a limit would tell as two.
    if last := _last_token(failing):
        return [ended_by([("last-token", last)], 0, len(failing))]
    left, ends = failing, list[tuple[str, int]]()
    # The end that explains most failing cases is told and its cases are taken out, then the next one: counted over all
    # cases, an end that often comes with the true one would be told beside it.
    while left and len(ends) < len(ENDS):
        counts = Counter(end for facts in left for end in endings(facts))
        end, count = max(counts.items(), key=lambda pair: pair[1], default=(None, 0))
        if end is None or count < _ENOUGH or not _beyond_chance(end, left, right):
            break
        ends.append((end, count))
        left = [facts for facts in left if end not in endings(facts)]
    return [ended_by(ends, len(left), len(failing))] if ends else []


def _last_token(failing: Sequence[Mapping[str, int | str]]) -> int:
    """Count the cases that lack their last token, whatever it is, where nearly all do; else 0.

    That is one fault, which an EOS and a limit would tell as two.
    """
    at_limit = sum(_missing(facts) == 1 for facts in failing)
    last = at_limit + sum(facts.get("statement") == "eos-missing" for facts in failing)
    return last if at_limit >= _ENOUGH and last >= _NEARLY_ALL * len(failing) else 0


def _missing(facts: Mapping[str, int | str]) -> int:
    """Return how many tokens of a row are missing at its end; 0 where only its EOS is, or that is not told."""
    return int(facts.get("expected_tokens", 0)) - int(facts.get("emitted", 0))


def _beyond_chance(end: Ending, failing: Sequence[Mapping[str, int | str]], right: Sequence[Sequence[str]]) -> bool:
    """Return whether more of the failing cases may end by this than right ones, in which it would do no harm."""
    having = [facts for facts in failing if end in endings(facts)]
    if end == "own-eos":  # that exactly the EOS is missing takes more than a case with an EOS
        return True
    if end == "limit":  # each case has one: only the same miscount for several limits is more than a limit
        short, limits = {facts["short"] for facts in having}, {facts["limit"] for facts in having}
        return len(short) == 1 and len(limits) > 1
    counters = {"prompt-eos": {"eos_in_prompt"}, "another-row": {"eos_before_others", "limit_before_others"}}[end]
    spared, total = sum(not counters.isdisjoint(seen) for seen in right), len(failing) + len(right)
    return gathered_by_chance(len(having), len(having) + spared, len(failing), total) < BY_CHANCE


def _with_others(failing: Sequence[Mapping[str, int | str]], right: Sequence[Sequence[str]]) -> list[str]:
    """Return whether rows end early in every round in which another row ends, and in no other round,
    as far as was seen.
    """
    for does, of_failing, of_right in (
        ("reached an EOS", {"eos_rows"}, {"eos_before_others"}),
        ("reached max_new_tokens", {"limit_rows"}, {"limit_before_others"}),
        ("ended", {"eos_rows", "limit_rows"}, {"eos_before_others", "limit_before_others"}),
    ):
        if all(of_failing & facts.keys() for facts in failing) and all(of_right.isdisjoint(seen) for seen in right):
            return [
                f"fails whenever another row {does} in the same round (all {len(failing)} failing cases); in the "
                f"{len(right)} correct cases no row {does} before the last round of the others"
            ]
    return []


def _matrix(result: Audit) -> dict[str, dict[str, object]]:
    """Return per family what the drawn cases showed; failures that do not repeat are no violations."""
    doubtful = {(symptom, result.claims(group.case)) for group in result.doubtful for symptom in group.seen}
    matrix: dict[str, dict[str, object]] = {}
    for family in result.families:
        drawn = {group: count for group, count in result.tally.alike.items() if group.family == family}
        declined = sum(count for group, count in drawn.items() if group.declined)
        failing = {group: count for group, count in drawn.items() if group.symptom}
        in_doubt = sum(count for group, count in failing.items() if (group.symptom, group.claimed) in doubtful)
        fingerprints = result.tally.by(lambda group: group.symptom, failing.__contains__)
        matrix[family] = {
            "claimed": family in result.claimed_families,
            "cases": sum(drawn.values()) - declined,
            "declined": declined,
            "violations": sum(failing.values()) - in_doubt,
            "inconclusive": in_doubt,
            "fingerprints": dict(fingerprints.most_common()),
        }
    return matrix


def _cache_states(result: Audit) -> dict[str, int | str]:
    """Return how many cases were of each cache state, or why none was."""
    counts = result.tally.places(lambda one: one.claimed and not one.declined)
    states: dict[str, int | str] = {}
    for state in CACHE_STATES:
        idle = state == "wrapped" and not any(FAMILY[name].layer_types for name in result.families)
        states[state] = Untried.NOT_APPLICABLE.value if idle else counts["cache_state", state]
        if state not in result.decoder.cache_states:
            states[state] = Untried.NOT_TAKEN.value
    return states


def luck_warnings(result: Audit) -> list[str]:
    """Warnings of wrong contexts behind right outputs: not every fault changes a token of a real model."""
    warnings = []
    for fingerprint, count in result.tally.lucky.most_common():
        first = next((one for one in result.outcomes if one.luck[0] == fingerprint), None)
        where = f", first in {one_line(first.luck[1], 40)} of case {first.case.id}" if first else ""
        warnings.append(
            f"BY CHANCE: in {many(count, 'case')} a query saw something wrong ({fingerprint}), and the output is still "
            f"correct{where}"
        )
    return warnings


def _about_claims(result: Audit) -> list[str]:
    """Warnings on what the audit cannot say, or on what the decoder declares and did not show."""
    tally = result.tally
    warnings = vacuous(result.coverage, result.decoder.requires) if tally.run else []
    warnings += declining.warnings_of(result.decoder, tally)
    warnings += all_warnings(but_for_windows(tally.losses, tally.lost))
    warnings += luck_warnings(result)
    if tally.drawn and not (tally.run or tally.declined):
        warnings.append("no case was of a family that the decoder claims: audit without --families for a verdict on it")
    if result.stale:
        warnings += [
            f"STALE: {fingerprint} is declared as known and did not occur in {tally.run} cases; remove it"
            for fingerprint in result.stale
        ]
    elif result.unseen and tally.run:
        warnings.append(
            f"declared as known and not seen in {tally.run} cases: {one_line(', '.join(result.unseen), 60)}; use "
            f"--cases {ENOUGH_TO_CALL_STALE} to learn whether that is stale"
        )
    return warnings
