"""Built checkpoints as targets: they are known by their weights, and their function is the truth, in every dtype.

A built checkpoint that is rounded to another dtype computes the same function, so weights are compared up to rounding.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

from eqcheck.construction.folder import built
from eqcheck.construction.function import CODES, VOCABULARY, Function, shuffled
from eqcheck.contract.architectures import BUILT
from eqcheck.contract.errors import UsageError

_ROUNDING = 2.0**-7  # of a number in bfloat16, rounded twice


@lru_cache(maxsize=4)
def loaded(name: str, dtype: torch.dtype = torch.float32) -> Any:
    """The target of `BUILT` with this name, as a model of transformers."""
    import transformers

    if not hasattr(transformers, BUILT[name].model):
        raise UsageError(f"--target {name}: transformers {transformers.__version__} has no {BUILT[name].model}")
    with tempfile.TemporaryDirectory() as folder:
        built(BUILT[name].built).save(folder)
        return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True).eval()


@torch.no_grad()
def recognised(model: Any) -> str:
    """The name in `BUILT` of the checkpoint that has the weights of a model; empty where there is none.

    >>> recognised(loaded("full", torch.bfloat16)), recognised(torch.nn.Linear(1, 1))
    ('full', '')
    """
    size = getattr(getattr(model, "config", None), "vocab_size", None)
    names = [name for name, known in BUILT.items() if known.model == type(model).__name__ and size == VOCABULARY]
    return next((name for name in names if _alike(model.state_dict(), loaded(name).state_dict())), "")


def _alike(weights: dict[str, Any], known: dict[str, Any]) -> bool:
    """Return whether these are the known weights, which may have been rounded."""
    return weights.keys() == known.keys() and all(
        weight.shape == known[name].shape
        and torch.allclose(weight.detach().cpu().float(), known[name], rtol=_ROUNDING, atol=0.0)
        for name, weight in weights.items()
    )


def in_folder(folder: str) -> tuple[str, str]:
    """The name in `BUILT` of the checkpoint in a folder, and the dtype in which it is saved; empty where none is."""
    from transformers import AutoModelForCausalLM

    from eqcheck.real.loading import config_of

    config = config_of(folder)
    classes = getattr(config, "architectures", None) or ()
    if getattr(config, "vocab_size", None) != VOCABULARY or not any(one.model in classes for one in BUILT.values()):
        return "", ""
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype="auto", local_files_only=True, use_safetensors=True, trust_remote_code=False
        )
    except Exception:  # it is loaded again as any other folder is, which says what is wrong with it
        return "", ""
    return recognised(model), str(model.dtype).removeprefix("torch.")


@lru_cache(maxsize=8)
def function_of(name: str) -> Function:
    """The function of the target of `BUILT` with this name."""
    return built(BUILT[name].built).function


def emitted(name: str, prompts: Sequence[tuple[int, ...]], count: int, seed: int = 0) -> list[list[int]]:
    """Return ``count`` tokens after each prompt, as the target of `BUILT` with this name and seed generates them."""
    new = renamed(CODES, seed)
    old = {name: token for token, name in enumerate(new)}
    texts = [[old.get(token, token) for token in prompt] for prompt in prompts]
    return [[new[token] for token in function_of(name).emitted(text, count)] for text in texts]


@lru_cache(maxsize=16)
def renamed(count: int, seed: int) -> tuple[int, ...]:
    """Return the ids below ``count`` in the order in which a seed exchanges them; as they are for the seed 0.

    Weights that were written or trained once have no seed. With other ids for the same tokens a checkpoint computes
    another function by the same numbers, so it stays exact, and what it writes to a cache for an id is another's.

    >>> renamed(4, 0), sorted(renamed(4, 1)) == [0, 1, 2, 3], renamed(256, 1) == renamed(256, 2)
    ((0, 1, 2, 3), True, False)
    """
    return shuffled(count, "renamed", seed) if seed else tuple(range(count))
