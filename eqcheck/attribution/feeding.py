"""Another token that is fed in the place of a row's newest one, which no call feeds."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

import numpy as np

from eqcheck.attribution.bookkeeping import Told, WrongToken
from eqcheck.attribution.labels import Labels
from eqcheck.attribution.record import Write, writes
from eqcheck.attribution.sources import Sources
from eqcheck.contract.family import Family
from eqcheck.explanation.statements import Statement, state, together
from eqcheck.hashlm.trace import Call


def fed_instead(labels: Labels, sources: Sources, family: Family, asked: WrongToken) -> Told | None:
    """The token that a call feeds in the place of the row's newest one, and whose prediction was returned.

    It stands behind exactly the row's entries, at the distance of the next token, so it is in that place; and the
    newest token was predicted before, but not fed for the row. None where a query stands for that token by then, or
    there is no such call.
    """
    row, position = asked.row, asked.position
    if asked.ends or (asked.blamed and not asked.loosely):
        return None
    # A rejected draft token is fed behind the token that is newest then: what follows that is not known yet.
    known = [write[0] for write, label in labels.queries(row, position - 1) if label.exact] if asked.index else [0]
    asking = min((write[0] for write, _ in labels.queries(row, position)), default=inf)
    for call in labels.calls.values():
        if call.number <= max(sources.run.trace.given, min(known, default=inf)):
            continue
        if call.number >= asking:
            return None
        if _feeds(labels, call, row, labels.sequence(row)[position]):
            return None  # it may stand for the newest token, in a row of the call that is not recognised
        for write in _in_place_of(labels, family, call, asked):
            said = _said(labels, sources, asked, write)
            return Told("wrong-token-fed", said, call.number, "")
    return None


def _feeds(labels: Labels, call: Call, row: int, token: int) -> bool:
    """Return whether a call feeds a token for a row, or for no row that is known; pads do not count."""
    own = (labels.of[call.number, int(at), int(column)] for at, column in np.argwhere(call.tokens == token))
    return any(label.request in (row, -1) and label.what != "pad" for label in own)


def _in_place_of(labels: Labels, family: Family, call: Call, asked: WrongToken) -> Iterator[Write]:
    """The queries that predicted the returned token, and see the row up to its newest token, but for that itself."""
    before = list(range(family.first_seen(asked.position), asked.position))
    for row, column in np.argwhere(call.predictions == asked.observed).tolist():
        write = (call.number, row, column)
        slots = writes(call, row)
        seen = [slot for slot in np.flatnonzero(call.visible[row, column]).tolist() if slots[slot] != write]
        held = [labels.of.get(slots[slot]) for slot in seen]
        own = [label.position for label in held if label and label.exact and labels.same(label, asked.row)]
        if labels.of[write].exact or sorted(own) != before or len(held) != len(before):
            continue
        distances = {int(call.places[row, column] - call.key_places[row, slot]) for slot in seen[-1:]}
        last = max(own, default=asked.position - 1)
        if distances <= {asked.position - last}:
            yield write


def _said(labels: Labels, sources: Sources, asked: WrongToken, write: Write) -> Statement:
    row, position, sequence, call = asked.row, asked.position, labels.sequence(asked.row), write[0]
    fed, unfed = sources.fed(write), sequence[position]
    names = {
        "fed-before": position > 0 and fed == sequence[position - 1],
        "fed-pad": fed == labels.pad,
        "fed-drafted": fed in sources.proposed(row, position - 1),
        "fed-other": True,
    }
    name = next(name for name, applies in names.items() if applies)
    newest: dict[str, int] = {"unfed": unfed, "call": call}
    first = state("newest-unfed", before=asked.index - 1, **newest) if asked.index else state("prompt-unfed", **newest)
    there = state(name, fed=fed, call=call, batch_row=write[1], position=position)
    return together(first, there, state("answer-to-it"))
