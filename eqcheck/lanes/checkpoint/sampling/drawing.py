"""How sampled cases for engines are drawn: a regime for a block of cases, options for each row, twins, greedy rows.

How close the draft is to the target is given by the checkpoints; temperatures move it, and K. An engine takes seconds
to start under another K, so cases come in blocks. Penalties, minima and the engine's settings are left to the lane of
greedy rows, which sees them as well, and by fewer tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from random import Random
from typing import NamedTuple

from eqcheck.case.engine import VOCAB_SIZE, EngineRow
from eqcheck.case.sampling import SampledEngineCase
from eqcheck.checkpoints.judge import truth
from eqcheck.checkpoints.models import checkpoint
from eqcheck.contract.decoders import RowOptions
from eqcheck.contract.options import ORDER
from eqcheck.lanes.sampling.drawing import all_seeded, cut

BLOCK = 12  # cases of one regime and one K, about 800 tokens
LIMITS = (12, 24)  # new tokens
_EOS_OF, _GREEDY_IN, _SEEDED_IN, _PROMISE_IN = 2, 5, 4, 3  # once in so many cases, or rows


class EngineRegime(NamedTuple):
    """K from and to, and the temperatures of rows; TV is the mean distance of target and draft, H the mean entropy."""

    k: tuple[int, int]
    temperatures: tuple[float, ...]


DRAWN = {
    "std": EngineRegime((2, 6), (0.7, 1.0, 1.0, 1.4)),  # TV 0.21, H 3.3 nats at 1.0
    "one": EngineRegime((1, 1), (0.7, 1.0, 1.4)),
    "peaked": EngineRegime((2, 4), (0.3, 0.5)),  # TV 0.33, H 0.8 at 0.3
    "flat": EngineRegime((3, 6), (2.0, 3.0)),  # TV 0.08, H 5.2 at 3.0
    "ngram": EngineRegime((2, 5), (0.3, 0.5, 0.7)),
}


@dataclass(frozen=True)
class SampledEngineCases:
    """Where the cases come from; ``capabilities``, and what it ``requires``, are those of the decoder.

    >>> cases = SampledEngineCases(1, ("temperature", "top-p"))
    >>> next(cases.cases()) == next(cases.cases())
    True
    """

    seed: int
    capabilities: tuple[str, ...]
    most_rows: int = 6
    promise: str = "none"
    order: tuple[str, ...] = ORDER
    requires: tuple[str, ...] = ()

    @property
    def regimes(self) -> tuple[str, ...]:
        """The regimes that the decoder's capabilities allow."""
        return tuple(name for name in DRAWN if name != "ngram" or "ngram" in self.capabilities)

    def cases(self) -> Iterator[SampledEngineCase]:
        """Cases without end."""
        return map(self.case, count())

    def case(self, number: int) -> SampledEngineCase:
        """One of the cases; those of a block share regime and K."""
        block = number // BLOCK
        name = self.regimes[block % len(self.regimes)]
        regime = DRAWN[name]
        k = Random(f"eqcheck sampled {self.seed} block {block}").randint(*regime.k)
        rng = Random(f"eqcheck sampled {self.seed} case {number}")
        most = 1 if "batch-1" in self.requires else self.most_rows
        size = rng.randint(min(2, most), most)
        limit, eos = rng.randint(*LIMITS), self._eos(rng)
        rows = [EngineRow(self._prompt(rng, name), self._options(rng, regime, limit, eos)) for _ in range(size)]
        if rng.randrange(_GREEDY_IN) == 0 and size > 2:
            at = rng.randrange(1, size - 1)
            rows[at] = replace(rows[at], options=RowOptions(limit, eos))
        if size > 1:  # twins: the same request twice
            first = rows[0].options
            seeds = [None, None] if first.seed is None else [rng.getrandbits(31), rng.getrandbits(31)]
            rows[0], rows[-1] = (replace(rows[0], options=replace(first, seed=seed)) for seed in seeds)
        case = SampledEngineCase(
            tuple(rows),
            num_draft_tokens=k,
            drafting="ngram" if name == "ngram" else "model",
            checkpoint=checkpoint().name,
            regime=name,
            entropy=rng.getrandbits(48),
            promise=self.promise if rng.randrange(_PROMISE_IN) == 0 else "none",
            order=self.order,
        ).meeting(self.requires)
        if case.promise != "repeatable":
            return case
        options = all_seeded(rng, [row.options for row in case.rows], 31)
        return replace(case, rows=tuple(replace(row, options=one) for row, one in zip(rows, options, strict=True)))

    def _eos(self, rng: Random) -> tuple[int, ...]:
        """EOS ids; about one token of a row in 30 is among them."""
        return tuple(rng.sample(range(VOCAB_SIZE), 8)) if rng.randrange(_EOS_OF) == 0 else ()

    def _prompt(self, rng: Random, regime: str) -> tuple[int, ...]:
        """A few tokens; where draft tokens are looked up, with what the target emits after them, and they again."""
        prompt = tuple(rng.randrange(VOCAB_SIZE) for _ in range(rng.choice((1, 2, 3, 5, 9, 14))))
        if regime != "ngram":
            return prompt
        (after,) = truth().emitted([EngineRow(prompt, RowOptions(1))], 12)
        return (*prompt, *after, *prompt)

    def _options(self, rng: Random, regime: EngineRegime, limit: int, eos: tuple[int, ...]) -> RowOptions:
        """A row's own temperature and cuts, as far as the decoder takes them."""
        seeded = "seeds" in self.capabilities and rng.randrange(_SEEDED_IN) == 0
        row = RowOptions(limit, eos, temperature=rng.choice(regime.temperatures))
        row = replace(row, seed=rng.getrandbits(31) if seeded else None)
        return cut(rng, row, self.capabilities)
