"""The logarithms of the target's own probabilities of a row's tokens, and how far others may lie from them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from eqcheck.contract.family import FAMILY
from eqcheck.core.case.record import Case
from eqcheck.transparent.hashlm.hashing import (
    LAYERS,
    UNEVEN,
    Ints,
    Words,
    attend,
    choices,
    intact_contents,
    logits_table,
    score_table,
    table_row,
)
from eqcheck.transparent.real.scores import noise, scores_of
from eqcheck.transparent.truth.ties import FACTOR

EXACT = 1e-6


class Logprobs(NamedTuple):
    """Hold the target's own by new token; those of a right decoder lie within the ``bound``.

    ``asked`` are those with the row's options, if it has any: an engine may tell them, if it tells no others.
    """

    own: list[float]
    bound: float
    asked: list[float] | None = None


def of_scores(scores: torch.Tensor, tokens: Sequence[int], bound: float) -> Logprobs:
    """Return those of tokens under scores ``[len(tokens), vocabulary]`` that are off by ``bound`` at most.

    >>> of_scores(torch.zeros(1, 4), [2], 0.0)
    Logprobs(own=[-1.3862943611198906], bound=1e-06, asked=None)
    """
    law = scores.double().log_softmax(-1)
    own = [float(law[index, token]) for index, token in enumerate(tokens)]
    return Logprobs(own, max(EXACT, 2 * bound))  # a score and the sum of all are off by that much


def logprobs(case: Case, row: int, tokens: Sequence[int], digests: Words) -> Logprobs | None:
    """Return those of a row of a case, whose queries have these ``digests``; None if all its own tokens have one."""
    family, prompt = FAMILY[case.family], case.prompts[row]
    if family.built:
        return None
    start = len(prompt) - 1
    if family.target:
        scores = scores_of(family, case.seed, (*prompt, *tokens))[start:-1]
        return of_scores(scores, tokens, FACTOR * noise(family.target.architecture, family.target.dtype, case.seed))
    size, seed = case.vocab_size, case.seed
    table = score_table(size, seed, UNEVEN) if case.uneven else logits_table(size, seed)
    return of_scores(torch.tensor(table[table_row(digests[-1, start : start + len(tokens)])]), tokens, 0.0)


# The tokens and digests of a row alone, by the definition of the hash: no model, no cache, no padding.

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
    for group in alike.values():
        new, digests = continued(family, vocab_size, seed, group, count)
        for row, prompt in enumerate(group):
            result = tuple(new[row].tolist()), digests[:, row, : len(prompt) + count].copy()
            _CONTINUED[family, vocab_size, seed, prompt, count] = result
    for key in keys:
        _CONTINUED.move_to_end(key)
    results = [_CONTINUED[key] for key in keys]
    while len(_CONTINUED) > _REMEMBERED:
        _CONTINUED.popitem(last=False)
    return results


class _Rows:
    """Rows that are read by the definition of the hash alone. Each begins in slot 0.

    No query sees the slots behind a row's end until they are overwritten.
    """

    def __init__(self, family: str, rows: int, slots: int) -> None:
        self.record, self.index, self.row = FAMILY[family], np.arange(slots), np.arange(rows)[:, None]
        self.contents = np.zeros((LAYERS, rows, slots), np.uint64)
        self.digests = np.zeros((LAYERS, rows, slots), np.uint64)

    def look(self, tokens: Ints, positions: Ints, stop: int) -> Words:
        """The final digests of queries at these positions, which are written down; ``stop`` slots are looked at."""
        before = self.index[:stop] <= positions[..., None]
        carry, digest = np.zeros(tokens.shape, np.uint64), None
        for layer in range(LAYERS):
            window = (self.record if layer else self.record.lower).window
            visible = before & (self.index[:stop] > positions[..., None] - window) if window else before
            self.contents[layer, self.row, positions] = intact_contents(tokens, digest)
            seen, keys = self.contents[layer, :, :stop], self.index[None, :stop]
            carry = attend(self.record, layer, seen, keys, visible, tokens, positions, carry)
            digest = carry
            self.digests[layer, self.row, positions] = carry
        return carry

    def read(self, texts: Sequence[tuple[int, ...]]) -> Words:
        """Look at whole texts; returns the final digest at the end of each."""
        longest = max(map(len, texts))
        fed = np.zeros((len(texts), longest), np.int64)
        for number, text in enumerate(texts):
            fed[number, : len(text)] = text
        last = self.look(fed, np.broadcast_to(self.index[:longest], fed.shape), longest)
        return last[self.row[:, 0], [len(text) - 1 for text in texts]]


def digests_of(family: str, texts: Sequence[tuple[int, ...]]) -> list[Words]:
    """The digests ``[LAYERS, len(text)]`` of a query at each logical position of each text.

    >>> tokens, digests = continue_row("rotary", 64, 0, (5, 7), 3)
    >>> bool((digests_of("rotary", [(5, 7, *tokens)])[0] == digests).all())
    True
    """
    rows = _Rows(family, len(texts), max(map(len, texts)))
    rows.read(texts)
    return [rows.digests[:, number, : len(text)].copy() for number, text in enumerate(texts)]


def continued(
    family: str, vocab_size: int, seed: int, prompts: Sequence[tuple[int, ...]], count: int
) -> tuple[Ints, Words]:
    """The new tokens ``[rows, count]`` and the digests ``[LAYERS, rows, longest prompt + count]`` of each row.

    On a real target (`eqcheck.transparent.real`) it says which tokens follow; the digests are those of the hash all the
    same.
    """
    if FAMILY[family].target:
        return _on_real_target(family, seed, prompts, count)
    best, _ = choices(vocab_size, seed)
    lengths = np.array([len(prompt) for prompt in prompts])
    longest = int(lengths.max())
    rows = _Rows(family, len(prompts), longest + count)
    last = rows.read(prompts)
    new = np.zeros((len(prompts), count), np.int64)
    for number in range(count):
        new[:, number] = best[table_row(last)]
        last = rows.look(new[:, number, None], lengths[:, None] + number, longest + number + 1)[:, 0]
    return new, rows.digests


def _on_real_target(family: str, seed: int, prompts: Sequence[tuple[int, ...]], count: int) -> tuple[Ints, Words]:
    from eqcheck.transparent.real.scores import tokens_of

    new = tokens_of(FAMILY[family], seed, prompts, count)
    rows = _Rows(family, len(prompts), max(map(len, prompts)) + count)
    rows.read([(*prompt, *tokens) for prompt, tokens in zip(prompts, new.tolist(), strict=True)])
    return new, rows.digests
