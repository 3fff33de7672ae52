"""What each row had in each target call: from where it went on, what was accepted, which draft tokens were not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from eqcheck.harness import Run
from eqcheck.trace import TARGET, Call

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


@dataclass
class _Block:
    """Columns of a row of a call whose contexts are those of ``owners``, each with the last position reached."""

    owners: dict[int, int]
    column: int
    length: int = 1

    def takes(self, owners: dict[int, int], column: int) -> bool:
        """Go on with the next column, where it is one of the same request."""
        both = {r: at for r, at in owners.items() if self.owners.get(r) == at - 1}
        if both:
            self.owners, self.column, self.length = both, column, self.length + 1
        return bool(both)


def places(run: Run) -> Places:
    """Whose right context a digest is, and at which position; rows that begin alike share contexts."""
    found: Places = defaultdict(dict)
    for request, digests in enumerate(run.truth.digests):
        for position, digest in enumerate(digests[-1].tolist()):
            found[digest][request] = position
    return dict(found)


def parts(run: Run) -> Iterator[Part]:
    """What each request had in each of the decoder's target calls, in order.

    A request may be in several rows of a call, and several in one row: of a request's parts the furthest counts. Of
    requests whose contexts are the same, one that the call brings further is taken.
    """
    of = places(run)
    known = [len(prompt) for prompt in run.case.prompts]
    for call in run.trace.made(TARGET):
        found: dict[int, Part] = {}
        for row, digests in enumerate(call.digests.tolist()):
            blocks = _blocks([of.get(digest, {}) for digest in digests])
            for number, block in enumerate(blocks):
                request = min(block.owners, key=lambda r: (block.owners[r] + 1 < known[r], r in found, r))
                last = block.owners[request]
                stop = blocks[number + 1].column - blocks[number + 1].length + 1 if block is not blocks[-1] else None
                columns = _behind(call, row, block.column, stop, run.case.pad_token_id)
                first = last + 1 - block.length
                part = Part(call, request, known[request], first, last, row, block.column, columns)
                other = found.get(request, part)
                further = max(part, other, key=lambda one: (one.last, len(one.columns)))
                found[request] = further._replace(first=min(first, other.first))
        for request, part in found.items():
            known[request] = max(known[request], part.last + 2)
            yield part


def _blocks(owners: list[dict[int, int]]) -> list[_Block]:
    blocks: list[_Block] = []
    for column, here in enumerate(owners):
        if here and not (blocks and blocks[-1].takes(here, column)):
            blocks.append(_Block(here, column))
    return blocks


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
        if (np.delete(call.tokens, row, 0)[:, filled:] != pad).any():
            end = filled
    found: list[int] = []
    for at in range(column + 1, end):
        if call.positions[row, at] == call.positions[row, column] + len(found) + 1:
            found.append(at)
    return tuple(found)
