"""Six faults of reported mechanisms that none of the other files has, written before any was explained.

The first score, before anything was mended: 6 caught; the component of F01 was right, in both cases (as
``cache/wrong-row``), and of the other five nothing was said, in 10 cases. None was false. Then edits were written for
all of them, F02 and F05 last, and all are right now.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from served.fault import Fault
from served.faults import STATES, WINDOWS
from served.held import SGLANG
from served.memory import EMPTY, Feed, Row, State
from served.paged import BLOCK


def _grid_of_piece(right: Any, memory: Any, feed: Feed, kept: int) -> None:
    """The states put aside are taken on a grid that begins with the piece, not with the text."""
    known, fed = set(memory.checkpoints), feed.row.fed
    before = {layer: memory.states[layer, feed.row.number] for layer in memory.stateful}
    right(feed, kept)
    if feed.drafts:
        return
    for text in set(memory.checkpoints) - known:
        count = (len(text) - fed) // BLOCK * BLOCK
        for layer, state in before.items():
            run, hidden = memory.inputs[layer, feed.row.number]
            memory.checkpoints[text][layer] = run(state, hidden[:, :count])[1] if count else state


def _slot_not_written(right: Any, memory: Any, feed: Feed, kept: int) -> None:
    """The slot for the states at the end of a block was not written, and has those that another row put there."""
    known = set(memory.checkpoints)
    owners = memory.__dict__.setdefault("owners", [])
    right(feed, kept)
    others = [states for number, states in owners if number != feed.row.number]
    for text in sorted(set(memory.checkpoints) - known):
        owners.append((feed.row.number, dict(memory.checkpoints[text])))
        if others:
            memory.checkpoints[text] = others[-1]


def _unwritten_if_none(right: Any, memory: Any, layer: int, feed: Feed, kept: int) -> State:
    """Where all drafts are rejected, the snapshot that is taken over was never written."""
    return EMPTY if feed.drafts and kept == 1 else right(layer, feed, kept)


def _first_if_all(right: Any, memory: Any, layer: int, feed: Feed, kept: int) -> State:
    """Where all drafts are accepted, the state is the one after the first token of the block."""
    state: State = right(layer, feed, 1 if feed.drafts and kept == len(feed.tokens) else kept)
    return state


def _fed_with_drafts(right: Any, engine: Any, row: Row) -> Feed:
    """Dictated drafts are fed behind the last piece of a prompt, too."""
    feed: Feed = right(row)
    request = engine.request
    ends = row.fed + len(feed.tokens) == len(row.text) and not row.new
    if ends and request.drafting == "dictated":
        feed.drafts = list(request.drafts[row.number][: min(request.num_draft_tokens, row.options.max_new_tokens - 1)])
        feed.tokens = [*feed.tokens, *feed.drafts]
    return feed


def _drafts_of_prompt_kept(right: Any, memory: Any, layer: int, feed: Feed, kept: int) -> State:
    """The state behind a prompt has taken in the drafts that were fed with it."""
    state: State = right(layer, feed, len(feed.tokens) if feed.row.fed < feed.row.start else kept)
    return state


def _window_of_step(right: Any, memory: Any, feed: Feed, layer: int) -> Tensor:
    """Windows are no longer than the step, once something is cached."""
    seen: Tensor = right(feed, layer)
    reach = min(memory.reach(layer), len(feed.tokens))
    queries, held = memory.queries(feed, layer)[:, None], memory.held(feed, layer)[None]
    return seen & (queries - held < reach) if reach and feed.row.fed else seen


FAULTS = (
    Fault(
        "F01-grid-of-piece",
        "aside-on-a-grid-of-the-piece",
        "paged",
        STATES,
        "cache/missing-entry",
        f"{SGLANG}/pull/37836",
        "The states cached for the end of a block are counted in blocks from the begin of the piece that was fed",
        {"commit": _grid_of_piece},
    ),
    Fault(
        "F02-slot-not-written",
        "slot-of-cache-not-written",
        "paged",
        STATES,
        "cache/wrong-row",
        f"{SGLANG}/pull/31099",
        "The slot of the states cached for a text was not written, and has those of another row",
        {"commit": _slot_not_written},
    ),
    Fault(
        "F03-unwritten-if-none",
        "none-accepted-unwritten",
        "ring",
        STATES,
        "cache/missing-entry",
        "https://github.com/kekzl/imp/pull/1503",
        "Where all drafts of a block are rejected, a snapshot is taken over that was never written",
        {"restored": _unwritten_if_none},
    ),
    Fault(
        "F04-first-if-all",
        "all-accepted-goes-on-from-first",
        "ring",
        STATES,
        "cache/missing-entry",
        "https://github.com/ikawrakow/ik_llama.cpp/issues/1754",
        "Where all drafts are accepted, the states are those after the first token of the block",
        {"restored": _first_if_all},
    ),
    Fault(
        "F05-prompt-with-drafts",
        "prompt-fed-with-drafts",
        "ring",
        STATES,
        "cache/stale-entry",
        "https://github.com/vllm-project/vllm/pull/30618",
        "Drafts are fed behind a prompt, and its states have taken them in, rejected ones too",
        {"restored": _drafts_of_prompt_kept},
        {"feed": _fed_with_drafts},
    ),
    Fault(
        "F06-window-of-step",
        "window-no-longer-than-step",
        "ring",
        WINDOWS,
        "mask/window",
        "https://github.com/keras-team/keras-hub/pull/1738",
        "Layers with a window see no more tokens than the step has",
        {"visible": _window_of_step},
    ),
)
