"""What each row had in each target call: from where it went on, what was accepted, which draft tokens were not."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from eqcheck.decoding.run import Run
from eqcheck.hashlm.hashing import CALL, COLUMN, ROW, decoded
from eqcheck.hashlm.trace import TARGET, Call

Places = dict[int, dict[int, int]]  # a context's digest -> the requests whose context it is, each with the position


class Part(NamedTuple):
    """One request in one target call: its positions ``first`` to ``last`` were asked in their right contexts.

    Before the call the target had told (or the prompt says) the first ``known`` tokens of the row; it now tells
    the one behind ``last``. ``call_row`` and ``column`` fed the token at ``last``, ``columns`` the draft tokens behind
    it, the first of which is not the row's next token.
    """

    call: Call
    request: int
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
        """How long the row was with all its draft tokens."""
        return self.last + 1 + len(self.columns)

    @property
    def accepted(self) -> int:
        """How many draft tokens of the call are the row's own, of those that were not known."""
        return max(0, self.last + 1 - self.known)

    @property
    def proposed(self) -> int:
        """How many draft tokens were fed behind what was known; a part of a prompt has none."""
        return self.end - self.known if self.last + 1 >= self.known else 0


@dataclass(eq=False)
class _Block:
    """Columns of a row of a call that hold one request's next positions, each in its right context.

    Rows that begin alike share contexts: ``reach`` has, for each request that the block may be of, the last column and
    position that are the request's own, and ``owners`` those that go furthest. ``heirs`` are the requests known to
    have used it later on; it ``follows`` blocks of which it saw the entry of a column. At ``stop`` another begins.
    """

    call: Call
    row: int
    column: int
    length: int
    owners: dict[int, int]
    reach: dict[int, tuple[int, int]] = field(default_factory=dict)
    heirs: set[int] = field(default_factory=set)
    follows: list[tuple[_Block, int]] = field(default_factory=list)
    stop: int | None = None

    def takes(self, owners: dict[int, int], column: int) -> bool:
        """Go on with the next column, where it is one of the same request."""
        both = [r for r, at in self.owners.items() if owners.get(r) == at + 1]
        if both:
            if len(both) < len(self.owners):
                self.end()
            self.owners = owners if len(both) == len(owners) else {r: owners[r] for r in both}
            self.column, self.length = column, self.length + 1
        return bool(both)

    def end(self) -> None:
        """This is as far as its owners go."""
        for request, at in self.owners.items():
            self.reach[request] = self.column, at

    def at(self, request: int, column: int) -> int:
        """The position of the request that a column holds."""
        end, last = self.reach[request]
        return last - (end - column)

    def first(self, request: int) -> int:
        """The request's position that it begins with."""
        return self.at(request, self.column - self.length + 1)

    def served(self, request: int) -> Served:
        """The block as the request's."""
        column, last = self.reach[request]
        return Served(request, self.row, column, self.first(request), last, self.stop)

    def likely(self) -> list[int]:
        """The requests that it may be of."""
        return [r for r in self.reach if r in self.heirs] or list(self.reach)


def places(run: Run) -> Places:
    """Whose right context a digest is, and at which position; rows that begin alike share contexts."""
    found: Places = defaultdict(dict)
    for request, digests in enumerate(run.truth.digests):
        for position, digest in enumerate(digests[-1].tolist()):
            found[digest][request] = position
    return dict(found)


def parts(run: Run, of: Places | None = None) -> Iterator[Part]:
    """What each request had in each of the decoder's target calls, in order.

    A request may be in several rows of a call, and several in one row: of a request's parts the furthest counts. ``of``
    are the `places` of the run.
    """
    known = [len(prompt) for prompt in run.case.prompts]
    for call, blocks in served(run, of or places(run), run.trace.made(TARGET), known):
        found: dict[int, Part] = {}
        for request, row, column, first, last, stop in blocks:
            columns = _behind(call, row, column, stop, run.case.pad_token_id)
            part = Part(call, request, known[request], first, last, row, column, columns)
            other = found.get(request, part)
            further = max(part, other, key=lambda one: (one.last, len(one.columns)))
            found[request] = further._replace(first=min(first, other.first))
        for request, part in found.items():
            known[request] = max(known[request], part.last + 2)
            yield part


def once(
    every: Iterable[Part], begun: Callable[[int, int, int], int | None], ends: Sequence[int] | None = None
) -> list[Part]:
    """The parts, each one time: of those that ask in one round for the same of a request, the last.

    It is one round where nothing was drafted for the request in between, or where the draft began with as many of its
    tokens as before: so says ``begun``, of a request between two calls. A right decoder may make each call twice, or
    ask for the newest token before it asks for the draft tokens, too. Where the ``ends`` of the rows are given, what is
    asked again without draft tokens behind an end stays: it may be a bonus that was dropped.
    """
    found: list[Part] = []
    newest: dict[int, tuple[int, int, bool]] = {}  # by request: where its part is, with which tokens its draft began
    for part in every:
        at, given, drafted = newest.get(part.request, (-1, 0, False))
        before = found[at] if at >= 0 else None
        tokens = begun(part.request, before.call.number if before else 0, part.call.number)
        if before and tokens in (None, given):
            same = (part.last, part.refused) == (before.last, before.refused)
            dropped = ends and tokens is None and not part.columns and part.known >= ends[part.request]
            more = (
                tokens is None
                and drafted
                and not before.proposed
                and (part.proposed or part.refused)
                and part.first <= before.last < part.end - 1
            )
            if (same and not dropped) or more:
                found[at] = part._replace(known=before.known)
                continue
        newest[part.request] = len(found), given if tokens is None else tokens, tokens is not None
        found.append(part)
    return found


class Served(NamedTuple):
    """One request in a row of a call: ``column`` holds its position ``last``; at ``stop`` another request begins."""

    request: int
    row: int
    column: int
    first: int
    last: int
    stop: int | None


def served(run: Run, of: Places, calls: list[Call], known: list[int]) -> Iterator[tuple[Call, list[Served]]]:
    """Which requests each call served; ``known`` tokens of each were told before the call that comes next.

    Where prompts are equal, or one begins another, a context may be that of several requests. Then a row is of the
    request that went on with its cache; without a cache, of one that the call has not served yet, then of one that it
    brings further, then of one whose next position it has, then of the one that waited longest. Of equal rows without
    caches that take turns otherwise, it cannot be seen which is which.
    """
    starts = [len(prompt) for prompt in run.case.prompts]
    rows = [
        [b for row, digests in enumerate(call.digests.tolist()) for b in _blocks(call, row, digests, of)]
        for call in calls
    ]
    _link(rows)
    chosen: dict[_Block, int] = {}
    newest = dict.fromkeys(range(len(starts)), (0, -1))  # the call that served it last, and the position

    def unlikely(block: _Block, r: int, done: Counter[int]) -> tuple[object, ...]:
        # The entry of a prompt's last token is each row's own, also where rows share what is before it.
        went_on = any(r == chosen[b] and b.at(r, column) >= starts[r] - 1 for b, column in block.follows)
        last, (number, before) = block.reach[r][1], newest[r]
        return not went_on, done[r], last + 1 < known[r], before + 1 not in (block.first(r), last), number, r

    for call, blocks in zip(calls, rows, strict=True):
        done = Counter[int]()
        for block in blocks:
            request, *others = block.likely()
            if others:
                furthest = [r for r in block.owners if r in block.likely()] or block.likely()
                request = min(furthest, key=lambda r: unlikely(block, r, done))
            chosen[block] = request
            done[request] += 1
        for block in reversed(blocks) if len(done) < len(blocks) else ():
            # Draft tokens of a row may be what another row's prompt goes on with.
            for r in block.likely():
                if done[chosen[block]] > 1 and not done[r] and block.reach[r][1] + 1 >= known[r]:
                    done.update({chosen[block]: -1, r: 1})
                    chosen[block] = r
        newest.update({chosen[block]: (call.number, block.reach[chosen[block]][1]) for block in blocks})
        yield call, [block.served(chosen[block]) for block in blocks]


def _blocks(call: Call, row: int, digests: list[int], of: Places) -> list[_Block]:
    blocks: list[_Block] = []
    for column, digest in enumerate(digests):
        here = of.get(digest)
        if here and not (blocks and blocks[-1].takes(here, column)):
            if blocks:
                blocks[-1].stop = column
            blocks.append(_Block(call, row, column, 1, here))
    for block in blocks:
        block.end()
    return blocks


def _link(rows: list[list[_Block]]) -> None:
    """Tell blocks that may be of several requests whose later blocks saw what they wrote."""
    shared = [block for blocks in rows for block in blocks if len(block.reach) > 1]
    requests = {request for block in shared for request in block.reach}
    written = {
        (block.call.number, block.row, column): block
        for block in shared
        for column in range(block.column - block.length + 1, block.column + 1)
    }
    for block in (block for blocks in reversed(rows) for block in blocks if not requests.isdisjoint(block.reach)):
        whose = block.likely() if block.heirs else block.owners
        kept = block.call.held[0][0, block.row, 0]
        visible = block.call.visible[block.row, block.column]
        slots = min(len(visible), len(kept))
        if slots <= len(block.call.tokens[0]):
            continue  # it has no cache
        for write in decoded(kept[:slots][visible[:slots]])[:, [CALL, ROW, COLUMN]].tolist():
            before = written.get(tuple(write))
            if before and before.call.number < block.call.number:
                at = before.reach
                before.heirs.update(r for r in whose if r in at and write[2] <= at[r][0])
                block.follows.append((before, write[2]))


def _behind(call: Call, row: int, column: int, stop: int | None, pad: int) -> tuple[int, ...]:
    """The columns of the draft tokens that a row of a call holds behind a column, up to where another request begins.

    They are at the next positions, which pads between them are not. Pads at the end are none of them where another row
    has something else in one of their columns: they fill up the row.
    """
    width = call.tokens.shape[1]
    end = width if stop is None else stop
    if stop is None:
        filled = end
        while filled > column + 1 and call.tokens[row, filled - 1] == pad:
            filled -= 1
        if filled < end and (np.delete(call.tokens, row, 0)[:, filled:] != pad).any():
            end = filled
    found: list[int] = []
    positions = call.positions[row].tolist()
    for at in range(column + 1, end):
        if positions[at] == positions[column] + len(found) + 1:
            found.append(at)
    return tuple(found)
