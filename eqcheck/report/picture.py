"""The pictures of a page as data: the columns of a cache, calls and rounds, and the evidence of sampled tokens."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby

from eqcheck.core.result.findings import LawEvidence
from eqcheck.core.result.outcome import DrawnCall, DrawnDecode, DrawnQuery, DrawnRound, DrawnRow, DrawnSlot

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 240, 64, 150, 14, 34
_LEAST, _MOST = -320.0, 10_000.0
_APART = 15  # pixels between two labels
_CALLS = 40
_FEWEST_ALIKE = 8
"""So many neighbours that are alike are drawn as the first, a gap, and the last."""
_CLASSES = {
    **{kind: kind for kind in ("token", "pad", "draft", "blank")},
    "filler": "pad",
    "cut-draft": "draft",
    **dict.fromkeys(
        ("other-token", "other-draft", "other-cut-draft", "draft model", "target model", "other weights", "no-model"),
        "other",
    ),
}


@dataclass(frozen=True)
class SlotColumn:
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
        """The content, as the name of a class: ``token``, ``pad``, ``draft``, ``other``, ``blank`` or ``unknown``."""
        return _CLASSES.get(self.slot.kind, "unknown")

    @property
    def likeness(self) -> tuple[object, ...] | None:
        """The traits that neighbours share which are alike; None for a column that is to be looked at by itself."""
        if self.wrong or any("wrongly" in cell for cell in self.cells):
            return None
        return (self.slot.kind, self.slot.of_row, self.cells, self.slot.position_right)


def cell(query: DrawnQuery, number: int) -> str:
    """Return how a query stands to a slot."""
    seen = query.sees[number : number + 1] == "1"
    if number >= len(query.should):
        return "seen-unjudged" if seen else "unseen-unjudged"
    if seen == (query.should[number] == "1"):
        return "seen" if seen else "unseen"
    return "wrongly-seen" if seen else "wrongly-hidden"


def columns(row: DrawnRow, labels: Sequence[str] = ()) -> list[SlotColumn]:
    """The slots of a row as columns; of many neighbours that are alike, and right, the first and the last.

    >>> slots = tuple(DrawnSlot(f"position {n}", 7, n, True, "") for n in range(20))
    >>> row = DrawnRow(0, 0, 1, slots, (DrawnQuery(0, "position 19", 7, 19, 19, "1" * 20, "1" * 20, 5, 5),))
    >>> [(column.label, column.alike) for column in columns(row)]
    [('0', 0), ('1..18', 18), ('19', 0)]
    """
    every = []
    for number, slot in enumerate(row.slots):
        cells = tuple(cell(query, number) for query in row.queries)
        wrong = slot.position_right is False and not {"seen", "wrongly-seen", "seen-unjudged"}.isdisjoint(cells)
        every.append(SlotColumn(labels[number] if number < len(labels) else str(number), slot, cells, wrong))
    return list(_gathered(every))


def _gathered(every: Sequence[SlotColumn]) -> Iterator[SlotColumn]:
    for likeness, group in groupby(every, key=lambda column: column.likeness):
        same = list(group)
        if likeness is None or len(same) < _FEWEST_ALIKE:
            yield from same
        else:
            second, before_last = same[1], same[-2]
            label = f"{second.label}..{before_last.label}"
            yield from (same[0], replace(second, label=label, alike=len(same) - 2), same[-1])


@dataclass(frozen=True)
class Timeline:
    """Rows over calls of the target: ``rows`` have for each of ``calls`` a round, or ``waits``, ``no round``, ``left``.

    ``left_out`` counts calls that are not shown.
    """

    calls: tuple[int, ...]
    rows: tuple[tuple[DrawnRound | str, ...], ...]
    left_out: int = 0


def timeline(batch: Sequence[Sequence[DrawnRound]]) -> Timeline | None:
    """The picture of a ragged batch; None where no rounds are known, or there is one row.

    >>> one, two, three = (DrawnRound(n, n + 1, (5,), 1, "bonus", 6, (5, 6)) for n in (1, 2, 3))
    >>> [[getattr(cell, "number", cell) for cell in row] for row in timeline([[one], [two, three]]).rows]
    [[1, 'left', 'left'], ['waits', 2, 3]]
    """
    every = sorted({drawn.call for rounds in batch for drawn in rounds})
    if len(batch) < 2 or not every:
        return None
    calls = every[:_CALLS]
    rows = []
    for rounds in batch:
        at = {drawn.call: drawn for drawn in rounds}
        first, last = min(at, default=every[-1]), max(at, default=0)
        away = {call: "waits" if call < first else "left" if call > last else "no round" for call in calls}
        rows.append(tuple(at.get(call, away[call]) for call in calls))
    return Timeline(tuple(calls), tuple(rows), len(every) - len(calls))


@dataclass(frozen=True)
class Stage:
    """A call of a decode: how many are ``skipped`` before it, and whether a query of it did not see what it should.

    ``fault``: here it goes wrong; ``at`` and ``column`` are the batch row and column of the query at fault, None in
    other calls, or where it is not known. ``after`` has, for
    each row that it brought new tokens, the ids that the row has then, and how many of them are new.
    """

    call: DrawnCall
    skipped: int
    wrong: bool
    fault: bool
    at: int | None
    column: int | None
    after: tuple[tuple[int, tuple[int, ...], int], ...]

    @property
    def rounds(self) -> str:
        """The round, where it is the same of all rows that are recognised."""
        rounds = {row.round for row in self.call.rows if row.round}
        return f"round {rounds.pop()}" if len(rounds) == 1 else ""


def stages(decode: DrawnDecode) -> Iterator[Stage]:
    """The calls of a decode in order."""
    before, story = 0, decode.story
    had: dict[int, int] = defaultdict(int)
    for call in decode.calls:
        fault = story is not None and story.call is not None and story.call.number == call.number
        at, column = (story.at, story.column) if story and fault else (None, None)
        wrong = any(row.right(query) is False for row in call.rows for query in row.queries)
        after = []
        for row, tokens in sorted((int(name), tokens) for name, tokens in call.committed.items()):
            had[row] += len(tokens)
            after.append((row, decode.committed(row)[: had[row]], len(tokens)))
        yield Stage(call, call.number - before - 1, wrong, fault, at, column, tuple(after))
        before = call.number


def drafts(one: DrawnRound) -> list[tuple[int, str]]:
    """The ids that were drafted, each with what became of it."""
    return [(token, one.fate(number)) for number, token in enumerate(one.drafted)]


def committed(rounds: Sequence[DrawnRound]) -> list[tuple[DrawnRound, list[tuple[int, int]]]]:
    """Each round with what it committed: the index of each new token in the output, and its id."""
    begins = accumulate((len(one.committed) for one in rounds), initial=0)
    return [(one, list(enumerate(one.committed, at))) for one, at in zip(rounds, begins, strict=False)]


@dataclass(frozen=True)
class ThresholdLine:
    """A horizontal line at a height, with its label beside it (at ``text``, so that labels do not touch)."""

    y: float
    text: float
    label: str
    kind: str


@dataclass(frozen=True)
class Chart:
    """The line's points in the picture, the marks at its thresholds, the labels of the axes."""

    points: str
    marks: tuple[ThresholdLine, ...]
    x_ticks: tuple[tuple[float, int], ...]
    end: tuple[float, float]
    said: str
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    bottom: int = HEIGHT - BOTTOM

    @classmethod
    def of(cls, evidence: LawEvidence) -> Chart:
        """The chart of what the evidence was over tokens.

        >>> chart = Chart.of(LawEvidence(20, 1e2, 1e7, 1e6, "violation", (), {}, ((0, 0.0), (10, 7.0), (20, 2.0))))
        >>> [mark.label for mark in chart.marks]
        ['10⁶ violation', '10³ in doubt', '1 at the start']
        >>> chart.said
        'Evidence over 20 tokens: at most 10⁷, in the end 10².'
        """
        course = sorted((max(0, tokens), min(max(_LEAST, log), _MOST)) for tokens, log in evidence.course)
        most_x = max(1, course[-1][0])
        top = max(7.0, *(log for _, log in course)) * 1.04
        low = min(-1.0, *(log for _, log in course))

        def place(tokens: float, log: float) -> tuple[float, float]:
            x = LEFT + (WIDTH - LEFT - RIGHT) * tokens / most_x
            y = TOP + (HEIGHT - TOP - BOTTOM) * (top - log) / (top - low)
            return round(x, 1), round(y, 1)

        points = [place(tokens, log) for tokens, log in course]
        greatest, end = max(log for _, log in course), course[-1][1]
        if 0 < evidence.greatest < math.inf:  # it may lie between two points
            greatest = max(greatest, math.log10(evidence.greatest))
        return cls(
            points=" ".join(f"{x},{y}" for x, y in points),
            marks=_marks({log: place(0, log)[1] for log in (_crossing(evidence), 3.0, 0.0)}),
            x_ticks=tuple((place(most_x * n / 4, 0)[0], most_x * n // 4) for n in range(5)),
            end=points[-1],
            said=f"Evidence over {most_x} tokens: at most {ten(greatest)}, in the end {ten(end)}.",
        )


def _crossing(evidence: LawEvidence) -> float:
    return math.log10(evidence.threshold) if 0 < evidence.threshold < math.inf else 6.0


def _marks(heights: dict[float, float]) -> tuple[ThresholdLine, ...]:
    """The marks at these heights, from top to bottom; labels are moved so that none touches another, or the axis."""
    words = {3.0: ("in doubt", "warn"), 0.0: ("at the start", "soft")}
    lines = sorted(heights.items(), reverse=True)
    texts = [y for _, y in lines]
    for n in range(1, len(texts)):
        texts[n] = max(texts[n], texts[n - 1] + _APART)
    over = max(0.0, texts[-1] - (HEIGHT - BOTTOM + 4))
    named = [words.get(log, ("violation", "bad")) for log, _ in lines]
    return tuple(
        ThresholdLine(y, text - over, f"{ten(log)} {what}", kind)
        for (log, y), text, (what, kind) in zip(lines, texts, named, strict=True)
    )


def ten(log: float) -> str:
    """A power of ten, with its exponent raised.

    >>> ten(149.3), ten(-2), ten(0.2)
    ('10¹⁴⁹', '10⁻²', '1')
    """
    power = round(log)
    return "10" + str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")) if power else "1"
