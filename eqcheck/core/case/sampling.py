"""Sampled cases: the options of their rows, the sharpness of the models' laws, and the origin of the chance."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from random import Random
from typing import TYPE_CHECKING, Annotated, ClassVar, TypeVar

from msgspec import Meta

from eqcheck.contract.decoders import CLAIMED, FAMILIES, PaddingSide, RowOptions
from eqcheck.contract.fields import among, read, within
from eqcheck.contract.options import ORDER, SEEDS, asked_of
from eqcheck.contract.profiles import MOST_DRAFT_TOKENS, MOST_TOKENS_OF_ROW
from eqcheck.core.case.engine import EngineCase
from eqcheck.core.case.record import AnyCase, Case, Prompts, Vocabulary
from eqcheck.core.explanation.records import Given

REGIMES = ("std", "near", "near4", "far", "peaked", "few", "equal", "dead")
"""How close the draft's laws are to the target's; `eqcheck.sampling.drawing` has the figures."""

ENGINE_REGIMES = ("std", "one", "peaked", "flat", "ngram")
"""The purposes for which cases of engines are drawn; `eqcheck.sampling.drawing` has the figures."""

PROMISES = tuple(SEEDS)
Crossing = Annotated[int, Meta(ge=0, le=10**9)]
Self = TypeVar("Self", bound="Sampled")


def _chance(case: Sampled) -> Iterator[str]:
    yield from within("entropy", [case.entropy], 0, 2**64 - 1)
    yield from among("regime", case.regime, case.regimes)
    yield from among("promise", case.promise, PROMISES)
    if sorted(case.order) != sorted(ORDER):
        yield f"order: expected {ORDER} in some order, got {case.order!r:.80}"


class Sampled(AnyCase):
    """The base of cases with rows that are sampled; greedy rows may be among them.

    ``entropy`` seeds the global generators of torch, numpy and Python, in the process of the decoder, before it decodes
    the case. ``promise`` is what the decoder promises of rows with seeds (`eqcheck.contract.options.SEEDS`), which the
    case is to test; ``order`` is that in which it declares to apply options. ``crosses_after`` says of the case of a
    finding after how many sampled tokens the evidence was that of a violation; 0 where that is not known. ``regime``
    says what a case was drawn for: one of ``regimes``. Seeds that are drawn have ``seed_bits``.
    """

    regimes: ClassVar[tuple[str, ...]]
    seed_bits: ClassVar[int] = 63
    regime: str
    entropy: int
    promise: str
    order: tuple[str, ...]

    if TYPE_CHECKING:

        def with_options(self: Self, options: Iterable[RowOptions]) -> Self: ...

    @property
    def sampled(self) -> list[int]:
        """The numbers of the rows that are sampled."""
        return [number for number, options in enumerate(self.options) if options.temperature]

    @property
    def seeded(self) -> list[int]:
        """The numbers of the sampled rows that have seeds."""
        return [number for number in self.sampled if self.options[number].seed is not None]

    def twin(self, number: int) -> int | None:
        """The first row before this one that asks for the same, but for its seed, and is to be drawn apart."""
        prompts, options = self.prompts, self.options
        own = options[number]
        for other in range(number if own.temperature else 0):
            same = prompts[other] == prompts[number] and replace(options[other], seed=own.seed) == own
            if same and (own.seed is None or own.seed != options[other].seed):
                return other
        return None

    def renewed(self: Self, rng: Random) -> Self:
        """The same request with other chance: another entropy, and another seed wherever there is one."""
        with_seeds = [number for number, options in enumerate(self.options) if options.seed is not None]
        return replace(self.reseeded(rng, with_seeds), entropy=rng.getrandbits(48))  # type: ignore[type-var]

    def reseeded(self: Self, rng: Random, numbers: Collection[int]) -> Self:
        """The same request with new seeds of the rows with these numbers."""
        return self.with_options(
            replace(options, seed=rng.getrandbits(self.seed_bits)) if number in numbers else options
            for number, options in enumerate(self.options)
        )

    def given(self, number: int) -> Given:
        """A row as it was asked, and the rows beside it."""
        rows = tuple(
            Given(prompt, None, options.eos_token_ids, limit=options.max_new_tokens, sampling=asked_of(options))
            for prompt, options in zip(self.prompts, self.options, strict=True)
        )
        asked = self.request()
        pad, k = asked.pad_token_id, asked.num_draft_tokens
        return replace(rows[number], pad_token_id=pad, num_draft_tokens=k, rows=rows)


def _rows(case: SampledCase) -> Iterator[str]:
    if not case.prompts:
        yield "prompts: expected at least one row, got none"
    if len(case.rows) != len(case.prompts):
        yield f"rows: expected the options of {len(case.prompts)} rows, got {len(case.rows)}"
    for number, (prompt, options) in enumerate(zip(case.prompts, case.rows, strict=True)):
        yield from within(f"prompts[{number}]", prompt, 0, case.vocab_size - 1)
        place, most = f"rows[{number}]", MOST_TOKENS_OF_ROW - len(prompt)
        yield from within(f"{place}.eos_token_ids", options.eos_token_ids, 0, case.vocab_size - 1)
        yield from within(f"{place}.max_new_tokens", [options.max_new_tokens], 1, most)


def _models(case: SampledCase) -> Iterator[str]:
    for name in ("pad_token_id", "support", "draft_support"):
        yield from within(name, [getattr(case, name)], 0, case.vocab_size)
    yield from among("family", case.family, FAMILIES)


@dataclass(frozen=True)
class SampledCase(Sampled):
    """One test input whose rows are sampled, for models that are scripted.

    ``rows`` has the options of each row. ``scale``, ``support`` and ``mix`` are those of an
    `eqcheck.transparent.hashlm.hashing.Spread`: of the target the first two, of the draft ``scale``, ``draft_support``
    and ``mix``. The other fields are those of `Sampled` and of `eqcheck.core.case.record.Case`.

        >>> case = SampledCase(((5, 7), (9,)), (RowOptions(4, temperature=1.0), RowOptions(4)))
        >>> SampledCase.from_dict(case.to_dict()) == case
        True

    Raises `CaseError` for a field of the wrong type or outside its range.
    """

    format: ClassVar[str] = "eqcheck-sampled-case/1"
    lane: ClassVar[str] = "sampling"
    cache_state: ClassVar[str] = "empty"
    checkpoint: ClassVar[str] = ""
    tree: ClassVar[tuple[()]] = ()
    before: ClassVar[tuple[SampledCase, ...]] = ()
    regimes = REGIMES
    nested = ("rows", lambda data, place: read(RowOptions, data, f"{place}: ", f"{place}."))
    rules = (_models, _chance, _rows)
    prompts: Prompts
    rows: tuple[RowOptions, ...]
    num_draft_tokens: Annotated[int, Meta(ge=0, le=MOST_DRAFT_TOKENS)] = 1
    pad_token_id: int = 0
    padding_side: PaddingSide = "left"
    family: str = CLAIMED[0]
    vocab_size: Vocabulary = 64
    seed: Annotated[int, Meta(ge=0, le=2**62)] = 0
    regime: str = "std"
    scale: Annotated[float, Meta(ge=1 / 64, le=8.0)] = 0.25
    support: int = 0
    draft_support: int = 0
    mix: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.375
    entropy: int = 0
    promise: str = "none"
    order: tuple[str, ...] = ORDER
    crosses_after: Crossing = 0

    @property
    def options(self) -> tuple[RowOptions, ...]:
        return self.rows

    @property
    def max_new_tokens(self) -> int:
        return max(row.max_new_tokens for row in self.rows)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return tuple(sorted({token for row in self.rows for token in row.eos_token_ids}))

    @property
    def known_ids(self) -> int:
        return max(self.vocab_size, self.pad_token_id + 1)

    def with_options(self, options: Iterable[RowOptions]) -> SampledCase:
        """The case with other options of its rows."""
        return replace(self, rows=tuple(options))

    def of(self, numbers: Iterable[int]) -> SampledCase:
        """The case with these of its rows, in this order."""
        prompts, rows = zip(*((self.prompts[number], self.rows[number]) for number in numbers), strict=True)
        return replace(self, prompts=prompts, rows=rows)

    def greedy(self) -> Case:
        """The same request with greedy rows, as the transparent lane decodes it."""
        shared = ("prompts", "max_new_tokens", "eos_token_ids", "pad_token_id", "padding_side", "family", "vocab_size")
        drafts = max(1, self.num_draft_tokens)
        given = {name: getattr(self, name) for name in (*shared, "seed")}
        return Case(num_draft_tokens=drafts, agreement=0.7, **given)


@dataclass(frozen=True)
class SampledEngineCase(EngineCase, Sampled):
    """One test input for an engine, some of its rows sampled; see `Sampled`.

        >>> from eqcheck.core.case.engine import EngineRow
        >>> case = SampledEngineCase((EngineRow((1, 2), RowOptions(4, temperature=1.0)),), num_draft_tokens=3)
        >>> SampledEngineCase.from_dict(case.to_dict()) == case
        True

    Raises `CaseError` for a field of the wrong type or outside its range.
    """

    format: ClassVar[str] = "eqcheck-sampled-engine-case/1"
    lane: ClassVar[str] = "engine-sampling"
    regimes = ENGINE_REGIMES
    seed_bits = 31
    rules = (*EngineCase.rules, _chance)
    regime: str = "std"
    entropy: int = 0
    promise: str = "none"
    order: tuple[str, ...] = ORDER
    crosses_after: Crossing = 0

    def greedy(self) -> EngineCase:
        """The same request with greedy rows, as the greedy lane decodes it."""
        plain = (RowOptions(options.max_new_tokens, options.eos_token_ids) for options in self.options)
        settings = {field.name: getattr(self, field.name) for field in fields(EngineCase)}
        return EngineCase(**settings).with_options(plain)
