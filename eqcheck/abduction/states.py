"""Edits of the states that a target's layers without attention have."""

from __future__ import annotations

from eqcheck.abduction.blocks import Rollback
from eqcheck.abduction.edits import BLOCKS, edit, turns_before
from eqcheck.abduction.program import EMPTY
from eqcheck.abduction.simulation import Simulation
from eqcheck.case.engine import PAD

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
