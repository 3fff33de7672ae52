"""Engines over a paged cache, as in those for serving; the draft has one of the same kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from eqcheck.catalogue.engines.engine import RoundEngine, Rows, pieces
from eqcheck.catalogue.engines.paged_cache import PagedModel


class Paged(RoundEngine):
    """A paged cache in blocks of 16 slots."""

    size: ClassVar[int] = 16
    memory: ClassVar[type[PagedModel]] = PagedModel
    draft_memory: ClassVar[type[PagedModel]] = PagedModel

    def begin(self) -> None:
        self.verifier = self._start(self.memory, self.target, self.request.target_cache)
        self.drafter = self._start(self.draft_memory, self.draft, self.request.draft_cache)
        for i in self.active:
            self.join(i)

    def _start(self, memory: type[PagedModel], model: Any, handed: Any) -> PagedModel:
        more = self.request.max_new_tokens + self.request.num_draft_tokens + 1
        made = memory(model, [start + more for start in self.starts], self.size, self.request.pad_token_id)
        if self.request.prefix_length:
            made.start_from(handed, self.request.prefix_length)
        return made

    def join(self, i: int) -> None:
        """Feed all but the last piece of a row's prompt."""
        pending = self.rows[i][self.verifier.lengths[i] :]
        for number, piece in enumerate(pieces(pending, self.request.prefill_chunk)[:-1]):
            self.prefill(i, piece, number)

    def prefill(self, i: int, piece: list[int], number: int) -> None:
        """Feed a piece of a row's prompt, but the last."""
        self.verifier.feed([i], [piece])

    def propose(self, budget: Sequence[int]) -> Rows:
        """Draft ``budget[place]`` tokens for each active row, all rows at once."""
        drafts: dict[int, list[int]] = {i: [] for i in self.active}
        while going := [i for i, k in zip(self.active, budget, strict=True) if len(drafts[i]) < k]:
            blocks = [(self.rows[i] + drafts[i])[self.drafter.lengths[i] :] for i in going]
            for i, logits in zip(going, self.drafter.feed(going, blocks), strict=True):
                drafts[i].append(int(logits[-1].argmax()))
        return list(drafts.values())

    def verify(self, drafts: Rows) -> Rows:
        rows = zip(self.active, drafts, strict=True)
        blocks = [(self.rows[i] + proposed)[self.verifier.lengths[i] :] for i, proposed in rows]
        return self.answers(self.verifier.feed(self.active, blocks), drafts)

    def after(self, going: Sequence[int], lengths: Sequence[int]) -> None:
        self.verifier.keep(self.active, lengths)
        # The draft was not fed its last token: after full acceptance its cache is one token shorter.
        fed = [min(self.drafter.lengths[i], n) for i, n in zip(self.active, lengths, strict=True)]
        self.drafter.keep(self.active, fed)


class PagedSmall(Paged):
    """A paged cache in blocks of 4 slots, so that most rows have several."""

    size = 4


class Prefixed(Paged):
    """A paged cache whose full blocks are found again by the text up to their end, and shared by later rows."""

    def begin(self) -> None:
        self.known: dict[tuple[int, ...], int] = {}
        super().begin()

    def join(self, i: int) -> None:
        text, memory = self.rows[i][:-1], self.verifier
        ends = [] if memory.lengths[i] else range(self.size, len(text) + 1, self.size)
        for end in ends:
            if (block := self.known.get(self.key(text, end))) is None:
                break
            memory.adopt(i, block)
        for piece in pieces(text[memory.lengths[i] :], self.request.prefill_chunk or len(text)):
            if piece:
                self.prefill(i, piece, 0)
        for end, block in zip(ends, memory.tables[i], strict=False):
            self.known.setdefault(self.key(text, end), block)

    def key(self, text: Sequence[int], end: int) -> tuple[int, ...]:
        """By what the block that ends there is found."""
        return tuple(text[:end])


class PrefixedSmall(Prefixed):
    """As `Prefixed`, in blocks of 8 slots."""

    size = 8
