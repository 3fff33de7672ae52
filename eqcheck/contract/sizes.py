"""How large the cases get that are drawn."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bounds:
    """How large cases get: rows, tokens of a prompt, ``max_new_tokens``, and K; all inclusive."""

    rows: int = 12
    prompt: int = 136
    new_tokens: int = 20
    draft_tokens: int = 8


WIDE = Bounds()
BLOCKS = (8, 16, 32, 64)  # how many tokens usual blocks of a KV cache hold
