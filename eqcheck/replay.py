"""Run a stored case again, in the lane it belongs to, and say FAILS, FIXED, DECLINED or ERROR."""

from __future__ import annotations

import shlex
from pathlib import Path

from eqcheck import registry
from eqcheck.campaign.casefile import StoredViolation, command, read_case
from eqcheck.campaign.lane import lane_named
from eqcheck.errors import EQUIVALENT, INCONCLUSIVE, NOTHING, VIOLATION, UsageError
from eqcheck.findings import Options
from eqcheck.limits import CASE_MEMORY, CASE_TIMEOUT
from eqcheck.outcome import Outcome
from eqcheck.plain import printable
from eqcheck.text import render


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
    timeout, memory = _limits(stored)
    isolate = isolate or stored.isolated
    asked = Options(case_timeout=timeout, isolate=isolate, case_memory=memory, python=python or "")
    lane = lane_named(stored.case.lane)(decoder, asked)
    outcome, shown = lane.again(stored.case, calls)
    if outcome.declined:
        print(printable(f"DECLINED: {decoder.name}: {outcome.declined}; nothing was tested"))
        return NOTHING
    if shown:
        print(f"{shown}\n")
    code = _tell(f"{decoder.name} {lane.result.version}".strip(), stored, outcome)
    if code == VIOLATION and not lane.result.claims(stored.case):
        print(f"{decoder.name} does not claim the family {stored.case.family}: this is a discovery, no violation.")
    return code


def _limits(stored: StoredViolation) -> tuple[float, int | None]:
    """Seconds and bytes: the file's where its case is about them, else no less than usual, or a right decoder fails."""
    timeout, memory = stored.case_timeout, stored.case_memory
    if not (stored.fingerprint or "").startswith("crash/"):
        timeout, memory = max(timeout, CASE_TIMEOUT), memory and max(memory, CASE_MEMORY)
    return timeout, memory


def _tell(name: str, stored: StoredViolation, outcome: Outcome) -> int:
    explanation, before = outcome.explanation, stored.fingerprint
    was = f" (was {before})" if before else ""
    seen = outcome.observed
    drawn = f": {seen['tokens']} tokens, evidence {seen['evidence']} at most" if "evidence" in seen else ""
    if outcome.status == "inconclusive":
        print(f"INCONCLUSIVE: {name} may have the right law or not{was}{drawn}; 1e6 is a violation")
        return INCONCLUSIVE
    if explanation is None:
        print(f"FIXED: {name} is equivalent on this case{was}{drawn}")
        return EQUIVALENT
    print(printable(f"FAILS: {name}\n{render(explanation)}\n{outcome.traceback}"), end="")
    if explanation.kind == "hang" and _limits(stored)[0] < CASE_TIMEOUT:
        print(f"The limit is the file's; usual are {CASE_TIMEOUT:g} s.")
    now = explanation.fingerprint
    if not before or before == now or before.startswith(f"{now}:"):  # what an engine's case needs follows
        return VIOLATION
    unnamed = "sampling/stray-law" if before.startswith("sampling/") else "unattributed"
    if stored.case.lane != "transparent" and now.startswith(unnamed):
        print(f"The stored cause is {before}; it was found in other cases, this one alone does not show it.")
    else:
        print(f"The stored violation was {before}; it fails differently now.")
    return VIOLATION
