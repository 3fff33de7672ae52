"""A report as a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from eqcheck import __version__
from eqcheck.contract.escaping import printable
from eqcheck.explanation.notice import VACUOUS
from eqcheck.explanation.records import many
from eqcheck.lanes.lane import LANES
from eqcheck.report.chart import Chart
from eqcheck.report.compare import Comparison, chance, in_words
from eqcheck.report.finding import Finding
from eqcheck.report.markdown import about, asked, declined_of, memory, not_taken, percent, sampled, slots_seen
from eqcheck.report.schema import Report, ReportedViolation, printable_report
from eqcheck.report.templates import page

_MOST = 100  # findings that a page draws; a browser shows no more of them at once
_MOST_CHANGES = 500  # lines of a comparison
_TITLES = {"violations": "", "discoveries": "Discovery", "inconclusive": "Inconclusive"}


def to_html(*reports: Report) -> str:
    """The page of one report, or of several, one after the other; it needs nothing but the reports' own data."""
    shown = [_prepared(printable_report(_shortened(report)), number) for number, report in enumerate(reports)]
    title = ", ".join(f"{one.r.decoder.name}: {one.r.verdict}" for one in shown)
    return page(f"{title} - eqcheck", "report.jinja", reports=shown)


def compared_to_html(comparisons: Sequence[Comparison]) -> str:
    """The page of two audits beside each other, of one decoder or of several."""
    said = [printable(in_words(one)) for one in comparisons]
    clean = [_printable(one) for one in comparisons]
    left_out = [len(one.changes) - len(drawn.changes) for one, drawn in zip(comparisons, clean, strict=True)]
    names = ", ".join(one.now.decoder.name for one in clean)
    shown = list(zip(clean, said, left_out, strict=True))
    return page(f"{names}: two audits - eqcheck", "compare.jinja", comparisons=shown, chance=chance)


def _shortened(report: Report) -> Report:
    """The report with the findings that a page draws, and a warning where that leaves some out."""
    left_out = sum(max(0, len(getattr(report, group)) - _MOST) for group in _TITLES)
    if not left_out:
        return report
    warning = f"{many(left_out, 'finding')} of this audit stand in report.json alone: the page draws {_MOST} of a kind"
    kept: dict[str, Any] = {group: getattr(report, group)[:_MOST] for group in _TITLES}
    warnings = [*report.noticed, (warning, "")]
    words, kinds = (tuple(part) for part in zip(*warnings, strict=True))
    return replace(report, **kept, warnings=words, warning_kinds=kinds)


def _printable(one: Comparison) -> Comparison:
    """The comparison as a page draws it: its first changes, and of the reports what is no finding."""
    none: dict[str, Any] = dict.fromkeys(_TITLES, ())
    before, now = (printable_report(replace(report, **none)) for report in (one.before, one.now))
    changes = [
        replace(change, fingerprint=printable(change.fingerprint), meaning=printable(change.meaning))
        for change in one.changes[:_MOST_CHANGES]
    ]
    return replace(one, before=before, now=now, changes=tuple(changes), notes=tuple(map(printable, one.notes)))


def _prepared(report: Report, number: int) -> SimpleNamespace:
    """What the template shows of a report; ``number`` keeps the anchors of several apart."""
    lane = about(report) if report.lane in LANES else None
    found: list[Finding] = []
    for group, title in _TITLES.items():
        found += [
            _finding(report, one, title, f"r{number}-{len(found) + at}", at)
            for at, one in enumerate(getattr(report, group), 1)
        ]
    return SimpleNamespace(
        r=report,
        anchor=f"r{number}",
        findings=found,
        axes=getattr(lane, "AXES", {}),
        losses=getattr(lane, "LOSSES", {}),
        exercised=(exercised := _exercised(report, lane)),
        never=sum(not count for _, rows in exercised for _, _, count in rows),
        counts_all=report.versions.get("eqcheck") == __version__,
        reached=[(report.reached.get(name, 0), what) for name, what in getattr(lane, "REACHED", {}).items()],
        clean_shows=getattr(lane, "CLEAN_SHOWS", ""),
        legend=next((one.anchor for one in found if one.drawn), ""),
        said=_said(report),
        loud=[warning for warning, kind in report.noticed if kind == VACUOUS],
        warnings=[warning for warning, kind in report.noticed if kind != VACUOUS],
        exact=percent(report.equivalence.exact_match),
        prefix=percent(report.equivalence.prefix_match),
        declined=declined_of(report),
        not_taken=not_taken(report),
        sampled=sampled(report),
        memory=[*slots_seen(report), *memory(report)],
        chart=Chart.of(report.sampling) if report.sampling and len(report.sampling.course) > 1 else None,
    )


def _finding(report: Report, one: ReportedViolation, title: str, anchor: str, number: int) -> Finding:
    of = report.cases.run
    if title == "Discovery":  # made on cases beyond the claim, which are not among those that ran
        of = sum(cells.cases for cells in report.matrix.values() if not cells.claimed)
    return Finding(number, anchor, title, of, one)


def _exercised(report: Report, lane: Any) -> list[tuple[str, list[tuple[str, str, int]]]]:
    """What the lane exercises: its name, what it is, and in how many cases; the least first. Sampled rows apart."""
    plain, of_sampled = getattr(lane, "COUNTERS", {}), getattr(lane, "SAMPLED", {}) if report.sampling else {}
    of_sampled = {name: what for name, what in of_sampled.items() if name not in plain}
    plain = {**dict.fromkeys((name for name in report.coverage if name not in of_sampled), ""), **plain}
    found = []
    for title, names in (("", plain), ("Of cases with sampled rows", of_sampled)):
        rows = [
            (name, what or name, report.coverage.get(name, 0)) for name, what in names.items() if asked(report, name)
        ]
        found.append((title, sorted(rows, key=lambda row: row[2])))
    return [(title, rows) for title, rows in found if rows]


def _said(report: Report) -> str:
    """The verdict as a sentence."""
    run, wrong = report.cases.run, report.cases.violation
    if not run:
        return "Nothing was tested: no case ran."
    if report.verdict == "violation":
        parts = [f"{wrong or 'None'} of {run} cases {'fails' if wrong < 2 else 'fail'}."]
        unknown = sum(one.component == "unattributed" for one in report.violations)
        named = [many(len(report.violations) - unknown, "cause")] * (len(report.violations) > unknown)
        named += [f"{many(unknown, 'violation')} without a cause that could be shown"] * bool(unknown)
        return " ".join([*parts, *([f"Found: {' and '.join(named)}."] if named else [])])
    if report.verdict == "inconclusive":
        return f"{run} cases ran. They do not settle whether the decoder is right."
    ties = f" {report.cases.tie} ended in a near-tie." if report.cases.tie else ""
    return f"No violation was found in {run} cases.{ties}"
