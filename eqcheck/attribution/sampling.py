"""The origin of each sampled token: accepted, in place of a refused draft token, a bonus, or without a draft.

A token counts only if a query with exactly the right context stands behind it. A draft token counts only if the draft
was asked for it in its right context, too.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

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


def marks(run: Run, rows: set[int]) -> dict[int, list[list[Mark]]]:
    """The marks of the tokens of each round of these rows, as far as they can be read."""
    by_row: dict[int, list[list[Mark]]] = defaultdict(list)
    for own in run.rounds.every:
        if own.row not in rows or own.last + 1 < own.known:
            continue
        start, number, text = own.start, own.call.number, run.truth.uncut[own.row]
        fed, behind = own.refused, own.known - start
        role = "corrected" if fed else "bonus" if own.accepted else "plain"
        refused = tuple(own.call.digests[own.call_row, list(own.columns)].tolist())
        told = [("accepted", text[at], at, ()) for at in range(behind, min(own.answered, len(text)))]
        told.append((role, fed[0] if fed else -1, own.answered, refused))
        of_round = [
            Mark(
                own.row,
                at,
                role,
                draft,
                number,
                at - behind,
                run.rounds.proposed(own.row, start + at - 1, number),
                there,
            )
            for role, draft, at, there in told
            if at < len(run.truth.rows[own.row])
        ]
        if of_round:
            by_row[own.row].append(of_round)
    return by_row
