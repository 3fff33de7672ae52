"""One decode as data to be drawn: the calls with their caches, and the rounds of a row.

A trace makes it (`eqcheck.attribution.story`); the trace view and a report's pages draw it.
"""

from __future__ import annotations

from dataclasses import dataclass

from eqcheck.result.verdict import common_start


@dataclass(frozen=True)
class DrawnSlot:
    """One slot of a row's cache in a call.

    ``holds`` says in words what is stored, from the view of the row: ``position 3``, ``rejected draft at position 3``,
    ``cut draft at position 3`` (the target agreed with it, behind the row's end), ``row 1, position 3``, ``row 1,
    rejected draft at position 3``, ``pad``, ``filler`` (fills up like a pad, with another id), ``unknown``, ``never
    written``, ``what no model wrote``, ``an entry of the draft``. Where the copies in K and V, layers and heads
    disagree, what disagrees follows after ``; ``. ``id`` is its token, ``position`` the one that it carries, ``origin``
    says which call and column wrote it; None and empty for what no model wrote. ``position_right`` is None where no
    position is right, or none is known to be. ``kind`` is as of `eqcheck.explanation.records.Slot`, or ``no-model``;
    ``of_row`` and ``of_position`` are the row and logical position that it holds, None where its copies disagree.
    """

    holds: str
    id: int | None
    position: int | None
    position_right: bool | None
    origin: str
    kind: str = ""
    of_row: int | None = None
    of_position: int | None = None


@dataclass(frozen=True)
class DrawnQuery:
    """One query of a row in a call: what it feeds, stands for, sees and answers.

    ``stands_for`` is in the words of `DrawnSlot`, empty where it is not known; of a long row some are left out.
    ``position`` is the one that it carries, ``expected_position`` the one that is right, None where the query stands
    for no token of the row. ``sees`` and ``should`` have a character for each slot, ``1`` or ``0``: whether it is seen,
    and whether it should be; ``should`` is empty where that is not known. ``answer`` is the id that it predicts, and
    ``expected`` the one after its true context, None where not known.
    """

    column: int
    stands_for: str
    id: int
    position: int
    expected_position: int | None
    sees: str
    should: str
    answer: int
    expected: int | None


@dataclass(frozen=True)
class DrawnRow:
    """One batch row of a call: ``row`` is the request's, None where none is recognised, ``round`` is 0 for none."""

    batch_row: int
    row: int | None
    round: int
    slots: tuple[DrawnSlot, ...]
    queries: tuple[DrawnQuery, ...]

    def right(self, query: DrawnQuery) -> bool | None:
        """Return whether one of the queries saw exactly what it should, positions included; None where that is not
        known.

        >>> slots = (DrawnSlot("position 0", 5, 0, True, ""), DrawnSlot("pad", 0, 0, None, ""))
        >>> one, other = (DrawnQuery(0, "position 0", 5, 0, 0, sees, "10", 7, 7) for sees in ("10", "11"))
        >>> row = DrawnRow(0, 0, 1, slots, (one, other))
        >>> row.right(one), row.right(other)
        (True, False)
        """
        if not query.should:
            return None
        misplaced = (s.position_right is False for s, seen in zip(self.slots, query.sees, strict=False) if seen == "1")
        return query.sees == query.should and query.position == query.expected_position and not any(misplaced)


@dataclass(frozen=True)
class DrawnCall:
    """One forward of ``target`` or ``draft``. ``given``: it was made before the decoder began.

    ``committed`` are the new tokens that rows have after it and had not before, by row, as strings of the row numbers.
    ``left_out`` counts batch rows that are not drawn.
    """

    number: int
    model: str
    given: bool
    rows: tuple[DrawnRow, ...]
    committed: dict[str, tuple[int, ...]]
    left_out: int = 0


@dataclass(frozen=True)
class DrawnRound:
    """One round of a row: the ids drafted, how many were accepted, the correction or bonus, and what was committed.

    ``accepted`` counts the drafts, from the first, that the row has after the round; ``agreed`` the drafts that the
    target answered as well, None in reports of eqcheck 0.1. ``last`` says what the row has behind the accepted ones:
    ``correction`` in the place of a draft that was rejected, ``bonus`` behind all of them, or empty where it has
    nothing, or nothing was drafted, or a draft was cut; ``last_id`` is its id. ``committed`` are the new tokens that
    the row has after the round and had not before. ``call`` is the number of the target's call. ``known`` is False of
    the last round of a row that was returned otherwise than it was fed: what the row has after it is not known.
    """

    number: int
    call: int
    drafted: tuple[int, ...]
    accepted: int
    last: str
    last_id: int | None
    committed: tuple[int, ...]
    agreed: int | None = None
    known: bool = True

    def fate(self, number: int) -> str:
        """The fate of a draft, by its number from 0.

        ``accepted``; ``cut``: the target agreed with it, and the row does not have it, as it ends before; ``rejected``;
        ``over-accepted``: the row has it though the target answered another id; or ``unknown``.

        >>> one = DrawnRound(1, 2, drafted=(5, 6, 7), accepted=1, last="", last_id=None, committed=(5,), agreed=2)
        >>> [one.fate(number) for number in range(3)]
        ['accepted', 'cut', 'rejected']
        """
        if not self.known:
            return "unknown"
        agreed = number < (self.accepted if self.agreed is None else self.agreed)
        if number < self.accepted:
            return "accepted" if agreed else "over-accepted"
        return "cut" if agreed else "rejected"

    @property
    def odd(self) -> list[str]:
        """Return how many drafts fared otherwise than drafts do as a rule.

        >>> DrawnRound(1, 2, (5, 6, 7), 1, "", None, (5,), agreed=2).odd
        ['1 cut']
        """
        every = [self.fate(number) for number in range(len(self.drafted))]
        return [f"{every.count(fate)} {fate}" for fate in ("over-accepted", "cut") if fate in every]

    @property
    def fates(self) -> str:
        """Return how many drafts were accepted, and the `odd` ones."""
        return ", ".join([str(self.accepted), *self.odd]) if self.known else "not known"


@dataclass(frozen=True)
class Story:
    """The story of one row: its rounds, and the call in which the first fault lies, None where none is known.

    Where every context was right, ``call`` is the one that answered for the first wrong token. ``at`` is the number of
    the batch row of ``call`` that is concerned, and ``column`` that of its query. There are no rounds where rows are
    asked the same, and nobody sees whose they are. ``batch`` are the rounds of every row, of the first of many.
    """

    row: int
    rounds: tuple[DrawnRound, ...]
    call: DrawnCall | None = None
    at: int | None = None
    column: int | None = None
    batch: tuple[tuple[DrawnRound, ...], ...] = ()


@dataclass(frozen=True)
class DrawnDecode:
    """A whole decode: its calls in order, and per row what is right and what was returned (None: nothing was).

    ``left_out`` counts calls that are not drawn, which are gaps in the numbers of the others. ``rounds`` are those of
    each row, as far as they are seen. ``story`` is of the row at fault, None where none is. ``note`` is what else is to
    be said.
    """

    calls: tuple[DrawnCall, ...]
    left_out: int
    rounds: tuple[tuple[DrawnRound, ...], ...]
    expected: tuple[tuple[int, ...], ...]
    returned: tuple[tuple[int, ...], ...] | None
    story: Story | None = None
    note: str = ""

    def first_wrong(self, row: int) -> int | None:
        """The index of the first new token of a row that is not right, or that is missing; None where none is.

        >>> decode = DrawnDecode((), 0, (), ((5, 6), (7,), (8,)), ((5, 9), (7, 7), (8,)))
        >>> [decode.first_wrong(row) for row in range(3)]
        [1, 1, None]
        """
        if self.returned is None or self.returned[row] == self.expected[row]:
            return None
        return common_start(self.returned[row], self.expected[row])

    def committed(self, row: int) -> tuple[int, ...]:
        """The new tokens that the rounds of a row committed."""
        return tuple(token for one in self.rounds[row] for token in one.committed)

    def wrongly_committed(self, row: int) -> int | None:
        """The same, where the rounds committed there what was returned: else it went wrong after them.

        >>> rounds = (DrawnRound(1, 1, (), 0, "", None, (5, 6)),)
        >>> [DrawnDecode((), 0, (rounds,), ((5, 6),), ((5, 9),)).wrongly_committed(0)]
        [None]
        """
        wrong = self.first_wrong(row)
        if wrong is None or self.returned is None or wrong >= len(self.returned[row]):
            return None
        return wrong if self.committed(row)[wrong : wrong + 1] == (self.returned[row][wrong],) else None
