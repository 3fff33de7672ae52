"""Families whose two layers do not see the same: a window or a convolution below a layer that sees everything."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from eqcheck.catalogue import BUILDS, FAULTS, Fault
from eqcheck.catalogue.engines.engine import additive
from eqcheck.contract.decoders import CACHE_STATES, CLAIMED, Request
from eqcheck.contract.family import FAMILIES, FAMILY, HYBRID, KERNEL, UNIFORM, WINDOW, asked_by, claimed_by
from eqcheck.core.case.record import Case
from eqcheck.core.explanation.records import Explanation
from eqcheck.core.explanation.text import render
from eqcheck.transparent.attribution.repair import repair
from eqcheck.transparent.decoding import run
from eqcheck.transparent.hashlm import hashing
from eqcheck.transparent.hashlm.model import HashConfig, HashLM
from eqcheck.transparent.oracle import judge
from eqcheck.transparent.search import Source

VOCAB = 64
TEXT = torch.tensor([[7, 3, 50, 12, 9, 33, 21, 5, 18, 40, 2, 61]])
LENGTH = TEXT.shape[1]
NEXT = torch.tensor([[11]])
# Of the right engines, those that are right on each family, too: with a mask or a state that serves both layers.
BOTH = "one_row uncached expanded restored replayed rerun checkpointed"
RIGHT = {"hybrid-window": f"{BOTH} rolled_back per_row staged windowed", "convolution": BOTH}


def model(family: str) -> HashLM:
    return HashLM(HashConfig(vocab_size=VOCAB, seed=1, family=family))


def logits(target: HashLM, cache: Any = None, mask: Any = None) -> torch.Tensor:
    """Those of the token behind the text, which a cache or the call itself holds."""
    ids = TEXT if cache is None else NEXT
    where = torch.arange(LENGTH, LENGTH + 1)[None] if cache is not None else None
    how = {"use_cache": False} if cache is None else {"past_key_values": cache}
    result: torch.Tensor = target(ids, attention_mask=mask, position_ids=where, **how).logits[0, -1]
    return result


def masks(**hidden: int) -> dict[str, torch.Tensor]:
    """The right masks of a call with the whole text, but for one bit of the last query in each type of layer named."""
    at = torch.arange(LENGTH)
    seen = at <= at[:, None]
    given = {"sliding_attention": seen & (at > at[:, None] - WINDOW), "full_attention": seen}
    for kind, slot in hidden.items():
        given[kind] = given[kind].clone()
        given[kind][-1, slot] ^= True
    return {kind: mask[None, None] for kind, mask in given.items()}


def filled(target: HashLM, text: torch.Tensor = TEXT) -> DynamicCache:
    cache = DynamicCache(config=target.config)
    target(text, past_key_values=cache)
    return cache


def unheard_bits() -> list[tuple[str, int]]:
    """The bits of the mask of each layer that change nothing when they are turned."""
    target = model("hybrid-window")
    right = logits(target, mask=masks())
    places = [(kind, slot) for kind in target.config.layer_types for slot in range(LENGTH - 1)]
    return [place for place in places if torch.equal(logits(target, mask=masks(**dict([place]))), right)]


def unheard_states(family: str = "convolution") -> list[str]:
    """The states of one layer, of other places than the rest, that change nothing."""
    target, other = model(family), TEXT.roll(1, 1)
    right = logits(target, filled(target))
    rejected = torch.cat([TEXT, torch.tensor([[60, 61]])], dim=1)
    places = {
        "kept rejected": rejected,
        "went back": TEXT[:, :-1],
        "of another row": other,
        "of its beginning": TEXT[:, :1],
    }
    unheard = []
    for layer in range(hashing.LAYERS):
        for name, text in places.items():
            cache = filled(target)
            cache.layers[layer] = filled(target, text).layers[layer]
            if torch.equal(logits(target, cache), right):
                unheard.append(f"{name}, layer {layer}")
    return unheard


def deaf(layer: int, hears: int) -> Any:
    """The hash with a layer that is deaf to what lies further back than the last slots."""
    right = hashing.attend

    def attend(family: Any, number: int, *given: Any, **more: Any) -> Any:
        contents, places, visible, *rest = given
        if number == layer:
            visible = visible.copy()
            visible[..., : max(0, visible.shape[2] - hears)] = False
        return right(family, number, contents, places, visible, *rest, **more)

    return attend


def test_each_layer_hears_each_bit_of_its_mask() -> None:
    assert unheard_bits() == []


def test_each_layer_hears_its_state() -> None:
    assert unheard_states() == []


@pytest.mark.parametrize(("layer", "hears"), [(0, 1), (1, 1), (1, WINDOW)])
def test_a_layer_that_is_deaf_to_its_mask_is_noticed(layer: int, hears: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "attend", deaf(layer, hears))
    assert {kind for kind, _ in unheard_bits()} == {("sliding_attention", "full_attention")[layer]}


@pytest.mark.parametrize(("layer", "hears"), [(0, 1), (1, 1)])
def test_a_layer_that_is_deaf_to_its_state_is_noticed(layer: int, hears: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "attend", deaf(layer, hears))
    assert f"kept rejected, layer {layer}" in unheard_states()


def test_a_single_mask_serves_both_layers() -> None:
    target = model("hybrid-window")
    right = logits(target, mask=masks())
    assert torch.equal(logits(target), right)
    for one in masks().values():
        assert not torch.equal(logits(target, mask=one), right)
    added = {kind: additive(mask[:, 0], target) for kind, mask in masks().items()}
    assert torch.equal(logits(target, mask=added), right)


def test_masks_that_transformers_makes_are_taken() -> None:
    """It leaves out a mask that its attention does not need, and gives a dict to models with one type of layer too."""
    target = model("hybrid-window")
    assert torch.equal(logits(target, mask={**masks(), "full_attention": None}), logits(target))
    assert torch.equal(logits(target, mask=dict.fromkeys(masks())), logits(target))
    windowed = model("window")
    assert torch.equal(logits(windowed, mask={"sliding_attention": masks()["sliding_attention"]}), logits(windowed))


@pytest.mark.parametrize(
    ("family", "given", "expected"),
    [
        ("hybrid-window", {"full_attention": None}, "4-D masks, or None, for sliding_attention and full"),
        (
            "hybrid-window",
            {"full_attention": TEXT, "sliding_attention": TEXT},
            "4-D masks, or None, for sliding_attention",
        ),
        ("rotary", masks(), "one mask for all layers"),
        ("window", {"full_attention": None}, "4-D masks, or None, for sliding_attention, got"),
        ("convolution", masks(), "one mask for all layers"),
    ],
)
def test_other_dicts_of_masks_are_refused(family: str, given: Any, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        model(family)(TEXT, attention_mask=given)


def test_a_convolution_keeps_as_many_inputs_as_it_needs() -> None:
    lower, upper = filled(model("convolution")).layers
    assert (lower.absorbed.shape[3], upper.absorbed.shape[3]) == (KERNEL - 1, LENGTH)
    assert lower.get_seq_length() == upper.get_seq_length() == LENGTH
    windowed = filled(model("hybrid-window")).layers
    assert [layer.keys.shape[2] for layer in windowed] == [WINDOW - 1, LENGTH]


@pytest.mark.parametrize("family", HYBRID)
@pytest.mark.parametrize("name", BUILDS)
@pytest.mark.tiers(quick=3, rest=4)
def test_engines_are_right_where_this_says_so(family: str, name: str) -> None:
    build = replace(BUILDS[name], families=(family,))
    decoder = build.decoder(name)
    source = Source(11, decoder.families, decoder.padding_sides, decoder.cache_states)
    wrong = [case for case in source.chunk(0, 12) if not judge(run(decoder, case))]
    assert (wrong == []) == (name in RIGHT[family].split())


def test_a_decoder_is_asked_for_them_only_where_it_claims_them() -> None:
    assert not set(HYBRID) & set(CLAIMED)
    assert set(UNIFORM) | set(HYBRID) == set(FAMILIES)
    for family in HYBRID:
        assert asked_by(family) == (family,)
        assert claimed_by((family,), family)
        assert not claimed_by(UNIFORM, family)
        assert not claimed_by((family,), "rotary@gemma2")  # a real model, that is asked by its own claims


def test_draws_of_other_families_are_those_of_before() -> None:
    """What is drawn depends on the families named, and on no list of those there are."""
    cases = Source(3, ("rotary", "window"), ("left",), tuple(CACHE_STATES)).chunk(0, 40)
    assert [case.id for case in cases[:2]] == ["707b8f8ebe3a", "ce5c4e936c20"]
    assert {case.family for case in cases if case.cache_state == "wrapped"} == {"window"}
    cases = Source(3, HYBRID, ("left",), ("wrapped",)).chunk(0, 40)
    assert {case.family for case in cases if case.cache_state == "wrapped"} == {"hybrid-window"}


def planted(name: str) -> Fault:
    return next(fault for fault in FAULTS if fault.id == name)


def named(fault: Fault, cases: int) -> tuple[Counter[str], list[Explanation]]:
    decoder = fault.decoder()
    source = Source(2, fault.families, decoder.padding_sides, fault.cache_states)
    explanations = [judge(run(decoder, case)).explanation for case in source.chunk(0, cases)]
    wrong = [one for one in explanations if one is not None]
    return Counter(one.fingerprint for one in wrong), wrong


@pytest.mark.parametrize(
    ("name", "said", "slots"),
    [
        ("K60-convolution-keeps-rejected.rerun", "convolution-alone", "rejected draft"),
        ("K70-full-window-not-trimmed.windowed", "window-alone", "rejected draft"),
        ("M50-verified-without-window.windowed", "window-alone", "position 0"),
    ],
)
@pytest.mark.tiers(quick=0, rest=2)
def test_the_layer_at_fault_is_said_and_shown(name: str, said: str, slots: str) -> None:
    fault = planted(name)
    kinds, explanations = named(fault, 30)
    assert set(kinds) == {fault.fingerprint}
    for one in explanations:
        assert one.facts["statement"] == said
        assert one.query is not None
        low = FAMILY[fault.families[0]].lower.first_seen(one.query.logical_position)
        assert one.query.sees_from == low
        assert any(slot.visible and not slot.expected_visible for slot in one.slots)
    assert any(slots in slot.holds for one in explanations for slot in one.slots)


def test_what_a_draft_pushes_out_of_a_convolution_is_not_told_as_given_up() -> None:
    """Position 14 is not among the last four inputs, because the rejected draft is: the row's own cache has it."""

    def decode(target: Any, draft: Any, request: Request) -> list[list[int]]:
        (prompt,), new, state = request.prompts, list[int](), DynamicCache()
        block, held = list(prompt), len(prompt) - 1
        while len(new) < request.max_new_tokens:
            draft(input_ids=torch.tensor([prompt + new]))
            fed = [*block, 1]
            picks = target(input_ids=torch.tensor([fed]), past_key_values=state).logits[0].argmax(-1).tolist()[held:]
            new, held = new + picks[: 1 + (picks[0] == 1)], 0
            block = new[-1:]
        return [new[: request.max_new_tokens]]

    case = Case(prompts=(tuple(range(2, 19)),), max_new_tokens=3, num_draft_tokens=1, family="convolution")
    e = judge(run(decode, case)).explanation
    assert e is not None
    assert e.fingerprint == "cache/stale-entry"
    assert "was the last to read" not in render(e)


@pytest.mark.rest
def test_of_both_layers_no_layer_is_said_to_be_right() -> None:
    for name in ("K61-states-keep-rejected.rerun", "K62-states-of-before-the-round.rerun"):
        kinds, explanations = named(planted(name), 30)
        assert set(kinds) == {planted(name).fingerprint}
        assert {one.facts.get("statement") for one in explanations} <= {None, "let-go"}


@pytest.mark.rest
def test_the_full_layer_alone_may_be_at_fault() -> None:
    """A window on the layer that has none is a wrong window; what lies in the window hides nothing."""
    windowed = BUILDS["windowed"]

    class Narrow(windowed.engine):  # type: ignore[name-defined, misc]
        def sees(self, kind: str, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
            seen: torch.Tensor = super().sees("sliding_attention", queries, keys)
            return seen

    decoder = replace(windowed, engine=Narrow).decoder("narrow")
    source = Source(2, decoder.families, ("left",), ("empty",))
    explanations = [judge(run(decoder, case)).explanation for case in source.chunk(0, 40)]
    assert {one.fingerprint for one in explanations if one} == {"mask/window"}


def test_a_state_of_one_layer_is_repaired_with_the_cache() -> None:
    fault = planted("K63-convolution-one-behind.rerun")
    decoder = fault.decoder()
    for case in Source(2, fault.families, ("left",), ("empty",)).chunk(0, 20):
        done = run(decoder, case)
        explanation = judge(done).explanation
        if explanation is not None:
            opinion = repair(decoder, done, explanation)
            assert opinion.restores == (("cache",),)
            return
    raise AssertionError("not caught")
