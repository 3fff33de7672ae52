"""The loading of targets that a user names: a folder with a checkpoint, or a model class of his own.

A checkpoint keeps its weights, and is cut to the first ids of its vocabulary. A class is built from its configuration
class and a seed, with the sizes of `eqcheck.transparent.real.models`. The family of a model is measured: whether a
shift of all position ids changes its answers, and whether it takes position ids at all.
"""

from __future__ import annotations

import importlib
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from eqcheck.contract.errors import UsageError, one_line


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


# The ropes of transformers whose frequencies depend on the length of what a call feeds.

GROWS, SWITCHES = "dynamic", "longrope"
"""Types of a rope: one whose frequencies change with each length beyond the original one, and one that has two sets."""


class Rope(NamedTuple):
    """A rope whose frequencies depend on the length of what is fed: its type, and up to which length they do not."""

    kind: str
    original: int


def ropes_of(config: Any) -> tuple[Rope, ...]:
    """Return the ropes of a configuration that depend on the length; kinds of layers may each have their own.

    >>> from transformers import LlamaConfig
    >>> scaled = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    >>> ropes_of(LlamaConfig(max_position_embeddings=12, rope_parameters=scaled)), ropes_of(LlamaConfig())
    ((Rope(kind='dynamic', original=12),), ())
    """
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    # The least of all lengths that are given: from there on scores may depend on how long a call is, and to be careful
    # too early costs time, while too late it accuses a right decoder.
    ropes = list[Rope]()
    for name in ("rope_parameters", "rope_scaling"):  # the latter is the name before transformers 5
        given = getattr(text, name, None)
        given = given if isinstance(given, dict) else {}
        for rope in (given, *(part for part in given.values() if isinstance(part, dict))):
            kind = str(rope.get("rope_type") or rope.get("type") or "")
            kind = GROWS if GROWS in kind else SWITCHES if kind == "su" else kind
            if kind in (GROWS, SWITCHES):
                key = "original_max_position_embeddings"
                lengths = [rope.get(key), getattr(text, key, None), getattr(text, "max_position_embeddings", None)]
                known = [int(length) for length in lengths if isinstance(length, int | float)]
                ropes.append(Rope(kind, min(known, default=0)))
    return tuple(dict.fromkeys(ropes))
