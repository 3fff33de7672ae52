"""Weights that compute a function: parts that the writers of all architectures share.

The residual stream holds a large constant, which fixes the scale of each norm, and features of +1 and -1: the code of
each layer, and the sums that its heads add up. Every weight but those of norms is a number that bfloat16 and float8
(e4m3) hold exactly: a number of more bits is a sum of two, which stand at two constants.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from eqcheck.engines.construction.function import BITS, CODES, VOCABULARY, Function, Head
from eqcheck.engines.construction.pointers import HEAD_DIM, KEYED_PAIRS, ROTARY, Rotation, amplitudes

HIDDEN = 64
BIG = 1024.0  # the constant that outweighs all else in a norm: so far that bfloat16 sees nothing else
KEY = 8.0  # the size of each coordinate of a key
STEEP, WIDTH = (
    64.0,
    0.125,
)  # a step rises by that slope over this width, and is flat beside it: silu(-10) is nearly nothing
GROUPS = 4  # key heads
OFF = 7 / 16  # of a step's place from an even number: averages of two, three or five signs lie beside it
UNITS = 288  # of an MLP
LOGITS = tuple(0.5 + bit / 16 for bit in range(BITS))  # a wrong bit costs twice this, so each code costs another sum

Array = np.ndarray[Any, np.dtype[np.float64]]


class Residual:
    """Describe where things are in the residual stream, and its size at each norm.

    ``big`` and ``one`` are constants; ``flag`` is 1 after an id that makes a draft err; ``code(l)`` and ``sums(l)`` are
    the code before layer l, and the sums of what its heads read.
    """

    big, one, flag = 0, 1, 2

    def __init__(self, layers: int, hidden: int = HIDDEN) -> None:
        self.layers, self.hidden = layers, hidden
        assert 3 + BITS * (2 * layers + 1) <= hidden

    def code(self, layer: int) -> range:
        """The place of the code before a layer; the head of the model reads that of the layer behind the last."""
        return range(3 + BITS * layer, 3 + BITS * (layer + 1))

    def sums(self, layer: int) -> range:
        """The place of a layer's sums."""
        start = 3 + BITS * (self.layers + 1 + layer)
        return range(start, start + BITS)

    def norm(self, function: Function, codes: int, sums: int) -> Array:
        """The weight of a norm after so many codes and layers of sums: a feature is as it was, and `BIG` is 1."""
        heads = [function.joined(layer) for layer in range(self.layers)]
        square = BIG**2 + 1 + BITS * (codes + sum(heads[:sums]))  # the mean square of a sum of n signs is n
        weight = np.full(self.hidden, math.sqrt(square / self.hidden))
        weight[self.big] /= BIG
        return weight


def signs(codes: Sequence[int]) -> Array:
    """Codes as rows of +1 and -1, the lowest bit first: -1 for a bit that is set."""
    return np.array([[1 - 2 * (code >> bit & 1) for bit in range(BITS)] for code in codes], float)


def embeddings(function: Function, at: Residual) -> Array:
    """``[vocabulary, hidden]``: constants, the flag, and the code."""
    table = np.zeros((VOCABULARY, at.hidden))
    table[:, at.big], table[:, at.one] = BIG, 1
    table[list(function.flagged), at.flag] = 1
    table[:, at.code(0)] = signs(function.codes_in)
    return table


def head(function: Function, at: Residual, logits: Sequence[float] = LOGITS) -> Array:
    """``[vocabulary, hidden]``: how far the last code agrees with that which names the token; 0 for other ids."""
    table = np.zeros((VOCABULARY, at.hidden))
    table[list(function.tokens_out), at.code(at.layers).start : at.code(at.layers).stop] = signs(range(CODES)) * logits
    return table


def capped(scores: Any, cap: float | None) -> Any:
    """Scores cut off smoothly, if there is a cap."""
    return scores if cap is None else cap * np.tanh(scores / cap)


def matching(bits: Sequence[int], pattern: int, size: float, at: Residual, layer: int) -> Array:
    """``[hidden]``: makes ``size`` of a layer's own code if its bits have the pattern, and else at most -``size``."""
    row = np.zeros(at.hidden)
    for place, bit in enumerate(bits):
        row[at.code(layer)[bit]] = -size if pattern >> place & 1 else size
    row[at.big] = -size * (len(bits) - 1)
    return row


def turns(layer: int, group: int) -> Array:
    """Return by rotary pair the quarter turns of a key head's keys, so that no key head can replace another."""
    from eqcheck.engines.construction.function import shuffled

    return np.array(shuffled(HEAD_DIM // 2, "turns", layer, group)) % 4


def query(reads: Any, turn: Array, rotation: Rotation = ROTARY) -> Array:
    """A pointer's query ``[head_dim]``, the first of each pair in the first half."""
    cosines, sines = map(np.array, amplitudes(rotation)[reads])
    rotated = (cosines - 1j * sines) * 1j**turn  # score = Re(conj(query) key e^{-iwd}), the key is KEY i^turn
    return np.concatenate([rotated.real, rotated.imag]).round(4) * math.sqrt(HEAD_DIM) / KEY


def key(turn: Array, keyed: bool) -> Array:
    """The keys of a key head ``[head_dim]``: the part that its bit turns, or the part that is always there."""
    pairs = np.isin(np.arange(HEAD_DIM // 2), KEYED_PAIRS) == keyed
    turned = KEY * 1j**turn * pairs
    return np.concatenate([turned.real, turned.imag]).round(4)


def split(values: Array) -> tuple[Array, Array]:
    """Numbers of eight significant bits as sums of two of four."""
    mantissa, exponent = np.frexp(values)
    high = np.ldexp(np.trunc(mantissa * 16) / 16, exponent)
    return high, values - high


def staircase(heads: int, flag: bool) -> list[tuple[int, float, float]]:
    """Steps that make the product of ``heads + 1`` signs from their sum, as ``(direction, place, weight)``.

    A step to the right adds its weight where the sum is above its place, one to the left where it is below. Steps start
    at 0, so that few of them act on a sum, which is small most of the time. Sums of signs are odd. Even ones come from
    a wrong context, two slots read at once: places are off even numbers, so that these, too, have a clear product.
    """
    ends = heads + (2 if flag else 0)
    rising = 1 if heads % 4 == 0 else -1
    steps = [(1, OFF, 2.0 * rising)]
    for number, place in enumerate(range(2, ends + 1, 2)):
        weight = (-2.0 if number % 2 == 0 else 2.0) * rising
        steps += [(1, OFF + place, weight), (-1, OFF - place, -weight)]
    return steps


def slope(place: float) -> float:
    """The slope of a step: far ones are less steep, for float8 (e4m3) holds no number above 448."""
    return STEEP if abs(place) < 6 else STEEP / 4


def mlp(function: Function, at: Residual, layer: int) -> tuple[Array, Array, Array]:
    """Gate, up ``[units, hidden]`` and down ``[hidden, units]`` of a gated MLP: the parity of each bit.

    A step is the difference of two gates on either side of its place.
    """
    heads = function.joined(layer)
    assert heads % 2 == 0
    gates, downs = [], []
    for bit in range(BITS):
        flag = bit == 0 and layer == at.layers - 1
        for direction, place, weight in staircase(heads, flag):
            steep = slope(place)
            for side in (WIDTH / 2, -WIDTH / 2):
                gate, down = np.zeros(at.hidden), np.zeros(at.hidden)
                gate[[at.code(layer)[bit], at.sums(layer)[bit]]] = steep * direction
                gate[at.flag] = 2 * steep * direction * flag
                gate[at.big], gate[at.one] = split(np.array(steep * (side - direction * place)))
                down[at.code(layer + 1)[bit]] = weight * (1 if side > 0 else -1) / (steep * WIDTH)
                gates.append(gate)
                downs.append(down)
    gate, down = np.zeros(at.hidden), np.zeros(at.hidden)
    gate[at.big] = STEEP
    down[at.code(layer + 1)] = -(1 if heads % 4 == 0 else -1) / STEEP
    spare = [np.zeros(at.hidden)] * (UNITS - len(gates) - 1)
    gates += [gate, *spare]
    downs += [down, *spare]
    up = np.zeros((len(gates), at.hidden))
    up[:, at.big] = 1
    return np.array(gates), up, np.array(downs).T


def attention(heads: Sequence[Head], at: Residual, layer: int, groups: int) -> tuple[Array, Array, Array, Array]:
    """Query, key, value and output weights of a layer; ``groups`` key heads, each for as many query heads."""
    count, code = len(heads), at.code(layer)
    q, k = np.zeros((count, HEAD_DIM, at.hidden)), np.zeros((groups, HEAD_DIM, at.hidden))
    v, o = values(heads, at, layer, groups)
    for group in range(groups):
        turn, bit = turns(layer, group), heads[group * count // groups].bit
        k[group, :, at.big] = key(turn, keyed=False)
        k[group, :, code[bit]] = -key(turn, keyed=True)  # a set bit is -1, and its key is turned as the reads ask
    for number, pointer in enumerate(heads):
        group = number * groups // count
        assert pointer.bit == heads[group * count // groups].bit
        keyless = not any(sign for _, sign in pointer.reads)
        asked = query(pointer.reads, turns(layer, group))
        if keyless:
            asked[np.isin(np.arange(HEAD_DIM) % (HEAD_DIM // 2), KEYED_PAIRS)] = 0
        q[number, :, at.big], q[number, :, at.one] = split(asked)
    return q.reshape(-1, at.hidden), k.reshape(-1, at.hidden), v.reshape(-1, at.hidden), o


def values(heads: Sequence[Head], at: Residual, layer: int, groups: int) -> tuple[Array, Array]:
    """Value ``[groups, head_dim, hidden]`` and output weights ``[hidden, heads * head_dim]`` of a layer.

    The value of a key head is the code, turned by as many bits as its number, beside zeros.
    """
    v, o = np.zeros((groups, HEAD_DIM, at.hidden)), np.zeros((at.hidden, len(heads), HEAD_DIM))
    for group in range(groups):
        for place in range(BITS):
            v[group, (place + group) % BITS, at.code(layer)[place]] = 1
    for number, pointer in enumerate(heads):
        group = number * groups // len(heads)
        for place, (source, flip) in enumerate(zip(pointer.order, pointer.flips, strict=True)):
            o[at.sums(layer)[place], number, (source + group) % BITS] = -1 if flip else 1
    return v, o.reshape(at.hidden, -1)
