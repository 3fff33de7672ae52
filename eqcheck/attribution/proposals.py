"""What the draft was asked before a target call, and whether what was fed to the target is what it proposed."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from eqcheck.attribution.parts import Part, places, served
from eqcheck.decoding.run import Run
from eqcheck.hashlm import hashing
from eqcheck.hashlm.hashing import Ints
from eqcheck.hashlm.trace import DRAFT, Call

Query = tuple[Call, int, int]  # a row and column of a call


class Proposals:
    """The draft's calls of a run, by what they were asked about each request."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.calls = run.trace.made(DRAFT)
        self.numbers = [call.number for call in self.calls]
        self.right = places(run)
        self._queried: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for call, blocks in served(run, self.right, self.calls, [len(prompt) for prompt in run.case.prompts]):
            for block in blocks:
                self._queried[block.request] += [(call.number, at) for at in range(block.first, block.last + 1)]
        self._marks: dict[int, Ints] = {}

    def made_before(self, call: int) -> int:
        """How many calls the draft had answered before a call."""
        return bisect_right(self.numbers, call)

    def begun(self, request: int, since: int, until: int) -> int | None:
        """How many tokens of the request the draft was given by its first call about it between two calls.

        That is what the decoder had committed then. A piece of a prompt is no call about it: others may begin alike.
        """
        start = len(self.run.case.prompts[request])
        given_at = [
            (number, at + 1) for number, at in self._queried[request] if since < number < until and at + 1 >= start
        ]
        return max((given for number, given in given_at if number == given_at[0][0]), default=None)

    def proposed(self, request: int, position: int, until: int) -> bool:
        """Whether the draft, before a call, was asked at this position of the request in its right context."""
        return any(number < until and at == position for number, at in self._queried[request])

    def why_refused(self, part: Part, since: int, committed: int) -> str:
        """Where the first token that was refused came from, which a right draft would not have proposed.

        ``since`` is the call after which the draft was asked for it, ``committed`` how many tokens of the row the
        decoder had then. One coincidence proves nothing; so a draft that predicted the token in a wrong context must
        have been given the token before it, too, and must have gone on to the next token fed or, where none was fed,
        have seen entries which only this row writes. Where the draft was asked in the right context, it had proposed
        another token.
        """
        if self.fills_up(part):
            return "unasked"
        token, *then = part.refused
        request, until = part.request, part.call.number
        before = int(part.call.tokens[part.call_row, part.column])
        predicted = list(self._wrong(request, since, until, token))
        rightly = {number for number, at in self._queried[request] if since < number < until and at == part.last}
        # Behind a pad that is the row's newest token, other pads fill up the row; they see it, too, but nobody asks.
        padding = rightly if before == self.run.case.pad_token_id else set()
        after = [query for query in predicted if _fed(query) == before and query[0].number not in padding]
        for query in after:
            later = self._wrong(request, query[0].number - 1, until, then[0]) if then else ()
            if any(_fed(other) == token for other in later) if then else self._saw(query, request):
                return "wrong-context"
        if rightly:
            return "altered"
        if any(self._saw(query, request) for query in predicted):
            return "wrong-context"
        if self.proposed(request, part.last, until):
            return "altered"
        if after:
            return "wrong-context?"
        return "lost" if self._was_queried(request, committed - 1, since, until) else "unasked"

    def fills_up(self, part: Part) -> bool:
        """Whether what was refused is padding: a query that does not see itself, or pads and no more was drafted."""
        call, row, column = part.call, part.call_row, part.columns[0]
        fields = call.kv[0][0, row, 0]
        own = np.flatnonzero((fields[:, hashing.CALL] == call.number) & (fields[:, hashing.COLUMN] == column))
        if own.size and not call.visible[row, column, own[own < call.visible.shape[2]]].any():
            return True
        pads = all(token == self.run.case.pad_token_id for token in part.refused)
        return pads and not self.proposed(part.request, part.last + 1, call.number)

    def _was_queried(self, request: int, beyond: int, since: int, until: int) -> bool:
        """Whether the draft was asked about the request at all: rightly from a position on, or seeing its entries."""
        if any(since < number < until and at >= beyond for number, at in self._queried[request]):
            return True
        return any(self._saw(query, request) for query in self._wrong(request, since, until))

    def _wrong(self, request: int, since: int, until: int, predicted: int | None = None) -> Iterator[Query]:
        """The draft's queries between two calls, in contexts not those of the request, which predicted this token."""
        for call in self.calls[bisect_right(self.numbers, since) : bisect_right(self.numbers, until)]:
            chosen = call.predictions == predicted if predicted is not None else np.ones_like(call.tokens, bool)
            for row, column in np.argwhere(chosen).tolist():
                if request not in self.right.get(int(call.digests[row, column]), {}):
                    yield call, row, column

    def _saw(self, query: Query, request: int) -> bool:
        """Whether a query saw an entry that only this request writes: the entry holds the hash of the row so far."""
        call, row, column = query
        visible = call.visible[row, column]
        stored = hashing.stored_digest(call.kv[1][0, row, 0])
        slots = min(len(visible), len(stored))
        return bool(np.isin(stored[:slots][visible[:slots]], self._marks_of(request)).any())

    def _marks_of(self, request: int) -> Ints:
        if request not in self._marks:
            prompts = self.run.case.prompts
            digests = [hashing.truncated(digests[0]) for digests in self.run.truth.digests]
            others = [own for own, prompt in zip(digests, prompts, strict=True) if prompt != prompts[request]]
            self._marks[request] = np.setdiff1d(digests[request], np.concatenate(others) if others else [])
        return self._marks[request]


def _fed(query: Query) -> int:
    call, row, column = query
    return int(call.tokens[row, column])
