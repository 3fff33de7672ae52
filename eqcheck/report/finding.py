"""One cause of a report, prepared for its page: the argument, the tokens, the picture, the tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eqcheck.contract.kinds import KINDS
from eqcheck.explanation.records import Explanation, Search, Slot
from eqcheck.explanation.statements import nothing_expected
from eqcheck.explanation.text import argument, consequences, shifted
from eqcheck.report.schema import ReportedViolation
from eqcheck.result.findings import OtherCase
from eqcheck.result.story import DrawnQuery, DrawnRound, DrawnRow, DrawnSlot

_ROWS_SHOWN, _VALUES_SHOWN = 64, 4000
_ENDS, _AROUND = 8, 12
_CALLS = 40


@dataclass(frozen=True)
class Finding:
    """A cause as it is drawn. ``title`` is empty for a violation; ``of`` is how many cases could show it."""

    number: int
    anchor: str
    title: str
    of: int
    v: ReportedViolation

    @property
    def meaning(self) -> str:
        return self.v.cause.meaning

    @property
    def argument(self) -> list[tuple[str, list[str]]]:
        """The sentences of the explanation; empty where it is of another eqcheck, whose kinds are not known."""
        e = self.v.evidence
        return argument(e) if {e.kind, *(d.kind for d in e.deviations)} <= set(KINDS) and e.component != "crash" else []

    @property
    def told(self) -> str:
        """What stands in place of the `argument`: what a decoder said that failed, or the explanation as written."""
        return self.v.evidence.detail if self.v.component == "crash" else self.v.explanation

    @property
    def tokens(self) -> list[Token] | None:
        """The row's new tokens; None where no row is concerned."""
        e = self.v.evidence
        return None if e.row is None or e.token_index is None else tokens(e)

    @property
    def names(self) -> tuple[str, str]:
        """What the two lines of `tokens` are."""
        return ("first", "then") if self.v.component == "sampling" else ("expected", "observed")

    @property
    def prompt(self) -> list[int | None]:
        """The row's prompt, None for what is left out of a long one."""
        ids = list(self.v.evidence.given.prompt) if self.v.evidence.given else []
        return [*ids[:_AROUND], None, *ids[-_AROUND:]] if len(ids) > 4 * _AROUND else list(ids)

    @property
    def picture(self) -> tuple[DrawnRow, tuple[str, ...]] | None:
        """The row's cache as the query at fault saw it, with the numbers of its slots; None where nothing was read."""
        return of_evidence(self.v.evidence)

    @property
    def drawn(self) -> bool:
        """Whether there is a picture of the cache."""
        return bool(self.picture or (self.v.story and self.v.story.call))

    @property
    def timeline(self) -> Timeline | None:
        """The rounds of all rows over the calls of the target; None where they are not known, or there is one row."""
        batch = self.v.story.batch if self.v.story else ()
        return timeline(batch) if len(batch) > 1 and any(batch) else None

    @property
    def others(self) -> list[tuple[OtherCase, list[tuple[str, list[str]]], str]]:
        """Other failing cases, readable, and as JSON that `eqcheck replay` takes."""
        return [(one, readable(one.case), json.dumps(one.case)) for one in self.v.others]

    @property
    def shifted(self) -> str:
        return shifted(self.v.evidence)

    @property
    def consequences(self) -> list[str]:
        return consequences(self.v.evidence)

    def axes(self, names: Mapping[str, str]) -> list[tuple[str, list[tuple[str, int, int]]]]:
        """By the name of each axis that has more than one value: the values, how many cases fail, and of how many."""
        return [
            (names.get(axis, axis), [(value, failed, of) for value, (failed, of) in values.items()])
            for axis, values in self.v.axes.items()
            if len(values) > 1 and self.v.count
        ]

    @property
    def search(self) -> Search | None:
        return self.v.evidence.search

    @property
    def case(self) -> list[tuple[str, list[str]]]:
        return readable(self.v.case)


@dataclass(frozen=True)
class Timeline:
    """Rows over calls of the target: ``rows`` have for each of ``calls`` a round, or ``waits``, ``no round``, ``left``.

    ``left_out`` counts calls that are not shown.
    """

    calls: tuple[int, ...]
    rows: tuple[tuple[DrawnRound | str, ...], ...]
    left_out: int = 0


def timeline(batch: Sequence[Sequence[DrawnRound]]) -> Timeline:
    """The picture of a ragged batch.

    >>> one, two, three = (DrawnRound(n, n + 1, (5,), 1, "bonus", 6, (5, 6)) for n in (1, 2, 3))
    >>> [[getattr(cell, "number", cell) for cell in row] for row in timeline([[one], [two, three]]).rows]
    [[1, 'left', 'left'], ['waits', 2, 3]]
    """
    every = sorted({one.call for rounds in batch for one in rounds})
    calls = every[:_CALLS]
    rows = []
    for rounds in batch:
        at = {one.call: one for one in rounds}
        first, last = min(at, default=every[-1]), max(at, default=0)
        away = {call: "waits" if call < first else "left" if call > last else "no round" for call in calls}
        rows.append(tuple(at.get(call, away[call]) for call in calls))
    return Timeline(tuple(calls), tuple(rows), len(every) - len(calls))


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
    ends = length == at or min(len(e.expected_row), len(e.observed_row)) < length
    kept = {n for n in range(length) if n < _ENDS or n >= length - _ENDS or abs(n - at) <= _AROUND}
    found: list[Token] = []
    for n in range(length):
        if n in kept:
            found.append(_token(e, n))
        elif found and not found[-1].gap:
            found.append(Token(n, "", "", "same", gap=sum(m not in kept for m in range(n, _next(kept, n, length)))))
    return [*found, _token(e, length)] if ends and length == at else found


def _next(kept: set[int], n: int, length: int) -> int:
    return min((m for m in kept if m > n), default=length)


def _token(e: Explanation, n: int) -> Token:
    lines = (e.expected_row, e.observed_row)
    if nothing_expected(e) or (not e.expected_row and e.component == "sampling"):
        lines = (e.observed_row, e.observed_row)
    first, second = (line[n] if n < len(line) else None for line in lines)
    wrong = "same" if first == second and n != e.token_index else "first" if n == e.token_index else "other"
    given = e.given
    note = ""
    if second is not None and given is not None:
        note = "EOS" if second in (given.eos_token_ids or ()) else "pad" if second == given.pad_token_id else ""
    if n == e.token_index and second is not None and second in e.drafted:
        note = f"{note} draft token".strip()
    return Token(n, _shown(first, n, lines[0]), _shown(second, n, lines[1]), wrong, note)


def _shown(token: int | None, n: int, line: Sequence[int]) -> str:
    return str(token) if token is not None else "end" if n == len(line) else ""


def of_evidence(e: Explanation) -> tuple[DrawnRow, tuple[str, ...]] | None:
    """What one query saw, as a row to be drawn."""
    q = e.query
    if q is None or not e.slots:
        return None
    slots = tuple(
        DrawnSlot(
            one.holds
            + (", torn: K and V disagree" if one.torn else "")
            + (", not cached" if one.index is None else ""),
            None if one.holds == "blank" else one.token,
            one.position,
            None if one.expected_position is None else one.expected_position == one.position,
            "",
            one.kind,
            one.of_row,
            one.of_position,
        )
        for one in e.slots
    )
    sees, should = ("".join("01"[seen] for seen in seens) for seens in zip(*map(_seen, e.slots), strict=True))
    query = DrawnQuery(
        q.column, f"position {q.logical_position}", q.token, q.position, _right(e), sees, should, q.predicted, None
    )
    labels = tuple("none" if one.index is None else str(one.index) for one in e.slots)
    return DrawnRow(q.call_row, e.row, e.round or 0, slots, (query,)), labels


def _seen(slot: Slot) -> tuple[bool, bool]:
    return slot.visible, slot.expected_visible


def _right(e: Explanation) -> int | None:
    """The position that the query should carry, where reading says that it carries another one."""
    return next((d.expected for d in e.deviations if d.kind == "query-position"), None)


def readable(case: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """A case as names with lines: a line for each row of what has rows."""
    found = []
    for name, value in case.items():
        rows = (
            value
            if isinstance(value, list) and value and all(isinstance(one, list | dict) for one in value)
            else [value]
        )
        lines = [_line(row) for row in rows[:_ROWS_SHOWN]]
        lines += [f"and {len(rows) - _ROWS_SHOWN} more"] if len(rows) > _ROWS_SHOWN else []
        found.append((name, lines))
    return found


def _line(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{name} {_line(one)}" for name, one in value.items())[:_VALUES_SHOWN]
    if isinstance(value, list) and all(isinstance(one, int) for one in value):
        return " ".join(map(str, value))[:_VALUES_SHOWN] or "none"
    return (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))[:_VALUES_SHOWN]
