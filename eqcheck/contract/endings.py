"""Where a row ends and where it has to: too early, too late or right, by an EOS, a stop sequence or the limit.

Whether the tokens before the end are right is another question: who asks it may know the due end from the expected
tokens (`RowEnd`), or only from the tokens that were returned and the options of the row (`row_end`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

EndedBy = Literal["eos", "stop", "limit"]

EARLY = "premature-stop"
PAST_STOP = "past-stop"
"""Name of the wrong end of a row that continues after a stop sequence; the other wrong ends are kinds."""
_LATE: dict[EndedBy, str] = {"eos": "past-eos", "stop": PAST_STOP, "limit": "over-length"}


class RowEnd(NamedTuple):
    """Hold how many tokens a row has (``length``), and after how many it had to end (``due``), and ``by`` what.

    >>> RowEnd(5, 3, "eos").kind, RowEnd(2, 3, "limit").kind, RowEnd(3, 3, "stop").kind
    ('past-eos', 'premature-stop', '')
    """

    length: int
    due: int
    by: EndedBy

    @property
    def early(self) -> bool:
        return self.length < self.due

    @property
    def surplus(self) -> int:
        """Return how many tokens come after the end; 0 where it is right or early."""
        return max(0, self.length - self.due)

    @property
    def first(self) -> int:
        """Return the index of the first token that is missing or too many."""
        return min(self.length, self.due)

    @property
    def kind(self) -> str:
        """Return the kind of bookkeeping that the wrong end is, or `PAST_STOP`; empty for the right place."""
        if self.early:
            return EARLY
        return _LATE[self.by] if self.surplus else ""


def ended_by(tokens: Sequence[int], eos: Collection[int], stops: Collection[tuple[int, ...]] = ()) -> EndedBy:
    """Return what ends a row whose new tokens are these: their last one, the stop sequence there, or else its limit.

    >>> ended_by((1, 9), [9]), ended_by((1, 2, 3), [9], [(2, 3)]), ended_by((), [9])
    ('eos', 'stop', 'limit')
    """
    return _by(tokens, len(tokens), eos, stops)


def row_end(tokens: Sequence[int], limit: int, eos: Collection[int], stops: Collection[tuple[int, ...]] = ()) -> RowEnd:
    """Return where a row had to end if its tokens are right: after its first EOS or stop sequence, or at its limit.

    >>> row_end((1, 9, 2), 4, [9])
    RowEnd(length=3, due=2, by='eos')
    >>> row_end((1, 2), 4, [9])
    RowEnd(length=2, due=4, by='limit')
    """
    for due in range(1, min(limit, len(tokens)) + 1):
        if (by := _by(tokens, due, eos, stops)) != "limit":
            return RowEnd(len(tokens), due, by)
    return RowEnd(len(tokens), limit, "limit")


def _by(tokens: Sequence[int], count: int, eos: Collection[int], stops: Collection[tuple[int, ...]]) -> EndedBy:
    """Return what ends the first ``count`` tokens; they are not copied, since this is asked at every place of a row."""
    if count and tokens[count - 1] in eos:
        return "eos"
    if any(tuple(tokens[max(0, count - len(stop)) : count]) == stop for stop in stops):
        return "stop"
    return "limit"
