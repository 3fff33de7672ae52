"""The result of one shard of a campaign as data, and as a file that is written whole or not at all.

A file may come from anyone: what is read has the declared shape, and no text of it is run.
"""

from __future__ import annotations

import base64
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
from msgspec import Meta

from eqcheck.contract.errors import UsageError
from eqcheck.contract.escaping import one_line
from eqcheck.contract.limits import REPORT_BYTES, REPORT_LEVELS
from eqcheck.explanation.internal import InternalError
from eqcheck.explanation.notice import kind_of
from eqcheck.explanation.records import Explanation
from eqcheck.result.claims import Claim, Unreached
from eqcheck.result.findings import Audit, Finding
from eqcheck.result.outcome import NearTie, Outcome
from eqcheck.result.tally import Alike, Losing, Placed, Tally
from eqcheck.sampling.exclusion import Exclusion
from eqcheck.sampling.wealth import Wealth
from eqcheck.store.casefile import case_of, read_json, write_whole

FORMAT: Final = "eqcheck-shard/1"
_MOST_FLOATS = 2**20  # of one array
_OF_AUDIT = (  # fields of a part that are those of an audit
    *("lane", "families", "claimed_families", "version"),
    *("unsettled", "facts", "files", "drawing_s", "interrupted"),
)
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
    """An `eqcheck.result.tally.Tally` as data."""

    alike: tuple[tuple[Alike, int], ...]
    exact: float
    prefix: float
    coverage: dict[str, int]
    losses: dict[str, int]
    observed: dict[str, int | float]
    lucky: dict[str, int]
    ties: int
    reached: dict[str, int]
    fingerprints: tuple[str, ...]
    replayed: int
    failing: int
    slots: dict[str, int] = field(default_factory=dict)
    served: dict[str, int] = field(default_factory=dict)
    pairs: dict[str, int] = field(default_factory=dict)
    near_ties: tuple[NearTie, ...] = ()
    tested: tuple[tuple[Claim, int], ...] = ()
    placed: tuple[Placed, ...] = ()
    lost: tuple[tuple[Losing, int], ...] = ()


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
    counts |= {name: tuple(getattr(tally, name).items()) for name in ("alike", "tested", "lost")}
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
    given |= {
        name: Counter(given[name]) for name in ("coverage", "losses", "observed", "lucky", "slots", "served", "pairs")
    }
    given |= {name: Counter(dict(getattr(counts, name))) for name in ("alike", "tested", "lost")}
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
