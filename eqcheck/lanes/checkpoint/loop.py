"""The audit of an engine: draw, decode, judge; then confirm, minimise and explain what is wrong. It never prints."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import islice, takewhile

import torch

from eqcheck.campaign.casefile import StoredViolation
from eqcheck.campaign.corpus import Corpus
from eqcheck.campaign.result import Listener, Options, Progress
from eqcheck.contract import Decoder
from eqcheck.lanes.checkpoint.abduction import Abduced
from eqcheck.lanes.checkpoint.case import EngineCase
from eqcheck.lanes.checkpoint.checkpoints import checkpoint
from eqcheck.lanes.checkpoint.drawing import Axes, alike
from eqcheck.lanes.checkpoint.explain import UNTRIED, abduced, common, explain, fitting, misused
from eqcheck.lanes.checkpoint.judge import Judge
from eqcheck.lanes.checkpoint.outcome import HELD_BACK, TOO_EARLY, WRONG_TOKEN, EngineOutcome, judged
from eqcheck.lanes.checkpoint.result import EngineAudit, Finding, warnings_of
from eqcheck.lanes.checkpoint.script import checked_script
from eqcheck.lanes.checkpoint.shrink import minimise, needs, without
from eqcheck.requirements import unmet
from eqcheck.workers.spawned import EngineWorker

HANG = "crash/hang"
HANGS_TO_GIVE_UP = 3
REPEATS = 3
LOOKING = 0.9  # of a time budget; then scripts are finished
DRAWING, DRAWING_AT_MOST = 0.25, 0.5  # of what is left of that in each round; the latter for the cases of a verdict
VERDICT = 1000  # cases
LEAST_ROUND = 0.08  # of the budget
MINIMISE_S, EXPLAIN_S = 20.0, 20.0  # for a finding, and for the first cases of a group
_LAST_RESORT_S = 3600.0
_EXPLAINED = 3  # cases of a group that abduction is asked about first


def audit(decoder: Decoder, options: Options, python: str, listen: Listener = lambda event: None) -> EngineAudit:
    """Audit one engine in the environment of ``python``. ``KeyboardInterrupt`` ends it early with what there is."""
    start = time.monotonic()
    result = EngineAudit(decoder, options, python)
    with EngineWorker(decoder, python, options.case_timeout) as worker:
        worker.open()
        result.version = worker.version
        under_way = _UnderWay(result, worker, listen)
        try:
            under_way.replay()
            drawn = True
            while drawn:
                drawn = under_way.draw()
                under_way.settle()
        except KeyboardInterrupt:
            result.interrupted = True
            result.warnings.append("interrupted")
        under_way.close()
    result.warnings += warnings_of(result)
    result.findings.sort(key=lambda finding: -finding.count)
    result.elapsed = time.monotonic() - start
    return result


class _UnderWay:
    """An audit while it runs."""

    def __init__(self, result: EngineAudit, worker: EngineWorker, listen: Listener) -> None:
        self.result, self.worker, self.listen = result, worker, listen
        self.judge = Judge(result.decoder.dtype)
        self.corpus = Corpus(result.options.corpus, result.decoder.name) if result.options.corpus else None
        drawn = Axes(result.options.seed, result.decoder.capabilities).cases()
        self.source = islice((case for case in drawn if self._asked(case)), result.options.cases)
        self.pending: list[EngineOutcome] = []
        self.causes: dict[int, Abduced] = {}  # by number of finding
        self.scripting = ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,))
        self.scripts: dict[str, Future[str | None]] = {}  # by fingerprint
        self.hung = 0
        self.begun, self.budget = time.monotonic(), result.options.budget

    def _asked(self, case: EngineCase) -> bool:
        return not unmet(case.strictest(), self.result.decoder.requires)

    @property
    def end(self) -> float:
        """When to stop looking."""
        return self.begun + (self.budget * LOOKING if self.budget else _LAST_RESORT_S)

    def replay(self) -> None:
        """Decode what broke the engine before; cases of other checkpoints cannot be."""
        if self.corpus is None:
            return
        for path, stored in self.corpus.load().items():
            if self.budget and time.monotonic() > self.begun + self.budget * DRAWING_AT_MOST:
                break
            if not isinstance(stored.case, EngineCase) or stored.case.checkpoint not in ("", checkpoint().name):
                self.corpus.retire(path)
            elif self._asked(stored.case):
                outcome = replace(self._decode(stored.case), drawn=False)
                self.result.replayed.append(outcome)
                self.pending += [outcome] if outcome.status == "violation" else []
                self._tell("corpus")

    def close(self) -> None:
        """Say what was left, and keep the smallest case of each finding."""
        none = not self.result.findings and not self.result.interrupted
        if self.pending and none:  # better one without a cause than none
            outcome = self.pending.pop(0)
            self._find(outcome) if self._repeats(outcome) else self.result.doubtful.append(outcome)
        self.result.unsettled = sum(outcome.drawn for outcome in self.pending)
        if self.pending:
            self.result.warnings.append(
                f"{len(self.pending)} failing cases count with no finding: there was no time to look into them"
            )
        if self.hung >= HANGS_TO_GIVE_UP:
            self.result.warnings.append(f"stopped after {self.hung} cases that did not end")
        if self.corpus:
            for finding in self.result.findings:
                self.corpus.store(stored_finding(self.result, finding), claimed=True)
            self.result.warnings += dict.fromkeys(self.corpus.warnings)
        try:
            for finding in self.result.findings:
                script = self._script(finding)
                if script.done() or not self.result.interrupted:
                    self.result.scripts[finding.fingerprint] = script.result()
        except KeyboardInterrupt:
            self.result.interrupted = True
        self.scripting.shutdown(wait=False, cancel_futures=True)

    def draw(self) -> bool:
        """Decode case after case; meanwhile the last one is judged and the next one drawn. False: nothing is left."""
        start = time.monotonic()
        if self.hung >= HANGS_TO_GIVE_UP or (self.budget and self.end - start < self.budget * LEAST_ROUND):
            return False
        count = len(self.result.outcomes)
        with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            following: Future[EngineCase | None] = pool.submit(next, self.source, None)
            waiting: Future[EngineOutcome] | None = None
            while (case := following.result()) is not None:
                share = DRAWING if len(self.result.outcomes) >= VERDICT else DRAWING_AT_MOST
                last = time.monotonic() > (start + (self.end - start) * share if self.budget else self.end)
                if not last:
                    following = pool.submit(next, self.source, None)
                answer = self.worker.decode(case)
                if waiting is not None:
                    self._keep(waiting.result())
                waiting = pool.submit(judged, self.judge, case, answer)
                self.hung += answer.failure is not None and answer.failure.fingerprint == HANG
                if last or self.hung >= HANGS_TO_GIVE_UP:
                    break
            if waiting is not None:
                self._keep(waiting.result())
        self.result.drawing_s += time.monotonic() - start
        return len(self.result.outcomes) > count

    def _keep(self, outcome: EngineOutcome) -> None:
        self.result.outcomes.append(outcome)
        self.pending += [outcome] if outcome.status == "violation" else []
        self._tell()

    def _tell(self, stage: str = "cases") -> None:
        outcomes = self.result.outcomes
        failing = sum(outcome.status == "violation" for outcome in outcomes)
        self.listen(Progress(self.result.decoder.name, len(outcomes), self.result.options.cases, failing, stage))

    def settle(self) -> None:
        """From failing cases to findings, by turns: cases of one symptom under the same engine options are a group."""
        groups: dict[tuple[str, tuple[str, ...]], list[EngineOutcome]] = {}
        for outcome in sorted(self.pending, key=_size):
            engine = needs(without(outcome.case, _ROW_OPTIONS))
            groups.setdefault((outcome.symptom, engine), []).append(outcome)
        order = [groups[key] for key in sorted(groups, key=lambda key: (len(key[1]), -len(groups[key])))]
        for group in order:
            self._tell(group[0].symptom)
            self._settle_telling(group)
        while any(order) and time.monotonic() < self.end - self._counting_s:
            for group in order:
                self._settle_until_found(group)
        for outcome in list(self.pending):  # no time for more findings: count with those there are
            if time.monotonic() < self.end and self._new(outcome) is None:
                self.pending.remove(outcome)

    @property
    def _counting_s(self) -> float:
        """How long it takes to count what is left with the findings there are: some are decoded several times."""
        expected = 3 * len(self.pending) * self.result.drawing_s / max(1, len(self.result.outcomes))
        return min(expected, (self.end - time.monotonic()) / 2)

    def _settle_telling(self, group: list[EngineOutcome]) -> None:
        """The first finding of a group: one that abduction can explain."""
        until = min(time.monotonic() + EXPLAIN_S, self.end)
        for outcome in _telling(group):
            if time.monotonic() > until:
                return
            new, found = self._new(outcome), False
            if new:
                cause = abduced(new)
                if cause is None or not self._repeats(new):
                    continue
                self._find(new, cause)
                found = True
            group.remove(outcome)
            self.pending.remove(outcome)
            if found:
                return

    def _settle_until_found(self, group: list[EngineOutcome]) -> None:
        """Count the cases of a group with findings, smallest first, until one is a finding of its own."""
        while group and time.monotonic() < self.end - self._counting_s:
            new, found = self._new(group[0]), False
            if new:
                found = self._repeats(new)
                self._find(new) if found else self.result.doubtful.append(new)
            self.pending.remove(group.pop(0))
            if found:
                return

    def _new(self, outcome: EngineOutcome) -> EngineOutcome | None:
        """What is to be looked at of a failing case; nothing if it is counted with an earlier finding."""
        if self._belongs(outcome):
            return None
        if outcome.symptom in _ENDS:  # an EOS may be out of place because all is
            bare = self._decode(without(outcome.case, ("min-new-tokens",)))
            if bare.status == "violation":
                return None if self._belongs(bare) else replace(bare, drawn=outcome.drawn)
        return outcome

    def _belongs(self, outcome: EngineOutcome) -> bool:
        """Count a case with an earlier finding if it fails with no other options, or the same edit explains it."""
        named = needs(outcome.case)
        near = [
            number
            for number, finding in enumerate(self.result.findings)
            if finding.outcome.symptom == outcome.symptom and set(finding.needs) <= set(named)
        ]
        for number in near:
            others = tuple(name for name in named if name not in self.result.findings[number].needs)
            if not others or self._decode(without(outcome.case, others)).symptom == outcome.symptom:
                return self._count(number)
        causes = {number: self.causes[number] for number in near if number in self.causes}
        fit = fitting(outcome, list(causes.values())) if outcome.wrong else None
        return any(fit in (cause, *cause.also) and self._count(number) for number, cause in causes.items())

    def _count(self, number: int) -> bool:
        finding = self.result.findings[number]
        self.result.findings[number] = replace(finding, count=finding.count + 1)
        return True

    def _repeats(self, outcome: EngineOutcome) -> bool:
        """Whether a new process, and that one again, give the same answer to this case alone."""
        self.worker.kill()
        again = [self.worker.decode(outcome.case) for _ in range(REPEATS)]
        same = outcome.answer
        return all(one.outputs == same.outputs and (one.failure is None) == (same.failure is None) for one in again)

    def _decode(self, case: EngineCase) -> EngineOutcome:
        return judged(self.judge, case, self.worker.decode(case))

    def _minimised(self, outcome: EngineOutcome) -> tuple[EngineOutcome, bool]:
        """The smallest outcome of the same symptom found in time that repeats, and whether there is no smaller one."""
        if outcome.symptom == HANG:  # every try would take the whole time limit
            return outcome, False
        until = time.monotonic() + min(MINIMISE_S, (self.end - time.monotonic()) / 2)
        smaller = [outcome]

        def fails(case: EngineCase) -> bool:
            tried = self._decode(case)
            if tried.symptom == outcome.symptom:
                smaller.append(tried)
            return tried.symptom == outcome.symptom

        minimise(outcome.case, fails, until - time.monotonic(), self.result.decoder.capabilities)
        ended = time.monotonic() < until
        if len(smaller) == 1 or self._repeats(smaller[-1]):
            return smaller[-1], ended
        known, beyond = 0, len(smaller) - 1  # what was decoded before them made the last ones fail
        while beyond - known > 1:
            middle = (known + beyond) // 2
            known, beyond = (middle, beyond) if self._repeats(smaller[middle]) else (known, middle)
        return smaller[known], False

    def _plain(self, case: EngineCase) -> str:
        """What the engine does without speculation; a decoder that is no engine cannot do without."""
        if not self.result.decoder.checkpoints:
            return "not known"
        status = self._decode(replace(case, drafting="none")).status
        return {"violation": "wrong too", "skipped": "not known"}.get(status, "right")

    def _alike(self, case: EngineCase, most: int) -> list[EngineOutcome]:
        """What the engine makes of the same case with other prompts."""
        end, most = min(time.monotonic() + EXPLAIN_S, self.end), min(most, _ALIKE_ROWS // len(case.rows))
        return [self._decode(alike(case, n)) for n in takewhile(lambda _: time.monotonic() < end, range(most))]

    def _find(self, outcome: EngineOutcome, cause: Abduced | None = None) -> None:
        """A finding from a case that is known to fail again."""
        symptom = outcome.symptom
        smallest, minimised = self._minimised(outcome)
        named = needs(smallest.case)
        tried = symptom != WRONG_TOKEN or time.monotonic() < self.end
        elsewhere = cause if smallest is not outcome else None
        found = self._cause(smallest, minimised, elsewhere) if tried else None
        explanation = explain(smallest, found) if tried else explain(smallest, found, UNTRIED)
        look = [] if symptom in (WRONG_TOKEN, explanation.fingerprint) else [symptom.split("/")[-1].replace(" ", "-")]
        fingerprint = ":".join([explanation.fingerprint, *named, *look])
        number = self.keep(Finding(fingerprint, 1, smallest, explanation, named, self._plain(smallest.case), minimised))
        if found is not None:
            self.causes.setdefault(number, found)

    def _cause(self, outcome: EngineOutcome, minimised: bool, elsewhere: Abduced | None) -> Abduced | None:
        """What explains a small failing case, by itself or by others."""
        found = abduced(outcome)
        option = bool(set(needs(outcome.case)) & _SAMPLING and outcome.wrong)
        if option and elsewhere is not None and elsewhere.component == "options":
            elsewhere = None
        if option and not minimised and outcome.symptom == WRONG_TOKEN:  # the options may be beside the point
            option, found = False, found if found and found.component != "options" else None
        if option and (found is None or found.component == "options"):  # one token says little
            others = [o for o in self._alike(outcome.case, _ALIKE) if o.symptom in (outcome.symptom, *_ENDS, "")]
            found = misused([outcome, *others])
        if elsewhere is not None:
            larger = fitting(outcome, [elsewhere])
            if larger is not None and (found is None or larger.search.chance < found.search.chance):
                return replace(larger, search=replace(larger.search, of="a larger case"))
        if found is None and not option and outcome.symptom == WRONG_TOKEN:
            others = [o for o in self._alike(outcome.case, _ALIKE_WRONG) if o.symptom == WRONG_TOKEN]
            found = common([outcome, *others])
        return found

    def keep(self, finding: Finding) -> int:
        """Add a finding, or count it with an earlier one that it is not distinct from; the explained one stands."""
        for number, earlier in enumerate(self.result.findings):
            components = {earlier.explanation.component, finding.explanation.component}
            same = len(components - {"unattributed"}) < 2
            if same and (earlier.outcome.symptom, earlier.needs) == (finding.outcome.symptom, finding.needs):
                better = earlier.explanation.component == "unattributed" != finding.explanation.component
                self.result.findings[number] = replace(finding if better else earlier, count=earlier.count + 1)
                break
        else:
            number = len(self.result.findings)
            self.result.findings.append(finding)
        self._script(self.result.findings[number])
        return number

    def _script(self, finding: Finding) -> Future[str | None]:
        """The script of a finding, checked while the audit goes on."""
        if finding.fingerprint not in self.scripts:
            self.scripts[finding.fingerprint] = self.scripting.submit(checked_script, self.result, finding)
        return self.scripts[finding.fingerprint]


def stored_finding(audit: EngineAudit, finding: Finding) -> StoredViolation:
    """A finding as its case file tells it."""
    return StoredViolation(
        case=finding.case,
        adapter=audit.decoder.spec or audit.decoder.name,
        fingerprint=finding.fingerprint,
        case_timeout=audit.options.case_timeout,
        isolated=True,
        minimised=finding.minimised,
        explanation=finding.text,
    )


def _telling(outcomes: list[EngineOutcome]) -> list[EngineOutcome]:
    """The cases of a group that say most in little time: several wrong rows, few others.

    None of those that an option makes wrong: one of them alone says little.
    """
    wrong = [outcome for outcome in outcomes if outcome.wrong and outcome.symptom not in _ENDS]
    return sorted(wrong, key=lambda outcome: (-min(len(outcome.wrong), 3), len(outcome.case.rows)))[:_EXPLAINED]


_SAMPLING = {"min-new-tokens", "repetition-penalty", "presence-penalty"}
_ENDS = (HELD_BACK, TOO_EARLY)
# Cases like a failing one that are decoded: for a wrong use of an option, for another cause, and rows of all of them.
_ALIKE, _ALIKE_WRONG, _ALIKE_ROWS = 40, 12, 120
_ROW_OPTIONS = ("arrival", "min-new-tokens", "repetition-penalty", "presence-penalty", "eos-token-ids", "many-rows")


def _size(outcome: EngineOutcome) -> tuple[int, int]:
    rows = outcome.case.rows
    return len(needs(outcome.case)), sum(len(row.prompt) + row.options.max_new_tokens for row in rows)
