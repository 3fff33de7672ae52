"""The rows in flight and their caches: a row may join or leave between any two rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .checks import bytes_per_slot
from .requests import Row
from .row_cache import RowModel

JOIN = 4  # rows join when at least one in so many of the batch's places is free


def enough(free: int, batch_size: int) -> int:
    """Return how many rows to take in: none while few places are free, for a prefill costs about a round,
    few rows or many.
    """
    return free if JOIN * free >= batch_size else 0


def slots_within(size: int, models: Sequence[Any]) -> int:
    """Return how many slots of the caches of these models take at most ``size`` bytes,
    also while a tensor is made anew.
    """
    return size // bytes_for(1, models)


def bytes_for(slots: int, models: Sequence[Any]) -> int:
    """The most bytes that so many slots of the caches of these models take."""
    sizes = [bytes_per_slot(model) for model in models]
    tensors = [2 * int(model.config.get_text_config().num_hidden_layers) for model in models]
    return int(slots) * (sum(sizes) + max(one // count for one, count in zip(sizes, tensors, strict=True)))


class Pool:
    """Row i of ``rows`` is in row i of the caches of ``target`` and ``draft``, which hold nothing else.

    ``most`` is how many slots either cache may have, in all its rows together (`slots_within`); None: no bound.
    """

    def __init__(
        self, target: Any, draft: Any, num_draft_tokens: int, chunk: int | None, most: int | None = None
    ) -> None:
        self.target, self.draft = RowModel(target), RowModel(draft)
        self.models = (self.target, self.draft)
        self.rows: list[Row] = []
        self.block, self.chunk, self.most = num_draft_tokens + 1, chunk, most
        self.kv_bytes = 0

    def draft_tokens(self) -> int:
        """Return how many draft tokens there is room for in the next round."""
        if self.most is None or not self.rows:
            return self.block - 1
        return min(self.block, self.most // len(self.rows) - self._longest) - 1

    def takes(self, row: Row, joining: Sequence[Row]) -> bool:
        """Return whether there is room for a row beside the others until all have ended,
        in the worst case without drafts.
        """
        rows = [*self.rows, *joining, row]
        return self.most is None or len(rows) * max(one.end for one in rows) <= self.most

    def fit(self) -> None:
        """Have room for the next round, and not much more than that."""
        self.kv_bytes = max(self.kv_bytes, sum(model.kv_bytes for model in self.models))
        for model in self.models:
            model.fit(len(self.rows), self._longest + self.draft_tokens() + 1, self.most)

    @property
    def _longest(self) -> int:
        return max((len(row.tokens) for row in self.rows), default=0)

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
