"""One finding of a report, prepared for its page: the parts of its explanation, the tokens, the slots."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from eqcheck.explanation.records import Explanation
from eqcheck.explanation.statements import nothing_expected
from eqcheck.explanation.text import Part, kinds_known, parts, slot_lines
from eqcheck.explanation.tokens import shown_of
from eqcheck.report.content import STANDING
from eqcheck.report.schema import ReportedViolation

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
