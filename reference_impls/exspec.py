"""EXSPEC: batch speculative decoding over a sliding pool of rows (arXiv 2510.22876, Section 4), done right.

More rows are in flight than one forward takes. Each round picks its rows from the pool:

1. as many equally long rows as fill the batch, if there are so many;
2. else the greatest number of equally long rows, if it is at least half of what could take part;
3. else the rows that have waited longest. They differ in length and are *realigned*: brought to one width.

Equally long rows need no padding and no mask of their own. When rows finish, the pool is filled up, so the batch does not
run dry while prompts wait. Ageing: once a row has waited for ``patience`` rounds, waiting time alone decides, so every row
takes part at the latest in round ``patience + ceil(pool / batch_size)`` after its last.

The pool's caches have a write offset per row: a group is formed by one gather per layer, and what a round writes is put
back by one scatter. Realigning differs from that by a mask.

    >>> from eqcheck.hashlm import HashConfig, HashLM
    >>> target, draft = HashLM(HashConfig(seed=1)), HashLM(HashConfig(seed=1, role=2))
    >>> engine = Exspec(target, draft, num_draft_tokens=4, batch_size=2)
    >>> outputs = engine.generate([[3, 1, 4], [1, 5], [2, 7, 1], [8, 2]], max_new_tokens=10)
    >>> [len(row) for row in outputs], engine.stats.verify_calls, engine.stats.grouping_rate
    ([10, 10, 10, 10], 4, 1.0)

Works on the models that `ragged` works on. Memory: as there, with the pool's rows as those in flight, and the copy of a
group.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch

import eqcheck

from .serving import Engine, Pool, Row, decode, speculate

POOL = 4  # batches in the pool


class Exspec(Engine):
    """Groups of equally long rows from a sliding pool; see the module."""

    def begin(self) -> None:
        self.pool = Pool(self.target, self.draft, self.num_draft_tokens, self.prefill_chunk)
        self.rows = self.pool.rows
        self.patience = 2 * POOL

    def room(self) -> int:
        return POOL * self.batch_size - len(self.rows)

    def join(self, rows: list[Row]) -> None:
        for row in rows:
            row.waiting_since = self.stats.rounds
        self.stats.prefill_calls += self.pool.join(rows)

    def round(self) -> list[Row]:
        group = self.choose()
        if len({row.cached for row in group}) == 1:
            self.stats.grouped += 1
            self._decode_group(group, "group")
        else:
            self.stats.realignments += 1
            self._decode_group(group, "realign")
        for row in group:
            row.waiting_since = self.stats.rounds + 1
        self.pool.drop_finished()
        return group

    def choose(self) -> list[Row]:
        """The rows of the next round."""
        by_waiting = sorted(self.rows, key=lambda row: row.waiting_since)
        longest_waiting = by_waiting[: self.batch_size]
        if self.stats.rounds - by_waiting[0].waiting_since >= self.patience:
            return longest_waiting
        by_length: dict[int, list[Row]] = defaultdict(list)
        for row in by_waiting:
            by_length[row.cached].append(row)
        best = max(by_length.values(), key=len)
        return best[: self.batch_size] if 2 * len(best) >= len(longest_waiting) else longest_waiting

    def _decode_group(self, group: list[Row], what: str) -> None:
        """Copy the rows' caches together, decode a round, put back what it wrote."""
        place = {id(row): i for i, row in enumerate(self.rows)}
        device = self.pool.target.device
        index = torch.tensor([place[id(row)] for row in group], device=device)
        self.pool.fit()
        width = max(len(row.tokens) for row in group) + self.num_draft_tokens + 1
        written = torch.tensor([[row.cached - row.behind] for row in group], device=device)
        written = written + torch.arange(max(row.behind for row in group) + self.num_draft_tokens + 1, device=device)
        with self.stats.timed(what, device):
            copies = [model.gather(index, width) for model in self.pool.models]
        speculate(copies[0], copies[1], group, self.num_draft_tokens, self.stats)
        self.stats.verify_calls += 1
        with self.stats.timed(what, device):
            for model, copy in zip(self.pool.models, copies, strict=True):
                model.scatter(index, copy, written)


@eqcheck.decoder(
    name="exspec",
    padding_sides=("left", "right"),
    families=("rotary", "learned", "window"),
    cache_states=("empty", "pads-huge", "pads-nan", "wrapped", "chunked", "late-rows"),
    origin="EXSPEC of arXiv 2510.22876, repaired: see the module's docstring",
)
def generate(target: Any, draft: Any, request: eqcheck.Request) -> list[list[int]]:
    """New tokens of each row, two rows at a time out of a pool of eight."""
    k, chunk = request.num_draft_tokens, request.prefill_chunk
    return decode(Exspec(target, draft, num_draft_tokens=k, batch_size=2, prefill_chunk=chunk), request)
