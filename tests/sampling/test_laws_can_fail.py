"""Every law of the conformance suite fails on some decoder, and a right one passes them all."""

from __future__ import annotations

import multiprocessing.popen_forkserver  # noqa: F401 - or each run in this process starts a fork server

import pytest
from test_pytest_plugin import Brief

import eqcheck.sampling.lane  # noqa: F401 - numpy cannot be imported a second time, in a run within this one

pytest_plugins = ["pytester"]

DECODERS = """
import itertools
from dataclasses import replace
import eqcheck
from eqcheck.transparent.truth.continuation import continue_row

def truth(target, request):
    c = target.config
    for prompt in request.prompts:
        ids = c.vocab_size - c.extra_pad
        row = list(continue_row(c.family, ids, c.seed, tuple(prompt), request.max_new_tokens)[0])
        end = next((i + 1 for i, t in enumerate(row) if t in request.eos_token_ids), len(row))
        yield row[:end]

@eqcheck.decoder()
def asks_nothing(target, draft, request):
    return list(truth(target, request))

undeclared = replace(eqcheck.load("hf_pr"), known={})
turn = itertools.count()

@eqcheck.decoder()
def alternates(target, draft, request):
    rows = list(truth(target, request))
    return rows if next(turn) % 2 else [row[:-1] for row in rows]
"""
LAWS = 11
ALL_SAMPLED = ("test_sampled_law", "test_rows_are_independent", "test_mates_leave_the_law", "test_seeds")


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason of a skip is printed whole."""
    monkeypatch.setenv("COLUMNS", "300")


def _failed(pytester: pytest.Pytester, spec: str) -> set[str]:
    """The laws that fail, and those that are skipped because another fails by the same fault."""
    result = pytester.runpytest_inprocess(f"--adapter={spec}", "--eqcheck-cases=15", "-k", "test_laws", "-v")
    outcomes = result.parseoutcomes()
    assert sum(outcomes.get(name, 0) for name in ("passed", "failed", "skipped")) == LAWS
    assert outcomes.get("skipped", 0) == sum(": same fault as " in line for line in result.outlines)
    return {line.split("::")[1].split("[")[0] for line in result.outlines if " FAILED " in line or " SKIPPED " in line}


@pytest.mark.long
def test_all_but_determinism_fail_on_hf_pr(pytester: pytest.Pytester) -> None:
    path = pytester.makepyfile(mine=DECODERS)
    failed = _failed(pytester, f"{path}:undeclared")
    assert len(failed) == LAWS - 1
    assert "test_determinism" not in failed


@pytest.mark.long
def test_determinism_fails_on_a_decoder_that_alternates(pytester: pytest.Pytester) -> None:
    path = pytester.makepyfile(mine=DECODERS)
    assert "test_determinism" in _failed(pytester, f"{path}:alternates")


@pytest.mark.rest
def test_only_the_trace_shows_a_decoder_that_asks_nothing(pytester: pytest.Pytester) -> None:
    path = pytester.makepyfile(mine=DECODERS)
    assert _failed(pytester, f"{path}:asks_nothing") == {"test_every_query_saw_its_row"}


SAMPLERS = """
from eqcheck.catalogue.samplers import SAMPLED_FAULTS

planted = {fault.number: fault.decoder("realigned") for fault in SAMPLED_FAULTS}
"""
SAMPLED = {
    1: {"test_sampled_law"},  # every draft token is accepted, also for a row alone
    18: {"test_sampled_law", "test_mates_leave_the_law"},  # the options of the first row; the second is skipped
    25: {"test_rows_are_independent"},  # one seed for all rows
    45: {"test_seeds"},  # a seed that is ignored
}


@pytest.mark.parametrize("number", SAMPLED)
@pytest.mark.tiers(quick=0, rest=1)
def test_each_law_of_samplers_fails_on_some(number: int, pytester: pytest.Pytester) -> None:
    path = pytester.makepyfile(wrong=f"{SAMPLERS}\nsampler = planted[{number}]")
    brief = [Brief()] if number == 45 else []  # two cases show that a seed is ignored
    words = f"--adapter={path}:sampler", "-k", " or ".join(ALL_SAMPLED)
    result = pytester.runpytest_inprocess(*words, "-v", plugins=brief)
    wrong = (" FAILED ", ": same fault as test_sampled_law, which explains it (")
    failed = {line.split("::")[1].split("[")[0] for line in result.outlines if any(mark in line for mark in wrong)}
    assert result.parseoutcomes()["failed"] == 1
    assert failed == SAMPLED[number]
