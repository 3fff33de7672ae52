"""Rows of models below float32: the control is no part that a user may have broken, and no row counts twice."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)

from eqcheck.contract.cache_names import NAMES
from eqcheck.contract.errors import UsageError
from eqcheck.core.result.outcome import Verdict
from eqcheck.transparent.oracle import Oracle

LIMIT = 6
PROMPTS = [[5, 9, 2], [7], [3, 3, 8, 1, 4]]


def llama() -> Any:
    torch.manual_seed(2)
    sizes: dict[str, Any] = {"vocab_size": 64, "tie_word_embeddings": False, "initializer_range": 0.2}
    config = LlamaConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, **sizes)
    return LlamaForCausalLM(config).to(torch.bfloat16).eval()


class Without(torch.nn.Module):
    """A model that takes no notice of some arguments, or ``refuses`` them."""

    def __init__(self, model: Any, *names: str, refuses: bool = False) -> None:
        super().__init__()
        self.model, self.names, self.refuses = model, names, refuses
        self.config, self.dtype, self.device = model.config, model.dtype, model.device

    def forward(self, **words: Any) -> Any:
        if self.refuses and set(self.names) & words.keys():
            raise TypeError(f"unexpected keyword arguments {self.names}")
        return self.model(**{name: value for name, value in words.items() if name not in self.names})


def oracle_of(model: Any) -> Oracle:
    with pytest.warns(UserWarning, match="near-ties are possible"):
        return Oracle(model.eval())


def right(oracle: Oracle) -> list[list[int]]:
    return [oracle.truth(prompt, max_new_tokens=LIMIT) for prompt in PROMPTS]


def check(oracle: Oracle, rows: Sequence[Sequence[int]], prompts: Sequence[Sequence[int]] = PROMPTS) -> Verdict:
    return oracle.check(prompts, rows, max_new_tokens=LIMIT)


def worst(model: Any, prompt: Sequence[int], row: Sequence[int]) -> list[int]:
    """The row with the least likely token of all in its middle."""
    at = len(row) // 2
    logits = model(input_ids=torch.tensor([[*prompt, *row[:at]]]), use_cache=False).logits
    return [*row[:at], int(logits[0, -1].argmin()), *row[at + 1 :]]


@pytest.mark.parametrize("refuses", [True, False])
@pytest.mark.parametrize("names", [("attention_mask", "position_ids"), NAMES], ids=str)
def test_a_broken_mask_or_cache_is_no_noise(names: tuple[str, ...], refuses: bool) -> None:
    model = Without(llama(), *names, refuses=refuses)
    oracle = oracle_of(model)
    rows = right(oracle)
    if names == NAMES and not refuses:
        with pytest.warns(UserWarning, match=r"with its cache a score is .* nats off"):
            assert check(oracle, rows)
    else:
        assert check(oracle, rows)
    verdict = check(oracle, [worst(model, PROMPTS[0], rows[0]), *rows[1:]])
    assert verdict.status == "inconclusive", str(verdict)


def test_a_recurrent_model_is_judged() -> None:
    torch.manual_seed(0)
    config = MambaConfig(vocab_size=64, hidden_size=32, state_size=4, num_hidden_layers=2, initializer_range=0.3)
    model = MambaForCausalLM(config).to(torch.bfloat16)
    oracle = oracle_of(model)
    rows = right(oracle)
    assert check(oracle, rows)
    assert check(oracle, [worst(model, PROMPTS[0], rows[0]), *rows[1:]]).status == "inconclusive"


def test_a_row_that_is_longer_than_the_context_is_over_length() -> None:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=24, n_embd=32, n_layer=1, n_head=2))
    oracle = oracle_of(model.to(torch.bfloat16))
    rows = right(oracle)
    verdict = check(oracle, [[*rows[0], *[1] * 30], *rows[1:]])
    assert verdict.explanation is not None
    assert (verdict.status, verdict.explanation.kind) == ("violation", "over-length")


def test_copies_of_a_row_count_once() -> None:
    model = llama()
    oracle = oracle_of(model)
    prompt, row = PROMPTS[0], right(oracle)[0]
    wrong = worst(model, prompt, row)
    assert check(oracle, [wrong] * 16, [prompt] * 16).status == "inconclusive"
    for limit in range(len(row) // 2 + 1, 20):
        longer = [*wrong[: len(row) // 2 + 1], *[1] * 20][:limit]
        assert oracle.check([prompt], [longer], max_new_tokens=limit).status == "inconclusive"
    said = " ".join(str(check(oracle, [wrong], [prompt])).split())
    assert re.search(r"; 1 of \d+ rows so far have such a token", said), said


@pytest.mark.rest
def test_evidence_that_has_decided_stays() -> None:
    model = llama()
    oracle = oracle_of(model)
    statuses = []
    for first in range(64):
        prompt = [first, 9, first // 2]
        row = oracle.truth(prompt, max_new_tokens=LIMIT)
        statuses.append(check(oracle, [worst(model, prompt, row)], [prompt]).status)
    assert statuses[0] == "inconclusive"
    assert statuses[-1] == "violation"
    decided = statuses.index("violation")
    assert set(statuses[decided:]) == {"violation"}
    for first in range(64):
        prompt = [9, first]
        assert check(oracle, [oracle.truth(prompt, max_new_tokens=LIMIT)], [prompt])
    row = oracle.truth([1, 2, 3], max_new_tokens=LIMIT)
    assert check(oracle, [worst(model, [1, 2, 3], row)], [[1, 2, 3]]).status == "violation"


def test_an_empty_row_is_no_evidence_and_ends_too_early() -> None:
    oracle = oracle_of(llama())
    rows = right(oracle)
    verdict = check(oracle, [[], *rows[1:]])
    assert verdict.explanation is not None
    assert (verdict.status, verdict.explanation.kind) == ("violation", "premature-stop")


def test_scores_that_are_nan_are_no_gap_of_zero() -> None:
    model = llama()
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[0, 0] = torch.nan
    with pytest.raises(UsageError, match="expected finite logits, got NaN"):
        check(oracle_of(model), [[0] * LIMIT] * 3)


# --- what needs no evidence -------------------------------------------------------------------------------------------


def twins() -> Any:
    """A model in which ids 2n and 2n + 1 always have the same score: every token has a near-tie."""
    model = llama()
    with torch.no_grad():
        model.lm_head.weight[1::2] = model.lm_head.weight[::2]
    return model


def other_twin(row: Sequence[int], at: int) -> list[int]:
    return [token ^ 1 if place == at else token for place, token in enumerate(row)]


def found(verdict: Verdict) -> tuple[str, str, int | None]:
    assert verdict.explanation is not None, str(verdict)
    return verdict.status, verdict.explanation.kind, verdict.explanation.row


def test_a_row_that_is_cut_is_sure_beside_a_doubtful_token() -> None:
    model = llama()
    oracle = oracle_of(model)
    rows = right(oracle)
    doubtful = worst(model, PROMPTS[0], rows[0])
    assert found(check(oracle, [doubtful, rows[1][:-1], rows[2]])) == ("violation", "premature-stop", 1)
    assert found(check(oracle, [doubtful, rows[1], [*rows[2], 1]])) == ("violation", "over-length", 2)
    assert found(check(oracle, [doubtful, *rows[1:]])) == ("inconclusive", "unattributed", 0)
    verdict = check(oracle, [doubtful[:-1], *rows[1:]])  # the same row has both
    assert found(verdict) == ("violation", "premature-stop", 0)
    assert verdict.explanation is not None
    assert (verdict.explanation.token_index, verdict.explanation.observed) == (LIMIT - 1, None)
    assert "all of them correct" not in str(verdict)
    assert "5 of 6 tokens were returned, and the last is not an EOS" in " ".join(str(verdict).split())


def test_a_row_that_goes_on_after_its_eos_is_sure_beside_a_doubtful_token() -> None:
    model = llama()
    oracle = oracle_of(model)
    rows = right(oracle)
    eos = next(token for token in rows[2][:-1] if token not in rows[0] + rows[1])
    end = rows[2].index(eos) + 1
    doubtful = worst(model, PROMPTS[0], rows[0])
    asked: dict[str, Any] = {"max_new_tokens": LIMIT, "eos_token_ids": (eos,)}
    assert oracle.check(PROMPTS, [*rows[:2], rows[2][:end]], **asked)
    verdict = oracle.check(PROMPTS, [doubtful, rows[1], rows[2]], **asked)
    assert found(verdict) == ("violation", "past-eos", 2)


def test_exchanged_rows_are_sure_beside_a_doubtful_token_and_through_near_ties() -> None:
    model = twins()
    oracle = oracle_of(model)
    rows = right(oracle)
    assert check(oracle, [oracle_row(oracle, 0, 2), *rows[1:]]).status == "tie"
    for first, second in ((rows[1], rows[2]), (oracle_row(oracle, 1, 2), rows[2])):
        for here in (rows[0], worst(model, PROMPTS[0], rows[0])):
            assert found(check(oracle, [here, second, first])) == ("violation", "row-swap", 1)
    # A row that is doubtful, and is by chance no other row's, is no swap.
    assert found(check(oracle, [rows[0], worst(model, PROMPTS[1], rows[1]), rows[2]]))[0] == "inconclusive"


def oracle_row(oracle: Oracle, row: int, at: int) -> list[int]:
    """The right row of a prompt in which one token is the twin of the target's first choice."""
    begin = other_twin(oracle.truth(PROMPTS[row], max_new_tokens=at + 1), at)
    return begin + oracle.truth(PROMPTS[row] + begin, max_new_tokens=LIMIT - at - 1)


@pytest.mark.parametrize("pads", [0, 2])
def test_rows_with_their_prompt_are_sure_beside_a_doubtful_token_and_through_near_ties(pads: int) -> None:
    model = twins()
    oracle = oracle_of(model)
    tied = oracle_row(oracle, 2, 1)
    rows = [*right(oracle)[:2], tied]
    whole = [[0] * pads + prompt + row for prompt, row in zip(PROMPTS, rows, strict=True)]
    verdict = oracle.check(PROMPTS, whole, max_new_tokens=LIMIT, pad_token_id=0)
    assert found(verdict)[:2] == ("violation", "prompt-in-output")
    doubtful = worst(model, PROMPTS[0], rows[0])
    verdict = oracle.check(PROMPTS, [doubtful, *whole[1:]], max_new_tokens=LIMIT, pad_token_id=0)
    assert found(verdict) == ("violation", "prompt-in-output", 1)


def test_an_open_verdict_says_so_and_what_is_missing_and_a_tie_has_its_own_words() -> None:
    model = twins()
    oracle = oracle_of(model)
    rows = right(oracle)
    tie = check(oracle, [oracle_row(oracle, 0, LIMIT - 2), *rows[1:]])
    assert (tie.status, tie.ties) == ("tie", 1)
    said = "tie: 3 rows, 1 token differs from the target's own choice by no more than rounding; all others are"
    assert str(tie).startswith(said)
    said = str(check(oracle, [worst(model, PROMPTS[0], rows[0]), *rows[1:]]))
    assert re.match(r"inconclusive: 1 of \d rows goes further from the target than rounding does; the evidence", said)
    assert "10^6 decides: check more rows with this oracle" in " ".join(said.split())
    assert "unattributed" not in said


def test_a_small_model_is_computed_on_one_thread() -> None:
    model, threads = llama(), set[int]()
    model.register_forward_pre_hook(lambda *_: threads.add(torch.get_num_threads()))
    oracle = oracle_of(model)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        rows = [oracle.truth(prompt, max_new_tokens=LIMIT) for prompt in PROMPTS]
        check(oracle, [worst(model, PROMPTS[0], rows[0]), *rows[1:]])
        assert torch.get_num_threads() == 2
        threads.clear()
        check(oracle, rows)
        assert threads == {1}
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_recurrent_decode_is_the_control_of_one(dtype: torch.dtype) -> None:
    """Its cache takes one token at a time; in one call with several it begins anew, which is no noise and no news."""
    torch.manual_seed(0)
    config = MambaConfig(vocab_size=64, hidden_size=32, state_size=4, num_hidden_layers=2, initializer_range=0.3)
    oracle = oracle_of(MambaForCausalLM(config).to(dtype))
    fed: list[int] = []
    oracle.target.register_forward_pre_hook(
        lambda _, __, words: fed.append(words["input_ids"].shape[1]), with_kwargs=True
    )
    rows = right(oracle)
    fed.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert check(oracle, rows)
    assert fed.count(1) >= len(PROMPTS) * (LIMIT - 1)


# --- right rows that were rounded otherwise ---------------------------------------------------------------------------


def routed() -> Any:
    """A model whose experts are chosen by scores that lie close to each other."""
    torch.manual_seed(1)
    sizes: dict[str, Any] = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    config = MixtralConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, num_local_experts=4)
    model = MixtralForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.25)
    return model.to(torch.bfloat16)


@torch.no_grad()
def in_float32(model: Any, prompt: Sequence[int]) -> list[int]:
    """The row that the same weights give where nothing is rounded to their dtype."""
    exact, row = copy.deepcopy(model).float(), list(prompt)
    while len(row) < len(prompt) + LIMIT:
        row.append(int(exact(input_ids=torch.tensor([row]), use_cache=False).logits[0, -1].argmax()))
    return row[len(prompt) :]


@pytest.mark.rest
@pytest.mark.parametrize("make", [llama, routed])
def test_a_row_that_was_rounded_otherwise_is_right_where_the_calls_of_the_control_agree_to_the_bit(make: Any) -> None:
    model = make()
    passed = missed = 0
    for seed in range(40):
        prompt = torch.randint(1, 64, (6,), generator=torch.Generator().manual_seed(seed)).tolist()
        row = in_float32(model, prompt)
        passed += bool(check(oracle_of(model), [row], [prompt]))
        missed += bool(check(oracle_of(model), [worst(model, prompt, row)], [prompt]))
    assert (passed, missed) == (40, 0)
