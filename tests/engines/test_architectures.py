"""The oracle holds on architectures of transformers: eight quickly, the others in ``make architectures``."""

from __future__ import annotations

import pytest
import torch
from architectures.build import models
from architectures.hold import held

torch.set_num_threads(1)
CHOSEN = {
    "llama": "float32",
    "gpt2": "float64",
    "gemma2": "float64",
    "mixtral": "float64",
    "mamba": "float64",
    "llama, dynamic": "float64",
    "phi3, longrope": "float64",
    "camembert": "float64",
}


@pytest.mark.parametrize("name", CHOSEN)
@pytest.mark.rest
def test_right_rows_pass_and_a_changed_token_does_not(name: str) -> None:
    found = held(next(model for model in models() if model.name == name), CHOSEN[name])
    assert not found.failed, found.failed
    assert not found.wrong, found.wrong
