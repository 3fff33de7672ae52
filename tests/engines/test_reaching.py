"""Cases that reach far: each part of an engine that they alone get to has a fault that they alone show."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from eqcheck.audit.coverage_words import CHECKPOINT
from eqcheck.checkpoints import built
from eqcheck.contract.decoders import CAPABILITIES
from eqcheck.contract.profiles import SERVED, Bounds
from eqcheck.core.case.engine import EngineCase
from eqcheck.engines.checkpoints.folders import checkpoint
from eqcheck.engines.checkpoints.row_judge import Judge, truth
from eqcheck.engines.drawing import BLOCK, FEW_BLOCKS, KV_BLOCK, REACHING, EngineCases, exercised, reached

TAKES = ("row-limits", "row-eos", "many-rows", "arrivals", "token-budget", "prefix-caching", "kv-blocks")
CASES = EngineCases(0, TAKES)
FUNCTION = built("full").function
CHUNK = 480  # tokens of a prompt that a step computes

Context = Callable[[EngineCase], Sequence[Sequence[int]]]
Spoilt = Callable[[EngineCase, int], int | None]


class Pool:
    """The blocks of a prefix cache, overwritten in turn; a ``stale`` one still finds a block by what it held before."""

    def __init__(self, case: EngineCase, stale: bool) -> None:
        self.held: list[tuple[int, ...]] = [()] * (case.kv_blocks or 1000)
        self.found: dict[tuple[int, ...], int] = {}
        self.next, self.stale = 0, stale

    def seen(self, prompt: tuple[int, ...]) -> list[int]:
        """A prompt as it is read from the cache."""
        tokens = list(prompt)
        for end in range(KV_BLOCK, len(prompt) + 1, KV_BLOCK):
            if prompt[:end] not in self.found:
                if not self.stale:
                    self.found.pop(self.held[self.next], None)
                self.held[self.next], self.found[prompt[:end]] = prompt[:end], self.next
                self.next = (self.next + 1) % len(self.held)
            tokens[end - KV_BLOCK : end] = self.held[self.found[prompt[:end]]][-KV_BLOCK:]
        return tokens


def own(case: EngineCase) -> Sequence[Sequence[int]]:
    return case.prompts


def cached(stale: bool) -> Context:
    def contexts(case: EngineCase) -> Sequence[Sequence[int]]:
        pool = Pool(case, stale)
        return [pool.seen(prompt) for prompt in case.prompts] if case.prefix_caching else case.prompts

    return contexts


def third_chunk_short(case: EngineCase) -> Sequence[Sequence[int]]:
    """From the third chunk on, a chunk begins a token late."""
    return [[t for at, t in enumerate(prompt) if at < CHUNK or at % CHUNK] for prompt in case.prompts]


def slot_100_stale(case: EngineCase) -> Sequence[Sequence[int]]:
    """Slots are numbered to 99."""
    return [case.prompts[number % 100] for number in range(len(case.rows))]


def never(case: EngineCase, number: int) -> int | None:
    return None


def ninth_draft(case: EngineCase, number: int) -> int | None:
    """The ninth draft token of a round is emitted as it is."""
    return 9 if case.num_draft_tokens > 8 else None


def last_preempted(case: EngineCase, number: int) -> int | None:
    """A row that begins again goes on from its last token but one."""
    return 20 if number in preempted(case)[-8:-7] else None


def no_room_for_drafts(case: EngineCase, number: int) -> int | None:
    return 1 if case.token_budget and case.token_budget <= case.num_draft_tokens + 1 else None


def last_block(case: EngineCase, number: int) -> int | None:
    return 2 if case.kv_blocks and case.kv_blocks <= FEW_BLOCKS else None


def preempted(case: EngineCase) -> list[int]:
    """The rows that begin again, in order: the blocks are too few, and the last row that runs makes room."""
    if not case.kv_blocks:
        return []
    lengths, running, waiting, again = [len(p) for p in case.prompts], list[int](), list(range(len(case.rows))), []

    def needed(rows: Sequence[int]) -> int:
        return sum(lengths[row] // KV_BLOCK + 1 for row in rows)

    while running or waiting:
        while waiting and (not running or needed([*running, waiting[0]]) <= case.kv_blocks):
            running.append(waiting.pop(0))
        for row in running:
            lengths[row] += 1
        while len(running) > 1 and needed(running) > case.kv_blocks:
            again.append(running[-1])
            waiting.insert(0, running.pop())
        ends = [len(p) + row.options.max_new_tokens for p, row in zip(case.prompts, case.rows, strict=True)]
        running = [row for row in running if lengths[row] < ends[row]]
    return again


def decoded(case: EngineCase, contexts: Context = own, spoilt: Spoilt = never) -> tuple[tuple[int, ...], ...]:
    """The rows of an engine that emits the function's tokens, but for what is wrong with it."""
    outputs = []
    for number, (row, context) in enumerate(zip(case.rows, contexts(case), strict=True)):
        read, tokens = FUNCTION.reader(), list[int]()
        *_, token = map(read, context)
        while len(tokens) < row.options.max_new_tokens and not set(tokens[-1:]) & set(row.options.eos_token_ids):
            tokens.append((token + (len(tokens) == spoilt(case, number))) % 256)
            token = read(tokens[-1])
        outputs.append(tuple(tokens))
    return tuple(outputs)


@pytest.fixture(scope="module")
def drawn() -> list[EngineCase]:
    return [CASES.case(number) for number in range(300)]


def far(number: int) -> bool:
    return number % BLOCK >= BLOCK - REACHING


@pytest.mark.parametrize(
    ("contexts", "spoilt", "counter"),
    [
        (third_chunk_short, never, "long_prompt"),
        (slot_100_stale, never, "hundred_rows"),
        (own, ninth_draft, "deep_round"),
        (cached(stale=True), never, "beginning_evicted"),
        (own, last_preempted, "kv_blocks"),
        (own, no_room_for_drafts, "least_budget"),
        (own, last_block, "least_blocks"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
@pytest.mark.tiers(quick=0, rest=3)
def test_a_fault_out_there_is_shown_by_cases_that_count_as_there_alone(
    drawn: list[EngineCase], contexts: Context, spoilt: Spoilt, counter: str
) -> None:
    judge, shown = Judge("bfloat16"), list[int]()
    for number, case in enumerate(drawn):
        outputs = decoded(case, contexts, spoilt)
        if any(row.first is not None for row in judge.rows(case, outputs)):
            shown.append(number)
            assert counter in exercised(case, outputs, {})
    assert any(map(far, shown))


@pytest.mark.rest
def test_a_right_engine_stays_clean_and_all_that_is_counted_is_met(drawn: list[EngineCase]) -> None:
    judge, counted, seen = Judge("bfloat16"), set[str](), 0
    for case in drawn:
        outputs = decoded(case, cached(stale=False))
        assert all(row.first is None for row in judge.rows(case, outputs))
        counted |= exercised(case, outputs, {"preemptions": (again := len(preempted(case)))})
        seen += bool(again)
    assert set(reached(drawn[0], ())) | {"preemptions"} <= counted
    assert set(reached(drawn[0], ())) <= set(CHECKPOINT.counters)
    assert seen > 1
    assert max(case.num_draft_tokens for case in drawn) == 32
    assert max(len(case.rows) for case in drawn) == 128


def test_fifteen_of_300_cases_reach_far_and_the_others_are_as_large_as_ever(drawn: list[EngineCase]) -> None:
    assert sum(map(far, range(300))) == 15
    ordinary = [case for number, case in enumerate(drawn) if not far(number)]
    assert max(len(row.prompt) for case in ordinary for row in case.rows) < 300
    assert max(case.num_draft_tokens for case in ordinary) <= 8
    assert drawn == [EngineCases(0, TAKES).case(number) for number in range(300)]


@pytest.mark.parametrize("requires", [(), ("batch-1",), ("equal-lengths",)])
@pytest.mark.tiers(quick=1, rest=1)
def test_bounds_and_needs_of_an_engine_are_kept(requires: tuple[str, ...]) -> None:
    takes = tuple(name for name in CAPABILITIES if name != "only-dictated-drafts")
    bounds = Bounds(rows=3, prompt=40, new_tokens=9, draft_tokens=2)
    for number in range(150):
        case = EngineCases(1, takes, requires, bounds=bounds).case(number)
        assert len(case.rows) <= (1 if requires == ("batch-1",) else 3)
        assert max(map(len, case.prompts)) <= 40
        assert max(options.max_new_tokens for options in case.options) <= 9
        assert case.num_draft_tokens <= 2
    plain = EngineCases(1, (), requires, bounds=SERVED)
    assert {name for number in range(150) for name, is_so in reached(plain.case(number), ()).items() if is_so} == {
        "long_prompt",
        "end_of_model",
        "deep_round",
    }, "the capabilities of an engine are kept, too"


def test_rows_go_on_from_rows_that_have_ended_where_prefixes_are_cached() -> None:
    source = EngineCases(3, ("prefix-caching", "arrivals", "row-limits", "row-eos"), kinds=("full",))
    met = 0
    for case in map(source.case, range(120)):
        outputs = tuple(tuple(truth(case.checkpoint).row(row)) for row in case.rows) if case.prefix_caching else ()
        if outputs and reached(case, outputs)["goes_on"]:
            whole = [(*row.prompt, *new) for row, new in zip(case.rows, outputs, strict=True)]
            last = case.rows[-1]
            first = next(number for number, text in enumerate(whole[:-1]) if last.prompt[: len(text)] == text)
            ended = case.rows[first].options
            met += last.options.arrival > ended.arrival + ended.max_new_tokens
    assert met > 5


def test_turns_of_conversations_end_where_blocks_do() -> None:
    """The last token of such a row was never fed, and a cache of whole blocks may count it."""

    def ended(latest: bool) -> int:
        drawn = EngineCases(0, ("prefix-caching", "arrivals", "row-limits"), latest=latest)
        cases = [case for case in map(drawn.case, range(200)) if case.prefix_caching]
        whole = [(*row.prompt, *truth(case.checkpoint).row(row)) for case in cases for row in case.rows[:-1]]
        nexts = {case.rows[-1].prompt for case in cases}
        return sum(len(text) % 16 == 0 and any(one[: len(text)] == text < one for one in nexts) for text in whole)

    assert ended(latest=True) > 2 * ended(latest=False)
    drawn = EngineCases(0, ("prefix-caching", "arrivals"), latest=True)
    assert all(len({row.options.max_new_tokens for row in drawn.case(number).rows}) == 1 for number in range(80))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_every_kind_is_asked_beside_the_random_checkpoint(count: int) -> None:
    kinds = ("full", "window", "mistral", "hybrid", "qwen3")[:count]
    drawn = EngineCases(0, ("dictated-drafts",), kinds=kinds, varied=True)
    seen = [drawn.case(BLOCK * number).checkpoint.partition("-")[0] for number in range(4 * count)]
    assert {*seen} == {"llama", *kinds}
    assert seen.count("llama") == count


def test_stop_sequences_lie_across_blocks_of_new_tokens() -> None:
    """An engine that looks for them in pieces of 16 new tokens does not see these."""

    def across(latest: bool) -> int:
        drawn, found = EngineCases(0, ("stop-sequences",), latest=latest), 0
        for case in map(drawn.case, range(60)):
            for row in case.rows if checkpoint(case.checkpoint).built else ():
                tokens = tuple(truth(case.checkpoint).row(row))
                found += any(
                    len(tokens) == 17 and tokens[-len(stop) :] == stop
                    for stop in row.options.stop_sequences
                    if len(stop) > 1
                )
        return found

    assert across(latest=True) > 2 * across(latest=False)
