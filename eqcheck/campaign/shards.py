"""A campaign in shards: ordinary audits, each with a seed of its own, whose results are stored and merged.

A shard is bounded by its cases or by a time, draws its cases with a search of its own, and knows nothing of the others.
It leaves one file (`eqcheck.campaign.shardfile`): counts, findings with their smallest cases, and the parts of its
evidence. Merged they are one audit, whatever the order in which they finished, whoever ran them: counts add up,
findings of one cause under one condition are one, with the smallest case, and evidence goes on from shard to shard, in
the order of their numbers (`eqcheck.sampling.wealth`). Conclusions are drawn once, from all counts together: one shard
may have exercised what another did not.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import platform
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from eqcheck import __version__
from eqcheck.campaign import processes
from eqcheck.campaign.loop import audits, concluded
from eqcheck.campaign.shardfile import (
    LaneResults,
    Shard,
    Terms,
    evidence_of,
    finding_of,
    outcome_of,
    part_of,
    tally_of,
    to_builtins,
)
from eqcheck.contract import registry
from eqcheck.contract.decoders import Decoder
from eqcheck.contract.errors import UsageError
from eqcheck.contract.escaping import one_line
from eqcheck.explanation.internal import note
from eqcheck.explanation.notice import with_kinds
from eqcheck.explanation.records import many
from eqcheck.result.findings import Audit, Finding, Options
from eqcheck.store.corpus import Corpus

_MOST_WARNINGS = 50
_PER_SHARD = ("cases", "budget", "seed", "jobs", "corpus")  # options that are no terms of a campaign


def terms_of(decoder: Decoder, options: Options) -> Terms:
    """The terms of a campaign of this decoder."""
    kept = {name: value for name, value in asdict(options).items() if name not in _PER_SHARD}
    kept = msgspec.json.decode(msgspec.json.encode(kept))
    return Terms(code_of_eqcheck(), decoder.name, code_of(decoder.spec), options.seed, kept)


def code_of_eqcheck() -> str:
    """The version of eqcheck, with a hash of its modules: two checkouts may call themselves by one version."""
    root = Path(__file__).resolve().parents[1]
    found = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        found.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return f"{__version__} ({found.hexdigest()[:12]})"


def code_of(spec: str) -> str:
    """A hash of the file that registers a decoder, so that it is the same on all machines; empty without one."""
    source, _, attribute = spec.rpartition(":")
    source = source if source and "/" not in attribute else spec
    if source.endswith(".py"):
        path = Path(source)
    else:
        entries = {point.name: point.value.partition(":")[0] for point in entry_points(group=registry.GROUP)}
        try:
            found = find_spec(registry.shipped().get(source) or entries.get(source) or source) if source else None
        except (ImportError, ValueError):
            found = None
        path = Path(found.origin) if found and found.origin else Path()
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else ""


def seed_of(seed: int, number: int) -> int:
    """The seed of a shard.

    >>> seed_of(1, 0) != seed_of(0, 1) != seed_of(0, 2)
    True
    """
    return int.from_bytes(hashlib.sha256(f"eqcheck {seed} shard {number}".encode()).digest()[:6], "big")


def run(
    decoder: Decoder,
    options: Options,
    number: int,
    cases: int | None,
    budget: float | None = None,
    corpus: Mapping[str, str] | None = None,
) -> Shard:
    """Run one shard here: an audit of so many ``cases`` or seconds. ``corpus`` are case files to decode first.

    >>> from eqcheck.contract.registry import load
    >>> run(load("eqspec"), Options(seed=3), 0, cases=5).drawn
    5
    """
    start = time.monotonic()
    with TemporaryDirectory(prefix="eqcheck-shard-") as folder:
        own = Corpus(Path(folder), decoder.name)
        for name, text in (corpus or {}).items():
            own.take(name, text)
        mine = replace(options, seed=seed_of(options.seed, number), cases=cases, budget=budget, usual=False)
        mine = replace(mine, corpus=Path(folder) if options.corpus else None)
        parts = audits(decoder, mine)
        stored = {name: text for name, text in own.files().items() if text != (corpus or {}).get(name)}
    return Shard(
        terms=terms_of(decoder, options),
        number=number,
        cases=cases,
        budget=budget,
        parts=tuple(map(part_of, parts)),
        versions=_versions(parts),
        stored=stored,
        machine=platform.node(),
        elapsed_s=round(time.monotonic() - start, 3),
    )


def answered(where: str, known: Mapping[str, str], work: bytes) -> dict[str, Any]:
    """The answer of a worker: ``{"shard": ...}``, or ``{"refused": ...}`` where it is not what the coordinator expects.

    ``work`` is unpickled only by the eqcheck that pickled it.
    """
    if known["eqcheck"] != (mine := code_of_eqcheck()):
        return {
            "refused": f"{where}: expected eqcheck {known['eqcheck']} as here, got {mine}; install the same there. "
            "Everything stored stays; the same command goes on from it"
        }
    if known["code"] != (code := code_of(known["spec"])):
        got = f"one with other content ({code})" if code else "no such file"
        return {
            "refused": f"{where}: adapter {known['spec']}: expected the same file as here ({known['code']}), got "
            f"{got}; put it at the same path on every machine, or install it there as a package"
        }
    asked = pickle.loads(work)
    try:
        decoder = asked["described"] or registry.load(known["spec"])
        options = processes.options(decoder, asked["options"])
        shard = run(decoder, options, asked["number"], asked["cases"], asked["budget"], asked["corpus"])
    except UsageError as error:
        return {"refused": f"{where}: {error}"}
    return {"shard": to_builtins(replace(shard, terms=asked["terms"]))}


def _versions(parts: list[Audit]) -> dict[str, str]:
    import torch
    import transformers

    versions = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "transformers": transformers.__version__,
    }
    return versions | {part.decoder.name: part.version for part in parts if part.version}


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
            named = one_line(", ".join(found), 80)
            result.warnings.append(
                f"shards ran with different versions of {name} ({named}): install the same everywhere"
            )
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
    """The result of one lane in the shards so far."""

    def __init__(self, decoder: Decoder, options: Options, first: LaneResults) -> None:
        self.result = Audit(decoder, options, first.lane, first.families, first.claimed_families)
        self.result.facts = dict(first.facts)
        self.findings: dict[tuple[object, ...], Finding] = {}
        self.versions: dict[str, None] = {}
        self.warnings: dict[str, None] = {}
        self.left_out: list[int] = []

    def add(self, number: int, part: LaneResults) -> None:
        """Count a shard with those before it."""
        result = self.result
        result.counted = result.counted + tally_of(part.counts)
        result.unsettled += part.unsettled
        result.drawing_s += part.drawing_s
        result.interrupted |= part.interrupted
        result.files |= part.files
        known = {entry.claim for entry in result.unreached}
        result.unreached += [entry for entry in part.unreached if entry.claim not in known]
        for error in part.internal:
            note(result.internal, error)
        self.versions |= {part.version: None} if part.version else {}
        self.warnings |= dict.fromkeys(with_kinds(part.warnings, part.warning_kinds))
        for finding in (finding_of(*entry) for entry in part.findings):
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
                f"{many(len(self.left_out), 'shard')} ({named}) used a row's seed again; those tokens are not counted"
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
    count, replayed = earlier.count + later.count, earlier.replayed + later.replayed
    return replace(best, count=count, replayed=replayed, seen=seen, axes=axes)


def _size(finding: Finding) -> tuple[bool, bool, int, str]:
    """Minimised first, then drawn, then small."""
    return not finding.minimised, finding.stored, len(json.dumps(finding.case.to_dict())), finding.case.id
