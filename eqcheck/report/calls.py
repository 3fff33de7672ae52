"""Every call of a decode in the terminal, for ``eqcheck replay -v``: what it fed, saw and answered.

Signs say what colours say, so that nothing is lost where there are none.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from io import StringIO
from itertools import groupby
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from eqcheck.core.explanation.records import many
from eqcheck.core.explanation.statements import held
from eqcheck.core.explanation.token_words import shortened
from eqcheck.core.result.outcome import DrawnDecode, DrawnRow, DrawnSlot
from eqcheck.report.picture import Stage, cell, committed, stages

_ROWS, _GROUPS = 8, 24  # of rounds and outputs, and of slots in a cache; more are shortened
_WIDE = 118  # characters, where nothing says how wide the terminal is
_FOLDED = ("is", "holds", "tokens", "drafted", "committed")  # columns that may have several lines
_SIGNS = {  # how a query stands to a slot
    "seen": ("#", "blue"),
    "unseen": (".", "bright_black"),
    "wrongly-seen": ("X", "bold red"),
    "wrongly-hidden": ("O", "bold red"),
    "seen-unjudged": ("+", "yellow"),
    "unseen-unjudged": ("-", "bright_black"),
}
_ABOUT = (
    "Every call, step by step: the queries of each row, then its slots as these queries attend to them. "
    "# attended, as it should be; . masked, as it should be; X attended, must be masked; O masked, must be attended; "
    "+ and - attended and masked where the correct context is not known. A wrong position id or prediction is followed "
    "by the correct one. Drafts: cut = accepted by the target but after the row's end; over-accepted = returned though "
    "the target predicted another token. The first wrong token is in brackets."
)
_PLAIN: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}


def show(decode: DrawnDecode) -> None:
    """Print a decode, in colours on a terminal that has them, unless the variable NO_COLOR is set."""
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else _WIDE, **_PLAIN)
    for part in parts(decode):
        console.print(part)


def view(decode: DrawnDecode, width: int = _WIDE) -> str:
    """A decode as plain text of so many characters a line."""
    text = StringIO()
    console = Console(file=text, width=width, color_system=None, **_PLAIN)
    for part in parts(decode):
        console.print(part)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def parts(decode: DrawnDecode) -> Iterator[RenderableType]:
    """The parts of a decode in order: its calls, the rounds of its rows, and what was returned."""
    yield Text(_ABOUT, style="bright_black")
    for stage in stages(decode):
        yield Text()
        if stage.skipped:
            yield Text(f"... {many(stage.skipped, 'call')} left out ...\n", style="bright_black")
        yield from _call(stage)
        for row, had, _ in stage.after:
            wrong = decode.wrongly_committed(row)
            shown = shortened(had, wrong if wrong is not None and wrong < len(had) else None)
            yield Text(f"  after it row {row} has {many(len(had), 'new token')}: {shown}")
    yield Text()
    at_fault = decode.story.row if decode.story else None
    for row, rounds in enumerate(decode.rounds):
        if rounds and (row < _ROWS or row == at_fault):
            yield Text(f"row {row}, round by round", style="bold")
            yield _rounds(decode, row)
            yield Text()
    if decode.returned is None:
        yield Text("The decoder returned no rows.")
    for row, output in enumerate(decode.returned or ()):
        wrong = decode.first_wrong(row)
        yield Text(f"returned for row {row}: {many(len(output), 'new token')}: {shortened(output, wrong)}")
        if wrong is not None:
            yield Text(f"  expected for row {row}: {shortened(decode.expected[row], wrong)}", style="bold red")
    if decode.note:
        yield Text(f"\n{decode.note}")


def _call(stage: Stage) -> Iterator[RenderableType]:
    call = stage.call
    rows, slots = len(call.rows) + call.left_out, len(call.rows[0].slots) if call.rows else 0
    given = ", made before the decoder started" if call.given else ""
    head = Text(f"call {call.number}, {call.model}: {many(rows, 'row')}, {many(slots, 'slot')}{given}", style="bold")
    yield head.append("   <-- goes wrong here", style="bold red") if stage.fault else head
    for row in call.rows:
        round_ = f", round {row.round}" if row.round else ""
        name = "row not recognised" if row.row is None else f"row {row.row}{round_}"
        yield Text(f"  batch row {row.batch_row} ({name})")
        yield _queries(row, stage.column if stage.at == row.batch_row else None)
        yield _slots(row)
    if call.left_out:
        yield Text(f"  and {call.left_out} more batch rows")


def _table(*headers: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bright_black", pad_edge=False)
    table.add_column("", width=2)
    for name in headers:
        table.add_column(name, overflow="fold", no_wrap=name not in _FOLDED)
    return table


def _queries(row: DrawnRow, marked: int | None) -> Table:
    """A line for each column: what it stands for, and whether what it saw is right."""
    table = _table("column", "is", "token", "position id", "predicts", "correct")
    before = -1
    for query in row.queries:
        if query.column > before + 1:
            table.add_row("", "...", f"{query.column - before - 1} more columns")
        right = row.right(query)
        table.add_row(
            "",
            f"{query.column}{'<' if query.column == marked else ''}",
            query.stands_for or "-",
            str(query.id),
            _beside(query.position, query.expected_position),
            _beside(query.answer, query.expected),
            Text("-") if right is None else Text("yes", "green") if right else Text("NO", "bold red"),
        )
        before = query.column
    return table


def _beside(number: int, right: int | None) -> Text:
    """A number, and the right one if that is another."""
    return Text(str(number)) if right in (None, number) else Text(f"{number}, must be {right}", "bold red")


def _slots(row: DrawnRow) -> Table:
    """A line for each slot, or for neighbours that are alike and in order; of very many the first and last."""
    table = _table(
        "slot", "holds", "tokens", "position id", f"attended by {_ranges([query.column for query in row.queries])}"
    )
    lines = [list(group) for _, group in groupby(enumerate(row.slots), key=lambda one: _alike(row, *one))]
    for number, line in enumerate(lines):
        if len(lines) > _GROUPS and _GROUPS // 2 <= number < len(lines) - _GROUPS // 2:
            if number == _GROUPS // 2:
                table.add_row("", "...", f"{len(lines) - _GROUPS} more lines")
            continue
        (first, slot), (last, end) = line[0], line[-1]
        several = slot.of_position is not None and len(line) > 1
        carried = "-" if slot.position is None else _span(slot.position, end.position)
        shown = " ".join("-" if one.id is None else str(one.id) for _, one in line[:4])
        table.add_row(
            "",
            _span(first, last),
            held(slot.kind, slot.of_row, slot.of_position, end.of_position) if several else slot.holds,
            shown if len(line) <= 4 else f"{shown} ..",
            Text(f"{carried} (wrong)", "bold red") if slot.position_right is False else carried,
            Text.assemble(*(_SIGNS[cell(query, first)] for query in row.queries)),
        )
    return table


def _alike(row: DrawnRow, number: int, slot: DrawnSlot) -> tuple[object, ...]:
    """The traits that neighbouring slots share which are shown in one line."""
    at = slot.of_position
    held_there = slot.holds if at is None else (slot.kind, slot.of_row)
    seen = tuple(cell(query, number) for query in row.queries)
    ordered = None if at is None else at - number, None if slot.position is None else slot.position - number
    return held_there, ordered, seen, slot.position_right, at is None and slot.id


def _span(first: int, last: int | None) -> str:
    return str(first) if last in (None, first) else f"{first}..{last}"


def _rounds(decode: DrawnDecode, row: int) -> Table:
    """The timeline of a row."""
    table = _table("round", "call", "drafted", "accepted", "then", "committed")
    wrong = decode.wrongly_committed(row)
    for drawn, tokens in committed(decode.rounds[row]):
        mark = next((number for number, (at, _) in enumerate(tokens) if at == wrong), None)
        table.add_row(
            "",
            str(drawn.number),
            str(drawn.call),
            shortened(drawn.drafted) or "-",
            drawn.fates if drawn.drafted else "-",
            f"{drawn.last} {drawn.last_id}" if drawn.last else "-",
            shortened(drawn.committed, mark) or ("-" if drawn.known else "not known"),
        )
    return table


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers in a line, those in order together.

    >>> _ranges([0, 1, 2, 5])
    '0..2 5'
    """
    runs = [list(group) for _, group in groupby(enumerate(numbers), key=lambda one: one[1] - one[0])]
    return " ".join(_span(run[0][1], run[-1][1]) for run in runs) or "none"
