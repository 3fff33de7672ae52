"""One sampled case decoded: what the rows emitted, and the laws of target and draft after each true prefix."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from eqcheck.contract.decoders import Generate, RowOptions
from eqcheck.core.case.engine import EngineRow
from eqcheck.core.case.sampling import PROMISES, SampledCase, SampledEngineCase
from eqcheck.core.explanation.records import Explanation
from eqcheck.core.law import law, penalised
from eqcheck.core.result.outcome import common_start
from eqcheck.engines.checkpoints.continuations import FunctionTruth, ModelTruth
from eqcheck.engines.checkpoints.continuations import Truth as EngineTruth
from eqcheck.engines.checkpoints.folders import checkpoint
from eqcheck.engines.checkpoints.row_judge import truth
from eqcheck.sampling.betting.laws import RARE, UNCUT, Bools, Floats, SampledRow, misused
from eqcheck.transparent.decoding import Run, Truth, answered, cut
from eqcheck.transparent.drafting import ScriptedDraft
from eqcheck.transparent.hashlm.hashing import Spread, Words, score_table, table_row
from eqcheck.transparent.hashlm.model import HashConfig, HashLM
from eqcheck.transparent.hashlm.trace import Trace
from eqcheck.transparent.truth.continuation import continue_rows, digests_of
from eqcheck.transparent.truth.ties import FACTOR

# A sampled row as evidence: the laws at its tokens, and of an engine how far float32 may be from them.
#
# Of engines, positions near a cut are skipped: where the scores need to change by less than `ties.FACTOR` times what
# float32 changes to move it. The change by float32 is measured at the prefixes up to there, in the order in which
# tokens count as evidence; so a position is skipped for text before its token only. The bound on rounding,
# `SampledRow.eps`, is as many times the change by float32 of the row's own probabilities. The laws of the transparent
# target are exact. The scores of a built checkpoint are exact in bfloat16, which rounds them to a grid: there the
# rounding is that of a softmax. In float16 they are not: a token beyond a cut by 0.07 was emitted by a right engine.

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
    # Rounds that ask again for known tokens bring no draw of their own. The last token of a round is the target's:
    # after a refusal a correction, after accepted drafts a bonus, and plain where nothing was drafted.
    by_row: dict[int, list[list[Mark]]] = defaultdict(list)
    for own in run.rounds.every:
        if own.row not in rows or own.last + 1 < own.known:
            continue
        start, number, text = own.start, own.call.number, run.truth.uncut[own.row]
        fed, behind = own.refused, own.known - start
        role = "corrected" if fed else "bonus" if own.accepted else "plain"
        refused = tuple(own.call.digests[own.call_row, list(own.columns)].tolist())
        told = [("accepted", text[at], at, ()) for at in range(behind, min(own.answered, len(text)))]
        # Only the last token of a round has refused drafts behind it.
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


# Check that rows with seeds repeat as the decoder promises, and that rows without one do not.

Outputs = Sequence[tuple[int, ...]]
Decode = Callable[[Any], Outputs | None]
_OTHER = 0x5EED  # added to the entropy, so that only what has a seed can be the same
_AGAIN_IN = 16  # cases, one is decoded again
_HARDLY = 30.0  # nats: what a right decoder repeats by chance once in 10^13 times


def repeated(done: SampledRun, decode: Decode) -> Explanation | None:
    """Return whether rows without a seed emit the same again, with other random numbers, which is hardly possible.

    Only some of the cases are decoded again; which, their entropy says.
    """
    case, outputs = done.case, done.run.outputs
    free = {number: row for number, row in done.rows.items() if row.seed is None}
    likely = [row.p[t, token] for row in free.values() for t, token in enumerate(row.tokens)]
    if outputs is None or case.entropy % _AGAIN_IN or 0 in likely or -np.log(likely).sum() < _HARDLY:
        return None
    again = decode(replace(case, entropy=case.entropy ^ _OTHER))
    if again is None or any(again[number] != outputs[number] for number in free):
        return None
    return Explanation(
        "sampling",
        "shared-noise",
        row=min(free),
        detail=f"the same request with fresh random numbers returns the same {len(likely)} tokens again in its rows "
        "without a seed: requests share random numbers",
        observed_row=outputs[min(free)],
        wrong_rows=tuple(free),
        subject="requests",
        tied=True,
    )


def broken(
    case: Any,
    outputs: Outputs | None,
    decode: Decode,
    excused: Callable[[Explanation], bool] = lambda _: False,
) -> Explanation | None:
    """The first promise of the case that a seeded row does not keep, unless it is ``excused``."""
    # A decode that fails says nothing about a promise, so such a trial is left out.
    seeded = case.seeded
    if not outputs or not seeded:
        return None
    for level, what, first, other, rows in trials(case, seeded):
        # The first promise that is broken will do: each takes decoding again.
        known = [outputs[row] for row in rows] if first is None else decode(first)
        tried = decode(other)
        if known is None or tried is None:
            continue
        for row, was, now in zip(rows, known, tried, strict=True):
            if row in seeded and now != was and not excused(read := _broken(case, row, level, what, was, now)):
                return read
    return None


def trials(case: Any, seeded: Sequence[int]) -> Iterator[tuple[str, str, Any, Any, list[int]]]:
    """A level of the promise, what is changed, two cases whose rows are to agree, and which row each of theirs was.

    The first case is None where it is the one that was decoded.
    """
    level = PROMISES.index(case.promise)
    every, alone = list(range(len(case.rows))), list(seeded[:1])
    again = replace(case, entropy=case.entropy ^ _OTHER)
    # Rows without a seed come out otherwise the second time. Whether a row heeds its seed shows without them.
    if case.seeded == case.sampled:
        yield "repeatable", "the same request again", None, again, every
    elif level >= 2:
        yield "repeatable", "the request alone again", case.of(alone), again.of(alone), alone
    if level >= 2:
        yield "mates", "the requests in another order", None, again.of(every[::-1]), every[::-1]
        yield "mates", "the request alone", None, again.of(alone), alone
    if level >= 3:
        yield "speculation", "another K", None, replace(again, num_draft_tokens=case.num_draft_tokens % 4 + 1), every


def _broken(case: Any, row: int, level: str, what: str, first: tuple[int, ...], other: tuple[int, ...]) -> Explanation:
    """The promise that a row does not keep: ``first`` is what it emitted, ``other`` what it did after a change."""
    seed, index = case.options[row].seed, common_start(first, other)
    read = Explanation(
        "sampling",
        "seed-ignored" if level == "repeatable" else "batch-dependent",
        row=row,
        token_index=index,
        observed=other[index] if index < len(other) else None,
        expected=first[index] if index < len(first) else None,
        facts={"seed": str(seed), "changed": what, "promise": case.promise},
        expected_row=first,
        observed_row=other,
        wrong_rows=(row,),
        given=case.given(row),
        subject=level if level != "repeatable" else "",
        tied=True,
    )
    emits = f"request {row} has seed {seed}, but with {what} it returns other tokens from new token {index} on"
    return read.saying(emits, f"the adapter declares seeds={case.promise!r}")
