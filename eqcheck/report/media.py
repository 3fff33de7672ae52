"""A report in every medium. Findings that one of them cannot show are shown bare, and no medium is left out."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from eqcheck.explanation.internal import guarded
from eqcheck.explanation.records import Explanation, many
from eqcheck.explanation.text import render
from eqcheck.report.checks import Check, as_xml, junit
from eqcheck.report.markdown import to_markdown
from eqcheck.report.schema import Report
from eqcheck.report.terminal import summary
from eqcheck.result.findings import Audit, Finding

UNSHOWN = "eqcheck failed when it wrote what is wrong here; the case shows it"
MARKDOWN, PAGE = "report.md", "report.html"
Medium = Callable[[Report], str]


def _page(report: Report) -> str:
    from eqcheck.report.page import to_html  # jinja, which only a page needs

    return to_html(report)


_MEDIA: dict[str, Medium] = {
    MARKDOWN: to_markdown,
    PAGE: _page,
    "terminal": lambda report: summary([report], [""]),
    "junit": lambda report: junit([report], allow_declared=False),
}


def in_all_media(audit: Audit, reported: Callable[[], Report]) -> tuple[Report, dict[str, str]]:
    """The report of an audit, as ``reported`` makes it, and its text in each medium that is a file.

    A finding that cannot be rendered loses what is told of it beside its name, which is better than no report; why is
    among the internal errors of the audit. The loop ends because each turn makes a finding bare, or is the last.
    """
    for finding in list(audit.findings):
        _render(audit, finding)
    report, texts = _made(audit, reported), dict[str, str]()
    for name, medium in _MEDIA.items():
        with guarded(audit.internal, "report", lane=audit.lane):
            texts[name] = medium(report)
        if name in texts:
            continue
        for finding in list(audit.findings):
            _show(audit, finding, report, medium)
        report = reported()
    if audit.internal:  # also of the last medium
        report = reported()
        texts = {name: _drawn(medium, report) or _plain(name, report) for name, medium in _MEDIA.items()}
    return report, {name: texts[name] for name in (MARKDOWN, PAGE)}


def _made(audit: Audit, reported: Callable[[], Report]) -> Report:
    """The report; where a finding makes that fail, of bare findings."""
    with guarded(audit.internal, "report", lane=audit.lane):
        return reported()
    for finding in list(audit.findings):
        _make_bare(audit, finding)
    return reported()


def in_terminal(reports: Sequence[Report], places: Sequence[str]) -> str:
    """The reports as a terminal shows them, or what can be shown of them."""
    try:
        return summary(reports, places)
    except Exception:  # the record of it is in the report, if the report alone shows it
        return "\n".join(map(in_lines, reports))


def as_junit(reports: Sequence[Report], allow_declared: bool, places: dict[str, tuple[str, int]]) -> str:
    """JUnit's XML of the reports; of one that fails, its verdict."""
    try:
        return junit(reports, allow_declared, places)
    except Exception:
        return as_xml([(report.decoder.name, [_verdict(report)], report.elapsed_s) for report in reports], places)


def _verdict(report: Report) -> Check:
    return Check("verdict", "failed" if report.verdict == "violation" else "inconclusive", in_lines(report))


def in_lines(report: Report) -> str:
    """The verdict, the causes and the errors of eqcheck, with nothing that could fail again."""
    causes = [f"  {one.fingerprint} in {many(one.count, 'case')}: {one.reproduce}" for one in report.violations]
    errors = [error.text for error in report.internal_errors]
    return "\n".join([f"{report.decoder.name}: {report.verdict}", *causes, *errors])


def _plain(name: str, report: Report) -> str:
    text = in_lines(report)
    return f"<!doctype html>\n<pre>{html.escape(text)}</pre>\n" if name == PAGE else f"{text}\n"


def _drawn(medium: Medium, report: Report) -> str:
    try:
        return medium(report)
    except Exception:  # it was recorded when this medium was tried first
        return ""


def _render(audit: Audit, finding: Finding) -> None:
    shown = False
    with guarded(audit.internal, "render", finding.case):
        render(finding.explanation)
        shown = True
    if not shown:
        _make_bare(audit, finding)


def _show(audit: Audit, finding: Finding, report: Report, medium: Medium) -> None:
    """Make a finding bare that a medium cannot show, with nothing else in the report."""
    kinds = ("violations", "discoveries", "inconclusive")
    alone: dict[str, Any] = {
        kind: tuple(one for one in getattr(report, kind) if one.fingerprint == finding.fingerprint) for kind in kinds
    }
    shown = False
    with guarded(audit.internal, "render", finding.case):
        medium(replace(report, **alone))
        shown = True
    if not shown:
        _make_bare(audit, finding)


def _make_bare(audit: Audit, finding: Finding) -> None:
    e = finding.explanation
    bare = Explanation(e.component, e.kind, subject=e.subject, detail=UNSHOWN)
    place = next(number for number, one in enumerate(audit.findings) if one is finding)
    outcome = replace(finding.outcome, explanation=bare, traceback="")
    left: dict[str, object] = {"axes": {}, "only": (), "others": (), "story": None}
    audit.findings[place] = replace(finding, outcome=outcome, explanation=bare, **left)  # type: ignore[arg-type]
