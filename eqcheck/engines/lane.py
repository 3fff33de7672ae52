"""The lane of checkpoints: engines are judged by their tokens, and causes are searched for."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from eqcheck.audit.lane import LESS, OF_SAMPLED_ROWS, REPEATS, ROW_OPTIONS, Lane
from eqcheck.audit.time_budget import WorkClock
from eqcheck.audit.workers.interpreter import InterpreterWorker, environment
from eqcheck.audit.workers.interpreter import Judge as Judged
from eqcheck.audit.workers.worker import Workers
from eqcheck.contract.decoders import CAPABILITIES, Decoder, hook
from eqcheck.contract.errors import CaseError
from eqcheck.contract.options import SCORING
from eqcheck.contract.profiles import SERVED
from eqcheck.contract.requirements import unmet
from eqcheck.core.case.engine import EngineCase
from eqcheck.core.explanation.notice import guarded
from eqcheck.core.result.claims import Claim
from eqcheck.core.result.findings import Audit, Finding, Options
from eqcheck.core.result.outcome import HANG, UNTRIED, Outcome
from eqcheck.engines.abduction import Abduced
from eqcheck.engines.checkpoints import dictation
from eqcheck.engines.checkpoints.folders import checkpoint
from eqcheck.engines.checkpoints.row_judge import Judge
from eqcheck.engines.drawing import EngineCases
from eqcheck.engines.engine_outcome import EngineOutcome, abduced, explain, fitting, judged, wrong_token
from eqcheck.engines.investigate import (
    ENDS,
    MANY,
    SAYING,
    Investigation,
    evidence_of,
    needs,
    switched,
    without,
)
from eqcheck.engines.packs import Packed
from eqcheck.engines.script import checked_script, scripted, shared, unscripted

_AGAIN_S = 60.0  # for the cause of a case that is replayed; an audit takes up to 20 s for each way to look for it
_PATIENCE = 4  # so many limits, for a case that did not end within one
UNSTEADY = "the case fails each time it is decoded alone, but with different tokens, so no cause was found"
_EARLIER = (1, 4)  # cases that the engine decoded before a failing one; then all that it did
_TELLING = 3  # cases of a group that abduction is asked about first
_ROW_OPTIONS = (
    "arrival",
    *(name.replace("_", "-") for name in SCORING),
    "eos-token-ids",
    "stop-sequences",
    "logprobs",
    "prompt-logprobs",
    "cancel-after",
    "many-rows",
)


def worker(decoder: Decoder, python: str, timeout: float = 60.0, judge: Judged | None = None) -> InterpreterWorker:
    """The worker that runs a decoder on the checkpoints, under the Python at this path, and judges its tokens."""
    ask = partial(_request, decoder)
    judge = judge or partial(judged, Judge(decoder.dtype))

    def folders(case: Any) -> tuple[Path, Path]:
        pair = checkpoint(case.checkpoint, decoder.dtype)
        return pair.target, pair.draft

    return InterpreterWorker(decoder, python, folders, ask, judge, timeout)


def _request(decoder: Decoder, case: EngineCase) -> dict[str, Any]:
    own: dict[str, Any] = {"padding_side": decoder.padding_sides[0], "dtype": decoder.dtype}
    request = asdict(replace(case.request(), drafts=dictation.drafts(case), **own))
    return {name: value for name, value in request.items() if name not in ("target_cache", "draft_cache")}


@contextmanager
def engine(lane: Lane, python: str, judge: Judged | None = None, packed: bool = False) -> Iterator[Workers]:
    """The decoder of a lane on the checkpoints, set up, whose cases share batches if ``packed``.

    The audit gets its version.
    """
    with worker(lane.decoder, python, lane.limits.timeout, judge) as process:
        process.on_loading, process.on_loaded = lane.on_loading, lane.on_loaded
        process.open()
        lane.result.version = process.version
        yield Packed(process, lane.decoder) if packed else Workers([process], batch=1, ahead=True)


class EngineLane(Lane):
    """One audit on checkpoints."""

    conditional = True

    def __init__(self, decoder: Decoder, options: Options) -> None:
        super().__init__(decoder, options)
        self.python = environment(decoder, options.python)
        self.called = not (decoder.checkpoints or options.python)  # with models, not with folders
        self.seed, self.bounds, self.block = options.seed, options.within(SERVED), options.block
        families = (EngineCase.family,)
        self.result = Audit(decoder, options, "engine", families, families)
        self.scripts: dict[str, Future[str | None]] = {}  # by id of finding
        self.bare: dict[str, Outcome] = {}  # by id of case, without its minimum, or its switch
        self.scripting = ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,))
        self.investigation = Investigation(decoder, self._decode, self.repeats, self._step, WorkClock(self._cpu_s))
        # The values of prefix caching with which answers depended on what the process had decoded before.
        self.carrying: set[bool | None] = set()
        self.doubted = False  # whether a case alone was seen to give another answer
        self.alone: Outcome  # of the case that was last decoded alone
        self.behind: Finding | None = None  # the finding of a case that is right alone, and wrong behind others
        self.told: dict[str, Abduced] = {}  # causes of cases that tell them, by id of case
        self.in_vain = Counter[str]()  # cases like a small one without a cause that have none either, by its finding

    def _cpu_s(self) -> float:
        return sum(one.cpu_s for one in self.running.workers)

    def _step(self, step: str, symptom: str) -> None:
        self.on_step(step, symptom)  # which the campaign sets later

    @contextmanager
    def drawing(self) -> Iterator[None]:
        with engine(self, self.python, packed=not (self.fixed or self.called)) as self.running:
            yield

    def claimed(self) -> list[Claim]:
        """Checkpoints, drafters and options; of a decoder that is called with models the options of rows alone."""
        decoder, rest = self.decoder, {"finish-reason", "seeds", "no-drafts", "only-dictated-drafts"}
        if self.called:
            asked = [name for name in CAPABILITIES if name in decoder.capabilities and name in ROW_OPTIONS]
            return [Claim("capability", name) for name in asked]
        drafters = {"ngram": "ngram", "dictated-drafts": "dictated", "only-dictated-drafts": "dictated"}
        claimed = [Claim("drafter", name) for own, name in drafters.items() if own in decoder.capabilities]
        if "no-drafts" in decoder.capabilities:
            claimed = [Claim("drafter", "none")]
        elif "only-dictated-drafts" not in decoder.capabilities:
            claimed.append(Claim("drafter", "model"))
        rest |= {"n"} if "sampled-n" in decoder.requires else set()
        names = [one for one in decoder.capabilities if one not in {*rest, *drafters, *OF_SAMPLED_ROWS}]
        claimed += [Claim("capability", name) for name in names]
        return claimed + [Claim("checkpoint", kind) for kind in decoder.kinds]

    def cases(self) -> Iterator[EngineCase]:
        decoder = self.decoder
        # An engine that is sampled loads the random checkpoint as well.
        varied = {"logprobs", "temperature"} <= set(decoder.capabilities) and decoder.dtype not in LESS
        claims = decoder.capabilities, decoder.requires, decoder.kinds
        switches = () if decoder.dtype in LESS else hook(decoder.function, "switches")
        return EngineCases(self.seed, *claims, self.bounds, varied, self.block, switches, not self.fixed).cases()

    def condition(self, case: EngineCase) -> tuple[str, ...]:
        """The options of the engine; those of rows may be beside the point."""
        return needs(without(case, _ROW_OPTIONS))

    def rank(self, outcome: Outcome) -> tuple[int, int, int]:
        """The place of a case in its group: small ones come first, or where one was in doubt, with little before it."""
        case = outcome.case
        size = sum(len(row.prompt) + row.options.max_new_tokens for row in case.rows)
        return len(_before(outcome)) if self.doubted else 0, len(needs(case)), size

    def telling(self, group: list[Outcome]) -> list[Outcome]:
        """The cases that say most in little time: several wrong rows, few others.

        No case is among them that an option makes wrong: one such case alone says little.
        """
        wrong = [one for one in group if isinstance(one, EngineOutcome) and one.wrong and one.symptom not in ENDS]
        return list(sorted(wrong, key=lambda one: (-min(len(one.wrong), 3), len(one.case.rows)))[:_TELLING])

    def counted(self, outcome: Outcome) -> int | None:
        number = self._belongs(outcome)
        switch = switched(outcome.case) if outcome.case.switch else ""
        if number is None and (switch or outcome.symptom in ENDS):  # all may be wrong without it
            bare = self._decode(without(outcome.case, (switch or "min-new-tokens",)))
            if bare.failed:
                self.bare[outcome.case.id] = replace(bare, drawn=outcome.drawn)
                return self._belongs(bare)
        return number

    def _belongs(self, outcome: Outcome) -> int | None:
        """The finding with which a case fails even without its other options, or whose cause explains its tokens."""
        named, wrong = needs(outcome.case), isinstance(outcome, EngineOutcome) and outcome.wrong
        possible = {
            number: finding
            for number, finding in enumerate(self.result.findings)
            if finding.standing == "violation" and set(finding.needs) <= set(named)
        }
        vague = []
        for number, finding in possible.items():
            if outcome.symptom not in finding.seen or not self._fails_without_others(outcome, finding):
                continue
            if finding.explanation.kind != "unattributed" or self.in_vain[finding.id] >= _TELLING:
                return number
            vague.append(number)
        causes = self.investigation.causes
        known = {number: causes[finding.id] for number, finding in possible.items() if finding.id in causes}
        fit = fitting(outcome, list(known.values()), partly=True) if wrong and known else None
        fit = fit or (abduced(outcome) if wrong and (known or vague) else None)  # which takes longest
        if fit is not None:
            # Where no finding has this cause it is a new one, and none of those that look alike without a cause.
            return next((number for number, cause in known.items() if cause.of_edit(fit.search.edit)), None)
        if not vague:
            return None
        finding = self.result.findings[vague[0]]
        self.in_vain[finding.id] += finding.minimised and evidence_of(outcome) >= SAYING
        return vague[0]

    def _fails_without_others(self, outcome: Outcome, finding: Finding) -> bool:
        """Return whether the case fails alike without the options that the finding does not need."""
        others = tuple(name for name in needs(outcome.case) if name not in finding.needs)
        return not others or self._decode(without(outcome.case, others)).symptom == outcome.symptom

    def _decode(self, case: EngineCase) -> Outcome:
        if case.prefix_caching in self.carrying:
            self.running.renew()
        return self.running.try_case(case)

    def tells(self, outcome: Outcome) -> bool:
        cause = abduced(outcome)
        if cause is not None:
            self.told[outcome.case.id] = cause
        return cause is not None

    def repeats(self, outcome: Outcome) -> bool:
        """Return whether a new engine gives the same answer to this case alone, time and again; else each of a few new
        ones.

        One that did not end gets more time, once: a slow case on a busy machine is no hang.
        """
        process = self.running.workers[0]
        process.renew()
        if outcome.symptom == HANG:
            process.timeout *= _PATIENCE
            try:
                self.alone = process.try_case(outcome.case)
                return self.alone.symptom == HANG
            finally:
                process.timeout /= _PATIENCE
        self.alone = process.try_case(outcome.case)
        if not self.alone.repeats(outcome):
            return False
        known, again = self.carrying, range(REPEATS - 1)
        caches = outcome.case.prefix_caching
        if caches not in known and all(process.try_case(outcome.case).repeats(outcome) for _ in again):
            return True
        self.carrying = {*known, caches}
        repeats = all(self._decode(outcome.case).repeats(outcome) for _ in again)
        self.carrying = self.carrying if repeats else known  # else its answers differ whatever was decoded before
        return repeats

    def explain(self, outcome: Outcome, group: list[Outcome], left: Callable[[], float]) -> list[Finding] | None:
        outcome = self.bare.get(outcome.case.id, outcome)
        if not self.repeats(outcome):
            self.doubted = True
            if self.alone.failed and self._always_wrong(outcome):
                return [self._unsteady(outcome)]
            if self.behind is None and (joined := self._after_others(outcome)) is not None:
                self.behind = self._found(joined, left)
            return None if self.behind is None or not wrong_token(outcome) else [self.behind]
        return [self._found(outcome, left)]

    def _found(self, outcome: Outcome, left: Callable[[], float]) -> Finding:
        self.investigation.patience = (
            _PATIENCE if outcome.case.prefix_caching in self.carrying else 1
        )  # each try takes the start of a process
        finding = self.investigation.finding(outcome, self.told.pop(outcome.case.id, None), left)
        self._script(finding)
        return finding

    def _after_others(self, outcome: Outcome) -> Outcome | None:
        """The failing case together with rows that its engine had served before, if it fails so each time."""
        case, arrivals = outcome.case, "arrivals" in self.decoder.capabilities
        alike = _before(outcome) if wrong_token(outcome) else []
        at_once = arrivals or "many-rows" in self.decoder.capabilities
        most = self.bounds.rows if at_once else MANY - 1
        sizes = accumulate((len(one.rows) for one in reversed(alike)), initial=len(case.rows))
        fitting = sum(size <= most for size in sizes) - 1
        known = self.carrying
        for size in sorted({min(size, fitting) for size in (*_EARLIER, len(alike))} - {0, -1}):
            try:
                joined = case.after(alike[-size:], arrivals)
            except CaseError:  # too many tokens, or too late
                break
            if unmet(joined, self.decoder.requires):
                break
            self.carrying = {*known, joined.prefix_caching}
            tried = replace(self._decode(joined), drawn=outcome.drawn)
            if wrong_token(tried) and self.repeats(tried):
                return tried
        self.carrying = known
        return None

    def _unsteady(self, outcome: Outcome) -> Finding:
        """The finding of a case that is wrong in more than one way: this answer may have a cause all the same."""
        cause = self.told.pop(outcome.case.id, None) or abduced(outcome)
        finding = replace(self.unsettled(outcome), explanation=explain(outcome, cause, UNSTEADY))
        if cause is not None:
            self.investigation.causes.setdefault(finding.id, cause)
        return finding

    def _always_wrong(self, outcome: Outcome) -> bool:
        """Return whether each new engine gives wrong tokens, though not the same ones;
        a built checkpoint has no ties.
        """
        if outcome.outputs is None or not checkpoint(outcome.case.checkpoint).built:
            return False
        for _ in range(REPEATS):
            self.running.renew()
            again = self._decode(outcome.case)
            if not again.failed or again.outputs is None:
                return False
        return True

    def _script(self, finding: Finding) -> Future[str | None]:
        """The script of a finding, checked while the audit goes on."""
        if finding.id not in self.scripts:
            task = partial(checked_script, self.decoder, self.result.version, self.python, ends=self.ends)
            self.scripts[finding.id] = self.scripting.submit(task, finding)
        return self.scripts[finding.id]

    def unsettled(self, outcome: Outcome, why: str = UNTRIED) -> Finding:
        explanation = explain(outcome, None, why)
        return Finding(outcome, explanation, needs=needs(outcome.case), seen=(outcome.symptom,), minimised=False)

    def again(self, case: EngineCase, calls: bool) -> tuple[Outcome, str]:
        checkpoint(case.checkpoint)  # or there is none of this name
        with self.drawing():
            outcome = self._decode(case)
            if outcome.failed:
                end = time.monotonic() + _AGAIN_S
                explanation, _ = self.investigation.explained(outcome, lambda: end - time.monotonic())
                outcome = replace(outcome, explanation=explanation)
        shown = "An engine that loads a checkpoint calls models of its own: there are no calls to show."
        return outcome, shown if calls else ""

    def conclude(self) -> None:
        result = self.result
        for number, finding in enumerate(result.findings):
            with guarded(result.internal, "render", finding.case):
                result.findings[number] = self._with_script(finding)
        self.scripting.shutdown(wait=False, cancel_futures=True)
        for finding in result.findings:
            result.files |= shared(self.decoder, finding.case) if finding.script else {}

    def _with_script(self, finding: Finding) -> Finding:
        """The finding with its script, if it was seen to show it."""
        if finding.standing != "violation" or not scripted(self.decoder, finding):
            return finding
        future = self._script(finding)
        if not future.done():
            self.on_step("script", finding.fingerprint)
        try:
            text = future.result() if future.done() or not self.result.interrupted else None
        except KeyboardInterrupt:
            self.result.interrupted, text = True, None
        if text is None and not self.result.interrupted:
            self.result.warnings.append(f"{finding.fingerprint}: {unscripted(self.ends())}")
        return replace(finding, script=text)


def _before(outcome: Outcome) -> list[EngineCase]:
    """The cases that the process had decoded under the same settings; under others the engine may have begun anew."""
    case, history = outcome.case, outcome.history.cases if outcome.history else ()
    return [one for one in history if replace(one, rows=case.rows) == case]
