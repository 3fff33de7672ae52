"""Engines with one cache for the batch, and one for the draft kept in step: `Realigned`, `Holes`, `RolledBack`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from eqcheck.catalogue.engines.batch_cache import BatchCache, CroppedCache, HoleyCache, RealignedCache
from eqcheck.catalogue.engines.engine import RoundEngine, Rows


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
