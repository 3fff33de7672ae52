"""Where a draft token came from that the target refused: from the draft in its right context, a wrong one, or not."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from eqcheck.decoding.rounds import Round
from eqcheck.decoding.run import Run
from eqcheck.hashlm import hashing
from eqcheck.hashlm.hashing import Ints
from eqcheck.hashlm.trace import Call

_Query = tuple[Call, int, int]  # a row and column of a call


class Proposals:
    """The draft's queries of a run, and what they predicted."""

    def __init__(self, run: Run) -> None:
        self.run, self.rounds = run, run.rounds
        self._marks: dict[int, Ints] = {}

    def why_refused(self, own: Round, since: int, committed: int) -> str:
        """Where the first token that was refused came from, which a right draft would not have proposed.

        ``since`` is the call after which the draft was asked for it, ``committed`` how many tokens of the row the
        decoder had then. One coincidence proves nothing; so a draft that predicted the token in a wrong context must
        have been given the token before it, too, and must have gone on to the next token fed or, where none was fed,
        have seen entries which only this row writes. Where the draft was asked in the right context, it had proposed
        another token.
        """
        if self.fills_up(own):
            return "unasked"
        token, *then = own.refused
        row, until = own.row, own.call.number
        before = int(own.call.tokens[own.call_row, own.column])
        asked = self.rounds.asked(row, since, until)
        predicted = list(self._wrong(row, since, until, token))
        rightly = {number for number, at in asked if at == own.last}
        # Behind a pad that is the row's newest token, other pads fill up the row; they see it, too, but nobody asks.
        padding = rightly if before == self.run.case.pad_token_id else set()
        after = [query for query in predicted if _fed(query) == before and query[0].number not in padding]
        for query in after:
            later = self._wrong(row, query[0].number - 1, until, then[0]) if then else ()
            if any(_fed(other) == token for other in later) if then else self._saw(query, row):
                return "wrong-context"
        if rightly:
            return "altered"
        if any(self._saw(query, row) for query in predicted):
            return "wrong-context"
        if self.rounds.proposed(row, own.last, until):
            return "altered"
        if after:
            return "wrong-context?"
        about = any(at >= committed - 1 for _, at in asked)
        return "lost" if about or any(self._saw(query, row) for query in self._wrong(row, since, until)) else "unasked"

    def fills_up(self, own: Round) -> bool:
        """Whether what was refused is padding: a query that does not see itself, or pads and no more was drafted."""
        call, row, column = own.call, own.call_row, own.columns[0]
        fields = call.kv[0][0, row, 0]
        slots = np.flatnonzero((fields[:, hashing.CALL] == call.number) & (fields[:, hashing.COLUMN] == column))
        if slots.size and not call.visible[row, column, slots[slots < call.visible.shape[2]]].any():
            return True
        pads = all(token == self.run.case.pad_token_id for token in own.refused)
        return pads and not self.rounds.proposed(own.row, own.last + 1, call.number)

    def _wrong(self, row: int, since: int, until: int, predicted: int | None = None) -> Iterator[_Query]:
        """The draft's queries between two calls, in contexts not those of the row, which predicted this token."""
        for call in self.rounds.drafted_between(since, until):
            chosen = call.predictions == predicted if predicted is not None else np.ones_like(call.tokens, bool)
            for batch_row, column in np.argwhere(chosen).tolist():
                if row not in self.rounds.places.get(int(call.digests[batch_row, column]), {}):
                    yield call, batch_row, column

    def _saw(self, query: _Query, row: int) -> bool:
        """Whether a query saw an entry that only this row writes: the entry holds the hash of the row so far."""
        call, batch_row, column = query
        visible = call.visible[batch_row, column]
        stored = hashing.stored_digest(call.kv[1][0, batch_row, 0])
        slots = min(len(visible), len(stored))
        return bool(np.isin(stored[:slots][visible[:slots]], self._marks_of(row)).any())

    def _marks_of(self, row: int) -> Ints:
        if row not in self._marks:
            prompts = self.run.case.prompts
            digests = [hashing.truncated(digests[0]) for digests in self.run.truth.digests]
            others = [own for own, prompt in zip(digests, prompts, strict=True) if prompt != prompts[row]]
            self._marks[row] = np.setdiff1d(digests[row], np.concatenate(others) if others else [])
        return self._marks[row]


def _fed(query: _Query) -> int:
    call, row, column = query
    return int(call.tokens[row, column])
