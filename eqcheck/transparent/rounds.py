"""The rounds of a run: which rows each call served, from where each went on, what was drafted and what was accepted.

They are read from the queries that saw exactly their row. So all is there of a decoder whose contexts are right,
whatever it does with rows: it may pad them, pack them into one, or feed them in several calls.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from eqcheck.transparent.hashlm.hashing import CALL, COLUMN, ROW, Words, decoded
from eqcheck.transparent.hashlm.trace import DRAFT, TARGET, Call, Trace

Places = Mapping[int, Mapping[int, int]]  # a context's digest -> the rows whose context it is, each with the position


class Round(NamedTuple):
    """A row's part in one target call: its positions ``first`` to ``last`` were asked in their right contexts.

    Before the call the target had told (or the prompt, which has ``start`` tokens, says) the first ``known`` tokens of
    the row; it now tells the one behind ``last``. ``call_row`` and ``column`` fed the token at ``last``, ``columns``
    fed the draft tokens behind it; the first of them is not the row's next token.
    """

    call: Call
    row: int
    start: int
    known: int
    first: int
    last: int
    call_row: int
    column: int
    columns: tuple[int, ...]

    @property
    def refused(self) -> tuple[int, ...]:
        """The draft tokens that were not accepted."""
        return tuple(self.call.tokens[self.call_row, list(self.columns)].tolist())

    @property
    def end(self) -> int:
        """Return how long the row was with all its draft tokens."""
        return self.last + 1 + len(self.columns)

    @property
    def accepted(self) -> int:
        """Return how many draft tokens of the call are the row's own and were not known."""
        return max(0, self.last + 1 - self.known)

    @property
    def proposed(self) -> int:
        """Return how many draft tokens were fed behind what was known; a piece of a prompt has none."""
        return self.end - self.known if self.last + 1 >= self.known else 0

    @property
    def in_prompt(self) -> bool:
        """Return whether only a piece of the prompt was fed, which tells no new token."""
        return self.last + 1 < self.start

    @property
    def answered(self) -> int:
        """Return how many new tokens of the row stand before the one that the call tells."""
        return self.last + 1 - self.start


class Rounds:
    """The rounds of a run, in order (``every``), and the queries of the draft before each.

    ``places`` says whose right context a digest is; rows that begin alike share contexts.
    """

    def __init__(self, prompts: Sequence[Sequence[int]], pad: int, digests: Sequence[Words], trace: Trace) -> None:
        self._starts = [len(prompt) for prompt in prompts]
        self._pad, self._trace = pad, trace
        places: dict[int, dict[int, int]] = defaultdict(dict)
        for row, of_row in enumerate(digests):
            for position, digest in enumerate(of_row[-1].tolist()):
                places[digest][row] = position
        self.places: Places = dict(places)

    def shared(self, row: int, tokens: int) -> bool:
        """Return whether another row may be asked the same as this one for one of its first new tokens,
        so many of them.
        """
        begin = self._starts[row] - 1
        shared = (whose for whose in self.places.values() if row in whose and len(whose) > 1)
        return any(begin <= whose[row] < begin + tokens for whose in shared)

    @cached_property
    def every(self) -> tuple[Round, ...]:
        """A round of each row in each of the decoder's target calls that served it.

        A row may be in several batch rows of a call, and several in one: of a row's blocks the furthest counts.
        """
        known, made = list(self._starts), list[Round]()
        for call, blocks in self._served(self._trace.made(TARGET), known):
            of_row: dict[int, Round] = {}
            for block in blocks:
                row, (column, last) = block.row, block.reach[block.row]
                columns = _behind(call, block.call_row, column, block.stop, self._pad)
                fed = block.first(row), last, block.call_row, column, columns
                own = Round(call, row, self._starts[row], known[row], *fed)
                other = of_row.get(row, own)
                further = max(own, other, key=lambda one: (one.last, len(one.columns)))
                of_row[row] = further._replace(first=min(own.first, other.first))
            for row, own in of_row.items():
                known[row] = max(known[row], own.last + 2)
            made += of_row.values()
        return tuple(made)

    def once(
        self, begun: Callable[[int, int, int], int | None] | None = None, ends: Sequence[int] | None = None
    ) -> list[Round]:
        """The rounds, each one time: of calls that ask in one round for the same of a row, the last.

        It is one round where nothing was drafted for the row in between, or where the draft began with as many of its
        tokens as before: so says ``begun``, of a row between two calls. A right decoder may make each call twice, or
        ask for the newest token before it asks for the draft tokens, too. Where the ``ends`` of the rows are given,
        what is asked again without draft tokens behind an end stays: it may be a bonus that was dropped.
        """
        # A call that is made twice would count as a round that brought nothing, and a right decoder as one that loses
        # drafts. A bonus that was dropped looks the same, but for the row's end.
        kept: list[Round] = []
        newest: dict[int, tuple[int, int, bool]] = {}  # by row: where its round is, with which tokens its draft began
        for own in self.every:
            at, given, drafted = newest.get(own.row, (-1, 0, False))
            before = kept[at] if at >= 0 else None
            tokens = (begun or self.begun)(own.row, before.call.number if before else 0, own.call.number)
            if before and tokens in (None, given):
                same = (own.last, own.refused) == (before.last, before.refused)
                dropped = ends and tokens is None and not own.columns and own.known >= ends[own.row]
                newest_first = tokens is None and drafted and not before.proposed and (own.proposed or own.columns)
                if (same and not dropped) or (newest_first and own.first <= before.last < own.end - 1):
                    kept[at] = own._replace(known=before.known)
                    continue
            newest[own.row] = len(kept), given if tokens is None else tokens, tokens is not None
            kept.append(own)
        return kept

    # The queries of the draft:

    @cached_property
    def drafting(self) -> list[Call]:
        """The calls of the draft that the decoder made."""
        return self._trace.made(DRAFT)

    @cached_property
    def _numbers(self) -> list[int]:
        return [call.number for call in self.drafting]

    @cached_property
    def _queried(self) -> dict[int, list[tuple[int, int]]]:
        """Return by row the calls in which the draft was called in the row's correct context, and the positions."""
        queried: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for call, blocks in self._served(self.drafting, self._starts):
            for block in blocks:
                positions = range(block.first(block.row), block.reach[block.row][1] + 1)
                queried[block.row] += [(call.number, at) for at in positions]
        return queried

    def drafted_before(self, call: int) -> int:
        """Return how many calls the draft had answered before a call."""
        return bisect_right(self._numbers, call)

    def drafted_between(self, since: int, until: int) -> list[Call]:
        """The calls of the draft between two calls."""
        return self.drafting[self.drafted_before(since) : self.drafted_before(until)]

    def asked(self, row: int, since: int, until: int) -> list[tuple[int, int]]:
        """The calls between two calls in which the draft was asked in the row's right context, and the positions."""
        return [(number, at) for number, at in self._queried[row] if since < number < until]

    def proposed(self, row: int, position: int, until: int) -> bool:
        """Return whether the draft, before a call, was asked at this position of the row in its right context."""
        return any(at == position for _, at in self.asked(row, 0, until))

    def begun(self, row: int, since: int, until: int) -> int | None:
        """Return how many tokens of the row the draft was given by its first call about it between two calls.

        That is what the decoder had committed then. A piece of a prompt is no call about it: others may begin alike.
        """
        given = [(number, at + 1) for number, at in self.asked(row, since, until) if at + 1 >= self._starts[row]]
        return max((tokens for number, tokens in given if number == given[0][0]), default=None)

    # The row of each block of columns:

    def _served(self, calls: list[Call], known: Sequence[int]) -> Iterator[tuple[Call, list[Stretch]]]:
        """Yield which rows each call served; ``known`` tokens of each were told before the call that comes next.

        Where prompts are equal, or one begins another, a context may be that of several rows. Then a block is of the
        row that went on with its cache; without a cache, of one that the call has not served yet, then of one that it
        brings further, then of one whose next position it has, then of the one that waited longest. Of equal rows
        without caches that take turns otherwise, it cannot be seen which is which.
        """
        blocks_of = [
            [b for row, digests in enumerate(call.digests.tolist()) for b in self._stretches(call, row, digests)]
            for call in calls
        ]
        _link(blocks_of)
        newest = dict.fromkeys(range(len(self._starts)), (0, -1))  # the call that served it last, and the position

        def unlikely(block: Stretch, row: int, done: Counter[int]) -> tuple[object, ...]:
            # The entry of a prompt's last token is each row's own, also where rows share what is before it.
            went_on = any(row == b.row and b.at(row, column) >= self._starts[row] - 1 for b, column in block.follows)
            last, (number, before) = block.reach[row][1], newest[row]
            goes_on = before + 1 in (block.first(row), last)
            return not went_on, done[row], last + 1 < known[row], not goes_on, number, row

        for call, blocks in zip(calls, blocks_of, strict=True):
            done = Counter[int]()
            for block in blocks:
                likely = block.likely()
                furthest = [row for row in block.owners if row in likely] or likely
                block.row = min(furthest, key=lambda row: unlikely(block, row, done)) if len(likely) > 1 else likely[0]
                done[block.row] += 1
            # Second pass: a row was taken twice in this call and another not at all, although it may be the other
            # one's.
            for block in reversed(blocks) if len(done) < len(blocks) else ():
                # Draft tokens of a row may be what another row's prompt goes on with.
                for row in block.likely():
                    if done[block.row] > 1 and not done[row] and block.reach[row][1] + 1 >= known[row]:
                        done.update({block.row: -1, row: 1})
                        block.row = row
            newest.update({block.row: (call.number, block.reach[block.row][1]) for block in blocks})
            yield call, blocks

    def _stretches(self, call: Call, call_row: int, digests: list[int]) -> list[Stretch]:
        """The stretches of a batch row, each of columns in which one row goes on by one position."""
        stretches: list[Stretch] = []
        for column, digest in enumerate(digests):
            # Columns without a right context are skipped and end nothing: drafts that were refused, pads, filler.
            here = self.places.get(digest)
            if not here:
                continue
            before = stretches[-1] if stretches else None
            going = {row: at for row, at in here.items() if before and before.owners.get(row) == at - 1}
            if before and going:
                before.owners, before.column, before.length = going, column, before.length + 1
            else:
                if before:
                    before.stop = column
                stretches.append(Stretch(call, call_row, column, dict(here)))
            stretches[-1].reach.update({row: (column, at) for row, at in stretches[-1].owners.items()})
        return stretches


@dataclass(eq=False)
class Stretch:
    """Columns of a batch row that hold one row's next positions, each in its right context; ``column`` is the last.

    Rows that begin alike share contexts: ``reach`` has, for each row that it may be of, the last column and position
    that are the row's own, and ``owners`` the positions of the rows that go furthest. ``row`` is the one chosen.
    ``heirs`` are the rows known to have used it later on; it ``follows`` stretches that wrote entries it saw, each with
    the column. At ``stop`` another begins.
    """

    call: Call
    call_row: int
    column: int
    owners: dict[int, int]
    length: int = 1
    reach: dict[int, tuple[int, int]] = field(default_factory=dict)
    heirs: set[int] = field(default_factory=set)
    follows: list[tuple[Stretch, int]] = field(default_factory=list)
    stop: int | None = None
    row: int = -1

    @property
    def begin(self) -> int:
        return self.column - self.length + 1

    def at(self, row: int, column: int) -> int:
        """The position of the row that a column holds."""
        end, last = self.reach[row]
        return last - (end - column)

    def first(self, row: int) -> int:
        """The row's position that it begins with."""
        return self.at(row, self.begin)

    def likely(self) -> list[int]:
        """The rows that it may be of."""
        return [row for row in self.reach if row in self.heirs] or list(self.reach)


def _link(blocks_of: list[list[Stretch]]) -> None:
    """Tell stretches that may be of several rows whose later ones saw what they wrote."""
    # Backwards, because what a later stretch saw says whose the earlier one was: a row goes on with its own cache.
    shared = [block for blocks in blocks_of for block in blocks if len(block.reach) > 1]
    rows = {row for block in shared for row in block.reach}
    written = {
        (block.call.number, block.call_row, column): block
        for block in shared
        for column in range(block.begin, block.column + 1)
    }
    for block in (block for blocks in reversed(blocks_of) for block in blocks if not rows.isdisjoint(block.reach)):
        whose = block.likely() if block.heirs else block.owners
        kept = block.call.held[0][0, block.call_row, 0]
        visible = block.call.visible[block.call_row, block.column]
        slots = min(len(visible), len(kept))
        if slots <= len(block.call.tokens[0]):
            continue  # it has no cache
        for write in decoded(kept[:slots][visible[:slots]])[:, [CALL, ROW, COLUMN]].tolist():
            before = written.get(tuple(write))
            if before and before.call.number < block.call.number:
                reach = before.reach
                before.heirs.update(row for row in whose if row in reach and write[2] <= reach[row][0])
                block.follows.append((before, write[2]))


def _behind(call: Call, row: int, column: int, stop: int | None, pad: int) -> tuple[int, ...]:
    """The columns of the draft tokens that a batch row holds behind a column, up to where another row begins.

    They are at the next positions, which pads between them are not. Pads at the end are none of them where another
    batch row has something else in one of their columns: they fill up the row.
    """
    width = call.tokens.shape[1]
    end = width if stop is None else stop
    if stop is None:
        filled = end
        while filled > column + 1 and call.tokens[row, filled - 1] == pad:
            filled -= 1
        if filled < end and (np.delete(call.tokens, row, 0)[:, filled:] != pad).any():
            end = filled
    columns: list[int] = []
    positions = call.positions[row].tolist()
    for at in range(column + 1, end):
        if positions[at] == positions[column] + len(columns) + 1:
            columns.append(at)
    return tuple(columns)
