"""Planted faults of mechanisms that attribution was not developed on at first: it named 4 of 13, and said nothing of 9.

Edits for these 9 were written after that score, so a later score of this file is one of faults that were seen.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from served.fault import Fault
from served.faults import RULES, STATES, VLLM, WINDOWS
from served.memory import EMPTY, Feed, Row, State
from served.paged import BLOCK
from served.steps import windowed

SGLANG, MLX_LM = "https://github.com/sgl-project/sglang", "https://github.com/ml-explore/mlx-lm"


def _wrapped(memory: Any, feed: Feed) -> bool:
    """Whether the ring of a window has come round."""
    return bool(feed.row.fed + len(feed.tokens) > memory.window)


def _nothing_rolled_back(right: Any, memory: Any, layer: int, feed: Feed, kept: int) -> None:
    """Once the ring has come round, rejected drafts stay in every layer, and positions go on behind them."""
    if not _wrapped(memory, feed):
        right(layer, feed, kept)
        return
    memory.cursors[layer][feed.row.slot] += len(feed.tokens)
    if layer == memory.groups[-1]:
        ahead = memory.__dict__.setdefault("ahead", {})
        ahead[feed.row.number] = ahead.get(feed.row.number, 0) + len(feed.tokens) - kept


def _ahead(memory: Any, feed: Feed) -> int:
    return int(getattr(memory, "ahead", {}).get(feed.row.number, 0))


def _queries_ahead(right: Any, memory: Any, feed: Feed, layer: int) -> Tensor:
    queries: Tensor = right(feed, layer) + _ahead(memory, feed)
    return queries


def _positions_ahead(right: Any, engine: Any, feed: Feed) -> list[int]:
    return [position + _ahead(engine.store, feed) for position in right(feed)]


def _window_not_rolled_back(right: Any, memory: Any, layer: int, feed: Feed, kept: int) -> None:
    """The same in layers with a window only; positions are right."""
    if windowed(memory, layer) and _wrapped(memory, feed):
        memory.cursors[layer][feed.row.slot] += len(feed.tokens)
    else:
        right(layer, feed, kept)


def _first_column(memory: Any, layer: int, feed: Feed, right: State) -> State:
    """The state after the first token of the block before, where this step has no drafts."""
    columns: dict[int, State] = memory.columns[layer].get(feed.row.slot, {})
    return columns.get(1, right) if feed.row.new and not feed.drafts else right


def _first_column_read(right: Any, memory: Any, layer: int, feed: Feed) -> State:
    return _first_column(memory, layer, feed, right(layer, feed))


def _first_inputs_read(right: Any, memory: Any, layer: int, feed: Feed) -> State:
    state: State = right(layer, feed)
    return State(_first_column(memory, layer, feed, state).conv, state.recurrent)


def _of_block_before(right: Any, memory: Any, layer: int, row: Row, count: int) -> State:
    before: dict[int, State] = memory.checkpoints.get(tuple(row.text[: max(0, count - BLOCK)]), {})
    return before.get(layer, EMPTY)


def _window_of_first(right: Any, memory: Any, feed: Feed, layer: int) -> Tensor:
    """All queries of a block of drafts have the window of its first."""
    if not feed.drafts or not memory.reach(layer):
        return right(feed, layer)  # type: ignore[no-any-return]
    queries, held = memory.queries(feed, layer), memory.held(feed, layer)[None]
    seen: Tensor = (held >= 0) & (held <= queries[:, None]) & (queries[0] - held < memory.reach(layer))
    return seen


def _no_window_in_chunk(right: Any, memory: Any, feed: Feed, layer: int) -> Tensor:
    """Pieces of a prompt behind the first see all that is there."""
    if feed.row.new or not feed.row.fed:
        return right(feed, layer)  # type: ignore[no-any-return]
    queries, held = memory.queries(feed, layer)[:, None], memory.held(feed, layer)[None]
    seen: Tensor = (held >= 0) & (held <= queries)
    return seen


def _hit_noted(right: Any, memory: Any, row: Row) -> int:
    count: int = right(row)
    memory.__dict__.setdefault("hits", {})[row.number] = count
    return count


def _last_token_again(right: Any, memory: Any, layer: int, row: Row, begin: int, end: int) -> None:
    """After a rejection the last accepted token runs through the layer twice."""
    right(layer, row, begin, end)
    feed = next(feed for feed in memory.feeds if feed.row is row)
    if feed.drafts and row.fed + end != row.fed + len(feed.tokens) and (row.fed + end) % BLOCK:
        right(layer, row, end - 1, end)


def _pads_taken_in(right: Any, memory: Any, layer: int, feed: Feed, run: Any, hidden: Tensor) -> Tensor:
    """The state takes in the pads behind a piece of a prompt that is shorter than another row's tokens."""
    output: Tensor = right(layer, feed, run, hidden)
    columns = memory.columns[layer][feed.row.slot]
    if not feed.drafts:
        columns[len(feed.tokens)] = run(columns[0], hidden)[1]
    return output


FAULTS = (
    Fault(
        "H01-nothing-rolled-back",
        "ring-cannot-be-trimmed",
        "ring",
        WINDOWS,
        "cache/stale-entry",
        f"{MLX_LM}/issues/1423",
        "Once the ring of a window has come round, nothing is rolled back, and positions go on behind rejected drafts",
        {"roll_back": _nothing_rolled_back, "queries": _queries_ahead},
        {"positions": _positions_ahead},
    ),
    Fault(
        "H02-window-not-rolled-back",
        "ring-cannot-be-trimmed",
        "ring",
        WINDOWS,
        "cache/stale-entry",
        f"{MLX_LM}/issues/1423",
        "Once the ring of a window has come round, rejected drafts stay in it",
        {"roll_back": _window_not_rolled_back},
    ),
    Fault(
        "H03-step-without-drafts",
        "step-without-drafts",
        "ring",
        STATES,
        "cache/missing-entry",
        f"{VLLM}/pull/52942",
        "A step without drafts reads the state after the first token of the block before, without its accepted drafts",
        {"before": _first_column_read},
    ),
    Fault(
        "H04-inputs-without-drafts",
        "step-without-drafts",
        "ring",
        RULES,
        "cache/missing-entry",
        f"{VLLM}/issues/39273",
        "The same of the inputs of convolutions only",
        {"before": _first_inputs_read},
    ),
    Fault(
        "H05-inputs-empty-at-hit",
        "empty-at-hit",
        "paged",
        STATES,
        "cache/missing-entry",
        f"{SGLANG}/pull/34043",
        "Behind a cached prefix the inputs of convolutions are zeros",
        {"at_hit": lambda right, self, layer, row, count: State(None, right(layer, row, count).recurrent)},
    ),
    Fault(
        "H06-state-empty-at-hit",
        "empty-at-hit",
        "paged",
        RULES,
        "cache/missing-entry",
        f"{SGLANG}/pull/34043",
        "Behind a cached prefix states are empty",
        {"at_hit": lambda right, self, layer, row, count: EMPTY},
    ),
    Fault(
        "H07-state-of-block-before",
        "block-before-at-hit",
        "paged",
        STATES,
        "cache/missing-entry",
        "own",
        "Behind a cached prefix the state is the one of a block before",
        {"at_hit": _of_block_before},
    ),
    Fault(
        "H08-window-of-first-query",
        "window-of-block",
        "ring",
        WINDOWS,
        "mask/window",
        "own",
        "All queries of a block of drafts have the window of its first",
        {"visible": _window_of_first},
    ),
    Fault(
        "H09-no-window-in-chunk",
        "no-window-in-chunk",
        "ring",
        WINDOWS,
        "mask/window",
        "own",
        "Pieces of a prompt behind the first see tokens behind their window",
        {"visible": _no_window_in_chunk},
    ),
    Fault(
        "H10-moved-without-state",
        "moved-without-state",
        "ring",
        STATES,
        "cache/wrong-row",
        "own",
        "A row that moves to another slot goes on with the states that were there",
        {"move_state": lambda right, self, layer, source, goal: None},
    ),
    Fault(
        "H11-positions-behind-hit",
        "positions-behind-hit",
        "paged",
        (*WINDOWS, *STATES),
        "position/query-position",
        "own",
        "Behind a cached prefix positions begin at 0",
        {"open": _hit_noted},
        {
            "positions": lambda right, self, feed: [
                position - self.store.hits[feed.row.number] for position in right(feed)
            ]
        },
    ),
    Fault(
        "H12-last-token-again",
        "last-token-again",
        "paged",
        STATES,
        "cache/duplicate-entry",
        "own",
        "After a rejection states have taken in the last accepted token twice",
        {"run_again": _last_token_again},
    ),
    Fault(
        "H13-pads-in-state",
        "pads-in-state",
        "ring",
        STATES,
        "mask/pad-visible",
        "own",
        "States take in the pads behind a piece of a prompt that is shorter than another row's tokens",
        {"advance": _pads_taken_in},
    ),
)
