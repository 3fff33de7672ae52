"""Make built checkpoints by name, and write them as Hugging Face folders: the same bytes on every machine."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from eqcheck.contract.errors import UsageError, did_you_mean
from eqcheck.engines.construction.function import VOCABULARY, Function

DTYPES = ("float32", "bfloat16", "float16")
END = VOCABULARY - 1  # the special token of the tokenizer, which some engines ask for


@dataclass(frozen=True)
class Built:
    """Hold a built checkpoint; ``agreement`` is the share of contexts in which it agrees with its target.

    >>> checkpoint = built("full")
    >>> checkpoint.next([1, 2, 3]) == checkpoint.draft(agreement=1.0).next([1, 2, 3])
    True
    """

    name: str
    agreement: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.agreement <= 1:
            raise UsageError(f"agreement: expected a share from 0 to 1, got {self.agreement}")

    @cached_property
    def function(self) -> Function:
        """Return the function that its weights compute."""
        from eqcheck.engines.construction.layouts import LAYOUTS, flagged

        made = LAYOUTS[self.name]
        return Function(made.layers(), flagged(self.agreement), made.rotation, made.cap)

    def next(self, ids: Sequence[int]) -> int:
        """Return the greedy next token after these tokens; it is exact in every supported dtype."""
        return self.function.next(ids)

    def law(self, ids: Sequence[int]) -> list[float]:
        """Return the probability of each next token at temperature 1, one float per token of the vocabulary.

        Each bit of the code of the next token flips independently, with a probability of 27 to 13 %. The special tokens
        share 3 %.

        >>> checkpoint = built("full")
        >>> round(max(checkpoint.law([1, 2, 3])), 3), round(sum(checkpoint.law([1, 2, 3])), 9)
        (0.167, 1.0)
        """
        from eqcheck.engines.construction.weights import LOGITS, capped

        function = self.function
        right, weights = function.tokens_out.index(self.next(ids)), [1.0] * VOCABULARY
        for code, token in enumerate(function.tokens_out):
            signed = (-size if (code ^ right) >> bit & 1 else size for bit, size in enumerate(LOGITS))
            weights[token] = math.exp(capped(sum(signed), function.cap))
        return [weight / sum(weights) for weight in weights]

    def draft(self, agreement: float = 0.6) -> Built:
        """Return a draft of the same architecture that is wrong in ``1 - agreement`` of contexts.

        Raises `UsageError` for an agreement outside 0 to 1.
        """
        return Built(self.name, agreement)

    def files(self, dtype: str = "float32") -> dict[str, bytes]:
        """Return the files of its folder by name, with weights in ``dtype``; raise `UsageError` for another dtype."""
        if dtype not in DTYPES:
            raise UsageError(f"dtype: expected one of {', '.join(DTYPES)}, got {dtype!r}")
        from eqcheck.engines.construction.layouts import LAYOUTS

        config, tensors = LAYOUTS[self.name].write(self.function)
        return {
            "config.json": _json({**config, "dtype": dtype, "torch_dtype": dtype}),
            "model.safetensors": _tensors(tensors, dtype),
            "generation_config.json": _json({"do_sample": False, "eos_token_id": None}),
            "tokenizer.json": _json(_tokenizer()),
            "tokenizer_config.json": _json({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": f"[{END}]"}),
        }

    def save(self, folder: str | os.PathLike[str], dtype: str = "float32") -> None:
        """Write ``config.json``, ``model.safetensors`` and a tokenizer whose texts are token ids, such as ``[17]``.

        Raises `UsageError` for a dtype other than `DTYPES`, or for a folder that holds something else.
        """
        files, path = self.files(dtype), Path(folder)
        strange = [file.name for file in path.iterdir() if file.name not in files] if path.is_dir() else []
        if strange or path.is_file():
            held = f"the folder holds {strange[0]}" if strange else "it is a file"
            raise UsageError(f"{path}: expected a new or empty folder, or one with a checkpoint; {held}")
        path.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (path / name).write_bytes(data)


@lru_cache(maxsize=16)
def built(name: str) -> Built:
    """Return the built checkpoint of this name (`eqcheck checkpoint list`); raise `UsageError` for an unknown name.

    >>> built("full").name
    'full'
    """
    from eqcheck.engines.construction.layouts import LAYOUTS

    if name not in LAYOUTS:
        raise UsageError(f"checkpoint {name!r}: expected one of {', '.join(LAYOUTS)}{did_you_mean(name, LAYOUTS)}")
    return Built(name)


def _json(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()


def _tensors(tensors: dict[str, Any], dtype: str) -> bytes:
    """A safetensors file: its header's length, the header, the data. Each version of the library orders it otherwise.

    Rounding to bfloat16 is to the nearest, ties to even.
    """
    import numpy as np

    kind = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}[dtype]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    parts, end = [], 0
    for name, weight in sorted(tensors.items()):
        exact = np.ascontiguousarray(weight, "<f4")
        if dtype == "bfloat16":
            bits = exact.view("<u4")
            parts.append((bits + 0x7FFF + (bits >> 16 & 1) >> 16).astype("<u2").tobytes())
        else:
            parts.append(exact.astype("<f2" if dtype == "float16" else "<f4").tobytes())
        header[name] = {"dtype": kind, "shape": list(exact.shape), "data_offsets": [end, end + len(parts[-1])]}
        end += len(parts[-1])
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(parts)


def _tokenizer() -> dict[str, Any]:
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": END, "content": f"[{END}]", **special}],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": r"\[\d+\]"},
            "behavior": "Isolated",
            "invert": False,
        },
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {
            "type": "WordLevel",
            "vocab": {f"[{token}]": token for token in range(VOCABULARY)},
            "unk_token": f"[{END}]",
        },
    }
