"""Steps with a fault. Each is given the right step, its object, and the arguments of the right step."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from served.memory import EMPTY, FULL, WINDOW, Feed, Row, State


def windowed(memory: Any, layer: int) -> bool:
    return bool(memory.kinds[layer] == WINDOW)


def stored(memory: Any, layer: int, slot: int, column: int) -> State:
    """The state after so many tokens of the block of a slot, or the nearest one there is."""
    columns: dict[int, State] = memory.columns[layer][slot]
    return columns[max(n for n in columns if n <= max(column, 0))]


def last(memory: Any, layer: int, feed: Feed) -> State:
    """The state after all tokens of a block."""
    return stored(memory, layer, feed.row.slot, len(feed.tokens))


def in_verify(right: Any, memory: Any, feed: Feed, layer: int) -> Tensor:
    """Without the window, where drafts are verified."""
    if not feed.drafts:
        return right(feed, layer)  # type: ignore[no-any-return]
    queries, held = memory.queries(feed, layer)[:, None], memory.held(feed, layer)[None]
    seen: Tensor = (held >= 0) & (held <= queries)
    return seen


def freed_with_drafts(right: Any, memory: Any, kind: str, feed: Feed, kept: int) -> None:
    right(kind, feed, len(feed.tokens))


def hit_without_window(right: Any, memory: Any, row: Row, count: int) -> bool:
    return all(memory.prefix(row, n) in memory.pools[FULL].cached for n in range(count // 8))


def opened_without_window(right: Any, memory: Any, row: Row) -> int:
    """The blocks of the window that are no longer cached stay empty."""
    count: int = memory.hit(row)
    for kind, pool in memory.pools.items():
        blocks = [pool.cached.get(memory.prefix(row, n), 0) for n in range(count // 8)]
        live = memory.live(kind, count)
        memory.tables[kind, row.number] = [
            pool.share(block) if block and n >= live else 0 for n, block in enumerate(blocks)
        ]
    return count


def conv_of_last(right: Any, memory: Any, layer: int, feed: Feed, kept: int) -> State:
    return State(last(memory, layer, feed).conv, right(layer, feed, kept).recurrent)


def recurrent_of_last(right: Any, memory: Any, layer: int, feed: Feed, kept: int) -> State:
    return State(right(layer, feed, kept).conv, last(memory, layer, feed).recurrent)


def after_all(memory: Any, feed: Feed, before: dict[int, State]) -> dict[int, State]:
    """By layer, the state after all tokens of a step, rejected drafts too."""
    after = {}
    for layer, state in before.items():
        run, hidden = memory.inputs[layer, feed.row.number]
        after[layer] = run(state, hidden[:, : len(feed.tokens)])[1]
    return after


def states_before(memory: Any, feed: Feed) -> dict[int, State]:
    """By layer, the state of a row."""
    return {layer: memory.states[layer, feed.row.number] for layer in memory.stateful}


def runs_on(right: Any, memory: Any, feed: Feed, kept: int) -> None:
    """States take in the drafts that were rejected, too."""
    before = states_before(memory, feed)
    right(feed, kept)
    if feed.drafts:
        for layer, state in after_all(memory, feed, before).items():
            memory.states[layer, feed.row.number] = state


def runs_too_short(right: Any, memory: Any, feed: Feed, kept: int) -> None:
    """The last accepted draft does not run through the layers with states."""
    before = states_before(memory, feed)
    right(feed, kept)
    if feed.drafts and kept > 1:
        for layer, state in before.items():
            run, hidden = memory.inputs[layer, feed.row.number]
            memory.states[layer, feed.row.number] = run(state, hidden[:, : kept - 1])[1]


def conv_runs_on(right: Any, memory: Any, feed: Feed, kept: int) -> None:
    """Convolutions take in the drafts that were rejected, too; what is remembered does not."""
    before = states_before(memory, feed)
    right(feed, kept)
    if feed.drafts:
        for layer, state in after_all(memory, feed, before).items():
            remembered = memory.states[layer, feed.row.number].recurrent
            memory.states[layer, feed.row.number] = State(state.conv, remembered)


def unwritten_like_verify(right: Any, memory: Any, layer: int, feed: Feed, kept: int) -> State:
    if not feed.drafts and len(feed.tokens) == memory.verified:
        return stored(memory, layer, feed.row.slot, 0)
    return right(layer, feed, kept)  # type: ignore[no-any-return]


def not_run_like_verify(right: Any, memory: Any, layer: int, row: Row, begin: int, end: int) -> None:
    feed = next(feed for feed in memory.feeds if feed.row is row)
    if feed.drafts or len(feed.tokens) != memory.verified:
        right(layer, row, begin, end)


def not_emptied(right: Any, memory: Any, row: Row) -> int:
    states = {layer: memory.states[layer][row.slot] for layer in memory.stateful}
    count: int = right(row)
    for layer, state in states.items():
        memory.states[layer][row.slot] = state
    return count


def aside_at_end_of_step(right: Any, memory: Any, feed: Feed, kept: int) -> None:
    """What is put aside at an end of a block is the state at the end of the step."""
    known = set(memory.checkpoints)
    right(feed, kept)
    for text in set(memory.checkpoints) - known:
        memory.checkpoints[text] = {layer: memory.states[layer, feed.row.number] for layer in memory.stateful}


def aside_with_drafts(right: Any, memory: Any, feed: Feed, kept: int) -> None:
    """What is put aside at an end of a block has taken in the drafts of the step, rejected ones too."""
    before, known = states_before(memory, feed), set(memory.checkpoints)
    right(feed, kept)
    for text in set(memory.checkpoints) - known:
        memory.checkpoints[text] |= after_all(memory, feed, before)


def afresh_for_chunk(right: Any, memory: Any, layer: int, feed: Feed) -> State:
    return EMPTY if feed.row.fed and not feed.row.new else right(layer, feed)


def of_first_layer(right: Any, memory: Any, layer: int, feed: Feed, kept: int) -> State:
    return right(layer, feed, kept) if layer == memory.stateful[0] else last(memory, layer, feed)


def of_next_row(right: Any, memory: Any, layer: int, feed: Feed, kept: int) -> State:
    """After a rejection, the state of the row beside it."""
    rows = [one.row for one in memory.feeds]
    other = rows[(rows.index(feed.row) + 1) % len(rows)]
    rejected = kept < len(feed.tokens)
    return stored(memory, layer, other.slot, kept) if rejected else right(layer, feed, kept)


def counting_rejected(right: Any, engine: Any, feed: Feed) -> list[int]:
    """Positions as if no draft had been rejected."""
    lost = sum(len(drafts) - (after - start - 1) for start, drafts, after in engine.observed["rounds"][feed.row.number])
    return [position + lost for position in right(feed)]


def places_in_ring(right: Any, engine: Any, feed: Feed) -> list[int]:
    return [position % engine.store.window for position in right(feed)]


def column_before(right: Any, engine: Any, feed: Feed, answers: list[int]) -> None:
    """What follows the drafts, where all are accepted, is the answer to the one before the last."""
    given = len(feed.tokens) - len(feed.drafts)
    if feed.drafts and engine.accepted(feed, answers[given - 1 :]) == len(feed.drafts):
        answers = [*answers[:-1], answers[-2]]
    right(feed, answers)
