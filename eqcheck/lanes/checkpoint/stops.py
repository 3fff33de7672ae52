"""Stop sequences of rows of engines: how they are drawn, and the counters that they raise."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from eqcheck.case.engine import EngineCase, EngineRow
from eqcheck.checkpoints.judge import truth
from eqcheck.checkpoints.models import checkpoint
from eqcheck.checkpoints.truth import Truth, row_with

_CACHE_BLOCK = 16  # tokens in a block of an engine's cache
_ROWS = 4  # more cost time: what rows emit must be known


def some(rng: random.Random, tokens: list[int]) -> tuple[int, ...]:
    """One or two of the tokens."""
    return tuple(dict.fromkeys(rng.choice(tokens) for _ in range(rng.randint(1, 2))))


def with_eos(rng: random.Random, row: EngineRow, emitted: list[int], least: bool) -> EngineRow:
    """The row with EOS ids it would emit, and a minimum of new tokens about where one of them would end it."""
    emitted = emitted[: row.options.max_new_tokens]
    row = row_with(row, eos_token_ids=some(rng, emitted))
    if not least or rng.random() < 0.3:
        return row
    at = min(emitted.index(token) for token in row.options.eos_token_ids) + 1
    minimum = at + rng.choice((-2, -1, -1, 0, 1, rng.randint(2, 6)))
    return row_with(row, min_new_tokens=min(max(1, minimum), row.options.max_new_tokens))


def with_stops(rng: random.Random, case: EngineCase, of_output: bool = False) -> EngineCase:
    """The case with stop sequences of some rows; not of one with a minimum: engines differ in what that holds back.

    ``of_output``: some lie across a block of new tokens in place of one of the cache.
    """
    if not checkpoint(case.checkpoint).built:  # texts of other tokenizers may be joined otherwise
        return case
    free = [place for place, row in enumerate(case.rows) if not row.options.min_new_tokens]
    chosen = rng.sample(free, min(len(free), _ROWS))
    rows, count = list(case.rows), max(row.options.max_new_tokens for row in case.rows)
    emitted = truth(case.checkpoint).emitted([rows[place] for place in chosen], count) if chosen else []
    for place, tokens in zip(chosen, emitted, strict=True):
        stops = stopping(rng, rows[place].prompt, tokens[: rows[place].options.max_new_tokens], of_output)
        rows[place] = row_with(rows[place], stop_sequences=stops)
    return replace(case, rows=tuple(rows))


def with_cancelled(rng: random.Random, case: EngineCase) -> EngineCase:
    """The case with about every second row cancelled somewhere: the rows beside it, and late ones, go on."""
    return case.with_options(
        replace(options, cancel_after=rng.randint(1, max(1, options.max_new_tokens * 3 // 4)))
        if rng.random() < 0.5
        else options
        for options in case.options
    )


def with_answers(rng: random.Random, case: EngineCase, requires: Sequence[str], most: int) -> EngineCase:
    """The case with a request that has two to four answers, and at most so many rows.

    It is left as it is where drafts are dictated, rows are cancelled, or such a request has to be sampled.
    """
    cancelled = any(options.cancel_after for options in case.options)
    n = min(rng.randint(2, 4), most - len(case.rows) + 1)
    if case.drafting == "dictated" or cancelled or {"sampled-n", "batch-1"} & {*requires} or n < 2:
        return case
    at = rng.randrange(len(case.rows))
    row = replace(case.rows[at], options=replace(case.rows[at].options, n=n))
    return replace(case, rows=(*case.rows[:at], *[row] * n, *case.rows[at + 1 :]))


def with_logprobs(case: EngineCase, new: bool, of_prompt: bool) -> EngineCase:
    """The case with rows that ask for the log-probabilities of their tokens, or of their prompts'."""
    return case.with_options(replace(options, logprobs=new, prompt_logprobs=of_prompt) for options in case.options)


def stopping(
    rng: random.Random, prompt: Sequence[int], emitted: Sequence[int], of_output: bool = False
) -> tuple[tuple[int, ...], ...]:
    """Stop sequences of a row that would emit these tokens; of most kinds one ends it, the last tokens least often."""
    tokens = tuple(emitted)
    start = rng.randrange(max(1, len(tokens) * 3 // 4))
    stop = tokens[start : start + rng.choice((1, 1, 2, 3, 4))]
    kind = rng.choice(("emitted", "several", "left open", "prefix", "across a block", "at the end", "prompt", "across"))
    if kind == "across a block":  # of the engine's cache
        edge = _CACHE_BLOCK if of_output and len(prompt) % 2 else -len(prompt) % _CACHE_BLOCK
        stop = tokens[max(0, edge - 1) : edge + 1] or stop
    elif kind == "at the end":
        stop = tokens[-rng.randint(1, 3) :]
    other = {
        "several": (tokens[start + 1 : start + 3] or stop, (tokens[0] ^ 1, tokens[-1])),
        # The tokens before the match begin another stop sequence, which is left open.
        "left open": ((*tokens[max(0, start - 1) : start + 1], tokens[start] ^ 1),),
        "prefix": (tokens[start : start + 5],),
        "prompt": (tuple(prompt[-2:]),),
        "across": ((*prompt[-1:], tokens[0]),),
    }.get(kind, ())
    stops = [*other] if kind in ("prompt", "across") and rng.random() < 0.5 else [*other, stop]
    return tuple(dict.fromkeys(rng.sample(stops, len(stops))))


def places(stop: Sequence[int], tokens: Sequence[int]) -> list[int]:
    """Return where a sequence begins among tokens."""
    return [at for at in range(len(tokens)) if tuple(tokens[at : at + len(stop)]) == tuple(stop)]


def ending_like(row: EngineRow, other: EngineRow, alone: Truth) -> EngineRow:
    """``other`` with those of its tokens as EOS ids and stops that stand where EOS ids and stops of ``row`` would."""
    endless, others = (alone.row(row_with(each, eos_token_ids=(), stop_sequences=())) for each in (row, other))

    def there(sequence: tuple[int, ...]) -> tuple[int, ...]:
        start = next(iter(places(sequence, endless)), len(others))
        return tuple(others[start : start + len(sequence)])

    ends = [there((token,)) for token in row.options.eos_token_ids]
    eos = tuple(dict.fromkeys(token for ids in ends for token in ids)) or other.options.eos_token_ids
    stops = tuple(dict.fromkeys(there(stop) or stop for stop in row.options.stop_sequences))
    return row_with(other, eos_token_ids=eos, stop_sequences=stops)


def stops_seen(case: EngineCase, outputs: Sequence[tuple[int, ...]]) -> dict[str, bool]:
    """The counters of stop sequences: which there are, and which ended a row."""
    rows = [(row, row.options, tokens) for row, tokens in zip(case.rows, outputs, strict=True)]
    ended = [(row, tokens, stop) for row, options, tokens in rows for stop in options.stops_of(tokens)]
    return {
        "stops": any(options.stop_sequences for _, options, _ in rows),
        "stopped": bool(ended),
        "stop_of_several": any(len(stop) > 1 for *_, stop in ended),
        "stop_across_blocks": any(
            ((end := len(row.prompt) + len(tokens)) - 1) // _CACHE_BLOCK != (end - len(stop)) // _CACHE_BLOCK
            for row, tokens, stop in ended
        ),
        "stop_in_prompt": any(places(stop, row.prompt) for row, options, _ in rows for stop in options.stop_sequences),
        "stop_left_open": any(
            other[:1] and places(other[:1], tokens[:-1])
            for row, tokens, _ in ended
            for other in row.options.stop_sequences
            if len(other) > 1 and tokens[-len(other) :] != other
        ),
    }
