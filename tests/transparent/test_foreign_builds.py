"""Engines of other hands: faults that were told falsely or not at all, and what is told of them now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from drafting import twice

from eqcheck.catalogue import BUILDS, FAULTS, known_good
from eqcheck.catalogue.engines.rows import PerRow
from eqcheck.contract.decoders import Request
from eqcheck.core.case.record import Case
from eqcheck.core.explanation.records import Explanation, crash
from eqcheck.core.explanation.text import render
from eqcheck.core.result.outcome import HANG, Outcome, RowVerdict
from eqcheck.transparent.attribution.bookkeeping import prompt_returned
from eqcheck.transparent.attribution.reading import Reader
from eqcheck.transparent.decoding import run
from eqcheck.transparent.oracle import judge
from eqcheck.transparent.search import Source
from eqcheck.transparent.sequences import confirms

Decode = Callable[[Any, Any, Request], list[list[int]]]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def read(decode: Decode, count: int = 20, seed: int = 4) -> list[Explanation]:
    """What is read of the drawn cases that are wrong."""
    drawn = Source(seed, ("rotary", "learned"), ("left",)).chunk(0, count)
    return [e for case in drawn if (e := judge(run(decode, case)).explanation)]


@pytest.mark.rest
def test_drafts_of_a_call_that_is_made_again_are_drafts_and_its_rounds_are_counted_once() -> None:
    once = next(fault.engine() for fault in FAULTS if fault.switch == "M4-rejected-visible")
    plain = replace(BUILDS["holes"], engine=once).decoder("once").function
    doubled = replace(BUILDS["holes"], engine=twice(once)).decoder("twice").function
    compared = 0
    for case in Source(4, ("rotary", "learned"), ("left",)).chunk(0, 20):
        one, other = (judge(run(decode, case)).explanation for decode in (plain, doubled))
        assert (one is None) == (other is None)
        if one is None or other is None:
            continue
        assert other.fingerprint == one.fingerprint == "cache/stale-entry"
        assert "filler" not in render(other)
        assert (other.round, other.row) == (one.round, one.row)
        compared += 1
    assert compared > 5


def test_a_token_that_was_never_fed_is_said_to_be_so() -> None:
    class SkipsFirst(PerRow):
        def feed(self, i: int, block: list[int]) -> torch.Tensor:
            if not self.lengths[i] and len(block) > 1:
                self.lengths[i] = 1
                return super().feed(i, block[1:])
            return super().feed(i, block)

    decode = replace(BUILDS["per_row"], engine=SkipsFirst).decoder("skips").function
    case = Case(prompts=((5, 7, 9), (11, 12)), max_new_tokens=3, num_draft_tokens=1)
    found = judge(run(decode, case)).explanation
    assert found is not None
    assert found.fingerprint == "cache/missing-entry"
    assert "Position 0 of the row is not among what the call reads (never fed to the target)." in " ".join(
        render(found).split()
    )


def second_choices(target: Any, draft: Any, request: Request, *, accepts_first: bool) -> list[list[int]]:
    """Drafts are the draft's second choice; all rows are fed whole, one by one."""
    rows = []
    for prompt in request.prompts:
        row, end = list(prompt), len(prompt) + request.max_new_tokens
        while len(row) < end and not set(row[len(prompt) :]) & set(request.eos_token_ids):
            fed = list(row)
            for _ in range(request.num_draft_tokens):
                logits = draft(input_ids=torch.tensor([fed]), use_cache=False).logits[0, -1]
                fed.append(int(logits.topk(2).indices[1]))
            answers = target(input_ids=torch.tensor([fed]), use_cache=False).logits[0].argmax(-1).tolist()
            for at in range(len(row) - 1, len(fed)):
                drafted = fed[at + 1] if at + 1 < len(fed) else None
                kept = drafted == answers[at] or (accepts_first and at == len(row) - 1 and drafted is not None)
                row.append(drafted if kept and drafted is not None else answers[at])
                if not kept or len(row) == end or row[-1] in request.eos_token_ids:
                    break
        rows.append(row[len(prompt) :])
    return rows


@pytest.mark.rest
def test_drafts_that_are_a_second_choice_are_drafts() -> None:
    assert not read(partial(second_choices, accepts_first=False), 15)
    found = read(partial(second_choices, accepts_first=True), 15)
    other = [one for one in found if one.fingerprint != "bookkeeping/over-accept"]
    assert len(found) > 8 * len(other)
    assert not [one for one in found if one.facts.get("statement") in ("neither", "no-query")]
    assert {one.facts["statement"] for one in other} <= {"rejected-or-behind"}, "by chance it is both"


def test_a_start_that_is_short_in_a_row_of_the_right_length_is_told() -> None:
    """The row ends with an EOS before its limit, and was cut to the right length behind a start that is too early."""
    row = RowVerdict(0, expected=(1, 2, 3), observed=(7, 12, 1))
    told = prompt_returned([(5, 7, 6, 7, 12)], [row], limits=[9], pad=7, eos=(3,))
    assert told is not None
    assert told[1].detail.startswith("the output starts 2 tokens too early, with the end of the prompt")


def test_a_length_that_leaves_out_the_pads_of_a_row_is_told() -> None:
    def counted(target: Any, draft: Any, request: Request) -> list[list[int]]:
        rows = known_good()["holes"](target, draft, request)
        return [row[: len(row) - row.count(request.pad_token_id)] for row in rows]

    case = Case(prompts=((5, 7, 9), (11, 12)), max_new_tokens=6, num_draft_tokens=2)
    right = run(known_good()["holes"], case).truth.rows
    found = judge(run(counted, replace(case, pad_token_id=right[0][1]))).explanation
    assert found is not None
    assert found.fingerprint == "bookkeeping/premature-stop"
    assert "The expected row contains the pad id exactly as often as tokens are missing." in " ".join(
        render(found).split()
    )


class SlowOnce:
    """A runner of a decoder that compiles: it hung once, and is right within the whole limit."""

    def __init__(self, hangs: bool) -> None:
        self.hangs, self.limits = hangs, list[float | None]()

    def try_case(self, case: Case, timeout: float | None = None, **opinion: bool) -> Outcome:
        self.limits.append(timeout)
        hung = self.hangs or timeout is not None
        failed = crash("hang", "", "no answer within 9 s") if hung else None
        return Outcome(case, "violation" if hung else "equivalent", explanation=failed)


def test_a_hang_is_confirmed_within_the_whole_limit() -> None:
    hung = Outcome(Case(prompts=((1,),)), "violation", explanation=crash("hang", "", "no answer within 9 s"))
    assert hung.fingerprint == HANG
    once: Any = SlowOnce(hangs=False)
    assert confirms(hung, once, None, slowest=0.1, seconds=10.0) is None
    assert once.limits == [None]
    always: Any = SlowOnce(hangs=True)
    assert confirms(hung, always, None, slowest=0.1, seconds=10.0) is hung
    assert always.limits[0] is None


def keeps_its_first_drafts(target: Any, draft: Any, request: Request) -> list[list[int]]:
    """A row at a time, without a cache; the first draft token of a row is kept, whatever the target says."""
    rows = []
    for prompt in request.prompts:
        row, end = list(prompt), len(prompt) + request.max_new_tokens
        while len(row) < end:
            drafts = [int(draft(input_ids=torch.tensor([row]), use_cache=False).logits[0, -1].argmax())]
            answers = target(input_ids=torch.tensor([row + drafts]), use_cache=False).logits[0].argmax(-1).tolist()
            kept = len(row) == len(prompt) or drafts[0] == answers[-2]
            row += [drafts[0], answers[-1]] if kept else [answers[-2]]
        rows.append(row[len(prompt) : end])
    return rows


@pytest.mark.parametrize("prompts", [((62,), (62,)), ((5, 62), (62,), (5, 62))])
def test_rows_with_the_same_prompt_were_all_asked_for(prompts: tuple[tuple[int, ...], ...]) -> None:
    done = run(keeps_its_first_drafts, Case(prompts=prompts, max_new_tokens=4, num_draft_tokens=1, accepts=((0, 1),)))
    found = Reader(done).of_each_row()
    assert len(found) == len(prompts)
    for one in found:
        assert one.fingerprint == "bookkeeping/over-accept"
        assert "attended to exactly the right tokens" in one.basis
        assert "rejected" in one.detail
        assert "never" not in one.detail
