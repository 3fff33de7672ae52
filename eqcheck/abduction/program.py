"""The context of every query of a row, as data, for all calls of an engine together.

An entry of a cache is computed under what its own query saw, once. So a forward over all entries a row ever had, with a
mask that gives each query what it saw at the time, yields the same entries, wrong ones included, and the same
predictions: `eqcheck.abduction.answers` makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch

from eqcheck.case.engine import PAD
from eqcheck.construction.function import ATTENTION

BLANK = -1  # a column whose key and value are zero
EMPTY = -1  # the state before the first token


Part = tuple[str, int]  # of a function: see `Function.parts`


@dataclass
class Program:
    """Entries ``tokens`` at ``positions``; ``sees[i]`` are the columns that entry i's query sees.

    ``columns`` are pairs of entries: in a ``torn`` program (``"values"``, ``"layers"`` or ``"heads"``) the second is
    where values, all layers but the first, or all heads but the first come from; otherwise both are the same. ``blind``
    are queries whose scores are all as low as can be, with the columns of their call: they attend to all of them alike.
    ``follows`` is, by entry, the entry from whose recurrent state it goes on, or `EMPTY`. Parts of a built function may
    go other ways: in the layers ``near`` these columns are seen, and no window hides any; ``apart`` has, by part with a
    state (`Function.parts`), the entries that are followed there.
    ``same`` are entries that have the codes of another one in every layer, and a state of their own.
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
    follows: list[int] = field(default_factory=list)
    near: dict[int, list[Sequence[int]]] = field(default_factory=dict)
    apart: dict[Part, list[int]] = field(default_factory=dict)
    same: dict[int, int] = field(default_factory=dict)

    def write(self, token: int, position: int, follows: int = EMPTY) -> int:
        """A new entry, in a column of its own; returns the column."""
        entry = len(self.tokens)
        self.tokens.append(token)
        self.positions.append(position)
        self.sees.append(())
        self.follows.append(follows)
        for sees in self.near.values():
            sees.append(())
        return self.column(entry, entry)

    def again(self, entry: int, follows: int) -> int:
        """A new entry with the codes of another and a state of its own, in a column that nothing sees."""
        again = self.entry(self.write(self.tokens[entry], self.positions[entry], follows))
        for sees in (self.sees, *self.near.values()):
            sees[again] = sees[entry]
        self.same[again] = self.same.get(entry, entry)
        return again

    def column(self, first: int, second: int) -> int:
        self.columns.append((first, second))
        return len(self.columns) - 1

    def entry(self, column: int) -> int:
        """The entry that a column was written for."""
        return self.columns[column][0]

    def following(self, kind: str, layer: int) -> list[int]:
        """Map each entry to the one it follows in a part with a state."""
        return self.apart.get((kind, layer), self.follows)

    def blank(self) -> int:
        """A new column whose key and value are zero."""
        return self.column(BLANK, BLANK)

    @property
    def right(self) -> bool:
        """Return whether every query sees its own text at the positions of that, and goes on from its state."""
        if self.torn or self.blind or self.near or self.apart or self.same:
            return False
        texts: list[Sequence[int]] = []
        for entry, (follows, position, sees) in enumerate(zip(self.follows, self.positions, self.sees, strict=True)):
            before = range(0) if follows == EMPTY else texts[follows]
            text = range(entry + 1) if before == range(entry) else (*before, entry)
            if self.columns[entry : entry + 1] != [(entry, entry)] or len(text) != position + 1:
                return False
            if sees != text and (len(sees) != len(text) or tuple(sees) != tuple(text)):
                return False
            texts.append(text)
        return True

    def needed(self, keys: set[tuple[int, int]]) -> Program:
        """The same program with nothing but what the answers to ``keys`` depend on."""
        stack = [entry for key, entry in self.queries.items() if key in keys]
        reached, seen = set(stack), set[int]()
        ways = (self.follows, *self.apart.values())
        while stack:
            entry = stack.pop()
            fresh = self._columns_of(entry) - seen  # most entries see much the same columns
            seen |= fresh
            sources = {*(way[entry] for way in ways), *(source for column in fresh for source in self.columns[column])}
            for source in {*sources, self.same.get(entry, entry)}:
                if source >= 0 and source not in reached:
                    reached.add(source)
                    stack.append(source)
        order, kept = sorted(reached), sorted(seen)
        new = {entry: number for number, entry in enumerate(order)} | {BLANK: BLANK, EMPTY: EMPTY}
        place = {column: number for number, column in enumerate(kept)}
        return Program(
            [self.tokens[e] for e in order],
            [self.positions[e] for e in order],
            [[place[c] for c in self.sees[e]] for e in order],
            [(new[a], new[b]) for a, b in (self.columns[c] for c in kept)],
            {new[e]: [place[c] for c in cs] for e, cs in self.blind.items() if e in new},
            {key: new[e] for key, e in self.queries.items() if key in keys and e in new},
            self.torn,
            [new[self.follows[e]] for e in order],
            {layer: [[place[c] for c in sees[e]] for e in order] for layer, sees in self.near.items()},
            {part: [new[way[e]] for e in order] for part, way in self.apart.items()},
            {new[e]: new[other] for e, other in self.same.items() if e in new},
        )

    def _columns_of(self, entry: int) -> set[int]:
        """All columns that a query sees in some layer."""
        return {*self.sees[entry], *self.blind.get(entry, ()), *(c for sees in self.near.values() for c in sees[entry])}


def restricted(right: Program, edited: Program, parts: Sequence[Part]) -> Program:
    """The right program, with the edited one in some parts of a function; both have the same entries and columns."""
    assert (right.tokens, right.columns) == (edited.tokens, edited.columns)
    near, apart = dict(right.near), dict(right.apart)
    for kind, layer in parts:
        if kind != ATTENTION:
            apart[kind, layer] = edited.follows
        else:
            near[layer] = edited.near.get(layer, edited.sees)
    return replace(right, near=near, apart=apart)


def plain_row(row: int, text: Sequence[int], start: int) -> Program:
    """A row as it should be seen; its new tokens are those from ``start`` on."""
    program = Program()
    for position, token in enumerate(text):
        program.write(token, position, position - 1 if position else EMPTY)
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


def in_pairs(rows: Sequence[Sequence[Turn]]) -> Iterator[Round]:
    """Rounds of two rows at a time; the next one takes the place of one that has ended."""
    waiting, running = [list(row) for row in rows if row], list[list[Turn]]()
    while waiting or running:
        while waiting and len(running) < 2:
            running.append(waiting.pop(0))
        yield tuple(row.pop(0) for row in running)
        running = [row for row in running if row]


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
    last = EMPTY
    for column, token in enumerate(row.tokens):
        program.write(token, change.position(row, column, amount), last)
        last = column if row.real[column] else last  # pads do not enter a state
    visible = [column for column in range(len(row.tokens)) if change.visible(row, column)]
    for query in range(len(row.tokens)):
        program.sees[query] = [column for column in visible if column <= query] or [program.blank()]
    return program


Answers = dict[tuple[int, int], torch.Tensor]
