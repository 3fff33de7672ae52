"""Run a stored case again, in the lane it belongs to, and say FAILS, FIXED, DECLINED or ERROR."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from eqcheck.audit.lanes import new_lane
from eqcheck.cli.pasting import spec_of
from eqcheck.contract import registry
from eqcheck.contract.architectures import is_class
from eqcheck.contract.errors import EQUIVALENT, INCONCLUSIVE, INTERNAL, NOTHING, VIOLATION, UsageError, printable
from eqcheck.contract.profiles import CASE_MEMORY, CASE_TIMEOUT
from eqcheck.contract.requirements import refused
from eqcheck.core.explanation.layout import WHOLE, columns
from eqcheck.core.explanation.notice import EqcheckFailed
from eqcheck.core.explanation.statements import power
from eqcheck.core.explanation.text import headline, render
from eqcheck.core.result.findings import Options
from eqcheck.core.result.outcome import DrawnDecode, Outcome
from eqcheck.core.store.casefile import StoredViolation, command, read_case, target_of, write_whole
from eqcheck.report import load
from eqcheck.report.page import trace_page

_OF_MANY = ("sampling/stray-law", "sampling/impossible-token")
"""Kinds of which a single case is a sample, while all cases of an audit together are the proof."""


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

    ``target`` has to name the model of the case where that is a class or a folder of the user's.
    ``calls``: print every call of the models first; ``html``: write them to this file as a page.
    """
    stored = read_case(path)
    if html is not None:
        _check_page(html)
    flags = [flag for flag, given in (("--isolate", isolate), ("-v", calls)) if given]
    options = [*flags, *(["--python", python] if python else []), *(["--html", str(html)] if html else [])]
    spec = _named(path, stored, adapter, target, options)
    try:
        decoder = registry.load(spec)
    except UsageError:
        print("ERROR: the adapter cannot be loaded")
        raise
    timeout, memory = _limits(stored)
    isolate = isolate or stored.isolated
    families = (stored.case.family,) if stored.case.lane == "transparent" else ()
    asked = Options(families=families, case_timeout=timeout, isolate=isolate, case_memory=memory, python=python or "")
    lane = new_lane(stored.case.lane, decoder, asked)
    # Options that the decoder does not take are looked for before it is decoded: a case that it declines is no failure.
    declined = refused(stored.case, decoder.requires)
    if not declined:
        try:
            outcome, shown = lane.again(stored.case, calls or html is not None)
        except EqcheckFailed as failed:
            print(printable(f"ERROR: {failed.internal.text}"))
            return INTERNAL
        declined = outcome.declined
    if declined:
        print(printable(f"DECLINED: {decoder.name}: {declined}; nothing was tested"))
        return NOTHING
    name = f"{decoder.name} {lane.result.version}".strip()
    code, line, words = _told(name, stored, outcome, WHOLE)
    if html is not None and isinstance(shown, DrawnDecode):  # first: whoever reads the rest may have seen enough
        head = f"{line}: {headline(outcome.explanation)}" if words and outcome.explanation else line
        _write(html, trace_page(name, stored.case.id, head, shown, words))
    try:
        _show(shown, calls, html)
        print(line, *_told(name, stored, outcome, columns())[2:], sep="\n", end="")
        print(_other_version(path, decoder.name, lane.result.version or decoder.version), end="")
        if code == VIOLATION and not lane.result.claims(stored.case):
            print(f"{decoder.name} does not claim the family {stored.case.family}: this is a discovery, no violation.")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the interpreter fails again when it ends
    return code


def _named(path: Path, stored: StoredViolation, adapter: str | None, target: str, options: list[str]) -> str:
    """The adapter to run; `UsageError` where a file alone names it and it is code, or code is the target."""
    spec = spec_of(path, stored, adapter)
    if not adapter and registry.names_code(spec):
        raise UsageError(
            f"case file {path}: adapter: expected the name of an installed one (`eqcheck list`), got code to run, "
            f"{spec!r}; if you trust it, type: {' '.join([command(path, spec), shlex.join(options)]).strip()}"
        )
    _check_target(path, stored, spec, target)
    return spec


def _other_version(path: Path, name: str, version: str) -> str:
    """A line where the report beside the case is of another version of the engine."""
    try:
        told = load(path.parent.parent).decoder
    except (UsageError, OSError):
        return ""
    if told.name != name or not (told.version and version) or told.version == version:
        return ""
    return printable(f"The report is of {name} {told.version}, and this is {version}.\n")


def _check_target(path: Path, stored: StoredViolation, spec: str, target: str) -> None:
    """`UsageError` where the target of a case is code to run, or a folder to read, that the user did not name."""
    own = target_of(stored.case)
    if target != own:
        got = f"code to run, {own!r}" if is_class(own) else f"a folder to read, {own!r}"
        expected = f"got {got}; if you trust it, type" if own else "its target is no model of yours; type"
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


def _write(html: Path, page: str) -> None:
    try:
        write_whole(html, page)
    except OSError as error:
        raise UsageError(f"--html {html}: {error.strerror}; nothing was written") from error


def _show(shown: DrawnDecode | str, calls: bool, html: Path | None) -> None:
    """Print every call, or why there is none, and where the page is."""
    if isinstance(shown, str):
        print(f"{shown}\n" if shown else "", end="")
        return
    if calls:
        from eqcheck.report.calls import show  # rich, which these alone need

        show(shown)
        print()
    if html is not None:
        print(printable(f"Every call is shown in {html}\n"))


def _limits(stored: StoredViolation) -> tuple[float, int | None]:
    """Seconds and bytes: the file's where its case is about them, else no less than usual, or a right decoder fails."""
    timeout, memory = stored.case_timeout, stored.case_memory
    if not (stored.fingerprint or "").startswith("crash/"):
        timeout, memory = max(timeout, CASE_TIMEOUT), memory and max(memory, CASE_MEMORY)
    return timeout, memory


def _told(name: str, stored: StoredViolation, outcome: Outcome, width: int) -> tuple[int, str, str]:
    """The exit code, a line on what came of the case, and further lines on what is wrong."""
    explanation, before = outcome.explanation, stored.fingerprint
    was = f" (was {before})" if before else ""
    seen = outcome.observed
    drawn = f": evidence {power(float(seen['evidence']))} after {seen['tokens']} tokens" if "evidence" in seen else ""
    if outcome.status == "inconclusive":
        line = f"INCONCLUSIVE: the evidence does not decide about {name}{was}{drawn}; 10^6 is a violation"
        return INCONCLUSIVE, line, ""
    if explanation is None and outcome.slow is not None:
        line = f"SLOW: {name} loses draft tokens on this case; its output is correct{was}"
        return EQUIVALENT, printable(line), printable(f"{render(outcome.slow, width=width)}\n")
    if explanation is None:
        return EQUIVALENT, f"FIXED: {name} is equivalent on this case{was}{drawn}", ""
    words = printable(f"{render(explanation, width=width)}\n{outcome.traceback}")
    if explanation.kind == "hang" and _limits(stored)[0] < CASE_TIMEOUT:
        words += f"The limit is from the case file; the usual one is {CASE_TIMEOUT:g} s.\n"
    return VIOLATION, printable(f"FAILS: {name}"), words + _otherwise(stored, explanation.fingerprint)


def _otherwise(stored: StoredViolation, now: str) -> str:
    """Return why the case is read otherwise ``now`` than the file says; nothing where it is read the same."""
    before = stored.fingerprint
    if not before or before == now or before.startswith(f"{now}:"):  # what an engine's case needs follows
        return ""
    if not stored.minimised:
        return f"When the audit ended, this case had not been looked into; it was read as {before} then.\n"
    unnamed = _OF_MANY if before.startswith("sampling/") else ("unattributed",)
    if stored.case.lane != "transparent" and now.startswith(unnamed):
        return f"The stored cause is {before}. It was found from other cases; this case alone does not show it.\n"
    return f"The stored violation was {before}; it fails differently now.\n"
