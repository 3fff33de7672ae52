"""What an audit says where it runs on GitHub: annotations in the log, and the step's summary page."""

from __future__ import annotations

from collections.abc import Sequence

from eqcheck.contract.escaping import code, fenced, inline, one_line, printable
from eqcheck.report.checks import checks, failing
from eqcheck.report.markdown import percent
from eqcheck.report.schema import Report

_MOST = 10  # annotations of a level that GitHub shows of one step
_MOST_BYTES = 900_000  # of a step's summary GitHub takes one MiB, or nothing
_SHOWN = {"passed": "passed", "failed": "**failed**", "known": "known", "inconclusive": "**inconclusive**"}


def commands_of(reports: Sequence[Report], allow_declared: bool) -> list[str]:
    """A workflow command for each failing check, one line each, whatever a decoder is called or says."""
    found = []
    for report in reports:
        for check in failing(checks(report, allow_declared)):
            level = "error" if check.status == "failed" else "warning"
            title = f"eqcheck: {report.decoder.name}: {check.name}"
            text = "\n".join(filter(None, (check.message, check.text)))
            found.append(f"::{level} title={_property(one_line(title, 200))}::{_message(printable(text)[:4000])}")
    left = len(found) - _MOST
    if left > 0:
        found[_MOST - 1 :] = [f"::error title=eqcheck::{left + 1} more are in the report"]
    return found


def untrusted(text: str, token: str) -> str:
    """Text in which GitHub looks for no commands: ``token`` is one that nobody can guess."""
    return f"::stop-commands::{token}\n{text}\n::{token}::"


def step_summary(reports: Sequence[Report], allow_declared: bool) -> str:
    """Markdown for the summary page of a step: a table, then what each failing or known check has to say."""
    rows = ["| decoder | check | | |", "|---|---|---|---|"]
    details = []
    for report in reports:
        exact = percent(report.equivalence.exact_match)
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
