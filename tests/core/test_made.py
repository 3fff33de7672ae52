"""Cases that are made for one thing: lengths at the ends of blocks, shared blocks, batches between buckets, and rows
that repeat themselves; each finds faults that drawing seldom meets, and accuses no right decoder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice, pairwise
from typing import Any

import pytest
import torch

from eqcheck.compat import drafts_of
from eqcheck.contract import registry
from eqcheck.contract.decoders import Request, RowOptions
from eqcheck.contract.errors import Unsupported
from eqcheck.contract.profiles import SIZES, Bounds
from eqcheck.contract.requirements import unmet
from eqcheck.core.case.record import Case
from eqcheck.transparent.coverage import exercised
from eqcheck.transparent.decoding import run, truth_of
from eqcheck.transparent.drafting import ScriptedDraft
from eqcheck.transparent.hashlm.model import HashConfig, HashLM
from eqcheck.transparent.oracle import judge
from eqcheck.transparent.search import CHUNK, Source, lengths

Rows = list[list[int]]
Decode = Callable[[Any, Any, Request], Rows]
DEFAULT = 300  # cases of an audit


@cache
def drawn(count: int = DEFAULT, requires: tuple[str, ...] = (), seed: int = 0, opening: bool = True) -> list[Case]:
    claims = registry.load("eqspec")
    given = claims.families, claims.padding_sides, claims.cache_states
    source = Source(seed, *given, requires, opening=opening)
    return [case for index in range(-(-count // CHUNK)) for case in source.chunk(index)][:count]


def failing(decode: Decode, cases: list[Case], most: int = 1) -> list[Case]:
    """The first cases that a decoder fails."""
    return [*islice((case for case in cases if judge(run(decode, case)).explanation), most)]


def best(target: Any, text: list[int], hidden: tuple[int, ...] = ()) -> int:
    mask = torch.ones(1, len(text), dtype=torch.long)
    mask[0, list(hidden)] = 0
    places = torch.arange(len(text))[None]
    logits = target(input_ids=torch.tensor([text]), attention_mask=mask, position_ids=places, use_cache=False).logits
    return int(logits[0, -1].argmax())


def going(options: RowOptions, new: list[int]) -> bool:
    return len(new) < options.max_new_tokens and not options.ended(new)


def alone(hides: Callable[[int], tuple[int, ...]] = lambda length: ()) -> Decode:
    """A decoder of each row alone; a query at the end of a text of some length does not see what is hidden."""

    def decode(target: Any, draft: Any, request: Request) -> Rows:
        rows = []
        for prompt, options in zip(request.prompts, request.rows, strict=True):
            text = list(prompt)
            while going(options, text[len(prompt) :]):
                text.append(best(target, text, hides(len(text))))
            rows.append(text[len(prompt) :])
        return rows

    return decode


def test_every_length_comes_and_those_at_ends_oftener() -> None:
    cases = drawn()
    prompts = [len(prompt) for case in cases for prompt in case.prompts]
    reached = {
        length
        for case in cases
        for prompt, row in zip(case.prompts, truth_of(case).rows, strict=True)
        for length in range(len(prompt), len(prompt) + len(row) + 1)
    }
    for size in SIZES:
        assert {length % size for length in prompts} == {*range(size)}, size
        assert {length % size for length in reached} == {*range(size)}, size
    for size in SIZES[2:]:
        long = [length % size for length in prompts if length >= size - 1 and length > 8]
        at_ends = sum(rest in (0, 1, size - 1) for rest in long)
        assert at_ends * size > 2 * 3 * len(long), size  # twice as often as others at least
    assert {3, 5, 6, 7, 9, 10, 11} <= {len(case.prompts) for case in cases}


def test_ends_come_first() -> None:
    first = [*islice(lengths(136), 28)]
    assert {63, 64, 65, 127, 128, 129} & {*first} >= {64, 128, 65}
    assert max(islice(lengths(20), 50)) == 20


@pytest.mark.parametrize("size", [32, 64, 128])
@pytest.mark.parametrize("rest", [0, 1, -1])
@pytest.mark.rest
def test_faults_at_the_end_of_blocks_are_found(size: int, rest: int) -> None:
    wrong = alone(lambda length: (0,) if length > 8 and length % size == rest % size and length >= size - 1 else ())
    cases = [case for case in drawn() if max(map(len, case.prompts)) > size - 30]
    assert failing(wrong, cases)
    before = [case for case in drawn(opening=False) if max(map(len, case.prompts)) > size - 30]
    assert len(before) < len(cases)


@pytest.mark.rest
def test_a_fault_at_one_length_alone_is_found() -> None:
    """Of a hundred and twenty-eight lengths each comes, those that nothing sets apart as well."""
    for length in (45, 59, 77, 90, 109):
        wrong = alone(lambda n, length=length: (0,) if n == length else ())  # type: ignore[misc]
        assert failing(wrong, [case for case in drawn() if length in map(len, case.prompts)])


@pytest.mark.parametrize("rows", [3, 5, 6, 7, 9])
def test_faults_of_batches_between_buckets_are_found(rows: int) -> None:
    def decode(target: Any, draft: Any, request: Request) -> Rows:
        found = alone()(target, draft, request)
        return [*found[:-1], found[0]] if len(found) == rows else found

    assert failing(decode, [case for case in drawn() if len(case.prompts) == rows][:3])


def _taken_over(size: int, first: bool) -> Decode:
    """A block of a prompt is found by its own tokens, and brings what stood before it when it was first seen; or the
    first block of a prompt is found, and brings what stood behind it."""

    def decode(target: Any, draft: Any, request: Request) -> Rows:
        seen: dict[tuple[int, ...], list[int]] = {}
        taken = []
        for prompt in request.prompts:
            block = tuple(prompt[:size] if first else prompt[size : 2 * size])
            if len(prompt) <= 2 * size:
                taken.append(prompt)
            elif first:
                taken.append(prompt[:size] + seen.setdefault(block, prompt[size : 2 * size]) + prompt[2 * size :])
            else:
                taken.append(seen.setdefault(block, prompt[:size]) + prompt[size:])
        request.prompts, kept = taken, request.prompts
        rows = alone()(target, draft, request)
        request.prompts = kept
        return rows

    return decode


@pytest.mark.parametrize("size", SIZES[:-1])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.rest
def test_blocks_that_are_shared_alone_are_found(size: int, first: bool) -> None:
    cases = [case for case in drawn() if max(map(len, case.prompts)) > 2 * size and len(case.prompts) > 1]
    assert failing(_taken_over(size, first), cases)


def test_rows_repeat_themselves() -> None:
    cases = [(case, truth_of(case).rows) for case in drawn()]
    pairs = [case for case, rows in cases if any(one == other for row in rows for one, other in pairwise(row))]
    runs = [
        case
        for case, rows in cases
        if any(len({*three}) == 1 for row in rows for three in zip(row, row[1:], row[2:], strict=False))
    ]
    usual = [case for case in pairs if case.vocab_size == 128]
    assert len(pairs) >= 8
    assert len(usual) >= 4
    assert len(runs) >= 3


def _drops_repeated(target: Any, draft: Any, request: Request) -> Rows:
    """A correction that is equal to the token before is taken for a duplicate, and dropped."""
    rows = alone()(target, draft, request)
    return [[token for at, token in enumerate(row) if not at or token != row[at - 1]] for row in rows]


def _looked_up(right: bool) -> Decode:
    """Drafts are what followed the last token where it stood before; where that runs past the row, they are fewer."""

    def decode(target: Any, draft: Any, request: Request) -> Rows:
        rows, k = [], request.num_draft_tokens
        for prompt, options in zip(request.prompts, request.rows, strict=True):
            text = list(prompt)
            while going(options, text[len(prompt) :]):
                found = next((at for at in range(len(text) - 2, -1, -1) if text[at] == text[-1]), None)
                drafts = text[found + 1 : found + 1 + k] if found is not None else []
                short, drafts = len(drafts), drafts + [0] * (k - len(drafts)) if found is not None else []
                logits = target(input_ids=torch.tensor([text + drafts]), use_cache=False).logits[0]
                answers = logits[len(text) - 1 :].argmax(-1).tolist()
                n = 0
                while n < short and drafts[n] == answers[n]:
                    n += 1
                # where all that was found is accepted, the bonus stands behind it, and not behind the filler
                text += [*answers[:n], answers[n if right or n < short or not short else k]]
            rows.append(list(options.cut(text[len(prompt) :][: options.max_new_tokens])))
        return rows

    return decode


def test_decoders_that_take_repeats_for_mistakes_are_found() -> None:
    cases = [case for case in drawn() if case.vocab_size < 128 or case.max_new_tokens == 4]
    assert failing(_drops_repeated, cases)
    assert failing(_looked_up(right=False), cases)
    few = [case for case in cases if case.vocab_size < 128]
    assert not failing(_looked_up(right=True), few)
    assert not failing(alone(), few)


@pytest.mark.rest
def test_right_decoders_are_not_accused() -> None:
    made = [case for case in drawn() if case not in set(drawn(opening=False, count=400))]
    assert len(made) >= 50
    for name in ("eqspec", "ragged", "transformers"):
        decoder = registry.load(name)
        taken = [
            case
            for case in made
            if case.family in decoder.families and case.cache_state in decoder.cache_states
            and case.padding_side in decoder.padding_sides and not unmet(case, decoder.requires)
        ]  # fmt: skip
        with decoder.running() as decode:
            assert not failing(decode, taken), name


def test_frozen_and_plain_sources_have_none() -> None:
    drawn_only = drawn(60, opening=False)
    assert all(case.vocab_size == 128 and case.seed == 0 and not case.before for case in drawn_only)


@pytest.mark.parametrize("requires", [("batch-1",), ("equal-lengths",), ("no-eos", "min-limit-2"), ("prompt-5",)])
def test_made_cases_meet_what_is_required(requires: tuple[str, ...]) -> None:
    cases = drawn(60, requires)
    assert all(unmet(case, requires) == [] for case in cases)
    assert any(len(prompt) > 60 for case in cases for prompt in case.prompts)
    assert any(case.unchanging != case for case in cases)


def test_they_stay_within_the_bounds() -> None:
    claims = registry.load("eqspec")
    bounds = Bounds(rows=2, prompt=9, new_tokens=3, draft_tokens=2)
    cases = Source(0, claims.families, ("left",), ("empty",), bounds=bounds, opening=True).chunk(0)
    for case in cases:
        assert len(case.prompts) <= 2
        assert max(map(len, case.prompts)) <= 9
        assert (case.max_new_tokens <= 3, case.num_draft_tokens <= 2) == (True, True)


def test_counters_say_what_was_reached() -> None:
    raised = set[str]()
    for case in drawn():
        if max(map(len, case.prompts)) > 60 or case.vocab_size < 128 or case.before:
            raised |= exercised(run(alone(), case))
    assert raised >= {"weights_changed", "repeats_a_token", "shares_first_block", "shares_later_block"}
    assert raised >= {f"at_end_of_{size}" for size in (16, 32, 64, 128)}


# Drafts for a store of n-grams.


def _from_store(target: Any, draft: Any, request: Request) -> Rows:
    store: dict[tuple[int, ...], list[int]] = {}
    for prompt, drafts in zip(request.prompts, drafts_of(draft), strict=True):
        text = [*prompt, *drafts]
        for at in range(len(prompt), len(text)):
            store.setdefault(tuple(text[:at]), text[at:])
    rows, _store_hits = [], hits
    for prompt, options in zip(request.prompts, request.rows, strict=True):
        text = list(prompt)
        while going(options, text[len(prompt) :]):
            proposed = store.get(tuple(text), [])[: request.num_draft_tokens]
            logits = target(input_ids=torch.tensor([text + proposed]), use_cache=False).logits[0]
            answers = logits[len(text) - 1 :].argmax(-1).tolist()
            n = 0
            while n < len(proposed) and proposed[n] == answers[n]:
                n += 1
            _store_hits.append((len(proposed), n))
            text += answers[: n + 1]
        rows.append(list(options.cut(text[len(prompt) :][: options.max_new_tokens])))
    return rows


hits: list[tuple[int, int]] = []


def test_a_store_is_filled_with_the_drafts_of_the_case() -> None:
    case = Case(prompts=((5, 7), (9, 3, 4)), max_new_tokens=6, num_draft_tokens=2, accepts=((2, 1), (0, 2)))
    hits.clear()
    done = run(_from_store, case)
    assert judge(done)
    assert "draft_called" in exercised(done)
    assert hits[0] == (2, 2)  # the first round of row 0, as the case has it
    assert (2, 0) in hits or (0, 0) in hits
    assert len(done.trace.calls) == len(hits)  # the store asked no model


def test_only_drafts_of_a_case_are_told() -> None:
    with pytest.raises(Unsupported, match="expected the draft that eqcheck hands over, got object"):
        drafts_of(object())
    unscripted = ScriptedDraft.of(HashLM(HashConfig(seed=1)))
    with pytest.raises(Unsupported, match="the drafts of sampled rows are not known beforehand"):
        drafts_of(unscripted)


def every(cases: list[Case]) -> Iterator[tuple[int, ...]]:
    for case in cases:
        yield from case.prompts


def test_prompts_are_as_long_as_is_required() -> None:
    assert min(map(len, every(drawn(50, ("prompt-4",))))) == 4
    assert unmet(Case(prompts=((1, 2), (3,))), ("prompt-2",)) == ["prompt-2"]
    assert unmet(Case(prompts=((1, 2),)), ("prompt-2",)) == []
