"""The loading of targets that a user names: a folder with a checkpoint, or a model class of his own.

A checkpoint keeps its weights, and is cut to the first ids of its vocabulary. A class is built from its configuration
class and a seed, with the sizes of `eqcheck.real.models`. The family of a model is measured: whether a shift of all
position ids changes its answers, and whether it takes position ids at all.
"""

from __future__ import annotations

import importlib
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from eqcheck.contract.errors import UsageError
from eqcheck.contract.escaping import one_line


def class_of(spec: str) -> Any:
    """The model class that ``package.module:Class`` names; `UsageError` where there is none."""
    module, _, name = spec.partition(":")
    try:
        model_class = getattr(importlib.import_module(module), name)
    except Exception as error:
        raise UsageError(
            f"--target {spec}: it cannot be imported: {type(error).__name__}: {one_line(str(error))}"
        ) from error
    if getattr(model_class, "config_class", None) is None:
        raise UsageError(
            f"--target {spec}: expected a causal LM of transformers with a `config_class`, "
            f"got {one_line(repr(model_class))}"
        )
    return model_class


@lru_cache(maxsize=2)
def checkpoint(folder: str, ids: int) -> Any:
    """The causal LM of a folder in float64, cut to its first ``ids`` ids and one more that it never emits.

    Only safetensors are read and no code of the folder is run. Raises `UsageError` where the folder is incomplete or
    its vocabulary is too small.
    """
    from transformers import AutoModelForCausalLM

    config = config_of(folder)
    if (size := getattr(config, "vocab_size", 0)) <= ids:
        raise UsageError(f"--target {folder}: expected a vocabulary of more than {ids} ids, got {size}")
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float64, local_files_only=True, use_safetensors=True, trust_remote_code=False
        )
    except Exception as error:
        raise UsageError(
            f"--target {folder}: the checkpoint cannot be loaded: {one_line(str(error))}; "
            "expected a whole folder of `save_pretrained`, with weights in safetensors"
        ) from error
    return cut(model, ids)


def config_of(folder: str) -> Any:
    """The configuration in a folder; `UsageError` where there is none."""
    from transformers import AutoConfig

    if not (Path(folder) / "config.json").is_file():
        what = "without config.json" if Path(folder).is_dir() else "that is not there"
        raise UsageError(f"--target {folder}: expected a folder of `save_pretrained`, got one {what}")
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise UsageError(f"--target {folder}: config.json cannot be read: {one_line(str(error))}") from error


@torch.no_grad()
def cut(model: Any, ids: int) -> Any:
    """The model with a vocabulary of ``ids`` and a pad, which scores their mean and so is never the best."""
    model.resize_token_embeddings(ids + 1)
    head = model.get_output_embeddings()
    for weights in (head.weight, getattr(head, "bias", None)):
        if weights is not None:
            weights[ids] = weights[:ids].mean(0)
    model.config.pad_token_id = ids
    return model
