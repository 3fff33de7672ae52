"""Engines unlike those of the catalogue: no false alarm, no wrong cause, and what cannot be read is not guessed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from drafting import LookedUp

from eqcheck.catalogue.engines.engine import HIDDEN, RoundEngine, Rows
from eqcheck.catalogue.engines.pool import Packed
from eqcheck.catalogue.engines.rows import PerRow
from eqcheck.contract.decoders import CLAIMED, Decoder, Request, decoder
from eqcheck.core.case.record import Case
from eqcheck.core.explanation.records import Deviation, Explanation, Opinion, Query
from eqcheck.core.explanation.statements import sentence
from eqcheck.core.explanation.text import render
from eqcheck.transparent.decoding import run
from eqcheck.transparent.oracle import judge
from eqcheck.transparent.search import Source


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def made(engine: type[RoundEngine]) -> Decoder:
    def generate(target: Any, draft: Any, request: Request) -> Rows:
        return engine(target, draft, request).decode()

    return decoder(name=engine.__name__)(generate)


def named(engine: type[RoundEngine]) -> Counter[str]:
    cases = Source(4, CLAIMED, ("left",)).chunk(0, 40)
    explanations = [judge(run(made(engine), case)).explanation for case in cases]
    return Counter(e.fingerprint for e in explanations if e)


class PackedHidesFirst(Packed):
    """In later rounds the first token that the cache holds is hidden from the row to which it belongs."""

    def begin(self) -> None:
        super().begin()
        target = self.target

        def hiding(attention_mask: torch.Tensor, **more: Any) -> Any:
            if attention_mask.shape[2] < attention_mask.shape[3]:
                attention_mask[..., 0] = HIDDEN
            return target(attention_mask=attention_mask, **more)

        self.target = hiding


@pytest.mark.rest
def test_what_one_of_several_packed_rows_saw_is_read() -> None:
    assert set(named(PackedHidesFirst)) == {"mask/token-hidden"}


class LookedUpTakesDraft(LookedUp):
    """Emits the rejected draft in place of the correction."""

    def block(self, count: int, proposed: list[int], wanted: list[int]) -> list[int]:
        return proposed[: count + 1] if count < len(proposed) else super().block(count, proposed, wanted)


class LookedUpTakesNext(LookedUp):
    """Takes the correction one column late."""

    def block(self, count: int, proposed: list[int], wanted: list[int]) -> list[int]:
        return [*proposed[:count], wanted[min(count + 1, len(proposed))]]


@pytest.mark.parametrize(
    ("engine", "fingerprint"),
    [
        (LookedUp, None),
        (LookedUpTakesDraft, "bookkeeping/over-accept"),
        (LookedUpTakesNext, "bookkeeping/wrong-correction"),
    ],
)
@pytest.mark.tiers(quick=1, rest=2)
def test_drafts_without_the_draft_model(engine: type[RoundEngine], fingerprint: str | None) -> None:
    assert set(named(engine)) == ({fingerprint} if fingerprint else set())


def one_more(target: Any, draft: Any, request: Request) -> Rows:
    """Right, with a token more than the limit."""
    more = Request(request.prompts, request.max_new_tokens + 1, 1, (), 0, "left")
    return PerRow(target, draft, more).decode()


def test_a_token_too_many_that_is_the_pad_id() -> None:
    case = Case(prompts=((3, 1, 4),), max_new_tokens=3, num_draft_tokens=1)
    surplus = run(one_more, case).outputs
    assert surplus is not None
    explanation = judge(run(one_more, Case(**{**vars(case), "pad_token_id": surplus[0][-1]}))).explanation
    assert explanation is not None
    assert explanation.fingerprint == "bookkeeping/over-length"


def test_unattributed_shows_both_opinions() -> None:
    detail = "reading says mask/token-hidden, repair says: right cache restores the output"
    read = Explanation(
        component="unattributed",
        kind="unattributed",
        row=0,
        token_index=0,
        expected=5,
        observed=7,
        detail=detail,
        query=Query(1, 0, 0, 3, 0, 0, 7),
        deviations=(Deviation("mask", "token-hidden", 0, 0, 0, slot=0, token_position=0),),
        repair=Opinion((("cache",),), ()),
    )
    text = render(read)
    assert f"    {sentence(detail)}" in text
    assert (
        text.index("  Cause unknown")
        < text.index("  Read           from the cache, but not confirmed")
        < text.index("is masked")
    )
