"""The options and the result of an audit, as data of every lane."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eqcheck.contract.decoders import Decoder
from eqcheck.contract.known_violations import Known
from eqcheck.contract.profiles import CASE_MEMORY, CASE_TIMEOUT, WIDE, Bounds, Profile
from eqcheck.core.explanation.notice import InternalError, note
from eqcheck.core.explanation.records import Explanation, many
from eqcheck.core.result.claims import Unreached
from eqcheck.core.result.outcome import Outcome, Story, merge
from eqcheck.core.result.tally import Tally

if TYPE_CHECKING:
    from eqcheck.sampling.betting.exclusion import Exclusion
    from eqcheck.sampling.betting.wealth import Wealth

STANDINGS = {"violations": "violation", "discoveries": "discovery", "inconclusive": "inconclusive", "slow": "slow"}
"""The groups of a report's findings, and what each finding of them is; the gravest first.

What is slow loses draft tokens: its output is right, and it counts for no verdict."""


@dataclass(frozen=True)
class Options:
    """The options of an audit: so many cases, or a time budget in seconds, or both (whichever ends first).

    ``families`` stands in for those the decoder claims. ``isolate``: the decoder is in a worker process, where a case
    may take ``case_memory`` bytes, if any. ``corpus`` is the folder of cases to run first and to add to; None for none.
    ``bounds`` is how large cases get, and ``bounded`` names those of them that the user gave. ``python`` is the Python
    to decode with, on checkpoints. ``memory``: measure what keys and values take. A ``profile`` says how many cases
    each lane draws, and how large. ``usual``: nobody asked for so many cases, and a lane that is in doubt may draw
    more. ``block``: so many cases of an engine are under one setting. ``fail_fast``: none is
    drawn after one that fails, but for these fingerprints; None: all are.
    """

    cases: int | None = 300
    budget: float | None = None
    seed: int = 0
    jobs: int = 1
    families: tuple[str, ...] = ()
    case_timeout: float = CASE_TIMEOUT
    isolate: bool = False
    case_memory: int | None = CASE_MEMORY
    corpus: Path | None = None
    bounds: Bounds = WIDE
    bounded: tuple[str, ...] = ()
    python: str = ""
    memory: bool = False
    profile: Profile | None = None
    usual: bool = False
    block: int | None = None
    fail_fast: frozenset[str] | None = None

    def within(self, usual: Bounds) -> Bounds:
        """The ``usual`` bounds of a lane, but for the ones the user gave.

        >>> Options(bounds=Bounds(rows=3), bounded=("rows",)).within(Bounds(rows=128, prompt=1600))
        Bounds(rows=3, prompt=1600, new_tokens=20, draft_tokens=8)
        """
        return replace(usual, **{name: getattr(self.bounds, name) for name in self.bounded})


@dataclass(frozen=True)
class OtherCase:
    """Another drawn case that fails likewise, as it was read then: not made smaller, and not looked into again."""

    case: dict[str, Any]
    explanation: str
    row: int | None
    token_index: int | None
    expected: int | None
    observed: int | None


@dataclass(frozen=True)
class Finding:
    """One cause under one condition: how many drawn and ``replayed`` cases show it, and the smallest that does.

    ``standing`` is one of `STANDINGS`: a discovery is made beyond what the decoder claims, and what is inconclusive did
    not fail time and again. ``needs`` are the options without which the case is right, ``plain`` what the decoder does
    without speculation (``right``, ``wrong too``, or empty where that is not known). ``seen`` are the symptoms under
    which drawn cases count with it. ``stored``: the case is one that an earlier audit left in the corpus.
    ``minimised`` is False where time ran out. ``axes`` and ``only`` say on which cases it shows. ``script`` shows the
    finding without eqcheck, where there is such a script; ``story`` is what befell the row, where the calls were seen.
    ``others`` are some more cases that show it. ``count`` is of drawn cases alone; ``replayed`` counts the cases that
    earlier audits stored. ``tokens`` are the draft tokens that were lost by a cause of slowness, and those that could
    have been accepted.
    """

    outcome: Outcome
    explanation: Explanation
    count: int = 1
    standing: str = "violation"
    needs: tuple[str, ...] = ()
    plain: str = ""
    seen: tuple[str, ...] = ()
    stored: bool = False
    minimised: bool = True
    axes: Mapping[str, Mapping[str, tuple[int, int]]] = field(default_factory=dict)
    only: tuple[str, ...] = ()
    script: str | None = None
    story: Story | None = None
    others: tuple[OtherCase, ...] = ()
    replayed: int = 0
    tokens: tuple[int, int] = (0, 0)

    @property
    def fingerprint(self) -> str:
        return self.explanation.fingerprint

    @property
    def case(self) -> Any:
        return self.outcome.case

    @property
    def id(self) -> str:
        """The fingerprint, and the condition: what the finding's files are named after."""
        return ":".join([self.fingerprint, *self.needs])


@dataclass(frozen=True)
class LawEvidence:
    """The evidence of all sampled tokens of an audit; see `eqcheck.sampling.betting.wealth`.

    A right decoder's ``evidence`` ever reaches a number c with a probability of at most 1/c. ``greatest`` is the most
    that it was after any token; at ``threshold`` the verdict is ``violation``. ``excludes`` says how large an error
    would have been seen, in sentences; ``regimes`` counts the tokens of each regime. ``course`` are points of the
    evidence over tokens: how many tokens, and the decimal logarithm of the evidence then.
    """

    tokens: int
    evidence: float
    greatest: float
    threshold: float
    verdict: str
    excludes: tuple[str, ...]
    regimes: dict[str, int]
    course: tuple[tuple[int, float], ...] = ()


@dataclass
class Audit:
    """The result of one decoder's audit in one ``lane``.

    Cases were drawn of ``families``; a failure on one of ``claimed_families`` is a violation.
    ``outcomes`` are those of the drawn cases, ``replayed`` those of the corpus. ``unsettled`` counts failing cases that
    nobody had the time to look into, ``vacuous`` is True where nothing shows that the decoder asked the target.
    ``evidence`` is what its sampled tokens say. ``facts`` are what only this lane has to say, by the names of the
    report; ``files`` are what it adds to the report's folder. ``listed`` are violations that the user lists as known,
    by fingerprint, ``outdated`` says why the audit fails beside them: entries are past or gone, or too many draft
    tokens are lost. ``written`` is the date, ``command`` what was typed. ``counted`` are cases drawn elsewhere, without
    outcomes here. ``wealth`` and ``exclusion`` make up the evidence; ``telling`` is the case that adds most to it, with
    the natural logarithm of that.
    ``unreached`` are the claims that no drawn case tested. ``internal`` are the errors of eqcheck itself; a case that
    it could not judge is in no count.
    """

    decoder: Decoder
    options: Options
    lane: str = "transparent"
    families: tuple[str, ...] = ()
    claimed_families: tuple[str, ...] = ()
    version: str = ""
    outcomes: list[Outcome] = field(default_factory=list)
    replayed: list[Outcome] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    unsettled: int = 0
    vacuous: bool = False
    warnings: list[str] = field(default_factory=list)
    evidence: LawEvidence | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    listed: dict[str, Known] = field(default_factory=dict)
    outdated: list[str] = field(default_factory=list)
    written: str = ""
    command: str = ""
    drawing_s: float = 0.0
    elapsed: float = 0.0
    interrupted: bool = False
    counted: Tally = field(default_factory=Tally)
    wealth: Wealth | None = None
    exclusion: Exclusion | None = None
    telling: tuple[float, Outcome] | None = None
    unreached: list[Unreached] = field(default_factory=list)
    internal: list[InternalError] = field(default_factory=list)
    _tally: tuple[tuple[int, int], Tally] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def tally(self) -> Tally:
        """The counts of all cases: conclusions and reports rest on them."""
        size = len(self.outcomes), len(self.replayed)
        if self._tally is None or self._tally[0] != size:
            self._tally = size, self.counted + Tally.of(self.outcomes, self.replayed, self.claims)
        return self._tally[1]

    def join(self, other: Audit) -> None:
        """Count what another lane found of the same decoder with this."""
        self.counted, self._tally = self.counted + other.counted, None
        for name in ("outcomes", "replayed"):
            getattr(self, name).extend(getattr(other, name))
        self.warnings += [warning for warning in other.warnings if warning not in self.warnings]
        mine = {(finding.fingerprint, finding.standing): number for number, finding in enumerate(self.findings)}
        for finding in other.findings:
            number = mine.get((finding.fingerprint, finding.standing))
            if number is None:
                self.findings.append(finding)
                continue
            counted = self.findings[number]
            seen, count = (*counted.seen, *finding.seen), counted.count + finding.count
            replayed = counted.replayed + finding.replayed
            self.findings[number] = replace(counted, count=count, replayed=replayed, seen=seen)
        self.findings.sort(key=lambda finding: -finding.count)
        self.unsettled += other.unsettled
        self.drawing_s += other.drawing_s
        self.interrupted |= other.interrupted
        self.unreached += other.unreached
        for error in other.internal:
            note(self.internal, error)
        self.evidence = other.evidence or self.evidence
        self.files |= other.files

    def explained_by(self, outcome: Outcome) -> int | None:
        """The number of the finding that has this symptom, of claimed cases or of others as this one is."""
        claimed = self.claims(outcome.case)
        numbered = enumerate(self.findings)
        alike = (n for n, one in numbered if outcome.symptom in one.seen and self.claims(one.case) == claimed)
        return next(alike, None)

    def of(self, standing: str) -> list[Finding]:
        return [finding for finding in self.findings if finding.standing == standing]

    @property
    def violations(self) -> list[Finding]:
        return self.of("violation")

    @property
    def discoveries(self) -> list[Finding]:
        return self.of("discovery")

    @property
    def doubtful(self) -> list[Finding]:
        return self.of("inconclusive")

    @property
    def claimed(self) -> list[Outcome]:
        """The drawn cases within the decoder's claim, as far as it decoded them: what the verdict is about."""
        return [outcome for outcome in self.outcomes if self.claims(outcome.case) and not outcome.declined]

    def claims(self, case: Any) -> bool:
        """Return whether the decoder claims to be right on the case;
        checkpoints are drawn of the kinds that it claims.
        """
        return case.family in self.claimed_families or bool(case.checkpoint)

    @property
    def inconclusive(self) -> int:
        """Return how many drawn cases within the claim failed without being a violation."""
        return sum(finding.count for finding in self.doubtful if self.claims(finding.case)) + self.unsettled

    @property
    def silent(self) -> bool:
        """Return whether a claim went untested that more cases would have tested; a profile says what it leaves out."""
        return not self.options.profile and any(one.cases is not None for one in self.unreached)

    @property
    def verdict(self) -> str:
        """``violation`` if one was confirmed, ``inconclusive`` if runs disagreed, or a claim or all was untested.

        It is inconclusive as well where eqcheck itself failed: nothing that it could not judge passes for right.
        """
        if self.violations:
            return "violation"
        unclear = bool(
            self.internal or self.doubtful or self.interrupted or self.unsettled or self.vacuous or self.silent
        )
        unclear |= self.evidence is not None and self.evidence.verdict == "inconclusive"
        return merge(
            [*["inconclusive"] * unclear, *(status for status in self.tally.statuses if status != "violation")]
        )

    @property
    def coverage(self) -> dict[str, int]:
        """Return how many cases raised each counter."""
        return dict(sorted(self.tally.coverage.items()))

    @property
    def causes(self) -> Mapping[str, list[Finding]]:
        """The violations by cause, the most frequent first; of each cause the conditions, likewise."""
        return by_cause(self.violations)

    @property
    def unknown(self) -> list[Finding]:
        """Violations that the adapter does not declare as known."""
        return [finding for finding in self.violations if finding.fingerprint not in self.decoder.known]

    def failing(self, allow_declared: bool = False) -> list[Finding]:
        """Violations that are not listed as known, nor, where that is allowed, declared so by the adapter."""
        violations = self.unknown if allow_declared else self.violations
        return [finding for finding in violations if finding.fingerprint not in self.listed]

    def list_known(self, entries: Iterable[Known], today: date, strict: bool = False) -> None:
        """Let pass what is listed as known, and warn of what is so no longer: its day is past, or it did not occur.

        Where ``strict`` is asked, such entries are ``outdated``: they fail, but not an entry that too few cases would
        have shown.
        """
        for entry in entries:
            if not entry.of(self.decoder.name):
                continue
            gone = entry.fingerprint not in self._shown
            if why := entry.outdated(today, self._cases_without if gone else ""):
                self.warnings.append(why)
                if strict and (entry.until < today or self._enough):
                    self.outdated.append(why)
            if entry.until >= today:
                self.listed[entry.fingerprint] = entry

    @property
    def _cases_without(self) -> str:
        """The cases that ran, in words, and how many of them fail, which may hide what none of them shows."""
        run, failing = self.tally.run, self.tally.statuses["violation"]
        fail = "fails" if failing == 1 else "fail"
        return many(run, "case") + (f", and {failing} of them {fail} otherwise, which may hide it" if failing else "")

    @property
    def _shown(self) -> set[str]:
        """The fingerprints that a case showed."""
        return self.tally.fingerprints | {finding.fingerprint for finding in (*self.violations, *self.doubtful)}

    @property
    def unseen(self) -> list[str]:
        """Fingerprints declared as known that no case showed."""
        return [known for known in self.decoder.known if known not in self._shown]

    @property
    def stale(self) -> list[str]:
        """`unseen` ones, where enough cases of all claimed families ran to say that they are no more."""
        return self.unseen if self._enough else []

    @property
    def _enough(self) -> bool:
        """Return whether so many cases ran that what none of them showed is no more."""
        return self.tally.run >= ENOUGH_TO_CALL_STALE and set(self.claimed_families) <= set(self.families)


ENOUGH_TO_CALL_STALE = 300


def by_cause(findings: list[Finding]) -> dict[str, list[Finding]]:
    """Findings by fingerprint, in order of their number of cases."""
    causes: dict[str, list[Finding]] = {}
    for finding in sorted(findings, key=lambda finding: -finding.count):
        causes.setdefault(finding.fingerprint, []).append(finding)
    return dict(sorted(causes.items(), key=lambda item: -sum(finding.count for finding in item[1])))
