"""Draw sampled cases: regimes of closeness, options of rows, twins, greedy rows.

No regime shows every fault: a wrong bonus wants drafts that are mostly accepted and K = 1, a wrong comparison wants
drafts that the target never emits. The same seed gives the same cases; the entropy of a case is a part of it.

Of engines, the checkpoints say how close the draft is to the target; temperatures move it, and K. An engine takes
seconds to start under another K, so cases come in blocks. Penalties, minima and the engine's settings are left to the
lane of greedy rows, which sees them as well, and by fewer tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from random import Random
from typing import NamedTuple, TypeVar

from eqcheck.contract.decoders import PaddingSide, RowOptions
from eqcheck.contract.options import ORDER
from eqcheck.contract.requirements import options_meeting, prompts_meeting
from eqcheck.core.case.engine import VOCAB_SIZE, EngineRow
from eqcheck.core.case.sampling import Sampled, SampledCase, SampledEngineCase
from eqcheck.engines.checkpoints.folders import checkpoint
from eqcheck.engines.checkpoints.row_judge import truth

S = TypeVar("S", bound=Sampled)
VOCABULARY = 64
OPENING = 4  # cases of each regime that come first, about 300 tokens
BLOCK = 12  # cases of an engine of one regime and one K, about 800 tokens
LIMITS = (12, 24)  # new tokens
_EOS_OF, _GREEDY_IN, _SEEDED_IN, _PROMISE_IN, _CUT_IN = 2, 5, 4, 3, 4  # once in so many cases, or rows
_TOGETHER_IN = 2  # of the cases with twins that have no seeds, where a request may have several answers
_PINNED_IN = 8  # the first case, and every so many behind it, has rows that one token alone may follow
PINNED = {
    "top-k": ("top_k", 1),
    "top-p": ("top_p", 0.002),
    "min-p": ("min_p", 0.99),
    "temperature": ("temperature", 2e-4),
}
"""Options that leave the target's likeliest token alone: a violation there needs no statistics."""


class Regime(NamedTuple):
    """Hold how often it is drawn, K from and to, and the spreads; TV is the mean distance of the two distributions."""

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


class EngineRegime(NamedTuple):
    """K from and to, and the temperatures of rows; TV is the mean distance of target and draft, H the mean entropy."""

    k: tuple[int, int]
    temperatures: tuple[float, ...]


DRAWN_OF_ENGINES = {
    "std": EngineRegime((2, 6), (0.7, 1.0, 1.0, 1.4)),  # TV 0.21, H 3.3 nats at 1.0
    "one": EngineRegime((1, 1), (0.7, 1.0, 1.4)),
    "peaked": EngineRegime((2, 4), (0.3, 0.5)),  # TV 0.33, H 0.8 at 0.3
    "flat": EngineRegime((3, 6), (2.0, 3.0)),  # TV 0.08, H 5.2 at 3.0
    "ngram": EngineRegime((2, 5), (0.3, 0.5, 0.7)),
}


@dataclass(frozen=True)
class SampledCases:
    """Draw the cases; ``capabilities``, and what it ``requires``, are those of the decoder.

    ``opening``: in the first cases the regimes take turns, so that few cases have tokens enough of each; frozen
    profiles lack that.

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
    opening: bool = False

    def cases(self) -> Iterator[SampledCase]:
        """Cases without end."""
        return map(self.case, count())

    def case(self, number: int) -> SampledCase:
        rng = Random(f"eqcheck sampling {self.seed} case {number}")
        name = rng.choices(list(DRAWN), [regime.share for regime in DRAWN.values()])[0]
        if self.opening and number < OPENING * len(DRAWN):
            name = list(DRAWN)[number % len(DRAWN)]
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
            pin(options, number // _PINNED_IN, self.capabilities)
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
        return _promised(rng, case)

    def _options(self, rng: Random, row: RowOptions) -> RowOptions:
        """A row's own temperature and cuts, as far as the decoder takes them."""
        row = replace(row, temperature=rng.choice((0.5, 0.7, 1.0, 1.0, 1.0, 1.4)), seed=self._seed(rng))
        return cut(rng, row, self.capabilities)

    def _seed(self, rng: Random) -> int | None:
        seeded = "seeds" in self.capabilities and rng.randrange(_SEEDED_IN) == 0
        return rng.getrandbits(63) if seeded else None


def _promised(rng: Random, case: S) -> S:
    """The case, with a seed of every sampled row where a promise needs it: a row without one may disturb others."""
    return case.reseeded(rng, case.sampled) if case.promise == "repeatable" else case


def pin(options: list[RowOptions], turn: int, capabilities: Sequence[str]) -> None:
    """Leave one token alone to rows in the middle, each by another option; those around them are ordinary."""
    ways = [values for capability, values in PINNED.items() if capability in capabilities]
    middle = [row for row in range(len(options))[1:-1] or [0] if options[row].temperature]
    for place, row in enumerate(middle[: len(ways)]):
        name, value = ways[(turn + place) % len(ways)]
        options[row] = replace(options[row], **{name: value})  # type: ignore[arg-type]


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


@dataclass(frozen=True)
class SampledEngineCases:
    """Draw the cases; ``capabilities``, and what it ``requires``, are those of the decoder.

    ``kind`` is that of a built checkpoint, or empty for the random one. ``opening``: the first blocks are short.

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
    kind: str = ""
    opening: bool = False

    @property
    def regimes(self) -> tuple[str, ...]:
        """The regimes that the decoder's capabilities allow."""
        return tuple(name for name in DRAWN_OF_ENGINES if name != "ngram" or "ngram" in self.capabilities)

    def cases(self) -> Iterator[SampledEngineCase]:
        """Cases without end."""
        return map(self.case, count())

    def case(self, number: int) -> SampledEngineCase:
        """One of the cases; those of a block share regime and K."""
        # A case depends on its number alone, so that shards draw apart what one audit draws. The opening has short
        # blocks: every regime has its turn before the time of a short audit is over.
        early = OPENING * len(self.regimes) if self.opening else 0
        block = number // OPENING if number < early else early // OPENING + (number - early) // BLOCK
        name = self.regimes[block % len(self.regimes)]
        regime = DRAWN_OF_ENGINES[name]
        k = Random(f"eqcheck sampled {self.seed} block {block}").randint(*regime.k)
        rng = Random(f"eqcheck sampled {self.seed} case {number}")
        most = 1 if "batch-1" in self.requires else self.most_rows
        # The order of the draws is part of a seed: one more in between, and every seed has other cases.
        size = rng.randint(min(2, most), most)
        limit, eos = rng.randint(*LIMITS), self._eos(rng)
        rows = [EngineRow(self._prompt(rng, name), self._options(rng, regime, limit, eos)) for _ in range(size)]
        if rng.randrange(_GREEDY_IN) == 0 and size > 2:
            at = rng.randrange(1, size - 1)
            rows[at] = replace(rows[at], options=RowOptions(limit, eos))
        if number % _PINNED_IN == 1:
            options = [row.options for row in rows]
            pin(options, number // _PINNED_IN, self.capabilities)
            rows = [replace(row, options=own) for row, own in zip(rows, options, strict=True)]
        if size > 1:  # twins: the same request twice
            first = rows[0].options
            seeds = [None, None] if first.seed is None else [rng.getrandbits(31), rng.getrandbits(31)]
            rows[0], rows[-1] = (replace(rows[0], options=replace(first, seed=seed)) for seed in seeds)
            together = "n" in self.capabilities and first.seed is None and number % _PINNED_IN != 1
            if together and rng.randrange(_TOGETHER_IN) == 0:
                rows[:2] = [replace(rows[0], options=replace(first, n=2))] * 2
        case = SampledEngineCase(
            tuple(rows),
            num_draft_tokens=k,
            drafting="ngram" if name == "ngram" else "none" if "no-drafts" in self.capabilities else "model",
            checkpoint=checkpoint(self.kind).name,
            regime=name,
            entropy=rng.getrandbits(48),
            promise=self.promise if rng.randrange(_PROMISE_IN) == 0 else "none",
            order=self.order,
        ).meeting(self.requires)
        return _promised(rng, case)

    def _eos(self, rng: Random) -> tuple[int, ...]:
        """EOS ids; about one token of a row in 30 is among them."""
        return tuple(rng.sample(range(VOCAB_SIZE), 8)) if rng.randrange(_EOS_OF) == 0 else ()

    def _prompt(self, rng: Random, regime: str) -> tuple[int, ...]:
        """A few tokens; where draft tokens are looked up, with what the target emits after them, and they again."""
        prompt = tuple(rng.randrange(VOCAB_SIZE) for _ in range(rng.choice((1, 2, 3, 5, 9, 14))))
        if regime != "ngram":
            return prompt
        (after,) = truth(self.kind).emitted([EngineRow(prompt, RowOptions(1))], 12)
        return (*prompt, *after, *prompt)

    def _options(self, rng: Random, regime: EngineRegime, limit: int, eos: tuple[int, ...]) -> RowOptions:
        """A row's own temperature and cuts, as far as the decoder takes them."""
        seeded = "seeds" in self.capabilities and rng.randrange(_SEEDED_IN) == 0
        row = RowOptions(limit, eos, temperature=rng.choice(regime.temperatures))
        row = replace(row, seed=rng.getrandbits(31) if seeded else None)
        return cut(rng, row, self.capabilities)
