"""The content of a report beside its findings: counts, sentences and tables that every medium lays out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from eqcheck.audit.coverage_words import About, about, in_axis
from eqcheck.contract.decoders import FAMILIES
from eqcheck.core.explanation.layout import WHOLE, table
from eqcheck.core.explanation.notice import VACUOUS, Notice
from eqcheck.core.explanation.records import Explanation, many
from eqcheck.core.explanation.statements import nothing_expected, power, unrepeated
from eqcheck.core.explanation.text import Part, kinds_known, parts, slot_lines
from eqcheck.core.explanation.token_words import shown_of
from eqcheck.core.result.declining import summary
from eqcheck.core.result.findings import STANDINGS
from eqcheck.core.result.tally import PAIRED, Pair, Untried, gathered_by_chance
from eqcheck.report.schema import Report, ReportedViolation

STANDING = {"violation": "FAIL", "discovery": "DISCOVERY", "inconclusive": "INCONCLUSIVE", "slow": "SLOW"}
UNCLAIMED_NOTE = "In brackets: families the decoder does not claim. A failure there is a discovery, not a violation."
_OF_COMPLETIONS = ("finish_reason", "usage", "logprobs", "prompt_logprobs", "to_cancel", "cancelled")
_OF_TREES = ("tree", "different_trees", "off_spine")
_SPLIT = {
    "rejected": "rejected drafts and fillers",
    "pads": "pads",
    "finished": "rows that ended",
    "copies": "second copies",
    "spare": "spare capacity",
    "unread": "not read",
}


@dataclass(frozen=True)
class Content:
    """A report, and what is to be told of it."""

    r: Report

    @property
    def lane(self) -> About:
        return about(self.r.lane)

    @property
    def findings(self) -> list[tuple[str, ReportedViolation]]:
        """Every finding behind its standing, in the order of the report, but without a cause after those with one."""
        return [
            (standing, finding)
            for group, standing in STANDINGS.items()
            for finding in sorted(getattr(self.r, group), key=lambda finding: not finding.caused)
        ]

    @property
    def uncaused(self) -> dict[str, int]:
        """Return how many cases have no cause that was shown, by standing."""
        counts: Counter[str] = Counter()
        for standing, finding in self.findings:
            counts[standing] += 0 if finding.caused else finding.count
        return {standing: count for standing, count in counts.items() if count}

    @property
    def exact(self) -> str:
        return percent(self.r.equivalence.exact_match)

    @property
    def prefix(self) -> str:
        return percent(self.r.equivalence.prefix_match)

    @property
    def loud(self) -> list[Notice]:
        """The warnings that the audit did not exercise what it is for."""
        return [warning for warning in self.r.noticed if warning.kind == VACUOUS]

    @property
    def declined(self) -> str:
        """One line on the cases that the decoder declined, and why; empty when it declined none."""
        return summary(self.r.declined, self.r.cases.run + self.r.cases.skipped)

    @property
    def not_taken(self) -> str:
        """One line that names the cache states which the decoder does not take; empty when it takes all."""
        states = [state for state, cases in self.r.cache_states.items() if cases == Untried.NOT_TAKEN.value]
        return f"not tested, since cache_states= does not claim them: {', '.join(states)}" if states else ""

    @property
    def sampled(self) -> list[str]:
        """The evidence of the sampled tokens, and all that they exclude, a sentence each; empty where none were."""
        if (evidence := self.r.sampling) is None or not evidence.tokens:
            return []
        tokens, crossed = f"{evidence.tokens:,} sampled tokens", evidence.greatest >= evidence.threshold
        limit = f"{power(evidence.threshold)} is the limit; a correct decoder reaches it once in a million audits"
        said = f": the evidence against the target's distribution is {power(max(evidence.greatest, 1))} ({limit})."
        if not crossed and any(one.component == "sampling" for one in self.r.violations):
            said += " A single case proves the violation, whatever the evidence of all tokens is."
        return [tokens + said, *evidence.excludes]

    @property
    def law_alone(self) -> bool:
        """Return whether a law is violated and no case fails by itself."""
        return bool(self.r.laws) and not self.r.cases.violation

    def summed(self, standing: str, finding: ReportedViolation) -> str:
        """In how many cases a finding shows, drawn and stored ones apart, in words."""
        if standing == "slow":
            lost, of = finding.tokens
            share = f" ({100 * lost / of:.0f} %)" if lost <= of else ""  # some rounds committed nothing
            return f"{lost} of {many(of, 'draft token')} lost{share}, in {self.counted(finding)}"
        if standing == "discovery":
            unclaimed = [name for name, entry in self.r.matrix.items() if not entry.claimed]
            where = [name for name in unclaimed if finding.fingerprint in self.r.matrix[name].fingerprints]
            named = ", ".join(where or [str(finding.case.get("family", "-"))])
            return f"{cases(finding)} of families that are not claimed ({named})"
        drawn = self.shown_by(finding, self.counted(finding))
        drawn += f"; {unrepeated(finding.kind == 'hang')}" if standing == "inconclusive" else ""
        return f"{drawn}, known" if finding.known else drawn

    def shown_by(self, finding: ReportedViolation, of: str = "") -> str:
        """Describe in how many cases a finding shows, in the words ``of`` that, or that all sampled tokens show it."""
        return "all sampled tokens" if self.law_alone and finding.evidence.of_law else of or cases(finding)

    def counted(self, finding: ReportedViolation) -> str:
        """Say how many of the drawn cases show a finding, and how many of the stored ones."""
        drawn, stored = self.r.cases.run, self.r.corpus.replayed
        if not finding.stored:
            return f"{finding.count} of {many(drawn, 'case')}"
        if not drawn:
            return f"{finding.stored} of {many(stored, 'stored case')}"
        return f"{finding.count} of {drawn} drawn, {finding.stored} of {stored} stored"

    @property
    def extent(self) -> str:
        """Say how many cases the verdict is about and, of a violation, how many fail; stored cases are told apart."""
        drawn, stored = self.r.cases, self.r.corpus
        failed = drawn.violation if self.r.verdict == "violation" else 0
        told = f" in {failed} of {many(drawn.run, 'case')}" if failed else f", {many(drawn.run, 'case')}"
        if stored.failing and not drawn.run:
            return f" in {stored.failing} of {many(stored.replayed, 'stored case')}"
        return told + (f" and {stored.failing} of {stored.replayed} stored" if stored.failing else "")

    @property
    def near_ties(self) -> list[str]:
        """The near-ties, a line each, behind one that says how many; empty where none is told."""
        told = self.r.near_ties
        if not told:
            return []
        left = self.r.ties - len(told)
        head = f"{many(self.r.ties, 'near-tie')}: the target scores two tokens alike, and either may be returned"
        return [head + (f"; {left} more are not listed" if left else ""), *map(str, told)]

    @property
    def slots(self) -> list[str]:
        """Return how much of what the target is handed is of use, in a sentence."""
        share = self.r.slots_seen
        return (
            [] if share is None else [f"Queries attended to {percent(share)} of the cache slots given to the target."]
        )

    @property
    def memory(self) -> list[str]:
        """The memory of keys and values, in a sentence, where that was measured."""
        taken = self.r.memory
        if taken is None:
            return []
        said = f"Keys and values take {taken.peak_bytes:,} bytes at most"
        if taken.waste is None or taken.waste_at_peak is None:
            return [f"{said}; nothing of them could be read."]
        split = [f"{name} {percent(taken.split[kind])}" for kind, name in _SPLIT.items() if taken.split.get(kind)]
        said += f": {taken.waste:.2f} times the least that is needed in the median of the rounds, "
        said += f"{taken.waste_at_peak:.2f} times where they take most"
        return [f"{said} (of all of it {', '.join(split)})." if split else f"{said}."]

    def served(self, tablefmt: str = "simple", width: int = WHOLE) -> str:
        """Kinds of checkpoints by drafters, failing cases of all; empty for an audit on no checkpoint."""
        if not self.r.served:
            return ""
        cells = {(one.kind, one.drafter): f"{one.violations} of {one.cases}" for one in self.r.served}
        drafters = list(dict.fromkeys(drafter for _, drafter in cells))
        kinds = dict.fromkeys(kind for kind, _ in cells)
        rows = [[kind, *(cells.get((kind, drafter), "-") for drafter in drafters)] for kind in kinds]
        return table(rows, ["checkpoint", *drafters], width, tablefmt=tablefmt)

    def pairs(self, tablefmt: str = "simple", width: int = WHOLE) -> str:
        """Options by options, the cases in which both were at work; empty where there are none."""
        names = [name for name in PAIRED if self.r.coverage.get(name)]
        if not self.r.pairs:
            return ""
        rows = [
            [other, *(self.r.pairs.get(str(Pair(name, other)), 0) for name in names[:number])]
            for number, other in enumerate(names)
            if number
        ]
        return table(rows, ["", *names[:-1]], width, tablefmt=tablefmt)

    @property
    def served_said(self) -> str:
        """The words above the table of `served`."""
        dtypes = ", ".join(dict.fromkeys(one.dtype for one in self.r.served))
        return f"Failing cases by checkpoint and drafter ({dtypes})" if dtypes else ""

    @property
    def exercised(self) -> list[tuple[str, list[tuple[str, str, int]]]]:
        """All that the lane exercises: a name, its words, and the cases, the least first. Sampled rows stand apart."""
        plain, of_sampled = self.lane.counters, self.lane.sampled if self.r.sampling else {}
        of_sampled = {name: what for name, what in of_sampled.items() if name not in plain}
        counted = {name: name for name in self.r.coverage if name not in of_sampled}  # some by another eqcheck alone
        groups = [
            (title, [(name, what, self.r.coverage.get(name, 0)) for name, what in words.items() if self.asked(name)])
            for title, words in (("", {**counted, **plain}), ("Of cases with sampled rows", of_sampled))
        ]
        return [(title, sorted(rows, key=lambda row: row[2])) for title, rows in groups if rows]

    def asked(self, counter: str) -> bool:
        """Return whether cases could exercise what is counted:
        trees and stops are for decoders alone that take them.
        """
        if counter in _OF_COMPLETIONS or counter.startswith("stop"):
            return bool(self.r.coverage.get(counter if counter in _OF_COMPLETIONS else "stops"))
        return counter not in _OF_TREES or isinstance(self.r.cache_states.get("tree"), int)

    @property
    def reached(self) -> list[tuple[int, str]]:
        """The largest of what cases held, and what that is."""
        return [(self.r.reached.get(name, 0), what) for name, what in self.lane.reached.items()]

    @property
    def unclaimed(self) -> str:
        """The note on families that the decoder does not claim, where the audit looked at such."""
        return "" if all(entry.claimed for entry in self.r.matrix.values()) else UNCLAIMED_NOTE

    def tendency(self, finding: ReportedViolation) -> str:
        """Where the cause shows, in one line: under a condition only, or clearly more often on one side; else empty.

        A side is told only where chance gives such a difference in less than one of a thousand cases. A side on which
        no case fails is for a condition to tell (`eqcheck.core.result.conditions`), which a smaller case may have
        refuted.
        """
        if finding.only:
            return "; ".join(finding.only)
        sides: list[tuple[float, str]] = []
        for axis, values in finding.axes.items():
            rates = sorted((failed / of, value) for value, (failed, of) in values.items() if of)
            for cut in range(1, len(rates)):
                low, high = (sorted(value for _, value in side) for side in (rates[:cut], rates[cut:]))
                (few, of_low), (many_, of_high) = (
                    (sum(values[value][0] for value in side), sum(values[value][1] for value in side))
                    for side in (low, high)
                )
                chance = gathered_by_chance(many_, of_high, few + many_, of_low + of_high)
                more, less = (
                    f"{in_axis(axis, *high)} ({many_} of {of_high})",
                    f"{in_axis(axis, *low)} ({few} of {of_low})",
                )
                if few:
                    sides.append((chance, f"more often with {more} than with {less}"))
        chance, words = min(sides, default=(1.0, ""))
        # The sides were chosen by their rates: each way to divide the values of an axis might have been told.
        ways = sum(2 ** sum(of > 0 for _, of in values.values()) for values in finding.axes.values())
        return words if chance * ways < _BY_CHANCE else ""

    def axes(self, finding: ReportedViolation) -> list[tuple[str, list[tuple[str, int, int]]]]:
        """Return for each axis with several values how many cases fail, of how many, by value."""
        return [
            (self.lane.axes.get(axis, axis), [(value, failed, of) for value, (failed, of) in values.items()])
            for axis, values in finding.axes.items()
            if len(values) > 1 and finding.count
        ]


_BY_CHANCE = 1e-3


def matrix_table(reports: Sequence[Report], tablefmt: str = "simple", width: int = WHOLE) -> str:
    """Decoders by families: ``ok 50`` or ``violation 12/50``, in brackets where a family is not claimed."""
    known = [*FAMILIES, *(family for report in reports for family in report.matrix)]
    families = [family for family in dict.fromkeys(known) if any(family in report.matrix for report in reports)]
    rows = [[report.decoder.name, *(_cell(report, family) for family in families)] for report in reports]
    heads = [family.partition("@")[2] or family for family in families]  # of those on real models the model
    return table(rows, ["decoder", *heads], width, tablefmt=tablefmt)


def _cell(report: Report, family: str) -> str:
    entry = report.matrix.get(family)
    if entry is None:
        return "-"
    cell = f"ok {entry.cases}" if entry.cases else f"declined {entry.declined}" if entry.declined else "no case"
    for kind, count in (("violation", entry.violations), ("inconclusive", entry.inconclusive)):
        cell = f"{kind} {count}/{entry.cases}" if count else cell
    return cell if entry.claimed else f"[{cell}]"


def percent(share: float | None) -> str:
    """A share as a percentage, ``-`` for none; never rounded up to 100.

    >>> percent(0.99999), percent(1), percent(None)
    ('99.9 %', '100 %', '-')
    """
    if share is None:
        return "-"
    return "100 %" if share == 1 else f"{min(share * 100, 99.9):.1f} %"


def cases(finding: ReportedViolation) -> str:
    """Describe in how many cases a finding shows."""
    return many(finding.count, "case")


# One finding of a report, prepared for its page: the parts of its explanation, the tokens, the slots.

_ROWS_SHOWN, _VALUES_SHOWN = 64, 4000
_ENDS, _AROUND = 8, 12


@dataclass(frozen=True)
class Article:
    """A finding as a page shows it; ``of`` is how many cases could show it."""

    number: int
    anchor: str
    standing: str
    of: int
    v: ReportedViolation

    @property
    def begin(self) -> str:
        """The word that the headline begins with, and the number of the cause."""
        return f"{STANDING[self.standing]} {self.number}"

    @property
    def title(self) -> str:
        """Empty for a violation; else what it is."""
        return "" if self.standing == "violation" else self.standing.capitalize()

    @property
    def parts(self) -> list[Part]:
        """The parts of the explanation; empty where it is of another eqcheck, whose kinds are not known."""
        e, first = self.v.evidence, self.v.conditions[0]
        if not kinds_known(e):
            return []
        return parts(e, first.needs if first.minimised else None, first.without_speculation)

    @property
    def told(self) -> str:
        """The explanation as it was written, where there are no `parts`."""
        return "" if kinds_known(self.v.evidence) else self.v.explanation

    @property
    def slots(self) -> list[list[object]]:
        """The lines of the table of slots."""
        return slot_lines(self.v.evidence)

    @property
    def tokens(self) -> list[Token] | None:
        """The row's new tokens; None where no row is concerned."""
        e = self.v.evidence
        return None if e.row is None or e.token_index is None else tokens(e)

    @property
    def prompt(self) -> list[int | None]:
        """The row's prompt, None for what is left out of a long one."""
        ids = list(self.v.evidence.given.prompt) if self.v.evidence.given else []
        return [*ids[:_AROUND], None, *ids[-_AROUND:]] if len(ids) > 4 * _AROUND else list(ids)

    @property
    def drawn(self) -> bool:
        """Return whether there is a picture of the cache."""
        return bool(self.v.story and self.v.story.call)


@dataclass(frozen=True)
class Token:
    """The ids at one index of the two lines; ``gap`` stands for so many that are left out.

    ``state`` is ``same``, ``first`` for the first difference, ``other`` for later ones, and ``end`` where both end.
    """

    index: int
    first: str
    second: str
    state: str
    note: str = ""
    gap: int = 0


def tokens(e: Explanation) -> list[Token]:
    """The new tokens of a row, expected beside observed; of a long row the ends and what is around the first wrong."""
    length, at = max(len(e.expected_row), len(e.observed_row)), e.token_index or 0
    kept = set(shown_of(length, at, _ENDS, _AROUND))
    line: list[Token] = []
    for shown, group in groupby(range(length), key=kept.__contains__):
        numbers = list(group)
        line += [_token(e, n) for n in numbers] if shown else [Token(numbers[0], "", "", "same", gap=len(numbers))]
    return [*line, _token(e, length)] if length == at else line


def _token(e: Explanation, n: int) -> Token:
    lines = (e.expected_row, e.observed_row)
    if nothing_expected(e) or (not e.expected_row and e.component == "sampling"):
        lines = (e.observed_row, e.observed_row)
    first, second = (line[n] if n < len(line) else None for line in lines)
    state = "first" if n == e.token_index else "same" if first == second else "other"
    note = ""
    if second is not None and (given := e.given) is not None:
        note = "EOS" if second in (given.eos_token_ids or ()) else "pad" if second == given.pad_token_id else ""
    if n == e.token_index and second is not None and second in e.drafted:
        note = f"{note} draft token".strip()
    return Token(n, _shown(first, n, lines[0]), _shown(second, n, lines[1]), state, note)


def _shown(token: int | None, n: int, line: Sequence[int]) -> str:
    return str(token) if token is not None else "end" if n == len(line) else ""


def readable(case: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """A case as names with lines: a line for each row of what has rows."""
    named = []
    for name, value in case.items():
        several = isinstance(value, list) and value and all(isinstance(one, list | dict) for one in value)
        rows = value if several else [value]
        more = [f"and {len(rows) - _ROWS_SHOWN} more"] if len(rows) > _ROWS_SHOWN else []
        named.append((name, [*map(_line, rows[:_ROWS_SHOWN]), *more]))
    return named


def _line(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{name} {_line(one)}" for name, one in value.items())[:_VALUES_SHOWN]
    if isinstance(value, list) and all(isinstance(one, int) for one in value):
        return " ".join(map(str, value))[:_VALUES_SHOWN] or "none"
    return (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))[:_VALUES_SHOWN]
