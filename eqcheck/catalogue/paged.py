"""Builds over a paged cache, as in engines for serving; the draft has one of the same kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from eqcheck.catalogue.engine import Engine, Rows, pieces
from eqcheck.catalogue.paged_cache import PagedModel


class Paged(Engine):
    """A paged cache in blocks of 16 slots."""

    size: ClassVar[int] = 16

    def begin(self) -> None:
        request = self.request
        more = request.max_new_tokens + request.num_draft_tokens + 1
        self.verifier, self.drafter = (
            self._model(model, handed, [start + more for start in self.starts])
            for model, handed in ((self.target, request.target_cache), (self.draft, request.draft_cache))
        )
        for i in self.active:
            self.verifier.skip(i, self.fed_from(i))
            if self.on("K25-rows-grow-out-of-one-cache") and (other := self.grows_out_of(i)) is not None:
                self.verifier.share(other, i, self.starts[other])
            for n, piece in enumerate(pieces(self.rows[i][self.verifier.lengths[i] :], request.prefill_chunk)[:-1]):
                if self.on("K14-chunk-border-lost" if n else "K14-first-token-skipped"):
                    piece = piece[1:]
                    self.verifier.skip(i, 1)
                if piece:
                    self.verifier.feed([i], [piece])

    def _model(self, model: Any, handed: Any, longest: Sequence[int]) -> PagedModel:
        faults = self.faults if model is self.target else ()
        made = PagedModel(model, longest, self.size, self.request.pad_token_id, faults)
        if self.request.prefix_length:
            made.start_from(handed, self.request.prefix_length)
        return made

    def propose(self, budget: Sequence[int]) -> Rows:
        """Draft ``budget[slot]`` tokens for each active row, all rows at once."""
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
