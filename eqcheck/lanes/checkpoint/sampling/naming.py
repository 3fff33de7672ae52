"""The wrong part of an engine's sampler, from its tokens; the laws that are needed are looked up here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from eqcheck.case.sampling import SampledEngineCase
from eqcheck.checkpoints.judge import truth
from eqcheck.contract.decoders import RowOptions
from eqcheck.lanes.checkpoint.sampling.judge import SampledEngineOutcome
from eqcheck.lanes.sampling.evidence import rows_of
from eqcheck.lanes.sampling.explain import cause
from eqcheck.sampling.bets import Bet, bets
from eqcheck.sampling.laws import OPTIONS, misused
from eqcheck.sampling.naming import Named
from eqcheck.sampling.pairs import pair_bets
from eqcheck.sampling.row import Floats, Ints, SampledRow
from eqcheck.sampling.tokens import Seen, Tokens
from eqcheck.sampling.wealth import BETS
from eqcheck.truth.law import law

MOST = 3000  # tokens that are looked at
_LIKELIEST = 24  # draft tokens behind which the target is asked


def named(outcomes: Sequence[SampledEngineOutcome]) -> Named | None:
    """The wrong part, or None where nothing leads clearly: neither a way to draw wrongly, nor random numbers shared."""
    looked_at = list(_looked_at(outcomes))
    best = _earned(looked_at)
    seen = [row for outcome in looked_at for row in _seen(outcome)]
    evidence = Tokens(seen, [(bet.kind, gain) for bet, gain in best])
    return cause([rows_of(outcome) for outcome in looked_at], best, evidence)


def _looked_at(outcomes: Sequence[SampledEngineOutcome]) -> Iterator[SampledEngineOutcome]:
    tokens = 0
    for outcome in outcomes:
        if tokens < MOST:
            yield outcome
        tokens += sum(len(row.tokens) for row in outcome.sampled.values())


def _earned(outcomes: Sequence[SampledEngineOutcome]) -> list[tuple[Bet, float]]:
    """The bets of the portfolio with the gain of each on these rows, the greatest first."""
    total = np.zeros(len(BETS))
    for outcome in outcomes:
        rows = rows_of(outcome)
        for number, row in enumerate(rows):
            earned = np.concatenate([bets(row, rows[:number]), pair_bets(row, rows[:number])], axis=1)
            asked = outcome.case.rows[list(outcome.sampled)[number]].options
            total += earned[: _whole_rounds(outcome.case, asked, row)].sum(0)
    return sorted(zip(BETS.values(), total.tolist(), strict=True), key=lambda pair: -pair[1])


def _seen(outcome: SampledEngineOutcome) -> Iterator[Seen]:
    """The sampled rows of a case, and all the laws around them."""
    case = outcome.case
    looked_up, others, names = case.drafting == "ngram", list(outcome.sampled), ("", *OPTIONS)
    for place, (number, whole) in enumerate(outcome.sampled.items()):
        count = _whole_rounds(case, case.rows[number].options, whole)
        if whole.q is None or not count:
            continue
        row, q = _first_of(whole, count), whole.q[:count]
        beside = {"q-next-row": (place + 1) % len(others), "q-row-before": place - 1, "q-first-row": 0}
        laws = {name: outcome.sampled[others[at]].q for name, at in beside.items() if others[at] != number}
        yield Seen(
            row.tokens,
            _misused(row.p, row.raw, case, number),
            _misused(q, outcome.raw_drafts[number][:count], case, number) if not looked_up else dict.fromkeys(names, q),
            *(_nothing(row) if looked_up else _behind(case, number, row)),
            {} if looked_up else {name: _as_long(law, q) for name, law in laws.items() if law is not None},
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
    """The laws of a row by the option that is wrong: ``raw`` is without options."""
    scores = torch.from_numpy(raw).clamp(min=1e-300).log()

    def made(options: RowOptions, order: tuple[str, ...]) -> Floats:
        found: Floats = law(scores, options, order, measured=False).probabilities.numpy()
        return right if abs(found - right).max() <= 1e-6 else found

    return {"": right, **misused(right, [row.options for row in case.rows], number, case.order, made)}


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
