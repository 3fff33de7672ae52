"""What an audit is asked, and what comes out of it, as data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from eqcheck.attribution.rounds import draft_warnings
from eqcheck.campaign.casefile import StoredViolation
from eqcheck.case import Case
from eqcheck.contract import CACHE_STATES, Decoder
from eqcheck.family import FAMILY
from eqcheck.lanes.transparent import declining
from eqcheck.lanes.transparent.coverage import vacuous
from eqcheck.lanes.transparent.on_pair import OnPair
from eqcheck.lanes.transparent.outcome import Outcome
from eqcheck.report.text import render
from eqcheck.sizes import WIDE, Bounds
from eqcheck.verdict import Explanation, merge
from eqcheck.workers.forked import GIB

ENOUGH_TO_CALL_STALE = 300


@dataclass(frozen=True)
class Options:
    """What an audit is asked: so many cases, or a time budget in seconds, or both (whichever ends first).

    Minimising what was found may take the budget once more. ``families`` stands in for those the decoder claims.
    ``isolate`` runs the decoder in a worker process, where a case may take ``case_memory`` bytes (None: no limit).
    ``corpus`` is the folder of cases to run first and to add to; None for none. ``bounds`` is how large cases get.
    """

    cases: int | None = 300
    budget: float | None = None
    seed: int = 0
    jobs: int = 1
    families: tuple[str, ...] = ()
    case_timeout: float = 60.0
    isolate: bool = False
    case_memory: int | None = 2 * GIB
    corpus: Path | None = None
    bounds: Bounds = WIDE


@dataclass(frozen=True)
class ViolationRecord:
    """One fingerprint: how many drawn cases show it, and the smallest case that does.

    ``stored``: the case is one that an earlier audit left in the corpus. ``minimised`` is False where time ran out.
    ``read`` are the fingerprints under which drawn cases count with it.
    """

    fingerprint: str
    count: int
    case: Case
    explanation: Explanation
    traceback: str = ""
    stored: bool = False
    minimised: bool = True
    read: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return render(self.explanation)


@dataclass
class Audit:
    """The result of one decoder's audit.

    ``outcomes`` are those of the drawn cases, ``replayed`` those of the corpus. ``violations`` are of families the
    decoder claims, ``discoveries`` of others; ``doubtful`` are those of both when answers prove not to repeat.
    ``on_pair`` is what the decoder did on trained models, where that was asked.
    """

    decoder: Decoder
    options: Options
    families: tuple[str, ...]
    outcomes: list[Outcome] = field(default_factory=list)
    replayed: list[Outcome] = field(default_factory=list)
    violations: list[ViolationRecord] = field(default_factory=list)
    discoveries: list[ViolationRecord] = field(default_factory=list)
    doubtful: list[ViolationRecord] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    elapsed: float = 0.0
    interrupted: bool = False
    on_pair: OnPair | None = None

    @property
    def claimed(self) -> list[Outcome]:
        """The drawn cases of families that the decoder claims, as far as it decoded them: what the verdict is about."""
        return [outcome for outcome in self._within_claim if not outcome.declined]

    @property
    def declined(self) -> list[Outcome]:
        """The drawn cases of claimed families that the decoder declined."""
        return [outcome for outcome in self._within_claim if outcome.declined]

    @property
    def _within_claim(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.case.family in self.decoder.families]

    @property
    def inconclusive(self) -> int:
        """How many drawn cases of claimed families failed without being a violation, because answers do not repeat."""
        return sum(self.in_doubt(outcome) for outcome in self.claimed)

    def in_doubt(self, outcome: Outcome) -> bool:
        """Whether a failing case is no violation: with one doubtful all are, if not state is proven."""
        doubted = {record.fingerprint for record in self.doubtful}
        return (
            outcome.status == "violation" and bool(doubted) and (not self.keeps_state or outcome.fingerprint in doubted)
        )

    @property
    def keeps_state(self) -> bool:
        """Whether it is proven that answers depend on earlier requests; then what is doubtful may do so, too."""
        return any(v.explanation.component == "state" for v in (*self.violations, *self.discoveries))

    @property
    def verdict(self) -> str:
        """``violation`` if one was confirmed, ``inconclusive`` if runs disagreed or nothing ran."""
        if self.violations or (self.on_pair and self.on_pair.wrong):
            return "violation"
        unasked = self.claimed and not self.coverage.get("target_called")
        statuses = ["inconclusive"] if self.doubtful or self.interrupted or unasked else []
        return merge([*statuses, *(o.status for o in self.claimed if o.status != "violation")])

    @property
    def coverage(self) -> dict[str, int]:
        """How many cases raised each counter."""
        counts = Counter(name for outcome in self.claimed for name in outcome.coverage)
        return dict(sorted(counts.items()))

    @property
    def losses(self) -> Counter[str]:
        """What the draft side lost in all."""
        total: Counter[str] = Counter()
        for outcome in self.claimed:
            total.update(dict(outcome.losses))
        return total

    @property
    def cache_states(self) -> dict[str, int | str]:
        """How many cases were of each cache state, or why none was."""
        counts = Counter(outcome.case.cache_state for outcome in self.claimed)
        states: dict[str, int | str] = {}
        for state in CACHE_STATES:
            if state not in self.decoder.cache_states:
                states[state] = "not taken"
            else:
                idle = state == "wrapped" and not any(FAMILY[name].window for name in self.families)
                states[state] = "not applicable" if idle else counts[state]
        return states

    @property
    def unknown(self) -> list[ViolationRecord]:
        """Violations that the adapter does not declare as known."""
        return [v for v in self.violations if v.fingerprint not in self.decoder.known]

    @property
    def unseen(self) -> list[str]:
        """Fingerprints declared as known that no case showed."""
        seen = {outcome.fingerprint for outcome in (*self.claimed, *self.replayed)}
        seen |= {record.fingerprint for record in (*self.violations, *self.doubtful)}
        return [fingerprint for fingerprint in self.decoder.known if fingerprint not in seen]

    @property
    def stale(self) -> list[str]:
        """`unseen` ones, where enough cases of all claimed families ran to say that they are no more."""
        enough = len(self.claimed) >= ENOUGH_TO_CALL_STALE and set(self.decoder.families) <= set(self.families)
        return self.unseen if enough else []


@dataclass(frozen=True)
class Progress:
    """``done`` of ``total`` cases (``total`` None under a time budget) of one decoder, so many in violation."""

    decoder: str
    done: int
    total: int | None
    violations: int
    stage: str = "cases"


Listener = Callable[[Progress], None]


def stored_violation(audit: Audit, record: ViolationRecord) -> StoredViolation:
    """A violation as its case file tells it."""
    options = audit.options
    return StoredViolation(
        case=record.case,
        adapter=audit.decoder.spec or audit.decoder.name,
        fingerprint=record.fingerprint,
        case_timeout=options.case_timeout,
        isolated=options.isolate,
        case_memory=options.case_memory if options.isolate else None,
        minimised=record.minimised,
        explanation=record.text,
    )


def about_claims(result: Audit) -> list[str]:
    """Warnings on what the audit cannot say, or on what the decoder declares and did not show."""
    warnings = vacuous(result.coverage) if result.claimed else []
    warnings += declining.warnings_of(result.decoder, [*result.claimed, *result.declined])
    warnings += draft_warnings(result.losses)
    if result.outcomes and not (result.claimed or result.declined):
        warnings.append("no case was of a family that the decoder claims: this says nothing about its claim")
    if result.stale:
        warnings += [
            f"STALE: {fingerprint} is declared as known but not seen in {len(result.claimed)} cases; remove it"
            for fingerprint in result.stale
        ]
    elif result.unseen and result.claimed:
        warnings.append(
            f"declared as known but not seen: {', '.join(result.unseen)}; {len(result.claimed)} cases are too few to "
            f"tell whether that is stale ({ENOUGH_TO_CALL_STALE} over all claimed families are enough)"
        )
    return warnings
