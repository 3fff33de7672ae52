"""The pair of models that engines load: a tiny Llama with random weights, and a draft that is a noisy copy of it.

`eqcheck.checkpoints.builder` builds them. Nothing is trained or fetched. The weights are spread widely (untied,
standard deviation 0.3), so that greedy output is varied and depends on the whole context; on the customary 0.02 most
faults of positions and masks change no token. `tests/test_blackbox.py` holds figures.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from eqcheck.checkpoints.builder import build, noisy, target_model


@dataclass(frozen=True)
class Checkpoint:
    """Two folders that `transformers` and engines can load; ``name`` changes with the weights."""

    name: str
    target: Path
    draft: Path

    def models(self, dtype: torch.dtype = torch.float64) -> tuple[Any, Any]:
        """Target and draft as `transformers` models."""
        return _load(self.target, dtype), _load(self.draft, dtype)


@lru_cache(maxsize=8)
def _load(folder: Path, dtype: torch.dtype) -> Any:
    from safetensors.torch import load_file
    from transformers import LlamaConfig, LlamaForCausalLM

    # In eager attention the softmax is taken in float32 whatever the dtype, and a pad that sees nothing is NaN.
    model = LlamaForCausalLM(LlamaConfig.from_pretrained(folder, attn_implementation="sdpa"))
    weights = load_file(folder / "model.safetensors")
    model.load_state_dict({name: weight.to(dtype) for name, weight in weights.items()}, assign=True)
    return model.eval()


@lru_cache(maxsize=1)
def checkpoint() -> Checkpoint:
    """The pair, built on first use and kept in the user's cache folder.

    >>> checkpoint().target.name
    'target'
    """
    pair = target_model(), noisy(target_model())
    name = f"llama-{_digest(*pair)}"
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "eqcheck" / name
    if not folder.is_dir():
        _save(folder)
    return Checkpoint(name, folder / "target", folder / "draft")


def _save(folder: Path) -> None:
    """Write both models; another process may do the same at the same time."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        build(temporary)
        os.rename(temporary, folder)
    except OSError:
        if not folder.is_dir():
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _digest(*pair: Any) -> str:
    digest = hashlib.sha256()
    for model in pair:
        for parameter in model.parameters():
            digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()[:8]


if __name__ == "__main__":
    print(f"target: {checkpoint().target}\ndraft:  {checkpoint().draft}")
