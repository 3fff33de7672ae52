"""A sampled row as evidence: the laws at its tokens, and of an engine how far float32 may be from them.

Of engines, positions near a cut are skipped: where the scores need to change by less than `ties.FACTOR` times what
float32 changes to move it. The change by float32 is measured at the prefixes up to there, in the order in which tokens
count as evidence; so a position is skipped for text before its token only. The bound on rounding, `SampledRow.eps`, is
as many times the change by float32 of the row's own probabilities. The laws of the transparent target are exact. The
scores of a built checkpoint are exact in bfloat16, which rounds them to a grid: there the rounding is that of a
softmax. In float16 they are not: a token beyond a cut by 0.07 was emitted by a right engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch

from eqcheck.case.engine import EngineRow
from eqcheck.case.sampling import SampledEngineCase
from eqcheck.checkpoints.judge import truth
from eqcheck.checkpoints.models import checkpoint
from eqcheck.checkpoints.truth import FunctionTruth, ModelTruth
from eqcheck.checkpoints.truth import Truth as EngineTruth
from eqcheck.contract.decoders import RowOptions
from eqcheck.decoding.run import cut
from eqcheck.sampling.laws import UNCUT, misused
from eqcheck.sampling.row import RARE, Bools, Floats, SampledRow
from eqcheck.truth.law import law, penalised
from eqcheck.truth.ties import FACTOR

EXACT = 1e-10  # what float64 may change, in an engine that adds in another order
SOFTMAX = 1e-6  # what a softmax in float32 may change of exact scores
HALF = 0.01  # of a built checkpoint in float16: `FACTOR` times this is four times what any score was seen to change
_NGRAM = 2  # tokens that are looked up at most


def law_of(scores: torch.Tensor, options: RowOptions, order: Sequence[str]) -> Floats:
    """The law ``[n, vocabulary]`` that options, in an order, make of scores."""
    made: Floats = law(scores, options, order, measured=False).probabilities.numpy()
    return made


def sampled_row(
    case: Any,
    number: int,
    tokens: Sequence[int],
    target: torch.Tensor,
    draft: Floats,
    skip: Bools | None = None,
    eps: Floats | float = 0.0,
) -> SampledRow:
    """A row of a sampled case, of the target's scores after its penalties and the draft's law.

    Positions to ``skip`` and the bound on rounding, ``eps``, are those of an engine.
    """
    own, first = case.options[number], case.options[case.sampled[0]]
    as_first = replace(own, **{name: getattr(first, name) for name in UNCUT})
    p = law_of(target, own, case.order)
    return SampledRow(
        np.array(tokens, np.int64),
        p,
        draft,
        raw=law_of(target, replace(own, **UNCUT), case.order),
        skip=np.zeros(len(tokens), np.bool_) if skip is None else skip,
        seed=own.seed,
        twin=case.twin(number),
        eps=eps,
        first_row=p if as_first == own else law_of(target, as_first, case.order),
    )


def variants(right: Floats, scores: torch.Tensor, case: Any, number: int, near: float = 0.0) -> dict[str, Floats]:
    """The laws ``[n, V]`` of a row by the option that is got wrong, the right law too; so is what is as ``near`` it."""

    def made(options: RowOptions, order: Sequence[str]) -> Floats:
        other = law_of(scores, options, order)
        return right if near and abs(other - right).max() <= near else other

    return {"": right, **misused(right, case.options, number, case.order, made)}


class Laws(NamedTuple):
    """A sampled row as evidence, and the draft's laws without the row's options ``[n, vocabulary]``."""

    row: SampledRow
    raw_draft: Floats


@lru_cache(maxsize=4)
def _truth_of_draft(name: str) -> EngineTruth:
    pair = checkpoint(name)
    return FunctionTruth(pair.built[1].function) if pair.built else ModelTruth(pair.models()[1])


@lru_cache(maxsize=2)
def _rounded(dtype: str) -> ModelTruth:
    """The target of the random checkpoint in the dtype of an engine."""
    return ModelTruth(checkpoint().models(getattr(torch, dtype))[0])


def laws_of(case: SampledEngineCase, outputs: Sequence[Sequence[int]], dtype: str) -> dict[int, Laws]:
    """The laws of each sampled row of an engine that computes in ``dtype``, by the number of the row.

    Rows are cut where they had to end. One forward of each model serves all rows of a case.
    """
    numbers = case.sampled
    rows = [case.rows[number] for number in numbers]
    texts = [_ended(row.options, outputs[number]) for row, number in zip(rows, numbers, strict=True)]
    if not rows:
        return {}
    built = bool(checkpoint(case.checkpoint).built)
    target = truth(case.checkpoint).together(rows, texts)
    rounded = target
    if dtype != "float64" and not built:
        rounded = [scores.double() for scores in _rounded(dtype).together(rows, texts)]
    draft = _truth_of_draft(case.checkpoint).together(rows, texts)
    laws: dict[int, Laws] = {}
    rounding = HALF if dtype == "float16" else SOFTMAX
    change = least = rounding if built else EXACT  # of a score, up to the position that is looked at
    for at, number in enumerate(numbers):
        n = len(texts[at])
        changes = (target[at][:n] - rounded[at][:n]).abs().amax(-1).numpy()
        changes = np.maximum.accumulate(np.concatenate([[change], changes]))
        change = float(changes[-1])
        looked_up = _looked_up(rows[at], texts[at], target[at].shape[-1]) if case.drafting == "ngram" else None
        scores = [part[at][:n] for part in (target, rounded, draft)]
        laws[number] = _laws(case, number, texts[at], scores, changes[1:], looked_up, least)
    return laws


def _ended(options: RowOptions, output: Sequence[int]) -> list[int]:
    """The tokens of a row up to where it had to end."""
    return list(cut(tuple(output[: options.max_new_tokens]), options.eos_token_ids))


def _laws(
    case: SampledEngineCase,
    number: int,
    text: list[int],
    scores: list[torch.Tensor],
    changes: Floats,
    looked_up: Floats | None,
    least: float,
) -> Laws:
    """A row by the ``scores`` of the target, of the target rounded, and of the draft; ``least``: rounding."""
    prompt, options = case.rows[number].prompt, case.rows[number].options
    target, rounded, draft = (penalised(part, options, prompt, text) for part in scores)
    p, margin = law(target, options, case.order)
    near = law(rounded, options, case.order, measured=False).probabilities
    skip = margin.numpy() <= FACTOR * changes
    change = torch.where(p > RARE, near / p.clamp(min=RARE) - 1, 0.0).abs().amax(-1).numpy()
    change = np.where(skip, 0.0, change)  # there the cut may have moved
    usual = np.array([np.median(change[: at + 1]) for at in range(len(change))])  # of what came before, for a proof
    eps = FACTOR * np.maximum(np.maximum(change, usual), least)
    q = law_of(draft, options, case.order) if looked_up is None else looked_up
    raw_draft = law_of(draft, replace(options, **UNCUT), case.order)
    return Laws(sampled_row(case, number, text, target, q, skip, eps), raw_draft)


def _looked_up(row: EngineRow, text: Sequence[int], vocabulary: int) -> Floats:
    """The law of a look-up at each prefix: the tokens that followed the last ones before, all alike; zeros without any.

    Engines differ in which of several places they take, so this is good for bets only.
    """
    whole = [*row.prompt, *text]
    laws = np.zeros((len(text), vocabulary))
    for at in range(len(text)):
        end = len(row.prompt) + at
        for size in range(min(_NGRAM, end - 1), 0, -1):
            places = [i for i in range(size, end) if whole[i - size : i] == whole[end - size : end]]
            for place in places:
                laws[at, whole[place]] += 1 / len(places)
            if places:
                break
    return laws
