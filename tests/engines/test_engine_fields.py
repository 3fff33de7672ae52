"""Every field by which a user can change what an engine emits is drawn, or it is written down why not."""

from __future__ import annotations

import json
import subprocess
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from transformers import GenerationConfig

from eqcheck.contract import registry
from eqcheck.contract.decoders import Request, RowOptions, hook

LISTED: dict[str, dict[str, dict[str, str]]] = json.loads(Path(__file__).with_name("engine_fields.json").read_text())
_OF_MEMBERS = """
import json
def members(one):
    return [name for name in dir(one) if name[0] != "_" and not callable(getattr(one, name, None))]
"""
FIELDS = {
    "vllm": """
from vllm import SamplingParams
from vllm.config import SpeculativeConfig
names = {"vllm.SamplingParams": list(SamplingParams.__struct_fields__)}
names["vllm.config.SpeculativeConfig"] = list(SpeculativeConfig.__dataclass_fields__)
""",
    "openvino_genai": """
import openvino_genai as engine
names = {f"openvino_genai.{one.__name__}": members(one()) for one in (engine.GenerationConfig, engine.SchedulerConfig)}
""",
    "llama_cpp": """
import xllamacpp
params = xllamacpp.CommonParams()
names = {"xllamacpp.CommonParams": members(params), "xllamacpp.CommonParams.sampling": members(params.sampling)}
names["xllamacpp.CommonParams.speculative"] = members(params.speculative)
names["xllamacpp.CommonParams.speculative.draft"] = members(params.speculative.draft)
""",
    "mistralrs": """
from inspect import signature
from mistralrs import ChatCompletionRequest, Runner
names = {f"mistralrs.{one.__name__}": [*signature(one).parameters] for one in (ChatCompletionRequest, Runner)}
""",
}
"""By environment, the names of what a user can set, as the installed version has them."""


def unlisted(kind: str, names: Any) -> set[str]:
    """The names that are in the list or in the engine, and not in both."""
    return {*names} ^ set().union(*LISTED[kind].values())


def test_the_fields_of_transformers_are_all_listed() -> None:
    assert not unlisted("transformers.GenerationConfig", vars(GenerationConfig()))
    assert unlisted("transformers.GenerationConfig", [*vars(GenerationConfig()), "new"]) == {"new"}


@pytest.mark.parametrize("environment", FIELDS)
def test_the_fields_of_an_engine_are_all_listed(environment: str) -> None:
    python = Path(__file__).parents[2] / f".venv-{environment}" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"the environment of {environment} is not there")
    code = f"{_OF_MEMBERS}{FIELDS[environment]}print(json.dumps(names))"
    printed = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout
    for kind, names in json.loads(printed.splitlines()[-1]).items():
        assert not unlisted(kind, names)


@pytest.mark.parametrize("kind", LISTED)
def test_a_field_is_drawn_by_what_a_request_has_or_there_is_a_reason(kind: str) -> None:
    asked = {field.name for record in (RowOptions, Request) for field in fields(record)}
    assert {*LISTED[kind]["drawn"].values()} <= asked
    assert len(set().union(*LISTED[kind].values())) == sum(map(len, LISTED[kind].values()))
    assert all(LISTED[kind]["not"].values())


@pytest.mark.parametrize(
    ("kind", "adapter"),
    [
        ("transformers", "transformers_float32"),
        ("xllamacpp", "llama_cpp"),
        ("openvino_genai", "openvino_genai"),
        ("vllm", "vllm"),
    ],
)
def test_a_field_that_is_said_to_be_a_switch_is_one(kind: str, adapter: str) -> None:
    switches = hook(registry.load(adapter).function, "switches")
    named = [fields.get("switches", {}).values() for name, fields in LISTED.items() if name.split(".")[0] == kind]
    assert {*switches} >= {name for names in named for name in names} != set()
