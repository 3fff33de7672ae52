"""The hidden states that heads are given, where rows accept different numbers of draft tokens.

Let a row have the tokens ``t[0] .. t[n-1]``, where the target has not been fed the newest yet, and let ``h[p]`` be the
target's state at position p, which predicts ``t[p+1]``. After a round that accepted ``a`` of the row's draft tokens the
newest state is ``h[n-2]``: it stands in column ``a`` of the block that was verified, not in the last, and it is that of
the last accepted token, not of the bonus.

=========  ======================================  =========================  ================================
shape      reads                                   keeps                      first step, later steps
=========  ======================================  =========================  ================================
column     ``h[n-2]``                              nothing                    all proposals at once
accepted   ``h[p]`` of all newly accepted tokens   one slot a token           ``t[n-1]``, then own proposals
pairs      ``h[p]`` with ``t[p+1]``                one slot a token; own      the newest pair, then own states
                                                   states are overwritten     with own proposals
=========  ======================================  =========================  ================================
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..serving import Row, RowModel


class Drafter:
    """The rows' newest states, as a head needs them; row i of the engine is row i here."""

    def __init__(self, head: Any) -> None:
        self.head = head
        self.newest: list[torch.Tensor] = []  # of each row, what the head goes on from

    def fit(self, rows: int, slots: int) -> None:
        """Have room for so many rows and slots; what is behind the rows is forgotten."""
        del self.newest[rows:]

    def move(self, source: int, destination: int, length: int) -> None:
        """Give a row, with so many tokens in its cache, another's place."""
        self.newest[destination] = self.newest[source]

    def observe(
        self,
        hidden: torch.Tensor,
        following: torch.Tensor,
        starts: Sequence[int],
        counts: Sequence[int],
        first: int = 0,
    ) -> None:
        """Take in states ``[rows, block, size]`` of the rows from ``first`` on.

        Those of row i stand for positions from ``starts[i]`` on, and the first ``counts[i]`` are of tokens of the row.
        ``following`` ``[rows, block]`` are the tokens behind them.
        """
        raise NotImplementedError

    def propose(self, rows: Sequence[Row], k: int) -> torch.Tensor:
        """``k`` draft tokens for each row, ``[rows, k]``."""
        raise NotImplementedError

    def step(self, states: torch.Tensor, tokens: torch.Tensor, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits ``[..., vocab]`` behind ``tokens``, the ``place``-th of a round from 0, and the next states.

        ``states`` ``[..., size]`` are the newest of a row, or those of the step before.
        """
        raise NotImplementedError

    def _note(self, states: torch.Tensor, counts: Sequence[int], first: int) -> None:
        """Remember each row's last valid state; of a row without any, what was known."""
        for i, count in enumerate(counts):
            if count:
                self.newest[first + i : first + i + 1] = [states[i, count - 1]]


class Column(Drafter):
    """Feed heads like Medusa's."""

    def observe(
        self,
        hidden: torch.Tensor,
        following: torch.Tensor,
        starts: Sequence[int],
        counts: Sequence[int],
        first: int = 0,
    ) -> None:
        self._note(hidden, counts, first)

    def propose(self, rows: Sequence[Row], k: int) -> torch.Tensor:
        logits: torch.Tensor = self.head.column(torch.stack(self.newest), k)
        return logits.argmax(-1)

    def step(self, states: torch.Tensor, tokens: torch.Tensor, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.head.column(states, place + 1)[..., place, :], states


class Attending(Drafter):
    """Common parts of heads with a cache."""

    def __init__(self, head: Any, attending: Any) -> None:
        super().__init__(head)
        self.memory = RowModel(attending)

    def fit(self, rows: int, slots: int) -> None:
        super().fit(rows, slots)
        self.memory.fit(rows, slots)

    def move(self, source: int, destination: int, length: int) -> None:
        super().move(source, destination, length)
        self.memory.copy_row(source, destination, length)


class Accepted(Attending):
    """Feed heads like Hydra's and Clover's."""

    def __init__(self, head: Any) -> None:
        super().__init__(head, head.accepted)

    def observe(
        self,
        hidden: torch.Tensor,
        following: torch.Tensor,
        starts: Sequence[int],
        counts: Sequence[int],
        first: int = 0,
    ) -> None:
        self._note(self.memory.run(starts, first, hidden_states=hidden).last_hidden_state, counts, first)

    def propose(self, rows: Sequence[Row], k: int) -> torch.Tensor:
        states = torch.stack(self.newest)
        drafts = [torch.tensor([row.tokens[-1] for row in rows], device=states.device)]
        for place in range(k):
            logits, states = self.step(states, drafts[-1], place)
            drafts.append(logits.argmax(-1))
        return torch.stack(drafts[1:], dim=1)

    def step(self, states: torch.Tensor, tokens: torch.Tensor, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        found: tuple[torch.Tensor, torch.Tensor] = self.head.step(states, tokens, place)
        return found


class Pairs(Attending):
    """Feed heads like EAGLE's, and multi-token prediction."""

    def __init__(self, head: Any) -> None:
        super().__init__(head, head.pairs)
        self.first: list[torch.Tensor] = []  # of each row, the first token to propose

    def fit(self, rows: int, slots: int) -> None:
        super().fit(rows, slots)
        del self.first[rows:]

    def move(self, source: int, destination: int, length: int) -> None:
        super().move(source, destination, length)
        self.first[destination] = self.first[source]

    def observe(
        self,
        hidden: torch.Tensor,
        following: torch.Tensor,
        starts: Sequence[int],
        counts: Sequence[int],
        first: int = 0,
    ) -> None:
        output = self.memory.run(starts, first, hidden_states=hidden, input_ids=following)
        self._note(output.hidden_states[-1], counts, first)
        tokens = output.logits.argmax(-1)
        for i, count in enumerate(counts):
            if count:
                self.first[first + i : first + i + 1] = [tokens[i, count - 1]]

    def propose(self, rows: Sequence[Row], k: int) -> torch.Tensor:
        states, drafts = torch.stack(self.newest)[:, None], [torch.stack(self.first)[:, None]]
        for step in range(k - 1):
            starts = [row.cached + step for row in rows]  # slots whose states the next round brings
            output = self.memory.run(starts, hidden_states=states, input_ids=drafts[-1])
            states = output.hidden_states[-1]
            drafts.append(output.logits.argmax(-1))
        return torch.cat(drafts, dim=1)


SHAPES: dict[str, type[Any]] = {"column": Column, "accepted": Accepted, "pairs": Pairs}
