"""The rows in flight and their caches: a row may join or leave between any two rounds."""

from __future__ import annotations

from typing import Any

import torch

from .requests import Row
from .row_cache import RowModel

JOIN = 4  # rows join when at least one in so many of the batch's places is free


def enough(free: int, batch_size: int) -> int:
    """How many rows to take in: none while few places are free, for a prefill costs about a round, few rows or many."""
    return free if JOIN * free >= batch_size else 0


class Pool:
    """Row i of ``rows`` is in row i of the caches of ``target`` and ``draft``, which hold nothing else."""

    def __init__(self, target: Any, draft: Any, num_draft_tokens: int, chunk: int | None) -> None:
        self.target, self.draft = RowModel(target), RowModel(draft)
        self.models = (self.target, self.draft)
        self.rows: list[Row] = []
        self.block, self.chunk = num_draft_tokens + 1, chunk

    def fit(self) -> None:
        """Have room for the next round, and not much more than that."""
        slots = max((len(row.tokens) for row in self.rows), default=0) + self.block
        for model in self.models:
            model.fit(len(self.rows), slots)

    def join(self, joining: list[Row]) -> int:
        """Cache all tokens but the newest of rows that join; how many forwards of the target that took.

        They begin at slot 0 together, padded on the right: the pads lie behind all queries of their row and are
        overwritten. With a ``chunk`` no forward takes more tokens of a row than that. Equally long rows that find
        nobody there need no forward of their own: the first round feeds them.
        """
        first = len(self.rows)
        self.rows += joining
        self.fit()
        if not first and not self.chunk and len({row.cached for row in joining}) == 1:
            for row in joining:
                row.behind = row.unfed = row.cached
            return 0
        longest = max(row.cached for row in joining)
        padded = [row.tokens[:-1] + row.tokens[-1:] * (longest - row.cached) for row in joining]
        ids = torch.tensor(padded, dtype=torch.long, device=self.target.device)  # [rows, longest]
        step = self.chunk or max(longest, 1)
        starts = range(0, longest, step)
        for start in starts:
            for model in self.models:
                model.feed(ids[:, start : start + step], [start] * len(joining), first, logits_to_keep=1)
        return len(starts)

    def drop_finished(self) -> None:
        """Let go of the rows that finished; the last rows move into their places."""
        for place in reversed(range(len(self.rows))):
            if self.rows[place].finish_reason:
                last = self.rows.pop()
                if place < len(self.rows):
                    self.rows[place] = last
                    for model in self.models:
                        model.copy_row(len(self.rows), place, last.cached)
        self.fit()
