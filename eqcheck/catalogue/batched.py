"""Builds with one cache for the batch, and one for the draft kept in step: `Realigned`, `Holes`, `RolledBack`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from eqcheck.catalogue.batch_cache import DRAFT_SIDE, BatchCache, CroppedCache, HoleyCache, RealignedCache
from eqcheck.catalogue.engine import Engine, Rows


class Batched(Engine):
    """Invariant of every round: all tokens of a row but the newest are in the target's cache, each once."""

    cache: ClassVar[type[BatchCache]]

    def begin(self) -> None:
        self.verifier = self._model(self.target, self.request.target_cache, self.faults)
        drafts_faults = frozenset(DRAFT_SIDE[fault] for fault in self.faults if fault in DRAFT_SIDE)
        self.drafter = self._model(self.draft, self.request.draft_cache, drafts_faults)
        self.newest_before = [row[-1] for row in self.rows]
        if self.request.prefill_chunk is not None:
            self._prefill(self.request.prefill_chunk)

    def _model(self, model: Any, handed: Any, faults: frozenset[str]) -> BatchCache:
        prompts = [self.rows[i] for i in self.active]
        made = self.cache(model, prompts, self.request.pad_token_id, faults)
        if handed is not None:
            made.start_from(handed, self.request.prefix_length)
        return made

    def _prefill(self, chunk: int) -> None:
        """Feed the left-padded prompts in pieces of ``chunk`` columns, all but the last piece."""
        pending = [self.rows[i][n:] for i, n in zip(self.active, self.verifier.lengths, strict=True)]
        width = max(map(len, pending))
        for start in range(0, width - chunk, chunk):
            gaps = [width - len(row) for row in pending]
            blocks = [
                row[max(0, start - gap) : max(0, start + chunk - gap)] for row, gap in zip(pending, gaps, strict=True)
            ]
            for slot, block in enumerate(blocks):
                skipped = self.on("K14-first-token-skipped") and not self.verifier.lengths[slot]
                if block and (skipped or (self.on("K14-chunk-border-lost") and start)):
                    self.verifier.lengths[slot] += 1
                    blocks[slot] = block[1:]
            if not any(blocks):
                continue
            before = list(self.verifier.lengths)
            self.verifier.feed(blocks)
            if self.on("K14-chunk-taken-for-decode") and chunk == self.request.num_draft_tokens + 1:
                cached = list(self.verifier.lengths)
                accepted = [min(n + 1, after) for n, after in zip(before, cached, strict=True)]
                self.verifier.keep(range(len(cached)), accepted)
                self.verifier.lengths = cached

    def propose(self, budget: Sequence[int]) -> Rows:
        """Draft ``budget[slot]`` tokens for each active row, all rows at once."""
        drafts: Rows = [[] for _ in self.active]
        waiting = [self.rows[i][n:] for i, n in zip(self.active, self.drafter.lengths, strict=True)]
        if self.on("D6-previous-bonus-drafted-on"):
            waiting = [[*row[:-1], self.newest_before[i]] for i, row in zip(self.active, waiting, strict=True)]
        if self.on("D10-rejected-drafted-on"):
            waiting = [[*row[:-1], self.refused.get(i, row[-1])] for i, row in zip(self.active, waiting, strict=True)]
        while any(len(proposed) < k for proposed, k in zip(drafts, budget, strict=True)):
            blocks = [w if len(d) < k else [] for w, d, k in zip(waiting, drafts, budget, strict=True)]
            for slot, logits in enumerate(self.drafter.feed(blocks)):
                if blocks[slot]:
                    drafts[slot].append(int(logits[self.column_of_draft(self.active[slot], drafts[slot])].argmax()))
                    waiting[slot] = drafts[slot][-1:]
        return drafts

    def verify(self, drafts: Rows) -> Rows:
        lengths = self.verifier.lengths
        blocks = [self.rows[i][n:] + proposed for i, n, proposed in zip(self.active, lengths, drafts, strict=True)]
        for i in self.active:
            self.newest_before[i] = self.rows[i][-1]
        return self.answers(self.verifier.feed(blocks), drafts)

    def after(self, going: Sequence[int], lengths: Sequence[int]) -> None:
        self.verifier.keep(going, lengths)
        # The draft was not fed its last token: after full acceptance its cache is one token shorter.
        fed = [min(self.drafter.lengths[slot], n) for slot, n in zip(going, lengths, strict=True)]
        self.drafter.keep(going, fed)
        if self.on("D1-last-draft-token-missing"):
            self.drafter.lengths = list(lengths)


class Realigned(Batched):
    """Unpad, append, repad, as in EQSPEC (arXiv 2510.22876, Algorithm 2)."""

    cache = RealignedCache


class Holes(Batched):
    """Rejected draft tokens stay in the cache, hidden by the mask; positions are logical."""

    cache = HoleyCache


class RolledBack(Batched):
    """Every row goes back to the shortest accepted count of the batch, so one crop does for all."""

    cache = CroppedCache

    def propose(self, budget: Sequence[int]) -> Rows:
        return super().propose([min(budget)] * len(budget))

    def commit(self, drafts: Rows, predicted: Rows) -> list[int]:
        if not self.on("K2-crop-to-min-keep-tokens"):
            least = min(self.accepted(d, p) for d, p in zip(drafts, predicted, strict=True))
            drafts, predicted = [d[:least] for d in drafts], [p[: least + 1] for p in predicted]
        return super().commit(drafts, predicted)
