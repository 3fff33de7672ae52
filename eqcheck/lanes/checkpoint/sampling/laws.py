"""The laws of an engine's sampled rows, in float64, and how far float32 may be from them.

Positions near a cut are skipped: where the scores need to change by less than `ties.FACTOR` times what float32 changes
to move it. The change by float32 is measured at the prefixes up to there, in the order in which tokens count as
evidence; so a position is skipped for text before its token only. The bound on rounding, `SampledRow.eps`, is as many
times the change by float32 of the row's own probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch

from eqcheck.case.engine import EngineRow
from eqcheck.case.sampling import SampledEngineCase, twins
from eqcheck.checkpoints.judge import truth
from eqcheck.checkpoints.models import checkpoint
from eqcheck.checkpoints.truth import ModelTruth
from eqcheck.contract.decoders import RowOptions
from eqcheck.sampling.row import RARE, Floats, SampledRow
from eqcheck.truth.law import law, penalised
from eqcheck.truth.ties import FACTOR

EXACT = 1e-10  # what float64 may change, in an engine that adds in another order
_UNCUT = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
_NGRAM = 2  # tokens that are looked up at most


@dataclass(frozen=True)
class Laws:
    """A sampled row as evidence, and the draft's laws without the row's options ``[n, vocabulary]``."""

    row: SampledRow
    raw_draft: Floats


@lru_cache(maxsize=2)
def _model(which: int, dtype: torch.dtype) -> ModelTruth:
    return truth() if (which, dtype) == (0, torch.float64) else ModelTruth(checkpoint().models(dtype)[which])


def laws_of(case: SampledEngineCase, outputs: Sequence[Sequence[int]], dtype: str) -> dict[int, Laws]:
    """The laws of each sampled row of an engine that computes in ``dtype``, by the number of the row.

    Rows are cut where they had to end. One forward of each model serves all rows of a case.
    """
    numbers = case.sampled
    rows = [case.rows[number] for number in numbers]
    texts = [ended(outputs[number], case.rows[number].options) for number in numbers]
    if not rows:
        return {}
    target = truth().together(rows, texts)
    rounded = target
    if dtype != "float64":
        rounded = [scores.double() for scores in _model(0, getattr(torch, dtype)).together(rows, texts)]
    draft = _model(1, torch.float64).together(rows, texts)
    laws: dict[int, Laws] = {}
    change = EXACT  # of a score, up to the position that is looked at
    for at, number in enumerate(numbers):
        n = len(texts[at])
        changes = (target[at][:n] - rounded[at][:n]).abs().amax(-1).numpy()
        changes = np.maximum.accumulate(np.concatenate([[change], changes]))
        change = float(changes[-1])
        first = next((i for i in numbers[:at] if twins(case, i, number)), None)
        looked_up = _looked_up(rows[at], texts[at]) if case.drafting == "ngram" else None
        laws[number] = _laws(
            rows[at],
            texts[at],
            [scores[at][:n] for scores in (target, rounded, draft)],
            changes[1:],
            case.order,
            first,
            looked_up,
            rows[0].options,
        )
    return laws


def ended(output: Sequence[int], options: RowOptions) -> list[int]:
    """The tokens of a row up to where it had to end."""
    for index, token in enumerate(output[: options.max_new_tokens]):
        if token in options.eos_token_ids:
            return list(output[: index + 1])
    return list(output[: options.max_new_tokens])


def _laws(
    row: EngineRow,
    text: list[int],
    scores: list[torch.Tensor],
    changes: Floats,
    order: Sequence[str],
    twin: int | None,
    looked_up: Floats | None,
    of_first: RowOptions,
) -> Laws:
    options, uncut = row.options, replace(row.options, **_UNCUT)  # type: ignore[arg-type]
    target, rounded, draft = (penalised(part, options, row.prompt, text) for part in scores)
    p, margin = law(target, options, order)
    near = law(rounded, options, order, measured=False).probabilities
    q = law(draft, options, order, measured=False).probabilities.numpy() if looked_up is None else looked_up
    raw, raw_draft = (law(part, uncut, order, measured=False).probabilities.numpy() for part in (target, draft))
    skip = margin.numpy() <= FACTOR * changes
    likely = p > RARE
    change = torch.where(likely, near / p.clamp(min=RARE) - 1, 0.0).abs().amax(-1).numpy()
    change = np.where(skip, 0.0, change)  # there the cut may have moved
    usual = np.array([np.median(change[: at + 1]) for at in range(len(change))])  # of what came before, for a proof
    eps = FACTOR * np.maximum(np.maximum(change, usual), EXACT)
    tokens = np.array(text, np.int64)
    first_row = law(target, of_first, order, measured=False).probabilities.numpy()
    return Laws(SampledRow(tokens, p.numpy(), q, raw, skip, options.seed, twin, eps, first_row), raw_draft)


def _looked_up(row: EngineRow, text: Sequence[int]) -> Floats:
    """The law of a look-up at each prefix: the tokens that followed the last ones before, all alike; zeros without any.

    Engines differ in which of several places they take, so this is good for bets only.
    """
    whole = [*row.prompt, *text]
    laws = np.zeros((len(text), int(truth().model.config.vocab_size)))
    for at in range(len(text)):
        end = len(row.prompt) + at
        for size in range(min(_NGRAM, end - 1), 0, -1):
            places = [i for i in range(size, end) if whole[i - size : i] == whole[end - size : end]]
            for place in places:
                laws[at, whole[place]] += 1 / len(places)
            if places:
                break
    return laws
