"""What the counts of an audit say together, or those of several shards: facts, warnings, and where a cause shows."""

from __future__ import annotations

from dataclasses import replace

from eqcheck.attribution.losses import all_warnings
from eqcheck.attribution.rounds import settled
from eqcheck.contract.decoder import CACHE_STATES
from eqcheck.contract.family import FAMILY
from eqcheck.explanation.records import many
from eqcheck.lanes.about_transparent import REACHED
from eqcheck.lanes.transparent.conditions import counted, lying, table
from eqcheck.lanes.transparent.coverage import vacuous
from eqcheck.result import declining
from eqcheck.result.findings import ENOUGH_TO_CALL_STALE, Audit, Finding

_ENOUGH = 5  # failing cases that all show what may be chance in one


def conclusions(result: Audit) -> None:
    """Draw conclusions from the counts and the findings of ``result`` into its facts and warnings."""
    tally = result.tally
    unminimised = sum(not finding.minimised for finding in (*result.violations, *result.discoveries))
    if unminimised and not result.interrupted:
        result.warnings.append(f"not minimised: {many(unminimised, 'violation')}; the time budget was used up")
    keeps_state = any(finding.explanation.component == "state" for finding in result.findings)
    if result.doubtful and not keeps_state:  # what does not repeat once may not the next time either
        result.findings = [replace(finding, standing="inconclusive") for finding in result.findings]
    result.findings = with_axes(result)
    result.vacuous = bool(tally.run) and not result.coverage.get("target_called")
    result.facts |= {
        "reached": {**dict.fromkeys(REACHED, 0), **tally.reached},
        "matrix": _matrix(result),
        "cache_states": _cache_states(result),
        "draft_losses": dict(sorted(settled(tally.losses).items())),
    }
    result.warnings += _about_claims(result)


def with_axes(result: Audit) -> list[Finding]:
    """The findings with the axes on which the cases lie that show them, beside those that are right.

    A finding of several shards has its failing cases by axis already: in each, they count with one finding.
    """
    return [_with_axes(result, finding) for finding in result.findings]


def _with_axes(result: Audit, finding: Finding) -> Finding:
    tally, claimed = result.tally, result.claims(finding.case)
    run = tally.places(lambda one: one.claimed == claimed and not one.declined)
    right = tally.places(lambda one: one.claimed == claimed and not one.declined and not one.symptom)
    failing = counted(finding.axes)
    if not failing:
        failing = tally.places(lambda one: one.claimed == claimed and bool(one.symptom) and one.symptom in finding.seen)
    failed = sum(count for (axis, _), count in failing.items() if axis == "family")
    hidden = tally.by(lambda one: "", lambda one: one.claimed == claimed and bool(one.symptom)).total() - failed
    crashing = tally.places(
        lambda one: one.claimed == claimed and one.symptom.startswith("crash/") and one.symptom not in finding.seen
    )
    only = (*lying(failing, right, hidden, crashing), *_with_others(result, finding))
    return replace(finding, axes=table(failing, run), only=only)


def _with_others(result: Audit, finding: Finding) -> list[str]:
    """Whether rows end early in every round in which another row ends, and in no other round, as far as was seen."""
    claimed = result.claims(finding.case)
    drawn = [one for one in result.outcomes if result.claims(one.case) == claimed and not one.declined]
    failing = [one.explanation.facts for one in drawn if one.explanation and one.symptom in finding.seen]
    right = [one.coverage for one in drawn if not one.failed]
    if finding.fingerprint != "bookkeeping/premature-stop" or len(failing) < _ENOUGH:
        return []
    for does, of_failing, of_right in (
        ("emitted an EOS", {"eos_rows"}, {"eos_before_others"}),
        ("reached the limit", {"limit_rows"}, {"limit_before_others"}),
        ("ended", {"eos_rows", "limit_rows"}, {"eos_before_others", "limit_before_others"}),
    ):
        if all(of_failing & facts.keys() for facts in failing) and not any(of_right & seen for seen in right):
            return [
                f"in all {len(failing)} failing cases another row {does} in the round in which the row ends; "
                f"no row of the {len(right)} right cases {does} before the last round of another row"
            ]
    return []


def _matrix(result: Audit) -> dict[str, dict[str, object]]:
    """Per family what the drawn cases showed; failures that do not repeat are no violations."""
    doubtful = {(symptom, result.claims(one.case)) for one in result.doubtful for symptom in one.seen}
    matrix: dict[str, dict[str, object]] = {}
    for family in result.families:
        drawn = {one: count for one, count in result.tally.alike.items() if one.family == family}
        declined = sum(count for one, count in drawn.items() if one.declined)
        failing = {one: count for one, count in drawn.items() if one.symptom}
        in_doubt = sum(count for one, count in failing.items() if (one.symptom, one.claimed) in doubtful)
        fingerprints = result.tally.by(lambda one: one.symptom, failing.__contains__)
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
    """How many cases were of each cache state, or why none was."""
    counts = result.tally.places(lambda one: one.claimed and not one.declined)
    states: dict[str, int | str] = {}
    for state in CACHE_STATES:
        idle = state == "wrapped" and not any(FAMILY[name].window for name in result.families)
        states[state] = "not applicable" if idle else counts["cache_state", state]
        if state not in result.decoder.cache_states:
            states[state] = "not taken"
    return states


def luck_warnings(result: Audit) -> list[str]:
    """Warnings of wrong contexts behind right outputs: not every fault changes a token of a real model."""
    found = []
    for fingerprint, count in result.tally.lucky.most_common():
        first = next((one for one in result.outcomes if one.luck[0] == fingerprint), None)
        where = f"; the first is {first.luck[1]} of case {first.case.id} ({first.case.family})" if first else ""
        found.append(
            f"BY LUCK: {fingerprint} in {many(count, 'case')} whose output is right: what a query saw was wrong{where}"
        )
    return found


def _about_claims(result: Audit) -> list[str]:
    """Warnings on what the audit cannot say, or on what the decoder declares and did not show."""
    tally = result.tally
    warnings = vacuous(result.coverage, result.decoder.requires) if tally.run else []
    warnings += declining.warnings_of(result.decoder, tally)
    warnings += all_warnings(tally.losses)
    warnings += luck_warnings(result)
    if tally.drawn and not (tally.run or tally.declined):
        warnings.append("no case was of a family that the decoder claims: this says nothing about its claim")
    if result.stale:
        warnings += [
            f"STALE: {fingerprint} is declared as known but not seen in {tally.run} cases; remove it"
            for fingerprint in result.stale
        ]
    elif result.unseen and tally.run:
        warnings.append(
            f"declared as known but not seen: {', '.join(result.unseen)}; {tally.run} cases are too few "
            f"to tell whether that is stale ({ENOUGH_TO_CALL_STALE} over all claimed families are enough)"
        )
    return warnings
