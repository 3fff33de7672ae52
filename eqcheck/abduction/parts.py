"""Edits of parts of a target: of its windows, and of the states that its layers without attention have."""

from __future__ import annotations

from typing import Any

from eqcheck.abduction.blocks import FedBlock, Rollback
from eqcheck.abduction.program import EMPTY, RIGHT_ANEW, Recomputation, Turn
from eqcheck.abduction.simulation import Change, ContextEdit, Simulation
from eqcheck.case.engine import PAD

LINE = ("separate/own", "separate/least")
OWN = ("separate/own",)
STATE = ("separate/own", "separate/prefilled")
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


def _least(sim: Simulation, at: int, layer: int, wider: int = 0) -> int:
    """The first position in the window of a place."""
    window = sim.evidence.windows[layer]
    return at - window - wider + 1 if window else 0


def _rejected(sim: Simulation, block: FedBlock) -> int:
    """How many draft tokens were rejected in the round of the row before."""
    earlier = (turn for turns in reversed(sim.rounds[: sim.number]) for turn in turns if turn.row == block.turn.row)
    before = next(earlier, None)
    return len(before.drafts) - before.accepted if before else 0


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


def _left(sim: Simulation) -> int | None:
    """The state that another row has left, if it has begun: with a token of 1, rejected drafts with it."""
    other = sim.context.amount
    if not sim.paths[other]:
        return None
    length = len(sim.evidence.texts[other])
    return max(sim.paths[other].values()) if sim.context.token else sim.at(other, length - 1)


def _ended(sim: Simulation, row: int, at: int) -> int | None:
    """Before its first token, the state that another row has left."""
    return None if at else _left(sim)


def _taken(sim: Simulation) -> None:
    """After a round, the state that another row has left."""
    row, left = sim.context.row, _left(sim)
    if row is not None and left is not None:
        sim.states[row] = left


def _behind_pads(sim: Simulation, row: int, at: int) -> int | None:
    """Before the first new token, the state after as many pads behind the prompt as the token says."""
    length = len(sim.evidence.prompts[row])
    if at != length:
        return None
    last = state = sim.at(row, length)
    for _ in range(sim.context.token):
        state = sim.twice(last, state)
        sim.program.tokens[state] = PAD
        sim.program.same.pop(state)
    return state


def _of_place(sim: Simulation, row: int, at: int) -> int | None:
    """At a place, the state that another row had after so many tokens."""
    return sim.paths[sim.context.amount].get(sim.context.source - 1) if at == sim.context.token else None


def _without_end(sim: Simulation, row: int, at: int) -> int | None:
    """Before the first new token, the state that the prompt had before a position."""
    return sim.at(row, sim.context.token) if at == len(sim.evidence.prompts[row]) else None


def _after(sim: Simulation, row: int, count: int) -> int:
    """The state of a row after so many tokens of its block."""
    return sim.at(row, sim.blocks[row].start + count) if count > 0 else sim.began[row]


def _count(sim: Simulation, back: Rollback) -> int:
    """How many tokens of its block a row keeps."""
    return back.length - sim.blocks[back.row].start


def _newest_lost(sim: Simulation, back: Rollback) -> int:
    return _after(sim, back.row, _count(sim, back) - (back.surplus > 0))


def _accepted_lost(sim: Simulation, back: Rollback) -> int:
    count = _count(sim, back)
    return _after(sim, back.row, count - (count > 1 and sim.number > 0))


def _last_of_all_lost(sim: Simulation, back: Rollback) -> int:
    whole = back.surplus == 0 and sim.blocks[back.row].turn.drafts
    return _after(sim, back.row, _count(sim, back) - bool(whole))


def _rejected_taken(sim: Simulation, back: Rollback) -> int:
    return _after(sim, back.row, _count(sim, back) + min(back.surplus, sim.context.amount))


def _turns(sim: Simulation, row: int) -> list[Turn]:
    """The turns of a row before this round."""
    return [turn for turns in sim.rounds[: sim.number] for turn in turns if turn.row == row]


def _back_to_block(sim: Simulation, back: Rollback) -> int:
    """Where a block of the cache ends within what a round accepts, the state at its end; the amount is its length."""
    end = back.length // sim.context.amount * sim.context.amount
    crossed = sim.number > 0 and end > sim.blocks[back.row].start
    return sim.at(back.row, end if crossed else back.length)


def _bonus_twice(sim: Simulation, row: int, at: int) -> int | None:
    """Before the token behind a block that was accepted whole, the state into which it has gone once."""
    turns = _turns(sim, row)
    if not turns or at != turns[-1].end - 1 or not 0 < len(turns[-1].drafts) == turns[-1].accepted:
        return None
    state = sim.twice(sim.states[row], sim.states[row])
    sim.program.same[state] = state + 1  # its codes are those of the entry that is written next
    return state


def _newest_twice(sim: Simulation, back: Rollback) -> int:
    """After a rejection the newest token that is kept enters a second time."""
    entry = sim.at(back.row, back.length)
    return sim.twice(entry, entry) if back.surplus and sim.number else entry


def _of_fewer(sim: Simulation, back: Rollback) -> int:
    """Before a round without drafts, the state after as many tokens of the round before as the amount says."""
    turns = [turn for turns in sim.rounds[sim.number + 1 :] for turn in turns if turn.row == back.row]
    short = sim.number > 0 and turns and not turns[0].drafts
    return _after(sim, back.row, sim.context.amount if short else _count(sim, back))


def _state_of_next(sim: Simulation, back: Rollback) -> int:
    other = (back.row + 1) % len(sim.paths)
    return sim.paths[other][max(sim.paths[other])] if sim.paths[other] else EMPTY


def _block_of_next(sim: Simulation, back: Rollback) -> int:
    rows = list(sim.blocks)
    other = rows[(rows.index(back.row) + 1) % len(rows)]
    count = min(_count(sim, back), len(sim.blocks[other].tokens))
    return _after(sim, other, count) if back.surplus else sim.at(back.row, back.length)


def _come_round(sim: Simulation, block: FedBlock, rank: int) -> int:
    windows = sim.evidence.windows
    return (block.start + rank) % max(windows.values()) if windows else block.start + rank


# fmt: off
PARTS = (
    edit("position/query-position", "positions-come-round", "positions begin again at 0 where a window is full", OWN,
         scope="windows", position=_come_round),
    # Here and below, where blocks of a cache matter, the amount is how long they are.
    edit("position/query-position", "positions-without-freed", "positions count the blocks that a window still has",
         OWN, BLOCKS, scope="windows", position=_without_freed),
    edit("mask/window", "window-width", "windows are of another width, by some tokens", OWN, (-2, -1, 1, 2),
         scope="windows", least=lambda sim, block, at, layer: _least(sim, at, layer, sim.context.amount)),
    edit("mask/window", "window-width-late", "after a rejection windows are of another width, by some tokens", OWN,
         (-2, -1, 1, 2), scope="windows",
         least=lambda sim, block, at, layer: _least(sim, at, layer, sim.context.amount * (_rejected(sim, block) > 0))),
    edit("mask/window", "window-by-rejected", "after a rejection windows are of another width, by the rejected tokens",
         OWN, (-1, 1), scope="windows",
         least=lambda sim, block, at, layer: _least(sim, at, layer, sim.context.amount * _rejected(sim, block))),
    edit("mask/window", "no-window", "layers with a window see all tokens", OWN,
         scope="windows", least=lambda sim, block, at, layer: 0),
    edit("mask/window", "no-window-in-blocks", "layers with a window see all tokens behind the prompt", OWN,
         scope="windows",
         least=lambda sim, block, at, layer: _unless(at >= len(sim.evidence.prompts[block.turn.row]), sim, at, layer)),
    edit("mask/window", "no-window-in-prompts", "layers with a window see all tokens in the prompt", OWN,
         scope="windows",
         least=lambda sim, block, at, layer: _unless(at < len(sim.evidence.prompts[block.turn.row]), sim, at, layer)),
    # The amount is the layer.
    edit("mask/window", "window-of-another-layer", "one layer has a window in place of none, or none in place of one",
         OWN, tuple(range(6)), scope="windows", least=_other_layer),
    edit("mask/window", "window-of-the-first", "all tokens of a block have the window of its first", OWN,
         scope="windows", least=lambda sim, block, at, layer: _least(sim, block.start, layer)),
    edit("mask/window", "window-of-the-last", "all tokens of a block have the window of its last", OWN,
         scope="windows", least=lambda sim, block, at, layer: _least(sim, _end(block), layer)),
    edit("mask/window", "window-in-blocks", "windows begin where a block of the cache begins", OWN, BLOCKS,
         scope="windows", least=_aligned),
    edit("mask/window", "window-in-sections", "tokens see a section of the text in place of a window", OWN,
         scope="windows", least=_section),
    edit("mask/window", "sinks-seen", "the first tokens of a row stay in sight behind a window", OWN,
         tuple(range(1, 9)), scope="windows", near=lambda sim, at, place, inside: inside or place < sim.context.amount),
    # The amount is by how many slots there are more than a window has.
    edit("cache/missing-entry", "window-overwritten", "a block is written over slots that are still in the window",
         OWN, (0, 1, 2, 3, 4), scope="windows", least=_overwritten),
    edit("cache/missing-entry", "window-freed", "blocks are given back as if all draft tokens were accepted",
         OWN, BLOCKS, scope="windows", least=_freed),
    edit("cache/missing-entry", "window-border-freed", "the block in which a window begins is given back", OWN, BLOCKS,
         scope="windows", least=_border_freed),
    edit("cache/missing-entry", "window-places-lost",
         "rejected draft tokens keep their slots, and blocks are written over slots that are still in the window", OWN,
         (*range(9), 16, 24), scope="windows", least=_places_lost),
    edit("cache/missing-entry", "window-lost",
         "from position {position} on, layers with a window do not see the tokens from position {begin} to {end}",
         scope="windows", near=_span_lost),
    edit("cache/stale-entry", "state-keeps-rejected", "rejected draft tokens stay in the recurrent state", STATE,
         scope="state", state=lambda sim, back: sim.states[back.row]),
    edit("cache/stale-entry", "state-first-rejected", "the first rejected draft tokens stay in the recurrent state",
         STATE, (1, 2), scope="state", state=_rejected_taken),
    edit("cache/missing-entry", "state-last-of-all-lost",
         "where all draft tokens are accepted, the recurrent state misses the last", STATE,
         scope="state", state=_last_of_all_lost),
    edit("cache/missing-entry", "state-back-to-block",
         "where a block of the cache ends within the accepted tokens, the recurrent state misses what is behind it",
         STATE, BLOCKS, scope="state", state=_back_to_block),
    edit("cache/missing-entry", "state-of-the-round-before",
         "after a rejection the recurrent state is the one before the round, and accepted tokens are missing", STATE,
         scope="state", state=lambda sim, back: sim.began[back.row] if back.surplus else sim.at(back.row, back.length)),
    edit("cache/missing-entry", "state-newest-lost",
         "after a rejection the recurrent state misses the newest accepted token", STATE,
         scope="state", state=_newest_lost),
    edit("cache/missing-entry", "state-accepted-lost",
         "after each round the recurrent state misses the last accepted draft token", STATE,
         scope="state", state=_accepted_lost),
    edit("cache/missing-entry", "state-reset", "after a rejection the recurrent state is empty", STATE,
         scope="state", state=lambda sim, back: EMPTY if back.surplus else sim.at(back.row, back.length)),
    edit("cache/missing-entry", "state-cut", "the recurrent state is empty before position {position}", scope="state",
         follows=lambda sim, row, at: EMPTY if at == sim.context.token else None),
    edit("cache/missing-entry", "state-without-end",
         "the recurrent state misses the prompt from position {position} on", scope="state", follows=_without_end),
    # The amount is how many tokens of the round before are in it.
    edit("cache/missing-entry", "state-of-fewer",
         "a round without drafts goes on from a recurrent state without the accepted tokens of the round before",
         STATE, (0, 1), scope="state", state=_of_fewer),
    edit("cache/duplicate-entry", "state-newest-twice",
         "after a rejection the recurrent state has the newest accepted token twice", STATE,
         scope="states", state=_newest_twice),
    edit("cache/duplicate-entry", "state-bonus-twice",
         "the token behind a block that is accepted whole enters the recurrent state twice", STATE,
         scope="states", follows=_bonus_twice),
    edit("mask/pad-visible", "state-pads-before", "the pads before a block enter the recurrent state",
         ("realigned/own", "holes/own", "cropped/least"), scope="states", pads_enter=True),
    edit("mask/pad-visible", "state-pads", "{count} pads behind the prompt enter the recurrent state",
         scope="states", follows=_behind_pads),
    edit("cache/wrong-row", "state-taken", "the recurrent state is the one that row {row} left", scope="state",
         after=_taken),
    edit("cache/wrong-row", "state-of-another", "the recurrent state of each row is the next row's", STATE,
         scope="state", state=_state_of_next),
    edit("cache/wrong-row", "state-of-another-block",
         "after a rejection the recurrent state is the next row's after as many tokens of its block",
         (*STATE, "separate/pairs"), scope="state", state=_block_of_next),
    edit("cache/wrong-row", "state-left", "the recurrent state begins as row {row} left it", scope="state",
         follows=_ended),
    edit("cache/wrong-row", "state-of-another-place",
         "at position {position} the recurrent state is the one that row {row} had after {count} tokens",
         scope="state", follows=_of_place),
)
# fmt: on
