"""Decoders on real models: what is read there is what HashLM shows, and the library is left as it was."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from transformers import AttentionInterface, Cache, DynamicCache

import eqcheck
from eqcheck.catalogue import BUILDS, FAULTS
from eqcheck.contract.architectures import ARCHITECTURES, family_of
from eqcheck.contract.decoders import Decoder
from eqcheck.contract.errors import CaseError, Unsupported, UsageError
from eqcheck.contract.family import FAMILY
from eqcheck.core.case.record import Case
from eqcheck.core.result.outcome import Loss
from eqcheck.transparent.attribution.lost_drafts import draft_warnings
from eqcheck.transparent.coverage import try_case
from eqcheck.transparent.decoding import run
from eqcheck.transparent.real import shadow
from eqcheck.transparent.real.models import VOCAB_SIZE, margins, model_of
from eqcheck.transparent.real.scores import noise
from eqcheck.transparent.real.tap import TapFailed
from eqcheck.transparent.real.targets import check, families_of
from eqcheck.transparent.search import Source
from eqcheck.transparent.truth.ties import FACTOR, tolerance

RAGGED = Case(prompts=((5, 7, 9), (1, 2), (3,)), max_new_tokens=6, num_draft_tokens=2, accepts=((1, 2), (0,), (2, 0)))


def outcomes(decoder: Decoder, family: str, count: int, state: str = "empty") -> list[Any]:
    source = Source(3, (family,), decoder.padding_sides, (state,), decoder.requires)
    with decoder.running() as generate:
        return [try_case(generate, case, None) for case in source.chunk(0, count)]


def there(name: str) -> bool:
    """Whether this transformers can compute the architecture in float64; the one that cannot is known, and refused."""
    known = {"deepseek_v3": "cannot be built in float64", "mamba2": "no states are found"}
    if name in known and transformers.__version__ < "5":
        with pytest.raises(UsageError, match=known[name]):
            check(family_of(name))
        return False
    return True


THERE = [name for name in ARCHITECTURES if there(name)]
WITH_SLOTS = [name for name in THERE if name != "mamba2"]


@pytest.mark.parametrize("name", THERE)
@pytest.mark.tiers(quick=9, rest=4)
def test_models_answer_as_if_they_had_learned_something(name: str) -> None:
    tokens, lead = margins(name, contexts=128)
    assert tokens > 48
    assert lead > 1e-6  # rounding in float64 is 1e-12


@pytest.mark.parametrize("name", WITH_SLOTS)
@pytest.mark.tiers(quick=1, rest=1)
def test_right_decoders_are_right_and_published_faults_are_named(name: str) -> None:
    family = family_of(name)
    for right in ("ragged", "transformers"):
        found = outcomes(eqcheck.load(right), family, 1)
        assert {one.status for one in found} <= {"equivalent", "skipped"}
        assert not any(one.luck[0] for one in found)
    for wrong, names in (
        ("dsd", {"mask/pad-visible", "bookkeeping/past-eos", "bookkeeping/over-accept"}),
        ("hf_pr", {"bookkeeping/premature-stop"}),
    ):
        found = outcomes(eqcheck.load(wrong), family, 2)
        assert {one.fingerprint for one in found} - {None} <= names
    assert any(one.fingerprint for one in found)


@pytest.mark.parametrize("family", families_of("llama@float32,llama@bfloat16,gpt2@bfloat16"))
@pytest.mark.tiers(quick=1, rest=2)
def test_rounding_is_told_from_faults(family: str) -> None:
    assert {one.status for one in outcomes(eqcheck.load("eqspec"), family, 3)} == {"equivalent"}
    found = {one.fingerprint for one in outcomes(eqcheck.load("bsp"), family, 4)}
    assert "position/query-position" in found
    assert "unattributed/unattributed" not in found


@pytest.mark.skipif("mamba2" not in THERE, reason="transformers 4 keeps the states elsewhere, and is refused")
@pytest.mark.parametrize(
    ("build", "fault"),
    [
        ("restored", None),
        ("expanded", None),
        ("uncached", None),
        ("restored", "K8-copy-shares-memory.restored"),
        ("expanded", "M11-pads-accumulate.expanded"),
    ],
)
@pytest.mark.tiers(quick=0, rest=2)
def test_recurrent_states_are_read_by_what_they_have_taken_in(build: str, fault: str | None) -> None:
    planted = next((one for one in FAULTS if one.id == fault), None)
    found = outcomes(planted.decoder() if planted else BUILDS[build].decoder(build), family_of("mamba2"), 6)
    fingerprints = {one.fingerprint for one in found} - {None}
    assert fingerprints == ({planted.fingerprint} if planted else set())
    assert planted or not any(one.luck[0] for one in found)


@pytest.mark.skipif("mamba2" not in THERE, reason="transformers 4 keeps the states elsewhere, and is refused")
def test_layers_of_a_recurrent_model_that_are_called_by_themselves_are_not_read() -> None:
    def generate(target: Any, draft: Any, request: Any) -> list[list[int]]:
        states = target.get_input_embeddings()(torch.tensor([request.prompts[0]]))
        for layer in target.base_model.layers:
            states = layer(states)
        logits = target.lm_head(target.base_model.norm_f(states))
        return [[int(logits[0, -1].argmax())]]

    done = run(generate, Case(prompts=((5, 7, 9),), max_new_tokens=1, family="recurrent@mamba2"))
    assert "called by themselves" in done.declined


class Rounding(DynamicCache):  # type: ignore[misc]
    """Keeps what is old in 8 bits."""

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer: int, *args: Any, **more: Any) -> Any:
        super().update(keys, values, layer, *args, **more)
        held, new = self.layers[layer], keys.shape[2]
        held.keys, held.values = (
            torch.cat([eight_bits(one[:, :, :-new]), one[:, :, -new:]], dim=2) for one in (held.keys, held.values)
        )
        return held.keys, held.values


def eight_bits(tensor: torch.Tensor) -> torch.Tensor:
    step = tensor.abs().amax(-1, keepdim=True) / 127
    return torch.where(step > 0, (tensor / step).round() * step, tensor)


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.tiers(quick=0, rest=1)
def test_what_else_is_wrong_is_read_in_a_cache_that_rounds(shift: int) -> None:
    def generate(target: Any, draft: Any, request: Any) -> list[list[int]]:
        rows = []
        for prompt in request.prompts:
            cache, row, fed = Rounding(), list(prompt), 0
            while len(row) < len(prompt) + request.max_new_tokens:
                positions = torch.arange(fed, len(row))[None] + (shift if fed else 0)
                ids = torch.tensor([row[fed:]])
                logits = target(input_ids=ids, position_ids=positions, past_key_values=cache).logits
                fed = len(row)
                row.append(int(logits[0, -1].argmax()))
            rows.append(row[len(prompt) :])
        return rows

    cases = [
        Case(prompts=((7, n, 9, 2), (n, 3, 5)), max_new_tokens=6, family="rotary@llama", seed=n) for n in range(12)
    ]
    found = [one for case in cases if (one := try_case(generate, case, None, opinion=True)).status == "violation"]
    named = {str(one.explanation.repair): one.fingerprint for one in found if one.explanation}
    if shift:
        assert named == {
            "with the correct position ids in every target call, the output is correct": "position/query-position"
        }
    else:
        assert named == {
            "with the correct cache entries in every target call, the output is correct": "cache/torn-entry"
        }


@pytest.mark.rest
def test_rounding_changes_tokens_in_bfloat16() -> None:
    found = outcomes(eqcheck.load("eqspec"), family_of("llama", "bfloat16"), 10)
    assert sum(len(one.ties) for one in found) > 0
    assert {one.status for one in found} == {"equivalent"}


@pytest.mark.parametrize("component", ["position", "mask", "cache", "bookkeeping"])
@pytest.mark.parametrize("target", ["llama", "gpt2"])
@pytest.mark.tiers(quick=1, rest=2)
def test_a_planted_fault_of_each_component_is_named(component: str, target: str) -> None:
    family = family_of(target)
    base = FAMILY[family].name.partition("@")[0]
    usable = [
        one
        for one in FAULTS
        if one.component == component and base in one.families and "empty" in one.cache_states and not one.hashlm_only
    ]
    for fault in usable[:: max(1, len(usable) // 2)][:2]:
        many = 12 if fault.id.startswith("T1-") else 4  # an EOS inside a block is rare
        found = [one.explanation for one in outcomes(fault.decoder(), family, many) if one.explanation]
        assert found, fault.id
        assert {one.component for one in found} == {fault.component}, fault.id


def lost(found: list[Any]) -> Counter[Loss]:
    losses: Counter[Loss] = Counter()
    for one in found:
        losses.update(dict(one.losses))
    return losses


@pytest.mark.parametrize("target", ["llama", "gpt2"])
@pytest.mark.tiers(quick=0, rest=1)
def test_trees_are_read(target: str) -> None:
    family = family_of(target)
    for right in (eqcheck.load("tree"), BUILDS["forked"].decoder("forked")):
        found = outcomes(right, family, 6, "tree")
        assert {(one.status, one.luck) for one in found} == {("equivalent", ("", ""))}
        assert any("off_spine" in one.coverage for one in found), "the draft offers what the paths ask for"
        losses = lost(found)
        assert losses[Loss("ideal")] > 0
        assert not draft_warnings(losses)
    fault = next(one for one in FAULTS if one.id == "M30-siblings-seen.forked")
    found = outcomes(fault.decoder(), family, 6, "tree")
    assert {one.fingerprint for one in found} - {None} == {"mask/sibling-visible"}


@pytest.mark.parametrize("target", ["llama", "gpt2"])
@pytest.mark.rest
def test_trees_that_a_decoder_makes_are_as_deep_as_on_the_transparent_target(target: str) -> None:
    assert not draft_warnings(lost(outcomes(eqcheck.load("tree"), family_of(target), 12)))


def library() -> list[Any]:
    """What the tap puts something in the place of."""
    import transformers.models.llama.modeling_llama as llama

    return [AttentionInterface._global_mapping["sdpa"], Cache.update, llama.eager_attention_forward]


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt, SystemExit])
def test_the_library_is_put_back_however_it_ends(error: type[BaseException] | None) -> None:
    before = library()

    def generate(target: Any, draft: Any, request: eqcheck.Request) -> Any:
        target(input_ids=torch.tensor([[1, 2]]))
        if error is not None:
            raise error
        return [[] for _ in request.prompts]

    case = Case(prompts=((1, 2),), family="rotary@llama")
    if error is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            run(generate, case)
    else:
        run(generate, case)
    assert library() == before


def test_a_fault_of_the_tap_is_not_the_decoders(monkeypatch: pytest.MonkeyPatch) -> None:
    before = library()
    monkeypatch.setattr(shadow.Shadow, "_placed", lambda *_: 1 / 0)
    with pytest.raises(TapFailed, match="ZeroDivisionError"), eqcheck.load("eqspec").running() as generate:
        run(generate, Case(prompts=((1, 2),), family="rotary@llama"))
    assert library() == before


def decoded(change: Callable[[Any], None], name: str = "eqspec", family: str = "rotary@llama") -> Any:
    """The outcome of a decoder after a change of its target."""
    with eqcheck.load(name).running() as generate:

        def changed(target: Any, draft: Any, request: eqcheck.Request) -> Any:
            change(target)
            return generate(target, draft, request)

        return try_case(changed, replace(RAGGED, family=family), None)


def test_positions_are_those_that_were_applied_and_not_those_that_were_said() -> None:
    def shift(target: Any) -> None:
        rotary, number = target.model.rotary_emb, iter(range(1000))
        original = rotary.forward
        rotary.forward = lambda x, position_ids: original(x, position_ids + (next(number) > 0))

    found = decoded(shift)
    assert found.fingerprint in ("position/query-position", "position/key-position")


def test_attention_that_is_replaced_while_it_runs_is_told_as_such() -> None:
    """Also where the decoder swallows what its models raise."""

    def mine(module: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
        return value[:, :, -query.shape[2] :].repeat_interleave(2, 1).transpose(1, 2), None

    def generate(target: Any, draft: Any, request: eqcheck.Request) -> Any:
        target(input_ids=torch.tensor([[1, 2]]))
        target.config._attn_implementation = "mine"
        with contextlib.suppress(Exception):
            target(input_ids=torch.tensor([[1, 2]]))
        return [[] for _ in request.prompts]

    AttentionInterface._global_mapping["mine"] = mine
    try:
        done = run(generate, Case(prompts=((1, 2),), family="rotary@llama"))
    finally:
        del AttentionInterface._global_mapping["mine"]
    assert "it cannot be read: LlamaForCausalLM: the attention of a forward was not seen" in done.declined


@pytest.mark.parametrize("narrow", [0, 1])
def test_a_window_that_is_too_narrow_is_named(narrow: int) -> None:
    """It hides the oldest token in reach, from the first full window on."""

    def generate(target: Any, draft: Any, request: eqcheck.Request) -> list[list[int]]:
        rows = []
        for prompt in request.prompts:
            row = list(prompt)
            while len(row) < len(prompt) + request.max_new_tokens and row[-1:] != list(request.eos_token_ids):
                at = torch.arange(len(row))
                seen = (at <= at[:, None]) & (at > at[:, None] - target.config.sliding_window + narrow)
                mask = torch.zeros(seen.shape, dtype=target.dtype).masked_fill(~seen, torch.finfo(target.dtype).min)
                row.append(int(target(torch.tensor([row]), attention_mask=mask[None, None]).logits[0, -1].argmax()))
            rows.append(row[len(prompt) :])
        return rows

    case = Case(
        prompts=(tuple(range(3, 15)), (1, 2)), max_new_tokens=6, num_draft_tokens=2, family=family_of("mistral")
    )
    found = try_case(Decoder("windowed", generate).function, case, None)
    assert (found.fingerprint if found.explanation else "") == ("mask/window" if narrow else "")


def test_eager_is_read_like_sdpa() -> None:
    found = decoded(lambda target: target.set_attn_implementation("eager"), "bsp", "rotary@llama@float32")
    assert found.fingerprint == "position/query-position"


def test_luck_is_told_and_only_where_it_was() -> None:
    """One row alone emits one token, after a pad that it sees: on GPT-2 some such tokens are right all the same."""

    def generate(target: Any, draft: Any, request: eqcheck.Request) -> Any:
        if len(request.prompts) > 1 or request.max_new_tokens > 1:
            raise eqcheck.Unsupported("not needed here")
        ids = torch.tensor([[request.pad_token_id, *request.prompts[0]]])
        shown = [[int(padded), *[1] * len(request.prompts[0])]]
        positions = torch.tensor([[0, *range(len(request.prompts[0]))]])
        out = target(input_ids=ids, attention_mask=torch.tensor(shown), position_ids=positions)
        return [[int(out.logits[0, -1].argmax())]]

    cases = [Case(prompts=((7, n, 9, 2, 5, 8),), max_new_tokens=1, family="learned@gpt2") for n in range(20)]
    padded = True
    found = [try_case(generate, case, None) for case in cases]
    assert {one.fingerprint for one in found} == {"mask/pad-visible", None}
    lucky = [one.luck for one in found if one.status == "equivalent"]
    assert lucky
    assert set(lucky) == {("mask/pad-visible", "call 1, batch row 0, column 6")}
    padded = False
    found = [try_case(generate, case, None) for case in cases]
    assert {(one.status, one.luck) for one in found} == {("equivalent", ("", ""))}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("lama", "did you mean 'llama'"),
        ("mamba", "recurrent"),
        ("llama@float8", "expected one of float64"),
        ("", "unkn"),
    ],
)
def test_unknown_targets_are_refused(name: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        families_of(name)


@pytest.mark.parametrize(
    "family", ["rotary@", "learned@llama", "rotary@llama@", "sampling@../x", "@llama", "rotary@llama@x"]
)
def test_no_other_family_is_a_target(family: str) -> None:
    with pytest.raises(CaseError, match="family"):
        Case(prompts=((1,),), family=family)
    with pytest.raises(KeyError):
        FAMILY[family]


def test_a_case_on_a_target_is_data_like_any_other() -> None:
    case = Case(prompts=((1,),), family="rotary@llama@bfloat16")
    assert Case.from_dict(case.to_dict()) == case


def test_a_target_that_makes_nan_of_pads_is_refused_before_the_audit() -> None:
    with pytest.raises(UsageError, match=r"NaN.*bloom@float32"):
        check("mask-order@bloom@float64")


def test_a_model_without_the_parts_is_refused() -> None:
    from eqcheck.transparent.hashlm.model import HashConfig, HashLM
    from eqcheck.transparent.real.tap import Watched

    class Bare(HashLM):
        base_model_prefix = ""

    with pytest.raises(Unsupported, match="no base model"):
        Watched.of(Bare(HashConfig()), 1)


@pytest.mark.rest
def test_a_cache_that_rounds_is_told_as_such() -> None:
    @eqcheck.decoder(name="rounds")
    def rounds(target: Any, draft: Any, request: Any) -> list[list[int]]:
        rows = []
        for prompt in request.prompts:
            cache, fed, new = DynamicCache(), list(prompt), list[int]()
            while len(new) < request.max_new_tokens and not set(new) & set(request.eos_token_ids):
                scores = target(input_ids=torch.tensor([fed]), past_key_values=cache, use_cache=True).logits
                fed = [int(scores[0, -1].argmax())]
                new += fed
                for layer in cache.layers:
                    step = layer.keys.abs().amax(-1, keepdim=True) / 7  # four bits
                    layer.keys = (layer.keys / step).round() * step
            rows.append(new)
        return rows

    found = [one for one in outcomes(rounds, "rotary@llama", 6) if one.status == "violation"]
    assert {one.fingerprint for one in found} == {"cache/torn-entry"}
    assert all("entries differ from what was written" in str(one.explanation) for one in found)


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "mistral"])
def test_a_tolerance_leaves_tokens_that_are_no_ties(architecture: str) -> None:
    """In bfloat16 a few scores are far off; sixteen times that is more than what lies between any two tokens."""
    ids = torch.randint(0, VOCAB_SIZE, (8, 24), generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        exact, rounded = (model_of(architecture, dtype, 0)(input_ids=ids).logits for dtype in ("float64", "bfloat16"))
    best, spread = exact.amax(-1), float((exact.amax(-1) - exact.median(-1).values).median())
    assert FACTOR * noise(architecture, "bfloat16", 0) > spread, "the noise alone would excuse every second token"
    allowed = tolerance(architecture, "bfloat16", 0)
    assert allowed < spread
    lead = best - exact.gather(-1, rounded.argmax(-1, keepdim=True))[..., 0]
    assert float(lead.max()) < allowed, "the model's own choices in bfloat16 are ties"
    assert tolerance(architecture, "float32", 0) == FACTOR * noise(architecture, "float32", 0) < 0.001
    assert tolerance(architecture, "float64", 0) == 0.0
