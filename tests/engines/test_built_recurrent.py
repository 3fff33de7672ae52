"""Built models with a state compute their function, in every dtype, and a wrong state shows within eight tokens."""

from __future__ import annotations

import random
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import pytest

from eqcheck.checkpoints import built
from eqcheck.engines.construction.function import CODES, DeltaRule, Function, Head, shuffled

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("transformers.models.lfm2")
pytest.importorskip("transformers.models.qwen3_5")
pytest.importorskip("transformers.models.granitemoehybrid")

ROWS = [random.Random(row).choices(range(320), k=72) for row in range(8)]
COUNT = 8


@pytest.fixture(
    scope="module",
    params=[(name, dtype) for name in ("hybrid", "delta", "mamba") for dtype in ("float32", "bfloat16", "float16")],
)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Function, Any]:
    """A function, and a model that has it."""
    name, dtype = request.param
    folder = tmp_path_factory.mktemp(name)
    built(name).save(folder, dtype)
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return built(name).function, model.eval()


@pytest.mark.tiers(quick=0, rest=1)
def test_the_model_computes_the_function_in_blocks_of_five(case: tuple[Function, Any]) -> None:
    function, model = case
    cache, ids = transformers.DynamicCache(config=model.config), torch.tensor(ROWS)
    with torch.no_grad():
        blocks = [model(ids[:, i : i + 5], past_key_values=cache).logits for i in range(0, ids.shape[1], 5)]
    logits, right = torch.cat(blocks, 1).double(), torch.tensor([function.choices(row) for row in ROWS])[..., None]
    others = logits.scatter(-1, right, float("-inf")).amax(-1)
    assert (logits.gather(-1, right)[..., 0] - others).min() > 0.9  # a wrong bit costs at least 1


@pytest.mark.tiers(quick=3, rest=1)
def test_rows_of_other_lengths_are_padded_on_the_left(case: tuple[Function, Any]) -> None:
    function, model = case
    ids, mask = torch.full((8, 72), 7), torch.zeros(8, 72, dtype=torch.long)
    lengths = [1, 2, 3, 5, 9, 20, 40, 72]
    for row, length in enumerate(lengths):
        ids[row, -length:], mask[row, -length:] = torch.tensor(ROWS[row][:length]), 1
    with torch.no_grad():
        logits = model(ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0)).logits
    right = [function.next(row[:length]) for row, length in zip(ROWS, lengths, strict=True)]
    assert logits[:, -1].argmax(-1).tolist() == right


def decoded(model: Any, cache: Any) -> list[list[int]]:
    """The tokens that follow a 7 behind the cache."""
    ids, tokens = torch.full((len(ROWS), 1), 7), []
    with torch.no_grad():
        for _ in range(COUNT):
            ids = model(ids, past_key_values=cache).logits[:, -1:].argmax(-1)
            tokens.append(ids)
    rows: list[list[int]] = torch.cat(tokens, 1).tolist()
    return rows


def with_states(cache: Any, other: Any, kind: str) -> Any:
    """The cache with one kind of states of another one; ``other`` may be an order of rows, or ``None`` for zeros."""
    cache = deepcopy(cache)
    for number, layer in enumerate(cache.layers):
        held = getattr(layer, kind, {0: None})
        if held[0] is None:
            continue
        if isinstance(other, list):
            held[0] = held[0][other]
        else:
            held[0] = getattr(other.layers[number], kind)[0].clone() if other else torch.zeros_like(held[0])
    return cache


@pytest.mark.parametrize("kind", ["conv_states", "recurrent_states"])
@pytest.mark.tiers(quick=13, rest=1)
def test_a_wrong_state_changes_the_rows(case: tuple[Function, Any], kind: str) -> None:
    function, model = case
    if model.dtype != torch.float32 or (kind == "recurrent_states" and not any(function.rules)):
        pytest.skip("of one dtype, and of models with such states")
    caches = {}
    for length in (57, 60, 61, 64):
        caches[length] = transformers.DynamicCache(config=model.config)
        with torch.no_grad():
            model(torch.tensor(ROWS)[:, :length], past_key_values=caches[length])
    right = [function.emitted([*row[:60], 7], COUNT) for row in ROWS]
    assert decoded(model, deepcopy(caches[60])) == right
    for other in (None, [*range(1, 8), 0], caches[57], caches[61], caches[64]):
        tokens = decoded(model, with_states(caches[60], other, kind))
        same = [row for row, correct in zip(tokens, right, strict=True) if row == correct]
        assert len(same) <= (other is caches[61])  # of one token too many, no later token may have asked yet


def rule(**settings: Any) -> DeltaRule:
    """A rule that joins in the last code behind one with the same three bits, as it is."""
    usual = {"key": (0, 1, 2), "query": (0, 1, 2), "key_distance": 1, "value_distance": 0}
    return DeltaRule(**{**usual, **settings}, order=tuple(range(8)), flips=(False,) * 8)


def read(memory: DeltaRule, codes: Sequence[int]) -> list[int]:
    reader = memory.reader()
    return [reader(codes[: i + 1]) for i in range(len(codes))]


def test_a_rule_keeps_the_last_code_by_class() -> None:
    assert read(rule(), [1, 16, 1, 8, 9]) == [0, 0, 16, 1, 8]  # 16 and 8 have class 0; 1 and 9 have class 1
    assert read(rule(key_distance=0, query=(3, 4, 5), value_distance=1), [1, 2, 8, 16]) == [0, 0, 0, 1]
    assert read(rule(writing=3), [1, 16, 9, 1]) == [0, 0, 0, 0]
    assert read(rule(writing=3), [1, 9, 16, 1]) == [0, 9, 0, 9]
    assert read(rule(forgetting=(6, 7)), [1, 16, 192, 1]) == [0, 0, 192, 0]


def test_a_tap_of_a_convolution_contributes_nothing_before_the_beginning() -> None:
    tap = Head(((2, 0),), 0, tuple(range(8)), (True, *[False] * 7))
    function = Function([[tap]])
    codes = [function.codes_in[token] for token in (5, 6, 7)]
    assert function.choices([5, 6, 7]) == [
        function.tokens_out[code] for code in (codes[0], codes[1], codes[2] ^ codes[0] ^ 1)
    ]


def test_a_function_with_a_memory_looks_at_all_tokens() -> None:
    function = built("delta").function
    row = [token % CODES for token in shuffled(700, "a long row")]
    assert function.next(row) == function.choices(row)[-1]
