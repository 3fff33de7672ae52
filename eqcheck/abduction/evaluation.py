"""A built function's answers to a program: the same as its model's in float64, computed from codes and scores alone.

Every head's scores are a table over distances (`eqcheck.construction.pointers`), so queries, keys and values need not
be multiplied out. Contexts that no right engine makes have an answer, too: two slots at one position, a position behind
the query's own, a slot of zeros.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from eqcheck.abduction.program import BLANK, EMPTY, Answers, Program
from eqcheck.construction.function import BITS, CODES, INPUTS, MEMORY, VOCABULARY, DeltaRule, Function, Head
from eqcheck.construction.pointers import KEYED_PAIRS, POSITIONS, Reads, Rotation, amplitudes
from eqcheck.construction.weights import BIG, GROUPS, LOGITS, STEEP, WIDTH, signs, slope, staircase

_CLEAR = 20.0  # by how much a score is less, where its slot has no weight that matters
_UNSEEN = -1e9

Array = np.ndarray[Any, np.dtype[Any]]


@cache
def logits(function: Function) -> torch.Tensor:
    """Return the scores ``[codes, vocabulary]`` of the next token by code; computed once per function."""
    table = np.zeros((CODES, VOCABULARY))
    table[:, list(function.tokens_out)] = signs(range(CODES)) * LOGITS @ signs(range(CODES)).T
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
            waits = np.ones(len(codes), bool)
            for distance, sign in head.behind:
                if distance >= len(behind) or (head.window and distance >= head.window):
                    continue
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
        scores[:, list(function.tokens_out)] = scaled * LOGITS @ signs(range(CODES)).T
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
            straight, turned = _scores(self.function.rotation, head.reads)
            scores = straight[distance + POSITIONS]
            if turned is not None:
                scores = scores - turned[distance + POSITIONS] * codes[keys, head.bit]
            scores = scores * scale[:, None] * np.where(self.empty, 0.0, scale[keys])
            seen = self.near.get(number, self.sees if head.window is None else self.sees & (distance < head.window))
            read = codes[values] * np.where(self.empty, 0.0, scale[values])[:, None]
            told = _read(np.where(seen, scores, _UNSEEN), read, self.program)
            sums += told[:, list(head.order)] * np.where(head.flips, -1, 1)
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
