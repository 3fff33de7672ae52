"""The built LFM2 computes its function, in every dtype; a wrong state of its convolutions shows in the next token."""

from __future__ import annotations

import random
from copy import deepcopy
from typing import Any

import pytest

from eqcheck.checkpoints import built

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("transformers.models.lfm2")

FUNCTION = built("hybrid").function
ROWS = [[random.Random(row).randrange(320) for _ in range(72)] for row in range(8)]


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("hybrid")
    built("hybrid").save(folder, request.param)
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=request.param).eval()


def after(model: Any, ids: Any) -> Any:
    """A cache that holds these ids."""
    cache = transformers.DynamicCache(config=model.config)
    with torch.no_grad():
        model(ids, past_key_values=cache)
    return cache


def test_the_model_computes_the_function_in_blocks_of_five(model: Any) -> None:
    cache, ids = transformers.DynamicCache(config=model.config), torch.tensor(ROWS)
    with torch.no_grad():
        blocks = [model(ids[:, i : i + 5], past_key_values=cache).logits for i in range(0, ids.shape[1], 5)]
    logits, right = torch.cat(blocks, 1).double(), torch.tensor([FUNCTION.choices(row) for row in ROWS])[..., None]
    others = logits.scatter(-1, right, float("-inf")).amax(-1)
    assert (logits.gather(-1, right)[..., 0] - others).min() > 0.9  # a wrong bit costs at least 1


def test_rows_of_other_lengths_are_padded_on_the_left(model: Any) -> None:
    ids, mask = torch.full((8, 72), 7), torch.zeros(8, 72, dtype=torch.long)
    lengths = [1, 2, 3, 5, 9, 20, 40, 72]
    for row, length in enumerate(lengths):
        ids[row, -length:], mask[row, -length:] = torch.tensor(ROWS[row][:length]), 1
    with torch.no_grad():
        logits = model(ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0)).logits
    right = [FUNCTION.next(row[:length]) for row, length in zip(ROWS, lengths, strict=True)]
    assert logits[:, -1].argmax(-1).tolist() == right


@pytest.mark.parametrize("state", ["another row", "zero", "a token more", "a token less"])
def test_a_wrong_state_changes_the_next_token(state: str, model: Any) -> None:
    ids = torch.tensor(ROWS)
    cache, more, less = (after(model, ids[:, :length]) for length in (60, 61, 59))
    wrong = {"another row": cache, "zero": cache, "a token more": more, "a token less": less}[state]
    for layer, other in zip(cache.layers, deepcopy(wrong.layers), strict=True):
        if hasattr(layer, "conv_states"):
            states = other.conv_states[0]
            layer.conv_states[0] = {"another row": states.roll(1, 0), "zero": states * 0}.get(state, states)
    with torch.no_grad():
        logits = model(torch.tensor([[7]] * 8), past_key_values=cache).logits
    right = [FUNCTION.next([*row[:60], 7]) for row in ROWS]
    same = [token == other for token, other in zip(logits[:, -1].argmax(-1).tolist(), right, strict=True)]
    assert sum(same) <= 1  # two changes of a code are equal once in 256 times
