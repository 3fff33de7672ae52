"""`eqcheck.compat`: code for transformers 4, for text or for CUDA runs as it is, and its faults are still found."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny
from transformers import DynamicCache
from transformers.generation import candidate_generator

from eqcheck.compat import IdTokenizer, legacy_cache, no_cuda
from eqcheck.contract.decoders import Request
from eqcheck.contract.errors import Unsupported, UsageError
from eqcheck.contract.registry import load
from eqcheck.core.case.record import Case
from eqcheck.transparent.decoding import run
from eqcheck.transparent.hashlm.model import HashConfig, HashLM
from eqcheck.transparent.oracle import judge
from eqcheck.transparent.search import Source

IDS = torch.tensor([[3, 1, 4, 1, 5]])


def model(family: str = "rotary") -> Any:
    return HashLM(HashConfig(seed=1, family=family))


def filled(slots: int = 5, rows: int = 1) -> Any:
    cache = DynamicCache()
    for layer in range(2):
        new = torch.arange(rows * slots * 3, dtype=torch.float64).reshape(rows, 1, slots, 3) + 100 * layer
        cache.update(new, -new, layer)
    return cache


def fingerprints(
    generate: Callable[..., Any], count: int = 12, families: tuple[str, ...] = ("rotary", "learned"), **source: Any
) -> set[str | None]:
    """What a decoder does wrong on the first cases of an audit."""
    cases = Source(0, families, ("left",), ("empty",), **source).chunk(0, count)
    verdicts = [judge(run(generate, case, 60.0)) for case in cases]
    return {verdict.explanation.fingerprint if verdict.explanation else None for verdict in verdicts}


# --- caches -----------------------------------------------------------------------------------------------------------


def snapshot() -> tuple[Any, ...]:
    return dict(vars(DynamicCache)), vars(candidate_generator).get("_crop_past_key_values")


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    before = snapshot()
    yield
    assert snapshot() == before


def test_nothing_is_left_behind_after_an_error_or_a_nested_block() -> None:
    target = model()
    with suppress(KeyError), legacy_cache(target):
        with legacy_cache(target):
            assert isinstance(target(IDS).past_key_values, tuple)
        assert isinstance(target(IDS).past_key_values, tuple)
        assert len(filled().to_legacy_cache()) == 2
        raise KeyError
    assert not {"forward", "prepare_inputs_for_generation"} & vars(target).keys()
    assert isinstance(target(IDS).past_key_values, DynamicCache)


def test_tensors_as_lists() -> None:
    with legacy_cache():
        empty: Any = DynamicCache()
        configured: Any = DynamicCache(config=model().config)  # its layers are there, but empty
        assert not empty.key_cache
        assert not configured.value_cache
        cache = filled()
        assert [len(cache.key_cache), len(cache.value_cache), len(cache.key_cache + cache.value_cache)] == [2, 2, 4]
        for layer in range(len(cache)):
            cache.key_cache[layer] = cache.key_cache[layer][:, :, :-2]
            cache.value_cache[layer] = cache.value_cache[layer][:, :, :-2]
        assert cache.get_seq_length() == 3
        assert torch.equal(cache.layers[1].values, -100.0 - torch.arange(9).reshape(1, 1, 3, 3).double())
        for tensors in (empty.key_cache, empty.value_cache):
            tensors.append(torch.ones(1, 1, 2, 3))
        assert (len(empty), empty.get_seq_length(), len(empty.to_legacy_cache())) == (1, 2, 1)
        cache.key_cache = [keys[:, :, :1] for keys in cache.key_cache]
        cache.value_cache = [values[:, :, :1] for values in cache.value_cache]
        assert cache.get_seq_length() == 1
        del cache.key_cache[1:], cache.value_cache[1:]
        assert len(cache) == 1
        cache.key_cache = []
        cache.value_cache = []
        assert (len(cache), cache.get_seq_length()) == (0, 0)


def test_pairs() -> None:
    with legacy_cache():
        cache = filled()
        assert [keys.shape[2] for keys, values in cache] == [5, 5]
        assert cache[0][0].shape == (1, 1, 5, 3)
        assert torch.equal(cache[-1][1], cache.layers[1].values)
        with pytest.raises(KeyError, match="one of the 2 layers"):
            cache[2]
        again = DynamicCache.from_legacy_cache(cache.to_legacy_cache())
        assert all(map(torch.equal, again.key_cache, cache.key_cache))
        assert DynamicCache.from_legacy_cache().get_seq_length() == 0


def test_lengths() -> None:
    with legacy_cache():
        cache = filled()
        assert (cache.get_max_length(), cache.get_max_cache_shape(), cache.get_usable_length(3)) == (None, None, 5)
        assert cache.seen_tokens == 5
        cache.crop(9)
        assert cache.get_seq_length() == 5
        cache.crop(4)
        assert (cache.get_seq_length(), cache.seen_tokens) == (4, 4)
        cache.crop(-1)
        assert (cache.get_seq_length(), cache.seen_tokens) == (3, 3)
        for layer in range(2):
            cache.key_cache[layer] = cache.key_cache[layer][:, :, :2]
        assert cache.seen_tokens == 3  # as it was: cutting tensors does not count
        cache._seen_tokens -= 1
        assert cache.seen_tokens == 2
        cache.crop(0)
        assert cache.get_seq_length() == 0


@pytest.mark.rest
def test_the_library_keeps_its_own_methods() -> None:
    """Assisted generation crops by 0, which once meant to empty the cache."""
    theirs: dict[str, Any] = {"__name__": "transformers.generation.utils"}
    exec("def use(cache):\n cache.crop(0)\n return cache.get_max_length(), [len(one) for one in cache]", theirs)
    with legacy_cache():
        cache = filled()
        assert theirs["use"](cache) == (-1, [3, 3])
        assert cache.get_seq_length() == 5

    def assisted(target: Any, draft: Any, request: Request) -> Any:
        with legacy_cache():
            return load("transformers")(target, draft, request)

    assert fingerprints(assisted) == {None}


def test_rows_apart_and_together() -> None:
    with legacy_cache():
        cache = filled(rows=3)
        single = cache.batch_split(3, 1)
        assert [one.key_cache[1].shape[0] for one in single] == [1, 1, 1]
        together = DynamicCache.from_batch_splits(single)
        assert all(map(torch.equal, together.value_cache, cache.value_cache))


def test_the_function_that_cropped() -> None:
    with legacy_cache():
        from transformers.generation.candidate_generator import _crop_past_key_values

        assert _crop_past_key_values(None, filled(), 2).get_seq_length() == 2
        assert _crop_past_key_values(None, filled().to_legacy_cache(), 2)[1][0].shape[2] == 2


@pytest.mark.parametrize("make", [model, lambda: tiny("llama")])
def test_tuples_in_and_out(make: Callable[[], Any]) -> None:
    target = make()
    whole = target(IDS).logits
    with legacy_cache(target):
        first = target(IDS[:, :3])
        given = [(keys[:, :, :2], values[:, :, :2]) for keys, values in first.past_key_values]
        second = target(IDS[:, 2:], past_key_values=given)
        assert torch.allclose(second.logits, whole[:, 2:])
        assert [len(pair) for pair in second.past_key_values] == [2] * target.config.num_hidden_layers
        assert target(IDS, use_cache=False).past_key_values is None
        cache = DynamicCache()
        assert target(IDS, past_key_values=cache).past_key_values is cache
        new = target.generate(IDS, max_new_tokens=3, do_sample=False, pad_token_id=0)
    assert torch.equal(new, target.generate(IDS, max_new_tokens=3, do_sample=False, pad_token_id=0))


def test_inputs_are_prepared_for_a_loop_of_its_own() -> None:
    target = model()
    mask = torch.tensor([[0, 0, 1, 1, 1]])
    with legacy_cache(target):
        past = target(IDS[:, :3]).past_key_values
        inputs = target.prepare_inputs_for_generation(IDS, past_key_values=past, attention_mask=mask, use_cache=True)
        assert inputs["input_ids"].tolist() == [[1, 5]]
        assert inputs["position_ids"].tolist() == [[1, 2]]
        assert target.prepare_inputs_for_generation(IDS)["input_ids"].shape == (1, 5)


def test_tuples_alone_are_refused_with_a_hint() -> None:
    with pytest.raises(TypeError, match=r"eqcheck\.compat\.legacy_cache"):
        model()(IDS, past_key_values=((IDS, IDS),))


def test_what_has_no_tuples() -> None:
    target = model("recurrent")
    with legacy_cache(target), pytest.raises(UsageError, match="recurrent"):
        target(IDS)
    with pytest.raises(UsageError, match="take past_key_values, got Linear"), legacy_cache(torch.nn.Linear(1, 1)):
        pass


def tuples(keep: int) -> Callable[[Any, Any, Request], list[list[int]]]:
    """A decoder for transformers 4, one row after the other; it keeps so many entries of a rejected draft."""

    def generate(target: Any, draft: Any, request: Request) -> list[list[int]]:
        with legacy_cache(target):
            return [row(target, draft, prompt, request) for prompt in request.prompts]

    def row(target: Any, draft: Any, prompt: list[int], request: Request) -> list[int]:
        ids, past, held = list(prompt), None, 0
        while len(ids) < len(prompt) + request.max_new_tokens:
            fed = ids[held:]
            block = list(ids)
            for _ in range(request.num_draft_tokens):
                block.append(int(draft(torch.tensor([block]), use_cache=False).logits[0, -1].argmax()))
            out = target(torch.tensor([block[held:]]), past_key_values=past)
            answers = out.logits[0, len(fed) - 1 :].argmax(-1).tolist()
            drafts = block[len(ids) :]
            accepted = next(
                (i for i, pair in enumerate(zip(drafts, answers, strict=False)) if pair[0] != pair[1]), len(drafts)
            )
            ids += answers[: accepted + 1]
            held = len(ids) - 1
            past = tuple((k[:, :, : held + keep], v[:, :, : held + keep]) for k, v in out.past_key_values)
            new = ids[len(prompt) :][: request.max_new_tokens]
            if ended := [i for i, token in enumerate(new) if token in request.eos_token_ids]:
                return new[: ended[0] + 1]
        return ids[len(prompt) :][: request.max_new_tokens]

    return generate


@pytest.mark.rest
def test_a_decoder_with_tuples() -> None:
    assert fingerprints(tuples(keep=0)) == {None}
    assert fingerprints(tuples(keep=0), families=("window", "mask-order", "slot-distance")) == {None}
    assert "cache/stale-entry" in fingerprints(tuples(keep=1))


# --- texts ------------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 99)))
@settings(max_examples=50, deadline=None)
def test_texts_are_ids(ids: list[int]) -> None:
    tokenizer = IdTokenizer(100, pad_token_id=7, eos_token_ids=(3,))
    assert tokenizer.encode(tokenizer.decode(ids, skip_special_tokens=True)) == ids
    assert tokenizer.encode(tokenizer.decode(torch.tensor(ids, dtype=torch.long))) == ids
    assert tokenizer.convert_tokens_to_ids(tokenizer.convert_ids_to_tokens(ids)) == ids


def test_batches() -> None:
    tokenizer = IdTokenizer(100, pad_token_id=7)
    texts = ["7 7 1", "2"]  # the mask does not come from the pad id
    batch = tokenizer(texts, padding=True, return_tensors="pt").to("cpu")
    assert batch["input_ids"].tolist() == [[7, 7, 1], [7, 7, 2]]
    assert batch.attention_mask.tolist() == [[1, 1, 1], [0, 0, 1]]
    tokenizer.padding_side = "right"
    wide = tokenizer(texts, padding="max_length", max_length=5, truncation=True, return_tensors="pt")
    assert wide.input_ids.tolist() == [[7, 7, 1, 7, 7], [2, 7, 7, 7, 7]]
    plain = tokenizer(texts, truncation=True, max_length=2)
    assert plain.input_ids == [[7, 7], [2]]
    padded = tokenizer.pad(tokenizer(texts), padding_side="left", return_tensors="pt", pad_to_multiple_of=4)
    assert padded.attention_mask.tolist() == [[0, 1, 1, 1], [0, 0, 0, 1]]
    assert tokenizer.pad([{"input_ids": [1, 2]}, {"input_ids": [3]}])["input_ids"] == [[1, 2], [3, 7]]
    assert tokenizer("4 5")["input_ids"] == [4, 5]
    assert tokenizer("4 5", return_tensors="pt").input_ids.shape == (1, 2)
    assert tokenizer.batch_decode(wide.input_ids) == ["7 7 1 7 7", "2 7 7 7 7"]
    assert (tokenizer.decode(4), tokenizer.decode(torch.tensor(4)), tokenizer.decode([])) == ("4", "4", "")


def test_special_tokens() -> None:
    tokenizer = IdTokenizer(100, pad_token_id=None, eos_token_ids=[3])
    assert (tokenizer.pad_token, tokenizer.eos_token, tokenizer.eos_token_id, len(tokenizer)) == (None, "3", 3, 100)
    with pytest.raises(UsageError, match="pad_token_id, it is None"):
        tokenizer(["1 2", "3"], padding=True)
    tokenizer.pad_token = tokenizer.eos_token
    assert (tokenizer.pad_token_id, tokenizer.all_special_ids) == (3, [3])
    assert IdTokenizer(100, 0).eos_token_id is None
    with pytest.raises(Unsupported, match="the request has 2"):
        _ = IdTokenizer(100, 0, (1, 2)).eos_token
    outside = IdTokenizer(100, pad_token_id=100, eos_token_ids=(-1,))  # ids that no target emits
    assert outside.encode("100 -1 99") == [100, -1, 99]


@pytest.mark.parametrize("text", ["hello", "100", "1 -1", "1,2", "1.0", "\u0663\u0663\u0663"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"text: expected ids of 0\.\.99 with spaces between, got '"):
        IdTokenizer(100, pad_token_id=7).encode(text)


def by_text(lost: str) -> Callable[[Any, Any, Request], list[list[int]]]:
    """A decoder from text to text whose rows lose what the caller names."""

    def generate(target: Any, draft: Any, request: Request) -> list[list[int]]:
        tokenizer = IdTokenizer(target.config.vocab_size, request.pad_token_id, request.eos_token_ids)
        texts = [tokenizer.decode(prompt) for prompt in request.prompts]
        batch = tokenizer(texts, return_tensors="pt", padding=True)
        output = target.generate(
            **batch, max_new_tokens=request.max_new_tokens, do_sample=False, pad_token_id=request.pad_token_id
        )
        new = tokenizer.batch_decode(output[:, batch.input_ids.shape[1] :], skip_special_tokens=True)
        rows = [tokenizer.encode(text) for text in new]
        for i, row in enumerate(rows):
            if ended := [j for j, token in enumerate(row) if token == tokenizer.eos_token_id]:
                rows[i] = row[: ended[0] + (lost != "EOS")]
        return rows

    return generate


def test_a_decoder_of_texts() -> None:
    assert fingerprints(by_text(""), requires=("one-eos",)) == {None}
    assert "bookkeeping/premature-stop" in fingerprints(by_text("EOS"), requires=("one-eos",))


# --- CUDA -------------------------------------------------------------------------------------------------------------

NO_CUDA = not torch.cuda.is_available()


def test_everything_is_on_the_cpu() -> None:
    with no_cuda():
        tensors = [
            torch.ones(2, device="cuda"),
            torch.tensor([1, 2], device=torch.device("cuda", 1)),
            torch.arange(2, device=0),
            torch.ones(2).cuda(),
            torch.ones(2).cuda(0, non_blocking=True),
            torch.ones(2).to("cuda:0"),
            torch.ones(2).to(0),
            torch.ones(2).to(device="cuda", dtype=torch.float64),
            torch.ones(2).pin_memory(),
            torch.ones(2).new_zeros(2, device="cuda"),
            torch.zeros(2, pin_memory=True),
            torch.rand(2, generator=torch.Generator(device="cuda").manual_seed(0), device="cuda"),
        ]
        module = torch.nn.Linear(2, 2).cuda().to("cuda", torch.float64)
        with torch.device("cuda"):
            tensors.append(torch.ones(2))
        tensors[0].record_stream(torch.cuda.current_stream())
    assert {tensor.device.type for tensor in tensors} == {"cpu"}
    assert tensors[7].dtype == module.weight.dtype == torch.float64
    assert torch.ones(2).to(torch.float64).dtype == torch.float64


def test_calls_that_do_nothing() -> None:
    cuda: Any = torch.cuda
    with no_cuda():
        cuda.synchronize()
        cuda.set_device(1)
        cuda.reset_peak_memory_stats()
        cuda.empty_cache()
        cuda.nvtx.range_push("verify")
        cuda.nvtx.range_pop()
        assert cuda.current_device() == 0
        begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        begin.record()
        with cuda.stream(cuda.Stream()), cuda.device(0):
            cuda.current_stream().wait_stream(cuda.default_stream())
            end.record()
        end.synchronize()
        assert 0.0 <= begin.elapsed_time(end) < 1000.0
        assert cuda.Stream().record_event().query()


def contents() -> list[Any]:
    owners: list[Any] = [torch, torch.cuda, torch.cuda.nvtx, torch.Tensor]
    return [dict(vars(owner)) for owner in owners]


def test_cuda_is_what_it_was() -> None:
    before = contents()
    with suppress(KeyError), no_cuda():
        with no_cuda():
            assert torch.ones(1, device="cuda").device.type == "cpu"
        torch.cuda.synchronize()
        assert torch.ones(1).cuda().device.type == "cpu"
        raise KeyError
    assert contents() == before


COMPILES = """
from eqcheck.compat import no_cuda

with no_cuda():
    import torch._dynamo.config
    import torch._inductor.config

    torch._dynamo.config.cache_size_limit = 64
    twice = torch.compile(lambda x: x + x, backend="eager")
    assert twice(torch.ones(2, device="cuda")).tolist() == [2, 2]
assert torch.compile(lambda x: x - 1, backend="eager")(torch.ones(1)).tolist() == [0]
"""


@pytest.mark.rest
def test_code_that_compiles_is_imported_inside() -> None:
    """`torch._dynamo` keeps a rule for each object that has a name in torch, and refuses one with two."""
    subprocess.run([sys.executable, "-c", COMPILES], check=True)


@pytest.mark.skipif(not NO_CUDA, reason="needs a machine without CUDA")
def test_cuda_fails_outside() -> None:
    with no_cuda():
        pass
    for use in (lambda: torch.ones(1).cuda(), lambda: torch.ones(1, device="cuda"), torch.cuda.synchronize):
        with pytest.raises((AssertionError, RuntimeError)):
            use()


def test_a_decoder_on_a_gpu() -> None:
    def generate(target: Any, draft: Any, request: Request) -> Any:
        with no_cuda():
            target.to("cuda")
            rows = []
            for prompt in request.prompts:
                ids = torch.tensor([prompt], device="cuda")
                while ids.shape[1] < len(prompt) + request.max_new_tokens and not ended(ids, prompt, request):
                    ids = torch.cat([ids, target(ids.cuda()).logits[:, -1:].argmax(-1)], 1)
                torch.cuda.synchronize()
                rows.append(ids[0, len(prompt) :].cpu().tolist())
        return rows

    def ended(ids: Any, prompt: list[int], request: Request) -> bool:
        return bool(set(ids[0, len(prompt) :].tolist()) & set(request.eos_token_ids))

    assert fingerprints(generate) == {None}
    assert judge(run(generate, Case(prompts=((1, 2), (3,)), eos_token_ids=(5,)), 60.0)).status == "equivalent"
