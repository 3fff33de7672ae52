"""The audit of a decoder, in any lane: replay, draw, decode, judge, gather, settle, store. It never prints."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any

from eqcheck.audit import events
from eqcheck.audit.lane import Lane
from eqcheck.audit.lanes import conclusions, lanes_of
from eqcheck.audit.time_budget import SEEN_FIRST, Pace, interruptible, pointless
from eqcheck.contract.decoders import Decoder
from eqcheck.contract.errors import UsageError, printable
from eqcheck.contract.requirements import unmet
from eqcheck.core.explanation.notice import INCONCLUSIVE, UNEXPLAINED, VACUOUS, Notice, guarded, internal_error, note
from eqcheck.core.explanation.records import Explanation
from eqcheck.core.explanation.text import render
from eqcheck.core.result import claims
from eqcheck.core.result.findings import Audit, Finding, Options, OtherCase
from eqcheck.core.result.outcome import HANG, HANGS_TO_GIVE_UP, UNTRIED, Outcome
from eqcheck.core.store.casefile import stored_violation
from eqcheck.core.store.corpus import Corpus
from eqcheck.transparent.attribution.leak import of_sequence

# Decide which findings are one, and which other cases show one.

_OTHERS, _OTHER_LENGTH = 4, 3000  # other cases of a finding, and characters of each


def one_of(earlier: Finding, later: Finding) -> Finding | None:
    """One of two findings, where they need the same options and have one cause or look alike; an explained one stays.

    Several fingerprints that were read can prove to be one, or `unattributed`.
    """
    components = {earlier.explanation.component, later.explanation.component}
    alike = set(earlier.seen) & set(later.seen) and len(components - {"unattributed"}) < 2
    if earlier.needs != later.needs or not (alike or earlier.fingerprint == later.fingerprint):
        return None
    better = earlier.explanation.component == "unattributed" != later.explanation.component
    return replace(later if better else earlier, seen=tuple(dict.fromkeys(earlier.seen + later.seen)))


def others_of(result: Audit, finding: Finding) -> tuple[OtherCase, ...]:
    """The first small cases, as they were drawn, that were read to fail by the cause of a finding."""
    shown: list[OtherCase] = []
    for outcome in result.outcomes:
        e = outcome.explanation
        if e is None or not outcome.failed or e.fingerprint != finding.fingerprint or outcome.case == finding.case:
            continue
        case, claimed = outcome.case.to_dict(), result.claims(outcome.case)
        if len(str(case)) <= _OTHER_LENGTH and claimed == (finding.standing != "discovery"):
            text = printable(render(e))[:_OTHER_LENGTH]
            shown.append(OtherCase(case, text, e.row, e.token_index, e.expected, e.observed))
        if len(shown) == _OTHERS:
            break
    return tuple(shown)


UNREPEATED = "the case did not fail again when it was decoded alone, so no cause was searched for"
_TRIES = 3  # cases of a group in which eqcheck itself may fail before the others of the group are left alone
_LAST = 3  # cases that are looked into where time has ended without a violation
_NOT_ASKED = "options of rows were not tested, because simpler cases fail already; fix those, then audit again"


def audit(decoder: Decoder, options: Options, listen: events.Listener = lambda event: None) -> Audit:
    """Audit one decoder. ``KeyboardInterrupt`` ends it early with what there is, marked ``interrupted``.

    >>> from eqcheck.contract.registry import load
    >>> audit(load("eqspec"), Options(cases=20)).verdict
    'equivalent'
    """
    start = time.monotonic()
    result = concluded(audits(decoder, options, listen))
    result.elapsed = time.monotonic() - start
    listen(events.Finished(decoder.name, result))
    return result


def audits(decoder: Decoder, options: Options, listen: events.Listener = lambda event: None) -> list[Audit]:
    """The result of each lane of a decoder's audit, without the conclusions from its counts."""
    begun = time.monotonic()
    first, *others = campaigns = [Campaign(lane, listen) for lane in lanes_of(decoder, options)]
    sampled = any(other.lane.sampled for other in others)
    counts = [one.lane.total for one in campaigns]
    total = None if None in counts else sum(count or 0 for count in counts)

    def ends() -> float:
        uncharged = sum(one.pace.uncharged_s for one in campaigns)
        return begun + options.budget + uncharged if options.budget else float("inf")

    for campaign in campaigns:
        campaign.lane.ends = ends
    drawn = first.result.lane, total, first.result.families, sampled
    listen(events.Started(decoder.name, *drawn, options.budget))
    results = [first.result]
    first.seek()
    if others and options.budget and not _failed_fast(first.result):
        first.seek_more(ends() - (1 - SEEN_FIRST) * options.budget)
    skipped = False
    for other in others:
        if first.result.interrupted or _failed_fast(first.result):
            break
        # Simpler cases fail already: those on a checkpoint, which take longer, are left for a later audit.
        if (other.result.lane, first.result.lane) == ("engine", "transparent") and first.result.violations:
            skipped = True
            continue
        if options.budget:  # what the lanes before it left of their time
            waiting = len(others) - others.index(other)
            other.pace.has_at_least((ends() - time.monotonic()) / waiting)
        results.append(other.collect())
    if others and options.budget:  # what they left of their time
        first.seek_more(ends())
    first.finish()
    first.result.warnings += [_NOT_ASKED] if skipped else []
    return results


def concluded(audits: list[Audit]) -> Audit:
    """The result of all lanes together, with the conclusions of each."""
    for audit in audits:
        with guarded(audit.internal, "conclude", lane=audit.lane):
            conclusions(audit)
        audit.findings.sort(key=lambda finding: -finding.count)
    result, *others = audits
    for other in others:
        result.join(other)
    # A feature that no case exercised is no news where the drawing ended early, or most rows go wrong before it.
    if _failed_fast(result) or _hidden(result):  # it ended, or the rows did, before there could be more
        result.warnings = [said for said in result.warnings if not isinstance(said, Notice) or said.kind != VACUOUS]
    result.unreached = [left for left in result.unreached if not result.tally.tested[left.claim]]
    if result.unreached and result.tally.drawn:
        result.warnings.append(_untested(result))
    return result


def _untested(result: Audit) -> Notice:
    """The warning about claims that no case tested; it decides the verdict where more cases would have tested them."""
    kind = INCONCLUSIVE if result.silent and not result.violations else VACUOUS
    profile = result.options.profile.name if result.options.profile else ""
    return Notice(claims.sentence(result.unreached, result.tally.drawn, profile), kind)


def _hidden(result: Audit) -> bool:
    """Return whether so many cases fail that what none of them exercised says nothing: rows go wrong before it."""
    return bool(result.unknown) and 2 * result.tally.statuses["violation"] > result.tally.run


def _failed_fast(result: Audit) -> bool:
    """Return whether a violation ended the drawing, one that is not known."""
    passing = result.options.fail_fast
    return passing is not None and any(finding.fingerprint not in passing for finding in result.violations)


class Campaign:
    """An audit while it runs. ``pending`` are the failing cases that belong to no finding yet.

    Where eqcheck itself fails in the work on a case, the error is recorded and the audit goes on. A failing case whose
    cause cannot be searched for is set ``aside``: it counts with a finding of another case, if one is found, else as it
    was judged.
    """

    def __init__(self, lane: Lane, listen: events.Listener) -> None:
        self.lane, self.listen, self.result = lane, listen, lane.result
        options, name = self.result.options, self.result.decoder.name
        self.total = lane.total
        self.corpus = Corpus(options.corpus, name) if options.corpus else None
        self.source = self._drawn_from(options.cases)
        self.pending: dict[int, Outcome] = {}  # by identity: there may be many thousands
        self.failing = 0  # drawn cases within the claim
        self.gathered = 0  # all that failed, those of the corpus as well
        self.groups_seen: set[Hashable] = set()
        self.notes: dict[str, None] = {}
        self.hung: Counter[str] = Counter()
        self.decoded = 0  # drawn cases, judged or not
        self.aside: list[Outcome] = []
        self.failed_tries: Counter[Hashable] = Counter()  # by group
        self.over = False
        self.pace, lane.on_loading, lane.on_loaded = Pace(lane), partial(self.tell, events.Loading), self._loaded
        self.new = self.looking = False  # whether a kind of failure is new, and whether failing cases are looked into
        lane.on_step = partial(self.tell, events.Working)
        self.check: Callable[[], None] = lambda: None

    def run(self) -> None:
        """`collect`, and draw the conclusions of this lane."""
        concluded([self.collect()])

    def collect(self) -> Audit:
        """The result of this lane, without the conclusions from its counts."""
        self.seek()
        return self.finish()

    def seek(self) -> None:
        """Replay, then draw and settle by turns; whatever happens, nothing that was seen is lost."""
        self.pace.begins(time.monotonic())
        with self._kept():
            self.replay()
            while self.draw():
                self.settle(first=self.new)
            self.settle()
            for outcome in sorted(self.pending.values(), key=self.lane.rank)[:_LAST]:
                if not self.result.violations:  # better one without a cause than none, however late it is
                    self._findings(self.pending.pop(id(outcome)), [outcome], 1)

    def seek_more(self, end: float) -> None:
        """Look into failing cases that wait, until then: a time on the monotonic clock."""
        if self.pending and not self.result.interrupted and self.pace.resumes(end):
            with self._kept():
                self.settle()

    @contextmanager
    def _kept(self) -> Iterator[None]:
        """The decoder set up; an interruption ends that, and what was seen is kept."""
        try:
            with interruptible() as self.check, self.lane.drawing():
                yield
        except KeyboardInterrupt:
            self.result.interrupted = True
            more = "; not every case below was made small: run the audit again to its end" if self.pending else ""
            self._keep_the_rest()
            self.result.warnings.append(f"interrupted{more}")
        except UsageError:
            raise
        except Exception as error:  # the last resort: whatever it is, what was seen is reported
            note(self.result.internal, internal_error("draw", error, lane=self.result.lane))
            self._keep_the_rest()

    def finish(self) -> Audit:
        """Sum up what was seen."""
        result, lane = self.result, self.result.lane
        for outcome in self.aside:
            self._count_or_add(outcome)
        result.unsettled = sum(outcome.drawn for outcome in self.pending.values())
        result.warnings[:0] = [*([result.decoder.note] if result.decoder.note else []), *self.notes]
        result.warnings += dict.fromkeys(self.corpus.warnings) if self.corpus else ()
        with guarded(result.internal, "conclude", lane=lane):
            self.lane.conclude()
        if not (result.interrupted or result.violations):
            with guarded(result.internal, "conclude", lane=lane):
                result.unreached = self.lane.unreached()
        for number, finding in enumerate(result.findings):
            with guarded(result.internal, "render", finding.case):
                result.findings[number] = replace(finding, others=others_of(result, finding))
        return result

    def _count_or_add(self, outcome: Outcome) -> None:
        """Count a case that was set aside with a finding that looks like it, or make it one of its own."""
        if (number := self.result.explained_by(outcome)) is not None:
            self.result.findings[number] = _with(self.result.findings[number], [outcome])
        else:
            self.add(self._unsettled(outcome, UNEXPLAINED), [outcome])

    def _unsettled(self, outcome: Outcome, why: str) -> Finding:
        """`Lane.unsettled`; where eqcheck fails even there, the finding says which case is wrong, and no more."""
        with guarded(self.result.internal, "explain", outcome.case):
            return self.lane.unsettled(outcome, why)
        bare = Explanation("unattributed", "unattributed", detail=UNEXPLAINED)
        return Lane.unsettled(self.lane, replace(outcome, explanation=outcome.explanation or bare))

    def _keep_the_rest(self) -> None:
        """Count what nobody had the time to look into with findings that look alike, or as findings of its own."""
        for group in self.groups():
            claimed = self.result.claims(group[0].case)
            for number, finding in enumerate(self.result.findings):
                if group[0].symptom in finding.seen and self.result.claims(finding.case) == claimed:
                    self.result.findings[number] = _with(finding, group)
                    break
            else:
                self.add(self._unsettled(group[0], UNTRIED), group)
        self.pending = {}

    def _loaded(self, seconds: float) -> None:
        if not self.looking:  # else it is part of the search for a cause
            self.pace.extends(seconds)
            self.tell(events.Loaded, seconds)

    def tell(self, event: type[events.Event], *values: Any) -> None:
        self.listen(event(self.result.decoder.name, *values))

    def replay(self) -> None:
        """Decode what broke the decoder before, as far as it is of this lane and within what is asked."""
        for path, stored in self.corpus.load().items() if self.corpus else ():
            if not self._replays(stored.case):
                continue
            outcome = None
            with guarded(self.result.internal, "judge", stored.case):
                outcome = of_sequence(self.lane.running.try_case(stored.case), stored.fingerprint or "")
            if outcome is None:
                continue
            same = outcome.failed if self.lane.conditional else outcome.symptom == stored.fingerprint
            outcome = replace(outcome, drawn=False, minimal=stored.minimised and same)
            self.result.replayed.append(outcome)
            if not same and self.corpus:
                self.corpus.retire(path)
            if outcome.failed:
                self.gather(outcome)
            self.tell(events.CaseDone, len(self.result.replayed), None, self.failing, True, self.result.lane, outcome)
            self.check()

    def _replays(self, case: Any) -> bool:
        """Return whether to decode a stored case: there is time, it is of this lane, and the decoder takes it."""
        return not self.over and self.pace.replays() and self.lane.asks(case) and self._meets(case)

    def _of_sequence(self, outcome: Outcome) -> Outcome:
        """Return how a case after other requests is told.

        A decoder that no new process can load decodes it without these, too.
        """
        if outcome.failed and outcome.case.before and not self.result.decoder.spec:
            alone = self.lane.running.try_case(outcome.case.alone)
            if alone.failed:
                return alone
        return of_sequence(outcome)

    def _recorded(self, outcome: Outcome) -> Outcome:
        """Record the outcome of a drawn case; one that eqcheck itself could not judge is an error, and no outcome."""
        if outcome.internal is not None:
            note(self.result.internal, outcome.internal)
            return outcome
        outcome = self._of_sequence(outcome)
        self.result.outcomes.append(outcome)
        return outcome

    def draw(self) -> bool:
        """Decode new cases until it is time to look into what fails, or there are no more; False: none was left."""
        start, count, self.new = time.monotonic(), self.decoded, False
        until = None if self.over else self.pace.draws_until(start)
        if until is None:
            return False
        running = self.lane.running
        for outcome in running.outcomes(self._cases(until)):
            if outcome.case.family in running.given_up:
                continue
            self.decoded += 1
            outcome = self._recorded(outcome)
            self.check()
            self.notes.update(dict.fromkeys([running.note] if running.note else []))
            if outcome.failed:
                self.failing += self.result.claims(outcome.case)
                self.gather(outcome)
            done = self.decoded, self.total, self.failing, False, self.result.lane, outcome
            self.tell(events.CaseDone, *done, *self.lane.evidence)
            self.over |= outcome.symptom == HANG and self._gives_up(outcome)
            self.over |= pointless(self.result.outcomes)
            if self.over:
                break
        self.result.version = running.version or self.result.version
        self.result.drawing_s += time.monotonic() - start
        return self.decoded > count

    def _meets(self, case: Any) -> bool:
        """Return whether the decoder takes a case, as the report says of each case that was decoded."""
        return not unmet(case, self.result.decoder.requires)

    def _drawn_from(self, count: int | None) -> Iterator[Any]:
        """Yield so many cases of the lane that the decoder takes, and more of them where the lane goes on."""
        for number, case in enumerate(filter(self._meets, self.lane.cases())):
            if count is not None and number >= count and not self.lane.goes_on(number):
                return
            yield case

    def _cases(self, until: float) -> Iterator[Any]:
        charged = until - self.pace.uncharged_s
        while (
            not self.new
            and time.monotonic() < charged + self.pace.uncharged_s
            and (case := next(self.source, None)) is not None
        ):
            yield case

    def _gives_up(self, outcome: Outcome) -> bool:
        """Return whether too many cases within the claim hung; a family beyond it is given up by itself."""
        claimed, family = self.result.claims(outcome.case), outcome.case.family
        key = "" if claimed else family
        self.hung[key] += 1
        if self.hung[key] != HANGS_TO_GIVE_UP:
            return False
        what = "the audit stopped" if claimed else f"family {family}, which is not claimed, was left out"
        limit = f"{self.result.options.case_timeout:g} s"
        self.result.warnings.append(
            f"{what} after {HANGS_TO_GIVE_UP} cases took more than {limit}; if they are only slow, raise --case-timeout"
        )
        self.lane.running.given_up |= set() if claimed else {family}
        return claimed

    def gather(self, outcome: Outcome) -> None:
        """Keep a failing case for later, and store the first of its group before anything else can go wrong."""
        self.pending[id(outcome)] = outcome
        self.gathered += 1
        passing, claimed = self.result.options.fail_fast, self.result.claims(outcome.case)
        if passing is not None and claimed and outcome.symptom not in {*passing, *self.result.decoder.known}:
            self.over = True
        group = self._likeness(outcome)
        if group not in self.groups_seen:
            self.groups_seen.add(group)
            self.new |= self.pace.looks_now()
            self.tell(events.ViolationSeen, outcome, len(self.groups_seen))
            if not outcome.minimal:
                self.store(self._unsettled(outcome, UNTRIED))

    def store(self, finding: Finding, looked_into: bool = False) -> None:
        """Keep the case of a finding, unless it takes a look to know what the case needs."""
        if self.corpus and (looked_into or not self.lane.conditional):
            outcome = finding.outcome
            # A case that fails after other requests may fail without them, too; then it is stored as what it shows.
            told = finding.fingerprint if outcome.component == "state" else outcome.symptom
            name = finding.id if self.lane.conditional else told
            with guarded(self.result.internal, "render", finding.case):
                self.corpus.store(stored_violation(self.result, finding, name), self.result.claims(finding.case))

    def groups(self) -> list[list[Outcome]]:
        groups: dict[Hashable, list[Outcome]] = {}
        for outcome in self.pending.values():
            groups.setdefault(self._likeness(outcome), []).append(outcome)
        by_turns = list(groups.values())
        if self.lane.conditional:  # the fewest options first, then what is frequent
            by_turns.sort(key=lambda group: (len(self.lane.condition(group[0].case)), -len(group)))
            symptoms = [group[0].symptom for group in by_turns]  # time may end: each symptom once before any again
            turns = [symptoms[:place].count(symptom) for place, symptom in enumerate(symptoms)]
            by_turns = [group for _, group in sorted(zip(turns, by_turns, strict=True), key=itemgetter(0))]
        return [sorted(group, key=self.lane.rank) for group in by_turns]

    def _likeness(self, outcome: Outcome) -> Hashable:
        """The likeness of failing cases: one stands for all, until more is known."""
        return self.result.claims(outcome.case), outcome.symptom, self.lane.condition(outcome.case)

    def settle(self, first: bool = False) -> None:
        """Look into failing cases, a finding from each group by turns, until each counts with a finding.

        ``first``: drawing waits for it, so the look is short.
        """
        if not (groups := self.groups()):
            return
        self._tell_settling(groups[0][0].symptom, len(self.result.findings) + 1)  # to set up takes long
        self.pace.settling(len(self.pending), first)
        with self._looking(), self.lane.settling(self.check):
            for group in groups:
                self._look(group, len(groups), eager=True)
            while any(groups) and not self.pace.late(len(self.pending)):
                for group in filter(None, groups):
                    self._look(group, sum(map(bool, groups)), eager=False)
            for outcome in list(self.pending.values()):  # no time for more findings: count with those there are
                if not self.pace.late(0) and self._counts(outcome):
                    del self.pending[id(outcome)]
            self._tell_settling("", len(self.result.findings))

    @contextmanager
    def _looking(self) -> Iterator[None]:
        self.looking, begun = True, time.monotonic()
        try:
            yield
        finally:
            self.looking = False
            self.pace.looked_s += time.monotonic() - begun

    def _tell_settling(self, symptom: str, number: int) -> None:
        self.tell(events.Settling, symptom, number, self.gathered - len(self.pending), self.gathered)

    def _look(self, group: list[Outcome], groups: int, eager: bool) -> None:
        """Look into the next case of a group; ``eager``: into cases that may tell its cause, until one does."""
        for outcome in self.lane.telling(group) if eager else [min(group, key=self.lane.rank)]:
            if self.pace.late(len(self.pending), eager):
                return
            self.check()
            findings = None
            if not self._counts(outcome):
                self._tell_settling(outcome.symptom, len(self.result.findings) + 1)
                if eager and not self._tells(outcome):
                    continue
                findings = self._findings(outcome, group, groups)
            group.remove(outcome)
            del self.pending[id(outcome)]
            if findings:
                return

    def _findings(self, outcome: Outcome, group: list[Outcome], groups: int) -> list[Finding] | None:
        """Add the findings that a failing case shows; None where it does not fail again.

        So many ``groups`` still wait for their turn, and share the time. Where eqcheck itself fails, the case is set
        aside; after a few of a group, the whole group.
        """
        findings: list[Finding] | None = []
        failed = True
        with guarded(self.result.internal, "explain", outcome.case):
            findings = self.lane.explain(outcome, group, partial(self.pace.left, groups, len(self.pending)))
            failed = False
        if failed:
            self._set_aside(outcome, group)
        for finding in findings or ():
            self.add(finding, [outcome], looked_into=True)
        if findings and outcome.component == "state":
            self._told(outcome, findings[0])
        if findings is None:
            doubtful = replace(self._unsettled(outcome, UNREPEATED), standing="inconclusive")
            self.add(_without_a_guess(doubtful), [outcome])
        return findings

    def _told(self, outcome: Outcome, finding: Finding) -> None:
        """Keep what a case after other requests shows, now that it is known whether these have a part in it."""
        drawn = self.result.outcomes
        number = next((number for number, one in enumerate(drawn) if one is outcome), None)
        if number is not None:
            drawn[number] = replace(outcome, explanation=finding.explanation)

    def _set_aside(self, outcome: Outcome, group: list[Outcome]) -> None:
        self.aside.append(outcome)
        likeness = self._likeness(outcome)
        self.failed_tries[likeness] += 1
        if self.failed_tries[likeness] >= _TRIES:
            for other in group:
                if other is not outcome and self.pending.pop(id(other), None) is not None:
                    self.aside.append(other)
            group[:] = [outcome]

    def _tells(self, outcome: Outcome) -> bool:
        with guarded(self.result.internal, "explain", outcome.case):
            return self.lane.tells(outcome)
        return False

    def _counts(self, outcome: Outcome) -> bool:
        """Count a failing case with the finding that it belongs to, if there is one."""
        number = None
        with guarded(self.result.internal, "explain", outcome.case):
            number = self.lane.counted(outcome)
        if number is not None:
            self.result.findings[number] = _with(self.result.findings[number], [outcome])
        return number is not None

    def add(self, finding: Finding, shown_by: Sequence[Outcome], looked_into: bool = False) -> None:
        """Add a finding that these cases show, or count them with an earlier one that it is not distinct from."""
        finding, findings = _with(replace(finding, count=0), shown_by), self.result.findings
        self.store(finding, looked_into)
        for number, earlier in enumerate(findings):
            if earlier.standing == finding.standing and (joined := one_of(earlier, finding)):
                findings[number] = _with(replace(joined, count=earlier.count, replayed=earlier.replayed), shown_by)
                return
        findings.append(finding)
        self.tell(events.Settled, finding)


def _without_a_guess(finding: Finding) -> Finding:
    """The finding of a case that did not fail again; that earlier requests have a part in it was taken for granted."""
    e = finding.explanation
    if e.component != "state":
        return finding
    bare = replace(e, component="unattributed", kind="unattributed", detail=UNREPEATED, facts={})
    return replace(finding, explanation=bare)


def _with(finding: Finding, shown_by: Sequence[Outcome]) -> Finding:
    """The finding with these cases counted, too: drawn ones, and those that earlier audits stored."""
    drawn = sum(outcome.drawn for outcome in shown_by)
    return replace(finding, count=finding.count + drawn, replayed=finding.replayed + len(shown_by) - drawn)
