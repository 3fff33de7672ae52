"""What an engine refuses, and how it says so: what, expected, got, what to do.

ValueError
|-- Unsupported   models or settings that the engine cannot be right for
`-- PromptError   a prompt that it cannot decode (in `requests`)
MemoryError
`-- OutOfMemory   with what would fit
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from .requests import Prompt, PromptError

NO_LIMIT = 2**31


class Unsupported(ValueError):
    """Models or settings that the engine cannot be right for."""


class OutOfMemory(MemoryError):
    """There was no memory for what was asked; the message says what would fit."""


def at_least_one(name: str, value: Any) -> int:
    """The value if it is an integer of at least 1; `Unsupported` if not."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise Unsupported(f"{name}: expected an integer of at least 1, got {value!r}")
    return value


def check_pair(target: Any, draft: Any, tokenizers: Sequence[Any]) -> None:
    """`Unsupported` unless both models read the same token ids and are on one device."""
    sizes = [model.config.get_text_config().vocab_size for model in (target, draft)]
    if sizes[0] != sizes[1]:
        raise Unsupported(
            f"draft: expected the target's vocabulary of {sizes[0]} tokens, got one of {sizes[1]}; a draft token id "
            "must mean the same to both, so choose a draft of the target's own family"
        )
    if tokenizers:
        ours, theirs = (tokenizer.get_vocab() for tokenizer in tokenizers)
        if ours != theirs:
            word = next(iter(sorted(k for k in {*ours, *theirs} if ours.get(k) != theirs.get(k))))
            raise Unsupported(
                f"tokenizers: expected one for both models, got two that differ: {word!r} is {ours.get(word)} to the "
                f"target and {theirs.get(word)} to the draft; choose a draft that was trained with the target's"
            )
    if target.device != draft.device:
        raise Unsupported(f"draft: expected it on the target's device {target.device}, got {draft.device}; move one")


def check_model(name: str, model: Any, *, windows: bool) -> None:
    """`Unsupported` unless the model keeps keys and values of all tokens and takes ``position_ids``.

    ``windows`` says whether the engine's masks can keep to a sliding window.
    """
    config = model.config.get_text_config()
    kind = f"{name}: {type(model).__name__}"
    if getattr(model.config, "is_encoder_decoder", False):
        raise Unsupported(f"{kind} is an encoder-decoder; expected a causal LM")
    kinds = set(getattr(config, "layer_types", None) or ())
    if getattr(model, "_is_stateful", False) or kinds - {"full_attention", "sliding_attention"}:
        what = ", ".join(sorted(kinds - {"full_attention", "sliding_attention"})) or "a recurrent state"
        raise Unsupported(
            f"{kind} has {what}, which cannot be rolled back when draft tokens are rejected; expected keys and values "
            "of every token in every layer"
        )
    if len(kinds) > 1:
        raise Unsupported(f"{kind} mixes {' and '.join(sorted(kinds))} layers, which need two masks; expected one kind")
    if window_of(model) is not None and not windows:
        raise Unsupported(f"{kind} attends to a sliding window; use ragged or exspec, whose masks keep to it")
    takes = inspect.signature(model.forward).parameters
    if "position_ids" not in takes or "past_key_values" not in takes:
        raise Unsupported(
            f"{kind} takes no position_ids, so it counts positions in a way of its own; expected a model such as "
            "Llama, Qwen3, GPT-2, GPT-NeoX or Mixtral"
        )


def window_of(model: Any) -> int | None:
    """How many tokens a query of the model sees, or None for all."""
    config = model.config.get_text_config()
    if getattr(config, "use_sliding_window", True) is False or "full_attention" in (config_layers(config)):
        return None
    window: int | None = getattr(config, "sliding_window", None)
    return window


def config_layers(config: Any) -> Sequence[str]:
    return getattr(config, "layer_types", None) or ()


def max_positions(model: Any) -> int:
    """How many tokens the model was built for."""
    return getattr(model.config.get_text_config(), "max_position_embeddings", None) or NO_LIMIT


def check_prompt(prompt: Prompt, vocab_size: int, positions: int) -> None:
    """`PromptError` for a prompt that is empty, too long, of unknown tokens or without a limit."""
    name = "prompt" if prompt.id is None else f"prompt {prompt.id!r}"
    tokens = prompt.token_ids
    if isinstance(tokens, str | bytes) or not len(tokens):
        raise PromptError(f"{name}: expected at least one token id, got {tokens!r}")
    for token in [*tokens, *prompt.stop_token_ids]:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab_size:
            raise PromptError(f"{name}: expected token ids 0..{vocab_size - 1}, got {token!r}")
    new = prompt.max_new_tokens
    if isinstance(new, bool) or not isinstance(new, int) or new < 1:
        raise PromptError(f"{name}: expected max_new_tokens of at least 1, got {new!r}")
    if len(tokens) + new > positions:
        raise PromptError(
            f"{name}: {len(tokens)} tokens and {new} new ones are more than the {positions} positions the models "
            f"have; shorten the prompt to {max(0, positions - new)} tokens or ask for fewer new ones"
        )


@contextmanager
def explain_memory(models: Sequence[Any], rows: int, slots: int) -> Iterator[None]:
    """Turn a failed allocation into `OutOfMemory` with what would fit."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        out = isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error)
        if not out:
            raise
        need = rows * slots * sum(map(bytes_per_slot, models))
        free = free_memory(models[0].device)
        fits = max(0, int(rows * free / need))
        raise OutOfMemory(
            f"out of memory: {rows} rows of {slots} slots need {need / 2**20:.0f} MiB of keys and values, "
            f"{free / 2**20:.0f} MiB are free; "
            + (f"a batch_size of {fits} would fit" if fits else "not even one row would fit; shorten the prompts")
        ) from error


def bytes_per_slot(model: Any) -> int:
    """What the keys and values of one token take in all layers of a model."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * config.num_hidden_layers * heads * dim * model.dtype.itemsize)


def free_memory(device: torch.device) -> int:
    """Bytes that can still be allocated on a device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
