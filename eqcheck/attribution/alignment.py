"""The request that a row of a call stands for, and its first token there, where no query of the row is right.

Every token of a request that the row feeds is a possible start. Clues for and against each start are counted. The best
start asks for a token that is due, has the fewest objections, and fits the row best, in this order. No clue has a
weight. `tests/test_labels.py` has rows that are aligned wrongly without each of the clues.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from eqcheck.attribution.record import Record, self_hidden
from eqcheck.hashlm.hashing import MODEL
from eqcheck.hashlm.trace import DRAFT, TARGET, Call
from eqcheck.result.verdict import common_start

OBJECTIONS = {
    "taken": "another row of the call stands for the request",
    "hidden": "the first token does not see itself, as pads do not",
    "strange": "behind what fits, something is fed that no draft had proposed",
}
FOR = {
    "held": "an entry of the request that the row's cache holds before the start",
    "fed": "a token fed that the request has there",
    "position": "the first one carries its logical position",
    "own_row": "the row of the call has the request's number, which engines give up when rows leave",
    "prompt": "the row reaches the end of the prompt, from where on there is something to ask",
}
AGAINST = {
    "gap": "a token before the start that the cache does not hold, or an entry too many",
    "beyond": "an entry held of the start or what is behind it",
}


class Start(NamedTuple):
    """Column ``first`` of the row feeds the token at logical position ``at`` of the request.

    ``ahead`` is 1 where the call asks for a token that is not committed, and less by the tokens that it asks for again.
    A decoder has no use for an answer that it has already, so a start with a lower ``ahead`` is taken only where no
    other fits. ``clues`` counts how often each clue applies.
    """

    request: int
    first: int
    at: int
    ahead: int
    clues: dict[str, int]

    @property
    def rank(self) -> tuple[int, int, int]:
        """The key by which starts compete: the highest is taken."""
        fit = sum(map(self.clues.__getitem__, FOR)) - sum(map(self.clues.__getitem__, AGAINST))
        return self.ahead, -sum(map(self.clues.__getitem__, OBJECTIONS)), fit


@dataclass(frozen=True)
class _Row:
    """A row to be aligned, or the ``columns`` of it that belong to one request.

    ``held[request]`` are the positions in its cache, ``garbled`` the entries seen that no model wrote, which may stand
    for any token.
    """

    call: Call
    row: int
    begin: int
    tokens: list[int]
    hidden: list[bool]
    held: list[set[int]]
    garbled: int


def align(
    record: Record,
    call: Call,
    row: int,
    taken: Collection[int],
    columns: range | None = None,
    requests: Sequence[int] | None = None,
) -> tuple[int, int, int] | None:
    """The best ``(request, first real column, position of column 0)``, or None when nothing fits.

    ``taken`` are the requests that other rows of the call stand for. ``requests`` are the requests that this row may
    stand for; without them it may stand for any.
    """
    fed = _row(record, call, row, columns)
    all_of_them = range(len(record.requests)) if requests is None else requests
    starts = (start for request in all_of_them for start in _starts(record, fed, request, request in taken))
    best = max(starts, key=lambda start: start.rank, default=None)
    return None if best is None else (best.request, fed.begin + best.first, best.at - fed.begin - best.first)


def _row(record: Record, call: Call, row: int, columns: range | None) -> _Row:
    begin = columns[0] if columns else 0
    held: list[set[int]] = [set() for _ in record.requests]
    for label in record.held(call, row):
        for request, positions in enumerate(held) if label.what == "token" else ():
            if record.same(label, request):
                positions.add(label.position)
    nobodys = call.kv[0][0, row, 0, :, MODEL] > max(TARGET, DRAFT)
    return _Row(
        call,
        row,
        begin,
        tokens=call.tokens[row].tolist()[begin : columns[-1] + 1 if columns else None],
        hidden=self_hidden(call, row)[begin:],
        held=held,
        garbled=int((call.visible[row].any(axis=0) & nobodys).sum()),
    )


def _starts(record: Record, fed: _Row, request: int, taken: bool) -> Iterator[Start]:
    """The starts that the row may have in a request: columns before one must be pads."""
    pad, tokens = record.pad, fed.tokens
    proposed = record.proposed(request, fed.call.number) | {pad} if record.drafted else set(tokens)
    for first, token in enumerate(tokens):
        for whole in record.requests[request].wholes:
            for at in (at for at, other in enumerate(whole) if other == token):
                run = common_start(tokens[first:], whole[at:])
                prompt = len(record.requests[request].prompt)
                if at + run < prompt and any(other != pad for other in tokens[first + run :]):
                    continue  # a row cannot leave its own prompt
                behind = zip(tokens[first + run :], fed.hidden[first + run :], strict=False)
                strange = any(not unseen and other not in proposed for other, unseen in behind)
                last = min(at + len(tokens) - first, prompt + record.requests[request].needed - 1) - 1
                ahead = min(1, last - record.committed.get(request, -1))
                clues = _clues(fed, request, first, at, run, prompt) | {"taken": taken, "strange": strange}
                yield Start(request, first, at, ahead, clues)
        if token != pad:
            return


def _clues(fed: _Row, request: int, first: int, at: int, run: int, prompt: int) -> dict[str, int]:
    """Return how often each clue applies to a start, but for the two that rest on other rows and on drafts."""
    have = fed.held[request]
    before = sum(position < at for position in have)
    return {
        "held": before,
        "gap": abs(at - before - fed.garbled),
        "beyond": len(have) - before,
        "fed": run,
        "position": int(fed.call.positions[fed.row, fed.begin + first] == at),
        "own_row": int(request == fed.row),
        "prompt": int(at + len(fed.tokens) - first >= prompt),
        "hidden": int(fed.hidden[first]),
    }
