"""How many next tokens a fault in the context changes on a built checkpoint: needs torch and transformers.

    python benchmarks/built_faults.py window mistral full

Each fault is made by positions and masks of a transformers model in float32: rows of a random prompt and the
function's own tokens, the fault at a place behind the prompt. Two shares are printed: of the tokens that the fault may
change (`TOKENS` behind the place, or one where a single query is hit), and of rows that differ within `SOON` tokens.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from eqcheck.checkpoints import built
from eqcheck.engines.construction.function import CODES

ROWS, PROMPT, TOKENS, SOON = 48, 120, 40, 8
Change = Callable[["Context"], None]


@dataclass
class Context:
    """Slots of a row: a token and a position each, and who sees whom, by whether a layer has a window.

    ``extra`` slots stand behind the row's own; they are no queries of the row.
    """

    tokens: list[int]
    place: int
    window: int
    rng: random.Random
    positions: list[int] = field(init=False)
    seen: dict[bool, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.positions = list(range(len(self.tokens)))
        apart = torch.arange(len(self.tokens))[:, None] - torch.arange(len(self.tokens))
        self.seen = {
            windowed: (apart >= 0) & (apart < (self.window if windowed else 10**6)) for windowed in (False, True)
        }

    def hide(self, queries: slice, slots: slice, windowed: tuple[bool, ...] = (False, True)) -> None:
        for kind in windowed:
            mask = self.seen[kind]
            mask[queries, slots] &= torch.eye(len(mask), dtype=torch.bool)[queries, slots]

    def add(self, position: int, queries: slice, windowed: tuple[bool, ...] = (False, True)) -> None:
        """A slot of a foreign token, computed after the tokens before its position, and seen by these queries."""
        row = len(self.positions)
        self.tokens.append(self.rng.choice([i for i in range(CODES) if i != self.tokens[position]]))
        self.positions.append(position)
        for kind, mask in self.seen.items():
            grown = torch.zeros(len(mask) + 1, len(mask) + 1, dtype=torch.bool)
            grown[:row, :row] = mask
            grown[row, :position] = mask[position, :position]
            grown[row, row] = True
            if kind in windowed:
                reach = self.window if kind else 10**6
                for query in range(*queries.indices(row)):
                    grown[query, row] = 0 <= query - position < reach
            self.seen[kind] = grown


def shift(context: Context) -> None:
    context.positions = [p + (p >= context.place) for p in context.positions]


def hidden(context: Context) -> None:
    context.hide(slice(context.place + 1, None), slice(context.place, context.place + 1))


def missing(distance: int) -> Change:
    def change(context: Context) -> None:
        slot = context.place - distance
        context.hide(slice(context.place, context.place + 1), slice(slot, slot + 1))

    return change


def shown(distance: int) -> Change:
    """A slot that left the window is seen by a single query."""

    def change(context: Context) -> None:
        context.seen[True][context.place, context.place - distance] = True

    return change


def rejected(windowed: tuple[bool, ...]) -> Change:
    def change(context: Context) -> None:
        context.add(context.place, slice(context.place, None), windowed)

    return change


def foreign(context: Context) -> None:
    hidden(context)
    context.add(context.place, slice(context.place + 1, None))


def resized(window: int) -> Change:
    def change(context: Context) -> None:
        apart = torch.arange(len(context.tokens))[:, None] - torch.arange(len(context.tokens))
        context.seen[True][context.place :] = ((apart >= 0) & (apart < window))[context.place :]

    return change


def in_blocks(size: int) -> Change:
    """The window reaches back to the beginning of a block."""

    def change(context: Context) -> None:
        for query in range(context.place, len(context.tokens)):
            context.seen[True][query, (query - context.window + 1) // size * size : query] = True

    return change


def ring(drafts: int) -> Change:
    """Drafts took the slots of the oldest tokens in the window, and were rejected, all but the first's place."""

    def change(context: Context) -> None:
        lost = slice(0, context.place + drafts - context.window)
        context.hide(slice(context.place, None), lost, (True,))

    return change


def everywhere(context: Context) -> None:
    context.seen[False] = context.seen[True]


def shares(model: Any, name: str, change: Change, tokens: int = TOKENS, rows: int = ROWS) -> tuple[float, float]:
    """Of the tokens that may change, and of rows that differ soon, the share that does."""
    function, window = built(name).function, getattr(model.config, "sliding_window", None) or 10**6
    contexts, rng = [], random.Random(name)
    for _ in range(rows):
        prompt = [rng.randrange(CODES) for _ in range(PROMPT + rng.randrange(16))]
        contexts.append(Context(prompt + function.emitted(prompt, TOKENS), len(prompt), window, rng))
        change(contexts[-1])
    differs = [
        [a != b for a, b in zip(chosen, context.tokens[context.place + 1 :], strict=False)][: TOKENS - 1]
        for context, chosen in zip(contexts, run(model, contexts), strict=True)
    ]
    changed = [d for row in differs for d in row[:tokens]]
    return sum(changed) / len(changed), sum(any(row[:SOON]) for row in differs) / len(differs)


def run(model: Any, contexts: list[Context]) -> Iterator[list[int]]:
    """By context, the tokens that the model chooses from its place on."""
    size = max(len(context.positions) for context in contexts)
    ids, positions = torch.zeros(2, len(contexts), size, dtype=torch.long)
    masks = {kind: torch.eye(size, dtype=torch.bool).repeat(len(contexts), 1, 1, 1) for kind in (False, True)}
    for row, context in enumerate(contexts):
        count = len(context.positions)
        ids[row, :count] = torch.tensor(context.tokens)
        positions[row, :count] = torch.tensor(context.positions)
        for kind, mask in masks.items():
            mask[row, 0, :count, :count] = context.seen[kind]
    kinds = getattr(model.config, "layer_types", None) or ()
    by_kind = {"full_attention": masks[False], "sliding_attention": masks[True]}
    asked: Any = by_kind if len(set(kinds)) > 1 else masks[bool(getattr(model.config, "sliding_window", None))]
    with torch.inference_mode():
        chosen = model(ids, position_ids=positions, attention_mask=asked, use_cache=False).logits.argmax(-1)
    for row, context in enumerate(contexts):
        yield chosen[row, context.place :].tolist()


def faults(window: int | None) -> Iterator[tuple[str, Change, int]]:
    """Each fault, and how many of the tokens behind it it may change."""
    yield "nothing", lambda context: None, TOKENS
    yield "positions + 1 from a token on", shift, TOKENS
    yield "a token hidden from later queries", hidden, TOKENS
    yield "a rejected draft stays visible", rejected((False, True)), TOKENS
    yield "an entry of another token", foreign, TOKENS
    if window:
        yield "a rejected draft stays visible in windows", rejected((True,)), TOKENS
        yield "window one too wide", resized(window + 1), TOKENS
        yield "window one too narrow", resized(window - 1), TOKENS
        yield "window ignored", resized(10**6), TOKENS
        for size in (2, 4, 16):
            yield f"window to the beginning of a block of {size}", in_blocks(size), TOKENS
        yield "window in each layer", everywhere, TOKENS
        for drafts in (2, 4, 8):
            yield f"ring: {drafts} rejected drafts on the oldest slots", ring(drafts), drafts - 1


def printed(fault: str, tokens: float, rows: float) -> None:
    print(f"{fault:50} {100 * tokens:5.1f} %  {100 * rows:5.1f} %", flush=True)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            built(name).save(folder)
            model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa").eval()
        print(f"{name:50}  tokens  rows within {SOON}")
        for fault, change, tokens in faults(getattr(model.config, "sliding_window", None)):
            printed(fault, *shares(model, name, change, tokens))
        windowed = getattr(model.config, "sliding_window", None)
        spans = [("missing for", missing, [(1, 16), (17, 31), (32, 48), (49, 64), (1, 64)])]
        spans += [("left in the window of", shown, [(32, 48), (49, 64)])] * bool(windowed)
        for text, made, bounds in spans:
            for first, last in bounds:
                some = [shares(model, name, made(distance), 1, 32) for distance in range(first, last + 1)]
                mean = [sum(column) / len(column) for column in zip(*some, strict=True)]
                printed(f"a slot {first} to {last} back {text} one query", *mean)
