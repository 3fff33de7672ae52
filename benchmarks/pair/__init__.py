"""A small pair of trained models: byte-level Llamas, the draft distilled from the target (`benchmarks.pair.train`).

For what random weights cannot show: the speed, the acceptance and the near-ties of trained models, offline.

    >>> pair = load()
    >>> prompt = encode("def __init__(self, ")
    >>> ids = pair.target.generate(torch.tensor([prompt]), max_new_tokens=8, do_sample=False)
    >>> len(decode(ids[0, len(prompt):].tolist()))
    8
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from eqcheck.contract.errors import UsageError

BYTES = 256
CONTEXT = 512
END = 0  # closes every file of the training text; the models' EOS


class Pair(NamedTuple):
    """A target and its draft, in evaluation mode."""

    target: Any
    draft: Any


def check() -> Path:
    """The pair's folder; `UsageError` where the weights are missing, which sdists leave out for their size."""
    folder = Path(__file__).parent
    absent = [name for name in ("target", "draft") if not (folder / name / "model.safetensors").is_file()]
    if absent:
        raise UsageError(
            f"the trained pair is not here; an sdist leaves its weights out. Copy {' and '.join(absent)} from "
            f"benchmarks/pair/ of eqcheck's repository into {folder}, or run in a checkout, which has them; "
            "`python -m benchmarks.pair.train` trains a pair there anew, in about an hour on two cores"
        )
    return folder


def load(dtype: torch.dtype = torch.float32) -> Pair:
    """The pair in a floating dtype; it is stored in float16, so other dtypes hold exactly those numbers.

    Raises `UsageError` where the weights are missing (`check`).
    """
    from transformers import LlamaForCausalLM

    folder = check()
    models = (LlamaForCausalLM.from_pretrained(folder / name, dtype=dtype) for name in ("target", "draft"))
    return Pair(*(model.eval() for model in models))


def encode(text: str) -> list[int]:
    """Token ids of a text: its bytes."""
    return list(text.encode())


def decode(token_ids: Sequence[int]) -> str:
    """The text of token ids, with a replacement character where bytes are no UTF-8."""
    return bytes(token_ids).decode(errors="replace")
