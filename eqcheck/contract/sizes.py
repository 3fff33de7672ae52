"""Bound the size of drawn cases."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bounds:
    """Bound the size of cases: rows, tokens of a prompt, ``max_new_tokens``, and K; all inclusive."""

    rows: int = 12
    prompt: int = 136
    new_tokens: int = 20
    draft_tokens: int = 8


WIDE = Bounds()
SERVED = Bounds(rows=128, prompt=1600, new_tokens=48, draft_tokens=32)  # of cases for engines that load a checkpoint
BLOCKS = (8, 16, 32, 64)  # how many tokens usual blocks of a KV cache hold
SIZES = (4, *BLOCKS, 128)  # of blocks, pages, chunks, windows and buckets of a batch's lengths
