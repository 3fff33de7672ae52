"""The tap inside vLLM, on a cache as the engine lays it out: right is right, and each fault is told as what it is."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from eqcheck.contract.decoders import RowOptions, decoder
from eqcheck.contract.kinds import FINGERPRINTS
from eqcheck.core.case.engine import EngineCase, EngineRow
from eqcheck.core.result.findings import Audit, Options
from eqcheck.engines.checkpoints.row_judge import Judge, truth
from eqcheck.engines.conclusions import conclusions
from eqcheck.engines.engine_outcome import abduced, explain, judged

tap_module = import_module("eqcheck.adapters.taps.vllm_tap")
HEADS, HEAD_SIZE, BLOCK = 2, 3, 2
PROMPT = [5, 6, 7]


class Engine:
    """An engine of one layer, as far as the tap looks into it."""

    def __init__(self) -> None:
        self.tap = tap_module.Tap()
        self.cache = torch.zeros(6, HEADS, BLOCK, 2 * HEAD_SIZE)
        self.blocks = {"0": [3, 1, 0], "1": [2, 4, 5]}
        self.tokens: dict[str, list[int]] = {"0": [], "1": []}
        self.skip: tuple[int, ...] = ()  # places whose write is lost

    def step(self, fed: dict[str, list[int]], lengths: dict[str, int] | None = None) -> None:
        """Feed tokens, behind those that each request keeps; ``lengths`` are wrong ones."""
        requests = list(fed)
        starts = {request: len(self.tokens[request]) for request in requests}
        ids = [token for request in requests for token in fed[request]]
        known = torch.zeros(len(requests), 16, dtype=torch.int32)
        bounds, rows, new = [0], [], []
        for row, request in enumerate(requests):
            self.tokens[request] = [*self.tokens[request], *fed[request]]
            known[row, : len(self.tokens[request])] = torch.tensor(self.tokens[request])
            bounds.append(bounds[-1] + len(fed[request]))
            rows.append(self.blocks[request])
            new += [(request, starts[request] + n) for n in range(len(fed[request]))]
        keys = torch.stack([self._entry(request, place, 1) for request, place in new])
        values = torch.stack([self._entry(request, place, 2) for request, place in new])
        for (request, place), key, value in zip(new, keys, values, strict=True):
            if place not in self.skip:
                self._write(self.blocks[request][place // BLOCK], place % BLOCK, key, value)
        batch = SimpleNamespace(
            req_ids=requests,
            num_computed_tokens_cpu=[starts[request] for request in requests],
            token_ids_cpu=known.numpy(),
        )
        length = {request: len(self.tokens[request]) for request in requests} | (lengths or {})
        self.tap.begin(SimpleNamespace(input_batch=batch, input_ids=SimpleNamespace(gpu=torch.tensor(ids))))
        metadata = SimpleNamespace(
            query_start_loc=torch.tensor(bounds),
            seq_lens=torch.tensor([length[request] for request in requests]),
            block_table=torch.tensor(rows),
        )
        self.tap.attend("model.layers.0.self_attn.attn", keys, values, self.cache, metadata)

    def _entry(self, request: str, place: int, which: int) -> torch.Tensor:
        """A function of the text, as deep layers are."""
        generator = torch.Generator().manual_seed(hash((*self.tokens[request][: place + 1], which)) % 2**31)
        return torch.rand(HEADS, HEAD_SIZE, generator=generator)

    def _write(self, block: int, offset: int, key: torch.Tensor, value: torch.Tensor) -> None:
        both = self.cache.view(6, HEADS, 2, BLOCK * HEAD_SIZE)
        both[:, :, 0].view(6, HEADS, HEAD_SIZE, BLOCK)[block, :, :, offset] = key
        both[:, :, 1].view(6, HEADS, BLOCK, HEAD_SIZE)[block, :, offset] = value


@pytest.fixture
def engine() -> Engine:
    engine = Engine()
    engine.step({"0": PROMPT, "1": [9]})
    return engine


def test_rounds_with_rejected_drafts_and_a_shared_beginning_are_right(engine: Engine) -> None:
    engine.step({"0": [8, 40, 41], "1": [2, 3]})
    engine.tokens["0"] = [*PROMPT, 8]  # both drafts are rejected
    engine.step({"0": [1, 50], "1": [4]})
    assert engine.tap.faults() == []
    assert [len(step.queries) for step in engine.tap.steps] == [4, 5, 3]
    last = engine.tap.steps[-1].queries[0]
    assert (last.request, last.text) == ("0", (*PROMPT, 8, 1))
    assert [one.slot for one in last.seen] == [6, 7, 2, 3, 0]
    assert [one.writes[0].step for one in last.seen] == [1, 1, 1, 2, 3]
    engine.tokens["1"], engine.blocks["1"] = [5, 6], [3, 5, 4]  # what request 0 wrote for the same text
    engine.step({"1": [7]})
    assert engine.tap.faults() == []
    assert engine.tap.steps[-1].queries[0].seen[0].writes[0].request == "0"


def test_each_fault_is_told_as_what_it_is(engine: Engine) -> None:
    def said() -> str:
        faults = engine.tap.faults()
        assert faults
        return ": ".join(faults[0])

    engine.blocks["0"] = [1, 3, 0]
    engine.step({"0": [8]})
    assert "step 2, request 0, position 3" in said()
    assert "slot 0 holds another position: of request 0, position 2, token 7" in said()


@pytest.mark.parametrize(
    ("what", "kind", "said"),
    [
        (
            "stale",
            "cache/stale-entry",
            "slot 3 holds another text: of request 0, position 3, token 8",
        ),
        ("other", "cache/wrong-row", "slot 0 holds another request's text: of request 1, position 0, token 9"),
        ("twice", "cache/duplicate-entry", "a slot is seen twice"),
        ("lost", "cache/missing-entry", "slot 3 holds nothing that was written"),
        ("long", "mask/future-visible", "5 slots are seen at position 3"),
        ("short", "mask/token-hidden", "3 slots are seen at position 3"),
    ],
)
def test_every_fault(engine: Engine, what: str, kind: str, said: str) -> None:
    if what == "stale":
        engine.step({"0": [8, 40]})
        engine.tokens["0"], engine.skip = list(PROMPT), (3,)
        engine.step({"0": [30]})
    elif what == "other":
        engine.blocks["0"] = [2, 1, 0]
        engine.step({"0": [8]})
    elif what == "twice":
        engine.blocks["0"] = [3, 3, 0]
        engine.step({"0": [8]})
    elif what == "lost":
        engine.skip = (3,)
        engine.step({"0": [8]})
    else:
        engine.step({"0": [8]}, {"0": 5 if what == "long" else 3})
    fingerprint, where = engine.tap.faults()[0]
    assert said in where
    assert fingerprint == kind in FINGERPRINTS


def test_layers_of_the_draft_are_left_alone(engine: Engine) -> None:
    before = len(engine.tap.steps[-1].queries)
    engine.tap.attend("draft_model.model.layers.0.self_attn.attn", None, None, None, object())
    engine.tap.attend("model.layers.0.self_attn.attn", None, None, None, None)
    assert len(engine.tap.steps[-1].queries) == before


class Backend:
    def forward(self, layer: Any, query: Any, key: Any, value: Any, kv_cache: Any, metadata: Any, output: Any) -> str:
        return "attended"


class Runner:
    def execute_model(self, scheduled: Any) -> str:
        return "executed"


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tap imports of the engine."""
    for name, attribute, value in (
        ("vllm.v1.attention.backends.cpu_attn", "CPUAttentionBackendImpl", Backend),
        ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner", Runner),
    ):
        module = ModuleType(name)
        setattr(module, attribute, value)
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.usefixtures("vllm")
def test_the_engine_is_put_back_also_after_an_exception() -> None:
    before = Backend.forward, Runner.execute_model
    scheduled = SimpleNamespace(total_num_scheduled_tokens=1)

    def failing(tap: Any) -> None:
        assert (Backend.forward, Runner.execute_model) != before
        assert Runner().execute_model(scheduled) == "executed"
        layer: Any = SimpleNamespace(layer_name="draft_model.0")
        assert Backend().forward(layer, 1, 2, 3, 4, None, output=None) == "attended"
        assert len(tap.steps) == 1
        raise KeyError

    with pytest.raises(KeyError), tap_module.tapped() as tap:
        failing(tap)
    assert (Backend.forward, Runner.execute_model) == before


@pytest.mark.usefixtures("vllm")
def test_as_a_plug_in_it_writes_a_line_for_each_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = Backend.forward, Runner.execute_model
    tap_module.plug_in()
    assert (Backend.forward, Runner.execute_model) == before, "nothing is asked for"
    monkeypatch.setenv("EQCHECK_VLLM_TAP", str(tmp_path / "steps.ndjson"))
    undone: list[Any] = []
    monkeypatch.setattr("atexit.register", undone.append)
    try:
        tap_module.plug_in()
        Runner().execute_model(SimpleNamespace(total_num_scheduled_tokens=1))
    finally:
        undone[0]()
    assert (Backend.forward, Runner.execute_model) == before
    assert json.loads((tmp_path / "steps.ndjson").read_text()) == {"step": 1, "queries": []}


def test_a_step_is_plain_data(engine: Engine) -> None:
    (data,) = [step.to_dict() for step in engine.tap.steps]
    query = data["queries"][1]
    assert (query["request"], query["text"], query["fault"]) == ("0", (5, 6), None)
    assert query["seen"][0] == [6, {"step": 1, "request": "0", "text": (5,)}]
    json.dumps(data)


ROW = EngineRow((1, 2, 3), RowOptions(4))


def _judged(wrong: bool, told: Any) -> Any:
    """The outcome of a case whose row is right or not, and of which the tap said something."""
    torch.set_num_threads(1)
    output = truth().row(ROW)
    output = [*output[:2], (output[2] + 1) % 256, output[3]] if wrong else output
    answer = {"outputs": [output], "observed": {"contexts": 9, "wrong_context": told}}
    return judged(Judge("float64"), EngineCase((ROW,)), answer)


def test_what_was_read_is_the_cause_of_wrong_tokens() -> None:
    outcome = _judged(True, ["cache/misaligned", "slot 0 holds another position"])
    found = explain(outcome, abduced(outcome))
    assert found.fingerprint == "cache/misaligned"
    assert "read inside the engine: slot 0 holds another position" in found.detail
    assert {"contexts", "wrong_context"} <= outcome.coverage
    assert "harmless_context" not in outcome.coverage
    for odd in (["cache/unheard-of", "x"], "cache/misaligned", ["cache/misaligned"], None):
        assert not explain(_judged(True, odd), None).fingerprint.startswith("cache")


def test_a_wrong_context_without_a_wrong_token_is_a_warning() -> None:
    found = Audit(decoder(name="read", checkpoints=True)(lambda target, draft, request: []), Options(), "engine")
    found.claimed_families = (EngineCase.family,)
    found.outcomes = [_judged(False, ["cache/stale-entry", "slot 1"]), _judged(False, None)]
    conclusions(found)
    assert any("in 1 case a query had a wrong position, mask or cache entry" in warning for warning in found.warnings)
    found.outcomes, found.warnings = [_judged(False, None)] * 3, []
    conclusions(found)
    assert not any("a query had a wrong position" in warning for warning in found.warnings)
