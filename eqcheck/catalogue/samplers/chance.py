"""Where a sampler's random numbers come from: every one is drawn here, so that `exact` can enumerate what they may be.

A token is drawn by a race: each token runs for a time that is exponential with its probability as the rate, and the
first to arrive wins, as in ``torch.multinomial``. A coin is a number below 1 that is compared with a bound.
"""

from __future__ import annotations

from typing import Protocol

import torch


class Uniform(Protocol):
    """A number of [0, 1) that is only ever compared; a ``float`` is one."""

    def __lt__(self, bound: float, /) -> bool: ...


class Race:
    """Exponential ``times [vocabulary]``, float64, that can be raced by any law."""

    def __init__(self, times: torch.Tensor) -> None:
        self.times = times

    def winner(self, law: torch.Tensor) -> int:
        """The token drawn from a law ``[vocabulary]``; one without probability never arrives.

        >>> Race(torch.tensor([1.0, 1.0, 0.1])).winner(torch.tensor([0.3, 0.7, 0.0]))
        1
        """
        return int(torch.where(law > 0, self.times / law, float("inf")).argmin())


class Source:
    """The random numbers of one row: of a generator of its own if there is a seed, else of torch's global one."""

    def __init__(self, seed: int | None = None) -> None:
        self.generator = None if seed is None else torch.Generator().manual_seed(seed)

    def uniform(self) -> Uniform:
        """A coin."""
        return float(torch.rand((), dtype=torch.float64, generator=self.generator))

    def race(self, size: int) -> Race:
        """Fresh times for so many tokens."""
        return Race(torch.empty(size, dtype=torch.float64).exponential_(generator=self.generator))


def bucket(law: torch.Tensor, coin: Uniform) -> int:
    """The token whose share of [0, 1) a coin falls in; the shares are in order of token id.

    >>> bucket(torch.tensor([0.25, 0.0, 0.75]), 0.3)
    2
    """
    live = law.nonzero()[:, 0].tolist()
    ends = law.cumsum(0).tolist()
    return int(next((token for token in live[:-1] if coin < ends[token]), live[-1]))
