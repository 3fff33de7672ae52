"""The refusals of an engine: each says where, expected, got, and what to do.

ValueError
|-- Unsupported   eqcheck's: models or settings that the engine cannot be right for
`-- PromptError   a prompt that it cannot decode (in `requests`)
MemoryError
`-- OutOfMemory   with what would fit
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any

import torch

from eqcheck import Unsupported
from eqcheck.contract.cache_names import takes_cache
from eqcheck.contract.decoders import RowOptions

from .requests import Prompt, PromptError

NO_LIMIT = 2**31
ATTENTION = ("eager", "sdpa", "None")


class OutOfMemory(MemoryError):
    """There was no memory for what was asked; the message says what would fit."""


def at_least_one(name: str, value: Any) -> int:
    """The value if it is an integer of at least 1; `Unsupported` if not."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise Unsupported(f"{name}: expected an integer of at least 1, got {value!r}")
    return value


def one_of(name: str, value: Any, known: Sequence[str]) -> str:
    """The value if it is one of those known; `Unsupported` if not."""
    if value not in known:
        raise Unsupported(f"{name}: expected one of {', '.join(known)}, got {value!r}")
    return str(value)


def check_pair(target: Any, draft: Any, tokenizers: Sequence[Any]) -> None:
    """`Unsupported` unless both models read the same token ids and are on one device."""
    sizes = [model.config.get_text_config().vocab_size for model in (target, draft)]
    if sizes[0] != sizes[1]:
        raise Unsupported(
            f"draft: expected the target's vocabulary of {sizes[0]} tokens, got one of {sizes[1]}; a draft token id "
            "must mean the same to both. If the surplus of one is only padding, cut it with resize_token_embeddings()"
        )
    if tokenizers:
        if not isinstance(tokenizers, Sequence) or len(tokenizers) != 2:
            raise Unsupported(f"tokenizers: expected two, the target's and the draft's, got {tokenizers!r}")
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
    if getattr(model, "training", False):
        raise Unsupported(
            f"{kind} is in training mode, in which dropout makes every answer another; call {name}.eval()"
        )
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
    if oddity := position_oddity(config):
        raise Unsupported(f"{kind} has {oddity}, so what a row sees depends on the rows beside it; expected none")
    if str(getattr(config, "_attn_implementation", None)) not in ATTENTION:
        raise Unsupported(
            f"{kind} attends with {config._attn_implementation}; expected one of {', '.join(map(str, ATTENTION))}, "
            "which take a mask per row: load it with attn_implementation='sdpa'"
        )
    takes = inspect.signature(model.forward).parameters
    if "position_ids" not in takes or not takes_cache(model):
        raise Unsupported(
            f"{kind} takes no position_ids, so it counts positions in a way of its own; expected a model such as "
            "Llama, Qwen3, GPT-2, GPT-NeoX or Mixtral"
        )


def window_of(model: Any) -> int | None:
    """Return how many tokens a query of the model sees, or None for all."""
    config = model.config.get_text_config()
    if getattr(config, "use_sliding_window", True) is False or "full_attention" in (
        getattr(config, "layer_types", None) or ()
    ):
        return None
    window: int | None = getattr(config, "sliding_window", None)
    return window


def position_oddity(config: Any) -> str:
    """The reason why a model places tokens by batch or slots instead of ``position_ids``; empty if nothing does."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    if (rope.get("rope_type") or rope.get("type")) == "longrope":
        return "'longrope' positions, whose frequencies change with the longest row of a batch"
    if getattr(config, "attention_types", None):
        return "causal masks of its own, by slot"
    return "ALiBi biases, by slot" if getattr(config, "alibi", False) else ""


def max_positions(model: Any) -> int:
    """Return how many tokens the model was built for."""
    return getattr(model.config.get_text_config(), "max_position_embeddings", None) or NO_LIMIT


def name_of(prompt: Prompt) -> str:
    """The name of a prompt in a message."""
    return "prompt" if prompt.id is None else f"prompt {prompt.id!r}"


def check_prompt(prompt: Prompt, vocab_size: int, positions: int) -> None:
    """`PromptError` for a prompt that is empty, too long, of unknown tokens or without a limit."""
    name = name_of(prompt)
    tokens = prompt.token_ids
    for what, ids in (("token_ids", tokens), ("stop_token_ids", prompt.stop_token_ids)):
        if not isinstance(ids, Sequence | Set) or isinstance(ids, str | bytes):
            raise PromptError(f"{name}: {what}: expected a list of token ids (of a tensor, .tolist()), got {ids!r}")
    if not len(tokens):
        raise PromptError(f"{name}: expected at least one token id, got none")
    for token in [*tokens, *prompt.stop_token_ids]:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab_size:
            raise PromptError(f"{name}: expected token ids 0..{vocab_size - 1}, Python's integers, got {token!r}")
    if not isinstance(prompt.sampling, RowOptions | None):
        raise PromptError(f"{name}: sampling: expected RowOptions or None, got {prompt.sampling!r}")
    new = prompt.max_new_tokens
    if isinstance(new, bool) or not isinstance(new, int) or new < 1:
        raise PromptError(f"{name}: expected max_new_tokens of at least 1, got {new!r}")
    if len(tokens) + new > positions:
        raise PromptError(
            f"{name}: {len(tokens)} tokens and {new} new ones are more than the {positions} positions the models "
            f"have; shorten the prompt to {max(0, positions - new)} tokens or ask for fewer new ones"
        )


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an allocation failed."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error)


def what_fits(models: Sequence[Any], batch_size: int, rows: int, slots: int, room: float) -> str:
    """The error for memory that ran out with so many rows in flight; asked for when all caches are gone.

    Caches take about ``room`` times what rows and slots need.
    """
    per_row = slots * room * sum(map(bytes_per_slot, models))
    ran_out = (
        f"out of memory at batch_size {batch_size}: keys and values of {rows} rows in flight, {slots} slots each, take "
    )
    ran_out += f"about {rows * per_row / 2**20:.3g} MiB"
    free = free_memory(models[0].device)
    if free is None:
        return f"{ran_out}; lower batch_size or prefill_chunk, or shorten the prompts"
    fits = int(free / (per_row * -(-rows // batch_size)))
    if fits >= batch_size:
        advice = (
            f"they are not what is too large, but a forward of {batch_size} rows: lower batch_size or prefill_chunk"
        )
    elif fits:
        advice = f"a batch_size of {fits} would fit"
    else:
        advice = "not even a batch_size of 1 would fit: shorten the prompts"
    return f"{ran_out} where {free / 2**20:.3g} MiB are free; {advice}"


def bytes_per_slot(model: Any) -> int:
    """The bytes of one token's keys and values in all layers of a model."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * config.num_hidden_layers * heads * dim * model.dtype.itemsize)


def free_memory(device: torch.device) -> int | None:
    """Bytes that can still be allocated on a device; None where that cannot be told."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + kept
    try:
        found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None
