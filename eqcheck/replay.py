"""Run a stored case again and say FAILS, FIXED, DECLINED or ERROR."""

from __future__ import annotations

import shlex
from pathlib import Path

from eqcheck import registry
from eqcheck.callview import view
from eqcheck.campaign.casefile import StoredViolation, command, read_case
from eqcheck.case import Case
from eqcheck.contract import Decoder
from eqcheck.errors import EQUIVALENT, NOTHING, VIOLATION, UsageError
from eqcheck.harness import run
from eqcheck.lanes.checkpoint.case import EngineCase
from eqcheck.lanes.checkpoint.checkpoints import checkpoint
from eqcheck.lanes.checkpoint.explain import abduced, explain
from eqcheck.lanes.checkpoint.judge import Judge
from eqcheck.lanes.checkpoint.outcome import judged
from eqcheck.lanes.transparent.outcome import Outcome, set_up
from eqcheck.lanes.transparent.sequences import Fresh, verdict
from eqcheck.limits import CASE_MEMORY, CASE_TIMEOUT
from eqcheck.plain import printable
from eqcheck.report.text import render
from eqcheck.requirements import refused
from eqcheck.verdict import Explanation
from eqcheck.workers.forked import Limits
from eqcheck.workers.pool import runner
from eqcheck.workers.spawned import EngineWorker, environment


def replay(
    path: Path, adapter: str | None = None, isolate: bool = False, python: str | None = None, calls: bool = False
) -> int:
    """Run the case of a file with the adapter it names, or another one; returns the exit code.

    ``calls``: print every call of the models first.
    """
    stored = read_case(path)
    spec = adapter or stored.adapter
    if spec is None:
        raise UsageError(f"case file {path}: it names no adapter; give one with --adapter")
    if not adapter and registry.names_code(spec):
        flags = [flag for flag, given in (("--isolate", isolate), ("-v", calls)) if given]
        options = [*flags, *(["--python", python] if python else [])]
        raise UsageError(
            f"case file {path}: adapter: expected the name of an installed one (`eqcheck list`), got code to run, "
            f"{spec!r}; if you trust it, type: {' '.join([command(path, spec), shlex.join(options)]).strip()}"
        )
    try:
        decoder = registry.load(spec)
    except UsageError:
        print("ERROR: the adapter cannot be loaded")
        raise
    if isinstance(stored.case, EngineCase):
        if calls:
            print("An engine that loads a checkpoint calls models of its own: there are no calls to show.\n")
        return _engine(decoder, stored.case, stored, python)
    return _transparent(decoder, stored.case, stored, isolate, calls)


def _transparent(decoder: Decoder, case: Case, stored: StoredViolation, isolate: bool, calls: bool) -> int:
    isolate = isolate or stored.isolated
    for asked in (*case.before, case):
        if declined := refused(asked, decoder.requires) or _not_taken(decoder, asked):
            return _declined(decoder, declined)
    timeout, memory = _limits(stored)
    limits = Limits(timeout, memory if isolate else None)
    outcome = _outcome(decoder, case, limits, isolate)
    if outcome.declined:
        return _declined(decoder, outcome.declined)
    if calls and isolate and outcome.outputs is None:
        print("The decoder failed in a process of its own: its calls are not shown.\n")
    elif calls:
        with set_up(decoder, []) as generate:
            done = run(generate, case, timeout)
        print(f"{view(done)}\n")
        if done.outputs != outcome.outputs:
            print("The decoder answered differently when its calls were recorded.\n")
    code = _tell(decoder.name, stored, outcome.explanation, outcome.traceback)
    if code == VIOLATION and case.family not in decoder.families:
        print(f"{decoder.name} does not claim the family {case.family}: this is a discovery, no violation.")
    return code


def _not_taken(decoder: Decoder, case: Case) -> str:
    """What the case asks that the decoder does not take; a file may ask anything of it."""
    for what, asked, taken in (
        ("padding side", case.padding_side, decoder.padding_sides),
        ("cache state", case.cache_state, decoder.cache_states),
    ):
        if asked not in taken:
            return f"it does not take the {what} {asked}, only {', '.join(taken)}"
    return ""


def _limits(stored: StoredViolation) -> tuple[float, int | None]:
    """Seconds and bytes: the file's where its case is about them, else no less than usual, or a right decoder fails."""
    timeout, memory = stored.case_timeout, stored.case_memory
    if not (stored.fingerprint or "").startswith("crash/"):
        timeout, memory = max(timeout, CASE_TIMEOUT), memory and max(memory, CASE_MEMORY)
    return timeout, memory


def _outcome(decoder: Decoder, case: Case, limits: Limits, isolate: bool) -> Outcome:
    """A case decoded again; one with earlier requests also without them, each time in a process of its own."""
    if case.before:
        with Fresh(decoder.spec, limits) as fresh:
            if fresh.usable:
                return verdict(fresh, case)
    with runner(decoder, limits, 1, isolate, []) as running:
        return running.try_case(case, opinion=True)


def _engine(decoder: Decoder, case: EngineCase, stored: StoredViolation, python: str | None) -> int:
    """Decode an engine's case again, in a new process of the engine's environment."""
    if case.checkpoint not in ("", checkpoint().name):
        raise UsageError(f"the case is for the checkpoint {case.checkpoint}, this torch makes {checkpoint().name}")
    with EngineWorker(decoder, environment(decoder, python), _limits(stored)[0]) as worker:
        worker.open()
        outcome = judged(Judge(decoder.dtype), case, worker.decode(case))
    if outcome.answer.unsupported:
        return _declined(decoder, outcome.answer.unsupported)
    failed = outcome.status == "violation"
    name = f"{decoder.name} {worker.version}".strip()
    return _tell(name, stored, explain(outcome, abduced(outcome)) if failed else None, outcome.answer.traceback)


def _declined(decoder: Decoder, reason: str) -> int:
    print(printable(f"DECLINED: {decoder.name}: {reason}; nothing was tested"))
    return NOTHING


def _tell(name: str, stored: StoredViolation, explanation: Explanation | None, traceback: str) -> int:
    if explanation is None:
        was = f" (was {stored.fingerprint})" if stored.fingerprint else ""
        print(f"FIXED: {name} is equivalent on this case{was}")
        return EQUIVALENT
    print(printable(f"FAILS: {name}\n{render(explanation)}\n{traceback}"), end="")
    if explanation.kind == "hang" and _limits(stored)[0] < CASE_TIMEOUT:
        print(f"The limit is the file's; usual are {CASE_TIMEOUT:g} s.")
    now, before = explanation.fingerprint, stored.fingerprint
    if isinstance(stored.case, EngineCase) and now.startswith("unattributed") and before != now and before:
        print(f"The stored cause is {before}; it was found in other cases, this one alone does not show it.")
    elif (
        before is not None and before != now and not before.startswith(f"{now}:")
    ):  # what an engine's case needs follows
        print(f"The stored violation was {stored.fingerprint}; it fails differently now.")
    return VIOLATION
