"""The terminal: a table, the explanations, and the verdict of an audit."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from eqcheck.core.explanation.layout import columns, lines, table, wrapped
from eqcheck.core.explanation.records import many
from eqcheck.core.explanation.statements import needs_named
from eqcheck.core.explanation.text import WIDTH, Part, kinds_known, laid_out, meaning, parts
from eqcheck.report.content import STANDING, Content, matrix_table
from eqcheck.report.schema import Report, ReportedViolation


def summary(reports: Sequence[Report], folders: Sequence[str]) -> str:
    """The findings of an audit, the most important last: there a terminal stands still.

    Of one decoder its warnings, each cause with its explanation and its reproduce command, the most frequent cause
    last, and then the verdict, a line a cause, and the page. Of several the same without explanations, then a table.
    No line is longer than the terminal is wide, but for commands, which are copied.
    """
    width, several = columns(), len(reports) > 1
    contents = [Content(report) for report in reports]
    note = next((content.unclaimed for content in contents if content.unclaimed), "")
    blocks = [f"{matrix_table(reports, width=width)}\n{wrapped(note, width)}"] if note else []
    for content, folder in zip(contents, folders, strict=True):
        about, verdict = _about(content, width, several), _verdict(content, folder, width, several)
        if several:
            blocks.append("\n".join([*about, *verdict]))
        else:
            served = content.served(width=width)
            body = [f"{wrapped(f'{content.served_said}:', width)}\n{served}"] if served else []
            body += [
                *(["\n".join(about)] if about else []),
                *_causes(content, width, lines() - len("\n".join(verdict).splitlines()) - 1),
            ]
            blocks += [*body[:-1], "\n".join([*body[-1:], *verdict])]  # no line between them: 24 are few
    return "\n\n".join([*blocks, *([_table(contents, width)] if several else [])])


def _table(contents: Sequence[Content], width: int) -> str:
    rows = []
    for content in contents:
        by_component: Counter[str] = Counter()
        for violation in content.r.violations:
            by_component[violation.component] += violation.count if violation.caused else 0
        counts = [*by_component.most_common(), ("without a cause", content.uncaused.get("violation", 0))]
        shown = ", ".join(f"{name} {count}" for name, count in counts if count) or "-"
        shown += " (VACUOUS)" * bool(content.loud)
        rows.append(
            [content.r.decoder.name, content.r.verdict, content.r.cases.run, content.exact, content.prefix, shown]
        )
    headers = ["decoder", "verdict", "cases", "exact match", "prefix match", "violations by component"]
    aligned = ("left", "left", "right", "right", "right")
    short = ["decoder", "verdict", "cases", "exact", "prefix", "violations"]
    return table(rows, headers, width, short, colalign=aligned)


def _verdict(content: Content, folder: str, width: int, short: bool) -> list[str]:
    """The verdict, how many cases show each cause and how many have none, and where the page is.

    ``short``: the causes are explained nowhere else, so each has a line with its meaning.
    """
    report = content.r
    name, failed = report.decoder.name, report.verdict == "violation" and report.cases.violation
    line = f"{name}: {report.verdict}{content.extent}"
    line += ", no case is wrong by itself" if content.law_alone else ""
    if report.violations and all(one.known_until is not None for one in report.violations):
        line += "; all of it is known"
    if failed and report.cases.inconclusive:
        line += f"; {many(report.cases.inconclusive, 'other failing case')} inconclusive"
    line += "; eqcheck itself failed, see INTERNAL ERROR" if report.internal_errors else ""
    line += "; VACUOUS, see the warning" if content.loud else ""
    if report.equivalence.exact_match not in (None, 1):
        line += f"; exact match {content.exact}, prefix match {content.prefix}"
    causes = []
    for standing, finding in content.findings:
        if finding.caused:
            meaning = f", {finding.cause.meaning}" if short else ""
            known = " (known)" if finding.known else ""
            shown = content.shown_by(finding, "" if short else str(finding.count))
            causes.append(f"{_mark(standing)}{finding.fingerprint} {shown}{known}{meaning}")
    causes += [f"{_mark(standing)}{count} without a cause" for standing, count in content.uncaused.items()]
    lines = [line, *(f"  {cause}" for cause in causes)] if short else [line]
    lines += [] if short or not causes else [f"  {'; '.join(causes)}"]
    lines += [f"  {line}" for line in content.near_ties]
    lines += [f"  FAILED: {why}" for why in report.outdated]  # whatever the verdict is
    page = Path(folder, "report.html")
    where = f"{name}: report: {page if page.is_file() else folder}"
    return [wrapped(line, width) for line in [*lines, where]]


def _mark(standing: str) -> str:
    return "" if standing == "violation" else f"{standing.upper()} "


_FOREIGN_FRAMES = (f"site-packages{os.sep}", f"{Path(__file__).parents[1].name}{os.sep}")  # torch's, and eqcheck's


def _last_frames(traceback: str) -> list[str]:
    r"""Where the decoder's own code was when it raised, and the last frame; the whole is in report.json.

    >>> print("|".join(_last_frames('Traceback:\n  File "mine.py", line 3, in feed\n    x[9]\nIndexError: 9')))
          File "mine.py", line 3, in feed|        x[9]
    """
    frames: list[list[str]] = []
    for line in traceback.rstrip().splitlines():
        if line.startswith("  File "):
            frames.append([])
        if frames and line.startswith("  "):
            frames[-1].append(f"    {line}")
    own = [frame for frame in frames if not any(part in frame[0] for part in _FOREIGN_FRAMES)]
    shown = [*own[-1:], *(frame for frame in frames[-1:] if frame not in own[-1:])]
    return [line for frame in shown for line in frame]


def _about(content: Content, width: int, short: bool) -> list[str]:
    """The audit beside its findings: warnings, and (unless ``short``) what it leaves out."""
    report, lines = content.r, []
    if report.corpus.replayed:
        lines.append(f"{report.corpus.failing} of {many(report.corpus.replayed, 'stored case')} fail")
    lines += filter(None, (content.declined, "" if short else content.not_taken))
    lines += [*content.sampled[: 1 if short else 4], *content.memory]
    lines += [f"WARNING {warning}" for warning in report.warnings]
    lines += [f"INTERNAL ERROR: {error.headline}" for error in report.internal_errors]
    return [wrapped(f"{report.decoder.name}: {line}", width) for line in lines]


def _causes(content: Content, width: int, rows: int) -> list[str]:
    """Each cause with its explanation, the most frequent violation last, which fits into so many ``rows`` if it can."""
    blocks = [_finding(content, standing, finding, width) for standing, finding in reversed(content.findings)]
    if blocks and len("\n".join(blocks[-1]).splitlines()) > rows:
        blocks[-1] = _finding(content, *content.findings[0], width, brief=True)
    return ["\n".join(block) for block in blocks]


def _finding(content: Content, standing: str, finding: ReportedViolation, width: int, brief: bool = False) -> list[str]:
    """One cause: what failed and in how many cases, the explanation, where it shows, how to see it again.

    ``brief``: for a terminal that has few lines, without correct slots and without what the page has as well.
    """
    whole, e, first = min(width, WIDTH), finding.evidence, finding.conditions[0]
    lines = _headed(STANDING[standing], content.summed(standing, finding), finding, whole)
    if kinds_known(e):
        needs = first.needs if first.minimised else None
        lines += laid_out(parts(e, needs, first.without_speculation, whole, brief), whole)
    else:  # of another eqcheck
        lines += wrapped(finding.explanation, width).split("\n")[1:]
    lines += _last_frames(finding.traceback)
    tendency = "" if brief else content.tendency(finding)
    notes = [Part("Frequency", tendency)] if tendency else []
    if others := finding.conditions[1:]:
        also = [f"{needs_named(one.needs or ())} ({many(one.count, 'case')})" for one in others]
        notes.append(Part("Also fails with", ", ".join(also)))
    if finding.known and not brief:
        by = f"until {finding.known_until}" if finding.known_until else "declared by the adapter"
        notes.append(Part("Known", f"{by}: {finding.known}"))
    lines += laid_out(notes, whole)
    lines.append(f"  {'Reproduce':<13}  {finding.reproduce}")
    if first.script:
        lines.append(f"  {'Script':<13}  {first.script} (needs only the engine)")
    return lines


def _headed(begin: str, count: str, finding: ReportedViolation, width: int) -> list[str]:
    """The headline: fingerprint and meaning to the left, in how many cases to the right, or below."""
    means = meaning(finding.evidence) if kinds_known(finding.evidence) else finding.cause.meaning
    head = f"{begin} {finding.fingerprint}: {means}"
    if len(head) + len(count) + 2 <= width:
        return [f"{head}{count:>{width - len(head)}}"]
    return [wrapped(head, width), wrapped(f"  {count}", width)]
