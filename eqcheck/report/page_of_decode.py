"""The page of one decode: every call, one at a time."""

from __future__ import annotations

from dataclasses import dataclass

from eqcheck.contract.escaping import one_line, printable
from eqcheck.report.finding import timeline
from eqcheck.report.templates import page
from eqcheck.result.story import DrawnCall, DrawnDecode, DrawnRound

_ROWS = 16


@dataclass(frozen=True)
class Step:
    """A call of the page: how many are ``skipped`` before it, and whether a query of it did not see what it should.

    ``at`` and ``column`` are the batch row and column of the query at fault, None in other calls. ``after`` has, for
    each row that it brought new tokens, the ids that the row has then, and how many of them are new.
    """

    call: DrawnCall
    skipped: int
    wrong: bool
    at: int | None
    column: int | None
    after: tuple[tuple[int, tuple[int, ...], int], ...]

    @property
    def rounds(self) -> str:
        """The round, where it is the same of all rows that are recognised."""
        found = {row.round for row in self.call.rows if row.round}
        return f"round {found.pop()}" if len(found) == 1 else ""


def trace_page(name: str, case: str, outcome: str, decode: DrawnDecode) -> str:
    """The page of a decoder's ``decode`` of a case, as HTML; ``outcome`` is what replay says of it, in lines."""
    said, text = printable(outcome).strip(), ""
    if said.startswith("FAILS"):
        first, _, text = said.partition("\n")
        said = f"{first}: {text.partition(chr(10))[0]}"
    return page(
        f"{one_line(name, 60)}: every call of case {one_line(case, 60)}",
        "trace.jinja",
        headline=one_line(said, 300),
        text=text,
        steps=list(_steps(decode)),
        decode=decode,
        batch=timeline(decode.rounds[:_ROWS]) if len(decode.rounds) > 1 and any(decode.rounds) else None,
        rows=[(row, rounds, decode.first_wrong(row)) for row, rounds in enumerate(decode.rounds)],
    )


def _steps(decode: DrawnDecode) -> list[Step]:
    found, before = [], 0
    story = decode.story
    had: dict[int, int] = {}
    for call in decode.calls:
        here = story is not None and story.call is not None and story.call.number == call.number
        at, column = (story.at, story.column) if story and here else (None, None)
        wrong = any(row.right(query) is False for row in call.rows for query in row.queries)
        after = []
        for row in sorted(map(int, call.committed)):
            had[row] = had.get(row, 0) + len(call.committed[str(row)])
            after.append((row, _ids(decode.rounds[row])[: had[row]], len(call.committed[str(row)])))
        found.append(Step(call, call.number - before - 1, wrong, at, column, tuple(after)))
        before = call.number
    return found


def _ids(rounds: tuple[DrawnRound, ...]) -> tuple[int, ...]:
    return tuple(token for one in rounds for token in one.committed)
