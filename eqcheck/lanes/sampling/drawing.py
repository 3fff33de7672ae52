"""How sampled cases are drawn: regimes of closeness, options of rows, twins, greedy rows.

No regime shows every fault: a wrong bonus wants drafts that are mostly accepted and K = 1, a wrong comparison wants
drafts that the target never emits. The same seed gives the same cases; the entropy of a case is a part of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from random import Random
from typing import NamedTuple

from eqcheck.case.sampling import SampledCase
from eqcheck.contract.decoders import PaddingSide, RowOptions
from eqcheck.contract.options import ORDER
from eqcheck.contract.requirements import options_meeting, prompts_meeting

VOCABULARY = 64
LIMITS = (12, 24)  # new tokens
_EOS_OF, _GREEDY_IN, _SEEDED_IN, _PROMISE_IN, _CUT_IN = 2, 5, 4, 3, 4  # once in so many cases, or rows
_PINNED_IN = 8  # the first case, and every so many behind it, has rows that one token alone may follow
PINNED = {
    "top-k": ("top_k", 1),
    "top-p": ("top_p", 0.002),
    "min-p": ("min_p", 0.99),
    "temperature": ("temperature", 2e-4),
}
"""Options that leave the target's likeliest token alone: a violation there needs no statistics."""


class Regime(NamedTuple):
    """How often it is drawn, K from and to, and the spreads; TV is the mean distance of the two models' laws."""

    share: float
    k: tuple[int, int]
    scale: float
    mix: float
    support: int = 0
    draft_support: int = 0


DRAWN = {
    "std": Regime(0.25, (1, 6), 0.25, 0.375),  # TV 0.54
    "near": Regime(0.2, (1, 1), 0.25, 0.09375),  # 0.17
    "near4": Regime(0.2, (3, 6), 0.25, 0.09375),  # 0.17
    "far": Regime(0.1, (1, 2), 0.5, 1.0),  # 0.94
    "peaked": Regime(0.07, (1, 3), 1.0, 0.5),  # 0.82
    "few": Regime(0.1, (1, 3), 0.25, 0.375, 6, 6),
    "equal": Regime(0.04, (1, 4), 0.25, 0.0),
    "dead": Regime(0.04, (1, 3), 0.25, 0.25, 8, 0),  # the draft proposes what the target never emits
}


@dataclass(frozen=True)
class SampledCases:
    """Where the cases come from; ``capabilities``, and what it ``requires``, are those of the decoder.

    >>> cases = SampledCases(1, ("rotary",), ("left",), ("temperature", "top-p"))
    >>> next(cases.cases()) == next(cases.cases())
    True
    """

    seed: int
    families: tuple[str, ...]
    padding_sides: tuple[PaddingSide, ...]
    capabilities: tuple[str, ...]
    most_rows: int = 8
    promise: str = "none"
    order: tuple[str, ...] = ORDER
    requires: tuple[str, ...] = ()

    def cases(self) -> Iterator[SampledCase]:
        """Cases without end."""
        return map(self.case, count())

    def case(self, number: int) -> SampledCase:
        rng = Random(f"eqcheck sampling {self.seed} case {number}")
        name = rng.choices(list(DRAWN), [regime.share for regime in DRAWN.values()])[0]
        most = 1 if "batch-1" in self.requires else self.most_rows
        regime, rows = DRAWN[name], rng.randint(min(2, most), most)
        pinned = number % _PINNED_IN == 0
        rows = max(rows, min(5, most)) if pinned else rows
        limit = rng.randint(*LIMITS)
        eos = (rng.randrange(VOCABULARY),) if rng.randrange(_EOS_OF) == 0 else ()
        prompts = [tuple(rng.randrange(VOCABULARY) for _ in range(rng.choice((1, 2, 3, 5, 9)))) for _ in range(rows)]
        options = [self._options(rng, RowOptions(limit, eos)) for _ in range(rows)]
        if rng.randrange(_GREEDY_IN) == 0 and rows > 2:
            options[rng.randrange(1, rows - 1)] = RowOptions(limit, eos)
        if pinned:
            self._pin(options, number // _PINNED_IN)
        if rows > 1:  # twins: the same request twice
            prompts[-1], options[-1] = prompts[0], replace(options[0], seed=self._seed(rng))
            options[0] = replace(options[0], seed=self._seed(rng) if options[-1].seed is not None else None)
        k, pad = rng.randint(*regime.k), rng.randrange(VOCABULARY)
        prompts = prompts_meeting(self.requires, prompts, pad, VOCABULARY)
        case = SampledCase(
            prompts=tuple(prompts),
            rows=tuple(options_meeting(self.requires, prompts, options)),
            num_draft_tokens=k,
            pad_token_id=pad,
            padding_side=rng.choice(self.padding_sides),
            family=rng.choice(self.families),
            vocab_size=VOCABULARY,
            seed=rng.randrange(4),
            regime=name,
            scale=regime.scale,
            support=regime.support,
            draft_support=regime.draft_support,
            mix=regime.mix,
            entropy=rng.getrandbits(48),
            order=self.order,
            promise=self.promise if rng.randrange(_PROMISE_IN) == 0 or number == 0 else "none",
        )
        return case if case.promise != "repeatable" else replace(case, rows=tuple(all_seeded(rng, case.rows, 63)))

    def _pin(self, options: list[RowOptions], turn: int) -> None:
        """Leave one token alone to rows in the middle, each by another option; those around them are ordinary."""
        ways = [values for capability, values in PINNED.items() if capability in self.capabilities]
        middle = [row for row in range(len(options))[1:-1] or [0] if options[row].temperature]
        for place, row in enumerate(middle[: len(ways)]):
            name, value = ways[(turn + place) % len(ways)]
            options[row] = replace(options[row], **{name: value})  # type: ignore[arg-type]

    def _options(self, rng: Random, row: RowOptions) -> RowOptions:
        """A row's own temperature and cuts, as far as the decoder takes them."""
        row = replace(row, temperature=rng.choice((0.5, 0.7, 1.0, 1.0, 1.0, 1.4)), seed=self._seed(rng))
        return cut(rng, row, self.capabilities)

    def _seed(self, rng: Random) -> int | None:
        seeded = "seeds" in self.capabilities and rng.randrange(_SEEDED_IN) == 0
        return rng.getrandbits(63) if seeded else None


def cut(rng: Random, row: RowOptions, capabilities: Sequence[str]) -> RowOptions:
    """The options of a row with cuts of the kinds that a decoder takes."""
    for capability, name, values in (
        ("top-k", "top_k", (3, 8, 20)),
        ("top-p", "top_p", (0.8, 0.9, 0.95)),
        ("min-p", "min_p", (0.03, 0.1)),
    ):
        if capability in capabilities and rng.randrange(_CUT_IN) == 0:
            row = replace(row, **{name: rng.choice(values)})  # type: ignore[arg-type]
    return row


def all_seeded(rng: Random, rows: Sequence[RowOptions], bits: int) -> list[RowOptions]:
    """The options with a seed for every sampled row: others may depend on the draws of a row without one."""
    return [replace(row, seed=rng.getrandbits(bits)) if row.temperature else row for row in rows]
