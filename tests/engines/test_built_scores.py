"""Built checkpoints whose scores are capped, or meet a sink: a decoder without cap or sinks gives other tokens."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eqcheck.checkpoints import built
from eqcheck.engines.abduction.queries import answers, plain_row
from eqcheck.engines.construction.function import Function
from eqcheck.engines.construction.layouts import sinks, softcap
from eqcheck.engines.construction.pointers import AHEAD, CAPPED, PAIRS, POSITIONS, amplitudes, beyond

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("transformers.models.gpt_oss")

NAMES = ("softcap", "sinks")
ROWS = [random.Random(row).choices(range(320), k=160) for row in range(3)]


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("built") / name
    built(name).save(path)
    return path


def loaded(folder: Path, dtype: str = "float32", **settings: Any) -> Any:
    """The model, whose attention is eager: neither architecture has another one in torch."""
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, output_loading_info=True, **settings
    )
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return model.eval()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.tiers(quick=2, rest=1)
def test_the_model_computes_the_function_in_blocks(folder: Path, name: str, dtype: str) -> None:
    model, ids = loaded(folder, dtype), torch.tensor(ROWS)
    cache, blocks = transformers.DynamicCache(config=model.config), []
    with torch.no_grad():
        for begin, end in ((0, 20), (20, 21), (21, 26), (26, 66), (66, 160)):
            blocks.append(model(ids[:, begin:end], past_key_values=cache).logits)
    logits, right = torch.cat(blocks, 1).double(), torch.tensor([built(name).function.choices(row) for row in ROWS])
    others = logits.scatter(-1, right[..., None], float("-inf")).amax(-1)
    assert (logits.gather(-1, right[..., None])[..., 0] - others).min() > 0.9


@pytest.mark.tiers(quick=2, rest=1)
def test_rows_of_other_lengths_are_padded_on_the_left(folder: Path, name: str) -> None:
    model, lengths = loaded(folder, "bfloat16"), (1, 2, 5, 33, 64, 90)
    mask = torch.tensor([[0] * (90 - length) + [1] * length for length in lengths])
    rows = [ROWS[number % 3][:length] for number, length in enumerate(lengths)]
    ids = torch.tensor([[7] * (90 - len(row)) + row for row in rows])
    with torch.no_grad():
        logits = model(ids, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp(min=0)).logits[:, -1]
    assert logits.argmax(-1).tolist() == [built(name).next(row) for row in rows]


def wrong(model: Any, name: str) -> float:
    """The share of tokens that are not those of the function, behind the first 64 of each row."""
    with torch.no_grad():
        told = model(torch.tensor(ROWS)).logits.argmax(-1).tolist()
    right = [built(name).function.choices(row) for row in ROWS]
    pairs = [pair for one, other in zip(told, right, strict=True) for pair in zip(one[64:], other[64:], strict=True)]
    return float(np.mean([a != b for a, b in pairs]))


@pytest.mark.tiers(quick=2, rest=1)
def test_without_the_cap_of_scores_tokens_are_others(folder: Path, name: str) -> None:
    if name != "softcap":
        pytest.skip("of a model with a cap")
    model = loaded(folder)
    assert wrong(model, name) == 0
    for cap in (None, 50.0, 24.0):  # not applied, that of released models, twice its own
        for layer in model.model.layers:
            layer.self_attn.attn_logit_softcapping = cap
        assert wrong(model, name) > 0.98


@pytest.mark.tiers(quick=2, rest=1)
def test_without_the_cap_of_logits_scores_are_others(folder: Path, name: str) -> None:
    if name != "softcap":
        pytest.skip("of a model with a cap")
    model, checkpoint = loaded(folder, "float32"), built(name)
    text = ROWS[0][:80]
    told = {}
    for cap in (30.0, None):
        model.config.final_logit_softcapping = cap
        with torch.no_grad():
            told[cap] = model(torch.tensor([text])).logits[0, -1].double().softmax(-1)
    law = torch.tensor(checkpoint.law(text), dtype=torch.float64)
    assert (told[30.0] - law).abs().max() < 1e-3 < (told[None] - law).abs().max()


@pytest.mark.tiers(quick=2, rest=1)
def test_without_sinks_or_with_those_of_other_heads_tokens_are_others(folder: Path, name: str) -> None:
    if name != "sinks":
        pytest.skip("of a model with sinks")
    model = loaded(folder)
    assert wrong(model, name) == 0
    right = [layer.self_attn.sinks.detach().clone() for layer in model.model.layers]
    for change in ("none", "those of the next head", "zero"):
        for layer, own in zip(model.model.layers, right, strict=True):
            changed = {"none": own - 1e4, "zero": own * 0}
            layer.self_attn.sinks.data = changed.get(change, own.roll(1))
        assert wrong(model, name) > 0.98
    for layer, own in zip(model.model.layers, right, strict=True):
        layer.self_attn.sinks.data = own
    model.model.layers[0].self_attn.sinks.data = right[0] - 1e4 * (torch.arange(16) == 3)  # a single one is ignored
    assert wrong(model, name) > 0.4


def test_a_function_without_sinks_or_with_single_reads_is_another() -> None:
    text = ROWS[0]
    heads = [[replace(head, sink=None, choosing=False) for head in layer] for layer in sinks()]
    read_twice = [[layer[number - number % 2] for number in range(len(layer))] for layer in softcap()]
    for name, layers in (("sinks", heads), ("softcap", read_twice)):
        pairs = zip(built(name).function.choices(text), Function(layers).choices(text), strict=True)
        assert sum(a != b for a, b in pairs) > 0.98 * (len(text) - 64)


def test_capped_scores_of_two_slots_are_alike_and_all_others_far() -> None:
    angles = np.outer(np.arange(-AHEAD, POSITIONS), CAPPED.frequencies)
    rows = amplitudes(CAPPED)
    assert set(rows) == {beyond(far, near) for near, far in PAIRS}
    for near, far in PAIRS:
        cosines, sines = map(np.array, rows[beyond(far, near)])
        plain = np.cos(angles) @ cosines + np.sin(angles) @ sines
        read, own = [AHEAD + near, AHEAD + far], AHEAD
        assert abs(plain[read[0]] - plain[read[1]]) > 11  # without the cap one of them is read alone
        scores = 12 * np.tanh(plain / 12)
        assert abs(scores[read[0]] - scores[read[1]]) < 0.01
        assert scores[read].min() - scores[own] > 11
        assert scores[own] - np.delete(scores, [own, *read]).max() > 11


@pytest.mark.tiers(quick=2, rest=1)
def test_an_edited_context_is_evaluated_as_the_model_answers_it(folder: Path, name: str) -> None:
    """A slot is hidden from all later queries, and a draft that was rejected is seen by the last."""
    model = loaded(folder, "float64", attn_implementation="eager", experts_implementation="eager")
    hidden, doubled = (plain_row(0, ROWS[0][:100], 60) for _ in range(2))
    for query in range(51, 100):
        hidden.sees[query] = [column for column in range(query + 1) if column != 50]
    draft = doubled.write(9, 90, 89)
    doubled.sees[-1] = [*range(90), draft]
    for query in range(91, 100):
        doubled.sees[query] = [*range(query + 1), draft]
    for program in (plain_row(0, ROWS[0][:100], 60), hidden, doubled):
        (by_function,), (by_model,) = answers(built(name).function, [program]), answers(model, [program])
        told, right = (torch.stack([by[key] for key in program.queries]) for by in (by_function, by_model))
        assert (told.argmax(-1) == right.argmax(-1)).double().mean() > 0.9
    plain = built(name).function.choices(ROWS[0][:100])[59:]
    assert torch.stack(list(answers(built(name).function, [hidden])[0].values())).argmax(-1).tolist() != plain
