"""Built checkpoints as targets of decoders that are called with models: exact in bfloat16, and read by the tap."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import eqcheck
from eqcheck.audit.loop import audit
from eqcheck.catalogue import FAULTS
from eqcheck.checkpoints import built
from eqcheck.contract import registry
from eqcheck.contract.errors import UsageError
from eqcheck.core.result.findings import Options
from eqcheck.transparent.real.models import loaded, recognised
from eqcheck.transparent.real.targets import families_of

PROMPTS = [[3, 1, 4, 1, 5], [9, 2]]
PADDED = torch.tensor([[3, 1, 4, 1, 5], [0, 0, 0, 9, 2]])
SEEN = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 0, 1, 1]])


@pytest.mark.parametrize(
    ("decoder", "target"), [("eqspec", "full"), ("exspec", "built-mistral"), ("ragged", "built-qwen3")]
)
@pytest.mark.tiers(quick=0, rest=1)
def test_right_decoders_are_equivalent_without_ties(decoder: str, target: str) -> None:
    found = audit(registry.load(decoder), Options(cases=8, families=families_of(target)))
    assert (found.verdict, found.tally.run) == ("equivalent", 8)
    assert not [warning for warning in found.warnings if "desync" in warning]


@pytest.mark.parametrize("number", ["K1-crop-to-max", "P1-positions-by-slot", "M1-no-mask", "T10-correction-twice"])
@pytest.mark.tiers(quick=0, rest=1)
def test_faults_are_caught_and_named_in_bfloat16(number: str) -> None:
    fault = next(fault for fault in FAULTS if fault.id.startswith(number))
    found = audit(fault.decoder(), Options(cases=8, families=families_of("full")))
    assert found.violations[0].fingerprint.partition("/")[0] == fault.component


def test_a_folder_is_known_by_its_weights(tmp_path: Path) -> None:
    built("full").save(tmp_path / "full")
    assert families_of(str(tmp_path / "full")) == families_of("full@float32")
    model = loaded("full", torch.bfloat16)
    assert recognised(model) == "full"
    model.model.embed_tokens.weight.data[5, 3] += 1
    assert recognised(model) == ""
    loaded.cache_clear()


def test_states_are_declined_in_a_line() -> None:
    with pytest.raises(UsageError, match=r"--target hybrid: it cannot be read: .* states"):
        families_of("hybrid")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("full")
    built("full").save(folder)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()


def test_the_oracle_judges_every_token_of_a_built_checkpoint_in_bfloat16(served: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        oracle = eqcheck.Oracle(served)
    right = [oracle.truth(prompt, max_new_tokens=12) for prompt in PROMPTS]
    assert right == [built("full").function.emitted(prompt, 12) for prompt in PROMPTS]
    assert oracle.check(PROMPTS, right, max_new_tokens=12).status == "equivalent"
    right[1][7] ^= 1
    assert oracle.check(PROMPTS, right, max_new_tokens=12).status == "violation"


@pytest.mark.parametrize(("mask", "said"), [(SEEN, ""), (torch.ones(2, 5, dtype=torch.long), "mask/pad-visible")])
def test_a_watch_reads_a_built_checkpoint_in_bfloat16(served: Any, mask: Any, said: str) -> None:
    with eqcheck.Oracle(served).watch(PROMPTS, max_new_tokens=6, pad_token_id=0) as watch:
        served.generate(
            PADDED, attention_mask=mask, max_new_tokens=6, do_sample=False, pad_token_id=0, eos_token_id=None
        )
    assert bool(watch.verdict) == (not said)
    assert not said or said in watch.explain()
