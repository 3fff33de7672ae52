"""`Oracle.watch`: near-ties are judged, a wrong context is a violation though tokens are right, right code is clean."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import pytest
import torch
from tiny import tiny
from transformers import (
    DynamicCache,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    RoFormerConfig,
    RoFormerForCausalLM,
)

from eqcheck.contract.cache_names import cache_argument
from eqcheck.transparent.oracle import Oracle
from eqcheck.transparent.watch import Watch

torch.set_num_threads(1)
LIMIT, PAD = 6, 0
PROMPTS = [[3, 1, 4, 1, 5], [15], [9, 2, 6]]
Rows = list[list[int]]
Decode = Callable[[Any, Rows], Rows]
DTYPES = [torch.float64, torch.float32, torch.bfloat16]


@lru_cache
def model_of(kind: str, dtype: torch.dtype, twins: bool = False, deaf: bool = False) -> Any:
    """A tiny model; with ``twins`` the ids 2n and 2n + 1 always have the same score, so every token has a near-tie.

    In a ``deaf`` one attention adds next to nothing, so a wrong context changes no token.
    """
    torch.manual_seed(2)
    sizes: dict[str, Any] = {"vocab_size": 48, "tie_word_embeddings": False, "initializer_range": 0.3}
    sizes |= {"bos_token_id": None, "eos_token_id": None}
    model: Any
    if kind == "llama":
        config = LlamaConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, **sizes)
        model = LlamaForCausalLM(config)
    else:
        model = GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=64, **sizes))
    if deaf:
        with torch.no_grad():
            for layer in model.model.layers:
                layer.self_attn.o_proj.weight.mul_(0.002)
    if twins:
        with torch.no_grad():
            model.lm_head.weight[1::2] = model.lm_head.weight[::2]
    return model.to(dtype).eval()


def oracle_of(model: Any) -> Oracle:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Oracle(model)


def watched(
    model: Any, decode: Decode, told: bool = True, prompts: Rows = PROMPTS, limit: int = LIMIT, **asked: Any
) -> Watch:
    oracle = oracle_of(model)
    with torch.no_grad(), oracle.watch(prompts, max_new_tokens=limit, pad_token_id=PAD, **asked) as watch:
        rows = decode(model, prompts)
        if told:
            watch.outputs = rows
    return watch


def padded(prompts: Rows) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(map(len, prompts))
    ids = torch.tensor([[PAD] * (longest - len(prompt)) + prompt for prompt in prompts])
    real = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    return ids, real


def generate(model: Any, prompts: Rows, limit: int = LIMIT, **options: Any) -> Rows:
    ids, real = padded(prompts)
    settings: dict[str, Any] = {"do_sample": False, "pad_token_id": PAD, "eos_token_id": None}
    settings |= {"attention_mask": real, **options}
    rows: Rows = model.generate(ids, max_new_tokens=limit, **settings)[:, ids.shape[1] :].tolist()
    return rows


def fed(model: Any, tokens: Sequence[int], cache: DynamicCache, at: int) -> list[int]:
    """Feed tokens of one row behind what the cache holds, and return what the model predicts after each."""
    positions = torch.arange(at, at + len(tokens))[None]
    told = model(torch.tensor([list(tokens)]), position_ids=positions, **cache_argument(model, cache))
    answers: list[int] = told.logits[0].argmax(-1).tolist()
    return answers


def one_by_one(model: Any, prompt: Sequence[int], limit: int = LIMIT, chunk: int = 64, choose: Any = None) -> list[int]:
    """Decode a row whose prompt is fed ``chunk`` tokens at a time; ``choose`` replaces a token, by its place."""
    cache, row = DynamicCache(), list(prompt)
    for start in range(0, len(prompt), chunk):
        answers = fed(model, prompt[start : start + chunk], cache, start)
    while len(row) < len(prompt) + limit:
        token = answers[-1]
        row.append(choose(len(row) - len(prompt), token) if choose else token)
        if len(row) < len(prompt) + limit:
            answers = fed(model, row[-1:], cache, len(row) - 1)
    return row[len(prompt) :]


# --- near-ties --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("at", [0, 2, LIMIT - 1])
@pytest.mark.tiers(quick=2, rest=16)
def test_a_near_tie_is_a_tie_with_outputs_and_without(kind: str, dtype: torch.dtype, at: int) -> None:
    def decode(model: Any, prompts: Rows) -> Rows:
        return [one_by_one(model, prompt, choose=lambda i, got: got ^ 1 if i == at else got) for prompt in prompts]

    watch = watched(model_of(kind, dtype, twins=True), decode)
    assert watch.verdict.status == "tie", watch.explain()
    assert watch.verdict.ties == len(PROMPTS)
    assert watch.explain().startswith("tie: 3 rows, 3 tokens differ from the target's own choice")
    assert watched(model_of(kind, dtype, twins=True), decode, told=False).verdict


@pytest.mark.parametrize("at", [0, 2])
def test_a_near_tie_that_ends_a_row_ends_it(at: int) -> None:
    model = model_of("llama", torch.bfloat16, twins=True)
    truth = oracle_of(model).truth(PROMPTS[0], max_new_tokens=LIMIT)
    eos = truth[at] ^ 1

    def decode(model: Any, prompts: Rows) -> Rows:
        return [one_by_one(model, prompts[0], choose=lambda i, got: eos if i == at else got)[: at + 1]]

    watch = watched(model, decode, prompts=PROMPTS[:1], eos_token_id=eos)
    assert watch.verdict.status == "tie", watch.explain()

    def cut(model: Any, prompts: Rows) -> Rows:
        return [decode(model, prompts)[0][:-1]]

    assert watched(model, cut, prompts=PROMPTS[:1], eos_token_id=truth[at]).verdict.status == "violation"


def test_a_row_that_is_cut_is_named() -> None:
    def decode(model: Any, prompts: Rows) -> Rows:
        rows = generate(model, prompts)
        return [rows[0], rows[1][:-2], rows[2]]

    for dtype in DTYPES:
        explanation = watched(model_of("llama", dtype), decode).verdict.explanation
        assert explanation is not None
        assert (explanation.kind, explanation.row) == ("premature-stop", 1)


def test_a_token_that_no_query_answered_is_no_tie() -> None:
    def decode(model: Any, prompts: Rows) -> Rows:
        rows = generate(model, prompts)
        rows[1][3] = (rows[1][3] + 2) % 48
        return rows

    verdict = watched(model_of("llama", torch.bfloat16, twins=True), decode).verdict
    assert verdict.status == "violation"


# --- a wrong context with right tokens --------------------------------------------------------------------------------


def seen_pads(model: Any, prompts: Rows) -> Rows:
    ids, _ = padded(prompts)
    return generate(model, prompts, attention_mask=torch.ones_like(ids))


def lost_entry(model: Any, prompts: Rows) -> Rows:
    """The newest entry of the prompt is dropped before the last token is fed."""
    rows = []
    for prompt in prompts:
        cache, row = DynamicCache(), list(prompt)
        if row[:-1]:
            fed(model, row[:-1], cache, 0)
            cache.crop(-1)
        answers = fed(model, row[-1:], cache, len(row) - 1)
        while len(row) < len(prompt) + LIMIT:
            row.append(answers[-1])
            answers = fed(model, row[-1:], cache, len(row) - 1)
        rows.append(row[len(prompt) :])
    return rows


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("decode", "fingerprint"), [(seen_pads, "mask/pad-visible"), (lost_entry, "cache/missing-entry")]
)
def test_a_wrong_context_is_a_violation_though_tokens_are_right(
    decode: Decode, fingerprint: str, dtype: torch.dtype, told: bool
) -> None:
    model = model_of("llama", dtype, deaf=True)
    with torch.no_grad():
        assert decode(model, PROMPTS) == [oracle_of(model).truth(p, max_new_tokens=LIMIT) for p in PROMPTS]
    watch = watched(model, decode, told)
    explanation = watch.verdict.explanation
    assert explanation is not None
    assert (watch.verdict.status, explanation.fingerprint) == ("violation", fingerprint)
    assert watch.verdict.exact_match == 1
    said = " ".join(watch.explain().split())
    assert said.startswith(f"{fingerprint}: ")
    assert "tokens right so far" in said.split(" Case ")[0]
    assert repr(watch.verdict).endswith("tokens right so far>")
    only = watched(model, decode, told, tokens_only=True)
    assert only.verdict.status == "equivalent"


# --- where a wrong token was answered ---------------------------------------------------------------------------------


def takes_from(columns: Sequence[int]) -> Decode:
    """Row r verifies three wrong drafts behind its prompt, and takes the answer in this column for its first token."""

    def decode(model: Any, prompts: Rows) -> Rows:
        rows = []
        for prompt, column in zip(prompts, columns, strict=True):
            cache = DynamicCache()
            truth = int(model(torch.tensor([prompt])).logits[0, -1].argmax())
            drafts = [(truth + 1) % 48, (truth + 2) % 48, (truth + 3) % 48]
            answers = fed(model, prompt + drafts, cache, 0)[len(prompt) - 1 :]
            cache.crop(-3)
            row = [*prompt, answers[column]]
            while len(row) < len(prompt) + LIMIT:
                row += fed(model, row[-1:], cache, len(row) - 1)
            rows.append(row[len(prompt) :])
        return rows

    return decode


@pytest.mark.parametrize(
    ("columns", "said"), [((0, 2, 0), "neither"), ((2, 2, 1), "behind"), ((0, 2, 3), "behind"), ((3, 0, 0), "neither")]
)
def test_one_match_is_no_explanation(columns: Sequence[int], said: str) -> None:
    explanation = watched(model_of("llama", torch.float64), takes_from(columns)).verdict.explanation
    assert explanation is not None
    assert explanation.kind == "wrong-correction"
    assert explanation.facts["statement"] == said, explanation.detail


# --- right code -------------------------------------------------------------------------------------------------------


def verifies_drafts(model: Any, prompts: Rows) -> Rows:
    """Drafts are mostly rejected; some rounds go beyond the row's end."""
    rows = []
    for prompt in prompts:
        cache, row, new = DynamicCache(), list(prompt), list(prompt)
        while len(row) < len(prompt) + LIMIT:
            drafts = [(row[-1] * 7 + 3) % 48, (row[-1] + 5) % 48, row[0]]
            answers = fed(model, new + drafts, cache, len(row) - len(new))[len(new) - 1 :]
            count = next((n for n, draft in enumerate(drafts) if draft != answers[n]), len(drafts))
            row, new = row + answers[: count + 1], answers[count : count + 1]
            if count < len(drafts):
                cache.crop(count - len(drafts))
        rows.append(row[len(prompt) :][:LIMIT])
    return rows


def verifies_a_tree(model: Any, prompts: Rows) -> Rows:
    """Each round feeds the newest token and two siblings behind it, and keeps the first column alone."""
    rows = []
    for prompt in prompts:
        cache, row = DynamicCache(), list(prompt)
        if row[:-1]:
            fed(model, row[:-1], cache, 0)
        while len(row) < len(prompt) + LIMIT:
            past = len(row) - 1
            mask = torch.ones(1, 1, 3, past + 3, dtype=torch.bool).tril(past)
            mask[0, 0, 2, past + 1] = False  # the second sibling does not see the first
            ids = torch.tensor([[row[-1], (row[-1] + 1) % 48, (row[-1] * 5 + 2) % 48]])
            positions = torch.tensor([[past, past + 1, past + 1]])
            told = model(ids, attention_mask=mask, position_ids=positions, **cache_argument(model, cache))
            cache.crop(-2)
            row.append(int(told.logits[0, 0].argmax()))
        rows.append(row[len(prompt) :])
    return rows


def prefills_in_chunks(model: Any, prompts: Rows) -> Rows:
    return [one_by_one(model, prompt, chunk=2) for prompt in prompts]


def prefills_again(model: Any, prompts: Rows) -> Rows:
    """A prefill is thrown away, as after a preemption, and another starts in the middle of nowhere."""
    for prompt in prompts:
        model(torch.tensor([prompt[: len(prompt) // 2 + 1]]))
    rows = [one_by_one(model, prompt, limit=2) for prompt in prompts]
    again = [one_by_one(model, prompt + row, limit=LIMIT - 2) for prompt, row in zip(prompts, rows, strict=True)]
    return [first + rest for first, rest in zip(rows, again, strict=True)]


def warms_up(model: Any, prompts: Rows) -> Rows:
    for ids in (torch.zeros(2, 5, dtype=torch.long), torch.tensor([[7, *prompts[0][2:], 9], [4] * 5])):
        model(ids)
    rows = generate(model, prompts)
    model(torch.tensor([[7, 4, rows[0][2], rows[0][3]]]))
    return rows


def fills_batches(model: Any, prompts: Rows) -> Rows:
    """A batch has rows of padding, as those of captured graphs have."""
    return generate(model, [*prompts, [PAD], [PAD] * 3])[: len(prompts)]


def asks_without_need(model: Any, prompts: Rows) -> Rows:
    """Queries with wrong contexts are made, and what they answer is thrown away."""
    rows = generate(model, prompts)
    for prompt, row in zip(prompts, rows, strict=True):
        whole = prompt + row
        model(torch.tensor([whole[1:]]), position_ids=torch.arange(2, len(whole) + 1)[None])
        model(torch.tensor([[PAD, *whole]]))
    return rows


RIGHT = [generate, verifies_drafts, verifies_a_tree, prefills_in_chunks, prefills_again, warms_up, fills_batches]
RIGHT += [asks_without_need]


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("decode", RIGHT)
@pytest.mark.tiers(quick=4, rest=44)
def test_right_code_is_clean(decode: Decode, dtype: torch.dtype, told: bool) -> None:
    for deaf in (False, True):
        watch = watched(model_of("llama", dtype, deaf=deaf), decode, told)
        assert watch.verdict, watch.explain()


def test_rows_that_ended_stay_in_the_batch() -> None:
    model = model_of("llama", torch.float64)
    eos = oracle_of(model).truth(PROMPTS[0], max_new_tokens=LIMIT)[1]

    def decode(model: Any, prompts: Rows) -> Rows:
        rows = generate(model, prompts, limit=LIMIT, eos_token_id=eos)
        return [row[: row.index(eos) + 1] if eos in row else row for row in rows]

    for told in (True, False):
        assert watched(model, decode, told, eos_token_id=eos).verdict.status == "equivalent"


def test_code_that_stops_early_is_judged_as_far_as_it_went() -> None:
    def decode(model: Any, prompts: Rows) -> Rows:
        rows = generate(model, prompts, limit=2)
        model(torch.tensor([[PAD, 4, rows[0][1]], [9, 9, rows[1][1]]]))
        return rows

    for dtype in DTYPES:
        assert watched(model_of("llama", dtype), decode, told=False).verdict


def test_nothing_is_said_of_tokens_for_which_no_call_was_seen() -> None:
    def decode(model: Any, prompts: Rows) -> Rows:
        generate(model, prompts, limit=2)
        return [[7] * LIMIT for _ in prompts]  # whatever it is, no call shows it

    silent = watched(model_of("llama", torch.float64), decode, told=False)
    seen = sum(len(row.observed) for row in silent.verdict.rows)
    assert silent.verdict.unseen == len(PROMPTS) * LIMIT - seen > 0
    assert f"every token that calls show ({seen} new tokens) is what the target" in silent.explain()
    assert "set `outputs` to judge all" in silent.explain()
    assert not watched(model_of("llama", torch.float64), decode).verdict
    whole = watched(model_of("llama", torch.float64), generate, told=False)
    assert (whole.verdict.unseen, "calls show" in whole.explain()) == (0, False)


@pytest.mark.parametrize("told", [True, False])
def test_what_was_decoded_before_the_watch_is_not_accused(told: bool) -> None:
    model = model_of("llama", torch.float64, deaf=True)
    with torch.no_grad():
        held = []
        for prompt in PROMPTS:
            cache = DynamicCache()
            if prompt[:-1]:
                fed(model, prompt[:-1], cache, 0)
            held.append(cache)

    def goes_on(model: Any, prompts: Rows) -> Rows:
        rows = []
        for prompt, cache in zip(prompts, held, strict=True):
            row = list(prompt)
            while len(row) < len(prompt) + LIMIT:
                row += fed(model, row[-1:], cache, len(row) - 1)
            rows.append(row[len(prompt) :])
        return rows

    watch = watched(model, goes_on, told)
    assert watch.verdict, watch.explain()


def test_a_model_whose_own_decode_is_read_as_wrong_is_not_accused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The family says that all is seen; a model that hides what is far away would be accused of what it always does."""
    monkeypatch.setattr("eqcheck.transparent.watch.family_like", lambda _: "window:3")
    model = model_of("llama", torch.float64, deaf=True)
    assert watched(model, generate).verdict.status == "equivalent"


# --- scores that are no numbers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("told", [True, False])
def test_a_row_that_became_nan_because_of_its_pads_is_no_tie(told: bool) -> None:
    """In float64 masked scores of this model are -inf, so a pad that attends to nothing is NaN, and all behind it."""
    model = tiny("gemma2", num_hidden_layers=4, sliding_window=8)
    prompts, limit = [[5, 9, 2, 44], [3, 3, 8, 1, 60, 21]], 4
    ids = torch.tensor([[0, 0, *prompts[0]], prompts[1]])
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6])
    with Oracle(model).watch(prompts, max_new_tokens=limit, pad_token_id=0) as watch:
        made = model.generate(
            ids, attention_mask=mask, max_new_tokens=limit, do_sample=False, pad_token_id=0, eos_token_id=None
        )
    if told:
        watch.outputs = made[:, 6:].tolist()
    assert made[0, 6:].tolist() == [0] * limit  # what argmax makes of NaN
    verdict = watch.verdict
    assert verdict.status == "violation"
    assert verdict.explanation is not None
    assert (verdict.explanation.component, verdict.explanation.row) == ("unattributed", 0)
    assert "and its scores there are NaN" in " ".join(verdict.explain().split())


def test_rows_of_a_model_that_is_fed_no_pads_are_no_violation() -> None:
    model = tiny("gemma2", num_hidden_layers=4, sliding_window=8)
    prompts = [[5, 9, 2, 44], [3, 3, 8, 1]]
    with Oracle(model).watch(prompts, max_new_tokens=4, pad_token_id=0) as watch:
        made = model.generate(torch.tensor(prompts), max_new_tokens=4, do_sample=False, pad_token_id=0)
    watch.outputs = made[:, 4:].tolist()
    assert watch.verdict.status == "equivalent"


def test_a_model_that_takes_no_position_ids_is_not_read_to_have_wrong_ones() -> None:
    """It counts the tokens of a call by itself, so one call with many tokens says nothing of their other positions."""
    torch.manual_seed(1)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = RoFormerConfig(vocab_size=48, is_decoder=True, initializer_range=0.3, **sizes)
    model = RoFormerForCausalLM(config).double().eval()
    with Oracle(model).watch([[5, 9, 2, 44]], max_new_tokens=4, pad_token_id=0) as watch:
        made = model.generate(
            torch.tensor([[5, 9, 2, 44]]), max_new_tokens=4, do_sample=False, pad_token_id=0, eos_token_id=None
        )
    assert made.shape == (1, 8)
    assert watch.verdict, watch.verdict.explain()  # of the contexts alone
