"""The terminal: a table, the explanations, and the verdict of an audit."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from eqcheck.explanation.layout import columns, table, wrapped
from eqcheck.explanation.records import many
from eqcheck.explanation.text import explained, kinds_known
from eqcheck.report.content import Content, cases, matrix_table
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
            body += [*(["\n".join(about)] if about else []), *_causes(content, width)]
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
    """The verdict, a line for each cause with how many cases show it, how many have none, and where the page is.

    ``short``: the causes are explained nowhere else, so what each means is said here.
    """
    report = content.r
    name, failed = report.decoder.name, report.verdict == "violation" and report.cases.violation
    line = f"{name}: {report.verdict}{f' in {failed} of' if failed else ','} {many(report.cases.run, 'case')}"
    line += ", none wrong by itself" if content.law_alone else ""
    if report.violations and all(one.known_until is not None for one in report.violations):
        line += "; all of it is known"
    if failed and report.cases.inconclusive:
        line += f"; {many(report.cases.inconclusive, 'other failing case')} inconclusive"
    line += "; VACUOUS, see the warning" if content.loud else ""
    if report.equivalence.exact_match not in (None, 1):
        line += f"; exact match {content.exact}, prefix match {content.prefix}"
    lines = [line]
    for standing, finding in content.findings:
        if not finding.caused:
            continue
        mark = _mark(standing)
        meaning = f", {finding.cause.meaning}" if short else ""
        lines.append(
            f"  {mark}{content.shown_by(finding)}: {finding.fingerprint}{' (known)' if finding.known else ''}{meaning}"
        )
    for standing, count in content.uncaused.items():
        lines.append(f"  {_mark(standing)}{many(count, 'case')} without a cause")
    lines += [f"  {line}" for line in content.near_ties]
    lines += [f"  FAILED: {why}" for why in report.outdated]  # whatever the verdict is
    page = f", page: {folder}/report.html" if Path(folder, "report.html").is_file() else ""
    return [wrapped(line, width) for line in [*lines, f"{name}: report in {folder}{page}"]]


def _mark(standing: str) -> str:
    return "" if standing == "violation" else f"{standing.upper()}, "


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
        lines.append(f"{many(report.corpus.replayed, 'stored case')} replayed, {report.corpus.failing} failing")
    lines += filter(None, (content.declined, "" if short else content.not_taken))
    shown = ""
    if (pair := report.real_pair) and not pair.rows:
        lines.append(f"not tried on trained models, {pair.first}")
    elif pair:
        shown = f"\n\n{pair.first}" if pair.first and not report.violations else ""
        lines.append(f"on trained models {pair.equivalent} of {pair.rows} rows are the target's{shown}")
    lines += [*content.sampled[: 1 if short else 4], *content.memory]
    lines += [f"WARNING {warning}" for warning in report.warnings]
    return [wrapped(f"{report.decoder.name}: {line}", width) for line in lines]


def _causes(content: Content, width: int) -> list[str]:
    """Each cause with its explanation, the most frequent violation last."""
    report, blocks = content.r, []
    for standing, finding in reversed(content.findings):
        if standing == "violation":
            known = f", {finding.in_known_words}" if finding.known else ""
            of = f"{finding.count} of {report.cases.run} cases"
            title = f"{content.shown_by(finding, of)}{known}"
        elif standing == "inconclusive":
            title = f"INCONCLUSIVE, {finding.count} of {report.cases.run} cases; answers do not repeat"
        else:
            unclaimed = [name for name, entry in report.matrix.items() if not entry.claimed]
            where = [name for name in unclaimed if finding.fingerprint in report.matrix[name].fingerprints]
            named = ", ".join(where or [str(finding.case.get("family", "-"))])
            title = f"DISCOVERY, {cases(finding)} in families not claimed ({named})"
        stored = " and a stored one of an earlier audit" if finding.from_corpus else ""
        blocks.append(_finding(finding, f"{report.decoder.name}: {title}{stored}", width))
    return blocks


def _finding(finding: ReportedViolation, title: str, width: int) -> str:
    lines = [wrapped(title, width), _explanation(finding, width), *_last_frames(finding.traceback)]
    lines += [wrapped(f"  Where: {statement}.", width) for statement in finding.only]
    for condition in finding.conditions[1:]:
        needs = ", ".join(condition.needs) or "the defaults"
        lines.append(f"  Also with {needs}: {many(condition.count, 'case')}. {condition.reproduce}")
    return "\n".join([*lines, f"  Reproduce: {finding.reproduce}"])


def _explanation(finding: ReportedViolation, width: int) -> str:
    """The explanation as it is stored; made anew where the terminal is narrow and this eqcheck would say the same."""
    text, e, first = finding.explanation, finding.evidence, finding.conditions[0]
    if max(map(len, text.split("\n"))) > width and kinds_known(e):
        needs, plain = first.needs if first.minimised else None, first.without_speculation
        if explained(e, needs, plain) == text:
            return explained(e, needs, plain, width)
    return wrapped(text, width)
