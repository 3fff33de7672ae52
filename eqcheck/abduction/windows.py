"""Edits of a target's windows."""

from __future__ import annotations

from eqcheck.abduction.blocks import FedBlock
from eqcheck.abduction.edits import BLOCKS, OWN, edit, turns_before
from eqcheck.abduction.simulation import Simulation


def _least(sim: Simulation, at: int, layer: int, wider: int = 0) -> int:
    """The first position in the window of a place."""
    window = sim.evidence.windows[layer]
    return at - window - wider + 1 if window else 0


def _rejected(sim: Simulation, block: FedBlock) -> int:
    """Return how many draft tokens were rejected in the round of the row before."""
    return sum(len(turn.drafts) - turn.accepted for turn in turns_before(sim, block.turn.row)[-1:])


def _width(sim: Simulation) -> int:
    """The window of the layers that have one."""
    return max(sim.evidence.windows.values())


def _unless(wide: bool, sim: Simulation, at: int, layer: int) -> int:
    return 0 if wide else _least(sim, at, layer)


def _other_layer(sim: Simulation, block: FedBlock, at: int, layer: int) -> int:
    """One layer has a window in place of none, or none in place of its own."""
    if layer != sim.context.amount:
        return _least(sim, at, layer)
    return 0 if sim.evidence.windows[layer] else at - _width(sim) + 1


def _end(block: FedBlock) -> int:
    """The last position of a block."""
    return block.start + len(block.tokens) - 1


def _span_lost(sim: Simulation, at: int, place: int, inside: bool) -> bool:
    """Behind a cached prefix, whose length is the amount, some of its blocks are not there."""
    return inside and not (at >= sim.context.amount and sim.context.token <= place < sim.context.source)


def _section(sim: Simulation, block: FedBlock, at: int, layer: int) -> int:
    """The first position of the section of a place, sections being as long as a window."""
    window = sim.evidence.windows[layer]
    return at // window * window if window else 0


def _aligned(sim: Simulation, block: FedBlock, at: int, layer: int) -> int:
    """The first position of the block in which the window begins."""
    return _least(sim, at, layer) // sim.context.amount * sim.context.amount


def _border_freed(sim: Simulation, block: FedBlock, at: int, layer: int) -> int:
    """The first position behind the block in which the window begins when the row is fed."""
    size, window = sim.context.amount, sim.evidence.windows[layer]
    return max(_least(sim, at, layer), (block.start - window + size) // size * size) if window else 0


def _places_lost(sim: Simulation, block: FedBlock, at: int, layer: int) -> int:
    """The first position in a ring in which rejected tokens keep their places; the amount is as in `_overwritten`."""
    row, window = block.turn.row, sim.evidence.windows[layer]
    written = [entry for entry, own in enumerate(sim.rows) if own == row][-(window + sim.context.amount) :]
    there = [place for place, entry in sim.paths[row].items() if entry >= written[0]]
    return max(_least(sim, at, layer), min(there)) if window else 0


def _without_freed(sim: Simulation, block: FedBlock, rank: int) -> int:
    """Positions do not count the blocks that are behind the window; the amount is how long blocks are."""
    size = sim.context.amount
    return block.start + rank - max(0, block.start - _width(sim) + 1) // size * size


def _overwritten(sim: Simulation, block: FedBlock, at: int, layer: int) -> int:
    """The first position that is there in a ring with some more slots than the window."""
    least, window, newest = (
        _least(sim, at, layer),
        sim.evidence.windows[layer],
        max(_end(block), sim.reached[block.turn.row] - 1),
    )
    return max(least, newest - window - sim.context.amount + 1) if window else least


def _freed(sim: Simulation, block: FedBlock, at: int, layer: int) -> int:
    """The first position in blocks that are there, if all tokens of the round before had been accepted.

    The amount is how long blocks are.
    """
    size, least, window = sim.context.amount, _least(sim, at, layer), sim.evidence.windows[layer]
    return max(least, (sim.reached[block.turn.row] - window + 1) // size * size) if window else least


def _of_step(sim: Simulation, block: FedBlock, at: int, layer: int) -> int:
    """The first position that a window as long as the block would have, if that is shorter."""
    least = _least(sim, at, layer)
    return max(least, at - len(block.tokens) + 1) if sim.evidence.windows[layer] and sim.number else least


def _come_round(sim: Simulation, block: FedBlock, rank: int) -> int:
    windows = sim.evidence.windows
    return (block.start + rank) % max(windows.values()) if windows else block.start + rank


# fmt: off
WINDOWS = (
    edit("position/query-position", "positions-come-round", "position ids restart at 0 once a window is full", OWN,
         scope="windows", position=_come_round),
    # Here and below, where blocks of a cache matter, the amount is how long they are.
    edit("position/query-position", "positions-without-freed",
         "position ids count only the blocks that a window still holds",
         OWN, BLOCKS, scope="windows", position=_without_freed),
    edit("mask/window", "window-width", "windows are a few tokens too wide or too narrow", OWN, (-2, -1, 1, 2),
         scope="windows", least=lambda sim, block, at, layer: _least(sim, at, layer, sim.context.amount)),
    edit("mask/window", "window-width-late", "after a rejection windows are a few tokens too wide or too narrow", OWN,
         (-2, -1, 1, 2), scope="windows",
         least=lambda sim, block, at, layer: _least(sim, at, layer, sim.context.amount * (_rejected(sim, block) > 0))),
    edit("mask/window", "window-by-rejected",
         "after a rejection windows are too wide or too narrow by the number of rejected tokens",
         OWN, (-1, 1), scope="windows",
         least=lambda sim, block, at, layer: _least(sim, at, layer, sim.context.amount * _rejected(sim, block))),
    edit("mask/window", "no-window", "layers with a window attend to all tokens", OWN,
         scope="windows", least=lambda sim, block, at, layer: 0),
    edit("mask/window", "no-window-in-blocks", "layers with a window attend to all tokens after the prompt", OWN,
         scope="windows",
         least=lambda sim, block, at, layer: _unless(at >= len(sim.evidence.prompts[block.turn.row]), sim, at, layer)),
    edit("mask/window", "no-window-in-prompts", "layers with a window attend to all tokens in the prompt", OWN,
         scope="windows",
         least=lambda sim, block, at, layer: _unless(at < len(sim.evidence.prompts[block.turn.row]), sim, at, layer)),
    # The amount is the layer.
    edit("mask/window", "window-of-another-layer", "one layer has a window that it should not have, or lacks its own",
         OWN, tuple(range(6)), scope="windows", least=_other_layer),
    edit("mask/window", "window-of-the-first", "all tokens of a block use the window of its first token", OWN,
         scope="windows", least=lambda sim, block, at, layer: _least(sim, block.start, layer)),
    edit("mask/window", "window-of-the-last", "all tokens of a block use the window of its last token", OWN,
         scope="windows", least=lambda sim, block, at, layer: _least(sim, _end(block), layer)),
    edit("mask/window", "window-of-step", "windows are no longer than the block fed, once something is cached",
         OWN, scope="windows", least=_of_step),
    edit("mask/window", "window-in-blocks", "windows begin where a block of the cache begins", OWN, BLOCKS,
         scope="windows", least=_aligned),
    edit("mask/window", "window-in-sections", "tokens attend to fixed sections of the text instead of a window", OWN,
         scope="windows", least=_section),
    edit("mask/window", "sinks-seen", "the first tokens of a row stay attended outside the window", OWN,
         tuple(range(1, 9)), scope="windows", near=lambda sim, at, place, inside: inside or place < sim.context.amount),
    # The amount is by how many slots there are more than a window has.
    edit("cache/missing-entry", "window-overwritten", "a block overwrites slots that are still in the window",
         OWN, (0, 1, 2, 3, 4), scope="windows", least=_overwritten),
    edit("cache/missing-entry", "window-freed", "blocks are freed as if all draft tokens were accepted",
         OWN, BLOCKS, scope="windows", least=_freed),
    edit("cache/missing-entry", "window-border-freed", "the block in which a window begins is freed", OWN, BLOCKS,
         scope="windows", least=_border_freed),
    edit("cache/missing-entry", "window-places-lost",
         "rejected draft tokens keep their slots, and blocks overwrite slots that are still in the window", OWN,
         (*range(9), 16, 24), scope="windows", least=_places_lost),
    edit("cache/missing-entry", "window-lost",
         "from token {position} on, layers with a window do not attend to tokens {begin} to {end}",
         scope="windows", near=_span_lost),
)
# fmt: on
