"""The architectures that ``--target`` knows by name, and how a target is written in the family of a case.

The family of a case on a real model is ``BASE@ARCHITECTURE`` or ``BASE@ARCHITECTURE@DTYPE``: how positions and masks
are seen, and which model sees them so. Free of torch, as cases and reports name families.

    >>> family_of("llama"), family_of("gpt2", "bfloat16")
    ('rotary@llama', 'learned@gpt2@bfloat16')
"""

from __future__ import annotations

import re
from typing import NamedTuple

from eqcheck.contract.errors import UsageError, did_you_mean

DTYPES = ("float64", "float32", "bfloat16", "float16")


class Architecture(NamedTuple):
    """A model of transformers as it is built here: its class, the family that it is like, the dtype it computes in.

    ``windowed`` models have layers with an attention window beside others without one. ``built`` is the name of a
    built checkpoint, whose function is the truth.
    """

    model: str
    family: str
    dtype: str = "float64"
    windowed: bool = False
    built: str = ""


# In float32 those whose own attention makes NaN of a pad that sees nothing, where it is computed in float64.
ARCHITECTURES = {
    "llama": Architecture("LlamaForCausalLM", "rotary"),
    "qwen3": Architecture("Qwen3ForCausalLM", "rotary"),
    "phi3": Architecture("Phi3ForCausalLM", "rotary"),
    "neox": Architecture("GPTNeoXForCausalLM", "rotary"),
    "gpt2": Architecture("GPT2LMHeadModel", "learned"),
    "mistral": Architecture("MistralForCausalLM", "window"),
    "mixtral": Architecture("MixtralForCausalLM", "rotary"),
    "gemma2": Architecture("Gemma2ForCausalLM", "rotary", "float32", windowed=True),
    "gpt_oss": Architecture("GptOssForCausalLM", "rotary", "float32", windowed=True),
    "deepseek_v3": Architecture("DeepseekV3ForCausalLM", "rotary"),
    "falcon": Architecture("FalconForCausalLM", "rotary"),
    "bloom": Architecture("BloomForCausalLM", "mask-order", "float32"),
    "mamba2": Architecture("Mamba2ForCausalLM", "recurrent"),
}

# The built checkpoints, which compute in bfloat16 if nothing else is asked. Two share a name with a model above.
BUILT = {
    name if name not in ARCHITECTURES else f"built-{name}": Architecture(model, family, "bfloat16", built=name, **more)
    for name, model, family, more in (
        ("full", "LlamaForCausalLM", "rotary", {}),
        ("qwen3", "Qwen3ForCausalLM", "rotary", {}),
        ("moe", "Qwen3MoeForCausalLM", "rotary", {}),
        ("learned", "GPT2LMHeadModel", "learned", {}),
        ("mla", "DeepseekV3ForCausalLM", "rotary", {}),
        ("window", "Gemma3ForCausalLM", "rotary", {"windowed": True}),
        ("mistral", "MistralForCausalLM", "window:32", {}),
    )
}
TARGETS = {**ARCHITECTURES, **BUILT}

# Architectures of transformers that are not read, and why.
UNREAD = dict.fromkeys(
    ("hybrid", "delta", "mamba", "rwkv", "falcon_mamba", "jamba", "qwen3_next", "lfm2"),
    "its layers, or some of them, have states that the tap does not read; of recurrent models it reads mamba2",
)


_OWN_BASES = re.compile(r"rotary|learned|mask-order|window:\d{1,6}")


def is_class(name: str) -> bool:
    """Return whether a target is ``package.module:Class``, code of the user's.

    >>> is_class("mine.models:Mine"), is_class("./checkpoint"), is_class("llama")
    (True, False, False)
    """
    return bool(re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", name))


def is_folder(name: str) -> bool:
    """Return whether a target is a folder with a checkpoint: a path with a slash in it.

    >>> is_folder("./checkpoint"), is_folder("llama")
    (True, False)
    """
    return "/" in name or "\\" in name


def is_own(name: str) -> bool:
    """Return whether a target is a class or a folder of the user's, and no architecture known by name."""
    return is_class(name) or is_folder(name)


class Parsed(NamedTuple):
    """The parts of a family on a real model; the architecture may be ``package.module:Class`` or a folder."""

    family: str
    architecture: str
    dtype: str


def parsed(family: str) -> Parsed | None:
    """The parts of the family of a case on a real model; None for any other text.

    >>> parsed("rotary@llama")
    Parsed(family='rotary', architecture='llama', dtype='float64')
    """
    base, _, rest = family.partition("@")
    name, dtype = split(rest)
    known = TARGETS.get(name)
    if known is None and is_own(name) and _OWN_BASES.fullmatch(base):
        return Parsed(base, name, dtype or "float64")
    if known is None or known.family != base:
        return None
    return Parsed(base, name, dtype or known.dtype)


def split(target: str) -> tuple[str, str]:
    """A target and the dtype behind it, empty where there is none.

    >>> split("llama@float32"), split("./models@home")
    (('llama', 'float32'), ('./models@home', ''))
    """
    name, _, dtype = target.rpartition("@")
    return (name, dtype) if dtype in DTYPES else (target, "")


def family_of(name: str, dtype: str = "") -> str:
    """The family of cases on an architecture; `UsageError` for one that is not known or cannot be read.

    >>> family_of("lama")
    Traceback (most recent call last):
    eqcheck.contract.errors.UsageError: --target: unknown architecture 'lama'; did you mean 'llama'? ...
    """
    if name in UNREAD:
        raise UsageError(f"--target {name}: it cannot be read: {UNREAD[name]}; audit it by its tokens with --python")
    if name not in TARGETS:
        raise UsageError(
            f"--target: unknown architecture {name!r}{did_you_mean(name, TARGETS) or '.'} "
            f"Known: all, {', '.join(TARGETS)}; each also as NAME@DTYPE with {', '.join(DTYPES)}; "
            "or package.module:Class, or the folder of a checkpoint, as ./folder"
        )
    if dtype and dtype not in DTYPES:
        raise UsageError(f"--target {name}@{dtype}: expected one of {', '.join(DTYPES)} behind the @")
    plain = dtype in ("", TARGETS[name].dtype)
    return f"{TARGETS[name].family}@{name}" + ("" if plain else f"@{dtype}")
