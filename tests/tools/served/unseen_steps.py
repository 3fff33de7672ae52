"""Steps of the faults in `unseen`. Each is given the right step, its object, and the arguments of the right step."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from served.memory import WINDOW, Feed, Row, State
from served.paged import BLOCK
from served.steps import last, states_before, windowed

SINKS = 4


def _looking(memory: Any, feed: Feed, layer: int) -> tuple[Tensor, Tensor]:
    """The positions of queries, a column, and those of slots, a row."""
    return memory.queries(feed, layer)[:, None], memory.held(feed, layer)[None]


def window_of_last(right: Any, memory: Any, feed: Feed, layer: int) -> Tensor:
    """The window is counted from the last query of the step."""
    seen: Tensor = right(feed, layer)
    queries, held = _looking(memory, feed, layer)
    return seen & (queries[-1] - held < memory.reach(layer)) if memory.reach(layer) else seen


def window_in_blocks(right: Any, memory: Any, feed: Feed, layer: int) -> Tensor:
    """The window begins where its first block begins."""
    if not memory.reach(layer):
        return right(feed, layer)  # type: ignore[no-any-return]
    queries, held = _looking(memory, feed, layer)
    first = (queries - memory.reach(layer) + 1).div(BLOCK, rounding_mode="floor") * BLOCK
    seen: Tensor = (held >= 0) & (held <= queries) & (held >= first)
    return seen


def window_in_sections(right: Any, memory: Any, feed: Feed, layer: int) -> Tensor:
    """A query sees its own section of the text, and sections are as long as the window."""
    seen: Tensor = right(feed, layer)
    queries, held = _looking(memory, feed, layer)
    return seen & (queries // memory.window == held // memory.window) if memory.reach(layer) else seen


def sinks_seen(right: Any, memory: Any, feed: Feed, layer: int) -> Tensor:
    """The first tokens of a row stay in sight."""
    seen: Tensor = right(feed, layer)
    _, held = _looking(memory, feed, layer)
    return seen | ((held >= 0) & (held < SINKS)) if windowed(memory, layer) and feed.row.fed else seen


def later_drafts_seen(right: Any, memory: Any, feed: Feed, layer: int) -> Tensor:
    """In layers with a window each query of a block sees all its drafts."""
    seen: Tensor = right(feed, layer)
    queries, held = _looking(memory, feed, layer)
    return seen | ((held > queries) & (held <= queries[-1])) if windowed(memory, layer) and feed.drafts else seen


def cursor_runs_on(right: Any, memory: Any, layer: int, feed: Feed, kept: int) -> None:
    """The places of rejected drafts stay taken, so a window runs out of places."""
    right(layer, feed, kept)
    if windowed(memory, layer):
        memory.cursors[layer][feed.row.slot] += len(feed.tokens) - kept


def moved_without_cursor(right: Any, memory: Any, layer: int, source: int, goal: int) -> None:
    cursor = memory.cursors[layer][goal]
    right(layer, source, goal)
    memory.cursors[layer][goal] = cursor


def counted_in_table(right: Any, engine: Any, feed: Feed) -> list[int]:
    """Positions count the blocks that the window still has."""
    lost = engine.store.live(WINDOW, feed.row.fed) * BLOCK
    return [position - lost for position in right(feed)]


def without_last_if_all(right: Any, memory: Any, layer: int, feed: Feed, kept: int) -> State:
    """Where all drafts are accepted, the state lacks the last."""
    state: State = right(layer, feed, kept - (bool(feed.drafts) and kept == len(feed.tokens)))
    return state


def replay_to(right: Any, memory: Any, feed: Feed, kept: int, end: int) -> None:
    """The states that a row goes on with took in so many tokens of the step."""
    before = states_before(memory, feed)
    right(feed, kept)
    for layer, state in before.items():
        run, hidden = memory.inputs[layer, feed.row.number]
        memory.states[layer, feed.row.number] = run(state, hidden[:, :end])[1]


def replay_without_last_if_all(right: Any, memory: Any, feed: Feed, kept: int) -> None:
    if feed.drafts and kept == len(feed.tokens):
        replay_to(right, memory, feed, kept, kept - 1)
    else:
        right(feed, kept)


def replay_with_one_more(right: Any, memory: Any, feed: Feed, kept: int) -> None:
    if kept < len(feed.tokens):
        replay_to(right, memory, feed, kept, kept + 1)
    else:
        right(feed, kept)


def conv_one_behind(right: Any, memory: Any, layer: int, feed: Feed, kept: int) -> State:
    """After a rejection the inputs of convolutions lack the last accepted token."""
    state: State = right(layer, feed, kept)
    return State(right(layer, feed, kept - 1).conv, state.recurrent) if kept < len(feed.tokens) else state


def count_of_round_before(right: Any, memory: Any, layer: int, feed: Feed, kept: int) -> State:
    """The states are those after as many tokens as the round before accepted."""
    counts = memory.__dict__.setdefault("counts", {})
    before, counts[layer, feed.row.number] = counts.get((layer, feed.row.number), kept), kept
    state: State = right(layer, feed, min(before, len(feed.tokens)) if feed.drafts else kept)
    return state


def inputs_cut(right: Any, memory: Any, layer: int, feed: Feed) -> State:
    """Behind the first piece of a prompt the inputs of convolutions are zeros."""
    state: State = right(layer, feed)
    return State(None, state.recurrent) if feed.row.fed and not feed.row.new else state


def back_from_checkpoint(right: Any, memory: Any, feeds: list[Feed]) -> None:
    """A row that sat out a step goes on with the states of its last whole block."""
    before = [feed.row for feed in memory.feeds]
    right(feeds)
    for feed in feeds:
        text = tuple(feed.row.text[: feed.row.fed // BLOCK * BLOCK])
        if feed.row.new and feed.row not in before:
            for layer, state in memory.checkpoints.get(text, {}).items():
                memory.states[layer, feed.row.number] = state


def hit_cut(right: Any, memory: Any, row: Row) -> int:
    """The last block of a hit is fed again."""
    memory.longest_hit = right(row)
    return memory.longest_hit - BLOCK if memory.longest_hit > BLOCK else memory.longest_hit  # type: ignore[no-any-return]


def state_of_longest(right: Any, memory: Any, layer: int, row: Row, count: int) -> State:
    state: State = right(layer, row, memory.longest_hit)
    return state


def prompt_without_last(right: Any, memory: Any, layer: int, row: Row, begin: int, end: int) -> None:
    """The states lack the last token of a prompt."""
    ends = not row.new[1:] and row.fed + end == row.start
    if not ends or end - 1 > begin:
        right(layer, row, begin, end - ends)


def back_to_block(right: Any, memory: Any, feed: Feed, kept: int) -> None:
    """Where a block ends within the accepted tokens, states go on from there."""
    right(feed, kept)
    end = (feed.row.fed + kept) // BLOCK * BLOCK
    if feed.drafts and end > feed.row.fed:
        for layer, state in memory.checkpoints.get(memory.text(feed, end), {}).items():
            memory.states[layer, feed.row.number] = state


def hit_remembered(right: Any, memory: Any, row: Row) -> int:
    count: int = right(row)
    if count:
        memory.__dict__.setdefault("taken", {})[row.number] = tuple(row.text[:count])
    return count


def written_to_hit(right: Any, memory: Any, layer: int, row: Row, begin: int, end: int) -> None:
    """A row that begins with cached states writes its own in their place."""
    right(layer, row, begin, end)
    text = getattr(memory, "taken", {}).get(row.number)
    if text:
        memory.checkpoints[text][layer] = memory.states[layer, row.number]


def state_of_first_in_step(right: Any, memory: Any, layer: int, feed: Feed, kept: int) -> State:
    """Prompts that are read in one step leave the states of the first."""
    first: Feed = memory.feeds[0]
    if first.drafts or feed.drafts or feed.row.fed:
        return right(layer, feed, kept)  # type: ignore[no-any-return]
    return last(memory, layer, first)


def all_accepted_noted(right: Any, memory: Any, feed: Feed, kept: int) -> None:
    right(feed, kept)
    memory.__dict__.setdefault("whole", {})[feed.row.number] = bool(feed.drafts) and kept == len(feed.tokens)


def bonus_twice(right: Any, memory: Any, layer: int, feed: Feed, run: Any, hidden: Tensor) -> Tensor:
    """The token behind a block that was accepted whole runs through the layer twice."""
    if getattr(memory, "whole", {}).get(feed.row.number):
        memory.states[layer][feed.row.slot] = run(memory.before(layer, feed), hidden[:, :1])[1]
    output: Tensor = right(layer, feed, run, hidden)
    return output
