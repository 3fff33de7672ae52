"""A sample of the engine that serves: its right builds are right, and its faults are caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from served.builds import ENGINES
from served.catalogue import fresh, held, unseen
from served.fault import Fault
from served.faults import FAULTS
from served.score import Said, decoded, drawn, explained
from torch import Tensor
from transformers import cache_utils
from transformers.generation.candidate_generator import AssistedCandidateGenerator

from eqcheck.contract import registry
from eqcheck.contract.decoders import RowOptions
from eqcheck.core.case.engine import EngineCase, EngineRow
from eqcheck.engines.abduction import abduce, tried
from eqcheck.engines.abduction.placements import systematic
from eqcheck.engines.checkpoints.folders import checkpoint
from eqcheck.engines.checkpoints.row_judge import Judge
from eqcheck.engines.engine_outcome import evidence, judged

BY_ID = {fault.id: fault for fault in (*fresh(), *unseen(), *held(), *FAULTS)}


@pytest.mark.parametrize(("build", "kind"), [("paged", "window"), ("ring", "mistral"), ("ring", "delta")])
@pytest.mark.tiers(quick=1, rest=2)
def test_right_builds_are_right(build: str, kind: str) -> None:
    engine = ENGINES[build]()
    engine.open()
    assert not decoded(engine, drawn(2, kind, caching=build == "paged")).failed


@pytest.mark.parametrize(
    "name", ["W01-window-too-wide", "B01-column-before", "S01-state-not-rolled-back", "F06-window-of-step"]
)
@pytest.mark.tiers(quick=3, rest=1)
def test_faults_are_caught(name: str) -> None:
    fault = BY_ID[name]
    engine = fault.broken()()
    engine.open()
    cases = (drawn(number, fault.kinds[0], caching=fault.build == "paged") for number in range(3))
    assert any(decoded(engine, case).failed for case in cases)


@pytest.mark.parametrize("name", ["W05-windowed-layer-full", "W07-freed-before-rollback", "S03-conv-keeps-rejected"])
@pytest.mark.rest
def test_the_component_is_found_from_tokens_alone(name: str) -> None:
    fault = BY_ID[name]
    engine = fault.broken()()
    engine.open()
    outcome = decoded(engine, drawn(0, fault.kinds[0], caching=fault.build == "paged"))
    assert explained(outcome).verdict(fault) == "right"


@pytest.mark.parametrize(
    ("name", "edit"),
    [
        ("N03-window-in-sections", "window-in-sections"),
        ("N24-bonus-twice", "state-bonus-twice"),
        ("F03-unwritten-if-none", "state-empty-if-none"),
        ("F04-first-if-all", "state-of-first-if-all"),
        ("F06-window-of-step", "window-of-step"),
    ],
)
@pytest.mark.tiers(quick=3, rest=2)
def test_the_edit_that_is_the_fault_explains_every_wrong_token(name: str, edit: str) -> None:
    fault = BY_ID[name]
    engine = fault.broken()()
    engine.open()
    found = list[Any]()
    for number in range(2):
        kind = fault.kinds[number % len(fault.kinds)]
        case = evidence(decoded(engine, drawn(number, kind, caching=fault.build == "paged")))
        assert case.first
        found += tried(case, [one for one in systematic(case) if one.edit.id == edit], case.first)
    assert any(one.complete and one.explained for one in found)


@pytest.mark.parametrize(
    ("wider", "edit"),
    [(lambda rejected: (rejected > 0) * 1, "window-width-late"), (lambda rejected: -rejected, "window-by-rejected")],
)
@pytest.mark.parametrize("build", ["ring", "paged"])
def test_a_window_that_is_wrong_after_a_rejection_is_named(build: str, wider: Callable[[int], int], edit: str) -> None:
    rejected: dict[int, int] = {}

    def commit(right: Any, memory: Any, feed: Any, kept: int) -> None:
        rejected[feed.row.number] = len(feed.tokens) - kept
        right(feed, kept)

    def visible(right: Any, memory: Any, feed: Any, layer: int) -> Tensor:
        seen: Tensor = right(feed, layer)
        if not (reach := memory.reach(layer)):
            return seen
        queries, held = memory.queries(feed, layer)[:, None], memory.held(feed, layer)[None]
        inside = queries - held < reach + wider(rejected.get(feed.row.number, 0))
        wrong: Tensor = (held >= 0) & (held <= queries) & inside
        return wrong

    fault = Fault("late", "late", build, ("mistral",), "mask/window", "own", "", {"commit": commit, "visible": visible})
    engine = fault.broken()()
    engine.open()
    found = set()
    for number in range(4):
        rejected.clear()
        outcome = decoded(engine, drawn(number, "mistral", caching=False))
        if outcome.failed and (cause := abduce(evidence(outcome))):
            found.add(cause.search.edit)
    assert edit in found
    assert found <= {"window-width-late", "window-by-rejected"}, "where one token is rejected each time, both are true"


@pytest.mark.rest
def test_states_that_neither_model_takes_back_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """In transformers one method takes back the convolutions of the target and those of the draft."""
    layer = vars(cache_utils).get("LinearAttentionCacheLayerMixin")
    if not hasattr(layer, "crop"):
        pytest.skip("this version has no convolutions that can be taken back")
    right = layer.crop
    case = EngineCase(
        (EngineRow((77, 3, 250, 18), RowOptions(20)), EngineRow((184, 86, 157), RowOptions(14))),
        3,
        checkpoint=checkpoint("hybrid").name,
    )
    found = []
    for crop in (right, lambda self, count: right(self, 0)):
        monkeypatch.setattr(layer, "crop", crop)
        with registry.load("transformers_float32").running() as generate:
            pair = checkpoint("hybrid", "float32")
            outputs = generate(str(pair.target), str(pair.draft), replace(case.request(), dtype="float32"))
        found.append(abduce(evidence(judged(Judge("float32"), case, {"outputs": outputs}))))
    assert found[0] is None
    assert found[1] is not None
    assert (found[1].search.edit, found[1].open) == ("state-keeps-rejected", False)
    assert found[1].search.explained == found[1].search.surprising


@pytest.mark.rest
def test_drafts_of_transformers_are_those_of_a_draft_that_does_not_see_pads(monkeypatch: pytest.MonkeyPatch) -> None:
    """From 5.24 on; before that the draft sees them. Which it is decides where rounds begin."""
    drafted = {}
    propose = AssistedCandidateGenerator.get_candidates

    def proposed(self: Any, tokens: Tensor, **given: Any) -> Any:
        candidates = propose(self, tokens, **given)
        drafted[tokens.shape[1]] = candidates[0][0, tokens.shape[1] :].tolist()
        return candidates

    monkeypatch.setattr(AssistedCandidateGenerator, "get_candidates", proposed)
    row = EngineRow((18, 0, 74, 240, 191), RowOptions(12, repetition_penalty=1.7))
    case, pair = EngineCase((row,), 3, checkpoint=checkpoint("full").name), checkpoint("full", "float32")
    with registry.load("transformers_float32").running() as generate:
        outputs = generate(str(pair.target), str(pair.draft), replace(case.request(), dtype="float32"))
    outcome = judged(Judge("float32"), case, {"outputs": outputs})
    assert not outcome.failed
    schedules = evidence(outcome).schedules_with_options
    names = ("asked", "asked, blind to pads")
    seen, blind = ({turn.start: [*turn.drafts] for (turn,) in schedules[name]} for name in names)
    assert seen != blind
    assert drafted in (seen, blind)


def test_only_the_component_counts() -> None:
    fault = BY_ID["S01-state-not-rolled-back"]
    fingerprints = fault.fingerprint, "cache/missing-entry", "mask/window"
    said = (*map(Said, fingerprints), Said("cache/any", open=True), Said())
    assert [one.verdict(fault) for one in said] == ["right", "right", "false", "open", "none"]


def test_faults_have_ids_of_their_own_and_steps_that_exist() -> None:
    assert len(BY_ID) == len(fresh()) + len(unseen()) + len(held()) + len(FAULTS)
    for fault in BY_ID.values():
        fault.broken()  # raises where a step has no name in its build


def test_a_third_of_the_mechanisms_is_held_out_and_reported_ones_are_replanted() -> None:
    seen, kept, new = ({fault.mechanism for fault in faults} for faults in (FAULTS, held(), unseen()))
    assert not seen & kept
    assert not new & (seen | kept)
    reported = {fault.mechanism for fault in fresh()}
    assert len(reported) == len(fresh())
    assert not reported & (seen | kept | new)
    assert all(fault.thread.startswith("https://") for fault in fresh())
    assert 3 * len(new) >= len(seen | kept | new)
    assert 2 * len(kept) >= len(seen)
    assert len(BY_ID) >= 40
    threads = [fault.thread.partition(".com/")[2] for fault in BY_ID.values()]
    named = [
        *(f"vllm-project/vllm/{thread}" for thread in ("issues/53051", "pull/52942", "issues/43559", "issues/39273")),
        *("sgl-project/sglang/pull/34043", "ggml-org/llama.cpp/pull/20075", "ml-explore/mlx-lm/issues/1423"),
    ]
    assert all(thread in threads for thread in named)
    assert sum(thread in named for thread in threads) >= 10
