"""The report of an audit as data, `eqcheck-report/2`: one shape for every lane.

``report.schema.json`` beside this file is its JSON Schema (``python -m eqcheck.report.schema`` writes it again).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from inspect import cleandoc
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from eqcheck.contract.errors import cleaned
from eqcheck.core.explanation.notice import InternalError, Notice, with_kinds
from eqcheck.core.explanation.records import Explanation
from eqcheck.core.result.claims import Unreached
from eqcheck.core.result.findings import LawEvidence, OtherCase
from eqcheck.core.result.outcome import NearTie, Story

FORMAT: Final = "eqcheck-report/2"
SCHEMA = Path(__file__).with_name("report.schema.json")
Count = Annotated[int, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


@dataclass(frozen=True)
class DecoderInfo:
    """The decoder: its name, where it comes from, and what its engine calls its version."""

    name: str
    origin: str
    version: str


@dataclass(frozen=True)
class Cases:
    """Count the drawn cases that ran, by verdict; ``skipped`` were declined and did not run."""

    run: Count
    equivalent: Count
    tie: Count
    violation: Count
    inconclusive: Count
    skipped: Count


@dataclass(frozen=True)
class EqualRows:
    """Means over rows: rows equal in full; leading equal tokens as a share of the row. None where nothing ran."""

    exact_match: Share | None
    prefix_match: Share | None


@dataclass(frozen=True)
class First:
    """The first wrong token: its row, its index in the output, the round, and the ids expected and observed."""

    row: int | None
    token_index: int | None
    round: int | None
    expected: int | None
    observed: int | None


@dataclass(frozen=True)
class Cause:
    """The cause of violations by its declared fields; violations of one cause are one bug."""

    component: str
    kind: str
    subject: str
    meaning: str


@dataclass(frozen=True)
class Condition:
    """Options under which a cause shows: how many cases, and the smallest.

    ``needs`` are the options without which the case is right. ``without_speculation`` is ``right`` or ``wrong too``, or
    empty where that is not known.
    """

    needs: tuple[str, ...]
    count: Count
    case: dict[str, Any]
    minimised: bool
    from_corpus: bool
    without_speculation: str
    script: str | None
    reproduce: str


@dataclass(frozen=True)
class ReportedViolation:
    """A cause, with the condition under which it shows first; ``conditions`` are all, this one the first of them.

    ``evidence`` has all the facts that were seen. ``axes`` are ``[failing, run]`` cases by the values of each axis,
    and ``only`` says on which of them the failing ones lie. ``known`` is the link that the decoder declares for it, or
    that the user lists it with; only then ``known_until`` is the last day on which it passes. ``story`` is what
    befell the row, where the calls were seen. ``others`` are some of the other cases that show it. ``count`` is of
    drawn cases alone, ``stored`` of those that earlier audits left in the corpus. Of a cause of slowness ``tokens`` are
    the draft tokens lost by it, and those that could have been accepted.
    """

    fingerprint: str
    component: str
    kind: str
    count: Count
    first: First
    cause: Cause
    conditions: tuple[Condition, ...]
    evidence: Explanation
    explanation: str
    case: dict[str, Any]
    minimised: bool
    from_corpus: bool
    known: str | None
    axes: dict[str, dict[str, tuple[int, int]]]
    only: tuple[str, ...]
    traceback: str
    reproduce: str
    story: Story | None = None
    known_until: str | None = None
    others: tuple[OtherCase, ...] = ()
    stored: Count = 0
    tokens: tuple[Count, Count] = (0, 0)

    @property
    def caused(self) -> bool:
        """Return whether a cause was shown; `unattributed` is none."""
        return self.component != "unattributed"

    @property
    def in_known_words(self) -> str:
        """Return why it is known, in words; empty for one that is not."""
        if self.known is None:
            return ""
        listed = f"known until {self.known_until}" if self.known_until else "declared as known"
        return f"{listed}: {self.known}"


@dataclass(frozen=True)
class FamilyCases:
    """The results of the drawn cases of one family."""

    claimed: bool
    cases: Count
    declined: Count
    violations: Count
    inconclusive: Count
    fingerprints: dict[str, Count]


@dataclass(frozen=True)
class CorpusCases:
    """Count the stored cases that were decoded again, and those that fail."""

    replayed: Count
    failing: Count


@dataclass(frozen=True)
class Served:
    """The cases of an engine in the ``dtype`` it computes in, on one ``kind`` of checkpoint with one drafter."""

    dtype: str
    kind: str
    drafter: str
    cases: Count
    violations: Count


@dataclass(frozen=True)
class Memory:
    """The memory of keys and values in bytes, on the case that this is measured on, and how often the least needed.

    ``waste`` is the median over rounds of what is held over the least, ``waste_at_peak`` the same where most is held,
    ``split`` the shares of what is held there. Null where no storage could be read.
    """

    peak_bytes: Count
    after_return_bytes: Count
    least_bytes: Count | None = None
    waste: float | None = None
    waste_at_peak: float | None = None
    split: dict[str, Share] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """Hold the report of one audit; a field that a lane does not have is empty or null.

    - ``coverage``: cases by what they exercised; ``reached``: the largest sizes of cases; ``matrix``: results by
      family; ``served``: cases on checkpoints, by kind and drafter; ``pairs``: cases of engines with two options or
      settings at work, in one row or in several.
    - ``acceptance``: the share of draft tokens accepted, as the decoder counts them; ``due_drafts``: by batch size, row
      and position in a round, and in sampled rows, draft tokens that were accepted, and that should have been (the
      draft alone proposes them and the target agrees); ``dictated_rounds``: by ``accepted/K``, rounds whose drafts the
      case named, and how many of them the engine ran that way.
    - ``sampling``: the evidence of all sampled tokens; ``laws``: violations that sampled tokens show only together, so
      ``cases.violation`` can be 0 next to them.
    - ``ties``: tokens decided by rounding; ``near_ties``: the first of them.
    - ``slots_seen``: the share of the target's cache slots that a query attended to; ``memory``: the memory of keys and
      values, if measured.
    - ``outdated``: why an audit fails without a violation: known violations that expired or no longer occur, or too
      many lost draft tokens.
    - ``written``: the date in UTC; ``command``: the command as typed.
    - ``slow``: causes by which draft tokens are lost; the output is right, and they count for no verdict.
    - ``unreached``: claims of the decoder that no drawn case tested, each with how many cases would have.
    - ``internal_errors``: errors of eqcheck itself; cases that it could not judge are in no count.
    """

    format: Literal["eqcheck-report/2"]
    lane: str
    decoder: DecoderInfo
    versions: dict[str, str]
    verdict: Literal["equivalent", "tie", "inconclusive", "violation"]
    cases: Cases
    equivalence: EqualRows
    coverage: dict[str, Count]
    violations: tuple[ReportedViolation, ...]
    discoveries: tuple[ReportedViolation, ...]
    inconclusive: tuple[ReportedViolation, ...]
    warnings: tuple[str, ...]
    declined: dict[str, Count]
    requires: tuple[str, ...]
    capabilities: tuple[str, ...]
    families: tuple[str, ...]
    matrix: dict[str, FamilyCases]
    cache_states: dict[str, int | str]
    reached: dict[str, Count]
    draft_losses: dict[str, int]
    acceptance: Share | None
    ties: Count
    corpus: CorpusCases
    real_pair: dict[str, Any] | None  # always null since `--pair` went: this format keeps its keys
    stale: tuple[str, ...]
    interrupted: bool
    isolated: bool
    seed: int
    cases_per_second: float | None
    elapsed_s: float
    sampling: LawEvidence | None = None
    dictated_rounds: dict[str, tuple[Count, Count]] = field(default_factory=dict)
    memory: Memory | None = None
    slots_seen: Share | None = None
    outdated: tuple[str, ...] = ()
    written: str = ""
    command: str = ""
    warning_kinds: tuple[str, ...] = ()
    served: tuple[Served, ...] = ()
    near_ties: tuple[NearTie, ...] = ()
    laws: Count = 0
    due_drafts: dict[str, tuple[Count, Count]] = field(default_factory=dict)
    pairs: dict[str, Count] = field(default_factory=dict)
    unreached: tuple[Unreached, ...] = ()
    internal_errors: tuple[InternalError, ...] = ()
    slow: tuple[ReportedViolation, ...] = ()

    @property
    def noticed(self) -> list[Notice]:
        """The warnings with their kinds."""
        return with_kinds(self.warnings, self.warning_kinds)


def to_builtins(report: Report) -> dict[str, Any]:
    """A report as plain data for JSON."""
    data: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(report))
    return data


def from_builtins(data: Any) -> Report:
    """The inverse of `to_builtins`; raises `msgspec.ValidationError` for data of another shape."""
    return msgspec.convert(data, Report)


def printable_report(report: Report) -> Report:
    """The report with texts that can be printed and written, whatever the decoder says."""
    return from_builtins(cleaned(msgspec.to_builtins(report)))


def schema() -> str:
    """The JSON Schema of a report, as text, with the lines of docstrings set flush left by every release of msgspec."""
    made = msgspec.json.schema(Report)
    for record in made["$defs"].values():
        if "description" in record:
            record["description"] = cleandoc(record["description"])
    return json.dumps(made, indent=1) + "\n"


if __name__ == "__main__":
    SCHEMA.write_text(schema())
