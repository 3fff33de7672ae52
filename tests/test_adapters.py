"""The shipped decoders: what each is found to do wrong, and that eqspec works on real architectures."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from eqcheck import registry
from eqcheck.audit import Options, audit
from eqcheck.contract import Request
from eqcheck.oracle import Oracle


@pytest.mark.parametrize("name", ["hf_pr", "bsp", "dsd"])
def test_known_bad_decoders_show_what_they_declare(name: str) -> None:
    result = audit(registry.load(name), Options(cases=300))
    assert result.verdict == "violation"
    assert result.unknown == []
    assert {v.fingerprint for v in result.violations} == set(result.decoder.known)


def test_first_causes() -> None:
    first = {
        name: audit(registry.load(name), Options(cases=150)).violations[0].fingerprint for name in ("hf_pr", "bsp")
    }
    assert first == {"hf_pr": "bookkeeping/premature-stop", "bsp": "position/query-position"}


@pytest.mark.parametrize("name", ["eqspec", "transformers"])
def test_right_decoders_have_no_undeclared_violation(name: str) -> None:
    result = audit(registry.load(name), Options(cases=200, seed=2))
    assert result.verdict == "equivalent" or result.decoder.known


def test_batch_1_only_is_said() -> None:
    result = audit(registry.load("transformers"), Options(cases=20))
    assert any("refuses assisted generation of more than one row" in warning for warning in result.warnings)
    assert any("VACUOUS" in warning and "batched_call" in warning for warning in result.warnings)


def _tiny(kind: str, seed: int) -> Any:
    """A float64 model whose greedy output is varied: untied, standard deviation 0.3."""
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {"vocab_size": 67, "tie_word_embeddings": False, "initializer_range": 0.3}
    if kind == "llama":
        config: Any = LlamaConfig(
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            **sizes,
        )
        model: Any = LlamaForCausalLM(config)
    else:
        model = GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=128, **sizes))
    return model.double().eval()


def _noisy(model: Any, kind: str, scale: float) -> Any:
    """A draft that agrees with the target now and then."""
    draft = _tiny(kind, 0)
    draft.load_state_dict(model.state_dict())
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in draft.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter.add_(scale * noise)
    return draft


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_eqspec_on_real_architectures(kind: str, side: str) -> None:
    torch.set_num_threads(1)
    target = _tiny(kind, 1)
    draft = _noisy(target, kind, 0.02)
    oracle, eqspec = Oracle(target), registry.load("eqspec").function
    generator = torch.Generator().manual_seed(7)
    tokens: set[int] = set()
    accepted: Counter[str] = Counter()
    for trial in range(12):
        lengths = torch.randint(1, 9, (4,), generator=generator).tolist()
        prompts = [torch.randint(0, 67, (n,), generator=generator).tolist() for n in lengths]
        alone = oracle.truth(prompts[0], max_new_tokens=14)
        eos = (alone[5],) if trial % 2 else ()
        calls = _count_calls(target)
        request = Request(prompts, 14, 3, eos, pad_token_id=alone[0], padding_side=side)  # type: ignore[arg-type]
        outputs = eqspec(target, draft, request)
        accepted["rounds"] += calls()
        accepted["tokens"] += max(map(len, outputs))
        verdict = oracle.check(prompts, outputs, max_new_tokens=14, eos_token_ids=eos)
        assert verdict, verdict.explain()
        tokens.update(token for row in outputs for token in row)
    assert len(tokens) > 20, "greedy output is degenerate: the check would be weak"
    assert accepted["rounds"] < accepted["tokens"], "no draft was ever accepted: the check would be weak"


def _count_calls(model: Any) -> Any:
    count = 0

    def hook(*_: Any) -> None:
        nonlocal count
        count += 1

    handle = model.register_forward_pre_hook(hook)

    def stop() -> int:
        handle.remove()
        return count

    return stop
