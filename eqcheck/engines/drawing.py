"""Cases as an engine meets them in service, drawn within what it can do.

An engine takes seconds to start under new settings, so cases come in blocks: settings are drawn for a block, rows for
each case. `eqcheck.audit.coverage_words` names what a case exercises; where the engine counts, whether it happened.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count, pairwise
from math import lcm
from typing import Any

from eqcheck.contract.decoders import CAPABILITIES, RowOptions
from eqcheck.contract.options import SCORING, cancelled
from eqcheck.contract.profiles import SERVED, WIDE, Bounds
from eqcheck.contract.requirements import prompts_meeting
from eqcheck.core.case.engine import PAD, POSITIONS, SILENT, VOCAB_SIZE, EngineCase, EngineRow, at_the_end
from eqcheck.engines import option_effects
from eqcheck.engines.checkpoints.continuations import Truth, row_with
from eqcheck.engines.checkpoints.folders import checkpoint
from eqcheck.engines.checkpoints.row_judge import truth
from eqcheck.engines.option_effects import grammars_seen, with_grammars

# Stop sequences of rows of engines: how they are drawn, and the counters that they raise.

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
    kind = rng.choice(("emitted", "several", "left-open", "prefix", "across-a-block", "at-the-end", "prompt", "across"))
    if kind == "across-a-block":  # of the engine's cache
        edge = _CACHE_BLOCK if of_output and len(prompt) % 2 else -len(prompt) % _CACHE_BLOCK
        stop = tokens[max(0, edge - 1) : edge + 1] or stop
    elif kind == "at-the-end":
        stop = tokens[-rng.randint(1, 3) :]
    other = {
        "several": (tokens[start + 1 : start + 3] or stop, (tokens[0] ^ 1, tokens[-1])),
        # The tokens before the match begin another stop sequence, which is left open.
        "left-open": ((*tokens[max(0, start - 1) : start + 1], tokens[start] ^ 1),),
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


# Cases that reach where ordinary ones do not come: long prompts, many rows, deep rounds, too few blocks.
#
# They are large, so two in a block of cases are such, and the blocks take turns. Their rows have no options but
# limits and arrivals: ordinary cases have those.

LONG, DEEP, MANY = 1000, 8, 100  # what a prompt, K, and the number of rows are more than
_LONGEST = 1600  # tokens of a long prompt: a longer one says no more, and takes longer
FEW_BLOCKS = 6  # of an engine's cache; ordinary cases have 9 or more
KV_BLOCK = 32  # tokens, in the engines that name it
_BEGINNING = 2 * KV_BLOCK  # tokens that are cached and asked for again
_NEAR_ENDS = (-1, 0, 1)  # of a block


@dataclass(frozen=True)
class Reach:
    """A kind of such cases: the capabilities that it needs, whether bounds leave room for it, and how it is drawn.

    ``settings`` are drawn once for the cases of a block; ``rows`` for each of them.
    """

    needs: tuple[str, ...]
    fits: Callable[[Bounds], bool]
    settings: Callable[[random.Random, EngineCase, Bounds, Sequence[str]], EngineCase]
    rows: Callable[[random.Random, EngineCase, Bounds, Sequence[str]], list[EngineRow]]


def reaches(capabilities: Sequence[str], requires: Sequence[str], bounds: Bounds) -> list[Reach]:
    """The kinds that an engine can be asked for; those with many rows are not for one that takes one row."""
    alone = "batch-1" in requires
    return [
        kind
        for kind in KINDS
        if set(kind.needs) <= set(capabilities) and kind.fits(bounds) and not (alone and kind in _OF_SEVERAL)
    ]


def going_on(
    rng: random.Random, rows: Sequence[EngineRow], alone: Truth, arrivals: bool, block: int = 1
) -> list[EngineRow]:
    """The rows; the last goes on from an earlier row, behind its prompt and its new tokens, once that has ended.

    The next turn of a conversation does so: entries of new tokens are cached, and the last token was never fed. Where
    its limit can be made so much less, the earlier row ends where a ``block`` does: then that token is its last.
    """
    *others, last = rows
    first = rng.choice([row for row in others if not row.options.changes_scores] or [last])
    limits = range(first.options.max_new_tokens, max(0, first.options.min_new_tokens - 1), -1)
    whole = next((limit for limit in limits if (len(first.prompt) + limit) % block == 0), limits[0])
    shorter = row_with(first, max_new_tokens=whole)
    others, first = [shorter if row is first else row for row in others], shorter
    (tokens,) = alone.emitted([first], first.options.max_new_tokens)
    more = [rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, 6))]
    later = replace(last, prompt=(*first.prompt, *first.options.cut(tuple(tokens)), *more))
    end = first.options.arrival + first.options.max_new_tokens + len(rows)
    return [*others, row_with(later, arrival=end) if arrivals else later]


def reaching(
    kind: Reach,
    of_block: random.Random,
    rng: random.Random,
    settings: EngineCase,
    bounds: Bounds,
    capabilities: Sequence[str],
) -> EngineCase:
    """A case of a kind, with the checkpoint and the drafting of its block, and other settings."""
    case = kind.settings(of_block, settings, bounds, capabilities)
    return replace(case, rows=tuple(kind.rows(rng, case, bounds, capabilities)))


def _tokens(rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randrange(VOCAB_SIZE) for _ in range(count))


def _asked(
    rng: random.Random, prompts: Sequence[tuple[int, ...]], limits: tuple[int, int], most: int
) -> list[EngineRow]:
    """Rows with one limit, between these two and of at most so many tokens."""
    limit = min(rng.randint(*limits), most)
    return [EngineRow(prompt, RowOptions(limit)) for prompt in prompts]


def _unbounded(of_block: random.Random, case: EngineCase, bounds: Bounds, capabilities: Sequence[str]) -> EngineCase:
    """All the blocks there are."""
    return replace(case, kv_blocks=None)


def _long(rng: random.Random, case: EngineCase, bounds: Bounds, capabilities: Sequence[str]) -> list[EngineRow]:
    """A row with a long prompt, sometimes beside short ones."""
    most = min(bounds.prompt, _LONGEST)
    exact = [length for length in (LONG + 1, 1023, 1024, 1025) if length <= most]
    prompts = [_tokens(rng, rng.choice((*exact, rng.randint(LONG + 1, most))))]
    prompts += [_tokens(rng, rng.randint(1, 40)) for _ in range(min(rng.choice((0, 1, 2)), bounds.rows - 1))]
    rng.shuffle(prompts)
    return _asked(rng, prompts, (6, 16), bounds.new_tokens)


def _to_the_end(rng: random.Random, case: EngineCase, bounds: Bounds, capabilities: Sequence[str]) -> list[EngineRow]:
    """A row that ends where the model's positions do, or within a round before; a short one beside it.

    There is no room for a whole round: drafts have to become fewer, and a draft model may run out first.
    """
    limit = min(rng.randint(1, case.num_draft_tokens + 2), bounds.new_tokens)
    end = POSITIONS - rng.choice((0, 0, 1, rng.randint(0, case.num_draft_tokens)))
    rows = [EngineRow(_tokens(rng, end - limit), RowOptions(limit))]
    if bounds.rows > 1:
        rows.insert(rng.randint(0, 1), EngineRow(_tokens(rng, rng.randint(1, 40)), RowOptions(limit)))
    return rows


def _of_deep(of_block: random.Random, case: EngineCase, bounds: Bounds, capabilities: Sequence[str]) -> EngineCase:
    k = min(of_block.choice((12, 16, 24, 32, 32, 32)), bounds.draft_tokens)
    return replace(case, num_draft_tokens=k, kv_blocks=None, token_budget=None)


def _deep(rng: random.Random, case: EngineCase, bounds: Bounds, capabilities: Sequence[str]) -> list[EngineRow]:
    """A row or two that have room for a round and more."""
    prompts = [_tokens(rng, rng.randint(1, 40)) for _ in range(min(rng.choice((1, 2)), bounds.rows))]
    return _asked(rng, prompts, (case.num_draft_tokens + 2, case.num_draft_tokens + 10), bounds.new_tokens)


def _many(rng: random.Random, case: EngineCase, bounds: Bounds, capabilities: Sequence[str]) -> list[EngineRow]:
    """Draw as many rows as an engine takes, or some fewer."""
    size = rng.choice((bounds.rows, rng.randint(MANY + 1, bounds.rows)))
    return _asked(rng, [_tokens(rng, rng.randint(1, 16)) for _ in range(size)], (6, 12), bounds.new_tokens)


def _of_preempted(of_block: random.Random, case: EngineCase, bounds: Bounds, capabilities: Sequence[str]) -> EngineCase:
    return replace(case, kv_blocks=of_block.randint(9, 12), token_budget=None, prefix_caching=None)


def _preempted(rng: random.Random, case: EngineCase, bounds: Bounds, capabilities: Sequence[str]) -> list[EngineRow]:
    """Rows that all begin, and grow until the blocks hold only some of them."""
    size = min(bounds.rows, 20 if "many-rows" in capabilities else WIDE.rows)
    lengths = [min(rng.randint(KV_BLOCK - 12, KV_BLOCK - 2), bounds.prompt) for _ in range(size)]
    return _asked(rng, [_tokens(rng, length) for length in lengths], (28, 40), bounds.new_tokens)


def _of_returning(of_block: random.Random, case: EngineCase, bounds: Bounds, capabilities: Sequence[str]) -> EngineCase:
    few = of_block.randint(9, 12) if "kv-blocks" in capabilities else None
    return replace(case, prefix_caching=True, kv_blocks=few, token_budget=None)


def _returning(rng: random.Random, case: EngineCase, bounds: Bounds, capabilities: Sequence[str]) -> list[EngineRow]:
    """Requests one after the other, with beginnings of their own; the last beginning comes twice, then the first.

    A beginning ends about a block's end. Between the two uses of the first one all blocks are needed for others.
    """
    size = min(bounds.rows, WIDE.rows)
    lengths = [_BEGINNING + rng.choice(_NEAR_ENDS) for _ in range(size - 2)]
    beginnings = [_tokens(rng, length) for length in lengths]
    prompts = [(*one, *_tokens(rng, rng.randint(1, 6))) for one in (*beginnings, beginnings[-1], beginnings[0])]
    rows = _asked(rng, prompts, (4, 8), bounds.new_tokens)
    if "arrivals" not in capabilities:
        return rows
    apart = rows[0].options.max_new_tokens + 4  # steps: by then the row before has ended
    return [replace(row, options=replace(row.options, arrival=at * apart)) for at, row in enumerate(rows)]


def _of_ends(of_block: random.Random, case: EngineCase, bounds: Bounds, capabilities: Sequence[str]) -> EngineCase:
    """The least budget holds one row's round, the fewest blocks three rows; or there is more of both than is needed."""
    least = of_block.random() < 0.5
    budget = case.num_draft_tokens + 1 if least else 2048
    blocks = FEW_BLOCKS if least else 512
    return replace(
        case,
        token_budget=budget if "token-budget" in capabilities else None,
        kv_blocks=blocks if "kv-blocks" in capabilities else None,
    )


def _ends(rng: random.Random, case: EngineCase, bounds: Bounds, capabilities: Sequence[str]) -> list[EngineRow]:
    """A few rows that are short enough for the fewest blocks."""
    lengths = [min(rng.randint(1, KV_BLOCK), bounds.prompt) for _ in range(min(rng.randint(2, 5), bounds.rows))]
    return _asked(rng, [_tokens(rng, length) for length in lengths], (8, 16), bounds.new_tokens)


_LONG = Reach((), lambda bounds: bounds.prompt > LONG, _unbounded, _long)
_END = Reach((), lambda bounds: bounds.prompt >= POSITIONS - 1, _unbounded, _to_the_end)
_DEEP = Reach((), lambda bounds: bounds.draft_tokens > DEEP, _of_deep, _deep)
_MANY = Reach(("many-rows",), lambda bounds: bounds.rows > MANY, _unbounded, _many)
_PREEMPTED = Reach(("kv-blocks",), lambda bounds: bounds.rows >= 8, _of_preempted, _preempted)
_RETURNING = Reach(
    ("prefix-caching",), lambda bounds: bounds.rows >= 8 and bounds.prompt >= _BEGINNING + 7, _of_returning, _returning
)
_BUDGETS = Reach(("token-budget",), lambda bounds: True, _of_ends, _ends)
KINDS = (_LONG, _DEEP, _MANY, _PREEMPTED, _RETURNING, _BUDGETS, _END)
_OF_SEVERAL = (_MANY, _PREEMPTED, _RETURNING)


def reached(case: EngineCase, outputs: Sequence[tuple[int, ...]]) -> dict[str, bool]:
    """Return whether a case reaches there, by the names of the counters that it raises."""
    lengths = [len(row.prompt) for row in case.rows]
    budget, blocks = case.token_budget or 10**9, case.kv_blocks or 10**9
    deep = case.num_draft_tokens > DEEP and case.drafting != "none"
    return {
        "long_prompt": max(lengths) > LONG,
        "end_of_model": at_the_end(case),
        "deep_round": deep,
        "hundred_rows": len(case.rows) > MANY,
        "least_budget": budget <= case.num_draft_tokens + 1,
        "least_blocks": blocks <= FEW_BLOCKS,
        "goes_on": any(_goes_on(case, outputs)),
        "beginning_returns": bool(case.prefix_caching) and any(_between(case.rows)),
        "beginning_evicted": bool(case.prefix_caching) and any(held >= blocks for held in _between(case.rows)),
    }


def _goes_on(case: EngineCase, outputs: Sequence[tuple[int, ...]]) -> Iterator[bool]:
    """Yield for each row with new tokens whether a later one begins with them and their prompt."""
    prompts = case.prompts
    for number, tokens in enumerate(outputs):
        whole = (*prompts[number], *tokens)
        yield bool(tokens) and any(prompt[: len(whole)] == whole for prompt in prompts[number + 1 :])


def _between(rows: Sequence[EngineRow]) -> list[int]:
    """Return for each row that begins like an earlier one the blocks of the rows with other beginnings between them.

    Rows are requests one after the other only where each arrives later than the one before.
    """
    begun, blocks = dict[tuple[int, ...], int](), list[int]()
    if any(one.options.arrival >= later.options.arrival for one, later in pairwise(rows)):
        return []
    for number, row in enumerate(rows):
        begins = row.prompt[:KV_BLOCK]
        if len(begins) < KV_BLOCK:
            continue
        # All blocks of others that fit into the cache: with more the beginning is gone when it comes again.
        since = rows[begun[begins] + 1 : number] if begins in begun else ()
        others = [len(other.prompt) for other in since if other.prompt[:KV_BLOCK] != begins]
        if others:
            blocks.append(sum(-(-length // KV_BLOCK) for length in others))
        begun[begins] = number
    return blocks


BLOCK = 20  # cases under one setting of the engine, which has to start for it
OPENING = 2  # cases of a block of the opening
_AT_ONCE = 2  # options whose turn it is in one case of the opening
REACHING = 1  # of them, the last one
RANDOM_EVERY = 4  # of the blocks, where log-probabilities are asked for
DICTATED_EVERY = 4  # of the blocks all but every fourth, by engines that take dictated drafts
MANY_SWITCHED = 8  # rows; each is decoded twice
SWITCHED, SWITCHED_EVERY = 2, 3  # cases with one switch, each time; every so many cases have one
SETTINGS = ("ngram", "token-budget", "kv-blocks", "prefix-caching")
"""Capabilities that are settings of an engine."""
_BOUNDARIES = (16, KV_BLOCK)  # tokens in a block of an engine's cache; the window of a built checkpoint has 32, too
_PENALTIES = {"repetition_penalty": (1.1, 1.3, 2.0, 0.8), "presence_penalty": (0.5, 1.0, 2.0, -1.0)}
_ROWS_WITH_EOS, _LOOK_AHEAD = 4, 16  # more cost time: what rows emit must be known

_LONGEST_SHARED = 3 * KV_BLOCK
_SHARED = 0.3  # of the cases share beginnings where prefix caching is the engine's own default
_GOING_ON = 0.3  # of the cases with cached prefixes have a row that goes on from another one
_EXACT = 0.25  # of the cases have a prompt that is as long as something in the engine
_EDGES = 0.25  # of the cases have a size between buckets, or a round's tokens behind a cached beginning
# Lengths that one case in so many meets are met by luck in a short audit, so they are drawn in turn: each length of a
# prompt modulo the longest block, page or chunk that is usual, once in so many cases. The stride has no common factor
# with it, so neighbours in length are far apart, and a short audit sees some of all sizes.
_SWEEP, _STRIDE = 128, 45
_SILENT = 0.4  # of the cases with dictated drafts have rounds without any
_ALL_REJECTED, _ENDING_TOGETHER = 0.1, 0.1  # of the cases: no round accepts anything; all rows end in two steps
_BETWEEN = (7, 9, 11, 17, 33, 47, 65, 100)  # rows; engines pad batches to powers of two and multiples of eight


@dataclass(frozen=True)
class EngineCases:
    """Draw the cases of an engine: same seed, capabilities, preconditions and bounds, same cases.

    ``varied``: some blocks are on the random checkpoint, whose log-probabilities differ from token to token. With
    ``latest`` there is what frozen profiles lack: turns of conversations and stop sequences at the ends of blocks.
    ``block``: the cases of a block, `BLOCK` if it is None. Each of ``switches`` is on by turns, beside limits and EOS
    ids alone.

    >>> cases = EngineCases(seed=1, capabilities=("ngram",))
    >>> next(cases.cases()) == next(cases.cases())
    True
    """

    seed: int
    capabilities: tuple[str, ...]
    requires: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ("full",)
    bounds: Bounds = SERVED
    varied: bool = False
    block: int | None = None
    switches: tuple[str, ...] = ()
    latest: bool = False

    def cases(self) -> Iterator[EngineCase]:
        """Cases without end."""
        return map(self.case, count())

    def case(self, number: int) -> EngineCase:
        """One of the cases; those of a block share the engine's settings, but for the last, which reach far."""
        cases = BLOCK if self.block is None else self.block
        block, place = self._block(number, cases)
        turns = self._turns(number)
        settings = self._settings(random.Random(f"eqcheck {self.seed} block {block}"), block, turns)
        stem = random.Random(f"eqcheck {self.seed} beginning {block}")
        beginning = tuple(stem.randrange(VOCAB_SIZE) for _ in range(_LONGEST_SHARED))
        rng, far = random.Random(f"eqcheck {self.seed} case {number}"), self._reaches
        if place < cases - REACHING or not far:
            own = random.Random(f"eqcheck {self.seed} turn {number}")
            turn = own.choice((1, *_BOUNDARIES)) if self.latest and "row-limits" in self.capabilities else 1
            case = self._case(rng, settings, beginning, turn, turns, number)
            turn, among = divmod(number // SWITCHED, SWITCHED_EVERY)
            if self.switches and among == 1 and not turns:
                return _switched(case, self.switches[(turn + self.seed) % len(self.switches)])
            # A generator of its own: an engine without stops gets the cases that it got before there were any.
            own = random.Random(f"eqcheck {self.seed} grammars {number}")
            if (
                self._has(own, "grammar", 0.4, turns) and checkpoint(case.checkpoint).built
            ):  # texts of others may be joined
                case = with_grammars(own, case, truth(case.checkpoint))
            own = random.Random(f"eqcheck {self.seed} stops {number}")
            case = with_stops(own, case, self.latest) if self._has(own, "stop-sequences", 0.4, turns) else case
            case = with_cancelled(own, case) if self._has(own, "cancel", 0.3, turns) else case
            of_new, of_prompt = self._has(own, "logprobs", 0.5, turns), self._has(own, "prompt-logprobs", 0.3, turns)
            case = with_logprobs(case, of_new, of_prompt)
            own = random.Random(f"eqcheck {self.seed} answers {number}")
            return with_answers(own, case, self.requires, self.bounds.rows) if self._has(own, "n", 0.3, turns) else case
        kind = far[(block + block // lcm(len(far), len(self.kinds))) % len(far)]  # each meets each kind of checkpoint
        of_block = random.Random(f"eqcheck {self.seed} reach {block}")
        case = reaching(kind, of_block, rng, settings, self.bounds, self.capabilities)
        return self._dictated(rng, case, max(row.options.max_new_tokens for row in case.rows)).meeting(self.requires)

    @cached_property
    def _reaches(self) -> list[Reach]:
        return reaches(self.capabilities, self.requires, self.bounds)

    def _has(self, rng: random.Random, capability: str, share: float, turns: Collection[str] = ()) -> bool:
        """Return whether a case has what a capability allows: by chance, and always where it is its turn."""
        return (rng.random() < share or capability in turns) and capability in self.capabilities

    @cached_property
    def _opening(self) -> list[tuple[str, ...]]:
        """The capabilities whose turn it is in each case of the opening; it has `OPENING` cases of each block."""
        if not self.latest or self.block is not None:
            return []
        drafters = [name for name in ("ngram", "dictated-drafts") if name in self.capabilities]
        settings = [name for name in SETTINGS if name in self.capabilities and name not in drafters]
        options = [name for name in CAPABILITIES if name in self.capabilities and name not in (*drafters, *settings)]
        # The first block has the engine's defaults, so that what fails even there is seen first.
        blocks = max(len(self.kinds), len(drafters) + 1, len(settings) + bool(settings))
        blocks = max(blocks, -(-len(options) // (OPENING * _AT_ONCE)))
        turns = list[tuple[str, ...]]()
        for number in range(OPENING * blocks):
            block, first = number // OPENING - 1, number * _AT_ONCE
            own = options[first : first + _AT_ONCE]
            if block >= 0:
                own += [names[block % len(names)] for names in (drafters, settings) if names]
            turns.append(tuple(own))
        return turns

    def _turns(self, number: int) -> tuple[str, ...]:
        return self._opening[number] if number < len(self._opening) else ()

    def _block(self, number: int, cases: int) -> tuple[int, int]:
        """The block of a case, and its place there; the blocks of the opening are short."""
        opening = len(self._opening)
        if number < opening:
            return divmod(number, OPENING)
        block, place = divmod(number - opening, cases)
        return opening // OPENING + block, place

    def _settings(self, rng: random.Random, number: int, turns: Collection[str]) -> EngineCase:
        """A block's settings, on a case whose row is only a place holder; the first block has the engine's defaults."""
        # Not always the second of four: with as many kinds, one would never be asked.
        of_random = number % RANDOM_EVERY == 1 + number // RANDOM_EVERY % (RANDOM_EVERY - 1)
        opens = number < len(self._opening) // OPENING
        kind = "" if self.varied and of_random and not opens else self.kinds[number % len(self.kinds)]
        case = EngineCase(
            (EngineRow((0,), RowOptions(1)),),
            min(rng.randint(1, 8), self.bounds.draft_tokens),
            checkpoint=checkpoint(kind).name,
        )
        if "only-dictated-drafts" in self.capabilities:
            case = replace(case, drafting="dictated")
        if "no-drafts" in self.capabilities:
            case = replace(case, drafting="none")
        if number == 0:
            return case
        dictates = "dictated-drafts" in turns if opens else number % DICTATED_EVERY > 0
        if self._has(rng, "ngram", 0.0 if opens else 0.25, turns):
            case = replace(case, drafting="ngram")
        elif case.drafting == "model" and "dictated-drafts" in self.capabilities and dictates:
            case = replace(case, drafting="dictated")
        if self._has(rng, "token-budget", 0.4, turns):
            case = replace(case, token_budget=rng.choice((16, 24, 32, 64, 128)))
        if self._has(rng, "kv-blocks", 0.3, turns):
            case = replace(case, kv_blocks=rng.randint(9, 14))
        if "prefix-caching" in self.capabilities and (self._alternates(number) or "prefix-caching" in turns):
            case = replace(case, prefix_caching=True)
        return case

    def _alternates(self, number: int) -> bool:
        """Every other block, so that each kind of checkpoint has blocks of both sorts."""
        turns = number // len(self.kinds) if len(self.kinds) % 2 == 0 else 0
        return (number + turns) % 2 == 1

    def _case(
        self,
        rng: random.Random,
        settings: EngineCase,
        beginning: tuple[int, ...],
        turn: int,
        turns: Collection[str],
        number: int,
    ) -> EngineCase:
        # The order of the draws is part of a seed: one more in between, and every seed has other cases.
        size, longest = self._size(rng, settings, turns)
        edges = random.Random(f"eqcheck {self.seed} edges {number}") if self.latest else None
        if edges and edges.random() < _EDGES and size > 1:
            size = edges.choice([count for count in _BETWEEN if count < 32 or size >= 32])
        # An engine that can cache prefixes may do so by default.
        caches = settings.prefix_caching or ("prefix-caching" in self.capabilities and rng.random() < _SHARED)
        drawn = self._prompts(rng, settings, min(size, self.bounds.rows), longest, beginning if caches else ())
        if edges:
            drawn = _at_edges(edges, number, drawn, settings, beginning if caches else ())
        prompts = prompts_meeting(self.requires, [one[: self.bounds.prompt] for one in drawn], PAD, VOCAB_SIZE)
        size = len(prompts)
        limit = rng.randint(1, 24) if rng.random() < 0.3 else rng.randint(12, 32)
        limit = min(limit, self.bounds.new_tokens)
        common = _options(rng, limit, prompts, truth(settings.checkpoint))
        rows = [EngineRow(prompt, common) for prompt in prompts]
        if self._has(rng, "row-limits", 0.5, turns):
            rows = [row_with(row, max_new_tokens=rng.randint(1, limit)) for row in rows]
            if edges and limit > 1 and edges.random() < _ENDING_TOGETHER:
                rows = [row_with(row, max_new_tokens=limit - edges.randint(0, 1)) for row in rows]
        for name, values in _PENALTIES.items():
            if self._has(rng, name.replace("_", "-"), 0.15, turns):
                rows = [row_with(row, **{name: rng.choice(values)}) if rng.random() < 0.6 else row for row in rows]
        alone = truth(settings.checkpoint)
        rows = option_effects.drawn(rng, rows, self.capabilities, alone, _ROWS_WITH_EOS, turns)
        rows = self._with_ends(rng, rows, alone, turns)
        rows = self._in_time(rng, rows, alone, caches, turn, turns)
        rows = [row if not row.options.changes_scores or alone.decides(row) else _plain(row) for row in rows]
        case = self._dictated(rng, replace(settings, rows=tuple(rows)), limit).meeting(self.requires)
        if edges and edges.random() < _ALL_REJECTED:  # where nothing is named nothing is accepted
            case = replace(case, rows=tuple(replace(row, accepts=()) for row in case.rows))
        quiet = random.Random(f"eqcheck {self.seed} silent {number}")
        if edges and case.drafting == "dictated" and self._has(quiet, "silent-rounds", _SILENT, turns):
            return _with_silence(quiet, case)
        return case

    def _in_time(
        self, rng: random.Random, rows: list[EngineRow], alone: Truth, caches: bool, turn: int, turns: Collection[str]
    ) -> list[EngineRow]:
        """The rows with their arrivals; where prefixes are cached, one may go on from what another one emitted."""
        if self._has(rng, "arrivals", 0.5 if caches else 0.2, turns):  # or nothing is cached in this case
            rows = [row_with(row, arrival=rng.randint(0, 8)) for row in rows]
        if caches and len(rows) > 1 and rng.random() < _GOING_ON and not self.requires:
            longer = going_on(rng, rows, alone, "arrivals" in self.capabilities, turn)
            rows = longer if len(longer[-1].prompt) <= self.bounds.prompt else rows
        return rows

    def _size(self, rng: random.Random, settings: EngineCase, turns: Collection[str]) -> tuple[int, int]:
        """The number of rows, and the most tokens of a prompt; with few KV blocks more of both, until they run out."""
        size = rng.choice((1, 2, 2, 3, 3, 4, 4, 5, 6, 8, 12))
        if self._has(rng, "many-rows", 0.03, turns):
            size = rng.choice((32, 48, 64, 128))
        elif turns:  # options that differ from row to row need several
            size = max(size, 3)
        longest = rng.choice((6, 12, 24, 40))
        return (max(size, 4), rng.choice((24, 48, 80))) if settings.kv_blocks else (size, longest)

    def _with_ends(
        self, rng: random.Random, rows: list[EngineRow], alone: Truth, turns: Collection[str]
    ) -> list[EngineRow]:
        """The rows, some with EOS ids of their own, which a minimum of new tokens needs as well."""
        least = self._has(rng, "min-new-tokens", 0.25, turns)
        if self._has(rng, "row-eos", 0.4, turns) or least:
            chosen = rng.sample(range(len(rows)), min(len(rows), _ROWS_WITH_EOS))
            emitted = alone.emitted([rows[number] for number in chosen], _LOOK_AHEAD)
            for number, tokens in zip(chosen, emitted, strict=True):
                rows[number] = with_eos(rng, rows[number], tokens, least)
        return rows

    def _dictated(self, rng: random.Random, case: EngineCase, limit: int) -> EngineCase:
        """The case with what its rows accept, where drafts are dictated."""
        if case.drafting != "dictated":
            return case
        rows = [replace(row, accepts=_accepts(rng, case.num_draft_tokens, limit)) for row in case.rows]
        return replace(case, rows=tuple(rows))

    def _prompts(
        self, rng: random.Random, settings: EngineCase, size: int, longest: int, beginning: tuple[int, ...]
    ) -> list[tuple[int, ...]]:
        """Prompts, some of them as long as something in the engine; cached beginnings are those of the whole block."""

        def tokens(least: int, most: int) -> tuple[int, ...]:
            return tuple(rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(least, most)))

        prompts = [tokens(1, longest) for _ in range(size)]
        if rng.random() < _EXACT:
            exact = rng.choice((1, settings.num_draft_tokens + 1, *_BOUNDARIES))
            prompts[rng.randrange(size)] = tokens(exact, exact)
        if settings.token_budget and rng.random() < 0.3:
            prompts[rng.randrange(size)] = tokens(settings.token_budget + 1, 2 * settings.token_budget + 8)
        if settings.drafting == "ngram":  # what has been seen before, so that some of it is proposed and accepted
            chosen = rng.sample(range(size), min(size, _ROWS_WITH_EOS))
            asked = [EngineRow(prompts[row], RowOptions(1)) for row in chosen]
            emitted = truth(settings.checkpoint).emitted(asked, rng.randint(2, 10))
            for row, tokens_after in zip(chosen, emitted, strict=True):
                prompts[row] = (*prompts[row], *tokens_after, *prompts[row])
        if beginning:
            block = rng.choice(_BOUNDARIES)
            length = min(block * rng.randint(1, 3) + rng.choice((-1, 0, 0, 1)), _LONGEST_SHARED)
            # Another beginning, and blocks of the first behind it: what is cached of a block is of its beginning, too.
            shared, other = beginning[:length], beginning[::-1][:length]
            begins = (shared,) * 6 + (other, (*other[:block], *shared[block:]), (), ())
            prompts = [(*rng.choice(begins), *prompt) for prompt in prompts]
            prompts[-1] = prompts[0]
        return prompts


def _at_edges(
    rng: random.Random, number: int, prompts: list[tuple[int, ...]], settings: EngineCase, beginning: tuple[int, ...]
) -> list[tuple[int, ...]]:
    """The prompts, one of them as long as it is this case's turn; it repeats, or begins like others, where they do.

    Where beginnings are cached, others go on behind a whole number of blocks by a round's tokens: 1, K, or K + 1. A
    prefill of just so many tokens looks like a verification.
    """
    k, changed = settings.num_draft_tokens, list(prompts)
    length, place = 1 + number * _STRIDE % _SWEEP, number % len(prompts)
    turn = _tokens(rng, length)
    if settings.drafting == "ngram":
        turn = (turn[: length // 2 + 1] * 2)[:length]
    elif beginning and rng.random() < 0.5:
        turn = (*beginning, *turn)[:length]
    changed[place] = turn
    others = [at for at in range(len(prompts)) if at != place]
    if beginning and others and rng.random() < _EDGES:
        whole, *behind = others
        block = rng.choice(_BOUNDARIES)
        changed[whole] = (*beginning, *_tokens(rng, 1))
        for at, size in zip(rng.sample(behind, min(3, len(behind))), (1, k, k + 1), strict=False):
            end = block * rng.randint(1, _LONGEST_SHARED // block)
            changed[at] = (*beginning[:end], *_tokens(rng, size))
    return changed


def _plain(row: EngineRow) -> EngineRow:
    """The row without options that change scores."""
    return row_with(row, **SCORING)


def _switched(case: EngineCase, switch: str) -> EngineCase:
    """The case with a switch on, at the engine's other defaults, its rows with limits and EOS ids alone."""
    drafting = "model" if case.drafting == "dictated" else case.drafting
    rows = tuple(
        replace(row, accepts=(), options=RowOptions(row.options.max_new_tokens, row.options.eos_token_ids))
        for row in case.rows[:MANY_SWITCHED]
    )
    return EngineCase(rows, case.num_draft_tokens, drafting, checkpoint=case.checkpoint, switch=switch)


def _with_silence(rng: random.Random, case: EngineCase) -> EngineCase:
    """The case with rounds in which nobody drafts, or one row does not, or only one does.

    A step without drafts takes another way through an engine than a verification, and so does a row without any in a
    batch of others.
    """
    rounds = max(2, *(len(row.accepts) for row in case.rows))
    silent = set(rng.sample(range(rounds), rng.randint(1, (rounds + 1) // 2)))
    one = rng.randrange(len(case.rows))
    who = rng.choice((lambda row: True, lambda row: True, lambda row: row == one, lambda row: row != one))

    def quieted(accepts: tuple[int, ...]) -> tuple[int, ...]:
        named = [*accepts, *[0] * (rounds - len(accepts))]
        return tuple(SILENT if number in silent else count for number, count in enumerate(named))

    rows = enumerate(case.rows)
    return replace(case, rows=tuple(replace(row, accepts=quieted(row.accepts)) if who(n) else row for n, row in rows))


def _accepts(rng: random.Random, k: int, limit: int) -> tuple[int, ...]:
    """Return how many draft tokens of each round a row accepts, up to about its limit."""
    kind = rng.choice(("any", "any", "all", "most", "ends"))
    counts = {"any": range(k + 1), "all": (k,), "most": (k, k, k - 1), "ends": (0, k)}[kind]
    rounds, tokens = list[int](), 1
    while tokens < limit:
        rounds.append(rng.choice(counts))
        tokens += rounds[-1] + 1
    return tuple(rounds)


def _options(rng: random.Random, limit: int, prompts: list[tuple[int, ...]], alone: Truth) -> RowOptions:
    """Options that all rows share: any decoder can do that much."""
    if rng.random() < 0.7:
        return RowOptions(limit)
    (emitted,) = alone.emitted([EngineRow(rng.choice(prompts), RowOptions(limit))], min(limit, _LOOK_AHEAD))
    return RowOptions(limit, some(rng, emitted))


_LONGER, _OTHER_K = 12, 4


def alike(case: EngineCase, number: int, requires: tuple[str, ...] = ()) -> EngineCase:
    """Other prompts and the same options; every second case has longer rows, which end elsewhere, and another K.

    Each id becomes another one, so that prompts which begin alike still do. Of equal prompts every fourth case makes
    different ones: else a token of another row's looks like a later one of the row's own.
    """
    rng = random.Random(f"eqcheck alike {number}")
    ids = rng.sample(range(VOCAB_SIZE), VOCAB_SIZE)
    rows = list[EngineRow]()
    for before, row in zip((None, *case.rows), case.rows, strict=False):
        if row == before and row.options.n > 1:  # another answer to the same request
            rows.append(rows[-1])
            continue
        # Odd cases have longer rows, and every fourth unequal prompts: what explains all of them is none of these.
        size, options = len(row.prompt) + (rng.randint(0, _LONGER) if number % 2 else 0), row.options
        if options.min_new_tokens and number % 4 == 2:
            size = min(size, 2)  # behind a long prompt a minimum that counts it looks ignored
        prompt = tuple([*(ids[token] for token in row.prompt), *rng.choices(ids, k=_LONGER)][:size])
        if number % 4 == 2 and prompt in {one.prompt for one in rows}:
            prompt = (*prompt[:-1], ids[-1 - len(rows)])
        other = replace(row, prompt=prompt)
        if number % 2:
            other = row_with(other, max_new_tokens=options.max_new_tokens + _LONGER)
            if options.eos_token_ids:
                emitted = truth(case.checkpoint).row(row_with(other, eos_token_ids=(), min_new_tokens=0))
                other = with_eos(rng, other, emitted, least=options.min_new_tokens > 0)
        elif options.eos_token_ids or options.stop_sequences:
            other = ending_like(row, other, truth(case.checkpoint))
        rows.append(option_effects.again(rng, other, truth(case.checkpoint)))
    if len({row.options for row in case.rows}) == 1:  # they may have to share them
        rows = [replace(row, options=rows[0].options) for row in rows]
    other_k = _OTHER_K if number % 2 else case.num_draft_tokens
    return replace(case, rows=tuple(rows), num_draft_tokens=other_k).meeting(requires)


def exercised(case: EngineCase, outputs: tuple[tuple[int, ...], ...], observed: Mapping[str, Any]) -> set[str]:
    """The counters that a decoded case raises."""
    rows, options = case.rows, [row.options for row in case.rows]
    needed = sum(-(-(len(r.prompt) + r.options.max_new_tokens + case.num_draft_tokens) // KV_BLOCK) for r in rows)
    budget, preempted = case.token_budget or 10**9, observed.get("preemptions", 0) > 0
    # A row's first token takes a step without a draft, every other step yields what is accepted and one more.
    steps = sum(map(len, outputs)) - len(rows) - observed.get("accepted", 0)
    checks = _of_rows(case) | {
        "ngram": case.drafting == "ngram",
        "dictated": case.drafting == "dictated",
        "contexts": observed.get("contexts", 0) > 0,
        "ngram_silent": case.drafting == "ngram" and observed.get("drafted", steps) < steps,
        "token_budget": case.token_budget is not None,
        "budget_below_round": budget < len(rows) * (case.num_draft_tokens + 1),
        "prompt_beyond_budget": any(len(row.prompt) > budget for row in rows),
        "prefix_caching": bool(case.prefix_caching),
        "kv_blocks": case.kv_blocks is not None and (case.kv_blocks < needed or preempted),
        "prefix_hits": observed.get("prefix_hits", 0) > 0,
        "preemptions": preempted,
        "late_rows": observed.get("late_rows", 0) > 0,
    }
    checks |= stops_seen(case, outputs) | cancelled(options, outputs) | grammars_seen(case, outputs)
    counters = {name for name, holds in (checks | reached(case, outputs)).items() if holds}
    return counters | answered(case, outputs, observed) | option_effects.triggered(case, outputs)


def _of_rows(case: EngineCase) -> dict[str, bool]:
    """The counters that the rows of a case raise, whatever is returned."""
    rows, options = case.rows, [row.options for row in case.rows]
    return {
        "several_rows": len(rows) > 1,
        "many_rows": len(rows) >= 32,
        "prompt_of_one": any(len(row.prompt) == 1 for row in rows),
        "prompt_of_round": any(len(row.prompt) == case.num_draft_tokens + 1 for row in rows),
        "prompt_of_blocks": any(len(row.prompt) % _BOUNDARIES[0] == 0 for row in rows),
        "ragged_prompts": len({len(row.prompt) for row in rows}) > 1,
        "row_limits": len({o.max_new_tokens for o in options}) > 1,
        "row_eos": len({o.eos_token_ids for o in options}) > 1,
        "answers": any(o.n > 1 for o in options),
    }


def answered(case: EngineCase, outputs: Sequence[tuple[int, ...]], observed: Mapping[str, Any]) -> set[str]:
    """The counters that an answer raises, of greedy rows and of sampled ones."""
    drafted, accepted = observed.get("drafted", 0), observed.get("accepted", 0)
    ended = any(
        output and output[-1] in row.options.eos_token_ids and len(output) < row.options.max_new_tokens
        for output, row in zip(outputs, case.rows, strict=True)
    )
    checks = {"ended_by_eos": ended, "drafted": drafted > 0, "accepted": accepted > 0, "rejected": drafted > accepted}
    return {name for name, holds in checks.items() if holds}
