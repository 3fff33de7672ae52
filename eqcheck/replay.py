"""Run a stored case again and say FAILS, FIXED, DECLINED or ERROR."""

from __future__ import annotations

from pathlib import Path

from eqcheck import registry
from eqcheck.audit.casefile import StoredViolation, read_case
from eqcheck.audit.isolation import Limits
from eqcheck.audit.outcome import set_up
from eqcheck.audit.runner import runner
from eqcheck.blackbox.case import EngineCase
from eqcheck.blackbox.checkpoints import checkpoint
from eqcheck.blackbox.explain import abduced, explain
from eqcheck.blackbox.judge import Judge
from eqcheck.blackbox.outcome import judged
from eqcheck.blackbox.worker import EngineWorker, environment
from eqcheck.callview import view
from eqcheck.case import Case
from eqcheck.contract import Decoder
from eqcheck.errors import EQUIVALENT, NOTHING, VIOLATION, UsageError
from eqcheck.harness import run
from eqcheck.requirements import refused
from eqcheck.text import render
from eqcheck.verdict import Explanation


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
    limits = Limits(stored.case_timeout, stored.case_memory if isolate else None)
    if declined := refused(case, decoder.requires):
        return _declined(decoder, declined)
    with runner(decoder, limits, 1, isolate, []) as running:
        outcome = running.try_case(case, opinion=True)
    if outcome.declined:
        return _declined(decoder, outcome.declined)
    if calls and isolate and outcome.outputs is None:
        print("The decoder failed in a process of its own: its calls are not shown.\n")
    elif calls:
        with set_up(decoder, []) as generate:
            done = run(generate, case, stored.case_timeout)
        print(f"{view(done)}\n")
        if done.outputs != outcome.outputs:
            print("The decoder answered differently when its calls were recorded.\n")
    return _tell(decoder.name, stored, outcome.explanation, outcome.traceback)


def _engine(decoder: Decoder, case: EngineCase, stored: StoredViolation, python: str | None) -> int:
    """Decode an engine's case again, in a new process of the engine's environment."""
    if case.checkpoint not in ("", checkpoint().name):
        raise UsageError(f"the case is for the checkpoint {case.checkpoint}, this torch makes {checkpoint().name}")
    with EngineWorker(decoder, environment(decoder, python), stored.case_timeout) as worker:
        worker.open()
        outcome = judged(Judge(decoder.dtype), case, worker.decode(case))
    if outcome.answer.unsupported:
        return _declined(decoder, outcome.answer.unsupported)
    failed = outcome.status == "violation"
    name = f"{decoder.name} {worker.version}".strip()
    return _tell(name, stored, explain(outcome, abduced(outcome)) if failed else None, outcome.answer.traceback)


def _declined(decoder: Decoder, reason: str) -> int:
    print(f"DECLINED: {decoder.name}: {reason}; nothing was tested")
    return NOTHING


def _tell(name: str, stored: StoredViolation, explanation: Explanation | None, traceback: str) -> int:
    if explanation is None:
        was = f" (was {stored.fingerprint})" if stored.fingerprint else ""
        print(f"FIXED: {name} is equivalent on this case{was}")
        return EQUIVALENT
    print(f"FAILS: {name}")
    print(render(explanation))
    print(traceback, end="")
    now, before = explanation.fingerprint, stored.fingerprint
    if isinstance(stored.case, EngineCase) and now.startswith("unattributed") and before != now and before:
        print(f"The stored cause is {before}; it was found in other cases, this one alone does not show it.")
    elif (
        before is not None and before != now and not before.startswith(f"{now}:")
    ):  # what an engine's case needs follows
        print(f"The stored violation was {stored.fingerprint}; it fails differently now.")
    return VIOLATION
