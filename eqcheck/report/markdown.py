"""A report as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from tabulate import tabulate

from eqcheck.audit.coverage_words import CHECKPOINT
from eqcheck.contract.errors import code, fenced, inline
from eqcheck.core.explanation.records import many
from eqcheck.core.explanation.statements import sentence
from eqcheck.core.explanation.text import kinds_known, laid_out, meaning, parts
from eqcheck.core.result.outcome import DueBy, DuePlace
from eqcheck.report.content import STANDING, Content, matrix_table
from eqcheck.report.schema import Condition, Report, ReportedViolation


def to_markdown(report: Report) -> str:
    """The report for a reader; texts of the decoder stay in their places."""
    content = Content(report)
    blocks = [*_head(content), *_internal(report), *_warnings(report), *_served(content), *_families(content)]
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
        means += " A case with sampled rows counts as equal unless a row alone proves it wrong."
    blocks = [
        f"# {inline(f'{decoder.name} {decoder.version}'.strip())}: {report.verdict}",
        inline(f"{', '.join(ran)}. {decoder.origin}".rstrip()),
        means,
        *(
            ["All sampled tokens together do not follow the target's distribution. No case fails by itself."]
            if content.law_alone
            else []
        ),
        *([f"{report.ties} near-ties (`docs/engines.md` has the policy)."] if report.lane == "engine" else []),
        *([f"{content.near_ties[0]}:", _listed(content.near_ties[1:])] if content.near_ties else []),
        *content.sampled[:1],
        *([_listed(content.sampled[1:])] if content.sampled[1:] else []),
        *content.slots,
        *content.memory,
    ]
    return [*blocks, *([inline(f"{content.declined}.")] if content.declined else [])]


def _listed(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _warnings(report: Report) -> list[str]:
    warnings = [f"- {inline(warning)}" for warning in report.warnings]
    return ["## Warnings", "\n".join(warnings)] if warnings else []


def _internal(report: Report) -> list[str]:
    """The errors of eqcheck itself, each with its traceback."""
    shown = ["\n".join(fenced(error.text)) for error in report.internal_errors]
    return ["## Internal errors", *shown] if shown else []


def _served(content: Content) -> list[str]:
    table = content.served(tablefmt="github")
    return ["## As served", f"{content.served_said}:", table] if table else []


def _families(content: Content) -> list[str]:
    if not content.r.matrix:
        return []
    table = matrix_table([content.r], tablefmt="github")
    return ["## Families", table, *filter(None, (content.unclaimed, content.not_taken))]


def _finding(content: Content, finding: ReportedViolation, standing: str) -> list[str]:
    means = meaning(finding.evidence) if kinds_known(finding.evidence) else finding.cause.meaning
    head = f"{STANDING[standing]} {finding.fingerprint}: {means}"
    known = f" ({finding.in_known_words})" if finding.known else ""
    text = "\n".join(part for part in (_explanation(finding), finding.traceback.rstrip()) if part)
    blocks = [f"## {inline(head)}", inline(f"{content.summed(standing, finding)}{known}."), "\n".join(fenced(text))]
    blocks += [inline(sentence(tendency))] if (tendency := content.tendency(finding)) else []
    if len(finding.conditions) == 1:
        return [*blocks, f"Reproduce: {_reproduce(finding.conditions[0])}"]
    rows = [(", ".join(one.needs) or "default settings", one.count, _reproduce(one)) for one in finding.conditions]
    return [*blocks, _table(rows, ("fails with", "cases", "reproduce"))]


def _explanation(finding: ReportedViolation) -> str:
    """The parts of the explanation; as it was written, where another eqcheck wrote it."""
    if not kinds_known(finding.evidence):
        return finding.explanation
    first = finding.conditions[0]
    needs = first.needs if first.minimised else None
    return "\n".join(laid_out(parts(finding.evidence, needs, first.without_speculation)))


def _reproduce(condition: Condition) -> str:
    reproduce, script = code(condition.reproduce), condition.script
    return f"{reproduce}, or without eqcheck: {code(f'python {script}')}" if script else reproduce


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
    return ["Cases that combine two options or settings, in one row or in several:", pairs] if pairs else []


def _rounds(report: Report) -> list[str]:
    """Dictated rounds: how many there were, and how many of them ran as dictated."""
    rows = [(*map(int, name.split("/")), *counts) for name, counts in report.dictated_rounds.items()]
    if not rows:
        return []
    asked, played = (sum(counts[n] for counts in report.dictated_rounds.values()) for n in (0, 1))
    rows.sort(key=lambda row: (row[1], row[0]))
    text = f"{played} of {asked} rounds with dictated drafts ran as dictated:"
    return [text, _table(rows, ("accepted", "of K", "rounds dictated", "ran so"))]


def _due(report: Report) -> list[str]:
    """The draft tokens of built draft models: how many should have been accepted, and how many were."""
    rows = [(name, *counts, counts[1] - counts[0]) for name, counts in report.due_drafts.items()]
    whose = "" if str(DuePlace(DueBy.SAMPLED)) in report.due_drafts else "of greedy rows "
    text = f"Draft tokens {whose}that should have been accepted: the draft proposes them and the target agrees."
    return [text, _table(rows, ("where", "accepted", "should be", "lost"))] if rows else []


def _table(rows: Sequence[Sequence[object]], headers: Sequence[str]) -> str:
    return tabulate(rows, headers=headers, tablefmt="github")
