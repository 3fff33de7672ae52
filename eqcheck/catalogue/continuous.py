"""Continuous batching over a slot-addressed cache: rows join when a slot is free and leave when they end."""

from __future__ import annotations

from collections.abc import Sequence

from eqcheck.catalogue.engine import Engine, Rows, pieces
from eqcheck.catalogue.slot_cache import DRAFT_SIDE, SLOTS, SlotCache


class Continuous(Engine):
    """At most `SLOTS` rows at a time; the draft has a cache of the same kind."""

    def begin(self) -> None:
        request, longest = self.request, max(self.starts)
        capacity = 2 * longest + (request.max_new_tokens + 1) * (request.num_draft_tokens + 1)
        if self.on("X3-padding-not-reserved"):
            capacity = longest + request.max_new_tokens
        if self.on("K9-slot-not-reset") or self.on("X8-draft-state-of-last-tenant"):
            capacity *= len(self.rows)  # room behind the entries of every earlier row
        drafts_faults = [DRAFT_SIDE[fault] for fault in self.faults if fault in DRAFT_SIDE]
        prompts, pad = request.prompts, request.pad_token_id
        self.verifier = SlotCache(self.target, prompts, capacity, pad, self.faults)
        self.drafter = SlotCache(self.draft, prompts, capacity, pad, drafts_faults)
        self.waiting, self.active = self.active, []
        self.newest_before = [row[-1] for row in self.rows]

    def admit(self) -> bool:
        while (slot := self._free_slot()) is not None and (i := self.arriving()) is not None:
            self.waiting.remove(i)
            self._join(i, slot)
        if self.on("X7-waiting-dropped") or self.on("X7-waiting-omitted"):
            self.waiting = []
        return bool(self.active)

    def _free_slot(self) -> int | None:
        taken = [self.verifier.slot[i] for i in self.active]
        if self.on("K8-slot-released-twice") and self.finish_order and len(taken) == SLOTS == len(set(taken)):
            return taken[-1]
        return next((slot for slot in range(SLOTS) if slot not in taken), None)

    def _join(self, i: int, slot: int) -> None:
        request, others = self.request, bool(self.active)
        self.verifier.join(i, slot, request.target_cache, request.prefix_length, others)
        self.drafter.join(i, slot, request.draft_cache, request.prefix_length, others)
        self.active.append(i)
        for n, piece in enumerate(pieces(self.rows[i][self.verifier.lengths[i] :], request.prefill_chunk)[:-1]):
            if self.on("K14-chunk-border-lost" if n else "K14-first-token-skipped"):
                piece = piece[1:]
                self.verifier.lengths[i] += 1
                self.verifier.shift[i] -= 1
            if piece:
                self.calls += 1
                self.verifier.feed([i], [piece])
            if self.on("D5-chunks-not-drafted-on"):
                self.drafter.lengths[i] = self.verifier.lengths[i]

    def propose(self, budget: Sequence[int]) -> Rows:
        """Draft ``budget[slot]`` tokens for each active row, all rows at once."""
        drafts: dict[int, list[int]] = {i: [] for i in self.active}
        waiting = {i: self.rows[i][self.drafter.lengths[i] :] for i in self.active}
        if self.on("D6-previous-bonus-drafted-on"):
            waiting = {i: [*row[:-1], self.newest_before[i]] for i, row in waiting.items()}
        if self.on("D10-rejected-drafted-on"):
            waiting = {i: [*row[:-1], self.refused.get(i, row[-1])] for i, row in waiting.items()}
        while going := [i for i, k in zip(self.active, budget, strict=True) if len(drafts[i]) < k]:
            for i, logits in zip(going, self.drafter.feed(going, [waiting[i] for i in going]), strict=True):
                drafts[i].append(int(logits[self.column_of_draft(i, drafts[i])].argmax()))
                waiting[i] = drafts[i][-1:]
        return list(drafts.values())

    def verify(self, drafts: Rows) -> Rows:
        again = int(self.on("K4-last-token-twice") and all(self.verifier.lengths[i] for i in self.active))
        starts = [self.verifier.lengths[i] - again for i in self.active]
        blocks = [self.rows[i][n:] + proposed for i, n, proposed in zip(self.active, starts, drafts, strict=True)]
        for i in self.active:
            self.newest_before[i] = self.rows[i][-1]
        self.calls += 1
        return self.answers(self.verifier.feed(self.active, blocks, again), drafts)

    def after(self, going: Sequence[int], lengths: Sequence[int]) -> None:
        self.verifier.keep(self.active, lengths)
        # The draft was not fed its last token: after full acceptance its cache is one token shorter.
        self.drafter.keep(
            self.active, [min(self.drafter.lengths[i], n) for i, n in zip(self.active, lengths, strict=True)]
        )
        if self.on("D1-last-draft-token-missing"):
            for i, length in zip(self.active, lengths, strict=True):
                self.drafter.lengths[i] = length
