"""Built checkpoints with norms of queries, learned positions or a compressed cache compute their function exactly."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from eqcheck.checkpoints import built
from eqcheck.engines.construction.function import shuffled

NAMES = ("qwen3", "moe", "learned", "opt", "mla")
TEXTS = [[token % 256 for token in shuffled(300, "text", row)] for row in range(3)]


@pytest.fixture(scope="module", params=NAMES)
def folder(request: Any, tmp_path_factory: Any) -> tuple[str, Path]:
    path = tmp_path_factory.mktemp(request.param)
    built(request.param).draft(0.5).save(path)
    return request.param, path


def loaded(folder: tuple[str, Path], dtype: torch.dtype, **options: Any) -> Any:
    options |= {"experts_implementation": "eager"} if folder[0] == "moe" else {}
    return AutoModelForCausalLM.from_pretrained(folder[1], dtype=dtype, **options).eval()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@torch.no_grad()
@pytest.mark.tiers(quick=3, rest=2)
def test_a_model_says_what_its_function_says_with_a_margin(folder: tuple[str, Path], dtype: torch.dtype) -> None:
    logits = loaded(folder, dtype)(torch.tensor(TEXTS[:1])).logits[0].double()
    best, second = logits.topk(2).values.T
    assert logits.argmax(-1).tolist() == built(folder[0]).draft(0.5).function.choices(TEXTS[0])
    assert (best - second).min() > 0.8


@torch.no_grad()
@pytest.mark.tiers(quick=2, rest=1)
def test_padded_rows_with_a_cache_in_blocks_emit_the_same(folder: tuple[str, Path]) -> None:
    function = built(folder[0]).draft(0.5).function
    model, lengths = loaded(folder, torch.bfloat16, attn_implementation="eager"), (60, 31, 1)
    emitted = [function.emitted(text[:n], 24) for text, n in zip(TEXTS, lengths, strict=True)]
    rows = [[0] * (60 - n) + text[:n] + new for text, n, new in zip(TEXTS, lengths, emitted, strict=True)]
    ids, seen = torch.tensor(rows), torch.tensor([[0] * (60 - n) + [1] * (n + 24) for n in lengths])
    places, cache, start = (seen.cumsum(-1) - 1).clamp(min=0), None, 0
    chosen: list[torch.Tensor] = []
    for end in (60, 61, 66, 82, 83):
        told = model(
            ids[:, start:end],
            attention_mask=seen[:, :end],
            position_ids=places[:, start:end],
            past_key_values=cache,
            use_cache=True,
        )
        cache, start = told.past_key_values, end
        chosen.append(told.logits.argmax(-1))
    assert torch.cat(chosen, 1)[:, 59:].tolist() == emitted
