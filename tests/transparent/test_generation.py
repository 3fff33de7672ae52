"""A target that answers a row alone in several ways is right in each of them, and nothing else is."""

from __future__ import annotations

from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Phi3Config, Phi3ForCausalLM

from eqcheck.contract.errors import UsageError
from eqcheck.transparent.oracle import Oracle
from eqcheck.transparent.real.loading import ropes_of

torch.set_num_threads(1)
SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
}
PROMPTS = [[5, 9, 2, 44], [7, 3], [3, 3, 8, 1, 60, 21]]
LIMIT = 10
LONG = [1.0 + 0.1 * number for number in range(6)]
Rows = list[list[int]]
any_rope = pytest.mark.parametrize("rope", ["dynamic", "longrope"])


@lru_cache
def model_of(rope: str, seed: int = 1) -> Any:
    """A tiny model in float64 whose rope changes beyond 12 tokens, or a plain one."""
    torch.manual_seed(seed)
    if rope == "dynamic":
        parameters = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
        return (
            LlamaForCausalLM(LlamaConfig(**SIZES, max_position_embeddings=12, rope_parameters=parameters))
            .double()
            .eval()
        )
    if rope == "longrope":  # in a Llama: generate of a Phi-3 begins its cache anew where the rope switches
        factors = {"short_factor": LONG, "long_factor": [3 * one for one in LONG]}
        scaled = {"rope_type": "longrope", "rope_theta": 10000.0, "factor": 4.0, **factors}
        scaled |= {"original_max_position_embeddings": 12}
        return LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=scaled)).double().eval()
    if rope == "phi3":
        factors = {"short_factor": LONG, "long_factor": [3 * one for one in LONG]}
        parameters = {"rope_type": "longrope", "rope_theta": 10000.0, **factors}
        lengths = {"max_position_embeddings": 64, "original_max_position_embeddings": 12}
        return (
            Phi3ForCausalLM(Phi3Config(**SIZES, **lengths, pad_token_id=0, rope_parameters=parameters)).double().eval()
        )
    return LlamaForCausalLM(LlamaConfig(**SIZES)).double().eval()


@torch.no_grad()
def generated(model: Any, cached: bool, prompts: Rows = PROMPTS) -> Rows:
    settings = {"max_new_tokens": LIMIT, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    rows = [model.generate(torch.tensor([prompt]), use_cache=cached, **settings) for prompt in prompts]
    return [row[0, len(prompt) :].tolist() for row, prompt in zip(rows, prompts, strict=True)]


def changed(rows: Rows) -> Rows:
    return [rows[0], [*rows[1][:3], (rows[1][3] + 1) % 61, *rows[1][4:]], *rows[2:]]


@any_rope
def test_what_generate_gives_is_right_with_a_cache_and_without(rope: str) -> None:
    model = model_of(rope)
    plain, cached = generated(model, False), generated(model, True)
    assert plain != cached, "without a difference this shows nothing"
    for rows in (plain, cached):
        verdict = Oracle(model).check(PROMPTS, rows, max_new_tokens=LIMIT)
        assert verdict.status == "equivalent", str(verdict)
        assert verdict.note is not None
        assert verdict.note.facts["statement"] == "rope-by-length"
        assert f"its rope ({rope}) depends on the length" in " ".join(str(verdict).split())
    assert [Oracle(model).truth(prompt, max_new_tokens=LIMIT) for prompt in PROMPTS] == plain
    wrong = Oracle(model).check(PROMPTS, changed(plain), max_new_tokens=LIMIT)
    assert wrong.status == "violation"
    assert f"({rope})" in str(wrong)
    assert Oracle(model).check(PROMPTS, changed(cached), max_new_tokens=LIMIT).status == "violation"


@any_rope
def test_rows_that_go_on_in_neither_way_are_wrong(rope: str) -> None:
    """A row that follows the cache up to where it leaves the other way, and then neither, is held against the cache."""
    model = model_of(rope)
    pairs = zip(generated(model, False), generated(model, True), strict=True)
    row, plain, cached = next((row, *both) for row, both in enumerate(pairs) if both[0][:-1] != both[1][:-1])
    apart = next(at for at in range(LIMIT) if plain[at] != cached[at])
    neither = next(token for token in range(61) if token not in (plain[apart + 1], cached[apart + 1]))
    observed = [*cached[: apart + 1], neither, *cached[apart + 2 :]]
    verdict = Oracle(model).check([PROMPTS[row]], [observed], max_new_tokens=LIMIT)
    assert verdict.status == "violation"
    assert (verdict.rows[0].expected, verdict.rows[0].first) == (tuple(cached), apart + 1)


def test_a_dynamic_rope_keeps_the_longest_row_and_the_oracle_forgets_it() -> None:
    """After a longer row `generate` answers a prompt beyond the original length in another way: that is the model."""
    model = model_of("dynamic")
    long, short = [1 + number % 60 for number in range(24)], [2 + number % 50 for number in range(13)]
    prompts = [long, short]
    for cached in (True, False):
        first = generated(model, cached, [[7]]) and generated(model, cached, [short])
        rows = generated(model, cached, prompts)
        assert rows[1] != first[0], "without a difference this shows nothing"
        oracle = Oracle(model)
        truth = [oracle.truth(prompt, max_new_tokens=LIMIT) for prompt in prompts]
        assert truth == [oracle.truth(prompt, max_new_tokens=LIMIT) for prompt in prompts]
        verdict = oracle.check(prompts, rows, max_new_tokens=LIMIT)
        assert verdict.status == "equivalent", str(verdict)
        assert verdict.note is not None
        assert oracle.check([short], first, max_new_tokens=LIMIT).status == "equivalent"
        assert oracle.check(prompts, changed(rows), max_new_tokens=LIMIT).status == "violation"
        assert oracle.check([short], [rows[1]], max_new_tokens=LIMIT).status == "violation"  # nothing longer before


@any_rope
@pytest.mark.parametrize("cached", [True, False])
def test_watch_agrees(rope: str, cached: bool) -> None:
    model = model_of(rope)
    for told in (True, False):
        with Oracle(model).watch(PROMPTS, max_new_tokens=LIMIT, pad_token_id=0) as watch:
            rows = generated(model, cached)
        assert rows == generated(model, cached), "watching changed what the model answers"
        watch.outputs = rows if told else None
        assert watch.verdict.status == "equivalent", watch.explain()
    with Oracle(model).watch(PROMPTS, max_new_tokens=LIMIT, pad_token_id=0) as watch:
        watch.outputs = changed(generated(model, cached))
    assert watch.verdict.status == "violation"


def test_a_row_beside_a_longer_one_is_told_as_the_rope_of_the_call() -> None:
    """A padded batch of transformers rotates all rows by the longest: no context is wrong, and tokens are."""
    model, width = model_of("longrope"), max(map(len, PROMPTS))
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in PROMPTS])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in PROMPTS])
    with Oracle(model).watch(PROMPTS, max_new_tokens=LIMIT, pad_token_id=0) as watch, torch.no_grad():
        settings = {"max_new_tokens": LIMIT, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        watch.outputs = model.generate(ids, attention_mask=mask, **settings)[:, width:].tolist()
    checked = Oracle(model).check(PROMPTS, watch.outputs, max_new_tokens=LIMIT)
    assert checked.status == watch.verdict.status == "violation"
    assert watch.verdict.explanation is not None
    assert watch.verdict.explanation.facts["statement"] == "rope-of-the-call"


@any_rope
@pytest.mark.filterwarnings("ignore:target. computes in")
@pytest.mark.rest
def test_below_float32_they_are_right_too(rope: str) -> None:
    model = model_of(rope, 3).to(torch.bfloat16)
    try:
        for cached in (True, False):
            oracle, rows = Oracle(model), generated(model, cached)
            assert oracle.check(PROMPTS, rows, max_new_tokens=LIMIT)
            scores = model(input_ids=torch.tensor([[*PROMPTS[1], *rows[1][:4]]]), use_cache=False).logits[0, -1]
            low = [rows[0], [*rows[1][:4], int(scores.argmin()), *rows[1][5:]], rows[2]]
            assert not oracle.check(PROMPTS, low, max_new_tokens=LIMIT)
    finally:
        model.double()


class Other(torch.nn.Module):
    """A Llama whose scores are changed after the call; what ``changes`` gets is the call and its scores."""

    def __init__(self, changes: Any) -> None:
        super().__init__()
        self.model, self.changes = model_of("plain"), changes
        self.config, self.dtype, self.device = self.model.config, torch.float64, "cpu"
        self.eval()

    def forward(self, input_ids: Any, use_cache: bool = False, **words: Any) -> Any:
        told = self.model(input_ids=input_ids, use_cache=use_cache, **words)
        return self.changes(told, input_ids, use_cache, bool(words.get("cache") or words.get("past_key_values")))


def looks_ahead(told: Any, ids: Any, use_cache: bool, continued: bool) -> Any:
    """Each token of a call is answered by the last one's choice, too: no rope says so."""
    told.logits = told.logits + 0.7 * told.logits[:, -1:]
    return told


def by_cache(told: Any, ids: Any, use_cache: bool, continued: bool) -> Any:
    """Behind a cache all scores are one id further."""
    told.logits = told.logits.roll(1, -1) if continued else told.logits
    return told


def random(told: Any, ids: Any, use_cache: bool, continued: bool) -> Any:
    told.logits = told.logits + torch.randn_like(told.logits)
    return told


def token_by_token(model: Any, prompt: list[int]) -> list[int]:
    row = list(prompt)
    for _ in range(LIMIT):
        row.append(int(model(input_ids=torch.tensor([row])).logits[0, -1].argmax()))
    return row[len(prompt) :]


def test_a_model_that_looks_ahead_is_judged_token_by_token() -> None:
    model = Other(looks_ahead)
    rows = [token_by_token(model, prompt) for prompt in PROMPTS]
    whole = model(input_ids=torch.tensor([[*PROMPTS[0], *rows[0]]])).logits[0].argmax(-1).tolist()
    assert whole[len(PROMPTS[0]) - 1 : -1] != rows[0], "one call would judge it as well"
    assert Oracle(model).check(PROMPTS, rows, max_new_tokens=LIMIT).status == "equivalent"
    assert Oracle(model).check(PROMPTS, changed(rows), max_new_tokens=LIMIT).status == "violation"


def test_where_a_cache_answers_otherwise_both_are_right_and_the_verdict_says_so() -> None:
    model = Other(by_cache)
    plain = [token_by_token(model, prompt) for prompt in PROMPTS]
    verdict = Oracle(model).check(PROMPTS, plain, max_new_tokens=LIMIT)
    assert (verdict.status, verdict.note) == ("equivalent", None)
    cached: Rows = []
    for prompt in PROMPTS:
        row, cache, fed = list[int](), None, prompt
        for _ in range(LIMIT):
            told = model(input_ids=torch.tensor([fed]), use_cache=True, **({"cache": cache} if cache else {}))
            cache, row = told.cache, [*row, int(told.logits[0, -1].argmax())]
            fed = row[-1:]
        cached.append(row)
    assert cached != plain
    verdict = Oracle(model).check(PROMPTS, cached, max_new_tokens=LIMIT)
    assert verdict.status == "equivalent"
    assert verdict.note is not None
    assert verdict.note.facts == {"statement": "cache-answers-otherwise", "row": 0, "token_index": 1}
    assert "returns other tokens with its cache than without" in " ".join(str(verdict).split())
    assert Oracle(model).check(PROMPTS, changed(cached), max_new_tokens=LIMIT).status == "violation"


def test_what_cannot_be_judged_is_refused_with_the_reason() -> None:
    plain = generated(model_of("plain"), True)
    with pytest.raises(UsageError, match=r"expected the same logits for the same tokens, got some that are .* apart"):
        Oracle(Other(random)).check(PROMPTS, plain, max_new_tokens=LIMIT)

    def fails(*_: Any) -> Any:
        raise KeyError("pixel_values")

    with pytest.raises(UsageError, match="takes input_ids alone, and for 4 tokens it raised KeyError: 'pixel_values'"):
        Oracle(Other(fails)).truth(PROMPTS[0], max_new_tokens=LIMIT)
    with pytest.raises(UsageError, match=r"expected logits of each token, \(1, 4, 'vocabulary'\), got \(61,\)"):
        Oracle(Other(lambda told, *_: SimpleNamespace(logits=told.logits[0, 0]))).truth(PROMPTS[0], max_new_tokens=2)


def test_the_ropes_of_each_kind_of_layer_are_known() -> None:
    text = {
        "full_attention": {"rope_type": "dynamic", "original_max_position_embeddings": 8},
        "sliding_attention": {"rope_type": "default"},
    }
    assert ropes_of(SimpleNamespace(rope_parameters=text, max_position_embeddings=32)) == (("dynamic", 8),)
    old = SimpleNamespace(
        rope_scaling={"type": "su"}, original_max_position_embeddings=4096, max_position_embeddings=9999
    )
    assert ropes_of(old) == (("longrope", 4096),)
    assert ropes_of(SimpleNamespace(rope_parameters={"rope_type": "yarn"})) == ropes_of(SimpleNamespace()) == ()
