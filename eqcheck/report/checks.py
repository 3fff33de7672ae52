"""An audit as a list of checks, the verdict first and then each cause; and the lists that a CI server shows of them.

JUnit's XML has a test suite for each decoder and a test case for each check. GitHub has annotations in the log and the
step's summary page.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree

from eqcheck.contract.errors import code, fenced, inline, one_line, printable
from eqcheck.core.explanation.notice import INCONCLUSIVE
from eqcheck.core.explanation.records import many
from eqcheck.core.explanation.statements import unrepeated
from eqcheck.report.content import Content, cases
from eqcheck.report.schema import Report, ReportedViolation

Status = Literal["passed", "failed", "known", "inconclusive"]
_MOST = 10  # annotations of a level that GitHub shows of one step
_MOST_BYTES = 900_000  # of a step's summary GitHub takes one MiB, or nothing
_SHOWN = {"passed": "passed", "failed": "**failed**", "known": "known", "inconclusive": "**inconclusive**"}
# Characters that XML 1.0 cannot hold, not even escaped.
_UNSPEAKABLE = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Check:
    """One thing that was checked; ``message`` is a line, ``text`` all that there is to say."""

    name: str
    status: Status
    message: str = ""
    text: str = ""


def checks(report: Report, allow_declared: bool) -> list[Check]:
    """The checks of one audit; where ``allow_declared``, what the adapter declares as known passes.

    The verdict fails with the causes, so that no list shows a wrong decoder with a verdict that passed.
    """
    causes = [_of_violation(violation, allow_declared) for violation in report.violations]
    doubtful = [
        Check(
            f"inconclusive: {finding.fingerprint}", "inconclusive", unrepeated(finding.kind == "hang"), _text(finding)
        )
        for finding in report.inconclusive
    ]
    broken = [
        Check(f"internal error: {finding.error}", "inconclusive", finding.headline, finding.text)
        for finding in report.internal_errors
    ]
    return [_verdict(report, causes), *causes, *doubtful, *broken]


def failing(found: Sequence[Check]) -> list[Check]:
    """The checks that need somebody's eye; a verdict whose causes are among them adds nothing to them."""
    bad = [check for check in found if check.status in ("failed", "inconclusive")]
    return bad[1:] if len(bad) > 1 and bad[0] is found[0] else bad


def _verdict(report: Report, causes: Sequence[Check]) -> Check:
    run, failed = many(report.cases.run, "case"), [check for check in causes if check.status == "failed"]
    if failed:
        wrong = f"{report.cases.violation} of {run} wrong: {', '.join(check.name for check in failed)}"
        return Check("verdict", "failed", wrong)
    if report.stale:
        gone = f"declared as known, but no longer seen: {', '.join(report.stale)}; remove it from known="
        return Check("verdict", "failed", gone)
    if report.outdated:
        return Check("verdict", "failed", "; ".join(report.outdated))
    if not report.cases.run:
        return Check("verdict", "inconclusive", "nothing was tested")
    if report.internal_errors:
        return Check("verdict", "inconclusive", f"{run}: {report.internal_errors[0].headline}")
    doubt = next((warning for warning in report.noticed if warning.kind == INCONCLUSIVE), "")
    if report.interrupted or report.verdict == "inconclusive" or report.inconclusive or doubt:
        why = "interrupted" if report.interrupted else doubt or "inconclusive"
        return Check("verdict", "inconclusive", f"{run}: {why}")
    return Check("verdict", "passed", f"{run}: {'only known violations' if causes else report.verdict}")


def _of_violation(violation: ReportedViolation, allow_declared: bool) -> Check:
    known = violation.known_until is not None or (allow_declared and violation.known is not None)
    message = f"{cases(violation)}: {violation.cause.meaning}"
    if violation.known is not None:
        message += f" ({violation.in_known_words})"
    return Check(violation.fingerprint, "known" if known else "failed", message, _text(violation))


def _text(violation: ReportedViolation) -> str:
    parts = (violation.explanation, violation.traceback.rstrip(), f"  {'Reproduce':<13}  {violation.reproduce}")
    return "\n".join(part for part in parts if part)


def junit(reports: Sequence[Report], allow_declared: bool, places: Mapping[str, tuple[str, int]] | None = None) -> str:
    """The XML of audits. A known violation is a skipped test, one that is inconclusive an error.

    ``places``: the file and the line of each decoder.
    """
    suites = [(report.decoder.name, checks(report, allow_declared), report.elapsed_s) for report in reports]
    return as_xml(suites, places or {})


def as_xml(
    suites: Sequence[tuple[str, Sequence[Check], float]], places: Mapping[str, tuple[str, int]] | None = None
) -> str:
    """JUnit's XML of suites: their names, checks, and seconds; ``places`` are files and lines by the suite's name."""
    root = ElementTree.Element("testsuites", name="eqcheck")
    for name, listed, elapsed in suites:
        suite = ElementTree.SubElement(root, "testsuite", name=_clean(name))
        suite.set("tests", str(len(listed)))
        for attribute, status in (("failures", "failed"), ("errors", "inconclusive"), ("skipped", "known")):
            suite.set(attribute, str(sum(check.status == status for check in listed)))
        suite.set("time", f"{elapsed:.1f}")
        for number, check in enumerate(listed):
            case = _case(suite, check, name, elapsed if number == 0 else 0.0)
            file, line = (places or {}).get(name, ("", 0))
            if file:
                case.set("file", _clean(file))
            if line:
                case.set("line", str(line))
    ElementTree.indent(root)
    return f"{ElementTree.tostring(root, encoding='unicode', xml_declaration=True)}\n"


def _case(suite: ElementTree.Element, check: Check, name: str, seconds: float) -> ElementTree.Element:
    classname = f"eqcheck.{_clean(name)}"
    case = ElementTree.SubElement(suite, "testcase", classname=classname, name=_clean(check.name))
    case.set("time", f"{seconds:.1f}")
    tag = {"failed": "failure", "inconclusive": "error", "known": "skipped"}.get(check.status)
    if tag is None:
        ElementTree.SubElement(case, "system-out").text = _clean(check.message)
        return case
    told = ElementTree.SubElement(case, tag, message=_clean(check.message))
    if tag != "skipped":
        told.set("type", _clean(check.name))
    told.text = _clean(check.text) or None
    return case


def _clean(text: str) -> str:
    return _UNSPEAKABLE.sub("?", printable(text))


def commands_of(reports: Sequence[Report], allow_declared: bool) -> list[str]:
    """A workflow command for each failing check, one line each, whatever a decoder is called or says."""
    commands = []
    for report in reports:
        for check in failing(checks(report, allow_declared)):
            level = "error" if check.status == "failed" else "warning"
            title = f"eqcheck: {report.decoder.name}: {check.name}"
            text = "\n".join(filter(None, (check.message, check.text)))
            commands.append(f"::{level} title={_property(one_line(title, 200))}::{_message(printable(text)[:4000])}")
    left = len(commands) - _MOST
    if left > 0:
        commands[_MOST - 1 :] = [f"::error title=eqcheck::{left + 1} more are in the report"]
    return commands


def untrusted(text: str, token: str) -> str:
    """Text in which GitHub looks for no commands: ``token`` is one that nobody can guess."""
    return f"::stop-commands::{token}\n{text}\n::{token}::"


def step_summary(reports: Sequence[Report], allow_declared: bool) -> str:
    """Markdown for the summary page of a step: a table, then what each failing or known check has to say."""
    rows = ["| decoder | check | | |", "|---|---|---|---|"]
    details = []
    for report in reports:
        exact = Content(report).exact
        for number, check in enumerate(checks(report, allow_declared)):
            about = f"{check.message}, exact match {exact}" if number == 0 else check.message
            cells = [code(report.decoder.name), code(check.name), _SHOWN[check.status], inline(about)]
            rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
            if check.text:
                head = inline(f"{report.decoder.name}: {check.name}")
                details.append("\n".join(["", f"### {head}", "", *fenced(check.text)]))
    text = "\n".join(["## eqcheck", "", *rows])
    for number, detail in enumerate(details):
        if len(f"{text}\n{detail}".encode()) > _MOST_BYTES:
            return f"{text}\n\n{len(details) - number} more are in the report.\n"
        text = f"{text}\n{detail}"
    return f"{text}\n"


def _message(text: str) -> str:
    """Text as the message of a workflow command."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """Text as a property of a workflow command."""
    return _message(text).replace(":", "%3A").replace(",", "%2C")
