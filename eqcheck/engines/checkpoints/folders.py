"""The pairs of models that engines load: a target, and a draft that agrees with it in a part of contexts.

A built checkpoint (`eqcheck.engines.construction`) is exact in every dtype: the judge asks for equality. Its draft is
the same construction, which errs after some ids. The random checkpoint is a tiny Llama with random weights, spread
widely (untied, standard deviation 0.3), and a noisy copy of it. Its scores are spread as those of a real model are, so
it serves rows that are sampled, and cases that were stored before there were built ones. `test_blackbox.py` holds
figures.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch

from eqcheck.contract.errors import SetupError, UsageError
from eqcheck.engines.checkpoints.builder import build, noisy, target_model
from eqcheck.engines.construction.folder import Built, built
from eqcheck.engines.construction.layouts import LAYOUTS

AGREEMENT = 0.75  # of a built draft with its target, in the share of contexts
SAVED = ("float16", "bfloat16")  # the dtypes in which weights are saved, besides float32


@dataclass(frozen=True)
class Checkpoint:
    """Two folders that `transformers` and engines can load; ``name`` changes with the weights.

    ``built`` are target and draft, where they are built.
    """

    name: str
    target: Path
    draft: Path
    built: tuple[Built, Built] | None = None

    @property
    def kind(self) -> str:
        """The name of a built checkpoint, empty for the random one."""
        return self.built[0].name if self.built else ""

    def models(self, dtype: torch.dtype = torch.float64) -> tuple[Any, Any]:
        """Target and draft as `transformers` models."""
        return _load(self.target, dtype), _load(self.draft, dtype)


@lru_cache(maxsize=8)
def _load(folder: Path, dtype: torch.dtype) -> Any:
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoModelForCausalLM

    # In eager attention the softmax is taken in float32 whatever the dtype, and a pad that sees nothing is NaN.
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), attn_implementation="sdpa")
    weights = load_file(folder / "model.safetensors")
    model.load_state_dict({name: weight.to(dtype) for name, weight in weights.items()}, assign=True)
    return model.eval()


@lru_cache(maxsize=32)
def checkpoint(name: str = "", dtype: str = "float32") -> Checkpoint:
    """The pair of this name, built on first use and kept in the user's cache folder.

    ``name`` is that of a built checkpoint (``"full"``, or with its digest, as cases have it); the random one if it is
    empty. A built one is saved in ``dtype``, if it is less than float32. Raises `UsageError` where there is none of
    this name, or it has other weights here.

    >>> checkpoint().target.name, checkpoint("full").kind
    ('target', 'full')
    """
    kind, _, digest = name.partition("-")
    if kind in LAYOUTS:
        made = _built(kind, dtype if dtype in SAVED else "float32")
    elif kind in ("", "llama"):
        made = _random()
    else:
        raise UsageError(f"there is no checkpoint {name!r}: expected one of {', '.join(LAYOUTS)}, or the random one")
    if digest and name != made.name:
        raise UsageError(f"the case is for the checkpoint {name}, this eqcheck makes {made.name}")
    return made


def known(name: str) -> bool:
    """Return whether there is a checkpoint of this name here."""
    try:
        return bool(checkpoint(name))
    except UsageError:
        return False


def _built(kind: str, dtype: str) -> Checkpoint:
    target = built(kind)
    draft = target.draft(AGREEMENT)
    files = {role: model.files(dtype) for role, model in (("target", target), ("draft", draft))}
    weights = (data for held in files.values() for _, data in sorted(held.items()))
    name = f"{kind}-{_digest(weights)}" if dtype == "float32" else f"{checkpoint(kind).name}-{dtype}"
    folder = _cached(name, partial(_save_built, files))
    for role, held in files.items():
        for file, data in held.items():
            path = folder / role / file
            if not path.is_file() or path.read_bytes() != data:
                raise SetupError(f"{path}: it was changed or is torn; remove {folder}, and it is written anew")
    return Checkpoint(name.removesuffix(f"-{dtype}"), folder / "target", folder / "draft", (target, draft))


def _save_built(files: dict[str, dict[str, bytes]], folder: Path) -> None:
    for role, held in files.items():
        (folder / role).mkdir()
        for name, data in held.items():
            (folder / role / name).write_bytes(data)


def _random() -> Checkpoint:
    pair = target_model(), noisy(target_model())
    weights = (parameter.detach().numpy().tobytes() for model in pair for parameter in model.parameters())
    name = f"llama-{_digest(weights)}"
    folder = _cached(name, build)
    return Checkpoint(name, folder / "target", folder / "draft")


def _cached(name: str, build: Callable[[Path], object]) -> Path:
    """The folder of this name, made if it is not there; another process may make it at the same time."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "eqcheck" / name
    if folder.is_dir():
        return folder
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
    return folder


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()[:8]


if __name__ == "__main__":
    print(f"target: {checkpoint().target}\ndraft:  {checkpoint().draft}")
