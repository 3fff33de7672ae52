"""The hash that stands in for attention, in exact 64-bit integers (numpy ``uint64``, wrapping).

A cache entry is `WIDTH` small integers, the same in K and V and in every head, so that any tensor operation
on a cache carries them along and any disagreement between the copies changes the hash:

    MODEL      0 where nothing was written, 1 for the target, 2 for the draft
    TOKEN      the token fed
    POSITION   the position id fed with it
    HIGH, LOW  the upper and lower 24 bits of its digest (layer 1; zero in layer 0)
    CALL, ROW, COLUMN   the identity of the write: which forward call, which row, which column

Every number stays below 2**24 and therefore survives float32. The mixing function is the finaliser of
SplitMix64 (Steele, Lea, Flood 2014, https://doi.org/10.1145/2660193.2660195).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]

WIDTH = 8
MODEL, TOKEN, POSITION, HIGH, LOW, CALL, ROW, COLUMN = range(WIDTH)
HEADS = 2
LAYERS = 2
TABLE_ROWS = 4096
WINDOW = 8  # tokens that a query of the family ``window`` sees, itself included
_HALF = np.uint64(24)
_HALF_MASK = np.uint64((1 << 24) - 1)
_GAMMA = 0x9E3779B97F4A7C15


def mix(x: Words) -> Words:
    """Scramble each 64-bit word; a bijection."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _constants(stream: int, count: int) -> Words:
    """Fixed odd multipliers."""
    start = np.uint64((stream * _GAMMA) % 2**64)
    return mix(start + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GAMMA)) | np.uint64(1)


_ENTRY = _constants(1, 2 * HEADS * 5).reshape(2, 1, HEADS, 1, 5)
_TOKEN, _QUERY_POSITION, _CARRY, _LAYER, _DISTANCE = _constants(2, 5)


def entries(
    model: int,
    tokens: Ints,
    positions: Ints,
    digests: Words | None,
    call: int,
) -> npt.NDArray[np.float64]:
    """The cache entries of a block of tokens: ``[batch, HEADS, block, WIDTH]`` float64, for K and V alike."""
    batch, block = tokens.shape
    out = np.zeros((batch, HEADS, block, WIDTH))
    out[..., MODEL] = model
    out[..., TOKEN] = tokens[:, None]
    out[..., POSITION] = positions[:, None]
    if digests is not None:
        out[..., HIGH] = high(digests)[:, None]
        out[..., LOW] = (digests & _HALF_MASK)[:, None]
    out[..., CALL] = call
    out[..., ROW] = np.arange(batch)[:, None, None]
    out[..., COLUMN] = np.arange(block)
    return out


def high(digests: Words) -> Words:
    """The upper 24 of the 48 bits of a digest that an entry stores."""
    return (digests >> _HALF) & _HALF_MASK


def stored_digest(fields: Ints) -> Ints:
    """The 48 bits of digest in entries ``[..., WIDTH]``; compare with `truncated`."""
    return (fields[..., HIGH] << 24) | fields[..., LOW]


def truncated(digests: Words) -> Ints:
    """The 48 bits of each digest that a cache entry can hold."""
    return (digests & np.uint64((1 << 48) - 1)).astype(np.int64)


def contents(kv: Ints, model: int) -> Words:
    """One word per slot for what K and V of all heads hold, its position and provenance left out.

    ``kv`` is ``[2 (K, V), batch, HEADS, slots, WIDTH]``; the result is ``[batch, slots]``. The position is left
    out because families differ in how they see it, but a disagreement between the copies about it counts.
    """
    fields = kv[..., :CALL].copy()
    fields[..., MODEL] -= model
    fields[..., POSITION] -= kv[:1, :, :1, :, POSITION]
    product = fields.view(np.uint64) * _ENTRY
    return mix(product.sum(axis=(0, 2, 4), dtype=np.uint64))


_INTACT = _ENTRY.sum(axis=(0, 1, 2, 3), dtype=np.uint64)


def intact_contents(tokens: Ints, digests: Words | None) -> Words:
    """`contents` of entries whose copies all agree and whose model is the reader's, without building them."""
    word = tokens.astype(np.uint64) * _INTACT[TOKEN]
    if digests is not None:
        word += high(digests) * _INTACT[HIGH] + (digests & _HALF_MASK) * _INTACT[LOW]
    return mix(word)


def attend(
    family: str,
    layer: int,
    slot_contents: Words,
    key_places: Ints,
    visible: Bools,
    tokens: Ints,
    places: Ints,
    carry: Words,
) -> Words:
    """The digest of each query: a hash of the multiset of what it sees and of its own token.

    ``slot_contents`` and ``key_places`` are ``[batch, slots]``, ``visible`` is ``[batch, block, slots]``, the rest
    ``[batch, block]``; ``carry`` is the digest of the layer below, zero in layer 0. Places are what the family takes
    for positions: those fed with the tokens, or slots, or ranks in the mask (`eqcheck.families`).
    """
    own = tokens.astype(np.uint64) * _TOKEN + carry * _CARRY + np.uint64(layer + 1) * _LAYER
    if family == "learned":  # the absolute position is part of the embedding
        where = key_places[:, None, :]
        own = own + places.astype(np.uint64) * _QUERY_POSITION
    else:  # only distances matter, as under rotary embeddings or linear biases
        where = places[:, :, None] - key_places[:, None, :]
    pairs = mix(slot_contents[:, None, :] + where.astype(np.uint64) * _DISTANCE)
    seen = np.where(visible, pairs, np.uint64(0)).sum(axis=-1, dtype=np.uint64)
    return mix(own + seen)


@lru_cache(maxsize=16)
def logits_table(vocab_size: int, seed: int) -> npt.NDArray[np.int64]:
    """Fixed logits, ``[TABLE_ROWS, vocab_size]``: each row a permutation of ``0..vocab_size-1``, so no ties."""
    start = np.uint64(((seed + 1) * _GAMMA) % 2**64)
    words = mix(mix(np.arange(TABLE_ROWS * vocab_size, dtype=np.uint64)) + start)
    order = np.argsort(words.reshape(TABLE_ROWS, vocab_size), axis=1, kind="stable")
    return order.astype(np.int64)


@lru_cache(maxsize=16)
def choices(vocab_size: int, seed: int) -> tuple[Ints, Ints]:
    """The most likely and the second most likely token of each row of `logits_table`."""
    order = np.argsort(logits_table(vocab_size, seed), axis=1)
    return order[:, -1], order[:, -2]


def table_row(digests: Words) -> npt.NDArray[np.int64]:
    """Which row of `logits_table` a final digest selects."""
    return (digests % np.uint64(TABLE_ROWS)).astype(np.int64)


Continued = tuple[tuple[int, ...], Words]
_CONTINUED: OrderedDict[tuple[str, int, int, tuple[int, ...], int], Continued] = OrderedDict()  # latest used last
_REMEMBERED = 4096
_WIDTH_STEP = 16  # rows whose prompts are about equally long are hashed at once


def continue_row(family: str, vocab_size: int, seed: int, prompt: tuple[int, ...], count: int) -> Continued:
    """Continue one row greedily by the definition of the hash alone: no model, no cache, no padding.

    Returns the ``count`` new tokens and the digests ``[LAYERS, len(prompt) + count]`` of a query at each logical
    position; those of the last layer select the logits. The last new token is queried too.

        >>> tokens, digests = continue_row("rotary", 64, 0, (5, 7), 3)
        >>> len(tokens), digests.shape
        (3, (2, 5))
    """
    return continue_rows(family, vocab_size, seed, [prompt], count)[0]


def continue_rows(
    family: str, vocab_size: int, seed: int, prompts: Sequence[tuple[int, ...]], count: int
) -> list[Continued]:
    """`continue_row` of each prompt, several at once; the latest results are kept."""
    keys = [(family, vocab_size, seed, prompt, count) for prompt in prompts]
    missing = dict.fromkeys(key for key in keys if key not in _CONTINUED)
    alike: dict[int, list[tuple[int, ...]]] = {}
    for *_, prompt, _ in missing:
        alike.setdefault(len(prompt) // _WIDTH_STEP, []).append(prompt)
    for some in alike.values():
        new, digests = continued(family, vocab_size, seed, some, count)
        for row, prompt in enumerate(some):
            found = tuple(new[row].tolist()), digests[:, row, : len(prompt) + count].copy()
            _CONTINUED[family, vocab_size, seed, prompt, count] = found
    for key in keys:
        _CONTINUED.move_to_end(key)
    results = [_CONTINUED[key] for key in keys]
    while len(_CONTINUED) > _REMEMBERED:
        _CONTINUED.popitem(last=False)
    return results


def continued(
    family: str, vocab_size: int, seed: int, prompts: Sequence[tuple[int, ...]], count: int
) -> tuple[Ints, Words]:
    """The new tokens ``[rows, count]`` and the digests ``[LAYERS, rows, longest prompt + count]`` of each row.

    A row begins in slot 0. What stands behind its prompt is in no query's sight until it is overwritten.
    """
    best, _ = choices(vocab_size, seed)
    lengths = np.array([len(prompt) for prompt in prompts])
    rows, longest = len(prompts), int(lengths.max())
    slots = longest + count
    index = np.arange(slots)
    row = np.arange(rows)[:, None]
    contents_of = np.zeros((LAYERS, rows, slots), np.uint64)
    digests = np.zeros((LAYERS, rows, slots), np.uint64)

    def look(tokens: Ints, positions: Ints, stop: int) -> Words:
        visible = index[:stop] <= positions[..., None]
        if family == "window":
            visible &= index[:stop] > positions[..., None] - WINDOW
        carry, digest = np.zeros(tokens.shape, np.uint64), None
        for layer in range(LAYERS):
            contents_of[layer, row, positions] = intact_contents(tokens, digest)
            seen = contents_of[layer, :, :stop]
            carry = attend(family, layer, seen, index[None, :stop], visible, tokens, positions, carry)
            digest = carry
            digests[layer, row, positions] = carry
        return carry

    fed = np.zeros((rows, longest), np.int64)
    for number, prompt in enumerate(prompts):
        fed[number, : len(prompt)] = prompt
    last = look(fed, np.broadcast_to(index[:longest], fed.shape), longest)[row[:, 0], lengths - 1]
    new = np.zeros((rows, count), np.int64)
    for number in range(count):
        new[:, number] = best[table_row(last)]
        last = look(new[:, number, None], lengths[:, None] + number, longest + number + 1)[:, 0]
    return new, digests
