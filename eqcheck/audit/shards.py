"""A campaign in shards: ordinary audits, each with a seed of its own, whose results are stored and merged.

A shard is bounded by its cases or by a time, draws its cases with a search of its own, and knows nothing of the others.
It leaves one file (`eqcheck.audit.shards`): counts, findings with their smallest cases, and the parts of its
evidence. Merged they are one audit, whatever the order in which they finished, whoever ran them: counts add up,
findings of one cause under one condition are one, with the smallest case, and evidence goes on from shard to shard, in
the order of their numbers (`eqcheck.sampling.betting.wealth`). Conclusions are drawn once, from all counts together:
one shard may have exercised what another did not.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Final, Literal, get_args, get_origin

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
from eqcheck.core.case.record import AnyCase
from eqcheck.core.explanation.notice import InternalError, kind_of, note, with_kinds
from eqcheck.core.explanation.records import many
from eqcheck.core.result.claims import Unreached
from eqcheck.core.result.findings import Audit, Finding, Options
from eqcheck.core.result.outcome import Outcome
from eqcheck.core.result.tally import Tally
from eqcheck.core.store.casefile import case_of, read_json, write_whole
from eqcheck.core.store.corpus import Corpus
from eqcheck.sampling.betting.exclusion import Exclusion
from eqcheck.sampling.betting.laws import Floats
from eqcheck.sampling.betting.wealth import Wealth

# The result of one shard of a campaign, and its file, which is written whole or not at all.
#
# The records are written and read by their own types, so only the code that wrote a file reads it. A file may come from
# anyone: what is read has the declared shape, and no text of it is run.

FORMAT: Final = "eqcheck-shard/1"
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
class LaneResults:
    """The results of one lane of a shard: the fields of an `Audit` that do not come from its decoder and options.

    A warning's kind stands apart from its words.
    """

    lane: str
    families: tuple[str, ...]
    claimed_families: tuple[str, ...]
    version: str
    tally: Tally
    findings: tuple[Finding, ...]
    unsettled: int
    warnings: tuple[str, ...]
    facts: dict[str, Any]
    files: dict[FileName, str]
    drawing_s: float
    interrupted: bool
    wealth: Wealth | None = None
    exclusion: Exclusion | None = None
    telling: tuple[float, Outcome] | None = None
    warning_kinds: tuple[str, ...] = ()
    unreached: list[Unreached] = field(default_factory=list)
    internal: list[InternalError] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.warning_kinds and len(self.warning_kinds) != len(self.warnings):
            raise UsageError(f"warning_kinds: expected {len(self.warnings)}, got {len(self.warning_kinds)}")


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
        return sum(part.tally.drawn for part in self.parts)


def part_of(audit: Audit) -> LaneResults:
    """The result of one lane of a shard."""
    held = {one.name: getattr(audit, one.name) for one in fields(LaneResults) if hasattr(audit, one.name)}
    held["findings"] = tuple(replace(one, outcome=_told(one.outcome)) for one in audit.findings)
    held["telling"] = (audit.telling[0], _told(audit.telling[1])) if audit.telling else None
    held["warnings"], held["warning_kinds"] = tuple(map(str, audit.warnings)), tuple(map(kind_of, audit.warnings))
    return LaneResults(**held)


def _told(outcome: Outcome) -> Outcome:
    """An outcome as reports tell of it: the case, what was read, and how it failed."""
    return Outcome(
        outcome.case,
        outcome.status,
        explanation=outcome.explanation,
        traceback=outcome.traceback,
        traits=outcome.traits,
        drawn=outcome.drawn,
    )


def to_builtins(shard: Shard) -> dict[str, Any]:
    """A shard as plain data for JSON."""
    data: dict[str, Any] = msgspec.json.decode(_json(shard))
    return data


def _json(shard: Shard) -> bytes:
    parts = tuple(replace(_with_cases(part, _case_data), tally=_in_pairs(part.tally)) for part in shard.parts)
    return msgspec.json.encode(replace(shard, parts=parts), enc_hook=_encoded)


def from_builtins(data: Any) -> Shard:
    """The inverse of `to_builtins`; raises `UsageError` for data of another shape."""
    try:
        shard = msgspec.convert(data, Shard, dec_hook=_decoded)
    except msgspec.ValidationError as error:
        raise UsageError(one_line(str(error))) from error
    return replace(shard, parts=tuple(_with_cases(part, case_of) for part in shard.parts))


def _with_cases(part: LaneResults, changed: Callable[[Any], Any]) -> LaneResults:
    """The results with each case changed: its type is that of any lane, and its data say in their format of which."""

    def of(outcome: Outcome) -> Outcome:
        return replace(outcome, case=changed(outcome.case))

    findings = tuple(replace(one, outcome=of(one.outcome)) for one in part.findings)
    return replace(part, findings=findings, telling=part.telling and (part.telling[0], of(part.telling[1])))


def _case_data(case: AnyCase) -> dict[str, Any]:
    return case.to_dict()


def _in_pairs(tally: Tally) -> Tally:
    """The tally with its counters as pairs: JSON has no objects with records as names."""
    held = ((one.name, getattr(tally, one.name)) for one in fields(tally))
    pairs: dict[str, Any] = {name: list(counts.items()) for name, counts in held if isinstance(counts, Counter)}
    return replace(tally, **pairs)


@dataclass(frozen=True)
class PackedArray:
    """An array of floats as text: hundreds of thousands of numbers would take longer than all else."""

    shape: tuple[Annotated[int, Meta(ge=0, le=2**20)], ...]
    float64: bytes


def _encoded(array: Floats) -> PackedArray:
    return PackedArray(array.shape, array.tobytes())


def _decoded(kind: Any, data: Any) -> Any:
    """A value of the types that msgspec does not know: counters and arrays."""
    try:
        return _counter(kind, data) if get_origin(kind) is Counter else _array(data)
    except msgspec.ValidationError as error:
        raise UsageError(str(error)) from error  # to this, msgspec adds where it is


def _counter(kind: Any, data: Any) -> Counter[Any]:
    (counted,) = get_args(kind)
    number = int | float if counted is str else int  # what a decoder counts itself
    return Counter(dict(msgspec.convert(data, tuple[tuple[counted, number], ...])))  # type: ignore[valid-type]


def _array(data: Any) -> Floats:
    packed = msgspec.convert(data, PackedArray)
    array = np.frombuffer(packed.float64, dtype=np.float64).reshape(packed.shape)
    if not np.isfinite(array).all():
        raise UsageError("expected finite numbers")
    return array


def write(shard: Shard, folder: Path) -> Path:
    """Write a shard's file into ``folder``, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{shard.number:07d}.json"
    write_whole(path, _json(shard).decode() + "\n")
    return path


def read(folder: Path) -> Iterator[Shard]:
    """The shards in a folder, by number; raises `UsageError` for a file that is none, and leaves it as it is.

    So does one that other code wrote: only the code that wrote a shard knows its records.
    """
    mine = code_of_eqcheck()
    for path in sorted(folder.glob("[0-9]*.json")):
        again = "move it away, and the same command runs that shard again"
        try:
            data = read_json(path, REPORT_BYTES, REPORT_LEVELS)
            got = data.get("format") if isinstance(data, dict) else None
            if got != FORMAT:
                raise UsageError(f"expected format {FORMAT!r}, got {got!r}")
            terms = data.get("terms")
            wrote = terms.get("eqcheck") if isinstance(terms, dict) else None
            if wrote != mine:
                again = "give another --out, or move that folder away"
                raise UsageError(f"expected one of eqcheck {mine}, which reads no other, got one of {wrote}")
            yield from_builtins(data)
        except UsageError as error:
            raise UsageError(f"shard {path}: {one_line(str(error), 300)}; {again}") from error


_MOST_WARNINGS = 50
_PER_SHARD = ("cases", "budget", "seed", "jobs", "corpus")  # options that are no terms of a campaign


def terms_of(decoder: Decoder, options: Options) -> Terms:
    """The terms of a campaign of this decoder."""
    kept = {name: value for name, value in asdict(options).items() if name not in _PER_SHARD}
    kept = msgspec.json.decode(msgspec.json.encode(kept))
    return Terms(code_of_eqcheck(), decoder.name, code_of(decoder.spec), options.seed, kept)


@cache
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
            lane.add(shard.number, part)
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
        result.counted = result.counted + part.tally
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
        for finding in part.findings:
            key = finding.standing, finding.fingerprint, finding.needs
            self.findings[key] = _one(self.findings[key], finding) if key in self.findings else finding
        if part.telling and (result.telling is None or part.telling[0] > result.telling[0]):
            result.telling = part.telling
        self._join_evidence(number, part)

    def _join_evidence(self, number: int, part: LaneResults) -> None:
        """Go on with the evidence of a shard, where it has some."""
        result, wealth, exclusion = self.result, part.wealth, part.exclusion
        if wealth is None or exclusion is None:
            return
        result.wealth, result.exclusion = result.wealth or Wealth(), result.exclusion or Exclusion()
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
    axes: dict[str, dict[str, tuple[int, int]]] = {axis: {} for axis in {**earlier.axes, **later.axes}}
    for axis, values in axes.items():
        one, other = earlier.axes.get(axis, {}), later.axes.get(axis, {})
        for value in sorted({**one, **other}):
            (failed, run), (more_failed, more_run) = one.get(value, (0, 0)), other.get(value, (0, 0))
            values[value] = failed + more_failed, run + more_run
    seen = tuple(dict.fromkeys((*earlier.seen, *later.seen)))
    count, replayed = earlier.count + later.count, earlier.replayed + later.replayed
    return replace(best, count=count, replayed=replayed, seen=seen, axes=axes)


def _size(finding: Finding) -> tuple[bool, bool, int, str]:
    """Minimised first, then drawn, then small."""
    return not finding.minimised, finding.stored, len(json.dumps(finding.case.to_dict())), finding.case.id
