"""One sampled case decoded: what the rows emitted, and the laws of target and draft after each true prefix."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple, cast

import numpy as np
import torch

from eqcheck.case.sampling import SampledCase
from eqcheck.contract.decoders import Generate
from eqcheck.decoding.harness import answered
from eqcheck.decoding.run import Run, Truth, cut
from eqcheck.drafting.draft import ScriptedDraft
from eqcheck.hashlm.hashing import Words, table_row
from eqcheck.hashlm.model import HashConfig, HashLM
from eqcheck.hashlm.scores import Spread, score_table
from eqcheck.hashlm.trace import Trace
from eqcheck.lanes.sampling.laws import law_of, sampled_row
from eqcheck.sampling.row import Floats, SampledRow
from eqcheck.truth.continuation import continue_rows, digests_of
from eqcheck.truth.law import penalised

TARGET, DRAFT = 0, 1


@dataclass(frozen=True)
class SampledRun:
    """A run, its truth made from what the sampled rows emitted; ``rows`` has each sampled row's laws, by number."""

    case: SampledCase
    run: Run
    rows: dict[int, SampledRow]


def spreads(case: SampledCase) -> tuple[Spread, Spread]:
    """The spreads of target and draft."""
    return Spread(case.scale, case.support), Spread(case.scale, case.draft_support, case.mix)


@lru_cache(maxsize=64)
def _models(family: str, vocab_size: int, seed: int, spread: tuple[Spread, Spread]) -> tuple[HashLM, ScriptedDraft]:
    target, draft = (
        HashConfig(vocab_size, seed, family, role, spread=(one.scale, one.support, one.mix))
        for role, one in enumerate(spread, 1)
    )
    return cast(HashLM, HashLM(target).eval()), cast(ScriptedDraft, ScriptedDraft(draft).eval())


def decode(generate: Generate, case: SampledCase, timeout: float | None = None) -> SampledRun:
    """Let a decoder decode a case; the global generators are seeded by its entropy, and restored afterwards."""
    trace = Trace(max_calls=200 + 4 * len(case.prompts) * (case.max_new_tokens + 2) * (case.num_draft_tokens + 2))
    target, draft = (model.fresh() for model in _models(case.family, case.vocab_size, case.seed, spreads(case)))
    for model in (target, draft):
        model.trace = trace
    with seeded(case.entropy):
        empty = Truth((), (), ())
        done = answered(generate, case, empty, trace, (target, cast(ScriptedDraft, draft)), timeout)
    if done.outputs is None:
        return SampledRun(case, done, {})
    truth = _truth(case, done.outputs)
    rows = {number: _row(case, number, done.outputs, truth.digests[number]) for number in case.sampled}
    return SampledRun(case, replace(done, truth=truth), rows)


def _truth(case: SampledCase, outputs: tuple[tuple[int, ...], ...]) -> Truth:
    """The tokens that greedy rows have to emit and sampled rows did emit, cut where the rows had to end."""
    rows, texts = [], []
    for prompt, options, output in zip(case.prompts, case.rows, outputs, strict=True):
        row = output[: options.max_new_tokens]
        if not options.temperature:
            one = continue_rows(case.family, case.vocab_size, case.seed, [prompt], options.max_new_tokens)[0]
            row = one[0]
        rows.append(row)
        texts.append(prompt + row)
    digests = digests_of(case.family, texts)
    ended = tuple(cut(row, options.eos_token_ids) for row, options in zip(rows, case.rows, strict=True))
    return Truth(ended, tuple(rows), tuple(digests))


def _row(case: SampledCase, number: int, outputs: tuple[tuple[int, ...], ...], digests: Words) -> SampledRow:
    options = case.rows[number]
    tokens = cut(outputs[number][: options.max_new_tokens], options.eos_token_ids)
    target, draft = (scores(case, which, number, tokens, digests) for which in (TARGET, DRAFT))
    return sampled_row(case, number, tokens, target, law_of(draft, options, case.order))


def law_behind(case: SampledCase, which: int, number: int, tokens: list[int], digest: int) -> Floats:
    """The law ``[vocabulary]`` of target or draft after these new tokens of a row, where a query had this digest."""
    plain = _scores(case, which, np.array([digest], np.uint64))
    options = case.rows[number]
    behind = penalised(plain, options, case.prompts[number], tokens, len(tokens))
    return np.asarray(law_of(behind, options, case.order)[0])


def scores(case: SampledCase, which: int, number: int, tokens: Sequence[int], digests: Words) -> torch.Tensor:
    """The scores ``[n, vocabulary]`` of target or draft at each token of a row, after its penalties."""
    prompt = case.prompts[number]
    at = digests[-1, len(prompt) - 1 : len(prompt) - 1 + len(tokens)]
    return penalised(_scores(case, which, at), case.rows[number], prompt, tokens)


def _scores(case: SampledCase, which: int, digests: Words) -> torch.Tensor:
    table = score_table(case.vocab_size, case.seed, spreads(case)[which])
    return torch.from_numpy(np.asarray(table[table_row(digests)]))


@contextmanager
def seeded(entropy: int) -> Iterator[None]:
    """Seed the global generators, so that a case decodes alike wherever the decoder draws from them."""
    states = torch.random.get_rng_state(), np.random.get_state(), random.getstate()
    torch.manual_seed(entropy)
    np.random.seed((entropy >> 8) % 2**32)  # generators of one kind, seeded alike, would give the same numbers
    random.seed(~entropy)
    try:
        yield
    finally:
        torch.random.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])


class Mark(NamedTuple):
    """The origin of one new token: its row and index ``at``, its role, and the draft token verified there (-1: none).

    ``role`` is ``accepted``, ``corrected``, ``bonus`` (behind draft tokens that were all accepted) or ``plain`` (no
    draft token was verified in the call). ``call`` is the target's call that answered it, ``column`` how many draft
    tokens stand before it in that call's block. ``drafted``: the draft was asked for the token in its right context.
    ``refused`` are the final digests of the target's queries that were fed draft tokens refused here, in order.
    """

    row: int
    at: int
    role: str
    draft: int
    call: int
    column: int
    drafted: bool
    refused: tuple[int, ...] = ()


def marks(run: Run, rows: set[int]) -> dict[int, list[list[Mark]]]:
    """The marks of the tokens of each round of these rows, as far as they can be read.

    A token counts only if a query with exactly the right context stands behind it. A draft token counts only if the
    draft was asked for it in its right context, too.
    """
    by_row: dict[int, list[list[Mark]]] = defaultdict(list)
    for own in run.rounds.every:
        if own.row not in rows or own.last + 1 < own.known:
            continue
        start, number, text = own.start, own.call.number, run.truth.uncut[own.row]
        fed, behind = own.refused, own.known - start
        role = "corrected" if fed else "bonus" if own.accepted else "plain"
        refused = tuple(own.call.digests[own.call_row, list(own.columns)].tolist())
        told = [("accepted", text[at], at, ()) for at in range(behind, min(own.answered, len(text)))]
        told.append((role, fed[0] if fed else -1, own.answered, refused))
        of_round = [
            Mark(
                own.row,
                at,
                role,
                draft,
                number,
                at - behind,
                run.rounds.proposed(own.row, start + at - 1, number),
                there,
            )
            for role, draft, at, there in told
            if at < len(run.truth.rows[own.row])
        ]
        if of_round:
            by_row[own.row].append(of_round)
    return by_row
