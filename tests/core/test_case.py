"""Cases: what is stored is what was drawn, what is wrong is refused, what is drawn is varied and shrinks to little."""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from eqcheck.audit.coverage_words import TRANSPARENT
from eqcheck.contract import registry
from eqcheck.contract.decoders import CLAIMED, FAMILIES
from eqcheck.contract.errors import CaseError, UsageError
from eqcheck.core.case.record import Case
from eqcheck.strategies import cases
from eqcheck.transparent.coverage import exercised
from eqcheck.transparent.decoding import models, run, truth_of
from eqcheck.transparent.drafting import ScriptedDraft
from eqcheck.transparent.hashlm.model import HashConfig, HashLM
from eqcheck.transparent.oracle import judge

torch.set_num_threads(1)
FULL = Case(
    prompts=((5, 7), (9,)),
    max_new_tokens=6,
    num_draft_tokens=3,
    accepts=((3,), (0, 2)),
    eos_token_ids=(11, 12),
    pad_token_id=2,
    padding_side="right",
    family="learned",
    vocab_size=64,
    seed=5,
)
# A value other than the default for every field; accepts and agreement exclude each other.
OTHER: dict[str, Any] = {field.name: getattr(FULL, field.name) for field in dataclasses.fields(Case)}
OTHER["agreement"] = 0.5
OTHER |= {"cache_state": "pads-nan", "prefill_chunk": 3, "prefix_length": 1, "arrivals": (2,), "before": (FULL,)}
OTHER |= {
    "tree": ((((0, 0),),),),
    "paths": (((0,),),),
    "stop_sequences": (((3, 4),),),
    "logprobs": True,
    "cancel_after": (2,),
    "draft_seed": 3,
}
STATES = {
    "prefill_chunk": "chunked",
    "prefix_length": "prefix",
    "arrivals": "late-rows",
    "tree": "tree",
    "paths": "tree",
}
MINIMAL: dict[str, Any] = {"format": Case.format, "prompts": [[1]]}
quick = settings(max_examples=100, deadline=None, derandomize=True, database=None)


@given(case=cases())
@quick
@pytest.mark.rest
def test_round_trip_through_json(case: Case) -> None:
    read = Case.from_dict(json.loads(json.dumps(case.to_dict())))
    assert read == case
    assert hash(read) == hash(case)
    assert read.id == case.id


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Case)])
def test_no_field_is_forgotten(name: str) -> None:
    plain = Case(prompts=((1,),))
    assert getattr(plain, name) != OTHER[name]
    needed: dict[str, Any] = {"cache_state": STATES[name]} if name in STATES else {}
    needed |= {"tree": OTHER["tree"]} if name == "paths" else {}
    prompts = ((1, 2),)
    k = 3 if name == "accepts" else 1
    changed = Case(**{"prompts": prompts, "num_draft_tokens": k, **needed, name: OTHER[name]})
    plain_data = [FULL.to_dict()] if name == "before" else json.loads(json.dumps(OTHER[name]))
    assert changed.to_dict()[name] == plain_data
    assert getattr(Case.from_dict(changed.to_dict()), name) == OTHER[name]
    assert changed.id != plain.id


def test_a_stored_case_says_its_format_and_defaults_may_be_left_out() -> None:
    assert set(FULL.to_dict()) == {"format", *OTHER} - {
        "cache_state",
        "before",
        "stop_sequences",
        "logprobs",
        "cancel_after",
        "draft_seed",
        *STATES,
    }
    assert FULL.to_dict()["format"] == "eqcheck-case/1"
    assert Case.from_dict(MINIMAL) == Case(prompts=((1,),))


def test_the_id_is_stable() -> None:
    assert FULL.id == "f70323b808d6"
    assert Case(prompts=((1,),)).id == "282fb078741e"


def test_equal_cases_have_one_id() -> None:
    whole, fraction = Case(prompts=((1,),), agreement=1), Case(prompts=((1,),), agreement=1.0)
    assert whole == fraction
    assert whole.id == fraction.id


def test_cases_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        FULL.seed = 1  # type: ignore[misc]


def test_every_request_is_a_copy_of_its_own() -> None:
    request = FULL.request()
    assert request == FULL.request()
    assert request.prompts == [[5, 7], [9]]
    for name in ("max_new_tokens", "num_draft_tokens", "eos_token_ids", "pad_token_id", "padding_side"):
        assert getattr(request, name) == getattr(FULL, name)
    request.prompts[0].append(1)
    request.prompts.append([3])
    assert FULL.request().prompts == [[5, 7], [9]]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "case: expected an object, got list"),
        ({}, "case: expected format 'eqcheck-case/1', got None"),
        ({**MINIMAL, "format": "eqcheck-case/2"}, "case: expected format 'eqcheck-case/1', got 'eqcheck-case/2'"),
        ({"format": Case.format}, "case: field 'prompts' is missing"),
        ({"format": Case.format, "prompt": [[1]]}, "case: unknown field 'prompt'; did you mean 'prompts'?"),
        ({**MINIMAL, "max_tokens": 3}, "case: unknown field 'max_tokens'; did you mean 'max_new_tokens'?"),
        ({**MINIMAL, "zzz": 3}, "case: unknown field 'zzz'"),
    ],
    ids=str,
)
def test_what_is_no_case_is_refused(data: Any, message: str) -> None:
    with pytest.raises(CaseError, match=re.escape(message) + "($|;)"):
        Case.from_dict(data)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"prompts": []}, "prompts: expected at least one row, got none"),
    ({"prompts": [[1], []]}, "prompts[1]: expected a tuple of at least one token, got ()"),
    ({"prompts": [[1], 2]}, "prompts[1]: expected a tuple of at least one token, got 2"),
    ({"prompts": ["ab"]}, "prompts[0]: expected a tuple of at least one token, got 'ab'"),
    ({"prompts": [[1], [2.0]]}, "prompts[1]: expected an integer, got 2.0"),
    ({"prompts": [[True]]}, "prompts[0]: expected an integer, got True"),
    ({"prompts": [[128]]}, "prompts[0]: expected 0..127, got 128"),
    ({"prompts": [[64]], "vocab_size": 64}, "prompts[0]: expected 0..63, got 64"),
    ({"prompts": 5}, "prompts: "),
    ({"max_new_tokens": 0}, "max_new_tokens: expected 1..1023, got 0"),
    ({"max_new_tokens": "4"}, "max_new_tokens: expected an integer, got '4'"),
    ({"num_draft_tokens": 0}, "num_draft_tokens: expected 1..64, got 0"),
    ({"accepts": [[0], [2]]}, "accepts[1]: expected 0..1, got 2"),
    ({"accepts": [[0.5]]}, "accepts[0]: expected an integer, got 0.5"),
    ({"accepts": [[1]], "agreement": 0.5}, "accepts, agreement: expected one of the two, got both"),
    ({"accepts": 5}, "accepts: "),
    ({"accepts": [1]}, "accepts[0]: "),
    ({"agreement": 1.5}, "agreement: expected 0 to 1, got 1.5"),
    ({"agreement": float("nan")}, "agreement: expected 0 to 1, got nan"),
    ({"agreement": True}, "agreement: expected a number from 0 to 1, got True"),
    ({"eos_token_ids": [128]}, "eos_token_ids: expected 0..127, got 128"),
    ({"eos_token_ids": 5}, "eos_token_ids: "),
    ({"eos_token_ids": None}, "eos_token_ids: "),
    ({"eos_token_ids": ""}, "eos_token_ids: "),
    ({"pad_token_id": None}, "pad_token_id: expected an integer, got None"),
    ({"pad_token_id": -1}, "pad_token_id: expected 0..128, got -1"),
    ({"padding_side": "middle"}, "padding_side: expected one of ('left', 'right'), got 'middle'"),
    ({"family": "rotery"}, f"family: expected one of {FAMILIES}, got 'rotery'"),
    ({"cache_state": "full"}, "cache_state: expected one of ('empty', "),
    ({"cache_state": "chunked"}, "prefill_chunk: expected a value for cache_state 'chunked', got None"),
    ({"prefill_chunk": 2}, "prefill_chunk: expected none for cache_state 'empty', got 2"),
    ({"cache_state": "chunked", "prefill_chunk": 0}, "prefill_chunk: expected 1.."),
    ({"cache_state": "prefix", "prefix_length": 9}, "prefix_length: expected 0.."),
    ({"cache_state": "late-rows", "arrivals": (1, 2, 3, 4)}, "arrivals: expected one per row"),
    ({"vocab_size": 3}, "vocab_size: expected 4..1024, got 3"),
    ({"seed": -1}, "seed: expected 0.."),
]


@pytest.mark.parametrize(("given", "message"), REFUSED, ids=[str(given) for given, _ in REFUSED])
def test_wrong_values_are_refused_by_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(CaseError, match="^" + re.escape(message)) as caught:
        Case.from_dict({**MINIMAL, **given})
    assert isinstance(caught.value, UsageError)


@pytest.mark.parametrize(
    "given",
    [
        {"prompts": [(1,)]},
        {"prompts": 5},
        {"accepts": [(1,)]},
        {"accepts": ([1],)},
        {"accepts": (1,)},
        {"eos_token_ids": [3]},
        {"eos_token_ids": 3},
    ],
    ids=str,
)
def test_what_is_no_tuple_is_refused(given: dict[str, Any]) -> None:
    """Or it would break hashing, and equality with what is read back."""
    with pytest.raises(CaseError):
        Case(**{"prompts": ((1,),), **given})


@given(case=cases(max_rows=3, max_prompt=2, max_new_tokens=4, max_draft_tokens=2, families=("learned",)))
@quick
@pytest.mark.rest
def test_drawn_cases_stay_within_the_bounds(case: Case) -> None:
    assert 1 <= len(case.prompts) <= 3
    assert all(1 <= len(prompt) <= 2 for prompt in case.prompts)
    assert 1 <= case.max_new_tokens <= 4
    assert 1 <= case.num_draft_tokens <= 2
    assert case.family == "learned"


ONE = Case(prompts=((10,),), max_new_tokens=1, pad_token_id=127)
SMALLEST: dict[str, tuple[Callable[[Case], bool], dict[str, Any]]] = {
    "anything": (lambda case: True, {}),
    "two rows": (lambda case: len(case.prompts) > 1, {"prompts": ((10,), (20,))}),
    "a long prompt": (lambda case: any(len(prompt) > 2 for prompt in case.prompts), {"prompts": ((10, 11, 12),)}),
    "new tokens": (lambda case: case.max_new_tokens > 2, {"max_new_tokens": 3}),
    "drafts": (lambda case: case.num_draft_tokens > 2, {"num_draft_tokens": 3}),
    "two rounds": (lambda case: len(case.accepts[:1] and case.accepts[0]) > 1, {"accepts": ((0, 0),)}),
    "one accepted": (lambda case: any(map(any, case.accepts)), {"accepts": ((1,),)}),
    "right padding": (lambda case: case.padding_side == "right", {"padding_side": "right"}),
    "a row past 16": (lambda case: len(case.prompts[0]) > 16, {"prompts": (tuple(range(20, 37)),)}),
    "learned positions": (lambda case: case.family == "learned", {"family": "learned"}),
}


@pytest.mark.parametrize("name", SMALLEST)
@pytest.mark.tiers(quick=1, rest=4)
def test_small_is_simple(name: str) -> None:
    condition, wanted = SMALLEST[name]
    unexplained = settings(max_examples=2000, phases=[Phase.generate, Phase.shrink], database=None, deadline=None)
    found = find(cases(), condition, settings=unexplained, random=Random(0))
    rounds = max((len(accepted) for accepted in found.accepts), default=0)
    smallest = dataclasses.replace(ONE, **{"max_new_tokens": max(1, rounds), **wanted})
    assert dataclasses.replace(found, accepts=tuple(filter(None, found.accepts))) == smallest


@pytest.mark.long
def test_drawn_cases_cover_everything() -> None:
    raised: Counter[str] = Counter()
    eqspec = registry.load("eqspec").function

    @given(case=cases())
    @settings(quick, max_examples=600)
    def explore(case: Case) -> None:
        done = run(eqspec, case)
        assert judge(done)
        raised.update(exercised(done))

    explore()
    seldom = {"row_past_64", "row_past_128"}  # one case in a hundred; `test_rare.py` sees them in an audit
    seldom |= {"at_end_of_64", "at_end_of_128", "shares_first_block", "shares_later_block", "weights_changed"}
    trees = {"tree", "different_trees", "off_spine"}  # for decoders that declare them
    ends = {"stops", "stopped", "stop_in_prompt", "to_cancel", "cancelled", "finish_reason", "usage", "logprobs"}
    ends |= {"prompt_logprobs"}
    assert set(raised) | seldom | trees | ends == set(TRANSPARENT.counters)  # `test_completions.py` sees the ends


ROUNDS = st.lists(st.integers(0, 3), max_size=5).map(tuple)


@given(family=st.sampled_from(FAMILIES), accepts=st.tuples(ROUNDS, ROUNDS))
@settings(quick, max_examples=30)
@pytest.mark.rest
def test_the_table_dictates_what_is_accepted(family: str, accepts: tuple[tuple[int, ...], ...]) -> None:
    case = Case(((5, 7, 9), (3,)), max_new_tokens=24, num_draft_tokens=3, accepts=accepts, family=family)
    target, draft = models(case, truth_of(case))
    for prompt, dictated in zip(case.prompts, accepts, strict=True):
        row = list(prompt)
        for wanted in (*dictated, 0):  # a round that the table does not name accepts none
            drafts, true = extended(draft, row, 3), extended(target, row, 4)
            accepted = next((i for i in range(3) if drafts[i] != true[i]), 3)
            assert accepted == wanted
            row += true[: accepted + 1]


def extended(model: HashLM, row: list[int], count: int) -> list[int]:
    """The ``count`` tokens that a model puts after a row, without a cache."""
    ids = list(row)
    for _ in range(count):
        ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[len(row) :]


CONTEXTS = torch.randint(0, 128, (64, 20), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("agreement", [0.0, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("family", FAMILIES)
def test_agreement_is_the_share_of_contexts(family: str, agreement: float) -> None:
    target = HashLM(HashConfig(family=family))
    draft = ScriptedDraft.of(target)
    draft.script(agreement=agreement)
    agrees = draft(CONTEXTS).logits.argmax(-1) == target(CONTEXTS).logits.argmax(-1)
    assert agrees.double().mean() == pytest.approx(agreement, abs=0.04 if 0 < agreement < 1 else 0)


@pytest.mark.parametrize("damage", ["position", "hidden token", "pad in sight", "stale token"])
@pytest.mark.parametrize("family", CLAIMED)
def test_a_draft_with_a_damaged_context_loses_acceptance(family: str, damage: str) -> None:
    target = HashLM(HashConfig(family=family))
    draft, kept, where = ScriptedDraft.of(target), torch.ones_like(CONTEXTS), torch.arange(-1, 19).clamp(0)[None]
    kept[:, 0] = 0
    seen, given, fed = kept.clone(), where.clone(), CONTEXTS.clone()
    if damage == "position":
        given[:, 7] += 1
    elif damage == "hidden token":
        seen[:, 7] = 0
    elif damage == "pad in sight":
        seen[:, 0] = 1
    else:
        fed[:, 7] = (fed[:, 7] + 1) % 128
    wanted = target(CONTEXTS, attention_mask=kept, position_ids=where).logits[:, -1].argmax(-1)
    healthy = draft(CONTEXTS, attention_mask=kept, position_ids=where).logits[:, -1].argmax(-1)
    damaged = draft(fed, attention_mask=seen, position_ids=given).logits[:, -1].argmax(-1)
    assert (healthy == wanted).all()
    assert (damaged == wanted).sum() <= 4
