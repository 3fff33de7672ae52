"""Sampled rows of trees: candidates without replacement, and recursive residuals.

Behind a node the draft draws as many different tokens as the tree has nodes there, one after the other from its law q,
each time without those drawn before. The target tries them in that order: a candidate is accepted with probability
min(1, p / q). Else p becomes what is left of it, (p - q)+, and q loses the candidate; both are made to sum up to 1
again. If none is accepted, the token is drawn from the p that is left. So the tokens are those of the target's law
(SpecInfer, https://arxiv.org/abs/2305.09781; without replacement: https://arxiv.org/abs/2402.14160). It holds only
where the shape of a tree does not depend on what is drawn: so shapes are fixed before anything is.

A row with a seed draws from a generator of its own, and its tokens do not depend on its mates.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from eqcheck.contract.trees import Nodes
from eqcheck.core.law import law

from .requests import Row
from .sampling import drawn


def paired(count: int) -> Nodes:
    """A tree of so many nodes: a chain of first candidates, each with a second one beside it.

    >>> paired(5)
    ((0, 0), (0, 1), (1, 0), (1, 1), (3, 0))
    """
    return tuple((max(0, number // 2 * 2 - 1), number % 2) for number in range(count))


class Draws:
    """The draws for a row in one round; ``q`` has the draft's law behind each node that it was asked behind."""

    def __init__(self, row: Row) -> None:
        self.row = row
        self.q: dict[int, torch.Tensor] = {}

    def uniform(self) -> torch.Tensor:
        """A number below 1, ``[1]``."""
        seed = self.row.options.seed
        if seed is None:
            return torch.rand(1, dtype=torch.float64)
        self.row.random = self.row.random or np.random.Generator(np.random.Philox(key=seed))
        return torch.from_numpy(self.row.random.random(1))

    def law(self, logits: torch.Tensor) -> torch.Tensor:
        """The row's law ``[vocab]`` of logits, in float64 on the CPU."""
        scores = logits if logits.dtype == torch.float64 else logits.float()
        return law(scores[None], self.row.options, measured=False).probabilities[0].double().cpu()

    def candidates(self, node: int, logits: torch.Tensor, count: int) -> list[int]:
        """Different tokens behind a node; where the draft's law has fewer, the row's newest stands for them."""
        left = self.q[node] = self.law(logits)
        chosen: list[int] = []
        for _ in range(count):
            token = self.draw(left)
            if token == len(left):  # nothing is left
                return chosen + self.row.tokens[-1:] * (count - len(chosen))
            chosen.append(token)
            left = self.without(left, token)
        return chosen

    def answer(self, node: int, logits: torch.Tensor, candidates: Sequence[int]) -> int:
        """The token behind a node: the first candidate that is accepted, or one of what is left of the law."""
        p = whole = self.law(logits)
        q = self.q.get(node, torch.zeros_like(p))
        for token in candidates:
            if not q.any():  # it only stands for one
                break
            q = q / q.sum()
            if float(self.uniform()) * float(q[token]) < float(p[token]):
                return token
            p, q = self.left(p, q), self.without(q, token)
        token = self.draw(p)
        # Nothing is left by rounding only: then p and q are equal.
        return token if token < len(p) else self.draw(whole)

    def draw(self, weights: torch.Tensor) -> int:
        """One token of weights ``[vocab]``; as many as there are, which is no token, where all are zero."""
        return int(drawn(weights[None], self.uniform()))

    def left(self, p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        """The target's law ``[vocab]`` where a candidate of ``q`` was rejected."""
        rest = (p - q).clamp(min=0)
        return rest / rest.sum() if rest.any() else rest

    def without(self, q: torch.Tensor, token: int) -> torch.Tensor:
        """The draft's law without a candidate, not normalised."""
        return q.index_fill(0, torch.tensor([token]), 0.0)
