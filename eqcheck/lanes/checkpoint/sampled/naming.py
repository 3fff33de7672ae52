"""What is wrong with an engine's sampler, from its tokens; the laws that are needed are looked up here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from eqcheck.lanes.checkpoint.judge import truth
from eqcheck.lanes.checkpoint.sampled.case import SampledEngineCase
from eqcheck.lanes.checkpoint.sampled.judge import SampledEngineOutcome
from eqcheck.law import law
from eqcheck.sampling import blackbox
from eqcheck.sampling.naming import NAMED, Named
from eqcheck.sampling.row import Floats, SampledRow

MOST = 2500  # tokens that are looked at
_LIKELIEST = 4  # draft tokens behind which the target is asked
# Random numbers that are shared leave every row's own law right: bets alone show them.
SHARED = {"twin-equal": "shared-noise", "shared": "shared-noise", "own": "reused-noise"}
WORDS = {"shared-noise": "rows share random numbers", "reused-noise": "a row uses random numbers again"}


def named(outcomes: Sequence[SampledEngineOutcome], best: Sequence[tuple[str, float]]) -> Named | None:
    """What is wrong, or None where nothing leads clearly. ``best`` are the bets of the audit, the greatest first."""
    of_pairs = tuple(SHARED)
    (first, gain), *_ = best
    rivals = [other for name, other in best if not name.startswith(of_pairs)]
    if first.startswith(of_pairs):
        kind = next(kind for name, kind in SHARED.items() if first.startswith(name))
        same = tuple(name for name, other in SHARED.items() if other == kind)
        rivals += [other for name, other in best if name.startswith(of_pairs) and not name.startswith(same)]
        return Named(kind, WORDS[kind], gain) if gain - max(rivals) >= np.log(NAMED) else None
    return blackbox.named(list(_seen(outcomes)), best)


def _seen(outcomes: Sequence[SampledEngineOutcome]) -> Iterator[blackbox.Seen]:
    tokens = 0
    for outcome in outcomes:
        if tokens > MOST:
            return
        case = outcome.case
        for number, row in outcome.sampled.items():
            if row.q is None or not len(row.tokens):
                continue
            tokens += len(row.tokens)
            looked_up = case.drafting == "ngram"
            others = [
                _as_long(other.q, row.q) for n, other in outcome.sampled.items() if n != number and other.q is not None
            ]
            yield blackbox.Seen(
                row.tokens,
                row.p,
                row.q,
                row.raw,
                outcome.raw_drafts[number],
                row.p if looked_up else _behind(case, number, row),
                [] if looked_up else others[:3],
                case.num_draft_tokens,
                looked_up,
            )


def _as_long(other: Floats, own: Floats) -> Floats:
    """Another row's laws, its own where the other has ended."""
    found = own.copy()
    shared = min(len(own), len(other))
    found[:shared] = other[:shared]
    return found


@torch.no_grad()
def _behind(case: SampledEngineCase, number: int, row: SampledRow) -> Floats:
    """The target's law behind a refused draft token, where the likeliest ones are weighed by how often they are."""
    asked, q = case.rows[number], row.q
    assert q is not None
    n, size = len(row.tokens), min(_LIKELIEST, q.shape[1])
    likeliest = np.argsort(-q, axis=-1)[:, :size]
    text = [*asked.prompt, *row.tokens.tolist()]
    ids = torch.zeros(n * size, len(text) + 1, dtype=torch.long)
    ends = []
    for t in range(n):
        end = len(asked.prompt) + t
        for column in range(size):
            line = ids[t * size + column]
            line[:end] = torch.tensor(text[:end])
            line[end] = int(likeliest[t, column])
            ends.append(end)
    scores = truth().model(input_ids=ids, use_cache=False).logits[torch.arange(n * size), torch.tensor(ends)]
    laws = law(scores, asked.options, case.order, measured=False).probabilities.numpy().reshape(n, size, -1)
    index = np.arange(n)[:, None]
    refused = q[index, likeliest] * np.maximum(1 - row.p[index, likeliest] / np.maximum(q[index, likeliest], 1e-12), 0)
    refused = refused + 1e-6 * q[index, likeliest] + 1e-12
    weights = refused / refused.sum(-1, keepdims=True)
    return np.asarray((weights[:, :, None] * laws).sum(1))
