"""Define how an edit of what is seen is written."""

from __future__ import annotations

from typing import Any

from eqcheck.abduction.program import RIGHT_ANEW, Recomputation, Turn
from eqcheck.abduction.simulation import Change, ContextEdit, Simulation

LINE = ("separate/own", "separate/least")
OWN = ("separate/own",)
BLOCKS = (4, 8, 16, 32)


def edit(
    fingerprint: str,
    id: str,
    words: str,
    places: tuple[str, ...] = (),
    amounts: tuple[int, ...] = (0,),
    anew: Recomputation = RIGHT_ANEW,
    scope: str = "",
    **changes: Any,
) -> ContextEdit:
    """An edit, by its changes."""
    return ContextEdit(fingerprint, id, words, places, amounts, Change(**changes), anew, scope)


def turns_before(sim: Simulation, row: int) -> list[Turn]:
    """The turns of a row before this round."""
    return [turn for turns in sim.rounds[: sim.number] for turn in turns if turn.row == row]
