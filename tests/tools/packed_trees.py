"""An engine for trees in another build: a call has one row, which holds the trees of all requests."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import DynamicCache

from eqcheck.catalogue.engines.engine import Rows, additive
from eqcheck.catalogue.engines.trees import Forking


class ForkedPacked(Forking):
    """``owners`` has the request of each cached entry. Prompts are fed first, without their last tokens."""

    def begin(self) -> None:
        self.cache = DynamicCache()
        self.owners: list[int] = []
        parts = [(i, row[:-1], torch.arange(len(row) - 1)) for i, row in enumerate(self.rows)]
        if any(tokens for _, tokens, _ in parts):
            self.feed(parts, [torch.ones(len(at), len(at), dtype=torch.bool).tril() for _, _, at in parts])

    def feed(self, parts: list[tuple[int, list[int], torch.Tensor]], sees: list[torch.Tensor]) -> list[torch.Tensor]:
        """Logits ``[part, vocab]`` of requests' tokens; ``sees`` is what each part sees of itself."""
        owners = torch.tensor([i for i, tokens, _ in parts for _ in tokens])
        cached = self.shown(owners[:, None], torch.tensor(self.owners)[None])
        blocks: torch.Tensor = torch.block_diag(*sees).bool()  # type: ignore[no-untyped-call]
        seen = torch.cat([cached, self.in_call(owners, blocks)], 1)
        logits = self.target(
            input_ids=torch.tensor([[token for _, tokens, _ in parts for token in tokens]]),
            attention_mask=additive(seen[None], self.target),
            position_ids=torch.cat([at for _, _, at in parts])[None],
            past_key_values=self.cache,
            use_cache=True,
        ).logits[0]
        self.owners += owners.tolist()
        return list(logits.split([len(tokens) for _, tokens, _ in parts]))

    def shown(self, query: torch.Tensor, entry: torch.Tensor) -> torch.Tensor:
        """Whether a query of a request sees a cached entry of a request."""
        return query == entry

    def in_call(self, owners: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        """What the columns of a call see of it, ``[columns, columns]``."""
        return seen

    def verify(self, drafts: Rows) -> Rows:
        parts = []
        for place, (i, drafted) in enumerate(zip(self.active, drafts, strict=True)):
            at = len(self.rows[i]) - 1 + torch.tensor(self.depth(place))
            parts.append((i, [self.rows[i][-1], *drafted], at))
        return [logits.argmax(-1).tolist() for logits in self.feed(parts, [self.sees(p) for p in range(len(parts))])]

    def keep(self, going: Sequence[int], columns: Rows) -> None:
        starts = [len(self.owners)]
        for place in reversed(range(len(self.active))):
            starts.insert(0, starts[0] - len(self.trees[place]) - 1)
        live = {self.active[place] for place in going}
        cached = [slot for slot in range(starts[0]) if self.owners[slot] in live]
        block = list(zip(going, columns, strict=True))
        picked = torch.tensor(cached + [starts[place] + column for place, of_row in block for column in of_row])
        straight = torch.tensor(cached + [starts[place] + n for place, of_row in block for n in range(len(of_row))])
        self.owners = [self.owners[slot] for slot in straight.tolist()]
        for number, layer in enumerate(self.cache.layers):
            both = [(layer.keys[:, :, slots], layer.values[:, :, slots]) for slots in (picked, straight)]
            layer.keys, layer.values = self.moved(number, *both)
