"""What the macros of ``drawing.jinja`` draw: the columns of a cache, and rounds with what became of each draft."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from eqcheck.result.story import DrawnQuery, DrawnRound, DrawnRow, DrawnSlot

_FEWEST_ALIKE = 8
"""So many neighbours that are alike are drawn as the first, a gap, and the last."""


@dataclass(frozen=True)
class Column:
    """A slot with how each query stands to it; ``alike`` is 0, or how many slots this one stands for.

    ``cells`` are ``seen``, ``unseen``, ``wrongly-seen``, ``wrongly-hidden``, or ``seen-unjudged``, ``unseen-unjudged``
    where it is not known what is right. ``wrong``: a key that a query sees has another position than is right.
    """

    label: str
    slot: DrawnSlot
    cells: tuple[str, ...]
    wrong: bool
    alike: int = 0

    @property
    def kind(self) -> str:
        """What is held, as the name of a class: ``token``, ``pad``, ``draft``, ``other``, ``blank`` or ``unknown``."""
        return _CLASSES.get(self.slot.kind, "unknown")


_CLASSES = {
    "token": "token",
    "pad": "pad",
    "filler": "pad",
    "draft": "draft",
    "cut-draft": "draft",
    **dict.fromkeys(
        ("other-token", "other-draft", "other-cut-draft", "draft model", "target model", "no-model"), "other"
    ),
    "blank": "blank",
}


def cell(query: DrawnQuery, number: int) -> str:
    """How a query stands to a slot."""
    seen = query.sees[number : number + 1] == "1"
    if number >= len(query.should):
        return "seen-unjudged" if seen else "unseen-unjudged"
    if seen == (query.should[number] == "1"):
        return "seen" if seen else "unseen"
    return "wrongly-seen" if seen else "wrongly-hidden"


def columns(row: DrawnRow, labels: Sequence[str] = ()) -> list[Column]:
    """The slots of a row as columns; of many neighbours that are alike, and right, the first and the last.

    >>> slots = tuple(DrawnSlot(f"position {n}", 7, n, True, "") for n in range(20))
    >>> row = DrawnRow(0, 0, 1, slots, (DrawnQuery(0, "position 19", 7, 19, 19, "1" * 20, "1" * 20, 5, 5),))
    >>> [(column.label, column.alike) for column in columns(row)]
    [('0', 0), ('1..18', 18), ('19', 0)]
    """
    found = []
    for number, slot in enumerate(row.slots):
        cells = tuple(cell(query, number) for query in row.queries)
        wrong = slot.position_right is False and any("seen" in one.split("-") for one in cells)
        found.append(Column(labels[number] if number < len(labels) else str(number), slot, cells, wrong))
    return list(_gathered(found))


def _gathered(found: Sequence[Column]) -> Iterator[Column]:
    for right, group in groupby(found, key=_likeness):
        same = list(group)
        if right is None or len(same) < _FEWEST_ALIKE:
            yield from same
            continue
        inner = same[1:-1]
        label = f"{inner[0].label}..{inner[-1].label}"
        yield same[0]
        yield Column(label, inner[0].slot, inner[0].cells, False, len(inner))
        yield same[-1]


def _likeness(column: Column) -> tuple[object, ...] | None:
    """What neighbours have in common that are alike; None for a column that is to be looked at by itself."""
    if column.wrong or any("wrongly" in one for one in column.cells):
        return None
    return (column.slot.kind, column.slot.of_row, column.cells, column.slot.position_right)


def drafts(one: DrawnRound) -> list[tuple[int, str]]:
    """The ids that were drafted, each with what became of it."""
    return [(token, one.fate(number)) for number, token in enumerate(one.drafted)]


def committed(rounds: Sequence[DrawnRound]) -> list[tuple[DrawnRound, list[tuple[int, int]]]]:
    """Each round with what it committed: the index of each new token in the output, and its id."""
    found, at = [], 0
    for one in rounds:
        found.append((one, list(enumerate(one.committed, at))))
        at += len(one.committed)
    return found


FILTERS = {"columns": columns, "drafts": drafts, "committed": committed}
