"""The sampled engine: what draws, accepts and corrects in each round, on top of any build of `catalogue.engines`.

A build says how the models are called; `Sampler` is mixed into it and says what is drawn from their scores. Every
random number comes from a `Randomness`, so that `enumeration` can take each of its values. A token is drawn by a race:
each token runs for a time that is exponential with its probability as the rate, and the first to arrive wins, as in
``torch.multinomial``. A coin is a number below 1 that is compared with a bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import torch

from eqcheck.catalogue.engines.builds import BUILDS
from eqcheck.catalogue.engines.engine import RoundEngine, Rows
from eqcheck.contract.decoders import Decoder, Request, RowOptions, decoder
from eqcheck.contract.options import ORDER
from eqcheck.core.law import law


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


class Randomness:
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


class Sampler(RoundEngine):
    """Rejection: a draft token is accepted with probability p/q, else corrected (https://arxiv.org/abs/2211.17192).

    q is the law that a draft token was drawn from, p the target's at the same place, ``[vocabulary]`` float64 each.
    A row with a seed draws from a generator of its own. A greedy row's laws are all on one token: nothing is special.
    """

    seeds = "mates"
    lossless: bool | str = True

    def begin(self) -> None:
        super().begin()
        self.sources = [self.source(i) for i in range(len(self.rows))]
        self.recorded: dict[int, list[torch.Tensor]] = {}

    def source(self, i: int) -> Randomness:
        """The random numbers of a row."""
        return self.new_source(self.request.rows[i].seed)

    def new_source(self, seed: int | None) -> Randomness:
        return Randomness(seed)

    def options(self, i: int) -> RowOptions:
        return self.request.rows[i]

    # The draft.

    def propose(self, budget: Sequence[int]) -> Rows:
        self.recorded = {i: [] for i in self.active}
        return super().propose(budget)

    def next_draft(self, i: int, logits: torch.Tensor, drafted: list[int]) -> int:
        q = self.draft_law(i, logits[-1].double())
        self.recorded[i].append(self.remembered(i, logits[-1].double(), q))
        return self.draft_token(i, q)

    def draft_law(self, i: int, scores: torch.Tensor) -> torch.Tensor:
        """The law that a draft token is drawn from."""
        return law_of(scores[None], self.draft_options(i))[0]

    def draft_options(self, i: int) -> RowOptions:
        return self.options(i)

    def remembered(self, i: int, scores: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        """The law that is kept for the comparison with the target's."""
        return q

    def draft_token(self, i: int, q: torch.Tensor) -> int:
        return self.sources[i].race(len(q)).winner(q)

    def draft_laws(self, i: int) -> list[torch.Tensor]:
        """The law of each draft token of a row, as the comparison reads it."""
        return self.recorded[i]

    # The target.

    def answers(self, logits: Iterable[torch.Tensor], drafts: Rows) -> Rows:
        """The block that each active row emits: accepted draft tokens, and the correction or bonus token."""
        return [
            self.decided(i, proposed, self.target_laws(i, scores[-len(proposed) - 1 :].double()))
            for i, scores, proposed in zip(self.active, logits, drafts, strict=True)
        ]

    def target_laws(self, i: int, scores: torch.Tensor) -> torch.Tensor:
        """The target's laws ``[K + 1, vocabulary]`` of a row: at each draft token, and behind the last."""
        return law_of(scores, self.target_options(i, len(scores) - 1))

    def target_options(self, i: int, count: int) -> list[RowOptions]:
        """The options at each of so many draft tokens, and behind the last."""
        return [self.options(i)] * (count + 1)

    def accepted(self, proposed: Sequence[int], answers: Sequence[int]) -> int:
        return len(answers) - 1

    def block(self, count: int, proposed: list[int], answers: list[int]) -> list[int]:
        return answers

    # The decision.

    def decided(self, i: int, proposed: list[int], p: torch.Tensor) -> list[int]:
        """The block that a row emits."""
        q = self.draft_laws(i)
        for column, token in enumerate(proposed):
            if not self.accepts(i, column, token, p, q):
                return [*proposed[:column], self.correction(i, column, token, p, q)]
        return [*proposed, self.bonus(i, p)]

    def accepts(self, i: int, column: int, token: int, p: torch.Tensor, q: list[torch.Tensor]) -> bool:
        return self.coin(i) < self.ratio(float(p[column, token]), float(q[column][token]))

    def coin(self, i: int) -> Uniform:
        return self.sources[i].uniform()

    def ratio(self, p: float, q: float) -> float:
        """The probability, or more, with which a draft token is accepted."""
        return p / q if q > 0 else float(p > 0)

    def correction(self, i: int, column: int, token: int, p: torch.Tensor, q: list[torch.Tensor]) -> int:
        return self.drawn(i, self.residual(p[column], q[column], token))

    def residual(self, p: torch.Tensor, q: torch.Tensor, token: int) -> torch.Tensor:
        """The law of what is emitted for a rejected draft token."""
        return shared_out((p - q).clamp(min=0), p)

    def bonus(self, i: int, p: torch.Tensor) -> int:
        """The token behind the last draft token."""
        return self.drawn(i, p[-1])

    def drawn(self, i: int, chances: torch.Tensor) -> int:
        return self.sources[i].race(len(chances)).winner(chances)


def shared_out(rest: torch.Tensor, otherwise: torch.Tensor) -> torch.Tensor:
    """The probabilities that are left over, made a law; another law where nothing is left.

    >>> shared_out(torch.tensor([0.0, 0.1, 0.3]), torch.ones(3)).tolist()
    [0.0, 0.25, 0.75]
    """
    total = rest.sum()
    return rest / total if total > 0 else otherwise


def law_of(
    scores: torch.Tensor, options: RowOptions | Sequence[RowOptions], order: Sequence[str] = ORDER
) -> torch.Tensor:
    """The laws of scores ``[n, vocabulary]``, see `eqcheck.core.law.law`; how near a cut is does not matter here."""
    return law(scores, options, order, measured=False).probabilities


def changed(options: RowOptions, **values: Any) -> RowOptions:
    """Options with other values; those of a greedy row stay, for it goes another way in most engines."""
    return replace(options, **values) if options.temperature else options


SAMPLED_BUILDS = ("uncached", "per_row", "realigned")
CAPABILITIES = ("temperature", "top-k", "top-p", "min-p", "seeds")


def engine_of(scheme: type[Sampler], build: str) -> type[Sampler]:
    """The build's engine, sampling by a scheme."""
    parts: dict[str, Any] = {"__doc__": scheme.__doc__}
    engine: type[Sampler] = type(scheme.__name__, (scheme, BUILDS[build].engine), parts)
    return engine


def sampler(scheme: type[Sampler], build: str, name: str) -> Decoder:
    """The build with a scheme of sampling, as a decoder."""
    engine = engine_of(scheme, build)
    return decoder(
        name=name,
        families=BUILDS[build].families,
        capabilities=CAPABILITIES,
        seeds=engine.seeds,
        lossless=engine.lossless,
        note=(engine.__doc__ or "").partition("\n")[0],
    )(partial(_decode, engine))


def _decode(engine: type[Sampler], target: Any, draft: Any, request: Request) -> Rows:
    return engine(target, draft, request).decode()
