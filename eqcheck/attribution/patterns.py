"""Masks that are wrong by a pattern: what the columns of a block attend to, where one sentence says it for all of them.

A mask fault is read at one query, and the smallest case has few slots. The mask of the whole block shows what the
decoder does: a triangle that is anchored at slot 0 though something is cached, or no order at all.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from eqcheck.attribution.record import Record, Write
from eqcheck.explanation.records import Deviation
from eqcheck.explanation.statements import NOTHING, Statement, state
from eqcheck.hashlm.hashing import CALL, Bools
from eqcheck.hashlm.trace import Call


def _top_left(shown: Bools, fed: int) -> bool:
    """Return whether column c sees slots 0..c, where as many are fed behind cached ones."""
    columns, slots = shown.shape
    return fed < slots and bool((shown == (np.arange(slots) <= np.arange(columns)[:, None])).all())


def _no_order(shown: Bools, fed: int) -> bool:
    """Return whether every column sees every slot."""
    return bool(shown.all())


_PATTERNS: dict[str, tuple[str, Callable[[Bools, int], bool]]] = {
    "token-hidden": ("top-left", _top_left),
    "future-visible": ("no-order", _no_order),
}


def of_mask(root: Deviation, write: Write, record: Record) -> Statement:
    """The pattern of the mask of the block in which a query is at fault; nothing where there is none."""
    if root.component != "mask" or root.kind not in _PATTERNS:
        return NOTHING
    name, fits = _PATTERNS[root.kind]
    call, row = record.calls[write[0]], write[1]
    if not _fits(call, row, fits):
        return NOTHING
    request = record.of[write].request
    blocks = [
        (record.calls[number], batch_row)
        for number in record.rounds[request]
        for batch_row in range(len(record.calls[number].tokens))
        if any(label.request == request for label in record.labels(record.calls[number], batch_row))
    ]
    every = name == "no-order"
    asked = [(block, at) for block, at in blocks if block.tokens.shape[1] > 1 and (every or _cached(block, at))]
    here = {"call": call.number, "columns": call.tokens.shape[1]}
    if len(asked) < 2:
        return state(name, **here)
    return state(f"{name}-often", **here, alike=sum(_fits(block, at, fits) for block, at in asked), calls=len(asked))


def _cached(call: Call, row: int) -> bool:
    return bool((call.kv[0][0, row, 0, :, CALL] != call.number).any())


def _fits(call: Call, row: int, fits: Callable[[Bools, int], bool]) -> bool:
    fed = int((call.kv[0][0, row, 0, :, CALL] == call.number).sum())
    return call.tokens.shape[1] > 1 and fits(call.visible[row], fed)
