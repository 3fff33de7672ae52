"""The adapter of OpenVINO GenAI with stand-ins for its versions: what is made for which, what an old one lacks."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import eqcheck
from eqcheck.contract.decoders import Request, RowOptions

ADAPTER = Path(__file__).parents[2] / "adapters" / "openvino_genai.py"


class Old:
    """The options of a version that has no ``min_p``."""


class New:
    min_p = 0.0


class Pipeline:
    """It emits one token per row, and counts drafts only where its version does."""

    def __init__(self, metrics: Any) -> None:
        self.metrics = metrics

    def generate(self, prompts: list[Any], configs: list[Any]) -> list[Any]:
        return [SimpleNamespace(m_generation_ids=[[7]], extended_perf_metrics=self.metrics) for _ in prompts]


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The adapter over stand-ins for its packages; ``made`` tells what it had made."""
    made: list[str] = []
    version = ["2026.4"]

    def save(model: str, path: Path) -> None:
        made.append(path.name)
        path.write_text(version[0])

    class Model:
        @staticmethod
        def from_pretrained(folder: str, **options: Any) -> Any:
            made.append("model")
            return SimpleNamespace(save_pretrained=lambda made: (made / "openvino_model.xml").write_text(version[0]))

    fakes: dict[str, dict[str, Any]] = {
        "openvino": {"get_version": lambda: version[0], "save_model": save, "Tensor": list},
        "openvino_tokenizers": {"convert_tokenizer": lambda tokenizer, **options: ("a", "b")},
        "openvino_genai": {
            "get_version": lambda: version[0],
            "GenerationConfig": New,
            "StructuredOutputConfig": SimpleNamespace,
        },
        "optimum": {},
        "optimum.intel": {"OVModelForCausalLM": Model},
    }
    for name, parts in fakes.items():
        module = ModuleType(name)
        vars(module).update(parts)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", lambda folder: None)
    spec = importlib.util.spec_from_file_location("openvino_adapter", ADAPTER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    vars(module).update(made=made, set_version=lambda text: version.__setitem__(0, text))
    return module


def request(**options: Any) -> Request:
    return Request([[1, 2]], 4, 2, (), 0, "left", rows=(RowOptions(4, **options),))


def written(folder: Path, weights: bytes = b"weights") -> str:
    """A folder with so few weights."""
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(weights)
    return str(folder)


def test_the_checkpoint_is_exported_once_and_each_version_has_its_own_tokenizer(adapter: Any, tmp_path: Path) -> None:
    target = written(tmp_path / "target")
    first = Path(adapter.exported(target))
    assert Path(adapter.exported(target)) == first
    tokenizers = ["openvino_tokenizer.xml", "openvino_detokenizer.xml"]
    assert adapter.made == ["model", *tokenizers]
    adapter.set_version("2025.4-releases/2025/4")
    second = Path(adapter.exported(target))
    assert second.parent == first.parent
    assert adapter.made == ["model", *tokenizers, *tokenizers]
    assert (second / "openvino_model.xml").read_text() == "2026.4"
    assert (second / "openvino_tokenizer.xml").read_text() == "2025.4-releases/2025/4"
    assert (first / "openvino_tokenizer.xml").read_text() == "2026.4"
    written(tmp_path / "target", b"other weights")
    assert Path(adapter.exported(target)).name not in (first.name, second.name)
    assert adapter.made == ["model", *tokenizers, *tokenizers, "model", *tokenizers]


def test_nothing_is_left_of_an_export_that_fails(adapter: Any, tmp_path: Path) -> None:
    def fail(made: Path) -> None:
        raise ImportError("no such thing")

    with pytest.raises(ImportError):
        adapter.once(tmp_path / "made", fail)
    assert not list(tmp_path.iterdir())


def test_what_a_version_cannot_do_is_declined_and_not_called_a_crash(
    adapter: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys.modules["openvino_genai"], "GenerationConfig", Old)
    old = adapter.OpenVINO.function()
    old.open()
    with pytest.raises(eqcheck.Unsupported, match="min_p"):
        old("target", "draft", request(temperature=1.0, min_p=0.1))
    monkeypatch.setattr(adapter, "start", lambda *arguments: adapter.once(tmp_path / "made", _no_optimum))
    with pytest.raises(eqcheck.Unsupported, match="cannot be exported under this version: no optimum"):
        old("target", "draft", request())


def _no_optimum(made: Path) -> None:
    raise ImportError("no optimum")


def test_drafts_are_counted_where_the_version_counts_them(adapter: Any) -> None:
    counts = SimpleNamespace(get_num_draft_tokens=lambda: 5, get_num_accepted_tokens=lambda: 3)
    for metrics, expected in ((counts, {"drafted": 5, "accepted": 3}), (object(), {}), (None, {})):
        observed: dict[str, Any] = {}
        assert adapter.decode(Pipeline(metrics), request(), observed) == [[7]]
        assert observed == {**expected, "ends": [{"finish_reason": None}]}


def test_a_grammar_is_rules_a_letter_at_a_time_and_its_stop_token_is_none_that_is_emitted(adapter: Any) -> None:
    grammar = ((0, (11, 12), 0),)
    config = adapter.generation_config(RowOptions(4, grammar=grammar), request())
    rules = 's0 ::= " " ("[" ("1" ("1" ("]" s0) | "2" ("]" s0))))'
    assert config.structured_output_config.grammar == f"root ::= s0\n{rules}"
    assert config.stop_token_ids == {256}
    ending = adapter.generation_config(RowOptions(4, (11,), grammar=(*grammar, (0, (), 0))), request())
    assert ending.stop_token_ids == {11}
    ends = 's0 ::= " " ("[" ("1" ("2" ("]" s0) | "1" ("]" s0)))) | ""'
    assert ending.structured_output_config.grammar.splitlines()[1] == ends


def test_a_presence_penalty_beside_a_grammar_is_declined(adapter: Any) -> None:
    with pytest.raises(eqcheck.Unsupported, match="a presence penalty beside a grammar"):
        adapter.Pipelines()("target", "draft", request(grammar=((0, (11,), 0),), presence_penalty=1.0))
