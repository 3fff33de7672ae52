"""Name the wrong part of a sampler from the outcomes of an audit; for an engine, from its tokens alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from eqcheck.contract.decoders import RowOptions
from eqcheck.core.case.sampling import SampledEngineCase
from eqcheck.engines.checkpoints.folders import checkpoint
from eqcheck.sampling.betting.laws import OPTIONS, Floats, Ints, SampledRow
from eqcheck.sampling.betting.naming import NAMED, WITHIN_THE_LAW, Named, SamplerEvidence, argmax, named
from eqcheck.sampling.betting.round_laws import in_words
from eqcheck.sampling.betting.token_laws import Seen, Tokens
from eqcheck.sampling.betting.wealth import BETS, PAIRS, Bet, bets, pair_bets, shared
from eqcheck.sampling.decode import law_of, variants
from eqcheck.sampling.judge import SampledOutcome, rows_of

MOST = 3000  # tokens that are looked at
_UNSURE = {bet.cause for bet in PAIRS if bet.kind == "reused-noise"}  # which numbers are used again
_LIKELIEST = 24  # draft tokens behind which the target is asked


def cause(
    cases: Sequence[Iterable[SampledRow]], best: Sequence[tuple[Bet, float]], evidence: SamplerEvidence
) -> Named | None:
    """The wrong part, or None where nothing leads clearly. ``best`` are the bets on these rows, the greatest first."""
    rows = [list(case) for case in cases]
    seen = argmax(row for case in rows for row in case) or _cause(rows, best, evidence)
    if seen and seen.words in _UNSURE and (again := evidence.repeats()):
        seen = seen._replace(words=in_words(again), again=tuple(again))
    impossible = any(row.impossible for case in rows for row in case)
    return None if seen and impossible and seen.kind in WITHIN_THE_LAW else seen


def _cause(rows: list[list[SampledRow]], best: Sequence[tuple[Bet, float]], evidence: SamplerEvidence) -> Named | None:
    """The fault of a law, or of random numbers: where these are shared, every row's own law is right.

    So shared random numbers are named where no law is seen to be wrong, and no bet on a row alone earned as much.
    """
    if seen := named(evidence):
        return seen if seen.kind != "stray-law" else None
    (first, gain), *others = best
    alone = max((other for bet, other in others if not bet.cause), default=0.0)
    if first.cause and math.log(NAMED) <= min(gain - alone, shared(rows, first.cause)):
        return Named(first.kind, first.cause, gain)
    return None


def named_by_tokens(outcomes: Sequence[SampledOutcome]) -> Named | None:
    """The wrong part of an engine's sampler; the laws that this needs are looked up here."""
    looked_at = list(_looked_at(outcomes))
    best = _earned(looked_at)
    seen = [row for outcome in looked_at for row in _seen(outcome)]
    evidence = Tokens(seen, [(bet.kind, gain) for bet, gain in best])
    return cause([rows_of(outcome) for outcome in looked_at], best, evidence)


def _looked_at(outcomes: Sequence[SampledOutcome]) -> Iterator[SampledOutcome]:
    tokens = 0
    for outcome in outcomes:
        if tokens < MOST:
            yield outcome
        tokens += sum(len(row.tokens) for row in outcome.sampled.values())


def _earned(outcomes: Sequence[SampledOutcome]) -> list[tuple[Bet, float]]:
    """The bets of the portfolio with the gain of each on these rows, the greatest first."""
    total = np.zeros(len(BETS))
    for outcome in outcomes:
        rows = rows_of(outcome)
        for number, row in enumerate(rows):
            earned = np.concatenate([bets(row, rows[:number]), pair_bets(row, rows[:number])], axis=1)
            asked = outcome.case.rows[list(outcome.sampled)[number]].options
            total += earned[: _whole_rounds(outcome.case, asked, row)].sum(0)
    return sorted(zip(BETS.values(), total.tolist(), strict=True), key=lambda pair: -pair[1])


def _seen(outcome: SampledOutcome) -> Iterator[Seen]:
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
    return variants(right, torch.from_numpy(raw).clamp(min=1e-300).log(), case, number, near=1e-6)


def _nothing(row: SampledRow) -> tuple[Floats, Ints]:
    return np.zeros((*row.p.shape[:1], 0, *row.p.shape[1:])), np.zeros((len(row.p), 0), np.int64)


def _as_long(other: Floats, own: Floats) -> Floats:
    """Return another row's distributions, its own after the other has ended."""
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
    model, _ = checkpoint(case.checkpoint).models()
    mask = torch.zeros(1, 1, length, length, dtype=model.dtype).masked_fill(~seen, float("-inf"))
    logits = model(
        input_ids=torch.tensor([[*text, *likeliest.flatten().tolist()]]),
        attention_mask=mask,
        position_ids=torch.cat([torch.arange(len(text)), of])[None],
        use_cache=False,
    ).logits[0, len(text) :]
    return law_of(logits, asked.options, case.order).reshape(n, size, -1), likeliest
