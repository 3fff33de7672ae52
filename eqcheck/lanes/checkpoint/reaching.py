"""Cases that reach where ordinary ones do not come: long prompts, many rows, deep rounds, too few blocks.

They are large, so two in a block of cases are such, and the blocks take turns. Their rows have no options but limits
and arrivals: ordinary cases have those.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from eqcheck.case.engine import POSITIONS, VOCAB_SIZE, EngineCase, EngineRow
from eqcheck.checkpoints.truth import Truth, row_with
from eqcheck.contract.decoders import RowOptions
from eqcheck.contract.sizes import WIDE, Bounds

LONG, DEEP, MANY = 1000, 8, 100  # what a prompt, K, and the number of rows are more than
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
    most = min(bounds.prompt, POSITIONS - 2 * case.num_draft_tokens - 16)
    exact = [length for length in (LONG + 1, 1023, 1024, 1025) if length <= most]
    prompts = [_tokens(rng, rng.choice((*exact, rng.randint(LONG + 1, most))))]
    prompts += [_tokens(rng, rng.randint(1, 40)) for _ in range(min(rng.choice((0, 1, 2)), bounds.rows - 1))]
    rng.shuffle(prompts)
    return _asked(rng, prompts, (6, 16), bounds.new_tokens)


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
_DEEP = Reach((), lambda bounds: bounds.draft_tokens > DEEP, _of_deep, _deep)
_MANY = Reach(("many-rows",), lambda bounds: bounds.rows > MANY, _unbounded, _many)
_PREEMPTED = Reach(("kv-blocks",), lambda bounds: bounds.rows >= 8, _of_preempted, _preempted)
_RETURNING = Reach(
    ("prefix-caching",), lambda bounds: bounds.rows >= 8 and bounds.prompt >= _BEGINNING + 7, _of_returning, _returning
)
_BUDGETS = Reach(("token-budget",), lambda bounds: True, _of_ends, _ends)
KINDS = (_LONG, _DEEP, _MANY, _PREEMPTED, _RETURNING, _BUDGETS)
_OF_SEVERAL = (_MANY, _PREEMPTED, _RETURNING)


def reached(case: EngineCase, outputs: Sequence[tuple[int, ...]]) -> dict[str, bool]:
    """Return whether a case reaches there, by the names of the counters that it raises."""
    lengths = [len(row.prompt) for row in case.rows]
    budget, blocks = case.token_budget or 10**9, case.kv_blocks or 10**9
    deep = case.num_draft_tokens > DEEP and case.drafting != "none"
    return {
        "long_prompt": max(lengths) > LONG,
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
    arrivals, begun, blocks = [row.options.arrival for row in rows], dict[tuple[int, ...], int](), list[int]()
    if any(arrival >= later for arrival, later in pairwise(arrivals)):
        return []
    for number, row in enumerate(rows):
        begins = row.prompt[:KV_BLOCK]
        if len(begins) == KV_BLOCK:
            if begins in begun:
                since = rows[begun[begins] + 1 : number]
                others = [len(other.prompt) for other in since if other.prompt[:KV_BLOCK] != begins]
                blocks += [sum(-(-length // KV_BLOCK) for length in others)] if others else []
            begun[begins] = number
    return blocks
