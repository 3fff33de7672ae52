"""Continuous batching over a preallocated cache: rows join when there is memory for one, and leave when they end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from eqcheck.catalogue.engines.engine import RoundEngine, Rows, pieces
from eqcheck.catalogue.engines.offset_cache import LINES, OffsetCache


class Continuous(RoundEngine):
    """At most `LINES` rows at a time; the draft has a cache of the same kind."""

    memory: ClassVar[type[OffsetCache]] = OffsetCache
    draft_memory: ClassVar[type[OffsetCache]] = OffsetCache

    def begin(self) -> None:
        prompts, capacity, pad = self.request.prompts, self.capacity(), self.request.pad_token_id
        self.verifier = self.memory(self.target, prompts, capacity, pad)
        self.drafter = self.draft_memory(self.draft, prompts, capacity, pad)
        self.waiting, self.active = self.active, []

    def capacity(self) -> int:
        """How many slots a row has: enough for what is rejected, too, and for padding."""
        return 2 * max(self.starts) + (self.request.max_new_tokens + 1) * (self.request.num_draft_tokens + 1)

    def admit(self) -> bool:
        while (line := self.free_line()) is not None and (i := self.arriving()) is not None:
            self.waiting.remove(i)
            self.join(i, line)
            self.active.append(i)
            pending = self.rows[i][self.verifier.lengths[i] :]
            for number, piece in enumerate(pieces(pending, self.request.prefill_chunk)[:-1]):
                self.prefill(i, piece, number)
        return bool(self.active)

    def free_line(self) -> int | None:
        taken = {self.verifier.line[i] for i in self.active}
        return next((line for line in range(LINES) if line not in taken), None)

    def join(self, i: int, line: int) -> None:
        """Give a line to a row that joins the active ones."""
        request = self.request
        self.verifier.join(i, line, request.target_cache, request.prefix_length)
        self.drafter.join(i, line, request.draft_cache, request.prefix_length)

    def prefill(self, i: int, piece: list[int], number: int) -> None:
        """Feed a piece of a row's prompt, but the last."""
        self.calls += 1
        self.verifier.feed([i], [piece])

    def propose(self, budget: Sequence[int]) -> Rows:
        """Draft ``budget[place]`` tokens for each active row, all rows at once."""
        drafts: dict[int, list[int]] = {i: [] for i in self.active}
        waiting = {i: self.drafted_on(i, self.rows[i][self.drafter.lengths[i] :]) for i in self.active}
        while going := [i for i, k in zip(self.active, budget, strict=True) if len(drafts[i]) < k]:
            for i, logits in zip(going, self.drafter.feed(going, [waiting[i] for i in going]), strict=True):
                drafts[i].append(self.next_draft(i, logits, drafts[i]))
                waiting[i] = drafts[i][-1:]
        return list(drafts.values())

    def verify(self, drafts: Rows) -> Rows:
        rows = zip(self.active, drafts, strict=True)
        blocks = [self.rows[i][self.verifier.lengths[i] :] + proposed for i, proposed in rows]
        self.calls += 1
        return self.answers(self.verifier.feed(self.active, blocks), drafts)

    def after(self, going: Sequence[int], lengths: Sequence[int]) -> None:
        self.verifier.keep(self.active, lengths)
        # The draft was not fed its last token: after full acceptance its cache is one token shorter.
        fed = [min(self.drafter.lengths[i], n) for i, n in zip(self.active, lengths, strict=True)]
        self.drafter.keep(self.active, fed)
