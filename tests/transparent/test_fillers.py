"""Filler: columns that fill up a shorter row of a call with ids that are no pads. It is told from rejected drafts."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from eqcheck.catalogue import PLANTED
from eqcheck.contract.decoders import CACHE_STATES, Request, decoder
from eqcheck.core.case.record import Case
from eqcheck.core.explanation.text import render
from eqcheck.core.result.outcome import Loss, RowVerdict
from eqcheck.transparent.attribution.bookkeeping import CommitKnowledge, diagnose
from eqcheck.transparent.attribution.lost_drafts import draft_losses, draft_warnings, settled
from eqcheck.transparent.decoding import run
from eqcheck.transparent.oracle import judge
from eqcheck.transparent.search import Source

Rows = list[list[int]]


def decode(
    target: Any,
    draft: Any,
    request: Request,
    keeps_filler: bool = False,
    last_column: bool = False,
    no_bonus: bool = False,
) -> Rows:
    """A cache for each row; a verify call takes them side by side, and fills up those with fewer draft tokens.

    ``keeps_filler``: what a row was filled up with stays in its cache. ``last_column``: the bonus is read there.
    ``no_bonus``: it is thrown away.
    """
    rows = [list(prompt) for prompt in request.prompts]
    caches = [DynamicCache() for _ in rows]
    for row, cache in zip(rows, caches, strict=True):
        row.append(int(target(input_ids=torch.tensor([row]), past_key_values=cache).logits[0, -1].argmax()))
    starts = [len(prompt) for prompt in request.prompts]
    while going := [n for n, row in enumerate(rows) if not finished(row[starts[n] :], request)]:
        drafts = {}
        for n in going:
            room = min(request.num_draft_tokens - n % 2, request.max_new_tokens - len(rows[n]) + starts[n] - 1)
            drafts[n] = list[int]()
            for _ in range(max(0, room)):
                context = torch.tensor([rows[n] + drafts[n]])
                drafts[n].append(int(draft(input_ids=context, use_cache=False).logits[0, -1].argmax()))
        held = [caches[n].get_seq_length() for n in going]
        before, width = max(held), 1 + max(map(len, drafts.values()))
        merged = DynamicCache()
        for layer in range(len(caches[0].layers)):
            own = [caches[n].layers[layer] for n in going]
            merged.update(
                *(side_by_side([getattr(one, kv) for one in own], before) for kv in ("keys", "values")), layer
            )
        fed = [[rows[n][-1], *drafts[n]] + [rows[n][-1]] * (width - 1 - len(drafts[n])) for n in going]
        mask = [
            [0] * (before - have) + [1] * (have + 1 + len(drafts[n])) + [0] * (width - 1 - len(drafts[n]))
            for n, have in zip(going, held, strict=True)
        ]
        positions = [[len(rows[n]) - 1 + column for column in range(width)] for n in going]
        answers = target(
            input_ids=torch.tensor(fed),
            attention_mask=torch.tensor(mask),
            position_ids=torch.tensor(positions),
            past_key_values=merged,
        ).logits.argmax(-1)
        for at, (n, have) in enumerate(zip(going, held, strict=True)):
            said, count = answers[at].tolist(), 0
            while count < len(drafts[n]) and drafts[n][count] == said[count]:
                count += 1
            bonus = said[-1] if last_column and count == len(drafts[n]) else said[count]
            wasted = no_bonus and 0 < count == len(drafts[n])
            stays = keeps_filler and count == len(drafts[n])
            end = before + (width if stays else count + 1 - wasted)
            for one, layer in zip(caches[n].layers, merged.layers, strict=True):
                one.keys, one.values = (t[at : at + 1, :, before - have : end] for t in (layer.keys, layer.values))
            rows[n] += [*drafts[n][:count], *([] if wasted else [bonus])]
    return [cut(row[start:], request) for row, start in zip(rows, starts, strict=True)]


def side_by_side(tensors: list[torch.Tensor], width: int) -> torch.Tensor:
    """Rows of a cache, at the right edge of as many slots."""
    return torch.cat([torch.nn.functional.pad(one, (0, 0, width - one.shape[2], 0)) for one in tensors])


def finished(new: list[int], request: Request) -> bool:
    return len(new) >= request.max_new_tokens or any(token in request.eos_token_ids for token in new)


def cut(new: list[int], request: Request) -> list[int]:
    ends = [at + 1 for at, token in enumerate(new) if token in request.eos_token_ids]
    return new[: min([*ends, request.max_new_tokens])]


def told(cache_state: str, **fault: bool) -> tuple[Counter[str], list[str]]:
    """The fingerprints and the texts of all violations in the first cases."""
    torch.set_num_threads(1)
    named, texts = Counter[str](), []

    @decoder(name="fills")
    def generate(target: Any, draft: Any, request: Request) -> Rows:
        return decode(target, draft, request, **fault)

    for case in Source(6, ("rotary", "learned"), ("left",), (cache_state,)).chunk(0, 60):
        explanation = judge(run(generate, case)).explanation
        if explanation is not None:
            named[explanation.fingerprint] += 1
            texts.append(" ".join(render(explanation).split()))
    return named, texts


STATES = ("empty", "pads-nan", "pads-huge")
assert set(STATES) <= set(CACHE_STATES)


@pytest.mark.parametrize("cache_state", STATES)
@pytest.mark.tiers(quick=0, rest=1)
def test_the_right_one_is_right(cache_state: str) -> None:
    assert not told(cache_state)[0]


@pytest.mark.parametrize("cache_state", STATES)
@pytest.mark.tiers(quick=0, rest=1)
def test_filler_that_stays_and_is_seen_is_no_torn_entry(cache_state: str) -> None:
    named, texts = told(cache_state, keeps_filler=True)
    assert set(named) == {"mask/pad-visible"}
    assert all("no model wrote" not in text and "-9223372036854775808" not in text for text in texts)
    assert all(f" {2**30 * 65793}" not in text for text in texts)  # what digits of 2**30 would spell
    assert all("holds filler of call" in text or re.search("holds? padding and", text) for text in texts)


@pytest.mark.parametrize("cache_state", STATES)
@pytest.mark.tiers(quick=0, rest=1)
def test_an_answer_in_the_column_of_filler_is_not_one_behind_a_rejected_draft_token(cache_state: str) -> None:
    named, texts = told(cache_state, last_column=True)
    assert set(named) == {"bookkeeping/wrong-correction"}
    columns = ("in a filler column", "in the column of a pad")  # the latter where the id is the pad id as well
    assert all(any(f"what the target predicted {column}" in text for column in columns) for text in texts)


@pytest.mark.rest
def test_a_bonus_thrown_away_is_no_rejection_where_filler_stands_behind_it() -> None:
    losses = Counter[Loss](), Counter[Loss]()
    torch.set_num_threads(1)
    for case in Source(6, ("rotary", "learned"), ("left",), ("empty",)).chunk(0, 60):
        for n, fault in enumerate(({}, {"no_bonus": True})):
            done = run(decoder(name="fills")(lambda *given, fault=fault: decode(*given, **fault)), case)
            assert judge(done)
            losses[n].update(draft_losses(done))
    right, wrong = map(settled, losses)
    assert not draft_warnings(losses[0])
    assert [warning.partition(":")[0] for warning in draft_warnings(losses[1])] == ["draft/lost-bonus"]
    more = wrong["rounds"] - right["rounds"]
    assert more > 20
    assert abs(wrong["lost-bonus"] - more) <= 0.05 * more, (right, wrong)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (
            "T10-correction-twice.uncached",
            "or the target's prediction after token 0 of the row is read instead of the right one",
        ),
        (
            "T21-answers-from-wrong-end.uncached",
            "or the target's prediction after token 0 of the row is read instead of the right one",
        ),
    ],
)
def test_of_two_origins_of_a_repeated_token_both_are_told(fault: str, said: str) -> None:
    """A decoder without a cache has every token answered again, so its answer may be read again, too."""
    (planted,) = (one for one in PLANTED if one.id == fault)
    case = Case(prompts=((0,),), max_new_tokens=4, num_draft_tokens=1)
    with planted.decoder().running() as generate:
        explanation = judge(run(generate, case)).explanation
    assert explanation is not None
    assert explanation.fingerprint == "bookkeeping/repeated-token"
    assert said in " ".join(render(explanation).split())


def test_a_token_that_is_the_last_one_again_and_the_answer_behind_a_rejected_draft_token_is_not_certain() -> None:
    verdict = RowVerdict(0, (57, 33, 99), (57, 57, 62))
    run_ = run(right_decoder, Case(prompts=((3, 1, 4),), max_new_tokens=3, num_draft_tokens=1))
    known = CommitKnowledge(set(), set(), {57}, set(), {57}, True, False, False, None, False)
    kind = diagnose(verdict, 1, run_, known)
    assert (kind.kind, kind.certain) == ("wrong-correction", False)
    said = "the returned token equals new token 0, and is also what the target predicted after a rejected draft token"
    assert kind.statement.detail == said
    assert diagnose(verdict, 1, run_, replace(known, after_rejected=set())).kind == "repeated-token"
    kind = diagnose(verdict, 1, run_, replace(known, drafted={57}, verified={57}, after_rejected=set()))
    assert (kind.kind, kind.certain) == ("over-accept", False)
    assert kind.statement.detail == "the returned token is the rejected draft token, and it equals new token 0"


def test_two_tokens_that_changed_places_are_not_a_lost_one() -> None:
    run_ = run(right_decoder, Case(prompts=((3, 1, 4),), max_new_tokens=3, num_draft_tokens=1))
    (first, second, third) = run_.truth.rows[0]
    assert len({first, second, third}) == 3
    known = CommitKnowledge(set(), set(), set(), set(), set(), True, True, False, None, False)
    exchanged = diagnose(RowVerdict(0, (first, second, third), (first, third, second)), 1, run_, known)
    assert (exchanged.kind, exchanged.statement.facts["statement"]) == ("wrong-correction", "exchanged")
    assert diagnose(RowVerdict(0, (first, second, third), (first, third)), 1, run_, known).kind == "lost-token"


@decoder(name="right")
def right_decoder(target: Any, draft: Any, request: Request) -> Rows:
    return decode(target, draft, request)
