"""Engines that draft with a head on the target's hidden states: `ColumnHead`, `AcceptedHead`, `PairsHead`.

The target has one cache for the batch. The tokens that were fed last to the target stand in columns that end together,
for blocks are left padded. A head with a cache has one for each row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache

from eqcheck.catalogue.engines.batch import Batched, HoleyCache, RealignedCache
from eqcheck.catalogue.engines.engine import Rows
from eqcheck.contract.cache_names import cache_argument


class StateModel:
    """A model that gives its hidden states, too: ``layers``, ``[batch, width, size]`` each, are of the last call."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.layers: Sequence[torch.Tensor] = ()

    def __call__(self, **inputs: Any) -> Any:
        output = self.model(**inputs, output_hidden_states=True)
        self.layers = output.hidden_states
        return output

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


class Headed(Batched):
    """Hold by row the ``states`` that its head has not seen yet, and ``behind``, the token after each of them."""

    def begin(self) -> None:
        self.asked = StateModel(self.target)
        self.verifier = self.memory(self.asked, [self.rows[i] for i in self.active], self.request.pad_token_id)
        self.head = self.draft.head
        self.states: dict[int, torch.Tensor] = {}
        self.behind: dict[int, list[int]] = {}

    def verify(self, drafts: Rows) -> Rows:
        self.first = list(self.verifier.lengths)
        self.sizes = [len(self.rows[i]) - n + len(d) for i, n, d in zip(self.active, self.first, drafts, strict=True)]
        return super().verify(drafts)

    def commit(self, drafts: Rows, predicted: Rows) -> list[int]:
        counts = super().commit(drafts, predicted)
        self.note([len(proposed) for proposed in drafts], counts)
        return counts

    def note(self, drafted: Sequence[int], counts: Sequence[int]) -> None:
        """Keep the states of what each row accepted, of so many draft tokens."""
        states = self.captured()
        for place, i in enumerate(self.active):
            count = self.cached_after(place, counts[place]) - self.first[place]
            columns = self.columns(place, count, drafted[place])
            found = self.handed_on(states[self.source(place), columns])
            self.states[i] = torch.cat([self.states[i], found]) if i in self.states else found
            self.behind[i] = self.behind.get(i, []) + self.tokens_behind(i, self.first[place], count)

    def captured(self) -> torch.Tensor:
        """The states of the last call, ``[batch, width, size]``."""
        return self.asked.layers[-1]

    def source(self, place: int) -> int:
        """The row of the captured states that is the one at this place."""
        return place

    def columns(self, place: int, count: int, drafted: int) -> list[int]:
        """The columns of the first ``count`` tokens that were fed of the row at this place."""
        start = max(self.sizes) - self.sizes[place]
        return list(range(start, start + count))

    def handed_on(self, states: torch.Tensor) -> torch.Tensor:
        """States as they are kept."""
        return states

    def tokens_behind(self, i: int, first: int, count: int) -> list[int]:
        """The tokens behind ``count`` tokens of a row, from the one at position ``first`` on."""
        return self.rows[i][first + 1 : first + count + 1]

    def after(self, going: Sequence[int], lengths: Sequence[int]) -> None:
        self.verifier.keep(going, lengths)

    def propose(self, budget: Sequence[int]) -> Rows:
        return [self.drafted(i, k) if k and i in self.states else [] for i, k in zip(self.active, budget, strict=True)]

    def drafted(self, i: int, count: int) -> list[int]:
        """Return ``count`` draft tokens of a row."""
        raise NotImplementedError


class ColumnHead(Headed):
    """A head that reads the newest state; all rows at once."""

    memory = draft_memory = RealignedCache

    def propose(self, budget: Sequence[int]) -> Rows:
        if not any(budget) or not self.states:
            return [[] for _ in budget]
        newest = torch.stack([self.newest(place, i) for place, i in enumerate(self.active)])
        tokens = self.head.column(newest, max(budget)).argmax(-1).tolist()
        return [row[:k] for row, k in zip(tokens, budget, strict=True)]

    def newest(self, place: int, i: int) -> torch.Tensor:
        """The newest state of a row."""
        return self.states[i][-1]


class AcceptedHead(Headed):
    """A head that attends to all states, and then knows each token before the next."""

    memory = draft_memory = HoleyCache

    def begin(self) -> None:
        super().begin()
        self.caches = {i: DynamicCache() for i in self.active}

    def drafted(self, i: int, count: int) -> list[int]:
        states = self.attended(i, self.states.pop(i))
        tokens = [self.newest_token(i)]
        for place in range(count):
            logits, states = self.head.step(states, torch.tensor(tokens[-1:]), place)
            tokens.append(int(logits[0].argmax()))
        return tokens[1:]

    def attended(self, i: int, states: torch.Tensor) -> torch.Tensor:
        """The head's own state ``[1, size]`` of a row, behind the states that are new to it."""
        accepted = self.head.accepted
        given: torch.Tensor = accepted(hidden_states=states[None], **cache_argument(accepted, self.caches[i]))[0]
        return given[:, -1]

    def newest_token(self, i: int) -> int:
        """The token with which the first step goes on."""
        return self.rows[i][-1]


class PairsHead(Headed):
    """A head that attends to states, each with the token behind it, and goes on from its own states."""

    memory = draft_memory = RealignedCache

    def begin(self) -> None:
        super().begin()
        self.caches = {i: DynamicCache() for i in self.active}

    def drafted(self, i: int, count: int) -> list[int]:
        states, tokens, drafts = self.states.pop(i)[None], self.behind.pop(i), list[int]()
        for _ in range(count):
            cache = cache_argument(self.head.pairs, self.caches[i])
            output = self.head.pairs(input_ids=torch.tensor([tokens]), hidden_states=states, **cache)
            drafts.append(int(output.logits[0, -1].argmax()))
            states, tokens = self.goes_on_from(output.hidden_states[-1][:, -1:], states[:, -1:]), drafts[-1:]
        self.roll_back(i, count - 1)
        return drafts

    def goes_on_from(self, own: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        """The state ``[1, 1, size]`` of the next step: the head's own, not the one that it was given."""
        return own

    def roll_back(self, i: int, surplus: int) -> None:
        """Take the entries of a row's own steps out of its cache."""
        if surplus:
            self.caches[i].crop(-surplus)
