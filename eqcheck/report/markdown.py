"""A report as Markdown, and the lines and tables that the terminal shows, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from tabulate import tabulate

from eqcheck.contract.decoder import FAMILIES
from eqcheck.contract.escaping import code, fenced, inline
from eqcheck.explanation.records import many
from eqcheck.explanation.terminal import WHOLE, table
from eqcheck.explanation.text import sentence
from eqcheck.report.schema import Condition, Report, ReportedViolation
from eqcheck.result.declining import summary

UNCLAIMED_NOTE = "In brackets: families the decoder does not claim; what is found there is a discovery, no violation."


_TITLES = {"violations": "", "discoveries": "Discovery", "inconclusive": "Inconclusive"}
_OF_TREES = ("tree", "different_trees", "off_spine")


def about(report: Report) -> Any:
    """What the report's lane says of itself: COUNTERS, SAMPLED, REACHED, AXES, CLEAN_SHOWS."""
    return import_module(f"eqcheck.lanes.about_{report.lane.partition('-')[0]}")


def to_markdown(report: Report) -> str:
    """The report for a reader; texts of the decoder stay in their places."""
    sections = [_head(report), _warnings(report), _families(report)]
    for title in ("violations", "discoveries", "inconclusive"):
        sections += [_violation(finding, _TITLES[title], about(report).AXES) for finding in getattr(report, title)]
    sections += [_exercised(report), ["## What a clean audit does not show", "", about(report).CLEAN_SHOWS, ""]]
    return "\n".join(line for section in sections for line in section)


def _head(report: Report) -> list[str]:
    corpus, decoder = report.corpus, report.decoder
    ran = [
        f"{report.cases.run} cases, seed {report.seed}",
        f"families {', '.join(report.families)}",
        *([f"{many(corpus.replayed, 'stored case')} replayed ({corpus.failing} failing)"] if corpus.replayed else []),
        *([f"{report.acceptance:.0%} of the draft tokens accepted"] if report.acceptance else []),
        f"{report.elapsed_s} s",
        *(f"{name} {number}" for name, number in report.versions.items()),
    ]
    equal = report.equivalence
    of_sampled = (
        " A case with sampled rows counts as equal where no row alone is certain to be wrong."
        if sampled(report)
        else ""
    )
    lines = [
        f"# {inline(f'{decoder.name} {decoder.version}'.strip())}: {report.verdict}",
        "",
        inline(f"{', '.join(ran)}. {decoder.origin}".rstrip()),
        "",
        f"Exact match {percent(equal.exact_match)}, prefix match {percent(equal.prefix_match)} "
        f"(means over rows: rows equal in full; leading equal tokens as a share of the row).{of_sampled}",
        "",
    ]
    if report.lane == "checkpoint":
        lines += [f"{report.ties} near-ties (`docs/engines.md` has the policy).", ""]
    lines += [line for sentence in sampled(report)[:1] for line in (sentence, "")]
    lines += [*(f"- {sentence}" for sentence in sampled(report)[1:]), ""] if len(sampled(report)) > 1 else []
    lines += [line for sentence in (*slots_seen(report), *memory(report)) for line in (sentence, "")]
    if (pair := report.real_pair) and not pair.rows:
        lines += [inline(f"Not tried on trained models, {pair.first}."), ""]
    elif pair:
        lines += [
            f"On the shipped pair of trained models, in float64, {pair.equivalent} of {pair.rows} rows are what the "
            "target emits alone.",
            "",
            *(f"    {line}" for line in pair.first.splitlines()),
            *([""] if pair.first else []),
        ]
    return lines + ([inline(f"{declined_of(report)}."), ""] if report.declined else [])


SPLIT = {
    "rejected": "rejected drafts and fillers",
    "pads": "pads",
    "finished": "rows that ended",
    "copies": "second copies",
    "spare": "spare capacity",
    "unread": "not read",
}


def slots_seen(report: Report) -> list[str]:
    """How much of what the target is handed is of use, in a sentence."""
    share = report.slots_seen
    return [] if share is None else [f"Queries saw {percent(share)} of the cache slots that the target was handed."]


def memory(report: Report) -> list[str]:
    """What keys and values take, in a sentence, where that was measured."""
    found = report.memory
    if found is None:
        return []
    if found.waste is None or found.waste_at_peak is None:
        return [f"Keys and values take {found.peak_bytes:,} bytes at most; nothing of them could be read."]
    waste = [f"{name} {percent(found.split[kind])}" for kind, name in SPLIT.items() if found.split.get(kind)]
    return [
        f"Keys and values take {found.peak_bytes:,} bytes at most: {found.waste:.2f} times the least that is needed in "
        f"the median of the rounds, {found.waste_at_peak:.2f} times where they take most"
        + (f" (of all of it {', '.join(waste)})." if waste else ".")
    ]


def _warnings(report: Report) -> list[str]:
    warnings = [f"- {inline(warning)}" for warning in report.warnings]
    return ["## Warnings", "", *warnings, ""] if warnings else []


def _families(report: Report) -> list[str]:
    if not report.matrix:
        return []
    lines = ["## Families", "", matrix_table([report], tablefmt="github"), ""]
    lines += [UNCLAIMED_NOTE, ""] if beyond_claim(report) else []
    return lines + ([not_taken(report), ""] if not_taken(report) else [])


def _violation(violation: ReportedViolation, title: str, axes: Mapping[str, str]) -> list[str]:
    known = f" ({violation.in_known_words})" if violation.known else ""
    count = f"{many(violation.count, 'case')}{' and one stored before' if violation.from_corpus else ''}"
    beyond = ", families not claimed" if title == "Discovery" else ""
    head = ": ".join([*([title] if title else []), violation.fingerprint, f"{count}{beyond}{known}"])
    text = "\n\n".join(part for part in (violation.explanation, violation.traceback.rstrip()) if part)
    lines = [f"## {inline(head)}", "", *fenced(text), "", *_axes(violation, axes)]
    for statement in violation.only:
        lines += [sentence(statement), ""]
    if len(violation.conditions) == 1:
        return [*lines, f"Reproduce: {_reproduce(violation.conditions[0])}", ""]
    rows = [(", ".join(one.needs) or "the defaults", one.count, _reproduce(one)) for one in violation.conditions]
    return [*lines, tabulate(rows, headers=("shows with", "cases", "reproduce"), tablefmt="github"), ""]


def _reproduce(condition: Condition) -> str:
    reproduce, script = code(condition.reproduce), condition.script
    return f"{reproduce}, or with the engine alone: {code(f'python {script}')}" if script else reproduce


def _axes(violation: ReportedViolation, names: Mapping[str, str]) -> list[str]:
    """Failing cases over cases run; an axis of one value says nothing."""
    rows = []
    for axis, values in violation.axes.items():
        counts = [f"{value}: {failed}/{of}" for value, (failed, of) in values.items()]
        rows += [[names[axis], ", ".join(counts)]] if len(counts) > 1 and violation.count else []
    return [tabulate(rows, headers=("by", "failing of run"), tablefmt="github"), ""] if rows else []


def asked(report: Report, counter: str) -> bool:
    """Whether cases could exercise what is counted: trees are for decoders alone that take them."""
    return counter not in _OF_TREES or isinstance(report.cache_states.get("tree"), int)


def _exercised(report: Report) -> list[str]:
    counters = about(report).COUNTERS | (about(report).SAMPLED if report.sampling else {})
    rows = [(name, report.coverage.get(name, 0), what) for name, what in counters.items() if asked(report, name)]
    table = tabulate(rows, headers=("exercised", "cases", "what"), tablefmt="github")
    largest = ", ".join(f"{report.reached[name]} {what}" for name, what in about(report).REACHED.items())
    return ["## What was exercised", "", *([f"At most {largest}.", ""] if largest else []), table, "", *_rounds(report)]


def _rounds(report: Report) -> list[str]:
    """Dictated rounds: how many were asked for, and how many of them were seen to be played."""
    rows = [(*map(int, name.split("/")), *counts) for name, counts in report.dictated_rounds.items()]
    if not rows:
        return []
    asked, played = (sum(counts[n] for counts in report.dictated_rounds.values()) for n in (0, 1))
    rows.sort(key=lambda row: (row[1], row[0]))
    headers = ("accepted", "of K", "rounds asked", "seen to be played")
    text = f"{played} of {asked} rounds with dictated drafts were seen to be played as asked:"
    return [text, "", tabulate(rows, headers=headers, tablefmt="github"), ""]


def matrix_table(reports: Sequence[Report], tablefmt: str = "simple", width: int = WHOLE) -> str:
    """Decoders by families: ``ok 50`` or ``violation 12/50``, in brackets where a family is not claimed."""
    known = [*FAMILIES, *(family for report in reports for family in report.matrix)]
    families = [family for family in dict.fromkeys(known) if any(family in report.matrix for report in reports)]
    rows = [[report.decoder.name, *(_cell(report, family) for family in families)] for report in reports]
    return table(rows, ["decoder", *map(_column, families)], width, tablefmt=tablefmt)


def _column(family: str) -> str:
    """A family; of those on real models the model."""
    return family.partition("@")[2] or family


def _cell(report: Report, family: str) -> str:
    entry = report.matrix.get(family)
    if entry is None:
        return "-"
    what = f"ok {entry.cases}" if entry.cases else f"declined {entry.declined}" if entry.declined else "no case"
    for kind, count in (("violation", entry.violations), ("inconclusive", entry.inconclusive)):
        what = f"{kind} {count}/{entry.cases}" if count else what
    return what if entry.claimed else f"[{what}]"


def beyond_claim(report: Report) -> bool:
    """Whether the audit looked at a family that the decoder does not claim."""
    return not all(entry.claimed for entry in report.matrix.values())


def not_taken(report: Report) -> str:
    """One line that names the cache states which the decoder does not take; empty when it takes all."""
    states = [state for state, cases in report.cache_states.items() if cases == "not taken"]
    return f"cache states not taken: {', '.join(states)}" if states else ""


def sampled(report: Report) -> list[str]:
    """What the sampled tokens say together, and what they exclude, a sentence each; nothing where none were."""
    if (evidence := report.sampling) is None or not evidence.tokens:
        return []
    never = f"never exceeded {max(evidence.greatest, 1):.2g}"
    reached = never if evidence.greatest < evidence.threshold else f"reached {evidence.greatest:.2g}"
    said = (
        f"{evidence.tokens} sampled tokens; the evidence against the target's law {reached}. At {evidence.threshold:g} "
        "it is a violation; a right decoder gets there once in a million audits."
    )
    if reached == never and any(one.component == "sampling" for one in report.violations):
        said = (
            f"{evidence.tokens} sampled tokens; single cases show for certain that something is wrong. The evidence of "
            f"all tokens together {never}; at {evidence.threshold:g} it alone would be a violation."
        )
    return [said, *evidence.excludes]


def declined_of(report: Report) -> str:
    """One line on the cases that the decoder declined, and why; empty when it declined none."""
    return summary(report.declined, report.cases.run + report.cases.skipped)


def percent(share: float | None) -> str:
    """A share as a percentage, ``-`` for none; never rounded up to 100."""
    if share is None:
        return "-"
    return "100 %" if share == 1 else f"{min(share * 100, 99.9):.1f} %"
