"""The context of every query of a row, as data, and the model's answer to it: one forward for all calls of an engine.

An entry of a cache is computed under what its own query saw, once. So a forward over all entries a row ever had, with a
mask that gives each query what it saw at the time, yields the same entries, wrong ones included, and the same
predictions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import Cache
from transformers.cache_utils import DynamicLayer

from eqcheck.case.engine import PAD

BLANK = -1  # a column whose key and value are zero
_BLIND, _NEVER = -1e30, -1e38  # a query that sees nothing attends to all its slots alike, and to nothing else
_CELLS = 3_000_000  # of masks in one forward


@dataclass
class Program:
    """Entries ``tokens`` at ``positions``; ``sees[i]`` are the columns that entry i's query sees.

    ``columns`` are pairs of entries: in a ``torn`` program (``"values"``, ``"layers"`` or ``"heads"``) the second is
    where values, all layers but the first, or all heads but the first come from; otherwise both are the same. ``blind``
    are queries whose scores are all as low as can be, with the columns of their call: they attend to all of them alike.
    (A query that gets nothing from a kernel because it sees nothing is one that sees a blank column.) ``queries`` maps
    (row, index of a new token) to its query.
    """

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    sees: list[Sequence[int]] = field(default_factory=list)
    columns: list[tuple[int, int]] = field(default_factory=list)
    blind: dict[int, Sequence[int]] = field(default_factory=dict)
    queries: dict[tuple[int, int], int] = field(default_factory=dict)
    torn: str = ""

    def write(self, token: int, position: int) -> int:
        """A new entry, in a column of its own; returns the column."""
        entry = len(self.tokens)
        self.tokens.append(token)
        self.positions.append(position)
        self.sees.append(())
        return self.column(entry, entry)

    def column(self, first: int, second: int) -> int:
        self.columns.append((first, second))
        return len(self.columns) - 1

    def entry(self, column: int) -> int:
        """The entry that a column was written for."""
        return self.columns[column][0]

    def blank(self) -> int:
        """A new column whose key and value are zero."""
        return self.column(BLANK, BLANK)

    def needed(self, keys: set[tuple[int, int]]) -> Program:
        """The same program with nothing but what the answers to ``keys`` depend on."""
        stack = [entry for key, entry in self.queries.items() if key in keys]
        reached = set(stack)
        while stack:
            entry = stack.pop()
            for column in (*self.sees[entry], *self.blind.get(entry, ())):
                for source in self.columns[column]:
                    if source >= 0 and source not in reached:
                        reached.add(source)
                        stack.append(source)
        order = sorted(reached)
        new = {entry: number for number, entry in enumerate(order)} | {BLANK: BLANK}
        kept = sorted({column for entry in order for column in (*self.sees[entry], *self.blind.get(entry, ()))})
        place = {column: number for number, column in enumerate(kept)}
        return Program(
            [self.tokens[e] for e in order],
            [self.positions[e] for e in order],
            [[place[c] for c in self.sees[e]] for e in order],
            [(new[a], new[b]) for a, b in (self.columns[c] for c in kept)],
            {new[e]: [place[c] for c in cs] for e, cs in self.blind.items() if e in new},
            {key: new[e] for key, e in self.queries.items() if key in keys and e in new},
            self.torn,
        )


def plain_row(row: int, text: Sequence[int], start: int) -> Program:
    """A row as it should be seen; its new tokens are those from ``start`` on."""
    program = Program()
    for position, token in enumerate(text):
        program.write(token, position)
        program.sees[-1] = range(position + 1)
    program.queries = {(row, index): start + index - 1 for index in range(len(text) - start + 1)}
    return program


@dataclass(frozen=True)
class Turn:
    """A row's part in a round: of ``start`` committed tokens, ``accepted`` of ``drafts``; then there are ``end``."""

    row: int
    start: int
    drafts: tuple[int, ...]
    accepted: int
    end: int


Round = tuple[Turn, ...]


@dataclass(frozen=True)
class FedRow:
    """A row of a call of an engine without cache: its columns' ``tokens`` and ``positions``; not ``real`` are pads.

    ``pads`` stand before it; ``first_pads`` is the padding of the call's first row.
    """

    tokens: list[int]
    positions: list[int]
    real: list[bool]
    pads: int
    first_pads: int


@dataclass(frozen=True)
class Recomputation:
    """The changes of an edit in a call: positions, what the mask shows, or where pads stay. The defaults are right."""

    position: Callable[[FedRow, int, int], int] = lambda row, column, amount: row.positions[column]
    visible: Callable[[FedRow, int], bool] = lambda row, column: row.real[column]
    accumulates: bool = False


RIGHT_ANEW = Recomputation()


def recomputed(
    texts: Sequence[list[int]],
    prompts: Sequence[list[int]],
    change: Recomputation,
    amount: int,
    rounds: Sequence[Round],
    expanded: bool,
) -> list[Program]:
    """The rows of the calls of an engine without a cache.

    The whole batch, left padded, is fed anew each round; ``expanded``, with a row for every draft.
    """
    programs = []
    inner = [0] * len(texts)  # pads behind each prompt
    for turns in rounds:
        fed = [(turn, count) for turn in turns for count in range(len(turn.drafts) + 1)]
        if not expanded:
            fed = [(turn, len(turn.drafts)) for turn in turns]
        lengths = [turn.start + count + inner[turn.row] for turn, count in fed]
        pads = [max(lengths) - length for length in lengths]
        for (turn, count), before in zip(fed, pads, strict=True):
            asked = [n for n in range(turn.end - turn.start) if not expanded or n == count]
            if asked:
                text, prompt = [*texts[turn.row][: turn.start], *turn.drafts[:count]], len(prompts[turn.row])
                row = _fed_row(text, prompt, before, inner[turn.row], pads[0])
                program, at = _fed_anew(row, change, amount), [n for n, real in enumerate(row.real) if real]
                ends = [turn.start + number for number in asked]
                program.queries = {(turn.row, end - prompt): at[end - 1] for end in ends}
                programs.append(program)
        if change.accumulates:
            lengths = list(map(len, texts))
            for turn in turns:
                lengths[turn.row] = turn.end
            inner = [max(lengths) - length for length in lengths]
    return programs


def _fed_row(text: list[int], prompt: int, pads: int, inner: int, first_pads: int) -> FedRow:
    tokens = [*[PAD] * pads, *text[:prompt], *[PAD] * inner, *text[prompt:]]
    positions = [*[0] * pads, *range(prompt), *[prompt - 1] * inner, *range(prompt, len(text))]
    real = [*[False] * pads, *[True] * prompt, *[False] * inner, *[True] * (len(text) - prompt)]
    return FedRow(tokens, positions, real, pads, first_pads)


def _fed_anew(row: FedRow, change: Recomputation, amount: int) -> Program:
    program = Program()
    for column, token in enumerate(row.tokens):
        program.write(token, change.position(row, column, amount))
    visible = [column for column in range(len(row.tokens)) if change.visible(row, column)]
    for query in range(len(row.tokens)):
        program.sees[query] = [column for column in visible if column <= query] or [program.blank()]
    return program


Answers = dict[tuple[int, int], torch.Tensor]


def answers(model: Any, programs: Sequence[Program]) -> list[Answers]:
    """The scores ``[vocabulary]`` of every asked query of each program."""
    answered: list[Answers] = [{} for _ in programs]
    groups: dict[tuple[str, bool], list[int]] = {}
    for number, program in enumerate(programs):
        if program.queries:
            plain = all(a == b == place for place, (a, b) in enumerate(program.columns))  # as entries are written
            groups.setdefault((program.torn, plain), []).append(number)
    for (torn, plain), numbers in groups.items():
        numbers.sort(key=lambda number: len(programs[number].tokens))
        while numbers:
            size = max(1, _CELLS // max(1, len(programs[numbers[-1]].tokens) * len(programs[numbers[-1]].columns)))
            chunk, numbers = numbers[-size:], numbers[:-size]
            logits = _forward(model, [programs[number] for number in chunk], torn, plain)
            for row, number in enumerate(chunk):
                answered[number] = {key: logits[row, entry] for key, entry in programs[number].queries.items()}
    return answered


@torch.no_grad()
def _forward(model: Any, programs: Sequence[Program], torn: str, plain: bool) -> torch.Tensor:
    entries = max(len(program.tokens) for program in programs)
    width = entries if plain else max(len(program.columns) for program in programs)
    ids, positions = torch.zeros((2, len(programs), entries), dtype=torch.long)
    mask = torch.full((len(programs), entries, width), _NEVER, dtype=torch.float64)
    first, second = torch.full((2, len(programs), width), entries, dtype=torch.long)
    for row, program in enumerate(programs):
        ids[row, : len(program.tokens)] = torch.tensor(program.tokens)
        positions[row, : len(program.tokens)] = torch.tensor(program.positions)
        queries = [query for query, seen in enumerate(program.sees) for _ in seen]
        mask[row, queries, [column for seen in program.sees for column in seen]] = 0.0
        for query, seen in program.blind.items():
            mask[row, query, list(seen)] = _BLIND
        pairs = torch.tensor(program.columns)
        first[row, : len(pairs)], second[row, : len(pairs)] = pairs.masked_fill(pairs == BLANK, entries).T
    dtype = next(model.parameters()).dtype
    given: dict[str, Any] = {"use_cache": False}
    if not plain:
        layers = [_Columns(number, torn, first, second) for number in range(model.config.num_hidden_layers)]
        given = {"use_cache": True, "past_key_values": Cache(layers=layers)}
    logits: torch.Tensor = model(
        input_ids=ids, attention_mask=mask[:, None].to(dtype), position_ids=positions, **given
    ).logits
    return logits


class _Columns(DynamicLayer):  # type: ignore[misc]
    """Hands attention the columns of programs instead of their entries."""

    def __init__(self, number: int, torn: str, first: torch.Tensor, second: torch.Tensor) -> None:
        super().__init__()
        self.number, self.torn, self.first, self.second = number, torn, first, second

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        keys, values = (
            torch.cat([states, states.new_zeros((*states.shape[:2], 1, states.shape[3]))], 2).transpose(1, 2)
            for states in (key_states, value_states)
        )  # [programs, entries + 1, heads, width]
        row = torch.arange(len(keys))[:, None]
        at_keys = self.second if self.torn == "layers" and self.number else self.first
        at_values = self.second if self.torn == "values" else at_keys
        seen = [keys[row, at_keys], values[row, at_values]]
        if self.torn == "heads":
            other = [keys[row, self.second], values[row, self.second]]
            seen = [torch.cat([a[:, :, :1], b[:, :, 1:]], 2) for a, b in zip(seen, other, strict=True)]
        return tuple(states.transpose(1, 2) for states in seen)

    def get_seq_length(self, *args: Any) -> int:
        return 0

    def get_mask_sizes(self, *args: Any) -> tuple[int, int]:
        return self.first.shape[1], 0
