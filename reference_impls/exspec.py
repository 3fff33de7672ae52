"""EXSPEC: batch speculative decoding over a sliding pool of rows (arXiv 2510.22876, Section 4), done right.

More rows are in flight than one forward takes. Each round picks its rows from the pool:

1. as many equally long rows as fill the batch, if there are so many;
2. else the greatest number of equally long rows, if it is two or more and at least half of what could take part;
3. else the rows of the last round, which are together already, if they fill the batch and none has finished;
4. else the row that has waited longest and those nearest to it in length. They are *realigned*: brought to one width.

Equally long rows need no padding and no mask of their own. As rows finish, the pool is filled up, so the batch does
not run dry while prompts wait. Ageing: once a row has waited for ``patience`` rounds, waiting time alone decides, so
every row takes part at the latest ``patience + ceil(pool / batch_size)`` rounds after its last.

The pool's caches have a write offset per row: a group is formed by one gather per layer, and what its rounds wrote is
put back by one scatter when the group changes. Realigning differs from that by a mask.

Rows are greedy or sampled, each by options of its own, in one batch; `serving.sampling` says how.

    >>> from eqcheck.transparent.hashlm.model import HashConfig, HashLM
    >>> target, draft = HashLM(HashConfig(seed=1)), HashLM(HashConfig(seed=1, role=2))
    >>> engine = Exspec(target, draft, num_draft_tokens=4, batch_size=2)
    >>> outputs = engine.generate([[3, 1, 4], [1, 5], [2, 7, 1], [8, 2]], max_new_tokens=10)
    >>> [len(row) for row in outputs], engine.stats.verify_calls
    ([10, 10, 10, 10], 4)

Works on the models that `ragged` works on. Memory: as there, with the pool's rows as those in flight; and the copy of a
group, at most ``batch_size`` rows of 1.5 times what its longest has, or of `AHEAD` rounds more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch

import eqcheck

from .serving import SAMPLING, Engine, Pool, Row, RowModel, decode, enough, speculate

POOL = 4  # batches in the pool; one, if a batch is one row: there is nothing to group
AHEAD = 4  # rounds for which a group has room when it is formed


class Group:
    """Copies of some of the pool's cache rows, in which they are decoded; what they write is put back by `close`."""

    def __init__(self, pool: Pool, rows: Sequence[Row], formed_by: str) -> None:
        self.pool, self.rows, self.formed_by = pool, list(rows), formed_by
        place = {id(row): i for i, row in enumerate(pool.rows)}
        self.index = torch.tensor([place[id(row)] for row in rows], device=pool.target.device)
        self.starts = [row.cached - row.behind for row in rows]  # nothing before these will be written
        width = self._width() + AHEAD * pool.block
        self.models: list[RowModel] = [model.gather(self.index, width) for model in pool.models]

    def _width(self) -> int:
        return max(len(row.tokens) for row in self.rows) + self.pool.block

    def fit(self) -> None:
        """Have room for one more round."""
        for model in self.models:
            model.fit(len(self.rows), self._width())

    def close(self) -> None:
        """Put back what was written of the rows' tokens."""
        written = [range(start, row.cached) for row, start in zip(self.rows, self.starts, strict=True)]
        slots = torch.tensor([slot for some in written for slot in some], device=self.index.device)
        source = torch.arange(len(written), device=slots.device).repeat_interleave(
            torch.tensor([len(some) for some in written], device=slots.device)
        )
        for model, copy in zip(self.pool.models, self.models, strict=True):
            model.scatter(copy, source, self.index[source], slots)


class Exspec(Engine):
    """Groups of equally long rows from a sliding pool; see the module."""

    def begin(self) -> None:
        self.pool = Pool(self.target, self.draft, self.num_draft_tokens, self.prefill_chunk)
        self.rows = self.pool.rows
        self.group: Group | None = None
        self.capacity = self.batch_size * (POOL if self.batch_size > 1 else 1)
        self.patience = 4 * POOL

    def room(self) -> int:
        return enough(min(self.batch_size, self.capacity - len(self.rows)), self.batch_size)

    def join(self, rows: list[Row]) -> None:
        for row in rows:
            row.waiting_since = self.stats.rounds
        self.stats.prefill_calls += self.pool.join(rows)

    def round(self) -> list[Row]:
        rows = self.choose()
        equal = len({row.cached for row in rows}) == 1
        self.stats.batched += len(rows) > 1
        self.stats.grouped += equal and len(rows) > 1
        if self.group is None or rows != self.group.rows:
            self._close()
            with self.stats.timed("group" if equal else "realign", self.target.device):
                self.group = Group(self.pool, rows, "group" if equal else "realign")
            self.stats.realignments += not equal
        self.group.fit()
        target, draft = self.group.models
        speculate(target, draft, rows, self.num_draft_tokens, self.stats, self.noise)
        self.stats.verify_calls += 1
        for row in rows:
            row.waiting_since = self.stats.rounds + 1
        if any(row.finish_reason for row in rows):
            self._close()
            self.pool.drop_finished()
        return rows

    def choose(self) -> list[Row]:
        """The rows of the next round."""
        by_waiting = sorted(self.rows, key=lambda row: row.waiting_since)
        oldest, size = by_waiting[0], min(self.batch_size, len(by_waiting))
        if self.stats.rounds - oldest.waiting_since >= self.patience:
            return by_waiting[:size]
        by_length: dict[int, list[Row]] = defaultdict(list)
        for row in by_waiting:
            by_length[row.cached].append(row)
        best = max(by_length.values(), key=len)
        together = [] if self.group is None else self.group.rows
        if 2 * len(best) >= size and (len(best) > 1 or size == 1):
            equal = len({row.cached for row in together}) == 1
            # If no other group is larger than the one that is together, it need not be formed.
            return together if equal and len(together) == min(len(best), size) else best[:size]
        if len(together) == size:
            return together
        return sorted(by_waiting, key=lambda row: abs(row.cached - oldest.cached))[:size]

    def _close(self) -> None:
        if self.group is not None:
            with self.stats.timed(self.group.formed_by, self.target.device):
                self.pool.fit()
                self.group.close()
            self.group = None


@eqcheck.decoder(
    name="exspec",
    padding_sides=("left", "right"),
    families=("rotary", "learned", "window"),
    cache_states=("empty", "pads-huge", "pads-nan", "wrapped", "chunked", "late-rows"),
    origin="EXSPEC of arXiv 2510.22876, repaired: see the module's docstring",
    engine=Exspec,
    capabilities=SAMPLING,
    seeds="mates",
)
def generate(target: Any, draft: Any, request: eqcheck.Request) -> list[list[int]]:
    """New tokens of each row, two rows at a time out of a pool of eight."""
    return decode(Exspec, target, draft, request, batch_size=2)
