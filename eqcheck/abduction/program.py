"""What every query of a row saw, as data, and the model's answer to it: one forward stands for all calls of an engine.

An entry of a cache is computed under what its own query saw, once. So a forward over all entries a row ever had, with a
mask that gives each query what it saw at the time, yields the same entries, also those that are wrong because of what
was seen before, and the same predictions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import Cache
from transformers.cache_utils import DynamicLayer

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


Answers = dict[tuple[int, int], torch.Tensor]


def answers(model: Any, programs: Sequence[Program]) -> list[Answers]:
    """The scores ``[vocabulary]`` of every asked query of each program."""
    found: list[Answers] = [{} for _ in programs]
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
                found[number] = {key: logits[row, entry] for key, entry in programs[number].queries.items()}
    return found


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
