"""Hidden states say what they are; a head given what is due proposes as scripted; wrong inputs are named, counted."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import DynamicCache

from eqcheck.contract.errors import Unsupported
from eqcheck.contract.registry import load
from eqcheck.core.case.record import Case
from eqcheck.core.result.outcome import Loss, LossesOf
from eqcheck.transparent.attribution.lost_drafts import all_losses, all_warnings, head_losses
from eqcheck.transparent.coverage import exercised
from eqcheck.transparent.decoding import models, run, truth_of
from eqcheck.transparent.drafting import ScriptedHead
from eqcheck.transparent.hashlm import hashing
from eqcheck.transparent.hashlm.hashing import LAYERS, States, states_in
from eqcheck.transparent.hashlm.parts import numbers
from eqcheck.transparent.hashlm.trace import TARGET, Trace
from eqcheck.transparent.oracle import judge
from eqcheck.transparent.search import Source

heads = importlib.import_module("eqcheck.reference_impls.heads")
reading = importlib.import_module("eqcheck.reference_impls.drafters.reading")
serving = importlib.import_module("eqcheck.reference_impls.serving")

DECODER = load("heads")
SHAPES = ("column", "accepted", "pairs")
CASE = Case(prompts=((3, 1, 4, 1), (5, 9)), max_new_tokens=8, num_draft_tokens=3, agreement=1.0)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def at(states: States, *place: int) -> dict[str, int]:
    return {name: int(field[place]) for name, field in states._asdict().items()}


# What hidden states say of themselves:


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_hidden_states_survive_every_float(dtype: torch.dtype) -> None:
    target, _ = models(CASE, truth_of(CASE), trace := Trace())
    ids = torch.tensor([[3, 1, 4, 1], [5, 9, 2, 6]])
    target(ids)
    given = target(ids, output_hidden_states=True).hidden_states
    for layer, states in enumerate(given):
        read = states_in(numbers(states.to(dtype)))
        assert read.intact.all()
        assert (read.layer == layer).all()
        assert (read.model == TARGET).all()
    assert (read.digests == trace.calls[1].digests).all()
    assert (at(read, 1, 2)["call"], at(read, 1, 2)["row"], at(read, 1, 2)["column"]) == (2, 1, 2)


@pytest.mark.parametrize(
    "broken",
    [
        lambda one, other: (one + other) / 2,
        lambda one, other: one * 2,
        lambda one, other: -one,
        lambda one, other: one * 0,
        lambda one, other: one * float("nan"),
        lambda one, other: one.roll(1, -1),
        lambda one, other: torch.cat([one[:6], other[6:]]),
        lambda one, other: torch.cat([one[:20], torch.ones_like(one[20:])]),
    ],
)
def test_what_is_no_hidden_state_is_seen(broken: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
    target, _ = models(CASE, truth_of(CASE))
    one, other = target(torch.tensor([[3, 1]]), output_hidden_states=True).hidden_states[-1][0]
    assert states_in(numbers(torch.stack([one, other]))).intact.all()
    assert not states_in(numbers(broken(one, other)[None])).intact.any()


# The scripted head:


def asked(case: Case, shape: str) -> tuple[Any, ScriptedHead, torch.Tensor, torch.Tensor, list[int]]:
    """A head with the states of its row's prompt, the tokens behind each, and the row's new tokens."""
    truth = truth_of(case)
    target, draft = models(case, truth)
    states = target(torch.tensor([case.prompts[0]]), output_hidden_states=True).hidden_states[-1]
    new = list(truth.uncut[0])
    return target, draft.head, states, torch.tensor([[*case.prompts[0][1:], new[0]]]), new


def proposed(head: ScriptedHead, shape: str, states: torch.Tensor, following: torch.Tensor, k: int) -> list[int]:
    """The first row's proposals behind its first new token."""
    if shape == "column":
        return [int(token) for token in head.column(states[:, -1], k)[0].argmax(-1)]
    found = []
    if shape == "accepted":
        state, token = head.accepted(hidden_states=states).last_hidden_state[:, -1], following[:, -1]
        for place in range(k):
            logits, state = head.step(state, token, place)
            token = logits.argmax(-1)
            found.append(int(token))
        return found
    cache = DynamicCache()
    for _ in range(k):
        output = head.pairs(input_ids=following, hidden_states=states, past_key_values=cache)
        following, states = output.logits[:, -1:].argmax(-1), output.hidden_states[-1][:, -1:]
        found.append(int(following))
    return found


@pytest.mark.parametrize("shape", SHAPES)
def test_a_head_that_is_given_what_is_due_proposes_the_truth(shape: str) -> None:
    _, head, states, following, new = asked(CASE, shape)
    assert proposed(head, shape, states.bfloat16().double(), following, 3) == new[1:4]
    assert proposed(head, shape, states.flip(1), following, 3) != new[1:4]
    assert proposed(head, shape, states * 2, following, 3) != new[1:4]


@pytest.mark.parametrize("shape", ["accepted", "pairs"])
def test_a_wrong_token_costs_the_proposals(shape: str) -> None:
    _, head, states, following, new = asked(CASE, shape)
    assert proposed(head, shape, states, following + 1, 3) != new[1:4]


def test_steps_go_on_from_a_state_of_the_target_where_nothing_is_attended_to() -> None:
    """As MLPSpeculator's; a head that attends is due its own state."""
    for attends, right in ((False, True), (True, False)):
        _, head, states, following, new = asked(CASE, "column")
        if attends:
            head.accepted(hidden_states=states)
        logits, state = head.step(states[:, -1], following[:, -1])
        assert (int(logits[0].argmax()) == new[1]) == right
        assert (int(head.step(state, torch.tensor(new[1:2]))[0].argmax()) == new[2]) == right


@pytest.mark.parametrize("shape", SHAPES)
def test_a_head_is_wrong_where_the_script_says_so(shape: str) -> None:
    case = Case(prompts=((3, 1, 4, 1),), max_new_tokens=8, num_draft_tokens=3, accepts=((0, 2),))
    _, head, states, following, new = asked(case, shape)
    found = proposed(head, shape, states, following, 3)
    assert found[:2] == new[1:3]
    assert found[2] != new[3]


def test_rows_that_begin_alike_go_on_differently() -> None:
    case = Case(prompts=((3, 1, 4), (3,)), max_new_tokens=6, num_draft_tokens=2, agreement=1.0)
    done = run(DECODER.function, case)
    assert judge(done)
    assert set(head_losses(done)) == {Loss("rounds", LossesOf.HEAD), Loss("allowed", LossesOf.HEAD)}


@pytest.mark.parametrize(
    ("wrong", "error", "said"),
    [
        (lambda head: head.column(torch.zeros(2, 7), 3), ValueError, r"expected \[rows, 80\], got \[2, 7\]"),
        (lambda head: head.column(torch.zeros(2, 1, 80), 3), ValueError, r"expected \[rows, 80\], got \[2, 1, 80\]"),
        (lambda head: head.column(torch.zeros(2, 80).long(), 3), TypeError, "floating point numbers, got torch.int64"),
        (lambda head: head.column([[0.0] * 80], 3), TypeError, "got list"),
        (lambda head: head.accepted(hidden_states=torch.zeros(2, 80)), ValueError, r"expected \[rows, block, 80\]"),
        (lambda head: head.pairs(hidden_states=torch.zeros(2, 3, 80)), ValueError, r"input_ids: expected \[2, 3\]"),
        (lambda head: head.step(torch.zeros(2, 80), torch.zeros(3).long()), ValueError, r"token: expected \[2\]"),
        (lambda head: head.column(torch.zeros(2, 80), 0), ValueError, "num_draft_tokens: expected 1 or more, got 0"),
        (
            lambda head: head.step(torch.zeros(1, 80), torch.tensor([128])),
            ValueError,
            r"token: expected .* 0..127, got",
        ),
        (
            lambda head: head.step(torch.zeros(1, 80), torch.zeros(1)),
            TypeError,
            "token: expected a tensor of token ids",
        ),
        (
            lambda head: head.pairs(hidden_states=torch.zeros(1, 1, 80), input_ids=torch.tensor([[-1]])),
            ValueError,
            "input_ids: expected .* got -1..-1",
        ),
    ],
)
def test_bad_input_of_a_head(wrong: Callable[[Any], Any], error: type[Exception], said: str) -> None:
    head = models(CASE, truth_of(CASE))[1].head
    with pytest.raises(error, match=said):
        wrong(head)


# The engine:


@lru_cache
def cases(count: int = 60) -> list[Case]:
    return Source(3, DECODER.families, DECODER.padding_sides, DECODER.cache_states).chunk(0, count)


@pytest.mark.rest
def test_right_heads_lose_nothing() -> None:
    total: Counter[Loss] = Counter()
    met = set()
    for case in cases():
        done = run(DECODER.function, case)
        assert judge(done), done.failure_text
        assert "draft_called" in exercised(done) or not done.trace.heads
        met |= {call.shape for call in done.trace.heads}
        total += all_losses(done)
    assert set(total) == {Loss("rounds", LossesOf.HEAD), Loss("allowed", LossesOf.HEAD)}
    assert total[Loss("allowed", LossesOf.HEAD)] > 100
    assert all_warnings(total) == []
    assert met == {"column", "accepted", "step", "pairs"}


def without_head(target: Any, draft: Any, request: Any) -> Any:
    return DECODER.function(target, SimpleNamespace(), request)


def test_a_draft_without_a_head_is_declined() -> None:
    assert "scripted head" in run(without_head, CASE).declined


def test_what_the_engine_refuses_before_it_decodes() -> None:
    target, draft = models(CASE, truth_of(CASE), trace := Trace())
    for change, said in (
        ({"vocab_size": 500}, "vocab_size of 128, got one for 500"),
        ({"hidden_size": 64}, "hidden_size of 80, got one for 64"),
    ):
        head = SimpleNamespace(**{"vocab_size": 128, "hidden_size": 80, "shape": "column", **change})
        with pytest.raises(Unsupported, match=said):
            heads.Heads(target, head)
    with pytest.raises(Unsupported, match="expected one of column, accepted, pairs, got 'tree'"):
        heads.Heads(target, draft.head, shape="tree")
    engine = heads.Heads(target, draft.head, shape="column")
    sampled = serving.Prompt(
        [3], sampling=importlib.import_module("eqcheck.contract.decoders").RowOptions(4, temperature=1.0)
    )
    with pytest.raises(serving.PromptError, match="rows with heads are greedy"):
        engine.generate([sampled])
    assert trace.calls == []


# What is named, by one change of the reference engine:


def lost_with(patch: pytest.MonkeyPatch, change: Callable[[pytest.MonkeyPatch], None]) -> list[str]:
    change(patch)
    total: Counter[Loss] = Counter()
    for case in cases(40):
        done = run(DECODER.function, case)
        assert judge(done), "a head costs speed only"
        total += all_losses(done)
    return all_warnings(total)


def fed(wrong: Callable[[Any, torch.Tensor], torch.Tensor]) -> Callable[[pytest.MonkeyPatch], None]:
    """Hand other states than the target's to the head."""

    def change(patch: pytest.MonkeyPatch) -> None:
        right = heads.Heads.feed

        def feed(self: Any, ids: torch.Tensor, starts: Any, first: int = 0) -> Any:
            answers, states = right(self, ids, starts, first)
            return answers, wrong(self, states)

        patch.setattr(heads.Heads, "feed", feed)

    return change


def before_last(patch: pytest.MonkeyPatch) -> None:
    def feed(self: Any, ids: torch.Tensor, starts: Any, first: int = 0) -> Any:
        output = self.verifier.run(starts, first, input_ids=ids, output_hidden_states=True)
        return output.logits.argmax(-1), output.hidden_states[-2]

    patch.setattr(heads.Heads, "feed", feed)


def call_before(self: Any, states: torch.Tensor) -> torch.Tensor:
    before = getattr(self, "before", states)
    self.before = states
    return before if before.shape == states.shape else states


def own_tokens(patch: pytest.MonkeyPatch) -> None:
    right = reading.Pairs.observe

    def observe(self: Any, hidden: torch.Tensor, following: torch.Tensor, *more: Any) -> None:
        right(self, hidden, following.roll(1, 1), *more)

    patch.setattr(reading.Pairs, "observe", observe)


def not_written_again(patch: pytest.MonkeyPatch) -> None:
    """Of the newly accepted pairs only the newest is written."""
    right = reading.Pairs.observe

    def observe(self: Any, hidden: Any, following: Any, starts: Any, counts: Any, first: int = 0) -> None:
        if first == 0 and len(self.newest) == len(counts):
            rows = torch.arange(len(counts))
            last = torch.tensor(counts) - 1
            hidden, following = hidden[rows, last][:, None], following[rows, last][:, None]
            starts = [start + count - 1 for start, count in zip(starts, counts, strict=True)]
            counts = [1] * len(counts)
        right(self, hidden, following, starts, counts, first)

    patch.setattr(reading.Pairs, "observe", observe)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (fed(lambda self, states: states / 2), "draft/torn-hidden"),
        (fed(lambda self, states: states * 0), "draft/torn-hidden"),
        (before_last, "draft/wrong-layer-hidden"),
        (fed(lambda self, states: states.roll(1, 0)), "draft/wrong-row-hidden"),
        (fed(call_before), "draft/stale-hidden"),
        (fed(lambda self, states: states[:, -1:].expand_as(states)), "draft/wrong-column-hidden"),
        (fed(lambda self, states: states.roll(1, 1)), "draft/wrong-column-hidden"),
        (own_tokens, "draft/token-shift"),
        (not_written_again, "draft/own-hidden"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.tiers(quick=1, rest=2)
def test_a_wrong_input_is_named(
    change: Callable[[pytest.MonkeyPatch], None], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings = lost_with(monkeypatch, change)
    assert [warning.partition(":")[0] for warning in warnings][:1] == [name], warnings


def test_a_wrong_state_counts_once_a_round() -> None:
    """Counted by hand: with states halved, nothing is accepted where all could be."""

    def halved(target: Any, draft: Any, request: Any) -> Any:
        class Halved(heads.Heads):  # type: ignore[misc, name-defined]
            def feed(self, *given: Any) -> Any:
                answers, states = super().feed(*given)
                return answers, states / 2

        return serving.decode(Halved, target, draft.head, request, batch_size=1, shape="column")

    case = Case(prompts=((5, 7, 11),), max_new_tokens=8, num_draft_tokens=3, agreement=1.0)
    losses = head_losses(run(halved, case))
    # Tokens 1 to 7 come one by one: room for 3, 3, 3, 3, 2 and 1 draft tokens, and then none.
    assert losses == {
        Loss("rounds", LossesOf.HEAD): 6,
        Loss("allowed", LossesOf.HEAD): 15,
        Loss("torn", LossesOf.HEAD): 15,
        Loss("torn", LossesOf.HIT): 6,
    }


def test_digests_of_other_layers_and_models_are_other_words() -> None:
    digests = np.array([[7]], np.uint64)
    own = states_in(hashing.hidden(2, LAYERS, digests, 1, 80))
    assert own.intact.all()
    assert own.model[0, 0] == 2
