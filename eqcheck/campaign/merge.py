"""One audit of many shards: whatever the order in which they finished, whoever ran them.

Counts add up. Findings of one cause under one condition are one, with the smallest case. Evidence goes on from shard to
shard, in the order of their numbers (`eqcheck.sampling.wealth`). Conclusions are drawn once, from all counts together,
by the very functions that draw those of one audit: what one shard did not exercise another may have.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace

import msgspec

from eqcheck.campaign.loop import concluded
from eqcheck.campaign.shardfile import Part, Shard, evidence_of, finding_of, outcome_of, tally_of
from eqcheck.contract.decoder import Decoder
from eqcheck.contract.errors import UsageError
from eqcheck.explanation.notice import with_kinds
from eqcheck.explanation.records import many
from eqcheck.result.findings import Audit, Finding, Options

_MOST_WARNINGS = 50


def merged(decoder: Decoder, options: Options, shards: Iterable[Shard]) -> Audit:
    """The audit that the shards are together, in the order of their numbers; ``options`` are those of the campaign.

    They are taken one by one, so that there may be more of them than memory holds.

    Raises `UsageError` for none, for shards of different campaigns, and for two of one number.
    """
    lanes: dict[str, _Lane] = {}
    versions: dict[str, dict[str, None]] = {}
    first = before = None
    elapsed = 0.0
    for shard in shards:
        first = first or shard
        _check(first, before, shard)
        before, elapsed = shard, elapsed + shard.elapsed_s
        for name, version in shard.versions.items():
            versions.setdefault(name, {})[version] = None
        for part in shard.parts:
            lane = lanes.setdefault(part.lane, _Lane(decoder, options, part))
            try:
                lane.add(shard.number, part)
            except (UsageError, msgspec.ValidationError) as error:
                raise UsageError(f"shard {shard.number}: {error}") from error
    if not lanes:
        raise UsageError("shards: expected at least one, got none")
    result = concluded([lane.audit() for lane in lanes.values()])
    result.elapsed = elapsed
    for name, found in versions.items():
        if len(found) > 1:
            result.warnings.append(f"shards ran with different versions of {name}: {', '.join(found)}")
    return result


def _check(first: Shard, before: Shard | None, shard: Shard) -> None:
    if difference := first.terms.differs(shard.terms):
        numbers = f"{first.number} and {shard.number}"
        raise UsageError(f"shards {numbers} are of different campaigns and cannot be merged; {difference}")
    if before and before.number == shard.number:
        raise UsageError(f"shard {shard.number}: expected once, got twice; its cases would count double")
    if before and before.number > shard.number:
        raise UsageError(f"shards: expected in the order of their numbers, got {shard.number} after {before.number}")


class _Lane:
    """What one lane found in the shards so far."""

    def __init__(self, decoder: Decoder, options: Options, first: Part) -> None:
        self.result = Audit(decoder, options, first.lane, first.families, first.claimed_families)
        self.result.facts = dict(first.facts)
        self.findings: dict[tuple[object, ...], Finding] = {}
        self.versions: dict[str, None] = {}
        self.warnings: dict[str, None] = {}
        self.left_out: list[int] = []

    def add(self, number: int, part: Part) -> None:
        """Count a shard with those before it."""
        result = self.result
        result.counted = result.counted + tally_of(part.counts)
        result.unsettled += part.unsettled
        result.drawing_s += part.drawing_s
        result.interrupted |= part.interrupted
        result.files |= part.files
        self.versions |= {part.version: None} if part.version else {}
        self.warnings |= dict.fromkeys(with_kinds(part.warnings, part.warning_kinds))
        for finding in (finding_of(*one) for one in part.findings):
            key = finding.standing, finding.fingerprint, finding.needs
            self.findings[key] = _one(self.findings[key], finding) if key in self.findings else finding
        if part.telling and (result.telling is None or part.telling[0] > result.telling[0]):
            result.telling = part.telling[0], outcome_of(part.telling[1])
        wealth, exclusion = evidence_of(part)
        if wealth is None or exclusion is None:
            return
        result.wealth, result.exclusion = result.wealth or type(wealth)(), result.exclusion or type(exclusion)()
        if result.wealth.join(wealth):
            result.exclusion.join(exclusion)
        else:
            self.left_out.append(number)

    def audit(self) -> Audit:
        """The audit of this lane, without its conclusions."""
        result, said, more = self.result, list(self.warnings), len(self.warnings) - _MOST_WARNINGS
        result.version = ", ".join(self.versions)
        result.findings = list(self.findings.values())
        result.warnings = said[:_MOST_WARNINGS]
        result.warnings += [f"{many(more, 'more warning')} of shards: see their files"] if more > 0 else []
        if self.left_out:
            named = ", ".join(map(str, self.left_out[:5])) + (", ..." if len(self.left_out) > 5 else "")
            result.warnings.append(
                f"{many(len(self.left_out), 'shard')} ({named}) used the seed of a row that an earlier one used: the "
                "tokens sampled there are not among the evidence"
            )
        return result


def _one(earlier: Finding, later: Finding) -> Finding:
    best = min(earlier, later, key=_size)
    axes = {
        axis: {
            value: [
                sum(counts[at] for one in (earlier, later) if (counts := one.axes.get(axis, {}).get(value)))
                for at in (0, 1)
            ]
            for value in sorted({**earlier.axes.get(axis, {}), **later.axes.get(axis, {})})
        }
        for axis in {**earlier.axes, **later.axes}
    }
    seen = tuple(dict.fromkeys((*earlier.seen, *later.seen)))
    return replace(best, count=earlier.count + later.count, seen=seen, axes=axes)


def _size(finding: Finding) -> tuple[bool, bool, int, str]:
    """Minimised first, then drawn, then small."""
    return not finding.minimised, finding.stored, len(json.dumps(finding.case.to_dict())), finding.case.id
