"""Code in the style of what is published is audited with an adapter of under 60 lines, and read as what it is."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from clock import CHECKPOINT, TRANSPARENT, Clock

import eqcheck
from eqcheck.audit.lane import shares
from eqcheck.audit.lanes import lanes_of
from eqcheck.audit.loop import Campaign, audit
from eqcheck.contract.architectures import family_of
from eqcheck.contract.decoders import RowOptions
from eqcheck.core.case.record import Case
from eqcheck.core.case.sampling import SampledCase
from eqcheck.core.result.findings import Options
from eqcheck.sampling.decode import decode
from eqcheck.sampling.judge import certain
from eqcheck.transparent.coverage import try_case
from eqcheck.transparent.search import Source

WILD = Path(__file__).parents[1] / "wild"


def shown(decoder: Any, target: str, count: int = 6) -> Counter[str]:
    source = Source(0, (family_of(target),), decoder.padding_sides, ("empty",), decoder.requires)
    with decoder.running() as generate:
        found = [try_case(generate, case, None) for case in source.chunk(0, count)]
    return Counter(one.fingerprint or one.status for one in found)


@pytest.mark.parametrize("name", ["own_loop", "slab", "repad", "holes"])
def test_adapters_are_short(name: str) -> None:
    tree = ast.parse((WILD / f"{name}.py").read_text())
    adapter = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.decorator_list)
    assert int(adapter.end_lineno or 0) - adapter.lineno < 60


@pytest.mark.rest
def test_a_loop_over_the_layers_of_a_model_is_read() -> None:
    """It has neither a cache of transformers nor attention of theirs: keys are known again by their bytes."""
    decoder = eqcheck.load(f"{WILD / 'own_loop.py'}")
    assert shown(decoder, "llama") == {"equivalent": 6}
    module = sys.modules[decoder.function.__module__]
    vars(module)["SHIFTED"] = 1
    try:
        found = shown(decoder, "llama")
    finally:
        vars(module)["SHIFTED"] = 0
    assert found["cache/duplicate-entry"] + found["cache/missing-entry"] + found["cache/misaligned"] > 2
    assert {name.partition("/")[0] for name in found} <= {"cache", "equivalent"}


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("", ""),
        ("position", "position/query-position"),
        ("mask", "mask/token-hidden"),
        ("values", "cache/torn-entry"),
        ("rollback", "cache/stale-entry"),
    ],
)
@pytest.mark.rest
def test_tensors_that_rows_are_written_into_are_read(fault: str, cause: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of them is filled memory, and rows that have ended write what is there already."""
    decoder = eqcheck.load(f"{WILD / 'slab.py'}")
    monkeypatch.setattr(sys.modules[decoder.function.__module__], "FAULT", fault)
    source = Source(1, (family_of("llama"),), decoder.padding_sides, ("empty",), decoder.requires)
    with decoder.running() as generate:
        tried = [(case, try_case(generate, case, None)) for case in source.chunk(0, 12)]
        others = [case for case, one in tried if one.explanation and one.fingerprint != cause]
        asserted = {try_case(generate, case, None, opinion=True).fingerprint for case in others}
    wrong = Counter(one.fingerprint for _, one in tried if one.explanation)
    assert {one.luck[0] for _, one in tried} <= {"", cause}
    assert asserted <= {"unattributed/unattributed"}
    assert wrong[cause] >= 2 * len(others)
    assert bool(cause) == bool(wrong)


def test_attention_for_each_request_by_itself_is_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = eqcheck.load(f"{WILD / 'slab.py'}")
    module = sys.modules[decoder.function.__module__]
    together = vars(module)["sdpa"]

    def apart(q: Any, k: Any, v: Any, attn_mask: Any) -> Any:
        rows = [together(q[i : i + 1], k[i : i + 1], v[i : i + 1], attn_mask[i : i + 1]) for i in range(len(q))]
        return torch.cat(rows)

    monkeypatch.setattr(module, "sdpa", apart)
    case = Case(prompts=((5, 7, 9), (1, 2)), max_new_tokens=3, num_draft_tokens=2, family=family_of("llama"))
    with decoder.running() as generate:
        assert "one call of attention in each layer" in try_case(generate, case, None).declined


@pytest.mark.parametrize("target", ["llama", "gpt2"])
@pytest.mark.rest
def test_pads_by_value_hide_a_token_that_is_the_pad_id(target: str) -> None:
    found = shown(eqcheck.load(f"{WILD / 'repad.py'}"), target, 12)
    assert found["mask/token-hidden"]
    assert set(found) == {"mask/token-hidden", "equivalent"}


@pytest.mark.parametrize("target", ["llama", "gpt2"])
@pytest.mark.rest
def test_holes_without_position_ids_leave_positions_wrong(target: str) -> None:
    found = shown(eqcheck.load(f"{WILD / 'holes.py'}"), target)
    assert found["position/query-position"] > 2
    assert set(found) == {"position/query-position", "equivalent"}


def test_rows_that_share_pages_in_a_call_without_a_batch_are_right() -> None:
    """Two rows have one prompt, so a query is taken for the other row's."""
    warm = RowOptions(20, temperature=0.7)
    rows = (warm, replace(warm, temperature=1.0, top_p=0.95, min_p=0.1), replace(warm, min_p=0.1))
    case = SampledCase(
        prompts=((2, 63, 14, 62, 51), (31,), (26,), (2, 63, 14, 62, 51)),
        rows=(*rows, replace(warm, seed=5082192436029195948)),
        num_draft_tokens=6,
        pad_token_id=13,
        padding_side="right",
        seed=1,
        regime="near4",
        scale=0.25,
        mix=0.09375,
        entropy=92115414575843,
    )
    with eqcheck.load(f"{WILD / 'packed_pages.py'}").running() as generate:
        assert certain(decode(generate, case)).explanation is None


@pytest.mark.long
def test_options_of_rows_are_asked_of_a_decoder_that_is_called_with_models() -> None:
    decoder = eqcheck.load(f"{WILD / 'without_penalties.py'}")
    lanes = lanes_of(decoder, Options(cases=60))
    assert [(lane.result.lane, lane.total) for lane in lanes] == [("transparent", 45), ("engine", 15)]
    assert len(lanes_of(replace(decoder, capabilities=()), Options(cases=60))) == 1
    result = audit(decoder, Options(cases=150))
    assert {finding.explanation.component for finding in result.violations} == {"options"}
    assert "frequency-penalty" in str([finding.needs for finding in result.violations])


def test_a_budget_leaves_time_for_options(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock().put(monkeypatch, {*TRANSPARENT, *CHECKPOINT}).charge(monkeypatch, Campaign, "tell", 0.5)
    result = audit(eqcheck.load(f"{WILD / 'without_penalties.py'}"), Options(cases=None, budget=20.0))
    lanes = Counter(outcome.case.lane for outcome in result.outcomes)
    assert lanes["transparent"] > 10
    assert lanes["engine"] > 5


@pytest.mark.rest
def test_options_are_not_asked_where_rows_without_any_are_wrong() -> None:
    result = audit(replace(eqcheck.load(f"{WILD / 'holes.py'}"), capabilities=("row-limits",)), Options(cases=10))
    assert result.tally.drawn == shares(10, ["transparent", "engine"])[0]  # the others are of rows with options
    assert any("options of rows were not tested" in warning for warning in result.warnings)
