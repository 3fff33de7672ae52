"""Where each sampled token came from: accepted, in place of a refused draft token, a bonus, or without a draft.

It is read from the target's calls. Only tokens count that a query with exactly the right context stands behind, and of
draft tokens those that the draft was asked for in its right context.
"""

from __future__ import annotations

from typing import NamedTuple

from eqcheck.attribution.parts import parts, places
from eqcheck.attribution.proposals import Proposals
from eqcheck.decoding.run import Run


class Mark(NamedTuple):
    """One new token: its row and index ``at``, its role, and the draft token that was verified there (-1: none).

    ``role`` is ``accepted``, ``corrected``, ``bonus`` (behind draft tokens that were all accepted) or ``plain`` (no
    draft token was verified in the call). ``call`` is the target's call that answered it, ``column`` how many draft
    tokens stand before it in that call's block. ``drafted``: the draft was asked for the token in its right context.
    ``refused`` are the final digests of the target's queries that were fed draft tokens refused here, in order.
    """

    row: int
    at: int
    role: str
    draft: int
    call: int
    column: int
    drafted: bool
    refused: tuple[int, ...] = ()


def marks(run: Run, rows: set[int]) -> tuple[Mark, ...]:
    """The marks of these rows' tokens, as far as they can be read."""
    right = places(run)
    proposals = Proposals(run)
    found: list[Mark] = []
    for part in parts(run, right):
        row = part.request
        if row not in rows or part.last + 1 < part.known:
            continue
        start, number, text = len(run.case.prompts[row]), part.call.number, run.truth.uncut[row]
        count = len(run.truth.rows[row])
        for position in range(part.known, part.last + 1):
            if position - start < count:
                drafted = proposals.proposed(row, position - 1, number)
                token = text[position - start]
                found.append(Mark(row, position - start, "accepted", token, number, position - part.known, drafted))
        index = part.last + 1 - start
        if index < count:
            fed, column = part.refused, part.accepted
            drafted = proposals.proposed(row, part.last, number)
            role = "corrected" if fed else "bonus" if column else "plain"
            refused = tuple(part.call.digests[part.call_row, list(part.columns)].tolist())
            found.append(Mark(row, index, role, fed[0] if fed else -1, number, column, drafted, refused))
    return tuple(found)
