"""HashLM: positions and masks as in Llama and GPT-2, exact, and changed by anything a query sees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from transformers import Cache, DynamicCache, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, StaticCache

from eqcheck.catalogue import known_good
from eqcheck.contract.decoders import CLAIMED, FAMILIES
from eqcheck.contract.errors import Unsupported
from eqcheck.core.case.record import Case
from eqcheck.transparent.decoding import run
from eqcheck.transparent.drafting import ScriptedDraft
from eqcheck.transparent.hashlm.hashing import CALL, COLUMN, CONTENT, HEADS, LAYERS, ROW, WIDTH, Words
from eqcheck.transparent.hashlm.model import POSITIONS, HashConfig, HashLM
from eqcheck.transparent.hashlm.parts import PreallocatedLayer
from eqcheck.transparent.hashlm.trace import DRAFT, TARGET, Trace
from eqcheck.transparent.hashlm.visibility import TAKES_CACHE_POSITION
from eqcheck.transparent.truth.continuation import continue_row

torch.set_num_threads(1)
VOCAB, NEW = 67, 8
PROMPTS = ((5, 7, 9, 11), (3,), (60, 2))
IDS = torch.tensor([[3, 14, 15, 9, 26, 5, 35], [8, 9, 7, 9, 32, 38, 46]])
ALL, LEFT, RIGHT, HOLE = [1] * 7, [0, 0, 1, 1, 1, 1, 1], [1, 1, 0, 0, 1, 1, 1], [1, 0, 1, 1, 1, 1, 1]
KEPT, WHERE = torch.tensor([HOLE, LEFT]), torch.tensor([[0, 0, 1, 2, 3, 4, 5], [0, 0, 0, 1, 2, 3, 4]])
HEADED = torch.ones(2, 2, 4, 4).tril().bool() & torch.tensor([True, False])[:, None, None]
Step = dict[str, Any]
both = pytest.mark.parametrize("family", CLAIMED)


@lru_cache
def hash_lm(family: str) -> HashLM:
    return cast(HashLM, HashLM(HashConfig(vocab_size=VOCAB, seed=1, family=family)).eval())


def traced(family: str) -> tuple[HashLM, Trace]:
    model = hash_lm(family)
    model.trace = Trace()
    return model, model.trace


@lru_cache
def real(family: str) -> Any:
    """The architecture a family is like, tiny; with sdpa, because eager Llama turns the pads of float64 into NaN."""
    torch.manual_seed(3)
    sizes: dict[str, Any] = {"vocab_size": VOCAB, "tie_word_embeddings": False, "initializer_range": 0.3}
    sizes |= {"attn_implementation": "sdpa", "bos_token_id": None, "eos_token_id": None}
    if family == "rotary":
        sizes |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
        model: Any = LlamaForCausalLM(LlamaConfig(hidden_size=32, intermediate_size=48, **sizes))
    else:
        model = GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=POSITIONS, **sizes))
    return model.double().eval().requires_grad_(False)


def first(mask: torch.Tensor | None = None, positions: Any = None, block: slice = slice(4), **how: Any) -> Step:
    """A call with the first four tokens of each row."""
    where = None if positions is None else torch.as_tensor(positions)
    return {"input_ids": IDS[:, block], "attention_mask": mask, "position_ids": where, **how}


then = partial(first, block=slice(4, 7))  # and one with the other three
VARIANTS: dict[str, list[Step]] = {
    "bare": [first()],
    "left padded": [first(KEPT[:, :4])],
    "right padded": [first(torch.tensor([ALL, RIGHT])[:, :4])],
    "mask too short": [first(torch.tensor([HOLE, ALL])[:, :3])],
    "mask too long": [first(KEPT)],
    "positions": [first(KEPT[:, :4], WHERE[:, :4])],
    "positions of one row for all": [first(None, [[3, 4, 5, 6]])],
    "positions that jump": [first(None, [[0, 0, 0, 1], [2, 2, 3, 9]])],
    "uncached": [first(use_cache=False)],
    "uncached, left padded": [first(KEPT[:, :4], use_cache=False)],
    "uncached, positions": [first(KEPT[:, :4], WHERE[:, :4], use_cache=False)],
    "uncached, positions that jump": [first(None, WHERE[:, :4], use_cache=False)],
    "block": [first(), then()],
    "block, left padded": [first(KEPT[:, :4]), then(KEPT)],
    "block, mask too short": [first(KEPT[:, :4]), then(KEPT[:, :5])],
    "block, mask too long": [first(), then(torch.tensor([HOLE + ALL, RIGHT + ALL]))],
    "block, positions": [first(KEPT[:, :4], WHERE[:, :4]), then(KEPT, WHERE[:, 4:])],
    "one token, mask too long": [first(), first(torch.tensor([HOLE + ALL, RIGHT + ALL]), block=slice(4, 5))],
    "block over a hole": [first(), then(torch.tensor([RIGHT, HOLE]), [[2, 3, 4], [3, 4, 5]])],
    "block, cache_position": [first(cache_position=torch.arange(4)), then(cache_position=torch.arange(4, 7))],
    "block, cache_position ahead": [first(), then(cache_position=torch.arange(5, 8))],
    "block, cache_position back": [first(), then(torch.tensor([HOLE, ALL]), cache_position=torch.arange(2, 5))],
}
PLAYS = [(name, static) for static in (False, True) for name in VARIANTS if not (static and "uncached" in name)]


def play(model: Any, steps: list[Step], static: bool = False) -> list[torch.Tensor]:
    """Run a model step by step on one cache; the logits of each step."""
    past = StaticCache(config=model.config, max_cache_len=9) if static else None
    logits = []
    for step in steps:
        output = model(past_key_values=past, **step)
        past = output.past_key_values
        logits.append(output.logits)
    return logits


def spelled_out(steps: list[Step], trace: Trace) -> list[Step]:
    """The same steps with the recorded positions, and the recorded visibility as a 4-D mask."""
    seen = [(torch.from_numpy(call.positions), torch.from_numpy(call.visible)[:, None]) for call in trace.calls]
    return [{**step, "position_ids": p, "attention_mask": v} for step, (p, v) in zip(steps, seen, strict=True)]


@pytest.mark.parametrize(("name", "static"), PLAYS)
@both
@pytest.mark.tiers(quick=57, rest=23)
def test_defaults_are_those_of_the_real_architecture(family: str, name: str, static: bool) -> None:
    model, trace = traced(family)
    ours = play(model, VARIANTS[name], static)
    steps = spelled_out(VARIANTS[name], trace)
    theirs, same = play(real(family), VARIANTS[name], static), play(real(family), steps, static)
    for call, own, spelled in zip(trace.calls, theirs, same, strict=True):
        seeing = torch.from_numpy(call.visible.any(-1))
        assert seeing.any()
        torch.testing.assert_close(own[seeing], spelled[seeing], rtol=1e-9, atol=1e-9)
    assert all(map(torch.equal, ours, play(model, steps, static)))
    visible, positions = steps[-1]["attention_mask"].clone(), steps[-1]["position_ids"].clone()
    visible[1, 0, -1, int(visible[1, 0, -1].int().argmax())] = False
    positions[1, -1] += 1
    for change in ({"attention_mask": visible}, {"position_ids": positions}):  # one bit, or one position, shows
        wrong = play(real(family), [*steps[:-1], {**steps[-1], **change}], static)
        assert (wrong[-1] - same[-1])[1, -1].abs().max() > 1e-3


def truth(family: str, prompt: tuple[int, ...]) -> list[int]:
    return list(continue_row(family, VOCAB, 1, prompt, NEW)[0])


def generated(model: HashLM, prompts: tuple[tuple[int, ...], ...], **how: Any) -> list[list[int]]:
    """`generate()` on left-padded prompts, with an EOS that is not emitted; the new tokens."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts])
    kept = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    eos = min(set(range(VOCAB)).difference(*(truth(model.config.family, prompt) for prompt in prompts)))
    how = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0, "eos_token_id": eos, **how}
    return cast(list[list[int]], model.generate(ids, attention_mask=kept, **how)[:, width:].tolist())


STATIC = ("rotary", "learned", "slot-distance")  # with a static cache generate() hands over 4-D masks


@pytest.mark.parametrize(
    ("family", "how"),
    [
        *((family, how) for family in FAMILIES for how in ({}, {"use_cache": False})),
        *((family, {"cache_implementation": "static"}) for family in STATIC),
    ],
    ids=str,
)
@pytest.mark.tiers(quick=14, rest=5)
def test_generate_emits_the_truth_alone_and_in_a_batch(family: str, how: dict[str, Any]) -> None:
    wanted = [truth(family, prompt) for prompt in PROMPTS]
    assert generated(hash_lm(family), PROMPTS, **how) == wanted
    assert [generated(hash_lm(family), (prompt,), **how)[0] for prompt in PROMPTS] == wanted


@pytest.mark.parametrize(("agreement", "fewest", "most"), [(0.0, NEW, NEW), (0.5, 3, NEW - 1), (1.0, 2, 2)])
@both
def test_assisted_generate(family: str, agreement: float, fewest: int, most: int) -> None:
    target, trace = traced(family)
    draft = ScriptedDraft.of(target)
    draft.script(agreement=agreement)
    draft.trace = trace
    draft.generation_config.update(num_assistant_tokens=4, num_assistant_tokens_schedule="constant")
    assert generated(target, PROMPTS[:1], assistant_model=draft) == [truth(family, PROMPTS[0])]
    assert trace.of(DRAFT)
    assert fewest <= len(trace.of(TARGET)) <= most


@both
def test_prompt_lookup_generate(family: str) -> None:
    candidates = ((a, b, 4, a) for a in range(5, VOCAB) for b in range(5, VOCAB))
    prompt = next(one for one in candidates if truth(family, one)[0] == one[1])  # so that a lookup is accepted
    target, trace = traced(family)
    assert generated(target, (prompt,), prompt_lookup_num_tokens=3) == [truth(family, prompt)]
    assert len(trace.calls) < NEW


@both
def test_equivalent_calls_have_equal_logits(family: str) -> None:
    model = hash_lm(family)
    wanted = model(IDS, attention_mask=KEPT).logits
    seen = KEPT[:, None, None].bool() & torch.ones(7, 7).tril().bool()
    masks = [torch.zeros(seen.shape).double().masked_fill(~seen, low) for low in (-torch.inf, -1.7e308, -3.4e38, -1e4)]
    for mask in (KEPT.bool(), seen, seen.expand(2, HEADS, 7, 7), *masks):
        assert torch.equal(model(IDS, attention_mask=mask).logits, wanted)
    assert torch.equal(model(IDS, attention_mask=KEPT, position_ids=torch.arange(7)[None]).logits, wanted)
    assert torch.equal(model(IDS, attention_mask=KEPT, use_cache=False).logits, wanted)
    assert model(IDS, use_cache=False).past_key_values is None
    for keep, index in ((1, [6]), (3, [4, 5, 6]), (torch.tensor([0, 4]), [0, 4])):
        assert torch.equal(model(IDS, attention_mask=KEPT, logits_to_keep=keep).logits, wanted[:, index])
    for dtype in (torch.float64, torch.float32):
        rebuilt = DynamicCache()
        for layer, old in enumerate(model(IDS[:, :4], attention_mask=KEPT[:, :4]).past_key_values.layers):
            rebuilt.update(old.keys.to(dtype), old.values.to(dtype), layer)
        assert torch.equal(model(IDS[:, 4:], attention_mask=KEPT, past_key_values=rebuilt).logits, wanted[:, 4:])


Edit = Callable[[torch.Tensor, int, int], torch.Tensor]


def edited(past: Any, edit: Edit) -> Any:
    """Apply a change, given a tensor, its layer, and 0 for K or 1 for V, to every tensor of a cache."""
    for index, layer in enumerate(past.layers):
        layer.keys, layer.values = edit(layer.keys, index, 0), edit(layer.values, index, 1)
    return past


def ask(family: str, edit: Edit = lambda kv, *_: kv, later: Any = None, **changed: torch.Tensor) -> Words:
    """The final digests [2 rows, 2 queries] after five cached tokens; ``later`` is the mask of the two queries."""
    ids, kept, positions = {"ids": IDS, "kept": KEPT, "positions": WHERE, **changed}.values()
    model, trace = traced(family)
    past = model(ids[:, :5], attention_mask=kept[:, :5], position_ids=positions[:, :5]).past_key_values
    later, past = kept if later is None else later, edited(past, edit)
    model(ids[:, 5:], attention_mask=later, position_ids=positions[:, 5:], past_key_values=past)
    return trace.calls[-1].digests


@both
def test_a_change_changes_the_queries_that_see_it_and_no_other(family: str) -> None:
    right = ask(family)
    for row, column in np.ndindex(2, 7):
        seeing = np.zeros((2, 2), np.bool_)
        seeing[row] = [column < 6, True]
        one = torch.zeros_like(KEPT)
        one[row, column] = 1
        assert np.array_equal(ask(family, kept=KEPT ^ one) != right, seeing)
        if column < 5:  # entries written under a wrong mask stay wrong
            assert np.array_equal(ask(family, kept=KEPT ^ one, later=KEPT) != right, seeing)
        seeing &= bool(KEPT[row, column])
        assert np.array_equal(ask(family, ids=IDS + one) != right, seeing)
        assert np.array_equal(ask(family, positions=WHERE + one) != right, seeing)
    blind = KEPT * (torch.arange(7) < 5)  # a query that does not see itself has a position all the same
    assert (ask(family, kept=blind, positions=WHERE + (blind == 0)) != ask(family, kept=blind)).all()


@both
@pytest.mark.tiers(quick=0, rest=1)
def test_every_copy_in_the_cache_counts(family: str) -> None:
    right = ask(family)
    for layer, value, row, head, slot, field in np.ndindex(LAYERS, 2, 2, HEADS, 5, WIDTH):
        one = torch.zeros(2, HEADS, 5, WIDTH)
        one[row, head, slot, field] = 1
        here, seeing = (layer, value), np.zeros((2, 2), np.bool_)
        seeing[row] = bool(KEPT[row, slot]) and field < CONTENT.stop  # the identity of the write is not content
        observed = ask(family, edit=lambda kv, *which, one=one, here=here: kv + one * (which == here))
        assert np.array_equal(observed != right, seeing)


@both
def test_moved_rows_and_slots(family: str) -> None:
    right, orders = ask(family), ([0, 1, 2, 4, 5, 6], [0, 0, 1, 2, 3, 4], [3, 1, 4, 0, 2, 5, 6])
    fewer, twice, order = map(torch.tensor, orders)
    shown, hidden = (torch.nn.functional.pad(KEPT, (1, 0), value=bit) for bit in (1, 0))
    assert (ask(family, edit=lambda kv, *_: kv.flip(0)) != right).all()
    assert (ask(family, edit=lambda kv, *_: kv[:, :, fewer[:4]], later=KEPT[:, fewer]) != right).all()
    assert (ask(family, edit=lambda kv, *_: kv[:, :, twice], later=shown) != right).all()
    assert (ask(family, edit=lambda kv, *_: kv[:, :, twice], later=hidden) == right).all()  # holes are forgiven
    assert (ask(family, edit=lambda kv, *_: kv[:, :, order[:5]], later=KEPT[:, order]) == right).all()
    offset = ask(family, positions=WHERE + torch.tensor([[3], [11]]))
    assert ((offset == right) if family == "rotary" else (offset != right)).all()


def test_no_tensor_of_a_cache_can_stand_for_another() -> None:
    """K and V, heads, layers and features: each exchange, copy, scale and roll shows in every query that sees it."""
    right = ask("rotary")

    def exchanged(past: Any) -> Any:
        for layer in past.layers:
            layer.keys, layer.values = layer.values, layer.keys
        return past

    def layers(past: Any) -> Any:
        past.layers.reverse()
        return past

    def values_as_keys(past: Any) -> Any:
        for layer in past.layers:
            layer.keys = layer.values
        return past

    def tensors(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], Any]:
        return lambda past: edited(past, lambda kv, *_: change(kv))

    wrong = {
        "K and V exchanged": exchanged,
        "layers exchanged": layers,
        "V handed out as K": values_as_keys,
        "heads exchanged": tensors(lambda kv: kv.flip(1)),
        "head 0 everywhere": tensors(lambda kv: kv[:, :1].expand(-1, HEADS, -1, -1)),
        "features rolled": tensors(lambda kv: kv.roll(1, 3)),
        "features reversed": tensors(lambda kv: kv.flip(3)),
        "scaled": tensors(lambda kv: kv * 2),
        "scaled a little": tensors(lambda kv: kv * 1.001),
        "negative": tensors(lambda kv: -kv),
        "shifted": tensors(lambda kv: kv + 1),
        "heads and slots exchanged": tensors(lambda kv: kv.transpose(1, 2).reshape(kv.shape)),
        "rounded to 4 bits": tensors(lambda kv: kv.to(torch.float8_e4m3fn).to(kv.dtype)),
        "NaN": tensors(lambda kv: kv * torch.nan),
    }
    for name, change in wrong.items():
        assert (ask_of("rotary", change) != right).all(), name
    same = {
        "float32": tensors(lambda kv: kv.float()),
        "bfloat16": tensors(lambda kv: kv.bfloat16()),
        "float16": tensors(lambda kv: kv.half()),
        "not contiguous": tensors(lambda kv: kv.transpose(1, 2).contiguous().transpose(1, 2)),
    }
    for name, change in same.items():
        assert (ask_of("rotary", change) == right).all(), name


def ask_of(family: str, change: Callable[[Any], Any]) -> Words:
    """As `ask`, with a change of the whole cache."""
    model, trace = traced(family)
    past = model(IDS[:, :5], attention_mask=KEPT[:, :5], position_ids=WHERE[:, :5]).past_key_values
    model(IDS[:, 5:], attention_mask=KEPT, position_ids=WHERE[:, 5:], past_key_values=change(past))
    return trace.calls[-1].digests


def test_a_bias_in_a_mask_shows_unless_it_is_the_same_for_all_that_is_seen() -> None:
    model = hash_lm("rotary")
    seen = KEPT[:, None, None].bool() & torch.ones(7, 7).tril().bool()
    additive = torch.zeros(seen.shape).double().masked_fill(~seen, -torch.inf)
    wanted = model(IDS, attention_mask=KEPT).logits
    assert torch.equal(model(IDS, attention_mask=additive + 1).logits, wanted)
    assert torch.equal(model(IDS, attention_mask=additive + torch.arange(7.0)[:, None]).logits, wanted)
    biased = additive.clone()
    biased[1, 0, 6, 4] -= 0.5
    assert (model(IDS, attention_mask=biased).logits != wanted).any(-1).tolist() == [[False] * 7, [False] * 6 + [True]]
    ones = seen.double()  # ones and zeros, added to the scores, hide nothing
    assert (model(IDS, attention_mask=ones).logits != wanted).any(-1)[:, :6].all()


class Told(PreallocatedLayer):
    """A preallocated layer that tells ``sizes`` of so many cached and fed tokens, and ``length`` of so many cached."""

    is_compileable = False

    def __init__(self, sizes: Callable[[int, int], tuple[int, int]], length: Callable[[int], int]) -> None:
        super().__init__(9)
        self.sizes, self.told = sizes, length

    def get_mask_sizes(self, query: Any, *args: Any) -> tuple[int, int]:
        return self.sizes(self.length, query if isinstance(query, int) else len(query))

    def get_seq_length(self, *args: Any) -> int:
        return self.told(self.length)

    def update(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Garbage that real models can stand, for it may be seen."""
        return tuple(kv.clamp(max=300) for kv in super().update(*args, **kwargs))  # type: ignore[return-value]


SIZES: dict[str, Callable[[int, int], tuple[int, int]]] = {
    "right": lambda have, fed: (9, 0),
    "of a cache that grows": lambda have, fed: (have + fed, 0),
    "without the block": lambda have, fed: (have, 0),
    "of the block alone": lambda have, fed: (fed, 0),
    "one too long": lambda have, fed: (10, 0),
    "one too short": lambda have, fed: (8, 0),
    "one for all": lambda have, fed: (1, 0),
    "one late": lambda have, fed: (9, 1),
    "one late and shorter": lambda have, fed: (8, 1),
}
LENGTHS: dict[str, Callable[[int], int]] = {
    "right": lambda have: have,
    "none": lambda have: 0,
    "one more": lambda have: have + 1,
    "one less": lambda have: max(0, have - 1),
}
TOLD = (
    [("right", length) for length in LENGTHS] + [(sizes, "right") for sizes in SIZES] + [("of the block alone", "none")]
)
FED_ONE_BY_ONE = {
    "one token": [first(), first(block=slice(4, 5)), first(block=slice(5, 6))],
    "one token, padded": [first(KEPT[:, :4]), first(KEPT[:, :5], block=slice(4, 5))],
    "one token, all shown": [first(), first(torch.ones(2, 9), block=slice(4, 5))],
    "padded to the end": [first(torch.tensor([[1] * 4 + [0] * 5] * 2)), then(torch.tensor([[1] * 7 + [0] * 2] * 2))],
}
STEPS = {name: steps for name, steps in {**VARIANTS, **FED_ONE_BY_ONE}.items() if "cache" not in name}


def played(model: Any, steps: list[Step], layers: Callable[[], list[Any]]) -> list[torch.Tensor] | None:
    """The logits of each step on a cache of such layers; None where the model fails."""
    past, logits = Cache(layers=layers()), []
    for step in steps:
        try:
            logits.append(model(past_key_values=past, **step).logits)
        except (RuntimeError, ValueError, IndexError):
            return None
    return logits


@pytest.mark.parametrize(("sizes", "length"), TOLD)
@pytest.mark.parametrize("static", [False, True])
@both
@pytest.mark.tiers(quick=4, rest=8)
def test_what_a_cache_tells_of_the_mask_is_used_as_by_real_models(
    family: str, static: bool, sizes: str, length: str
) -> None:
    def layers() -> list[Any]:
        made = [Told(SIZES[sizes], LENGTHS[length]) for _ in range(LAYERS)]
        for layer in made:
            layer.is_compileable = static
        return made

    failed = told = 0
    for name, steps in STEPS.items():
        model, trace = traced(family)
        ours, theirs = played(model, steps, layers), played(real(family), steps, layers)
        assert (ours is None) == (theirs is None), name
        if ours is None or theirs is None:
            failed += 1
            continue
        same = played(real(family), spelled_out(steps, trace), layers)
        assert same is not None
        for call, own, spelled in zip(trace.calls, theirs, same, strict=True):
            seeing = torch.from_numpy(call.visible.any(-1))
            torch.testing.assert_close(own[seeing], spelled[seeing], rtol=1e-9, atol=1e-9, msg=name)
        right = played(model, steps, lambda: [PreallocatedLayer(9) for _ in range(LAYERS)])
        told += not all(map(torch.equal, ours, right or []))
    harmless = static and length == "right" and (sizes == "right" or (sizes == "one too long" and TAKES_CACHE_POSITION))
    assert bool(failed or told) != harmless, (failed, told)


def test_a_cache_that_tells_nothing_of_the_mask_is_refused_where_a_mask_is_to_be_built() -> None:
    class Untold:
        def update(self, keys: Any, values: Any, *args: Any) -> Any:
            return keys, values

        def get_seq_length(self) -> int:
            return 0

    with pytest.raises(TypeError, match="expected a cache with get_mask_sizes"):
        hash_lm("rotary")(IDS, past_key_values=Untold())
    with pytest.raises(ValueError, match="input_ids is empty"):  # its mask is not what is wrong
        hash_lm("rotary")(IDS[:, :0], past_key_values=Untold())
    four = torch.ones(2, 1, 7, 7).tril().bool()
    assert torch.equal(
        hash_lm("rotary")(IDS, attention_mask=four, past_key_values=Untold()).logits, hash_lm("rotary")(IDS).logits
    )


def test_positions_outside_the_table_are_an_error_as_in_gpt2() -> None:
    for wrong in (-1, POSITIONS):
        where = WHERE.clone()
        where[1, 0] = wrong  # a pad
        with pytest.raises(IndexError, match=f"expected 0..{POSITIONS - 1}.* got .*{wrong}"):
            hash_lm("learned")(IDS, attention_mask=KEPT, position_ids=where)
        with pytest.raises(IndexError):
            real("learned")(IDS, attention_mask=KEPT, position_ids=where)
        for model in (hash_lm("rotary"), real("rotary")):  # and none in Llama, where a pad's position is seen by nobody
            wanted = model(IDS, attention_mask=KEPT, position_ids=WHERE).logits
            got = model(IDS, attention_mask=KEPT, position_ids=where).logits
            assert torch.equal(got[KEPT.bool()], wanted[KEPT.bool()])


def test_what_decoders_reach_for() -> None:
    model = hash_lm("rotary")
    whole = model(IDS, attention_mask=KEPT, output_hidden_states=True)
    below = model.model(IDS, attention_mask=KEPT)
    assert torch.equal(model.lm_head(below.last_hidden_state), whole.logits)
    assert torch.equal(model.get_output_embeddings()(whole.hidden_states[-1][:, 2:3]), whole.logits[:, 2:3])
    assert [tuple(states.shape) for states in whole.hidden_states] == [(2, 7, model.config.hidden_size)] * (LAYERS + 1)
    assert not torch.equal(model.lm_head(whole.hidden_states[-2]), whole.logits)
    survives = whole.hidden_states[-1].bfloat16()
    assert torch.equal(model.lm_head(survives), whole.logits)
    embedded = model.get_input_embeddings()(IDS)
    assert torch.equal(model(inputs_embeds=embedded, attention_mask=KEPT).logits, whole.logits)
    assert torch.equal(whole.hidden_states[0], embedded)
    assert model.get_decoder() is model.model
    assert not hasattr(model.model, "layers")
    with pytest.raises(Unsupported, match="limit of eqcheck's target"):
        model.model.layers  # noqa: B018


def test_in_bfloat16_it_is_the_same() -> None:
    model = cast(HashLM, HashLM(HashConfig(vocab_size=VOCAB, seed=1)).to(torch.bfloat16))
    assert model.dtype == torch.bfloat16
    assert generated(model, PROMPTS) == [truth("rotary", prompt) for prompt in PROMPTS]
    assert generated(model, PROMPTS, cache_implementation="static") == [truth("rotary", prompt) for prompt in PROMPTS]


def test_a_pad_of_its_own_is_never_emitted() -> None:
    model = cast(HashLM, HashLM(HashConfig(vocab_size=VOCAB + 1, seed=1, extra_pad=True)).eval())
    logits = model(torch.tensor([[VOCAB, 3, 14]])).logits
    assert logits.shape[-1] == VOCAB + 1
    assert (logits[..., VOCAB] < logits[..., :VOCAB].min()).all()
    assert torch.equal(model(IDS).logits[..., :VOCAB], hash_lm("rotary")(IDS).logits)


@pytest.mark.long
def test_right_decoders_are_right_with_such_a_pad() -> None:
    case = Case(prompts=((5, 7, 9), (3,), (60, 2)), max_new_tokens=6, num_draft_tokens=3, accepts=((2,), (0, 3)))
    outside = replace(case, pad_token_id=case.vocab_size)
    for name, decoder in known_good().items():
        if "rotary" not in decoder.families:
            continue
        assert run(decoder, outside).outputs == run(decoder, case).outputs == run(decoder, case).truth.rows, name
    assert Case.from_dict(outside.to_dict()) == outside


def test_provenance_travels_with_the_entries() -> None:
    model, trace = traced("rotary")
    past = model(IDS[:, :4]).past_key_values
    model(IDS[:, 4:], past_key_values=past)
    past.crop(-1)
    order = torch.tensor([[5, 0, 4], [1, 2, 3]])[:, None, :, None].expand(-1, HEADS, -1, WIDTH)
    blank = torch.zeros(2, HEADS, 1, WIDTH)
    edited(past, lambda kv, *_: torch.cat([blank, kv[[1, 0]].gather(2, order)], 2))
    model(IDS[:, :1], past_key_values=past)
    wanted = [  # call, row and column of each slot's write
        [[0, 0, 0], [2, 1, 1], [1, 1, 0], [2, 1, 0], [3, 0, 0]],
        [[0, 0, 0], [1, 0, 1], [1, 0, 2], [1, 0, 3], [3, 1, 0]],
    ]
    for kv in trace.calls[-1].kv:
        assert (kv[..., [CALL, ROW, COLUMN]] == np.array(wanted)[None, :, None]).all()


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"input_ids": None}, ValueError, "input_ids, inputs_embeds: expected exactly one of the two"),
        ({"inputs_embeds": torch.zeros(2, 4, 80)}, ValueError, "input_ids, inputs_embeds: expected exactly one"),
        ({"input_ids": None, "inputs_embeds": torch.zeros(2, 4, 80)}, Unsupported, "inputs_embeds: expected rows of"),
        ({"input_ids": None, "inputs_embeds": torch.zeros(2, 80)}, ValueError, r"inputs_embeds: expected \[batch"),
        ({"output_attentions": True}, Unsupported, "output_attentions: .* a limit of eqcheck's target"),
        ({"attention_mask": torch.ones(2, 1, 4, 4).long()}, ValueError, "a 4-D mask of bool or float, got torch.int64"),
        ({"attention_mask": HEADED}, Unsupported, "differs between heads"),
        ({"input_ids": IDS + 30}, ValueError, r"input_ids: expected tokens in 0\.\.66, got 33\.\.76"),
        ({"input_ids": IDS - 4}, ValueError, r"input_ids: expected tokens in 0\.\.66, got -1\.\.42"),
        ({"input_ids": IDS[0]}, ValueError, r"input_ids: expected \[batch, block\], got shape \[7\]"),
        ({"attention_mask": KEPT[:1]}, ValueError, r"attention_mask: expected \[2, slots\], got shape \[1, 7\]"),
        ({"attention_mask": torch.ones(2, 4, 4)}, ValueError, r"attention_mask: .*, got shape \[2, 4, 4\]"),
        ({"attention_mask": torch.ones(2, 1, 4, 3)}, ValueError, r"\[2, heads, 4, 4\], got shape \[2, 1, 4, 3\]"),
        ({"position_ids": WHERE}, ValueError, r"position_ids: expected \[2, 4\], got shape \[2, 7\]"),
        ({"position_ids": WHERE[None, :, :4]}, ValueError, r"expected \[2, 4\], got shape \[1, 2, 4\]"),
        (
            {"past_key_values": ((IDS, IDS),)},
            TypeError,
            "(past_key_values|cache): expected a cache of transformers .* tuple",
        ),
        ({"past_key_values": hash_lm("rotary")(IDS[:1]).past_key_values}, ValueError, "expected a cache of 2 rows .*1"),
    ],
)
def test_errors_say_what_was_expected_and_what_came(given: Step, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        hash_lm("rotary")(**{"input_ids": IDS[:, :4], **given})


class Torn(DynamicCache):  # type: ignore[misc]
    """A cache class of the code that is audited, with a mistake of its own."""

    def update(self, *args: Any, **options: Any) -> Any:
        raise RuntimeError("no room for the block")


def test_an_error_of_the_audited_cache_class_keeps_its_name() -> None:
    with pytest.raises(RuntimeError, match="no room for the block"):
        hash_lm("rotary")(IDS, past_key_values=Torn())


@both
def test_saved_and_loaded_it_is_the_same(family: str, tmp_path: Path) -> None:
    hash_lm(family).save_pretrained(tmp_path)
    loaded = HashLM.from_pretrained(tmp_path)
    assert torch.equal(loaded(IDS).logits.double(), hash_lm(family)(IDS).logits)
    assert generated(loaded, PROMPTS) == [truth(family, prompt) for prompt in PROMPTS]
