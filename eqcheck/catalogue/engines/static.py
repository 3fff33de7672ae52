"""An engine of fixed shapes: rows never leave the batch, and after prefill blocks are K + 1 columns wide, or more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from eqcheck.catalogue.engines.engine import RoundEngine, Rows
from eqcheck.catalogue.engines.static_cache import StaticModel


class Static(RoundEngine):
    """A preallocated cache of fixed shape, blocks padded on the right; the draft has one of the same kind."""

    memory: ClassVar[type[StaticModel]] = StaticModel
    draft_memory: ClassVar[type[StaticModel]] = StaticModel

    def begin(self) -> None:
        request = self.request
        self.verifier = self._start(self.memory, self.target, request.target_cache)
        self.drafter = self._start(self.draft_memory, self.draft, request.draft_cache)
        pending = [row[n:-1] for row, n in zip(self.rows, self.verifier.lengths, strict=True)]
        chunk = request.prefill_chunk or 0
        for start in range(0, max(map(len, pending)), chunk) if chunk else ():
            self.prefill([row[start : start + chunk] for row in pending], start, chunk)

    def _start(self, memory: type[StaticModel], model: Any, handed: Any) -> StaticModel:
        request = self.request
        capacity = max(self.starts) + request.max_new_tokens + request.num_draft_tokens + (request.prefill_chunk or 0)
        made = memory(model, len(self.rows), capacity, request.pad_token_id)
        if request.prefix_length:
            made.start_from(handed, request.prefix_length)
        return made

    def prefill(self, blocks: Rows, start: int, width: int) -> None:
        """Feed a piece of each prompt, from its column ``start`` on; some may be empty."""
        self.verifier.feed(blocks, width)

    def propose(self, budget: Sequence[int]) -> Rows:
        """Draft ``budget[place]`` tokens for each active row, all rows at once."""
        needed = dict(zip(self.active, budget, strict=True))
        drafts: Rows = [[] for _ in self.rows]
        while any(len(drafts[i]) < k for i, k in needed.items()):
            going = {i for i, k in needed.items() if len(drafts[i]) < k}
            blocks = [
                (row + drafts[i])[self.drafter.lengths[i] :] if i in going else [] for i, row in enumerate(self.rows)
            ]
            for i, logits in enumerate(self.drafter.feed(blocks, max(map(len, blocks)))):
                drafts[i] += logits[-1:].argmax(-1).tolist()
        return [drafts[i] for i in self.active]

    def verify(self, drafts: Rows) -> Rows:
        proposed = dict(zip(self.active, drafts, strict=True))
        blocks = [
            (row + proposed[i])[self.verifier.lengths[i] :] if i in proposed else [] for i, row in enumerate(self.rows)
        ]
        logits = self.verifier.feed(blocks, max(self.request.num_draft_tokens + 1, *map(len, blocks)))
        return self.answers([logits[i] for i in self.active], drafts)

    def after(self, going: Sequence[int], lengths: Sequence[int]) -> None:
        kept = dict(zip(self.active, lengths, strict=True))
        rows = range(len(self.rows))
        self.verifier.keep([kept.get(i, 0) for i in rows])
        # The draft was not fed its last token: after full acceptance its cache is one token shorter.
        self.drafter.keep([min(self.drafter.lengths[i], kept.get(i, 0)) for i in rows])
