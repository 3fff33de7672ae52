"""Choose a round's tokens: greedily, by rejection sampling, or with noise that belongs to a position.

A row whose options say a temperature above 0 is sampled from its law (`eqcheck.core.law`); a greedy row beside it has
a law with all on one token, so both rules below choose that token. Rounds without a sampled row compute no law.

``noise="row"`` is rejection sampling (Leviathan and others, https://arxiv.org/abs/2211.17192; Chen and others,
https://arxiv.org/abs/2302.01318). The draft's law q is of the row's options, each draft token is drawn from the q that
it is judged by, accepted with probability min(1, p / q), and replaced by a token of (p - q)+. Behind the last draft
token of a row nothing was proposed: q is zero there, and the same formula draws the bonus from p. A row with a seed
draws from a generator of its own (Philox), and as often as its own budget says: its tokens do not depend on its mates,
their order or their number, but on the draft and the number of draft tokens. The others draw from torch's global
generator.

``noise="position"`` races exponential clocks (Gumbel's trick): the token at place t of a row's output is the one with
the greatest p / E, where E follows from the row's seed, t and the token alone. The draft proposes the greatest q / E,
and is right if it is the same. So the tokens of a row are the same with and without a draft. A row without a seed is
given one by torch's global generator.

Both promise what they do in exact arithmetic. A forward's rounding may depend on the batch, and so may a token where
a draw is that close to where two tokens meet. Rows with equal seeds have equal noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch

from eqcheck.contract.decoders import RowOptions
from eqcheck.core.law import Asked, law

from .requests import Row

SAMPLING = ("temperature", "top-k", "top-p", "min-p", "seeds")  # what decoders made of these engines take
NOISE = ("row", "position")


class Greedy:
    """The likeliest token; a draft token is right if it is the target's. Row i proposes ``budgets[i]`` of them."""

    def __init__(self, rows: Sequence[Row], budgets: Sequence[int], device: torch.device) -> None:
        self.rows, self.budgets, self.device = rows, budgets, device

    def blocks(self, logits: torch.Tensor, drafts: torch.Tensor) -> list[list[int]]:
        """The tokens that each row commits: the ``drafts`` ``[rows, k]`` that are accepted, then one token more.

        Logits are ``[rows, k + 1, vocab]``. In what a row does not propose it may have anything.
        """
        predicted = self.pick(logits)
        right = (predicted[:, :-1] == drafts).long().cumprod(1).sum(1)
        answers = torch.cat([right[:, None], predicted], dim=1).tolist()
        return [tokens[: min(n, k) + 1] for k, (n, *tokens) in zip(self.budgets, answers, strict=True)]

    def propose(self, logits: torch.Tensor) -> torch.Tensor:
        """The next draft token of each row, ``[rows]``, of logits ``[rows, vocab]``."""
        return self.pick(logits)

    def pick(self, logits: torch.Tensor) -> torch.Tensor:
        """The token of each of the logits ``[..., vocab]``."""
        return logits.argmax(-1)


class Sampled(Greedy):
    """Common to both ways of sampling: the laws of all rows at once."""

    def __init__(self, rows: Sequence[Row], budgets: Sequence[int], device: torch.device) -> None:
        super().__init__(rows, budgets, device)
        self.options = tuple(row.options for row in rows)
        self.asked: dict[int, Asked] = {}  # by the number of the scores' dimensions

    def laws(self, logits: torch.Tensor) -> torch.Tensor:
        """The rows' laws, of the shape of the logits: ``[rows, vocab]`` or ``[rows, k + 1, vocab]``."""
        scores = logits if logits.dtype == torch.float64 else logits.float()
        asked = self.asked.get(scores.dim())
        if asked is None:
            asked = _asked(self.options, scores.dim(), scores.shape[-1], scores.dtype, scores.device)
            self.asked[scores.dim()] = asked
        return law(scores, asked, measured=False).probabilities


@lru_cache(maxsize=64)
def _asked(
    options: tuple[RowOptions, ...], dim: int, vocabulary: int, dtype: torch.dtype, device: torch.device
) -> Asked:
    """The options of rows that are together, for their next rounds too."""
    return Asked(options, torch.empty((0,) * (dim - 1) + (vocabulary,), dtype=dtype, device=device))


class Rejection(Sampled):
    """Draft tokens of q, accepted with probability min(1, p / q), else one of (p - q)+."""

    def __init__(self, rows: Sequence[Row], budgets: Sequence[int], device: torch.device) -> None:
        super().__init__(rows, budgets, device)
        # For each place of a round: what draws its draft token, accepts it, and draws what replaces it.
        uniform = torch.rand(3, len(rows), max(budgets) + 1, dtype=torch.float64)
        for i, (row, budget) in enumerate(zip(rows, budgets, strict=True)):
            if row.options.seed is not None and row.options.temperature:
                row.random = row.random or np.random.Generator(np.random.Philox(key=row.options.seed))
                uniform[:, i, : budget + 1] = torch.from_numpy(row.random.random((3, budget + 1)))
        self.draft, self.coin, self.final = uniform[0].to(device), *uniform[1:]  # [rows, k + 1] each
        self.q: list[torch.Tensor] = []  # [rows, vocab] each

    def propose(self, logits: torch.Tensor) -> torch.Tensor:
        self.q.append(self.laws(logits))
        return drawn(self.q[-1], self.draft[:, len(self.q) - 1])

    def blocks(self, logits: torch.Tensor, drafts: torch.Tensor) -> list[list[int]]:
        p = self.laws(logits)
        q = torch.stack([*self.q, torch.zeros_like(p[:, 0])], dim=1)  # behind the last draft token nothing is proposed
        of_p, of_q = (of[:, :-1].gather(2, drafts[..., None])[..., 0].tolist() for of in (p, q))
        coin, final = self.coin.tolist(), self.final.tolist()
        counts = [
            next((n for n in range(k) if not self.accepts(of_p[i][n], of_q[i][n], coin[i][n])), k)
            for i, k in enumerate(self.budgets)
        ]
        rejected = [n if n < k else -1 for n, k in zip(counts, self.budgets, strict=True)]
        rows = list(range(len(counts)))
        p, q = p[rows, counts], q[rows, rejected]
        uniform = torch.tensor([final[i][n] for i, n in enumerate(counts)], dtype=torch.float64, device=p.device)
        last = drawn(self.left(p, q), uniform).tolist()
        if p.shape[-1] in last:  # nothing is left, by rounding only: then p and q are equal
            last = [b if a == p.shape[-1] else a for a, b in zip(last, drawn(p, uniform).tolist(), strict=True)]
        return [[*row[:n], token] for row, n, token in zip(drafts.tolist(), counts, last, strict=True)]

    def accepts(self, p: float, q: float, coin: float) -> bool:
        """Return whether a draft token of these probabilities is accepted; never one that the target cannot emit."""
        return coin * q < p

    def left(self, p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        """The law from which a rejected draft token is replaced, ``[rows, vocab]``, not normalised."""
        return (p - q).clamp(min=0)


class Keyed(Sampled):
    """The first of exponential clocks to ring: what the target's law and the draft's choose is mostly the same."""

    def __init__(self, rows: Sequence[Row], budgets: Sequence[int], device: torch.device) -> None:
        super().__init__(rows, budgets, device)
        self.step = 0
        self.clocks = torch.empty(0)  # [rows, k + 1, vocab], once the vocabulary is known

    def pick(self, logits: torch.Tensor) -> torch.Tensor:
        clocks = self._clocks(logits.shape[-1])
        if logits.dim() == 2:  # of draft tokens, one place after the other
            self.step += 1
            clocks = clocks[:, self.step - 1]
        return (self.laws(logits) / clocks).argmax(-1)

    def _clocks(self, vocabulary: int) -> torch.Tensor:
        if not len(self.clocks):
            clocks = np.ones((len(self.rows), max(self.budgets) + 1, vocabulary))
            for row, budget, of_row in zip(self.rows, self.budgets, clocks, strict=True):
                if row.options.temperature:
                    row.seed = int(torch.randint(2**63 - 1, ())) if row.seed is None else row.seed
                    for column in range(budget + 1):
                        of_row[column] = clock(row.seed, row.committed + column, vocabulary)
            self.clocks = torch.from_numpy(clocks).to(self.device)
        return self.clocks


def chooser(noise: str, rows: Sequence[Row], budgets: Sequence[int], device: torch.device) -> Greedy:
    """The chooser of the tokens of one round."""
    sampled = any(row.options.temperature for row in rows)
    kind = Greedy if not sampled else Rejection if noise == "row" else Keyed
    return kind(rows, budgets, device)


def drawn(weights: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """One token per row of weights ``[rows, vocab]``, by uniform numbers ``[rows]`` below 1; none whose weight is 0.

    Of a row without weight it is ``vocab``, which is no token.
    """
    below = weights.cumsum(-1, dtype=torch.float64)
    return torch.searchsorted(below, below[:, -1:] * uniform[:, None], right=True)[:, 0]


def clock(seed: int, place: int, vocabulary: int) -> npt.NDArray[np.float64]:
    """Return when the clock of each token rings, ``[vocab]`` float64, above 0; it depends on seed, place and token.

    >>> clock(5, 2, 3).tolist() == clock(5, 2, 8)[:3].tolist() != clock(5, 3, 3).tolist()
    True
    """
    # The place is in the second word of the counter: no row of numbers ever reaches the next.
    uniform = np.random.Generator(np.random.Philox(key=seed, counter=place << 64)).random(vocabulary)
    return -np.log(np.maximum(uniform, 2.0**-54))
