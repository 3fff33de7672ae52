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
VLLM = Path(__file__).parents[1] / ".venv-vllm" / "bin" / "python"
_FIELDS = """
import json
from vllm import SamplingParams
from vllm.config import SpeculativeConfig
names = {"vllm.SamplingParams": list(SamplingParams.__struct_fields__)}
names["vllm.config.SpeculativeConfig"] = list(SpeculativeConfig.__dataclass_fields__)
print(json.dumps(names))
"""


def unlisted(kind: str, names: Any) -> set[str]:
    """The names that are in the list or in the engine, and not in both."""
    return {*names} ^ set().union(*LISTED[kind].values())


def test_the_fields_of_transformers_are_all_listed() -> None:
    assert not unlisted("transformers.GenerationConfig", vars(GenerationConfig()))
    assert unlisted("transformers.GenerationConfig", [*vars(GenerationConfig()), "new"]) == {"new"}


@pytest.mark.skipif(not VLLM.exists(), reason="the environment of vLLM is not there")
def test_the_fields_of_vllm_are_all_listed() -> None:
    printed = subprocess.run([VLLM, "-c", _FIELDS], capture_output=True, text=True, check=True).stdout
    for kind, names in json.loads(printed.splitlines()[-1]).items():
        assert not unlisted(kind, names)


@pytest.mark.parametrize("kind", LISTED)
def test_a_field_is_drawn_by_what_a_request_has_or_there_is_a_reason(kind: str) -> None:
    asked = {field.name for record in (RowOptions, Request) for field in fields(record)}
    assert {*LISTED[kind]["drawn"].values()} <= asked
    assert len(set().union(*LISTED[kind].values())) == sum(map(len, LISTED[kind].values()))
    assert all(LISTED[kind]["not"].values())


def test_a_field_that_is_said_to_be_a_switch_is_one() -> None:
    switches = hook(registry.load("transformers_float32").function, "switches")
    assert {*LISTED["transformers.GenerationConfig"]["switches"].values()} <= {*switches}
