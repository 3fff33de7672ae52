"""A report as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from tabulate import tabulate

from eqcheck.contract.escaping import code, fenced, inline
from eqcheck.explanation.records import many
from eqcheck.explanation.statements import sentence
from eqcheck.lanes.about import CHECKPOINT
from eqcheck.report.content import Content, matrix_table
from eqcheck.report.schema import Condition, Report, ReportedViolation
from eqcheck.result.tally import DUE_SAMPLED


def to_markdown(report: Report) -> str:
    """The report for a reader; texts of the decoder stay in their places."""
    content = Content(report)
    blocks = [*_head(content), *_warnings(report), *_served(content), *_families(content)]
    blocks += [block for standing, finding in content.findings for block in _finding(content, finding, standing)]
    blocks += [*_exercised(content), "## Not shown by a clean audit", content.lane.clean_shows]
    return "\n".join(f"{block}\n" for block in blocks)


def _head(content: Content) -> list[str]:
    report, corpus = content.r, content.r.corpus
    decoder, stored = report.decoder, f"{many(corpus.replayed, 'stored case')} replayed ({corpus.failing} failing)"
    ran = [
        f"{report.cases.run} cases, seed {report.seed}",
        f"families {', '.join(report.families)}",
        *([stored] if corpus.replayed else []),
        *([f"{report.acceptance:.0%} of the draft tokens accepted"] if report.acceptance else []),
        f"{report.elapsed_s} s",
        *(f"{name} {number}" for name, number in report.versions.items()),
    ]
    means = (
        f"Exact match {content.exact}, prefix match {content.prefix} "
        "(means over rows: rows equal in full; leading equal tokens as a share of the row)."
    )
    if content.sampled:
        means += " A case with sampled rows counts as equal where no row alone is certain to be wrong."
    blocks = [
        f"# {inline(f'{decoder.name} {decoder.version}'.strip())}: {report.verdict}",
        inline(f"{', '.join(ran)}. {decoder.origin}".rstrip()),
        means,
        *(
            ["All sampled tokens together violate the target's law. No case fails by itself."]
            if content.law_alone
            else []
        ),
        *([f"{report.ties} near-ties (`docs/engines.md` has the policy)."] if report.lane == "checkpoint" else []),
        *([f"{content.near_ties[0]}:", _listed(content.near_ties[1:])] if content.near_ties else []),
        *content.sampled[:1],
        *([_listed(content.sampled[1:])] if content.sampled[1:] else []),
        *content.slots,
        *content.memory,
    ]
    if (pair := report.real_pair) and not pair.rows:
        blocks.append(inline(f"Not tried on trained models, {pair.first}."))
    elif pair:
        equal = f"{pair.equivalent} of {pair.rows} rows are what the target emits alone."
        blocks.append(f"On the shipped pair of trained models, in float64, {equal}")
        blocks += ["\n".join(f"    {line}" for line in pair.first.splitlines())] if pair.first else []
    return [*blocks, *([inline(f"{content.declined}.")] if content.declined else [])]


def _listed(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _warnings(report: Report) -> list[str]:
    warnings = [f"- {inline(warning)}" for warning in report.warnings]
    return ["## Warnings", "\n".join(warnings)] if warnings else []


def _served(content: Content) -> list[str]:
    table = content.served(tablefmt="github")
    return ["## As served", f"{content.served_said}:", table] if table else []


def _families(content: Content) -> list[str]:
    if not content.r.matrix:
        return []
    table = matrix_table([content.r], tablefmt="github")
    return ["## Families", table, *filter(None, (content.unclaimed, content.not_taken))]


def _finding(content: Content, finding: ReportedViolation, standing: str) -> list[str]:
    titles = [standing] * (standing != "violation") + ["without a cause"] * (not finding.caused)
    known = f" ({finding.in_known_words})" if finding.known else ""
    count = f"{content.shown_by(finding)}{' and one stored before' if finding.from_corpus else ''}"
    beyond = ", families not claimed" if standing == "discovery" else ""
    head = ": ".join(
        [*([", ".join(titles).capitalize()] if titles else []), finding.fingerprint, f"{count}{beyond}{known}"]
    )
    text = "\n\n".join(part for part in (finding.explanation, finding.traceback.rstrip()) if part)
    # An axis: failing cases over cases run.
    axes = [
        [name, ", ".join(f"{value}: {failed}/{of}" for value, failed, of in counts)]
        for name, counts in content.axes(finding)
    ]
    blocks = [f"## {inline(head)}", "\n".join(fenced(text))]
    blocks += [_table(axes, ("by", "failing of run"))] if axes else []
    blocks += map(sentence, finding.only)
    if len(finding.conditions) == 1:
        return [*blocks, f"Reproduce: {_reproduce(finding.conditions[0])}"]
    rows = [(", ".join(one.needs) or "the defaults", one.count, _reproduce(one)) for one in finding.conditions]
    return [*blocks, _table(rows, ("shows with", "cases", "reproduce"))]


def _reproduce(condition: Condition) -> str:
    reproduce, script = code(condition.reproduce), condition.script
    return f"{reproduce}, or with the engine alone: {code(f'python {script}')}" if script else reproduce


def _exercised(content: Content) -> list[str]:
    lane, coverage = content.lane, content.r.coverage
    counters = {**lane.counters, **(lane.sampled if content.r.sampling else {})}
    counters |= {name: what for name, what in CHECKPOINT.counters.items() if name in coverage and name not in counters}
    rows = [(name, coverage.get(name, 0), what) for name, what in counters.items() if content.asked(name)]
    largest = ", ".join(f"{count} {what}" for count, what in content.reached)
    table = _table(rows, ("exercised", "cases", "what"))
    return [
        "## Situations exercised",
        *([f"At most {largest}."] if largest else []),
        table,
        *_pairs(content),
        *_rounds(content.r),
        *_due(content.r),
    ]


def _pairs(content: Content) -> list[str]:
    """Options by options."""
    pairs = content.pairs("github")
    return ["Cases in which two options or settings were at work, in one row or in several:", pairs] if pairs else []


def _rounds(report: Report) -> list[str]:
    """Dictated rounds: how many were asked for, and how many of them were seen to be played."""
    rows = [(*map(int, name.split("/")), *counts) for name, counts in report.dictated_rounds.items()]
    if not rows:
        return []
    asked, played = (sum(counts[n] for counts in report.dictated_rounds.values()) for n in (0, 1))
    rows.sort(key=lambda row: (row[1], row[0]))
    text = f"{played} of {asked} rounds with dictated drafts were seen to be played as asked:"
    return [text, _table(rows, ("accepted", "of K", "rounds asked", "seen to be played"))]


def _due(report: Report) -> list[str]:
    """The draft tokens of built draft models: how many were due, and how many were accepted."""
    rows = [(name, *counts, counts[1] - counts[0]) for name, counts in report.due_drafts.items()]
    whose = "" if DUE_SAMPLED in report.due_drafts else "of greedy rows "
    text = f"Draft tokens {whose}that the draft alone proposes, K a round, and the target agrees with:"
    return [text, _table(rows, ("where", "accepted", "due", "lost"))] if rows else []


def _table(rows: Sequence[Sequence[object]], headers: Sequence[str]) -> str:
    return tabulate(rows, headers=headers, tablefmt="github")
