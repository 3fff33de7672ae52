"""Rows of models below float32: the control is no part that a user may have broken, and no row counts twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MambaConfig, MambaForCausalLM

from eqcheck.contract.cache_names import NAMES
from eqcheck.oracle.check import Oracle
from eqcheck.result.verdict import Verdict

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
    assert "so far: 1 of" in " ".join(str(check(oracle, [wrong], [prompt])).split())


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
