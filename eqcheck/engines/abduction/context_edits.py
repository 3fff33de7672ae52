"""Edits of what a query attended to: positions, masks, slots, blocks, states, windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from eqcheck.core.case.engine import PAD
from eqcheck.engines.abduction.queries import EMPTY, RIGHT_ANEW, Recomputation, Turn
from eqcheck.engines.abduction.simulation import (
    GONE,
    PAD_SLOT,
    Change,
    ContextEdit,
    FedBlock,
    HeldToken,
    Rollback,
    RowView,
    Simulation,
)
from eqcheck.engines.checkpoints.dictation import agreeing

# Define how an edit of what is seen is written.

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


# Edits of a beginning that is cached already, when a request comes that begins like an earlier one.


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


# Edits of the states that a target's layers without attention have.

STATE = ("separate/own", "separate/prefilled")


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
    """Return how many tokens of its block a row keeps."""
    return back.length - sim.blocks[back.row].start


def _newest_lost(sim: Simulation, back: Rollback) -> int:
    return _after(sim, back.row, _count(sim, back) - (back.surplus > 0))


def _accepted_lost(sim: Simulation, back: Rollback) -> int:
    count = _count(sim, back)
    return _after(sim, back.row, count - (count > 1 and sim.number > 0))


def _whole(sim: Simulation, back: Rollback) -> bool:
    """Return whether there were drafts, and all were accepted."""
    return back.surplus == 0 and bool(sim.blocks[back.row].turn.drafts)


def _last_of_all_lost(sim: Simulation, back: Rollback) -> int:
    return _after(sim, back.row, _count(sim, back) - _whole(sim, back))


def _first_if_all(sim: Simulation, back: Rollback) -> int:
    return _after(sim, back.row, 1 if _whole(sim, back) else _count(sim, back))


def _rejected_taken(sim: Simulation, back: Rollback) -> int:
    return _after(sim, back.row, _count(sim, back) + min(back.surplus, sim.context.amount))


def _back_to_block(sim: Simulation, back: Rollback) -> int:
    """Where a block of the cache ends within what a round accepts, the state at its end; the amount is its length."""
    end = back.length // sim.context.amount * sim.context.amount
    crossed = sim.number > 0 and end > sim.blocks[back.row].start
    return sim.at(back.row, end if crossed else back.length)


def _bonus_twice(sim: Simulation, row: int, at: int) -> int | None:
    """Before the token behind a block that was accepted whole, the state into which it has gone once."""
    turns = turns_before(sim, row)
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


def _empty_if_none(sim: Simulation, back: Rollback) -> int:
    turn = sim.blocks[back.row].turn
    return EMPTY if turn.drafts and not turn.accepted else _after(sim, back.row, _count(sim, back))


# fmt: off
STATES = (
    edit("cache/stale-entry", "state-keeps-rejected", "rejected draft tokens stay in the recurrent state", STATE,
         scope="state", state=lambda sim, back: sim.states[back.row]),
    edit("cache/stale-entry", "state-keeps-first-rejected",
         "draft tokens fed with the prompt stay in the recurrent state, including rejected ones",
         ("separate/own", "separate/at once"), scope="state",
         state=lambda sim, back: sim.at(back.row, back.length) if sim.number else sim.states[back.row]),
    edit("cache/stale-entry", "state-first-rejected", "the first rejected draft tokens stay in the recurrent state",
         STATE, (1, 2), scope="state", state=_rejected_taken),
    edit("cache/missing-entry", "state-last-of-all-lost",
         "where all draft tokens are accepted, the recurrent state misses the last", STATE,
         scope="state", state=_last_of_all_lost),
    edit("cache/missing-entry", "state-back-to-block",
         "where a block of the cache ends within the accepted tokens, the recurrent state misses what comes after it",
         STATE, BLOCKS, scope="state", state=_back_to_block),
    edit("cache/missing-entry", "state-of-the-round-before",
         "after a rejection the recurrent state is that of before the round, and misses the accepted tokens", STATE,
         scope="state", state=lambda sim, back: sim.began[back.row] if back.surplus else sim.at(back.row, back.length)),
    edit("cache/missing-entry", "state-newest-lost",
         "after a rejection the recurrent state misses the newest accepted token", STATE,
         scope="state", state=_newest_lost),
    edit("cache/missing-entry", "state-accepted-lost",
         "after each round the recurrent state misses the last accepted draft token", STATE,
         scope="state", state=_accepted_lost),
    edit("cache/missing-entry", "state-reset", "after a rejection the recurrent state is empty", STATE,
         scope="state", state=lambda sim, back: EMPTY if back.surplus else sim.at(back.row, back.length)),
    edit("cache/missing-entry", "state-empty-if-none",
         "where all draft tokens are rejected, the recurrent state is empty", STATE,
         scope="state", state=_empty_if_none),
    edit("cache/missing-entry", "state-of-first-if-all",
         "where all draft tokens are accepted, the recurrent state is the one after the first token of the block",
         STATE, scope="state", state=_first_if_all),
    edit("cache/missing-entry", "state-cut", "the recurrent state is reset before token {position}", scope="state",
         follows=lambda sim, row, at: EMPTY if at == sim.context.token else None),
    edit("cache/missing-entry", "state-without-end",
         "the recurrent state misses the prompt from token {position} on", scope="state", follows=_without_end),
    # The amount is how many tokens of the round before are in it.
    edit("cache/missing-entry", "state-of-fewer",
         "a round without drafts continues from a recurrent state that misses the accepted tokens of the round before",
         STATE, (0, 1), scope="state", state=_of_fewer),
    edit("cache/duplicate-entry", "state-newest-twice",
         "after a rejection the recurrent state has the newest accepted token twice", STATE,
         scope="states", state=_newest_twice),
    edit("cache/duplicate-entry", "state-bonus-twice",
         "the token after a fully accepted block enters the recurrent state twice", STATE,
         scope="states", follows=_bonus_twice),
    edit("mask/pad-visible", "state-pads-before", "the pads before a block enter the recurrent state",
         ("realigned/own", "holes/own", "cropped/least"), scope="states", pads_enter=True),
    edit("mask/pad-visible", "state-pads", "{count} pads after the prompt enter the recurrent state",
         scope="states", follows=_behind_pads),
    edit("cache/wrong-row", "state-taken", "the recurrent state is what row {row} left", scope="state",
         after=_taken),
    edit("cache/wrong-row", "state-of-another", "the recurrent state of each row is the next row's", STATE,
         scope="state", state=_state_of_next),
    edit("cache/wrong-row", "state-of-another-block",
         "after a rejection the recurrent state is the next row's after as many tokens of its block",
         (*STATE, "separate/pairs"), scope="state", state=_block_of_next),
    edit("cache/wrong-row", "state-left", "the recurrent state starts as row {row} left it", scope="state",
         follows=_ended),
    edit("cache/wrong-row", "state-of-another-place",
         "at token {position} the recurrent state is that of row {row} after {count} tokens",
         scope="state", follows=_of_place),
)
# fmt: on


# Edits of a target's windows.


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


# Edits of what is seen, and what each changes in an engine; prefixes, windows and states have their own modules.


def _not_prefilled(zeroed: bool) -> Callable[[Simulation], None]:
    def start(sim: Simulation) -> None:
        for row in range(sim.context.amount, len(sim.held)):
            prompt = sim.evidence.prompts[row]
            sim.lengths[row] = len(prompt) - 1
            if zeroed:
                sim.held[row] = [sim.program.blank() for _ in prompt[:-1]]
                sim.slots[row] = [HeldToken(GONE, token, True) for token in prompt[:-1]]

    return start


def _moved(by: Callable[[Simulation, FedBlock], int]) -> Callable[[Simulation, FedBlock, int], int]:
    """All positions of a block shifted alike."""
    return lambda sim, block, rank: block.start + rank + by(sim, block)


def _like_another(sim: Simulation, block: FedBlock, rank: int) -> int:
    """Blocks end together; before a shorter one there are pads, at 0."""
    other = list(sim.blocks.values())[sim.context.amount]
    rank += len(other.tokens) - len(block.tokens)
    return other.start + rank if rank >= 0 else 0


def _shifted(concerned: Callable[[int], bool]) -> Callable[[Simulation, FedBlock, int], int]:
    """Positions of some ranks shifted, in all rounds but the first."""
    return lambda sim, block, rank: block.start + rank + sim.context.amount * (concerned(rank) and sim.number > 0)


def _restarted(sim: Simulation, block: FedBlock, rank: int) -> int:
    at = block.start + rank
    return at - sim.context.token if sim.context.token <= at < len(sim.evidence.prompts[block.turn.row]) else at


def _pads_at(sim: Simulation, block: FedBlock, rank: int) -> int:
    return block.start + rank if rank >= 0 else sim.context.amount


def _seen_too(which: Callable[[RowView, int], bool]) -> Callable[[Simulation, FedBlock, RowView], RowView]:
    """Some slots are attended to besides the ones that the mask shows."""

    def view(sim: Simulation, block: FedBlock, view: RowView) -> RowView:
        pairs = enumerate(zip(view.held, view.seen, strict=True))
        seen = [held if which(view, slot) else column for slot, (held, column) in pairs]
        return RowView(view.slots, view.held, seen, view.begin)

    return view


def _pad_id_hidden(sim: Simulation, block: FedBlock, view: RowView) -> RowView:
    seen = [None if slot.token == PAD else column for slot, column in zip(view.slots, view.seen, strict=True)]
    return RowView(view.slots, view.held, seen, view.begin)


def _mask_of_another(sim: Simulation, block: FedBlock, view: RowView) -> RowView:
    other = list(sim.blocks)[sim.context.amount]
    seen = [column if sim.visible(other, slot) else None for slot, column in enumerate(view.held)]
    return RowView(view.slots, view.held, seen, view.begin)


def _another(instead: bool) -> Callable[[Simulation, FedBlock, RowView], RowView]:
    """The columns that another row had before this round are attended to before the row's own, or in their place."""

    def view(sim: Simulation, block: FedBlock, view: RowView) -> RowView:
        other = sim.blocks.get(sim.context.amount)
        others = sim.held[sim.context.amount][: other.begin if other else None]
        own = [*[None] * view.begin, *view.seen[view.begin :]] if instead else view.seen
        slots = [*[HeldToken(GONE, 0)] * len(others), *view.slots]
        return RowView(slots, [*others, *view.held], [*others, *own], view.begin + len(others))

    return view


def _later(sim: Simulation, row: int, view: RowView, query: int, visible: list[int]) -> list[int]:
    later = view.seen[query + 1 : query + 2 + sim.context.amount]
    return [*visible, *(column for column in later if column is not None)]


def _not_itself(sim: Simulation, row: int, view: RowView, query: int, visible: list[int]) -> list[int]:
    return visible[:-1] if query > view.begin and view.seen[query] is not None else visible


def _cut_off(for_good: bool) -> Callable[[Simulation, int, RowView, int, list[int]], list[int]]:
    """The tokens before a cut in the prompt are hidden from the rest of the prompt, or from all tokens behind it."""

    def query(sim: Simulation, row: int, view: RowView, query: int, visible: list[int]) -> list[int]:
        at, cut = view.slots[query].at, sim.context.token
        if at < cut or not (for_good or at < len(sim.evidence.prompts[row])):
            return visible
        return [column for column, slot in zip(view.held[: query + 1], view.slots, strict=False) if slot.at >= cut]

    return query


def _swap(sim: Simulation) -> None:
    one, other = sim.context.row or 0, sim.context.amount
    sim.held[one], sim.held[other] = sim.held[other], sim.held[one]
    sim.slots[one], sim.slots[other] = sim.slots[other], sim.slots[one]


def _see_ended_row(sim: Simulation) -> None:
    """Another row sees all that the row held at its end, besides its own."""
    for entry, row in enumerate(sim.rows):
        if row == sim.context.amount:
            sim.program.sees[entry] = [*sim.held[sim.context.row or 0], *sim.program.sees[entry]]


def _too_far(sim: Simulation, back: Rollback) -> int:
    """Return how many tokens a rollback takes out that are to stay; the amount, or all that there are."""
    return min(sim.context.amount, len(sim.held[back.row]) - back.surplus)


def _too_short(sim: Simulation, back: Rollback) -> int:
    """Return how many rejected tokens a rollback leaves; the amount, or all that there are."""
    return min(sim.context.amount, back.surplus)


def _by_drift(sim: Simulation, block: FedBlock) -> int:
    return sim.drift[block.turn.row]


HOLES = ("holes/own",)
REWOUND = ("separate/own", "separate/prefilled", "separate/to the limit")
REALIGNED = ("realigned/own",)
BATCH = ("realigned/own", "holes/own", "cropped/least")
ANEW = ("recomputed/own", "expanded/own")


# fmt: off
CONTEXTS = (
    edit("position/query-position", "slot-positions", "position ids are slot numbers", BATCH,
         position=_moved(lambda sim, block: block.begin + block.pads - block.start)),
    edit("position/query-position", "longest-positions",
         "the position ids of every row continue from the longest row's",
         ("holes/own", "cropped/least"),
         position=_moved(lambda sim, block: max(one.start for one in sim.blocks.values()) - block.start)),
    edit("position/query-position", "another-rows-positions",
         "the position ids of one batch row are used for every row",
         ("holes/own", "cropped/least", *ANEW), (0, -1),
         Recomputation(position=lambda row, column, amount: max(0, column - row.first_pads)), position=_like_another),
    edit("position/query-position", "drift-rejected", "position ids advance by all tokens fed, including rejected ones",
         LINE, position=_moved(_by_drift), drift=lambda sim, back: back.surplus),
    edit("position/query-position", "drift-most", "position ids advance in every row as in the row that accepts most",
         HOLES, position=_moved(_by_drift),
         drift=lambda sim, back: back.surplus - back.least),
    edit("position/query-position", "drift-least", "position ids advance in every row as in the row that accepts least",
         HOLES, position=_moved(_by_drift),
         drift=lambda sim, back: back.surplus - back.most),
    edit("position/query-position", "newest-shifted",
         "the correction or bonus token is fed with a position id that is one off",
         LINE, (-1, 1), position=_shifted(lambda rank: rank == 0)),
    edit("position/query-position", "drafts-shifted", "draft tokens are verified with position ids that are one off",
         LINE, (-1, 1), position=_shifted(lambda rank: rank > 0)),
    edit("position/query-position", "clamped-positions",
         "the first position ids are clamped, so the first token's is wrong", OWN, (1, 2),
         position=lambda sim, block, rank: max(sim.context.amount, block.start + rank)),
    edit("position/query-position", "shifted-positions", "position ids are {shift} off",
         position=_moved(lambda sim, block: sim.context.amount)),
    edit("position/query-position", "chunk-restarted",
         "the prompt is split before token {position}, and position ids restart at 0 in its second part",
         position=_restarted),
    # The amount is the position of pads.
    edit("mask/pad-visible", "pads-seen", "pads are attended to", (*BATCH, *ANEW), (0, 1),
         Recomputation(position=lambda row, column, amount: row.positions[column] if row.real[column] else amount,
                       visible=lambda row, column: True),
         position=_pads_at, view=_seen_too(lambda view, slot: view.slots[slot].at == PAD_SLOT)),
    edit("mask/pad-visible", "prompt-pads-seen", "the pads before the prompt are attended to", HOLES, (0, 1),
         position=_pads_at,
         view=_seen_too(lambda view, slot: all(one.at == PAD_SLOT for one in view.slots[: slot + 1]))),
    edit("mask/pad-visible", "block-pads-seen", "the pads of a short block are attended to", BATCH, (0, 1),
         position=_pads_at, view=_seen_too(lambda view, slot: 0 < view.begin <= slot)),
    edit("mask/pad-visible", "pads-after-seen",
         "the pads that follow a short block are attended to", OWN, pads_after=True),
    edit("mask/pad-visible", "new-pads-seen",
         "pads that realigning adds to a row are attended to", REALIGNED, new_pads=True),
    edit("mask/pad-visible", "rejected-zeroed", "zeroed slots are attended to", HOLES,
         kept=lambda sim, back: back.surplus, zeroed=True),
    edit("mask/pad-visible", "pads-accumulate", "pads between a row's prompt and its new tokens are attended to", ANEW,
         anew=Recomputation(visible=lambda row, column: column >= row.pads, accumulates=True)),
    # The next token is seen, or all of the block.
    edit("mask/future-visible", "future-seen", "tokens of a block attend to later ones", LINE, (0, 64), scope="window",
         query=_later),
    edit("mask/token-hidden", "itself-hidden", "tokens of a block do not attend to themselves", (*LINE, *BATCH),
         query=_not_itself, blind=True),
    edit("mask/token-hidden", "pad-id-hidden", "tokens that equal the pad id are masked", (*HOLES, *ANEW),
         anew=Recomputation(visible=lambda row, column: row.tokens[column] != PAD), view=_pad_id_hidden),
    edit("mask/token-hidden", "mask-of-another", "the mask of one row of the batch is used for every row",
         (*HOLES, *ANEW), (0, -1),
         Recomputation(visible=lambda row, column: row.real[column] and column >= row.first_pads),
         view=_mask_of_another),
    edit("mask/token-hidden", "chunk-blind",
         "the prompt is split before token {position}, and its second part does not attend to the first",
         query=_cut_off(for_good=False)),
    edit("cache/stale-entry", "rejected-kept", "rejected draft tokens are still attended to", LINE, scope="window",
         kept=lambda sim, back: back.surplus),
    edit("cache/stale-entry", "nothing-rolled-back",
         "rejected draft tokens are still attended to, and position ids continue after them", LINE, scope="window",
         kept=lambda sim, back: back.surplus, drift=lambda sim, back: back.surplus,
         position=_moved(_by_drift),
         place=_moved(_by_drift)),
    edit("cache/stale-entry", "first-rejected-kept",
         "rollback stops short, and the first rejected draft tokens are still attended to",
         LINE, (1, 2), scope="window",
         kept=lambda sim, back: min(back.surplus, sim.context.amount)),
    edit("cache/stale-entry", "first-rejected-counted",
         "rollback leaves the first rejected draft tokens in the cache, and position ids continue after them",
         REWOUND, (1, 2, 3), kept=_too_short, drift=_too_short, position=_moved(_by_drift), place=_moved(_by_drift)),
    edit("cache/stale-entry", "rejected-kept-to-most",
         "rows are cropped as the one that accepted most, and rejected tokens are still attended to", HOLES,
         kept=lambda sim, back: back.surplus - back.least),
    edit("cache/stale-entry", "restored-with-all",
         "after a rejection tokens are fed again, and their old entries are still attended to", LINE,
         kept=lambda sim, back: back.surplus, restored=True),
    edit("cache/missing-entry", "newest-lost",
         "rollback goes too far, and the newest accepted token is no longer attended to", LINE, (1, 2), scope="window",
         kept=lambda sim, back: -sim.context.amount),
    edit("cache/missing-entry", "rewound-too-far",
         "rollback takes the newest accepted tokens out of the cache, too, and gives their position ids again",
         REWOUND, (1, 2, 3), kept=lambda sim, back: -_too_far(sim, back), drift=lambda sim, back: -_too_far(sim, back),
         position=_moved(_by_drift), place=_moved(_by_drift)),
    edit("cache/missing-entry", "lost-to-least",
         "rows are cropped as the one that accepted least, and accepted tokens are no longer attended to", HOLES,
         loses=lambda sim, back, at: at >= back.length - (back.most - back.surplus)),
    edit("cache/missing-entry", "reset", "after a rejection nothing in the cache is attended to", LINE, scope="window",
         loses=lambda sim, back, at: back.surplus > 0),
    edit("cache/missing-entry", "prompt-end-lost", "later rounds do not attend to the last token of the prompt", HOLES,
         loses=lambda sim, back, at: at == len(sim.evidence.prompts[back.row]) - 1),
    edit("cache/missing-entry", "prompt-begin-lost", "later rounds do not attend to the first token of the prompt",
         HOLES, (1,), loses=lambda sim, back, at: at < sim.context.amount),
    # The amount is the row from which on it happens.
    edit("cache/missing-entry", "not-prefilled", "only the last token of a row's prompt is fed",
         OWN, (0, 1, 2, 3), start=_not_prefilled(zeroed=False)),
    edit("cache/missing-entry", "not-prefilled-zeroed",
         "only the last token of a row's prompt is fed, after empty slots",
         OWN, (0, 1, 2, 3), start=_not_prefilled(zeroed=True)),
    edit("cache/missing-entry", "token-lost", "token {position} of the row is not attended to",
         loses=lambda sim, back, at: at == sim.context.token),
    edit("cache/missing-entry", "chunk-lost",
         "the prompt is split before token {position}, and what follows never attends to what is before it",
         query=_cut_off(for_good=True)),
    edit("cache/duplicate-entry", "newest-again", "the last cached token is fed again and attended to twice",
         (*LINE, *BATCH), again=True),
    edit("cache/misaligned", "not-moved", "mask and position ids are realigned, but the cache is not", REALIGNED,
         placed=lambda used, width, before: [k if k in set(used) else None for k in range(before)]),
    edit("cache/misaligned", "moved-wrong-way", "entries are compacted towards the wrong side", REALIGNED,
         placed=lambda used, width, before: [*used, *[None] * (width - len(used))]),
    edit("cache/torn-entry", "values-not-moved", "keys are realigned, but values are not", REALIGNED, torn="values"),
    edit("cache/torn-entry", "layers-not-moved", "only the first layer is realigned", REALIGNED, torn="layers"),
    edit("cache/torn-entry", "heads-not-moved", "only the first head is realigned", REALIGNED, torn="heads"),
    edit("cache/wrong-row", "rows-reversed", "after every round the rows of the cache are swapped", BATCH,
         sources=lambda rows, batch: rows[::-1]),
    edit("cache/wrong-row", "rows-rotated", "after every round the rows of the cache are shifted by one", BATCH,
         sources=lambda rows, batch: [*rows[1:], *rows[:1]]),
    edit("cache/wrong-row", "stale-rows",
         "once a row has left the batch, the cache is indexed by the old row numbers", BATCH,
         sources=lambda rows, batch: batch[: len(rows)]),
    edit("cache/wrong-row", "caches-exchanged", "each row uses the next row's cache", OWN,
         cache_of=lambda sim, row: (row + 1) % len(sim.held) if sim.number else row),
    edit("cache/wrong-row", "another-seen", "the tokens of row {row} are attended to in addition to the row's own",
         view=_another(instead=False)),
    edit("cache/wrong-row", "another-instead", "the tokens of row {row} are attended to instead of the row's own",
         view=_another(instead=True)),
    edit("cache/wrong-row", "rows-exchanged",
         "the row's tokens in the cache are swapped with those of row {row}", after=_swap),
    # With a token of 1 the row that ended keeps its last draft tokens, too.
    edit("cache/wrong-row", "ended-row-seen", "what row {row} left in the cache is attended to",
         kept=lambda sim, back: back.surplus * (back.ended and sim.context.token), end=_see_ended_row),
    edit("position/query-position", "capped-positions", "position ids stop at {position}",
         position=lambda sim, block, rank: min(sim.context.token, block.start + rank)),
    *PREFIXES,
    *WINDOWS,
    *STATES,
)
# fmt: on
