"""A model's answers to programs: one forward for all calls of an engine; a built function's are evaluated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import Cache
from transformers.cache_utils import DynamicLayer

from eqcheck.abduction.evaluation import evaluated
from eqcheck.abduction.program import BLANK, Answers, Program
from eqcheck.construction.function import Function
from eqcheck.contract.cache_names import cache_argument

_BLIND, _NEVER = -1e30, -1e38  # a query that sees nothing attends to all its slots alike, and to nothing else
_CELLS = 3_000_000  # of masks in one forward


def answers(model: Any, programs: Sequence[Program]) -> list[Answers]:
    """The scores ``[vocabulary]`` of every asked query of each program; ``model`` may be a built `Function`."""
    if isinstance(model, Function):
        return evaluated(model, programs)
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
        given = {"use_cache": True, **cache_argument(model, Cache(layers=layers))}
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
