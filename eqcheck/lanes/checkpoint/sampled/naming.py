"""What is wrong with an engine's sampler, from its tokens; the laws that are needed are looked up here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from eqcheck.case.sampling import SampledEngineCase
from eqcheck.checkpoints.judge import truth
from eqcheck.contract.decoder import RowOptions
from eqcheck.lanes.checkpoint.sampled.judge import SampledEngineOutcome
from eqcheck.lanes.sampling.gathered import rows_of
from eqcheck.sampling import blackbox
from eqcheck.sampling.bets import ALTERNATIVES, bets
from eqcheck.sampling.naming import NAMED, WITHIN_THE_LAW, Named, argmax
from eqcheck.sampling.pairs import PAIRS, SHARED, pair_bets, shared
from eqcheck.sampling.row import Floats, Ints, SampledRow
from eqcheck.truth.law import law

MOST = 3000  # tokens that are looked at
_LIKELIEST = 24  # draft tokens behind which the target is asked


def named(outcomes: Sequence[SampledEngineOutcome]) -> Named | None:
    """What is wrong, or None where nothing leads clearly: neither a way to draw wrongly, nor random numbers shared."""
    looked_at = list(_looked_at(outcomes))
    found = argmax(row for outcome in looked_at for row in outcome.sampled.values()) or _named(looked_at)
    impossible = any(row.impossible for outcome in looked_at for row in outcome.sampled.values())
    return None if found and impossible and found.kind in WITHIN_THE_LAW else found


def _named(looked_at: Sequence[SampledEngineOutcome]) -> Named | None:
    rows = [row for outcome in looked_at for row in _seen(outcome)]
    ranked, earned = blackbox.ranked(rows), _earned(looked_at)
    first = max(earned, key=lambda name: earned[name])
    begins = next((begins for begins in SHARED if first.startswith(begins)), "")
    if not begins:
        return blackbox.named(rows, ranked, earned)
    # Random numbers that are shared leave every row's own law right: bets alone show them.
    kind, words = SHARED[begins]
    same = tuple(other for other, (its, _) in SHARED.items() if its == kind)
    rivals = [gain for name, gain in earned.items() if not name.startswith(same)] + [gain for gain, _ in ranked]
    least = min(earned[first] - max(rivals), shared(map(rows_of, looked_at), begins))
    return Named(kind, words, earned[first]) if least >= np.log(NAMED) else None


def _looked_at(outcomes: Sequence[SampledEngineOutcome]) -> Iterator[SampledEngineOutcome]:
    tokens = 0
    for outcome in outcomes:
        if tokens < MOST:
            yield outcome
        tokens += sum(len(row.tokens) for row in outcome.sampled.values())


def _earned(outcomes: Sequence[SampledEngineOutcome]) -> dict[str, float]:
    """What each bet of the portfolio earns on these rows."""
    total = np.zeros(len(ALTERNATIVES) + len(PAIRS))
    for outcome in outcomes:
        rows = rows_of(outcome)
        for number, row in enumerate(rows):
            earned = np.concatenate([bets(row, rows[:number]), pair_bets(row, rows[:number])], axis=1)
            asked = outcome.case.rows[list(outcome.sampled)[number]].options
            total += earned[: _whole_rounds(outcome.case, asked, row)].sum(0)
    return dict(zip((*ALTERNATIVES, *PAIRS), total.tolist(), strict=True))


def _seen(outcome: SampledEngineOutcome) -> Iterator[blackbox.Seen]:
    """The sampled rows of a case, and all the laws around them."""
    case = outcome.case
    looked_up = case.drafting == "ngram"
    for number, whole in outcome.sampled.items():
        count = _whole_rounds(case, case.rows[number].options, whole)
        if whole.q is None or not count:
            continue
        row, q = _first_of(whole, count), whole.q[:count]
        beside = [other.q for n, other in outcome.sampled.items() if n != number and other.q is not None]
        yield blackbox.Seen(
            row.tokens,
            row.p,
            q,
            _misused(row.p, row.raw, case, number),
            {} if looked_up else _misused(q, outcome.raw_drafts[number][:count], case, number),
            *(_nothing(row) if looked_up else _behind(case, number, row)),
            [] if looked_up else [_as_long(other, q) for other in beside[:3]],
            case.num_draft_tokens,
            looked_up,
        )


def _whole_rounds(case: SampledEngineCase, asked: RowOptions, row: SampledRow) -> int:
    """The tokens of a row before its last K ones: near the limit some engines draft fewer, and some do not."""
    return min(len(row.tokens), max(asked.max_new_tokens - case.num_draft_tokens, 0))


def _first_of(row: SampledRow, count: int) -> SampledRow:
    """The row with its first so many tokens."""
    assert row.q is not None
    parts = {name: getattr(row, name)[:count] for name in ("tokens", "p", "q", "raw", "skip")}
    eps = np.broadcast_to(row.eps, len(row.tokens))[:count]
    return replace(row, eps=eps, first_row=None, **parts)


def _misused(right: Floats, raw: Floats, case: SampledEngineCase, number: int) -> dict[str, Floats]:
    """The laws of a row whose options are got wrong, where they are not the right ones: ``raw`` is without options."""
    options, first = case.rows[number].options, case.rows[case.sampled[0]].options
    last = (*(name for name in case.order if name != "temperature"), "temperature")
    ways = {
        "without the row's options": (replace(options, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0), case.order),
        "without the row's temperature": (replace(options, temperature=1.0), case.order),
        "without top-k": (replace(options, top_k=0), case.order),
        "as if rows with top-k were greedy": (
            replace(options, temperature=0.0) if options.top_k else options,
            case.order,
        ),
        "without top-p": (replace(options, top_p=1.0), case.order),
        "without min-p": (replace(options, min_p=0.0), case.order),
        "with the options of the first row": (first, case.order),
        "with the temperature applied last": (options, last),
    }
    scores = torch.from_numpy(raw).clamp(min=1e-300).log()
    laws = {how: law(scores, *asked, measured=False).probabilities.numpy() for how, asked in ways.items()}
    return {how: found for how, found in laws.items() if abs(found - right).max() > 1e-6}


def _nothing(row: SampledRow) -> tuple[Floats, Ints]:
    return np.zeros((*row.p.shape[:1], 0, *row.p.shape[1:])), np.zeros((len(row.p), 0), np.int64)


def _as_long(other: Floats, own: Floats) -> Floats:
    """Another row's laws, its own where the other has ended."""
    found = own.copy()
    shared = min(len(own), len(other))
    found[:shared] = other[:shared]
    return found


@torch.no_grad()
def _behind(case: SampledEngineCase, number: int, row: SampledRow) -> tuple[Floats, Ints]:
    """The target's laws behind the likeliest draft tokens at each prefix ``[n, m, V]``, and these tokens ``[n, m]``.

    One forward: behind the row's text stand the draft tokens of all prefixes, and each sees its own prefix and itself.
    """
    asked, q = case.rows[number], row.q
    assert q is not None
    n, size, start = len(row.tokens), min(_LIKELIEST, q.shape[1]), len(asked.prompt)
    likeliest = np.argsort(-q, axis=-1)[:, :size]
    text = [*asked.prompt, *row.tokens.tolist()][:-1]
    length = len(text) + n * size
    seen = torch.zeros(length, length, dtype=torch.bool)
    seen[: len(text), : len(text)] = torch.ones(len(text), len(text), dtype=torch.bool).tril()
    branch = torch.arange(len(text), length)
    of = start + torch.arange(n).repeat_interleave(size)  # how many tokens of the text each sees
    seen[branch, : len(text)] = torch.arange(len(text)) < of[:, None]
    seen[branch, branch] = True
    model = truth().model
    mask = torch.zeros(1, 1, length, length, dtype=model.dtype).masked_fill(~seen, float("-inf"))
    logits = model(
        input_ids=torch.tensor([[*text, *likeliest.flatten().tolist()]]),
        attention_mask=mask,
        position_ids=torch.cat([torch.arange(len(text)), of])[None],
        use_cache=False,
    ).logits[0, len(text) :]
    laws = law(logits, asked.options, case.order, measured=False).probabilities.numpy()
    return np.asarray(laws.reshape(n, size, -1)), likeliest
