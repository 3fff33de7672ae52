"""Where each sampled token came from: accepted, in place of a refused draft token, a bonus, or without a draft.

It is read from the target's calls. Only tokens count that a query with exactly the right context stands behind, and of
draft tokens those that the draft was asked for in its right context.
"""

from __future__ import annotations

from typing import NamedTuple

from eqcheck.attribution.parts import parts, places
from eqcheck.attribution.proposals import Proposals
from eqcheck.harness import Run


class Mark(NamedTuple):
    """One new token: its row and index ``at``, its role, and the draft token that was verified there (-1: none).

    ``role`` is ``accepted``, ``corrected``, ``bonus`` (behind draft tokens that were all accepted) or ``plain`` (no
    draft token was verified in the call). ``call`` is the target's call that answered it, ``column`` how many draft
    tokens stand before it in that call's block. ``drafted``: the draft was asked for the token in its right context.
    ``behind`` is the final digest of the target's query that was fed the refused draft token (0: there is none);
    ``more``: other draft tokens stand behind it.
    """

    row: int
    at: int
    role: str
    draft: int
    call: int
    column: int
    drafted: bool
    behind: int = 0
    more: bool = False


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
            refused, column = part.refused, part.accepted
            drafted = proposals.proposed(row, part.last, number)
            role = "corrected" if refused else "bonus" if column else "plain"
            behind = int(part.call.digests[part.call_row, part.columns[0]]) if refused else 0
            found.append(
                Mark(row, index, role, refused[0] if refused else -1, number, column, drafted, behind, len(refused) > 1)
            )
    return tuple(found)
