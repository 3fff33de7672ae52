"""Tiny random models of ordinary architectures, and drafts for them: from a configuration and a seed, no download."""

from __future__ import annotations

import copy
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from unittest.mock import patch

import torch
import transformers
from transformers import AutoModelForCausalLM, DynamicCache

VOCAB = 128
EOS = 2  # Llama's default
CUSTOMARY, SPREAD = 0.02, 0.3  # standard deviations of the initial weights
NOISE = {CUSTOMARY: 1 / 6, SPREAD: 1 / 25}  # of a noisy copy, in standard deviations of the weights
SIZES: dict[str, dict[str, Any]] = {
    "llama": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": EOS},
}


@dataclass(frozen=True)
class Network:
    """What a tiny model is built from.

    With the customary standard deviation all else is as transformers has it by default; a well-spread model has its
    output untied from its embedding too.
    """

    architecture: str
    deviation: float
    seed: int
    dtype: str


@lru_cache(maxsize=64)
def target(network: Network) -> Any:
    """The model itself; weights are drawn in float32 whatever the type."""
    options = dict(SIZES[network.architecture])
    if network.deviation != CUSTOMARY:
        options |= {"initializer_range": network.deviation, "tie_word_embeddings": False}
    config = transformers.AutoConfig.for_model(network.architecture, vocab_size=VOCAB, **options)
    config._attn_implementation = "eager"
    torch.manual_seed(network.seed)
    return AutoModelForCausalLM.from_config(config).to(getattr(torch, network.dtype)).eval()


@lru_cache(maxsize=64)
def draft(network: Network, kind: str) -> Any:
    """A draft of a kind: the target itself (``same``), another model (``random``), or a ``noisy`` copy."""
    if kind == "same":
        return target(network)
    if kind == "random":
        return target(Network(network.architecture, network.deviation, network.seed + 1000, network.dtype))
    noisy = copy.deepcopy(target(network))
    noise = torch.Generator().manual_seed(network.seed)
    with torch.no_grad():
        for parameter in noisy.parameters():
            drawn = torch.randn(parameter.shape, generator=noise)
            parameter.add_((NOISE[network.deviation] * network.deviation * drawn).to(parameter.dtype))
    return noisy


def greedy(model: Any, prompt: list[int], limit: int) -> list[int]:
    """What the model emits alone: one row, its own cache, one token at a time."""
    cache, ids, new = DynamicCache(), prompt, list[int]()
    with torch.no_grad():
        while len(new) < limit:
            logits = model(input_ids=torch.tensor([ids]), past_key_values=cache, use_cache=True).logits
            ids = [int(logits[0, -1].argmax())]
            new += ids
    return new


class TooManyForwards(Exception):
    """The decoder goes on and on."""


class Limited:
    """The target as a decoder is handed it: a model that answers for so many rows, all forwards together."""

    def __init__(self, model: Any, rows: int) -> None:
        self._model, self._left = model, rows

    def __call__(self, **given: Any) -> Any:
        self._left -= given["input_ids"].shape[0]
        if self._left < 0:
            raise TooManyForwards
        return self._model(**given)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


class Remembering:
    """A draft that does not compute twice what it is asked without a cache; of its logits it keeps the newest."""

    def __init__(self, model: Any, memory: dict[tuple[int, ...], Any]) -> None:
        self._model, self._memory = model, memory

    def __call__(self, **given: Any) -> Any:
        if set(given) != {"input_ids", "use_cache"} or given["use_cache"] or given["input_ids"].shape[0] != 1:
            return self._model(**given)
        key = tuple(given["input_ids"][0].tolist())
        if key not in self._memory:
            newest = self._model(**given).logits[:, -1:].clone()
            self._memory[key] = types.SimpleNamespace(logits=newest)
        return self._memory[key]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


@contextmanager
def finite_masks() -> Iterator[None]:
    """Keep a float64 mask finite in the float32 softmax that the models use, or every fully padded query is NaN."""
    finfo = torch.finfo

    def finite(dtype: torch.dtype) -> Any:
        info = finfo(dtype)
        return types.SimpleNamespace(min=max(info.min, -1e30), max=info.max, eps=info.eps, tiny=info.tiny)

    with patch.object(torch, "finfo", finite):
        yield
