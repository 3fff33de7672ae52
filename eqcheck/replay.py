"""Run a stored case again, in the lane it belongs to, and say FAILS, FIXED, DECLINED or ERROR."""

from __future__ import annotations

import shlex
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from eqcheck import callview, registry
from eqcheck.campaign.casefile import StoredViolation, code_of, command, read_case, write_whole
from eqcheck.campaign.lane import lane_named
from eqcheck.errors import EQUIVALENT, INCONCLUSIVE, NOTHING, VIOLATION, UsageError
from eqcheck.findings import Options
from eqcheck.limits import CASE_MEMORY, CASE_TIMEOUT
from eqcheck.narrow import WHOLE, columns
from eqcheck.outcome import Outcome
from eqcheck.plain import printable
from eqcheck.report.html.trace import trace_page
from eqcheck.story import DrawnDecode
from eqcheck.text import render


def replay(
    path: Path,
    adapter: str | None = None,
    isolate: bool = False,
    python: str | None = None,
    calls: bool = False,
    html: Path | None = None,
    target: str = "",
) -> int:
    """Run the case of a file with the adapter it names, or another one; returns the exit code.

    ``target`` has to name the model class of the case where that is code of the user's.
    ``calls``: print every call of the models first; ``html``: write them to this file as a page.
    """
    stored = read_case(path)
    if html is not None:
        _check_page(html)
    spec = adapter or stored.adapter
    if spec is None:
        raise UsageError(f"case file {path}: it names no adapter; give one with --adapter")
    if not adapter and registry.names_code(spec):
        flags = [flag for flag, given in (("--isolate", isolate), ("-v", calls)) if given]
        options = [*flags, *(["--python", python] if python else []), *(["--html", str(html)] if html else [])]
        raise UsageError(
            f"case file {path}: adapter: expected the name of an installed one (`eqcheck list`), got code to run, "
            f"{spec!r}; if you trust it, type: {' '.join([command(path, spec), shlex.join(options)]).strip()}"
        )
    _check_target(path, stored, spec, target)
    try:
        decoder = registry.load(spec)
    except UsageError:
        print("ERROR: the adapter cannot be loaded")
        raise
    timeout, memory = _limits(stored)
    isolate = isolate or stored.isolated
    asked = Options(case_timeout=timeout, isolate=isolate, case_memory=memory, python=python or "")
    lane = lane_named(stored.case.lane)(decoder, asked)
    outcome, shown = lane.again(stored.case, calls or html is not None)
    if outcome.declined:
        print(printable(f"DECLINED: {decoder.name}: {outcome.declined}; nothing was tested"))
        return NOTHING
    name = f"{decoder.name} {lane.result.version}".strip()
    said = StringIO()
    with redirect_stdout(said):
        code = _tell(name, stored, outcome, WHOLE)  # for the page
    _show(shown, calls, html, (name, stored.case.id, said.getvalue()))
    _tell(name, stored, outcome, columns())
    if code == VIOLATION and not lane.result.claims(stored.case):
        print(f"{decoder.name} does not claim the family {stored.case.family}: this is a discovery, no violation.")
    return code


def _check_target(path: Path, stored: StoredViolation, spec: str, target: str) -> None:
    """`UsageError` where the target of a case is code that the user did not name."""
    own = code_of(stored.case)
    if target != own:
        expected = (
            f"got code to run, {own!r}; if you trust it, type" if own else "its target is no class of yours; type"
        )
        raise UsageError(f"case file {path}: target: {expected}: {command(path, spec, own)}")


def _check_page(html: Path) -> None:
    """`UsageError` where a page cannot be written, or would take the place of something else."""
    usual = "give the name of a new file, or of a page to be replaced"
    if not html.parent.is_dir():
        raise UsageError(f"--html {html}: expected a file in a folder that exists, got none at {html.parent}; {usual}")
    try:
        if html.is_dir() or (html.exists() and not html.read_text(errors="replace").startswith("<!doctype html>")):
            raise UsageError(f"--html {html}: expected a page or nothing, got something else, which stays; {usual}")
    except OSError as error:
        raise UsageError(f"--html {html}: {error.strerror}; {usual}") from error


def _show(shown: DrawnDecode | str, calls: bool, html: Path | None, about: tuple[str, str, str]) -> None:
    """Print every call, or why there is none; and write them as a page."""
    if isinstance(shown, str):
        print(f"{shown}\n" if shown else "", end="")
        return
    if calls:
        callview.show(shown)
        print()
    if html is not None:
        try:
            write_whole(html, trace_page(*about, shown))
        except OSError as error:
            raise UsageError(f"--html {html}: {error.strerror}; nothing was written") from error
        print(printable(f"Every call is shown in {html}\n"))


def _limits(stored: StoredViolation) -> tuple[float, int | None]:
    """Seconds and bytes: the file's where its case is about them, else no less than usual, or a right decoder fails."""
    timeout, memory = stored.case_timeout, stored.case_memory
    if not (stored.fingerprint or "").startswith("crash/"):
        timeout, memory = max(timeout, CASE_TIMEOUT), memory and max(memory, CASE_MEMORY)
    return timeout, memory


def _tell(name: str, stored: StoredViolation, outcome: Outcome, width: int) -> int:
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
    print(printable(f"FAILS: {name}\n{render(explanation, width)}\n{outcome.traceback}"), end="")
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
