"""Engines with one cache for the batch, and one for the draft kept in step: `Realigned`, `Holes`, `RolledBack`.

They take rejected draft tokens out of it in three ways: `RealignedCache` moves together what is left, `HoleyCache`
hides the rejected slots, `CroppedCache` cuts the columns that no row has a use for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from transformers import DynamicCache

from eqcheck.catalogue.engines.engine import Handling, RoundEngine, Rows, left_padded, logits_of, own_copy, prefix_for

PAD, REJECTED = -1, -2  # what a slot holds instead of the token of a logical position


class BatchCache(Handling):
    """A causal LM with one cache for a batch; blocks are left padded.

    ``holds`` ``[batch, slots]`` is the logical position of the token in each slot, `PAD` or `REJECTED`; ``lengths``
    counts the tokens of each row that are cached.
    """

    def __init__(self, model: Any, prompts: Rows, pad: int) -> None:
        self.model, self.prompts, self.pad = model, prompts, pad
        self.batch = len(prompts)
        self.cache: Any = DynamicCache()
        self.lengths = [0] * self.batch
        self.holds = torch.zeros((self.batch, 0), dtype=torch.long)

    def start_from(self, handed: Any, prefix: int) -> None:
        """Go on from a handed cache: one row with a common prefix, or preallocated and empty."""
        if not prefix:
            self.cache = own_copy(handed)
            return
        self.cache = prefix_for(handed, self.batch)
        self.lengths = [prefix] * self.batch
        self.holds = torch.arange(prefix).repeat(self.batch, 1)

    def feed(self, blocks: Rows) -> list[torch.Tensor]:
        """Feed each row its block (ragged, may be empty); per row the logits ``[len(block), vocab]``."""
        ids, real = left_padded(blocks, self.pad)
        at = torch.tensor(self.lengths)[:, None] + real.long().cumsum(1) - 1
        self.holds = torch.cat([self.holds, torch.where(real, at, PAD)], 1)
        logits = logits_of(self.model, ids, self.mask(ids.shape[1]), self.positions(at, real), self.cache)
        self.lengths = [n + len(block) for n, block in zip(self.lengths, blocks, strict=True)]
        return [row[mask] for row, mask in zip(logits, real, strict=True)]

    def mask(self, width: int) -> torch.Tensor:
        """The mask of what is cached and fed, ``[batch, slots]``, the last ``width`` of them those of the block."""
        return self.seen().long()

    def seen(self) -> torch.Tensor:
        """Return which slots hold what is to be seen, ``[batch, slots]``."""
        return self.holds >= 0

    def keep(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
        """Keep these rows of the batch, with the first ``lengths`` tokens of each."""
        index, kept = torch.tensor(rows), torch.tensor(lengths)[:, None]
        surplus = torch.tensor([self.lengths[row] for row in rows])[:, None] - kept
        self.holds = self.left(self.holds[index], kept, surplus)
        self.lengths = list(lengths)
        self.move(index)
        self.batch = len(rows)

    def left(self, holds: torch.Tensor, kept: torch.Tensor, surplus: torch.Tensor) -> torch.Tensor:
        """``holds`` after a rollback by ``surplus`` tokens to the ``kept`` ones, ``[rows, 1]`` each."""
        return holds.masked_fill(holds >= kept, REJECTED)

    def move(self, rows: torch.Tensor) -> None:
        """Make the cache follow ``holds``; ``rows`` are the rows of the old batch to take."""
        raise NotImplementedError


class RealignedCache(BatchCache):
    """Each row's tokens are moved together at the right edge, and the slots that this frees are zeroed."""

    def move(self, rows: torch.Tensor) -> None:
        used = self.seen()
        width = int(used.sum(1).max())
        order = used.long().argsort(dim=1, stable=True)[:, used.shape[1] - width :]
        source = self.source(used, order)
        blank = ~used.gather(1, source)[:, None, :, None]
        for layer in self.cache.layers:
            moved = [kept[rows[:, None], :, source].transpose(1, 2) for kept in (layer.keys, layer.values)]
            layer.keys, layer.values = self.handed(*(kept.masked_fill(blank, 0) for kept in moved))
        self.holds = self.holds.gather(1, order).masked_fill(~used.gather(1, order), PAD)

    def source(self, used: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        """The slots that K and V are taken from, ``[rows, width]``; ``holds`` is taken from those of ``order``."""
        return order


class HoleyCache(BatchCache):
    """Nothing moves: rejected slots stay where they are and are hidden by the mask."""

    def move(self, rows: torch.Tensor) -> None:
        if rows.tolist() != list(range(self.batch)):
            self.cache.batch_select_indices(rows)


class CroppedCache(BatchCache):
    """Columns at the end in which no row has a token are cut off, for all rows at once."""

    def move(self, rows: torch.Tensor) -> None:
        if rows.tolist() != list(range(self.batch)):
            self.cache.batch_select_indices(rows)
        used = self.seen().any(0)
        width = int(used.nonzero().max()) + 1 if used.any() else 0
        if width < used.shape[0]:
            self.cache.crop(width - used.shape[0])  # a negative count means the same in every version
        self.holds = self.holds[:, :width]


class Batched(RoundEngine):
    """Invariant of every round: all tokens of a row but the newest are in the target's cache, each once."""

    memory: ClassVar[type[BatchCache]]
    draft_memory: ClassVar[type[BatchCache]]

    def begin(self) -> None:
        self.verifier = self._start(self.memory, self.target, self.request.target_cache)
        self.drafter = self._start(self.draft_memory, self.draft, self.request.draft_cache)
        if self.request.prefill_chunk is not None:
            self._prefill(self.request.prefill_chunk)

    def _start(self, memory: type[BatchCache], model: Any, handed: Any) -> BatchCache:
        made = memory(model, [self.rows[i] for i in self.active], self.request.pad_token_id)
        if handed is not None:
            made.start_from(handed, self.request.prefix_length)
        return made

    def _prefill(self, chunk: int) -> None:
        """Feed the left-padded prompts in pieces of ``chunk`` columns, all but the last piece."""
        pending = [self.rows[i][n:] for i, n in zip(self.active, self.verifier.lengths, strict=True)]
        width = max(map(len, pending))
        gaps = [width - len(row) for row in pending]
        for start in range(0, width - chunk, chunk):
            columns = [(max(0, start - gap), max(0, start + chunk - gap)) for gap in gaps]
            self.prefill([row[first:end] for row, (first, end) in zip(pending, columns, strict=True)], start)

    def prefill(self, blocks: Rows, start: int) -> None:
        """Feed a piece of each prompt, from the column ``start`` on; some may be empty."""
        if any(blocks):
            self.verifier.feed(blocks)

    def propose(self, budget: Sequence[int]) -> Rows:
        """Draft ``budget[place]`` tokens for each active row, all rows at once."""
        drafts: Rows = [[] for _ in self.active]
        lengths = zip(self.active, self.drafter.lengths, strict=True)
        waiting = [self.drafted_on(i, self.rows[i][n:]) for i, n in lengths]
        while any(len(proposed) < k for proposed, k in zip(drafts, budget, strict=True)):
            blocks = [w if len(d) < k else [] for w, d, k in zip(waiting, drafts, budget, strict=True)]
            for place, logits in enumerate(self.drafter.feed(blocks)):
                if blocks[place]:
                    drafts[place].append(self.next_draft(self.active[place], logits, drafts[place]))
                    waiting[place] = drafts[place][-1:]
        return drafts

    def verify(self, drafts: Rows) -> Rows:
        rows = zip(self.active, self.verifier.lengths, drafts, strict=True)
        blocks = [self.rows[i][n:] + proposed for i, n, proposed in rows]
        return self.answers(self.verifier.feed(blocks), drafts)

    def after(self, going: Sequence[int], lengths: Sequence[int]) -> None:
        self.verifier.keep(going, lengths)
        # The draft was not fed its last token: after full acceptance its cache is one token shorter.
        fed = [min(self.drafter.lengths[place], n) for place, n in zip(going, lengths, strict=True)]
        self.drafter.keep(going, fed)


class Realigned(Batched):
    """Unpad, append, repad, as in EQSPEC (arXiv 2510.22876, Algorithm 2)."""

    memory = draft_memory = RealignedCache


class Holes(Batched):
    """Rejected draft tokens stay in the cache, hidden by the mask; positions are logical."""

    memory = draft_memory = HoleyCache


class RolledBack(Batched):
    """Every row goes back to the shortest accepted count of the batch, so one crop does for all."""

    memory = draft_memory = CroppedCache

    def propose(self, budget: Sequence[int]) -> Rows:
        return super().propose([min(budget)] * len(budget))

    def commit(self, drafts: Rows, predicted: Rows) -> list[int]:
        least = min(self.accepted(d, p) for d, p in zip(drafts, predicted, strict=True))
        return super().commit([d[:least] for d in drafts], [p[: least + 1] for p in predicted])
