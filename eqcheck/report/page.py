"""The pages: a report or several, two audits compared, and every call of one decode."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from eqcheck import __version__
from eqcheck.contract.errors import one_line, printable
from eqcheck.core.explanation.notice import VACUOUS, Notice
from eqcheck.core.explanation.records import many
from eqcheck.core.result.findings import STANDINGS
from eqcheck.core.result.outcome import DrawnDecode
from eqcheck.report.compare import Comparison, chance, in_words
from eqcheck.report.content import Article, Content, readable
from eqcheck.report.picture import Chart, columns, committed, drafts, stages, timeline
from eqcheck.report.schema import Report, printable_report

# Pages: one self-contained file each, that fetches nothing and is safe whatever its texts hold.
#
#     page("a title", "trace.jinja", calls=calls)
#
# A page is a template of the folder ``html`` that extends ``page.jinja``; ``drawing.jinja`` has the macros that draw
# calls and rounds. Texts are escaped by default; scripts only add to the content that is there without them.

_LINK = re.compile(r"https?://[\w.-]+(:\d+)?(/[^\s\"'<>]*)?", re.ASCII)


def page(title: str, template: str, **data: Any) -> str:
    """The page that a template makes of the data, as HTML.

    >>> page("<b>", "page.jinja").startswith("<!doctype html>")
    True
    """
    style, script = (_resource(name) for name in ("style.css", "page.js"))
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; form-action 'none'"
    )
    shown = {"title": one_line(title, 200), "style": Markup(style), "script": Markup(script), "policy": policy}
    return _environment().get_template(template).render(data | shown)


@cache
def _environment() -> Environment:
    made = Environment(
        autoescape=True,
        loader=PackageLoader("eqcheck.report", "html"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    plain = (short, link, permille, clipped, capital, many)
    drawn = (columns, drafts, committed, timeline, readable)
    made.filters |= {one.__name__: one for one in (*plain, *drawn)} | {"json": json.dumps}
    return made


@cache
def _resource(name: str) -> str:
    """A text that stands in the page as it is: it has no ``</`` but those of HTML in comments."""
    text = resources.files("eqcheck.report").joinpath("html", name).read_text(encoding="utf-8")
    assert "</" not in text, f"{name} would end its own element"
    return text


def _hash(text: str) -> str:
    """The hash that allows exactly this text in a content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def short(value: object, most: int = 160) -> str:
    """A value in one line that can be printed, cut after ``most`` characters."""
    return one_line(str(value), most)


def link(text: str | None) -> str:
    """The text if it is an address of the web and nothing else; else nothing.

    >>> link("https://example.org/a"), link("javascript:alert(1)"), link("https://x/ y")
    ('https://example.org/a', '', '')
    """
    return text if text and len(text) < 2000 and _LINK.fullmatch(text) else ""


def permille(part: int, whole: int, least: int = 15) -> int:
    """The share of ``part`` in a bar of a thousand; ``least`` where there is any, at most 1000.

    >>> permille(1, 3), permille(0, 3), permille(1, 10**9), permille(3, 0)
    (333, 0, 15, 0)
    """
    return max(least, 1000 * min(part, whole) // whole) if part > 0 and whole > 0 else 0


def clipped(text: str, most: int) -> str:
    """Lines that can be printed, cut after ``most`` characters."""
    shown, more = printable(text), len(printable(text)) - most
    return f"{shown[:most]}\n... {more} characters more are in report.json" if more > 0 else shown


def capital(text: str, begins: bool = True) -> str:
    """The text with a capital letter first where it begins a sentence, and the rest as it is."""
    return text[:1].upper() + text[1:] if begins else text


_MOST = 100  # findings that a page draws; a browser shows no more of them at once
_MOST_CHANGES = 500  # lines of a comparison
_ROWS = 16  # of a decode


@dataclass(frozen=True)
class ReportPage(Content):
    """The content of a report as the template shows it; ``number`` keeps the anchors of several apart."""

    number: int = 0

    @property
    def anchor(self) -> str:
        return f"r{self.number}"

    @property
    def articles(self) -> list[Article]:
        """The findings; of each how many cases could show it."""
        beyond = sum(cells.cases for cells in self.r.matrix.values() if not cells.claimed)  # where discoveries are made
        articles: list[Article] = []
        for group, standing in STANDINGS.items():
            of = beyond if standing == "discovery" else self.r.cases.run
            for number, finding in enumerate(getattr(self.r, group), 1):
                articles.append(Article(number, f"{self.anchor}-{len(articles) + 1}", standing, of, finding))
        return articles

    @property
    def counts_all(self) -> bool:
        """Return whether a counter that the report does not have is known to be 0."""
        return self.r.versions.get("eqcheck") == __version__

    @property
    def never(self) -> int:
        """Return how many things no case exercised."""
        return sum(not count for _, rows in self.exercised for _, _, count in rows)

    @property
    def warnings(self) -> list[Notice]:
        """The warnings that are not `loud`."""
        return [warning for warning in self.r.noticed if warning.kind != VACUOUS]

    @property
    def chart(self) -> Chart | None:
        """The evidence of sampled tokens, where its course is known."""
        return Chart.of(self.r.sampling) if self.r.sampling and len(self.r.sampling.course) > 1 else None

    @property
    def said(self) -> str:
        """The verdict as a sentence."""
        run, wrong, violations = self.r.cases.run, self.r.cases.violation, self.r.violations
        if not run:
            return "Nothing was tested: no case ran."
        if self.r.verdict == "violation":
            causes, without = sum(one.caused for one in violations), self.uncaused.get("violation", 0)
            named = [many(causes, "cause")] * bool(causes)
            named += [f"{many(without, 'case')} without a cause that could be shown"] * bool(without)
            causes_found = f" Found: {' and '.join(named)}." if named else ""
            alone = (
                " by itself; all sampled tokens together do not follow the target's distribution"
                if self.law_alone
                else ""
            )
            return f"{wrong or 'None'} of {run} cases {'fails' if wrong < 2 else 'fail'}{alone}.{causes_found}"
        if self.r.verdict == "inconclusive":
            return f"{run} cases ran, and they do not settle whether the decoder is correct."
        ties = f" {self.r.cases.tie} ended in a near-tie." if self.r.cases.tie else ""
        return f"No violation in {run} cases.{ties}"


def to_html(*reports: Report) -> str:
    """The page of one report, or of several, one after the other; it needs nothing but the reports' own data."""
    shown = [ReportPage(printable_report(_shortened(report)), number) for number, report in enumerate(reports)]
    title = ", ".join(f"{one.r.decoder.name}: {one.r.verdict}" for one in shown)
    return page(f"{title} - eqcheck", "report.jinja", reports=shown)


def _shortened(report: Report) -> Report:
    """The report with the findings that a page draws, and a warning where that leaves some out."""
    left_out = sum(max(0, len(getattr(report, group)) - _MOST) for group in STANDINGS)
    if not left_out:
        return report
    warning = f"{many(left_out, 'finding')} of this audit stand in report.json alone: the page draws {_MOST} of a kind"
    kept: dict[str, Any] = {group: getattr(report, group)[:_MOST] for group in STANDINGS}
    kinds = (*(notice.kind for notice in report.noticed), "")
    return replace(report, **kept, warnings=(*report.warnings, warning), warning_kinds=kinds)


def compared_to_html(comparisons: Sequence[Comparison]) -> str:
    """The page of two audits beside each other, of one decoder or of several."""
    clean = [_printable(comparison) for comparison in comparisons]
    names = ", ".join(comparison.now.decoder.name for comparison in clean)
    shown = [
        (drawn, printable(in_words(comparison)), len(comparison.changes) - len(drawn.changes))
        for comparison, drawn in zip(comparisons, clean, strict=True)
    ]
    return page(f"{names}: two audits - eqcheck", "compare.jinja", comparisons=shown, chance=chance)


def _printable(comparison: Comparison) -> Comparison:
    """The comparison as a page draws it: its first changes, and of the reports all but the findings."""
    none: dict[str, Any] = dict.fromkeys(STANDINGS, ())
    before, now = (printable_report(replace(report, **none)) for report in (comparison.before, comparison.now))
    changes = [
        replace(change, fingerprint=printable(change.fingerprint), meaning=printable(change.meaning))
        for change in comparison.changes[:_MOST_CHANGES]
    ]
    return replace(
        comparison, before=before, now=now, changes=tuple(changes), notes=tuple(map(printable, comparison.notes))
    )


def trace_page(name: str, case: str, outcome: str, decode: DrawnDecode, words: str = "") -> str:
    """The page of a decoder's ``decode`` of a case, as HTML.

    ``outcome`` is a line on what came of it, ``words`` say at length what is wrong.
    """
    return page(
        f"{one_line(name, 60)}: every call of case {one_line(case, 60)}",
        "trace.jinja",
        headline=one_line(outcome, 300),
        text=printable(words).strip(),
        steps=list(stages(decode)),
        decode=decode,
        batch=timeline(decode.rounds[:_ROWS]),
        rows=[(row, rounds, decode.first_wrong(row)) for row, rounds in enumerate(decode.rounds)],
    )
