"""The work of an engine, counted and timed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch


@dataclass
class Stats:
    """The work of an engine since its last `generate` or `stream` began.

    ``tokens`` were committed; of ``drafted`` draft tokens that were verified, ``accepted`` were accepted, in
    ``verify_calls`` forwards of the target beside ``prefill_calls``. Of an engine that forms groups, ``batched`` counts
    the rounds of several rows, ``grouped`` those of them whose rows were equally long as they were. ``realignments``
    counts how often rows of different lengths were brought to one width. ``kv_bytes`` is the most that the caches took,
    of an engine that says so. ``seconds`` is the time it took to gather and
    put back equally long rows (``group``), to do so for others or to realign (``realign``), and all time between
    taking prompts and handing out tokens (``total``).
    """

    rounds: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    verify_calls: int = 0
    prefill_calls: int = 0
    batched: int = 0
    grouped: int = 0
    realignments: int = 0
    kv_bytes: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: {"group": 0.0, "realign": 0.0, "total": 0.0})

    def count(self, drafted: int, accepted: int, committed: int) -> None:
        """Add what one row did in one round."""
        self.drafted += drafted
        self.accepted += min(accepted, committed)
        self.tokens += committed

    @property
    def target_calls(self) -> int:
        return self.verify_calls + self.prefill_calls

    @property
    def tokens_per_verify(self) -> float:
        return self.tokens / max(1, self.verify_calls)

    @property
    def acceptance(self) -> float:
        """The share of verified draft tokens that were accepted."""
        return self.accepted / max(1, self.drafted)

    @property
    def grouping_rate(self) -> float | None:
        """The share of rounds of several rows in which these were equally long; None without such rounds."""
        return self.grouped / self.batched if self.batched else None

    @property
    def realign_share(self) -> float:
        """The share of the time that realigning took."""
        return self.seconds["realign"] / max(1e-12, self.seconds["total"])

    @contextmanager
    def timed(self, what: str, device: torch.device) -> Iterator[None]:
        """Add the time that the block takes, on a GPU too, to ``seconds[what]``."""
        _finish(device)
        began = time.perf_counter()
        try:
            yield
        finally:
            _finish(device)
            self.seconds[what] += time.perf_counter() - began


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
