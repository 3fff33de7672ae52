"""Grammars of rows: what they allow, how they are drawn, and that wrong uses of them are caught and named."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
import torch
from grammar_causes import decoded, found, shows, with_grammars
from grammar_faults import BUILDS, CLAIMS, FAULTS, Free, engine
from grammar_unseen import UNSEEN

from eqcheck.contract import registry
from eqcheck.contract.decoders import RowOptions
from eqcheck.contract.errors import CaseError, UsageError
from eqcheck.contract.options import choice, ended, options_of, rules, stuck
from eqcheck.core.case.engine import EngineCase, EngineRow
from eqcheck.core.shrinking.options import simpler_grammars
from eqcheck.engines.abduction.queries import allowed
from eqcheck.engines.checkpoints.row_judge import truth
from eqcheck.engines.drawing import EngineCases, alike, exercised
from eqcheck.engines.investigate import candidates, needs, without
from eqcheck.engines.lane import worker

TWO = ((0, (4, 5), 1), (1, (6,), 0), (1, (), 1))
OTHERS = ("min-new-tokens", "bad-words", "allowed-ids", "repetition-penalty")


def _allowed(options: RowOptions, tokens: list[int]) -> list[list[int]]:
    return list(options.ruled(tokens, 0, len(tokens) + 1))


def test_what_is_allowed_depends_on_the_new_tokens_and_an_end_on_the_state() -> None:
    row = RowOptions(4, (9,), grammar=TWO)
    assert _allowed(row, [4, 6, 5]) == [[4, 5], [6, 9], [4, 5], [6, 9]]
    assert _allowed(row, [8, 4, 8]) == [[4, 5], [4, 5], [6, 9], [6, 9]]  # what is not allowed leads nowhere
    assert _allowed(replace(row, eos_token_ids=(4,)), [5]) == [[5], [6, 4]]  # an EOS is allowed where rows may end
    assert not ended(row.grammar, (4,), (9,))
    assert ended(choice([(4, 5), (4, 6)], ends=True), (4, 6), (9,))


def test_a_choice_shares_beginnings_and_may_begin_again() -> None:
    again = RowOptions(9, grammar=choice([(4, 5), (4, 6, 7)], ends=False))
    assert _allowed(again, [4, 6, 7, 4]) == [[4], [5, 6], [7], [4], [5, 6]]


def test_a_state_in_which_nothing_is_allowed_is_known() -> None:
    assert stuck(choice([(4,)], ends=True), ())
    assert stuck(((0, (9,), 0),), (9,))
    assert not stuck(choice([(4,)], ends=True), (9,))
    assert not stuck((), ())


def test_simpler_grammars_have_fewer_states_or_fewer_ids() -> None:
    smaller = list(simpler_grammars(TWO))
    assert ((0, (4, 5), 0), (0, (6,), 0), (0, (), 0)) not in smaller  # states go with their edges
    assert smaller[0] == ((0, (4, 5), 0),)
    assert ((0, (4,), 1), *TWO[1:]) in smaller
    for grammar in smaller:
        assert RowOptions(4, (9,), grammar=grammar).grammar == grammar


def test_grammars_are_written_as_rules_of_texts() -> None:
    row = RowOptions(4, (9,), grammar=TWO)
    assert rules(row).splitlines() == ["root ::= s0", 's0 ::= ("[4]" | "[5]") s1', 's1 ::= ("[6]") s0 | ""']
    assert rules(replace(row, eos_token_ids=())).splitlines()[-1] == 's1 ::= ("[6]") s0'  # nothing ends it
    assert rules(row, by_text=True).splitlines()[-1] == 's1 ::= ("[6]") s0 | ("[9]") s1'


def test_edges_that_are_no_grammar_are_refused() -> None:
    refused: tuple[tuple[Any, str], ...] = (
        (((1, (4,), 1),), "grammar: expected an edge of state 0 first, got state 1"),
        (((0, (4,), 2),), "grammar: expected a state with an edge behind state 0, got 2"),
        (((0, (4,), 0), (0, (4,), 0)), "grammar: expected each id once in state 0, got 4 again"),
        (((-1, (4,), 0),), "grammar: expected 0..4095, got -1"),
        (((0, 4, 0),), "grammar: expected a tuple"),
        ("abc", "grammar: expected edges: a state, a list of token ids, and the next state"),
    )
    for grammar, message in refused:
        with pytest.raises(UsageError, match=message):
            RowOptions(4, grammar=grammar)
    with pytest.raises(CaseError, match="grammar: expected token ids below 256"):
        EngineRow((1,), RowOptions(4, grammar=((0, (300,), 0),)))


def test_a_case_with_a_grammar_is_stored_and_one_without_is_as_it_was() -> None:
    case = EngineCase((EngineRow((1, 2), RowOptions(4, (9,), grammar=TWO)), EngineRow((3,), RowOptions(4))))
    assert EngineCase.from_dict(json.loads(json.dumps(case.to_dict()))) == case
    assert "grammar" not in without(case, ("grammar",)).rows[0].to_dict()
    assert needs(case) == ("grammar", "eos-token-ids")
    assert options_of(case.rows[0].options) == "grammar 0: 4 5 to 1 / 1: 6 to 0 / 1: end to 1"


@pytest.mark.long
def test_grammars_are_drawn_alone_with_others_and_beside_rows_without_and_change_tokens() -> None:
    torch.set_num_threads(1)
    seen = Counter[str]()
    drawn, plain = (EngineCases(4, (*CLAIMS[:2], *OTHERS, *more), kinds=("full",)) for more in (("grammar",), ()))
    for number in range(120):
        case = drawn.case(number)
        others = case.with_options(replace(row, grammar=()) for row in case.options)
        assert others == plain.case(number)  # others get the cases that they got before there were grammars
        assert not any(stuck(row.grammar, row.eos_token_ids) for row in case.options)
        if any(row.grammar for row in case.options):
            seen.update(["cases"] + ["alone"] * (not {*needs(case)} & {*OTHERS}))
            seen.update(f"with {name}" for name in {*needs(case)} & {*OTHERS})
            seen.update(exercised(case, tuple(tuple(truth("full").row(row)) for row in case.rows), {}))
    assert seen["grammar"] == seen["cases"] > 30
    assert seen["alone"] > 5
    assert all(seen[f"with {name}"] > 1 for name in OTHERS)
    assert seen["grammar_beside_none"] > 10
    assert seen["grammar_ended"] > 3
    assert not any(row.grammar for row in EngineCases(4, CLAIMS, kinds=("",)).case(1).options)


@pytest.mark.rest
def test_cases_alike_and_smaller_ones_have_grammars_in_which_a_row_can_go_on() -> None:
    torch.set_num_threads(1)
    for case in islice(with_grammars(3), 4):
        for number in range(6):
            other = alike(case, number)
            assert not any(stuck(row.grammar, row.eos_token_ids) for row in other.options)
        sizes = [sum(len(edge[1]) for row in one.options for edge in row.grammar) for one in candidates(case)]
        assert min(sizes) == 0 < sorted({*sizes})[1]


def test_drafts_end_before_the_first_that_is_forbidden() -> None:
    row = RowOptions(9, (9,), grammar=TWO)
    assert allowed(row, (4,), [6, 5, 5, 6]) == [6, 5]
    assert allowed(RowOptions(9), (4,), [6, 5]) == [6, 5]


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.tiers(quick=0, rest=1)
def test_a_right_engine_has_every_row_right(build: type[Free]) -> None:
    """Many more by ``python -m grammar_causes right 400``."""
    torch.set_num_threads(1)
    assert {decoded(build, case).status for case in islice(with_grammars(5), 25)} == {"equivalent"}


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("fault", [*FAULTS, *UNSEEN])
@pytest.mark.tiers(quick=5, rest=10)
def test_every_fault_is_caught(build: type[Free], fault: str) -> None:
    torch.set_num_threads(1)
    faulty = engine(build, (FAULTS | UNSEEN)[fault][0])
    caught = any(decoded(faulty, case).failed for case in islice(with_grammars(0), 120 if shows(build, fault) else 10))
    assert caught == shows(build, fault)


@pytest.mark.parametrize("fault", ["keeps-rejected", "next-mask", "open-at-end", "refused-bonus"])
@pytest.mark.long
def test_a_fault_is_named(fault: str) -> None:
    """The others, and those for which there is no rule, by ``python -m grammar_causes``."""
    torch.set_num_threads(1)
    cause = found(Free, FAULTS[fault][0])
    assert cause.fingerprint.startswith("options/ignored-option")
    assert cause.edit.partition(":")[0] == FAULTS[fault][1]


@pytest.mark.long
def test_transformers_follows_grammars() -> None:
    decoder = registry.load("transformers_float32")
    with worker(decoder, sys.executable) as transformers:
        transformers.open()
        outcomes = [transformers.try_case(case) for case in islice(with_grammars(1), 6)]
    assert {outcome.status for outcome in outcomes} == {"equivalent"}
