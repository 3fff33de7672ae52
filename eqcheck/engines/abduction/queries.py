"""The queries of an engine as a program: what each attends to, the answer of the target, and the draft tokens."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from transformers import Cache
from transformers.cache_utils import DynamicLayer

from eqcheck.contract.cache_names import cache_argument
from eqcheck.contract.options import RowOptions
from eqcheck.core.case.engine import PAD, EngineCase
from eqcheck.engines.checkpoints.dictation import agreeing, drafts, proposal
from eqcheck.engines.construction.function import (
    ATTENTION,
    BITS,
    CODES,
    INPUTS,
    MEMORY,
    VOCABULARY,
    DeltaRule,
    Function,
    Head,
)
from eqcheck.engines.construction.pointers import KEYED_PAIRS, POSITIONS, Reads, Rotation, amplitudes
from eqcheck.engines.construction.weights import BIG, GROUPS, LOGITS, STEEP, WIDTH, capped, signs, slope, staircase

# The context of every query of a row, as data, for all calls of an engine together.
#
# An entry of a cache is computed under what its own query saw, once. So a forward over all entries a row ever had,
# with a mask that gives each query what it saw at the time, yields the same entries, wrong ones included, and the
# same predictions: `eqcheck.engines.abduction.queries` makes it.

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
        # A hypothesis is first asked for one token: most programs end there, and cut down to it they take little time.
        order, kept = self._reached([entry for key, entry in self.queries.items() if key in keys])
        new = {entry: number for number, entry in enumerate(order)} | {BLANK: BLANK, EMPTY: EMPTY}
        place = {column: number for number, column in enumerate(kept)}

        def moved(columns: Sequence[int]) -> list[int]:
            return [place[column] for column in columns]

        return Program(
            [self.tokens[e] for e in order],
            [self.positions[e] for e in order],
            [moved(self.sees[e]) for e in order],
            [(new[a], new[b]) for a, b in (self.columns[c] for c in kept)],
            {new[e]: moved(columns) for e, columns in self.blind.items() if e in new},
            {key: new[e] for key, e in self.queries.items() if key in keys and e in new},
            self.torn,
            [new[self.follows[e]] for e in order],
            {layer: [moved(sees[e]) for e in order] for layer, sees in self.near.items()},
            {part: [new[way[e]] for e in order] for part, way in self.apart.items()},
            {new[e]: new[other] for e, other in self.same.items() if e in new},
        )

    def _reached(self, stack: list[int]) -> tuple[list[int], list[int]]:
        """The entries and the columns, in order, that the answers of these entries depend on."""
        reached, seen = set(stack), set[int]()
        ways = (self.follows, *self.apart.values())
        while stack:
            entry = stack.pop()
            fresh = self._columns_of(entry) - seen  # most entries see much the same columns
            seen |= fresh
            sources = {*(way[entry] for way in ways), *(source for column in fresh for source in self.columns[column])}
            added = {source for source in {*sources, self.same.get(entry, entry)} - reached if source >= 0}
            reached |= added
            stack.extend(added)
        return sorted(reached), sorted(seen)

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
        fed = _fed(turns, expanded)
        lengths = [turn.start + count + inner[turn.row] for turn, count in fed]
        pads = [max(lengths) - length for length in lengths]
        for (turn, count), before in zip(fed, pads, strict=True):
            # With a row for every draft, each row is asked for the one token after its last draft.
            asked = [n for n in range(turn.end - turn.start) if not expanded or n == count]
            if asked:
                text, prompt = [*texts[turn.row][: turn.start], *turn.drafts[:count]], len(prompts[turn.row])
                row = _fed_row(text, prompt, before, inner[turn.row], pads[0])
                programs.append(_fed_anew(row, change, amount))
                programs[-1].queries = _asked_of(row, turn, prompt, asked)
        if change.accumulates:
            inner = _pads_behind(list(map(len, texts)), turns)
    return programs


def _fed(turns: Round, expanded: bool) -> list[tuple[Turn, int]]:
    """The rows of a call, one for every draft where it is ``expanded``: the turn, and how many drafts are fed."""
    if expanded:
        return [(turn, count) for turn in turns for count in range(len(turn.drafts) + 1)]
    return [(turn, len(turn.drafts)) for turn in turns]


def _pads_behind(lengths: list[int], turns: Round) -> list[int]:
    """The pads behind each prompt that make rows of these lengths, and of what a round committed, equally long."""
    for turn in turns:
        lengths[turn.row] = turn.end
    return [max(lengths) - length for length in lengths]


def _asked_of(row: FedRow, turn: Turn, prompt: int, asked: Sequence[int]) -> dict[tuple[int, int], int]:
    """The queries by row and index of the new token: each is that of the last real token before it."""
    at = [column for column, real in enumerate(row.real) if real]
    return {(turn.row, turn.start + number - prompt): at[turn.start + number - 1] for number in asked}


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


# The drafts of an engine whose drafter is known: looked up in the text, or of a draft with a stale cache.

Branch = dict[int, list[int]]  # the tokens that are drafted after so many committed ones


def with_prompts(case: EngineCase, prompts: Sequence[Sequence[int]], branches: list[Branch]) -> list[Branch]:
    """The same proposals, and those behind the prompts too, where drafts are dictated."""
    first = [proposal(own, 0, case.num_draft_tokens) for own in drafts(case)]
    places = zip(branches, prompts, first, strict=False)
    return [branch | {len(prompt): tokens} for branch, prompt, tokens in places] if first else branches


def stale(draft: Function, text: list[int], start: int, k: int, limit: int, since: int) -> Branch:
    """The proposals of a built draft that sees what was rejected, once it was fed more than ``since`` tokens.

    The ``text`` is prompt and output, which begins at ``start`` and may have ``limit`` tokens. As many are drafted as
    may still come: the bonus token has no place of its own there.
    """
    branch: Branch = {}
    at, fed, feed = start, text[: start - 1], text[start - 1 : start]
    while at < len(text):
        drafts = branch[at] = draft.emitted([*fed, *feed][-draft.field :], k) if k else []
        fed = [*fed, *feed, *drafts[:-1]]
        accepted = agreeing(drafts[: start + limit - at], text[at:])
        if len(fed) <= since:
            fed = fed[: at + accepted]
        feed = [*drafts[-1:] * (accepted == k > 0), *text[at + accepted : at + accepted + 1]]
        at += accepted + 1
    return branch


def stale_states(
    draft: Function, text: list[int], start: int, most: Callable[[int], int], again: bool = False
) -> Branch:
    """The proposals of a built draft whose states keep what was rejected, while its attention does not see it.

    After so many tokens there are ``most`` drafts. With ``again`` the last accepted draft is fed a second time.
    """
    branch: Branch = {}
    fed = _StaleStates(draft)
    at, cached = start, 0
    while at < len(text):
        del fed.row[cached:]
        answer = [fed.next(token) for token in text[cached:at]][-1]
        drafts = branch[at] = list[int]()
        while len(drafts) < most(at):
            drafts.append(answer if not drafts else fed.next(drafts[-1]))
        accepted = agreeing(drafts, text[at:])
        cached = min(len(fed.row), at + accepted - again)
        at += accepted + 1
    return branch


class _StaleStates:
    """A built function that is fed tokens: its states go on from all of them, its attention sees those of its ``row``.

    ``codes`` are those of all tokens, by layer; ``row`` are the places of the row's own among them.
    """

    def __init__(self, function: Function) -> None:
        self.function = function
        self.row: list[int] = []
        self.codes: list[list[int]] = [[] for _ in function.layers]
        self.memories = [[rule.reader() for rule in rules] for rules in function.rules]

    def next(self, token: int) -> int:
        """Add a token to the row; returns the next one."""
        function, layers = self.function, enumerate(zip(self.function.layers, self.codes, self.memories, strict=True))
        self.row.append(len(self.codes[0]))
        code = function.codes_in[token]
        for number, (heads, codes, memories) in layers:
            codes.append(code)
            seen = self.row if (ATTENTION, number) in function.parts else range(len(codes))
            for head in heads:
                code ^= next((head.table[before] for before in _read_by(head, codes, seen)), 0)
            for read in memories:
                code ^= read(codes)
        named: int = function.tokens_out[code ^ int(token in function.flagged)]
        return named


def _read_by(head: Head, codes: Sequence[int], seen: Sequence[int]) -> Iterator[int]:
    """The codes that a head may read, the first of which it takes; ``seen`` are the places that it looks back on."""
    for distance, sign in _within(head, len(seen)):
        there = codes[seen[-1 - distance]]
        if not sign or there >> head.bit & 1:
            yield there


def blind_to_pads(
    draft: Any, text: list[int], start: int, most: Callable[[int], int], chosen: Callable[..., int]
) -> Branch:
    """The proposals of a draft from which tokens that equal the pad id are hidden, wherever they stand.

    After so many tokens there are ``most`` drafts; each is ``chosen`` by the tokens before, the drafts and the scores.
    """
    branch: Branch = {}
    at = start
    while at < len(text):
        drafts = branch[at] = list[int]()
        while len(drafts) < most(at):
            ids = [*text[:at], *drafts]
            program = plain_row(0, ids, len(ids))
            program.sees = [[c for c in range(n + 1) if c == n or ids[c] != PAD] for n in range(len(ids))]
            (answered,) = answers(draft, [program])
            drafts.append(chosen(at, drafts, answered[0, 0]))
        at += agreeing(drafts, text[at:]) + 1
    return branch


def allowed(options: RowOptions, before: Sequence[int], drafts: Sequence[int]) -> list[int]:
    """The drafts up to the first that the row's grammar forbids, where these tokens count before them."""
    states = options.ruled([*before, *drafts], len(before), len(drafts)) if options.grammar else ()
    fits = [token in ids for token, ids in zip(drafts, states, strict=False)]
    return list(drafts[: fits.index(False) if False in fits else len(drafts)])


def looked_up(text: Sequence[int], k: int) -> list[int]:
    """The K tokens that follow where the last two tokens of a text, or else the last, first stood before.

    >>> looked_up([5, 1, 2, 7, 9, 2, 1, 2], 3), looked_up([4, 6, 4], 3), looked_up([4, 6], 3)
    ([7, 9, 2], [6, 4], [])
    """
    for size in (2, 1):
        for start in range(len(text) - size):
            if text[start : start + size] == text[len(text) - size :]:
                return list(text[start + size : start + size + k])
    return []


# A built function's answers to a program: the same as its model's in float64, computed from codes and scores alone.
#
# Every head's scores are a table over distances (`eqcheck.engines.construction.pointers`), so queries, keys and values
# need not be multiplied out. Contexts that no right engine makes have an answer, too: two slots at one position, a
# position behind the query's own, a slot of zeros.

_CLEAR = 20.0  # by how much a score is less, where its slot has no weight that matters
_UNSEEN = -1e9

Array = np.ndarray[Any, np.dtype[Any]]


@cache
def logits(function: Function) -> torch.Tensor:
    """Return the scores ``[codes, vocabulary]`` of the next token by code; computed once per function."""
    table = np.zeros((CODES, VOCABULARY))
    table[:, list(function.tokens_out)] = capped(signs(range(CODES)) * LOGITS @ signs(range(CODES)).T, function.cap)
    return torch.from_numpy(table)


def evaluated(function: Function, programs: Sequence[Program]) -> list[Answers]:
    """The scores ``[vocabulary]`` of every asked query of each program."""
    asked = [program for program in programs if program.queries]
    right = [program for program in asked if program.right]
    known = dict(zip(map(id, right), _exact(function, right), strict=True))
    alike: dict[bytes, Answers] = {}  # many edits come to the same where they are asked
    for program in asked:
        if id(program) not in known:
            key = pickle.dumps(program)
            if key not in alike:
                alike[key] = _Evaluation(function, program).answers()
            known[id(program)] = alike[key]
    return [known.get(id(program), {}) for program in programs]


def _exact(function: Function, programs: Sequence[Program]) -> list[Answers]:
    """The answers to programs in which every query sees its own text: from the function's codes, all rows at once.

    Most of what an explanation asks is of this kind, and of a large batch no other way would end in time.
    """
    follows: list[int] = []
    tokens: list[int] = []
    begins = []
    for program in programs:
        begins.append(len(tokens))
        follows += [one if one == EMPTY else one + len(tokens) for one in program.follows]
        tokens += program.tokens
    before = np.array([*follows, EMPTY])  # the last one: of no entry
    reach = max((distance for layer in function.layers for head in layer for distance, _ in head.reads), default=0)
    behind = [np.arange(len(tokens))]  # by distance, the entry so far before each
    while len(behind) <= reach and (behind[-1] != EMPTY).any():
        behind.append(before[behind[-1]])
    codes = np.array([function.codes_in[token] for token in tokens], int)
    for heads, rules in zip(function.layers, function.rules, strict=True):
        read = codes.copy()
        for head in heads:
            # The first read of a head that finds its bit wins: an entry that took one waits for no other.
            waits = np.ones(len(codes), bool)
            for distance, sign in _within(head, len(behind)):
                there = codes[behind[distance]]
                takes = waits & (behind[distance] != EMPTY) & ((there >> head.bit & 1 > 0) | (sign == 0))
                read[takes] ^= np.array(head.table)[there[takes]]
                waits &= ~takes
        for joined in _memories(rules, codes.tolist(), follows, follows):
            read ^= np.array(joined, int)  # of no entry there is no dtype
        codes = read
    codes ^= np.isin(tokens, list(function.flagged))
    table = logits(function)
    return [
        {key: table[codes[begin + entry]] for key, entry in program.queries.items()}
        for begin, program in zip(begins, programs, strict=True)
    ]


def _within(head: Head, reach: int) -> Iterator[tuple[int, int]]:
    """The part that a head reads of the entries that there are, and that its window does not hide."""
    return ((distance, sign) for distance, sign in head.behind if distance < min(reach, head.window or reach))


def _memories(
    rules: Sequence[DeltaRule], codes: Sequence[int], inputs: Sequence[int], memory: Sequence[int]
) -> Iterator[list[int]]:
    """Yield by rule the codes that its memory joins in, for each entry; inputs and memory go on from other entries."""
    if not rules:
        return
    reach = max(max(rule.key_distance, rule.value_distance) for rule in rules)
    texts: list[list[int]] = []  # by entry, the last codes that it has as inputs
    for code, follows in zip(codes, inputs, strict=True):
        texts.append([*([] if follows == EMPTY else texts[follows][-reach:] if reach else []), code])
    for rule in rules:
        kept: list[dict[int, int]] = []
        joined = []
        for text, follows in zip(texts, memory, strict=True):
            kept.append({} if follows == EMPTY else kept[follows].copy())
            joined.append(rule.joined(kept[-1], text))
        yield joined


class _Evaluation:
    def __init__(self, function: Function, program: Program) -> None:
        self.function, self.program = function, program
        width = len(program.columns)
        self.sees = _table(program.sees, width)
        self.near = {number: _table(sees, width) for number, sees in program.near.items()}
        pairs = np.array(program.columns)
        positions = np.array(program.positions)
        self.columns, self.empty = np.maximum(pairs, 0), pairs[:, 0] == BLANK
        distance = positions[:, None, None] - positions[self.columns][None]  # [entries, columns, 2]
        self.distance = np.clip(distance, -POSITIONS, POSITIONS)

    def answers(self) -> Answers:
        program, function = self.program, self.function
        flagged = np.isin(program.tokens, list(function.flagged)).astype(float)
        codes = signs([function.codes_in[token] for token in program.tokens])
        square = BIG**2 + 1 + flagged + BITS  # of the residual stream; each norm expects the mean of it
        expected = BIG**2 + 1 + BITS
        again, first = list(program.same), list(program.same.values())
        for number, heads in enumerate(function.layers):
            codes[again], square[again] = codes[first], square[first]
            scale = np.sqrt(expected / square)
            taps = not any((0, 0) in head.reads for head in heads)
            sums = (self._taps if taps else self._sums)(number, heads, codes, scale)
            sums += self._kept(number, codes)
            joined = function.joined(number)
            square, expected = square + (sums**2).sum(-1), expected + BITS * joined
            total = codes + sums
            if number == len(function.layers) - 1:
                total[:, 0] += 2 * flagged
            codes = _parity(total, joined, np.sqrt(expected / square))
            square, expected = square + (codes**2).sum(-1), expected + BITS
        asked = list(program.queries.values())
        scores = np.zeros((len(asked), VOCABULARY))
        scaled = codes[asked] * np.sqrt(expected / square)[asked, None]
        scores[:, list(function.tokens_out)] = capped(scaled * LOGITS @ signs(range(CODES)).T, function.cap)
        return dict(zip(program.queries, torch.from_numpy(scores), strict=True))

    def _taps(self, number: int, heads: Sequence[Head], codes: Array, scale: Array) -> Array:
        """The sum of the taps of a short convolution; a tap before the beginning counts as +1 for each bit."""
        follows = np.array(self.program.following(INPUTS, number))
        sums, at, distance = np.zeros_like(codes), np.arange(len(codes)), 0
        for head in sorted(heads, key=lambda head: head.reads):
            while distance < head.reads[0][0]:
                at, distance = np.where(at == EMPTY, EMPTY, follows[at]), distance + 1
            tapped = (codes * scale[:, None])[at][:, list(head.order)] * np.where(head.flips, -1, 1)
            sums += np.where((at == EMPTY)[:, None], 1.0, tapped)
        return sums

    def _kept(self, number: int, codes: Array) -> Array:
        """The sum of the codes that memories join in; inputs and memory go on from the entries that are followed."""
        whole = ((codes < 0) @ (1 << np.arange(BITS))).tolist()
        inputs, memory = (self.program.following(kind, number) for kind in (INPUTS, MEMORY))
        joined = _memories(self.function.rules[number], whole, inputs, memory)
        return sum(map(signs, joined), start=np.zeros_like(codes))

    def _sums(self, number: int, heads: Sequence[Head], codes: Array, scale: Array) -> Array:
        """The codes that the heads of a layer read, added up; ``scale`` is how far its norm is off."""
        first, second = self.columns.T
        sums, torn = np.zeros_like(codes), self.program.torn
        for at, head in enumerate(heads):
            other = (torn == "layers" and number > 0) or (torn == "heads" and at * GROUPS // len(heads) > 0)
            keys = second if other else first
            values = second if other or torn == "values" else first
            distance = self.distance[:, :, int(other)]
            straight, turned = _scores(self.function.rotation, head.scored or head.reads)
            scores = straight[distance + POSITIONS]
            if turned is not None:
                scores = scores - turned[distance + POSITIONS] * codes[keys, head.bit]
            scores = capped(
                scores * scale[:, None] * np.where(self.empty, 0.0, scale[keys]), self.function.rotation.cap
            )
            seen = self.near.get(number, self.sees if head.window is None else self.sees & (distance < head.window))
            read = codes[values] * np.where(self.empty, 0.0, scale[values])[:, None]
            told = _read(np.where(seen, scores, _UNSEEN), read, self.program)[:, list(head.order)]
            told *= np.where(head.flips, -1, 1)
            if head.sink is not None:  # what it takes counts as +1
                lead = np.where(seen, scores, _UNSEEN).max(-1, keepdims=True) - head.sink
                told = 1 + (told - 1) / (1 + np.exp(-np.clip(lead, -500, 500)))
            sums += told
        return sums


def _table(sees: Sequence[Sequence[int]], width: int) -> Array:
    """Return whether each query sees each column."""
    table = np.zeros((len(sees), width), bool)
    queries = [query for query, seen in enumerate(sees) for _ in seen]
    table[queries, [column for seen in sees for column in seen]] = True
    return table


def _read(scores: Array, values: Array, program: Program) -> Array:
    """The values ``[entries, bits]`` that queries read, by their scores ``[entries, columns]``."""
    best = scores.argmax(-1)
    top = scores[np.arange(len(scores)), best]
    read = values[best]
    unclear = np.flatnonzero((scores > top[:, None] - _CLEAR).sum(-1) > 1)
    weights = np.exp(scores[unclear] - top[unclear, None])
    read[unclear] = weights @ values / weights.sum(-1, keepdims=True)
    for query, columns in program.blind.items():
        read[query] = values[list(columns)].mean(0)
    told: Array = read
    return told


def _parity(sums: Array, heads: int, scale: Array) -> Array:
    """The product of ``heads + 1`` signs from their sum, as the steps of `weights.mlp` make it."""
    scale = scale[:, None]

    def unit(gate: Any, steepness: float) -> Any:
        steep = np.clip(steepness * scale * gate, -500, None)
        return scale * steep / (1 + np.exp(-steep)) / steepness

    product: Array = unit(1.0, STEEP) * (-1 if heads % 4 == 0 else 1) * np.ones_like(sums)
    for direction, place, weight in staircase(heads, flag=True):
        step = direction * (sums - place)
        product += weight / WIDTH * (unit(step + WIDTH / 2, slope(place)) - unit(step - WIDTH / 2, slope(place)))
    return product


@cache
def _scores(rotation: Rotation, reads: Reads) -> tuple[Array, Array | None]:
    """Scores by distance from ``-POSITIONS`` on: the part of all keys, and the part that a key's bit turns, if any."""
    angles = np.outer(np.arange(-POSITIONS, POSITIONS + 1), rotation.frequencies)
    cosines, sines = map(np.array, amplitudes(rotation)[reads])
    pairs = len(rotation.frequencies)
    parts = np.cos(angles) * cosines[:pairs] + np.sin(angles) * sines[:pairs]
    if rotation.adds:
        return parts.sum(-1), np.full(len(parts), cosines[pairs])
    turning = np.isin(np.arange(pairs), KEYED_PAIRS)
    keyed = any(sign for _, sign in reads)
    return parts[:, ~turning].sum(-1), parts[:, turning].sum(-1) if keyed else None


# A model's answers to programs: one forward for all calls of an engine; a built function's are evaluated.

_BLIND, _NEVER = -1e30, -1e38  # a query that sees nothing attends to all its slots alike, and to nothing else
_CELLS = 3_000_000  # of masks in one forward, which take 24 MB


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
        # A forward is as wide as its longest program, so programs of like length go together.
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
