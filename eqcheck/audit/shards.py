"""A campaign in shards: ordinary audits, each with a seed of its own, whose results are stored and merged.

A shard is bounded by its cases or by a time, draws its cases with a search of its own, and knows nothing of the others.
It leaves one file (`eqcheck.audit.shards`): counts, findings with their smallest cases, and the parts of its
evidence. Merged they are one audit, whatever the order in which they finished, whoever ran them: counts add up,
findings of one cause under one condition are one, with the smallest case, and evidence goes on from shard to shard, in
the order of their numbers (`eqcheck.sampling.betting.wealth`). Conclusions are drawn once, from all counts together:
one shard may have exercised what another did not.
"""

from __future__ import annotations

import base64
import hashlib
import json
import pickle
import platform
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
from msgspec import Meta

from eqcheck import __version__
from eqcheck.audit import processes
from eqcheck.audit.loop import audits, concluded
from eqcheck.contract import registry
from eqcheck.contract.decoders import Decoder
from eqcheck.contract.errors import UsageError, one_line
from eqcheck.contract.profiles import REPORT_BYTES, REPORT_LEVELS
from eqcheck.core.explanation.notice import InternalError, kind_of, note, with_kinds
from eqcheck.core.explanation.records import Explanation, many
from eqcheck.core.result.claims import Claim, Unreached
from eqcheck.core.result.findings import Audit, Finding, Options
from eqcheck.core.result.outcome import DictatedRounds, DueDrafts, Loss, NearTie, Outcome
from eqcheck.core.result.tally import Alike, Losing, Pair, Placed, ServedCase, Tally
from eqcheck.core.store.casefile import case_of, read_json, write_whole
from eqcheck.core.store.corpus import Corpus
from eqcheck.sampling.betting.exclusion import Exclusion
from eqcheck.sampling.betting.wealth import Wealth

# The result of one shard of a campaign as data, and as a file that is written whole or not at all.
#
# A file may come from anyone: what is read has the declared shape, and no text of it is run.

FORMAT: Final = "eqcheck-shard/1"
_MOST_FLOATS = 2**20  # of one array
_OF_AUDIT = (  # fields of a part that are those of an audit
    *("lane", "families", "claimed_families", "version"),
    *("unsettled", "facts", "files", "drawing_s", "interrupted"),
)
_KEYED = ("alike", "tested", "lost", "served", "pairs", "dictated", "due", "losses")  # counters with records as keys
FileName = Annotated[str, Meta(pattern=r"^[\w~][\w.~-]*\Z")]
StoredName = Annotated[str, Meta(pattern=r"^(unclaimed/)?[\w~][\w.~-]*\Z")]


@dataclass(frozen=True)
class Terms:
    """The terms of all shards of a campaign: eqcheck, the decoder, its code, the seed, and the options."""

    eqcheck: str
    decoder: str
    code: str
    seed: int
    options: dict[str, Any]

    def differs(self, other: Terms) -> str:
        """Describe in what another shard's terms differ; empty if they do not."""
        for name in ("eqcheck", "decoder", "code", "seed", "options"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs and name == "options":
                name = next(one for one in {**mine, **theirs} if mine.get(one) != theirs.get(one))
                mine, theirs = mine.get(name), theirs.get(name)
            if mine != theirs:
                return one_line(f"{name}: expected {mine}, got {theirs}", 300)
        return ""


@dataclass(frozen=True)
class Counts:
    """An `eqcheck.core.result.tally.Tally` as data."""

    alike: tuple[tuple[Alike, int], ...]
    exact: float
    prefix: float
    coverage: dict[str, int]
    losses: tuple[tuple[Loss, int], ...]
    observed: dict[str, int | float]
    lucky: dict[str, int]
    ties: int
    reached: dict[str, int]
    fingerprints: tuple[str, ...]
    replayed: int
    failing: int
    slots: dict[str, int] = field(default_factory=dict)
    served: tuple[tuple[ServedCase, int], ...] = ()
    pairs: tuple[tuple[Pair, int], ...] = ()
    near_ties: tuple[NearTie, ...] = ()
    tested: tuple[tuple[Claim, int], ...] = ()
    placed: tuple[Placed, ...] = ()
    lost: tuple[tuple[Losing, int], ...] = ()
    dictated: tuple[tuple[DictatedRounds, int], ...] = ()
    due: tuple[tuple[DueDrafts, int], ...] = ()


@dataclass(frozen=True)
class OutcomeRecord:
    """An outcome as data: the case, what was read, and how it failed."""

    case: dict[str, Any]
    status: str
    explanation: Explanation | None
    traceback: str
    drawn: bool
    traits: tuple[int | str, ...] = ()


@dataclass(frozen=True)
class LaneResults:
    """The results of one lane of a shard; ``findings`` are outcomes with the other fields of a `Finding`."""

    lane: str
    families: tuple[str, ...]
    claimed_families: tuple[str, ...]
    version: str
    counts: Counts
    findings: tuple[tuple[OutcomeRecord, dict[str, Any]], ...]
    unsettled: int
    warnings: tuple[str, ...]
    facts: dict[str, Any]
    files: dict[FileName, str]
    drawing_s: float
    interrupted: bool
    wealth: dict[str, Any] | None = None
    exclusion: dict[str, Any] | None = None
    telling: tuple[float, OutcomeRecord] | None = None
    warning_kinds: tuple[str, ...] = ()
    unreached: tuple[Unreached, ...] = ()
    internal: tuple[InternalError, ...] = ()


@dataclass(frozen=True)
class Shard:
    """The result of one shard. ``stored`` are the case files that it adds to the corpus, by name.

    ``until_s`` is how long the campaign had run when the shard was stored.
    """

    terms: Terms
    number: Annotated[int, Meta(ge=0)]
    cases: int | None
    budget: float | None
    parts: Annotated[tuple[LaneResults, ...], Meta(min_length=1)]
    versions: dict[str, str] = field(default_factory=dict)
    stored: dict[StoredName, str] = field(default_factory=dict)
    machine: str = ""
    elapsed_s: float = 0.0
    until_s: float = 0.0
    format: Literal["eqcheck-shard/1"] = FORMAT

    @property
    def drawn(self) -> int:
        """The cases that this shard drew, in all lanes."""
        return sum(count for part in self.parts for _, count in part.counts.alike)


def part_of(audit: Audit) -> LaneResults:
    """The result of one lane of a shard, as data."""
    tally = audit.tally
    counts = {name.name: getattr(tally, name.name) for name in fields(Tally)}
    counts |= {name: tuple(getattr(tally, name).items()) for name in _KEYED}
    counts |= {"fingerprints": tuple(sorted(tally.fingerprints))}
    rest = [name.name for name in fields(Finding) if name.name != "outcome"]
    return LaneResults(
        **{name: getattr(audit, name) for name in _OF_AUDIT},
        counts=Counts(**counts),
        findings=tuple((_seen(each.outcome), {name: getattr(each, name) for name in rest}) for each in audit.findings),
        warnings=tuple(audit.warnings),
        wealth=_packed(audit.wealth.to_dict()) if audit.wealth else None,
        exclusion=_packed(audit.exclusion.to_dict()) if audit.exclusion else None,
        telling=(audit.telling[0], _seen(audit.telling[1])) if audit.telling else None,
        warning_kinds=tuple(map(kind_of, audit.warnings)),
        unreached=tuple(audit.unreached),
        internal=tuple(audit.internal),
    )


def _seen(outcome: Outcome) -> OutcomeRecord:
    told = outcome.status, outcome.explanation, outcome.traceback, outcome.drawn, outcome.traits
    return OutcomeRecord(outcome.case.to_dict(), *told)


def outcome_of(seen: OutcomeRecord) -> Outcome:
    """The outcome that was written as data."""
    return Outcome(
        case_of(seen.case),
        seen.status,
        explanation=seen.explanation,
        traceback=seen.traceback,
        traits=seen.traits,
        drawn=seen.drawn,
    )


def finding_of(seen: OutcomeRecord, rest: Mapping[str, Any]) -> Finding:
    """The finding that was written as data."""
    finding = msgspec.convert({**rest, "outcome": {"case": None, "status": seen.status}}, Finding)
    return replace(finding, outcome=outcome_of(seen))


def tally_of(counts: Counts) -> Tally:
    """The tally that was written as data."""
    given = {one.name: getattr(counts, one.name) for one in fields(Tally)}
    given |= {name: Counter(given[name]) for name in ("coverage", "observed", "lucky", "slots")}
    given |= {name: Counter(dict(getattr(counts, name))) for name in _KEYED}
    return Tally(**{**given, "fingerprints": set(counts.fingerprints)})


def evidence_of(part: LaneResults) -> tuple[Wealth | None, Exclusion | None]:
    """The parts of the evidence of a lane; raises `UsageError` where it cannot be read."""
    try:
        wealth = Wealth.from_dict(_unpacked(part.wealth)) if part.wealth else None
        return wealth, Exclusion.from_dict(_unpacked(part.exclusion)) if part.exclusion else None
    except (KeyError, TypeError, ValueError, AttributeError, zlib.error) as error:
        raise UsageError(f"evidence: {error}") from error


def to_builtins(shard: Shard) -> dict[str, Any]:
    """A shard as plain data for JSON."""
    data: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(shard))
    return data


def from_builtins(data: Any) -> Shard:
    """The inverse of `to_builtins`; raises `UsageError` for data of another shape."""
    try:
        return msgspec.convert(data, Shard)
    except msgspec.ValidationError as error:
        raise UsageError(one_line(str(error))) from error


def write(shard: Shard, folder: Path) -> Path:
    """Write a shard's file into ``folder``, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{shard.number:07d}.json"
    write_whole(path, msgspec.json.encode(shard).decode() + "\n")
    return path


def read(folder: Path) -> Iterator[Shard]:
    """The shards in a folder, by number; raises `UsageError` for a file that is none, and leaves it as it is."""
    for path in sorted(folder.glob("[0-9]*.json")):
        try:
            data = read_json(path, REPORT_BYTES, REPORT_LEVELS)
            got = data.get("format") if isinstance(data, dict) else None
            if got != FORMAT:
                raise UsageError(f"expected format {FORMAT!r}, got {got!r}")
            yield from_builtins(data)
        except UsageError as error:
            again = "move it away, and the same command runs that shard again"
            raise UsageError(f"shard {path}: {one_line(str(error), 300)}; {again}") from error


def _packed(data: Any) -> Any:
    """Plain data with its lists of floats as text: hundreds of thousands of them would take longer than all else."""
    if isinstance(data, dict):
        return {name: _packed(value) for name, value in data.items()}
    first = data
    while isinstance(first, list) and first:
        first = first[0]
    if isinstance(data, list) and isinstance(first, float):
        array = np.array(data)
        return {"shape": list(array.shape), "float64": base64.b64encode(zlib.compress(array.tobytes())).decode()}
    return data


def _unpacked(data: Any) -> Any:
    if not isinstance(data, dict):
        return data
    if data.keys() != {"shape", "float64"}:
        return {name: _unpacked(value) for name, value in data.items()}
    found = zlib.decompressobj().decompress(base64.b64decode(data["float64"]), 8 * _MOST_FLOATS)
    array = np.frombuffer(found, dtype=np.float64).reshape(data["shape"])
    if not np.isfinite(array).all():
        raise ValueError("expected finite numbers")
    return array


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
        self._join_evidence(number, part)

    def _join_evidence(self, number: int, part: LaneResults) -> None:
        """Go on with the evidence of a shard, where it has some."""
        result = self.result
        wealth, exclusion = evidence_of(part)
        if wealth is None or exclusion is None:
            return
        result.wealth, result.exclusion = result.wealth or type(wealth)(), result.exclusion or type(exclusion)()
        # A shard that shares a row's seed with those before it repeats their draws, and is left out of the evidence.
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
