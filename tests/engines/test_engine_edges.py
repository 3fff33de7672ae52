"""Lengths and sizes at the edges of what an engine has are asked for in turn, and not met by luck."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice

import pytest

from eqcheck.contract import registry
from eqcheck.contract.profiles import WIDE
from eqcheck.core.case.engine import POSITIONS, EngineCase, at_the_end
from eqcheck.engines.drawing import EngineCases
from eqcheck.engines.lane import worker

CAPABILITIES = ("row-limits", "dictated-drafts", "only-dictated-drafts", "prefix-caching", "grammar", "many-rows")


def cases(count: int, *capabilities: str, latest: bool = True, requires: tuple[str, ...] = ()) -> Iterator[EngineCase]:
    return islice(EngineCases(3, capabilities, requires, bounds=WIDE, latest=latest).cases(), count)


def lengths(drawn: Iterator[EngineCase], modulo: int) -> set[int]:
    return {len(prompt) % modulo for case in drawn for prompt in case.prompts}


@pytest.mark.parametrize("modulo", [16, 32, 64, 128])
def test_prompts_have_each_length_modulo_usual_blocks(modulo: int) -> None:
    """Every case but those that reach far has one whose turn it is; a frozen profile draws what it always drew."""
    assert lengths(cases(160), modulo) == set(range(modulo))
    assert lengths(cases(40), 128) > lengths(cases(40, latest=False), 128)


@pytest.mark.parametrize("takes", [(), ("ngram",), ("prefix-caching",), CAPABILITIES], ids=len)
def test_a_turn_is_not_lost_to_cached_beginnings_or_n_grams(takes: tuple[str, ...]) -> None:
    """Nearly every case has a prompt of the length whose turn it is; those that reach far, or go on, have others."""
    met = [1 + number * 45 % 128 in map(len, case.prompts) for number, case in enumerate(cases(140, *takes))]
    assert sum(met) >= 130


@pytest.mark.rest
def test_rounds_tokens_stand_behind_a_cached_beginning() -> None:
    """A prompt goes on behind whole blocks that another one has by 1, K, or K + 1 tokens."""
    seen = set[str]()
    for case in cases(120, *CAPABILITIES):
        k = case.num_draft_tokens
        for number, prompt in enumerate(case.prompts):
            for other in case.prompts[:number]:
                common = next((at for at, (a, b) in enumerate(zip(prompt, other)) if a != b), 0)  # noqa: B905
                if common and common % 16 == 0:
                    seen |= {
                        name for name, size in (("1", 1), ("K", k), ("K+1", k + 1)) if len(prompt) == common + size
                    }
    assert seen == {"1", "K", "K+1"}


@pytest.mark.rest
def test_all_drafts_are_rejected_and_rows_end_together() -> None:
    drawn = [case for case in cases(120, *CAPABILITIES) if len(case.rows) > 3]
    rejected = [case for case in drawn if case.drafting == "dictated" and not any(row.accepts for row in case.rows)]
    assert rejected
    assert any(any(options.grammar for options in case.options) for case in rejected), "under a grammar, too"
    limits = [{options.max_new_tokens for options in case.options} for case in drawn]
    assert any(max(own) - min(own) == 1 for own in limits)
    assert any(max(own) - min(own) > 4 for own in limits)


def test_sizes_of_a_batch_lie_between_buckets() -> None:
    sizes = {len(case.rows) for case in cases(200)}
    assert {7, 9, 11} <= sizes


def test_a_decoder_of_one_row_gets_one() -> None:
    assert {len(case.rows) for case in cases(60, requires=("batch-1",))} == {1}


def test_rows_end_with_the_model_and_a_round_before() -> None:
    """They are drawn in the bounds of engines alone: a row that short asks nothing of a decoder on a hash model."""
    drawn = [case for case in islice(EngineCases(3, ("row-limits",)).cases(), 160) if at_the_end(case)]
    left = {POSITIONS - len(row.prompt) - row.options.max_new_tokens for case in drawn for row in case.rows}
    assert 0 in left
    assert any(0 < places <= 8 for places in left)
    assert all(places >= 0 for places in left)
    assert {case.num_draft_tokens for case in drawn} > {1}
    assert not any(map(at_the_end, cases(160)))


@pytest.mark.rest
def test_a_right_decoder_is_right_to_the_last_position() -> None:
    case = next(case for case in EngineCases(3, ("row-limits",)).cases() if at_the_end(case))
    with worker(registry.load("eqspec"), sys.executable) as spawned:
        assert spawned.try_case(case).status == "equivalent"
