"""Edits of a beginning that is cached already, when a request comes that begins like an earlier one."""

from __future__ import annotations

from eqcheck.abduction.blocks import GONE, FedBlock, HeldToken, RowView
from eqcheck.abduction.edits import OWN, edit
from eqcheck.abduction.simulation import Simulation
from eqcheck.checkpoints.dictation import agreeing


def _behind_hit(sim: Simulation, block: FedBlock, rank: int) -> int:
    at = block.start + rank
    return at - sim.context.token if at >= sim.context.token else at


def _hit(sim: Simulation, row: int) -> int:
    """Return how many tokens of a row are taken to be cached: all that it has in common with an earlier row."""
    prompt, earlier = sim.evidence.prompts[row], sim.evidence.texts[:row]
    return min(max((agreeing(prompt, text) for text in earlier), default=0), len(prompt) - 1)


def _short(sim: Simulation, block: FedBlock, rank: int) -> int:
    """Positions, where the end of a hit is missing; the amount is by how many tokens."""
    at, hit = block.start + rank, _hit(sim, block.turn.row)
    return at - min(hit, sim.context.amount) if at >= hit else at


def _end_missing(sim: Simulation, block: FedBlock, view: RowView) -> RowView:
    hit = _hit(sim, block.turn.row)
    missing = range(hit - sim.context.amount, hit)
    seen = [None if slot.at in missing else column for slot, column in zip(view.slots, view.seen, strict=True)]
    return RowView(view.slots, view.held, seen, view.begin)


def _unwritten(sim: Simulation, block: FedBlock, view: RowView) -> RowView:
    """The last token of an earlier row, if that ended where a block does, is an empty slot; the amount is its length.

    It was emitted and never fed, so its entry is missing from a cache that counts it.
    """
    size, prompt, earlier = sim.context.amount, sim.evidence.prompts[block.turn.row], sim.evidence.texts
    whole = [text for text in earlier[: block.turn.row] if agreeing(prompt, text) == len(text) < len(prompt)]
    empty = {len(text) - 1 for text in whole if len(text) % size == 0}
    pairs = zip(view.slots, view.seen, strict=True)
    seen = [sim.program.blank() if slot.at in empty else column for slot, column in pairs]
    return RowView(view.slots, view.held, seen, view.begin)


def _of_another(sim: Simulation, block: FedBlock, view: RowView) -> RowView:
    """Tokens of another row replace the row's own at the same positions, from the source to the token."""
    begin, end = sim.context.source, sim.context.token
    others = sim.held[sim.context.amount][begin:end]
    own = [None if begin <= slot.at < end else column for slot, column in zip(view.slots, view.seen, strict=True)]
    slots = [*[HeldToken(GONE, 0)] * len(others), *view.slots]
    return RowView(slots, [*others, *view.held], [*others, *own], view.begin + len(others))


def _not_before(sim: Simulation, row: int, view: RowView, query: int, visible: list[int]) -> list[int]:
    """Tokens before the hit's end see the row's own."""
    if view.slots[query].at >= sim.context.token:
        return visible
    return [column for column, slot in zip(view.held[: query + 1], view.slots, strict=False) if slot.at >= 0]


# fmt: off
PREFIXES = (
    edit("position/query-position", "positions-behind-hit",
         "the first {position} tokens come from the prefix cache, and position ids after them restart at 0",
         position=_behind_hit),
    edit("cache/missing-entry", "hit-short",
         "a prefix cache hit restores one or two tokens too few, and position ids continue without them", OWN, (1, 2),
         scope="prefix", position=_short, place=_short, view=_end_missing),
    edit("cache/missing-entry", "hit-unwritten",
         "a row reuses the cache of an earlier request, whose last token was never written to it", OWN, (1, 16, 32),
         scope="prefix", view=_unwritten),
    edit("cache/wrong-row", "hit-of-another",
         "tokens {begin} to {end} are taken from the prefix cache, and those of row {row} are attended to instead",
         scope="prefix", view=_of_another, query=_not_before),
)
# fmt: on
