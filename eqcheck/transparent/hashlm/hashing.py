"""The hash that stands in for attention, in exact 64-bit integers (numpy ``uint64``, wrapping).

A cache entry is `WIDTH` digits of base 256, least significant first, so that it survives float32, float16 and
bfloat16. They spell these fields:

    STAMP      0 where nothing was written, else which model wrote it for which layer, K or V, and head
    TOKEN      the token fed
    POSITION   the position id fed with it (24 bits, two's complement)
    HIGH, LOW  the upper and lower 24 bits of its digest (layer 1; zero in layer 0)
    CALL, ROW, COLUMN   the identity of the write: which forward call, which row, which column

No two of K and V, heads, layers, models and weights have the same stamp. So K handed out as V, heads or layers
exchanged, an entry of the other model or of the same one under other weights, and any scale, sign or roll of a tensor
change the hash, as they change a real model's attention. The mixing function is the finaliser of SplitMix64 (Steele,
Lea, Flood 2014, https://doi.org/10.1145/2660193.2660195).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt

from eqcheck.contract.family import Family

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]

MODEL, TOKEN, POSITION, HIGH, LOW, CALL, ROW, COLUMN, PLACE = range(9)  # of decoded entries, see `decoded`
_DIGITS = (1, 3, 3, 3, 3, 3, 2, 2)  # of the fields from the stamp to the column
_STARTS = tuple(sum(_DIGITS[:field]) for field in range(len(_DIGITS)))
WIDTH = sum(_DIGITS)
HEADS = 2
LAYERS = 2
PLACES = LAYERS * 2 * HEADS  # the tensors, by head, in which an entry has a copy
WEIGHTS = 3  # so many seeds in a row write entries that differ
NO_MODEL, OTHER_WEIGHTS = 3, 4  # of MODEL, beside the models
TABLE_ROWS = 4096
NOT_A_NUMBER = np.iinfo(np.int64).min
_HALF = np.uint64(24)
_HALF_MASK = np.uint64((1 << 24) - 1)
_GAMMA = 0x9E3779B97F4A7C15


def mix(x: Words) -> Words:
    """Scramble each 64-bit word; a bijection."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def multipliers(stream: int, count: int) -> Words:
    """Fixed odd multipliers."""
    start = np.uint64((stream * _GAMMA) % 2**64)
    return mix(start + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GAMMA)) | np.uint64(1)


_FIELD = np.repeat(np.arange(len(_DIGITS)), _DIGITS)  # which field each digit belongs to
_PLACE_VALUE = np.concatenate([256 ** np.arange(count) for count in _DIGITS])
_BYTE = np.concatenate([8 * field + np.arange(count) for field, count in enumerate(_DIGITS)])  # of fields as int64
POSITION_DIGITS = slice(_STARTS[POSITION], _STARTS[POSITION] + _DIGITS[POSITION])
_CONTENT = int(_STARTS[CALL])  # the digits before the identity of the write
CONTENT = slice(1, _CONTENT)  # the digits before it that say what was fed and seen
_COPY = multipliers(1, 2 * HEADS * 5).reshape(2, 1, HEADS, 1, 5)  # per K or V, and head: one constant a field
_ENTRY = np.zeros((2, 1, HEADS, 1, WIDTH), np.uint64)
_ENTRY[..., :_CONTENT] = _COPY[..., _FIELD[:_CONTENT]] * _PLACE_VALUE[:_CONTENT].astype(np.uint64)
_INTACT = _COPY.sum(axis=(0, 1, 2, 3), dtype=np.uint64)
_TOKEN, _QUERY_POSITION, _CARRY, _LAYER, _DISTANCE = multipliers(2, 5)
_GARBLED, _BIAS, _STRANGE = multipliers(3, 3)
CHECK = 16  # the digit of a hidden state that checks those before it
_WEIGHTS = np.arange(1.0, CHECK + 1)
_CLUTTER = multipliers(4, 256)


# Primes, so that a scaled stamp is none.
_MARKS = np.array(
    """17 19 23 29 31 37 41 43 47 53 59 61 67 71 73 79
    83 89 97 101 103 107 109 113 127 131 137 139 149 151 157 163
    167 173 179 181 191 193 197 199 211 223 227 229 233 239 241 251""".split(),  # noqa: SIM905
    np.int64,
)
_STAMPS = _MARKS.reshape(WEIGHTS, 2, LAYERS, 2, HEADS)  # by weights, model, layer, K or V, and head
_STAMPED = np.full(256, -1)  # which of them a stamp is
_STAMPED[_MARKS] = np.arange(len(_MARKS))
_STAMP_WORDS = (_STAMPS.astype(np.uint64)[..., None, :, None] * _COPY[..., MODEL]).sum(axis=(3, 4, 5, 6))


def entries(
    model: int,
    layer: int,
    tokens: Ints,
    positions: Ints,
    digests: Words | None,
    call: int,
    weights: int = 0,
) -> npt.NDArray[np.float64]:
    """The cache entries of a block of tokens: ``[2 (K, V), batch, HEADS, block, WIDTH]`` float64.

    ``weights``, below `WEIGHTS`, are those of the model, which its entries are marked with.
    """
    batch, block = tokens.shape
    fields = np.zeros((batch, block, len(_DIGITS)), np.int64)
    fields[..., TOKEN] = tokens
    fields[..., POSITION] = positions
    if digests is not None:
        fields[..., HIGH] = high(digests)
        fields[..., LOW] = digests & _HALF_MASK
    fields[..., CALL] = call
    fields[..., ROW] = np.arange(batch)[:, None]
    fields[..., COLUMN] = np.arange(block)
    out = np.empty((2, batch, HEADS, block, WIDTH))
    out[:] = fields.view(np.uint8)[..., _BYTE][None, :, None]
    out[..., 0] = _STAMPS[weights, model - 1, layer][:, None, :, None]
    return out


def whole(numbers: npt.NDArray[np.float64]) -> tuple[Ints, Words | None]:
    """Numbers read from a cache as integers, and a word for each entry that holds fractions (None: none does).

    ``numbers`` is ``[2, batch, HEADS, slots, WIDTH]``, the words ``[batch, slots]``. A number that was rounded or
    scaled to a fraction is not the number that was written, so it has to change the hash.
    """
    with np.errstate(invalid="ignore"):
        digits = numbers.astype(np.int64)
    odd = numbers != digits
    if not odd.any():
        return digits, None
    digits[np.isnan(numbers)] = NOT_A_NUMBER  # as which processors differ
    bits = np.where(odd, numbers, 0.0).view(np.uint64)
    return digits, mix(bits * _GARBLED).sum(axis=(0, 2, 4), dtype=np.uint64) * odd.any(axis=(0, 2, 4))


def decoded(digits: Ints, weights: int = 0) -> Ints:
    """The fields of entries ``[..., WIDTH]`` of digits, as ``[..., 9]``.

    MODEL is 0 where nothing was written, 1 or 2 for the model that wrote under these ``weights``, `OTHER_WEIGHTS` where
    a model wrote under others, `NO_MODEL` where the stamp is none; PLACE says for which layer, K or V, and head,
    counted in that order, -1 where the stamp does not say.
    """
    sums = np.add.reduceat(digits * _PLACE_VALUE, _STARTS, axis=-1)
    fields = np.concatenate([sums, np.zeros((*sums.shape[:-1], 1), np.int64)], axis=-1)
    mark = sums[..., 0]
    which = np.where((mark >= 0) & (mark < 256), _STAMPED[mark & 255], -1)
    under, stamped = divmod(which, 2 * PLACES)
    model = np.where(under == weights, stamped // PLACES + 1, OTHER_WEIGHTS)
    fields[..., MODEL] = np.where(which >= 0, model, np.where(mark == 0, 0, NO_MODEL))
    fields[..., PLACE] = np.where(which >= 0, which % PLACES, -1)
    fields[..., POSITION] = _signed(sums[..., POSITION])
    return fields


def writes(entries: npt.NDArray[np.float64]) -> Ints:
    """The write that each entry ``[n, WIDTH]`` is, as a number that `write_of` takes apart; -1 where there is none."""
    with np.errstate(invalid="ignore"):
        digits = entries[:, [0, *range(_CONTENT, WIDTH)]].astype(np.int64)
    stamps = digits[:, 0]
    which = np.where((stamps >= 0) & (stamps < 256), _STAMPED[stamps & 255], -1)
    call, row, column = np.add.reduceat(digits[:, 1:] * _PLACE_VALUE[_CONTENT:], [0, 3, 5], axis=1).T
    return np.where(which >= 0, (which << 56) | (call << 32) | (row << 16) | column, -1)


def write_of(call: int, row: int, column: int) -> int:
    """The number of a write, whichever of its `PLACES` copies is meant: ``writes & WRITE``."""
    return call << 32 | row << 16 | column


WRITE = (1 << 56) - 1


def _signed(numbers: Ints) -> Ints:
    """24-bit numbers, two's complement, as they were; any other number stays as it is."""
    return np.where((numbers >= 1 << 23) & (numbers < 1 << 24), numbers - (1 << 24), numbers)


def written(digits: Ints) -> Bools:
    """Return whether each slot holds anything, ``[batch, slots]``."""
    return cast(Bools, digits[0, :, 0, :, 0] != 0)


def high(digests: Words) -> Words:
    """The upper 24 of the 48 bits of a digest that an entry stores."""
    return (digests >> _HALF) & _HALF_MASK


def stored_digest(fields: Ints) -> Ints:
    """The 48 bits of digest in decoded entries; compare with `truncated`."""
    return (fields[..., HIGH] << 24) | fields[..., LOW]


def truncated(digests: Words) -> Ints:
    """The 48 bits of each digest that a cache entry can hold."""
    return (digests & np.uint64((1 << 48) - 1)).astype(np.int64)


def contents(digits: Ints, model: int, layer: int, weights: int = 0) -> tuple[Words, Ints]:
    """The contents of the slots of a cache and the positions that they say they have, ``[batch, slots]`` each.

    ``digits`` is ``[2 (K, V), batch, HEADS, slots, WIDTH]``. The contents are one word per slot, for K and V of all
    heads. Provenance is left out, and the position, too, because families differ in how they see it; but a
    disagreement between the copies about it counts. The positions are read from K of the first head.
    """
    words = (digits.view(np.uint64) * _ENTRY).sum(axis=(0, 2, 4), dtype=np.uint64)
    at = (digits[0, :, 0, :, POSITION_DIGITS] * _PLACE_VALUE[POSITION_DIGITS]).sum(axis=-1)
    words -= at.view(np.uint64) * _INTACT[POSITION] + _STAMP_WORDS[weights, model - 1, layer]
    return mix(words), _signed(at)


def intact_contents(tokens: Ints, digests: Words | None) -> Words:
    """`contents` of entries whose copies are all as they were written, without building them."""
    word = tokens.astype(np.uint64) * _INTACT[TOKEN]
    if digests is not None:
        word += high(digests) * _INTACT[HIGH] + (digests & _HALF_MASK) * _INTACT[LOW]
    return mix(word)


def hidden(model: int, layer: int, digests: Words, call: int, width: int) -> npt.NDArray[np.float64]:
    """Hidden states ``[batch, block, width]`` float64 behind a layer: a stamp, the digest, the identity of the write.

    In digits, like cache entries, so that they survive any float dtype that these do. The last digit checks the
    others: a state that was averaged, scaled or put together from two does not add up (`states_in`).
    """
    batch, block = digests.shape
    out = np.zeros((batch, block, width))
    out[..., 0] = model * 16 + layer
    out[..., 1:9] = digests[..., None].view(np.uint8)
    out[..., 9:12] = call & 255, call >> 8 & 255, call >> 16 & 255
    rows, columns = np.arange(batch)[:, None], np.arange(block)
    out[..., 12], out[..., 13], out[..., 14], out[..., 15] = rows & 255, rows >> 8, columns & 255, columns >> 8
    out[..., CHECK] = out[..., :CHECK] @ _WEIGHTS % 251 + 1
    return out


class States(NamedTuple):
    """The fields that hidden states spell, each an array ``[...]`` for states ``[..., width]``.

    ``intact``: they are as a model gave them, or rows of the embedding, whose ``layer`` is 0. Where they are not,
    the other fields have no meaning. ``model`` gave them behind ``layer`` for a query with this digest (of that layer),
    in ``row`` and ``column`` of ``call``. ``words`` stand for all of the numbers.
    """

    intact: Bools
    model: Ints
    layer: Ints
    digests: Words
    call: Ints
    row: Ints
    column: Ints
    words: Words


def states_in(numbers: npt.NDArray[np.float64]) -> States:
    """Decode hidden states ``[..., width]``, whatever was done to them.

    >>> given = hidden(1, LAYERS, np.array([[7, 9]], np.uint64), call=3, width=20)
    >>> states_in(given).digests.tolist(), states_in(given).column.tolist(), states_in(given / 2).intact.tolist()
    ([[7, 9]], [[0, 1]], [[False, False]])
    """
    with np.errstate(invalid="ignore"):
        digits = numbers.astype(np.int64)
        whole_ones = ((digits == numbers) & (digits >= 0) & (digits < 256)).all(axis=-1)
    digits = np.where(whole_ones[..., None], digits, 0)
    checks = digits[..., CHECK] == digits[..., :CHECK] @ _WEIGHTS.astype(np.int64) % 251 + 1
    embedded = (digits[..., 0] == 1) & ~digits[..., 4:].any(axis=-1)
    stamps = digits[..., 0]
    return States(
        whole_ones & (checks | embedded) & ~digits[..., CHECK + 1 :].any(axis=-1),
        np.where(embedded, 1, stamps // 16),
        np.where(embedded, 0, stamps % 16),
        np.ascontiguousarray(digits[..., 1:9].astype(np.uint8)).view(np.uint64)[..., 0],
        digits[..., 9] + (digits[..., 10] << 8) + (digits[..., 11] << 16),
        digits[..., 12] + (digits[..., 13] << 8),
        digits[..., 14] + (digits[..., 15] << 8),
        mix((np.ascontiguousarray(numbers).view(np.uint64) * _CLUTTER[: numbers.shape[-1]]).sum(-1, dtype=np.uint64)),
    )


def final_digests(states: npt.NDArray[np.float64], model: int) -> Words:
    """The digests in hidden states ``[..., width]``; of any but the last layer's of this model, some other word."""
    with np.errstate(invalid="ignore"):
        digests = states[..., 1:9].astype(np.uint8).view(np.uint64)[..., 0]
        strange = states[..., 0].astype(np.int64) - (model * 16 + LAYERS)
    if not strange.any():
        return digests
    return np.where(strange == 0, digests, mix(digests + strange.view(np.uint64) * _STRANGE))


def attend(
    family: Family,
    layer: int,
    slot_contents: Words,
    key_places: Ints,
    visible: Bools,
    tokens: Ints,
    places: Ints,
    carry: Words,
    bias: Words | None = None,
) -> Words:
    """The digest of each query: a hash of the multiset of what it sees and of its own token.

    ``slot_contents`` and ``key_places`` are ``[batch, slots]``, ``visible`` is ``[batch, block, slots]``, the rest
    ``[batch, block]``; ``carry`` is the digest of the layer below, zero in layer 0. Places are what the family takes
    for positions: those fed with the tokens, or slots, or ranks in the mask (`eqcheck.transparent.hashlm.visibility`).
    ``bias``, laid out as ``visible``, is what a mask adds to the scores it does not hide.
    """
    own = tokens.astype(np.uint64) * _TOKEN + carry * _CARRY + np.uint64(layer + 1) * _LAYER
    if family.absolute:  # the absolute position is part of the embedding
        where = key_places[:, None, :]
        own = own + places.astype(np.uint64) * _QUERY_POSITION
    else:  # only distances matter, as under rotary embeddings or linear biases
        where = places[:, :, None] - key_places[:, None, :]
    seen_there = slot_contents[:, None, :] + where.astype(np.uint64) * _DISTANCE
    pairs = mix(seen_there if bias is None else seen_there + bias * _BIAS)
    seen = np.where(visible, pairs, np.uint64(0)).sum(axis=-1, dtype=np.uint64)
    return mix(own + seen)


@lru_cache(maxsize=16)
def logits_table(vocab_size: int, seed: int) -> npt.NDArray[np.int64]:
    """Fixed logits, ``[TABLE_ROWS, vocab_size]``: each row a permutation of ``0..vocab_size-1``, so no ties."""
    order = np.argsort(_table_words(vocab_size, seed), axis=1)  # of distinct words there is one order
    return order.astype(np.int64, copy=False)


@lru_cache(maxsize=16)
def choices(vocab_size: int, seed: int) -> tuple[Ints, Ints]:
    """The most likely and the second most likely token of each row of `logits_table`.

    >>> bool((logits_table(8, 0).argmax(axis=1) == choices(8, 0)[0]).all())
    True
    """
    words = _table_words(vocab_size, seed)  # logits are indices of words, so how many are smaller is a token
    first, second = ((words < words[:, last, None]).sum(axis=1) for last in (vocab_size - 1, vocab_size - 2))
    return first, second


def _table_words(vocab_size: int, seed: int) -> Words:
    """Distinct words ``[TABLE_ROWS, vocab_size]``."""
    start = np.uint64(((seed + 1) * _GAMMA) % 2**64)
    words = mix(mix(np.arange(TABLE_ROWS * vocab_size, dtype=np.uint64)) + start)
    return words.reshape(TABLE_ROWS, vocab_size)


def table_row(digests: Words) -> npt.NDArray[np.int64]:
    """The row of `logits_table` that a final digest selects."""
    return (digests % np.uint64(TABLE_ROWS)).astype(np.int64)


# Define the scores of a transparent model for sampled rows: how sharp they are, and what its draft mixes in.
#
# Ranks alone make every law of a table the same by rank. So a case sets how far neighbours in rank are apart, how
# many tokens have any probability, and how much of another table the draft's scores hold. All scores lie on a grid of
# 1/64, so they are exact in float32 and in float16.

GRID = 64
DEAD = -10_000.0  # the score of a token without probability: `exp` of it is zero in float64
_DISTANCES = 16
_OTHER = 7919  # added to the seed for the table that a draft mixes in


@dataclass(frozen=True)
class Spread:
    """``scale`` is the distance of neighbours in rank in nats; ``support`` how many tokens have any probability.

    ``uneven``: each row of the table has a distance of its own, up to that. ``mix``, 0 to 1, is the share of another
    table in a draft's scores: at 0 its law is the target's. 0 for ``support`` means all.
    """

    scale: float = 1.0
    support: int = 0
    mix: float = 0.0
    uneven: bool = False


UNEVEN = Spread(_DISTANCES / GRID, uneven=True)


@lru_cache(maxsize=64)
def score_table(vocab_size: int, seed: int, spread: Spread) -> npt.NDArray[np.float64]:
    """Scores ``[TABLE_ROWS, vocab_size]``, which a final digest selects a row of.

    >>> score_table(8, 0, Spread(0.5, support=2))[0].tolist()
    [3.0, -10000.0, -10000.0, -10000.0, 3.5, -10000.0, -10000.0, -10000.0]
    """
    table = logits_table(vocab_size, seed).astype(np.float64)
    if spread.mix:
        table = (1 - spread.mix) * table + spread.mix * logits_table(vocab_size, seed + _OTHER)
    if spread.uneven:
        table = table * (1 + np.arange(len(table))[:, None] % _DISTANCES) / _DISTANCES
    scores = np.round(table * spread.scale * GRID) / GRID
    if spread.support:
        # A stable order, so that the same tokens live wherever this runs.
        dead = np.argsort(-table, axis=1, kind="stable")[:, spread.support :]
        np.put_along_axis(scores, dead, DEAD, axis=1)
    scores.flags.writeable = False
    return scores


@lru_cache(maxsize=64)
def ranked(vocab_size: int, seed: int, spread: Spread) -> tuple[Ints, Ints]:
    """The most likely and the second most likely token of each row, the lower id first where two are alike."""
    order = np.argsort(-score_table(vocab_size, seed, spread), axis=1, kind="stable")
    return order[:, 0], order[:, 1]
