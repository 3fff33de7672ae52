"""Rows of a call that hold several requests, as engines without padding have them: cut, and told apart by the mask."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from eqcheck.attribution.record import Record, self_hidden, writes
from eqcheck.decoding.run import Run
from eqcheck.hashlm.trace import TARGET, Call

_CHANCE = 2  # tokens of a prompt that drafts may equal by chance
Places = Sequence[Sequence[tuple[int, int]]]


def packs(run: Run) -> bool:
    """Return whether a row of a target call feeds the prompts of two requests, each from position 0 on."""
    prompts, pad = run.case.prompts, run.case.pad_token_id
    for call in run.trace.made(TARGET) if len(prompts) > 1 else ():
        for tokens, positions in zip(call.tokens.tolist(), call.positions.tolist(), strict=True):
            starts = [column for column, position in enumerate(positions) if not position]
            if len(starts) > 1 and sum(any(_opens(tokens, positions, c, p, pad) for p in prompts) for c in starts) > 1:
                return True
    return False


def _begins(tokens: Sequence[int], column: int, text: Sequence[int]) -> bool:
    """Return whether the text is fed from this column on.

    >>> _begins([3, 1, 4], 1, (1, 4)), _begins([3, 1, 4], 2, (4, 1))
    (True, False)
    """
    return tuple(tokens[column : column + len(text)]) == tuple(text)


def _opens(tokens: Sequence[int], positions: Sequence[int], column: int, prompt: Sequence[int], pad: int) -> bool:
    """Return whether a prompt is fed from this column on: whole, or without its last token, which many engines feed
    later.

    >>> _opens([3, 1, 4, 5], [0, 1, 0, 1], 0, (3, 1, 9), pad=8)
    True
    """
    if _begins(tokens, column, prompt):
        return True
    end = next((c for c in range(column + 1, len(tokens)) if positions[c] != positions[c - 1] + 1), len(tokens))
    fed = tuple(tokens[column:end])
    return fed == tuple(prompt[:-1]) and set(fed) != {pad}


def begins_anew(record: Record, call: Call, row: int, begun: dict[int, int]) -> bool:
    """Return whether a call with fewer rows than there are requests feeds several in one row.

    So it is where one of the `beginnings` is behind another request, where another request goes on at the break of the
    positions, and where a token that is no row's first by its column sees only itself, behind others that are no pads.
    """
    if len(call.tokens) >= len(record.requests):
        return False
    if len(begun) > 1 or any(_joins(record, call, row, *one) for one in begun.items()):
        return True
    if record.branches:
        return False
    if _goes_on(record, call, row):
        return True
    hidden = self_hidden(call, row)
    return any(
        not hidden[column - 1]
        and int(call.tokens[row, column - 1]) != record.pad
        and int(call.visible[row, column].sum()) == 1
        for column in range(1, len(hidden))
        if not hidden[column]
    )


def _goes_on(record: Record, call: Call, row: int) -> bool:
    """Return whether a request that was fed before goes on, by its text and its position, behind tokens of another."""
    tokens, positions = call.tokens[row].tolist(), call.positions[row].tolist()
    return any(
        positions[c] != positions[c - 1] + 1
        and tokens[c - 1] != record.pad
        and any(reached + 1 == positions[c] and record.is_at(request, positions[c], tokens[c])
                for request, reached in record.reached.items())
        for c in range(1, len(tokens))
    )  # fmt: skip


def _joins(record: Record, call: Call, row: int, column: int, request: int) -> bool:
    """Return whether a request begins, for the first time, behind tokens of another one that is under way."""
    fed = call.tokens[row, max(column - 1, 0) : column + 1].tolist()
    behind = column > 0 and int(call.positions[row, :column].min()) > 0
    return behind and record.pad not in fed and request not in record.rounds


def beginnings(record: Record, call: Call, row: int) -> dict[int, int]:
    """The columns in which a request begins by its text and its position, whatever the mask shows: their requests.

    Before a row was seen to hold several, only prompts begin one. Positions may be wrong: where they break, a prompt
    that nobody has fed yet begins wherever it stands by its text.
    """
    if len(call.tokens) >= len(record.requests):
        return {}
    tokens, positions = call.tokens[row].tolist(), call.positions[row].tolist()
    breaks = [c for c in range(len(tokens)) if not c or positions[c] != positions[c - 1] + 1]
    held = [label for label in record.held(call, row) if label.what == "token"]
    begun: dict[int, int] = {}
    for column in breaks:
        for number, request in enumerate(record.requests):
            at, prompt = positions[column], len(request.prompt)
            reached = {label.position for label in held if label.request == number}
            goes_on = at == max(reached, default=-1) + 1 or (not reached and record.continues(number, at))
            new = (
                column > 0 < at and prompt > _CHANCE and not reached and number not in {*record.rounds, *begun.values()}
            )
            if new and _opens(tokens, positions, column, request.prompt, record.pad):
                begun[column] = number
                break
            if number in begun.values() or not goes_on or (at and not record.packed):
                continue
            rest = [whole[at : max(prompt, at + 1)] for whole in request.wholes]
            opened = not at and _opens(tokens, positions, column, request.prompt, record.pad)
            if opened or any(_begins(tokens, column, text) for text in rest):
                begun[column] = number
                break
    return begun


def segments(record: Record, call: Call, row: int, places: Places, begun: dict[int, int]) -> list[range]:
    """The columns of a row that holds several requests, cut where one ends and the next begins.

    A column belongs to the request whose digest it has, else to the one most of whose entries it sees, and else,
    where it sees none but those of its own call, to the segment that these belong to. Where a request has begun by its
    text, a column that goes on seeing it belongs to it, whatever else it sees. A column that sees only itself tells
    nothing: it belongs to the segment before it, if it goes on there by its text or its position.
    """
    slots = writes(call, row)
    tokens, positions = call.tokens[row].tolist(), call.positions[row].tolist()
    prompts = [request.prompt for request in record.requests]
    owners: list[int] = []
    edges: list[int] = []
    for column in range(call.tokens.shape[1]):
        seen = [slots[slot] for slot in np.flatnonzero(call.visible[row, column])]
        votes = Counter(
            record.of[write].request for write in seen if write in record.of and record.of[write].what == "token"
        )
        exact = [request for request, _ in places[column]]
        own = [owners[at] for number, _, at in seen if number == call.number and at < column]
        next_to = column > 0 and positions[column] == positions[column - 1] + 1
        goes_on = False
        if owners and owners[-1] >= 0 and not votes and not own:
            at = positions[edges[-1]] + column - edges[-1]
            begins = any(_begins(tokens, column, prompt) for n, prompt in enumerate(prompts) if n not in owners)
            goes_on = record.is_at(owners[-1], at, tokens[column]) or (next_to and not begins)
        if column in begun:
            owner = begun[column]
        elif goes_on or (edges and edges[-1] in begun and owners[-1] in {*votes, *own} and not exact):
            owner = owners[-1]
        elif exact:
            owner = max(exact, key=lambda r: (votes[r], r == owners[-1] if owners else False))
        else:
            owner = max(votes, key=lambda r: votes[r], default=own[-1] if own else -1)
        if not owners or column in begun or owner != owners[-1] or not (own or (next_to and owner >= 0)):
            edges.append(column)
        owners.append(owner)
    return [range(a, b) for a, b in zip(edges, [*edges[1:], len(owners)], strict=True)]


def sees_twins(call: Call, row: int, column: int) -> bool:
    """Return whether a query sees two columns of its call at one position: no path of a tree has these both."""
    slots = zip(writes(call, row), call.visible[row, column], strict=True)
    own = [write[2] for write, shown in slots if shown and write[0] == call.number]
    return len(set(call.positions[row, own].tolist())) < len(own)
