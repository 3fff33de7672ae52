"""The logarithms of the target's own probabilities of a row's tokens, and how far others may lie from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from eqcheck.contract.family import FAMILY
from eqcheck.core.case.record import Case
from eqcheck.transparent.hashlm.hashing import UNEVEN, Words, logits_table, score_table, table_row
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
