"""What the audit of an engine found."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from eqcheck.campaign.result import Options
from eqcheck.contract import CAPABILITIES, Decoder
from eqcheck.lanes.checkpoint.case import EngineCase
from eqcheck.lanes.checkpoint.drawing import COUNTERS
from eqcheck.lanes.checkpoint.outcome import EngineOutcome
from eqcheck.lanes.transparent import declining
from eqcheck.report.text import render
from eqcheck.verdict import Explanation, merge


@dataclass(frozen=True)
class Finding:
    """A distinct violation: how many cases show it, the smallest case, what it needs, and why it is wrong.

    Two violations are distinct if they look different from outside or need different options.
    ``plain`` says what the engine does without speculation: ``right``, ``wrong too``, and then the fault is not the
    speculation's, or ``not known``.
    """

    fingerprint: str
    count: int
    outcome: EngineOutcome
    explanation: Explanation
    needs: tuple[str, ...]
    plain: str
    minimised: bool = True

    @property
    def case(self) -> EngineCase:
        return self.outcome.case

    @property
    def text(self) -> str:
        return render(self.explanation)


@dataclass
class EngineAudit:
    """The result of an engine's audit.

    ``outcomes`` are those of the drawn cases, ``replayed`` those of the corpus; ``doubtful`` are failing cases that did
    not fail again, ``unsettled`` counts those that belong to no finding, for want of time.
    ``scripts`` are those of the findings by fingerprint, None where one was tried that does not show it.
    """

    decoder: Decoder
    options: Options
    python: str
    version: str = ""
    outcomes: list[EngineOutcome] = field(default_factory=list)
    replayed: list[EngineOutcome] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    doubtful: list[EngineOutcome] = field(default_factory=list)
    scripts: dict[str, str | None] = field(default_factory=dict)
    unsettled: int = 0
    warnings: list[str] = field(default_factory=list)
    drawing_s: float = 0.0
    elapsed: float = 0.0
    interrupted: bool = False

    @property
    def claimed(self) -> list[EngineOutcome]:
        """The cases the engine could take."""
        return [outcome for outcome in self.outcomes if outcome.status != "skipped"]

    @property
    def declined(self) -> dict[str, int]:
        """How many cases the engine declined, by reason."""
        reasons = Counter(o.answer.unsupported for o in self.outcomes if o.status == "skipped")
        return dict(reasons.most_common())

    @property
    def violations(self) -> list[Finding]:
        return self.findings

    @property
    def unknown(self) -> list[Finding]:
        """Violations that the adapter does not declare as known."""
        return [finding for finding in self.findings if finding.fingerprint not in self.decoder.known]

    @property
    def stale(self) -> list[str]:
        return []

    @property
    def verdict(self) -> str:
        if self.findings:
            return "violation"
        unclear = ["inconclusive"] if self.doubtful or self.interrupted or self.unsettled else []
        return merge([*unclear, *(o.status for o in self.claimed if o.status != "violation")])

    @property
    def coverage(self) -> dict[str, int]:
        """How many cases raised each counter."""
        counts = Counter(name for outcome in self.claimed for name in outcome.coverage)
        return {name: counts[name] for name in COUNTERS if counts[name]}

    @property
    def ties(self) -> int:
        """Near-ties that the engine decided otherwise."""
        return sum(len(row.ties) for outcome in self.claimed for row in outcome.rows)


def warnings_of(result: EngineAudit) -> list[str]:
    """What the audit cannot say."""
    found = []
    lacking = [name for name in CAPABILITIES if name not in result.decoder.capabilities]
    if lacking:
        found.append(f"capabilities not claimed, so not exercised: {', '.join(lacking)}")
    essential = ["several_rows", "ragged_prompts"]
    if any("drafted" in outcome.answer.observed for outcome in result.claimed):
        essential += ["accepted", "rejected"]
    elif result.claimed:
        found.append("the decoder does not say how many draft tokens it proposed: nothing shows that it speculated")
    missing = [name for name in essential if not result.coverage.get(name)]
    if missing and result.claimed:
        found.append(f"VACUOUS: no case was seen to exercise: {'; '.join(f'{n} ({COUNTERS[n]})' for n in missing)}")
    found += declining.of_requirements(result.decoder)
    found += declining.too_many(result.declined, len(result.outcomes))
    if result.doubtful:
        ids = ", ".join(outcome.case.id for outcome in result.doubtful[:5])
        found.append(
            f"INCONCLUSIVE: {len(result.doubtful)} failing cases did not fail in the same way when decoded alone by a "
            f"new process ({ids}); they may need what was decoded before them, and are no violations"
        )
    return found
