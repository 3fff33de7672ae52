"""A sampled case for an engine: rows with options of their own, and where the chance came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from random import Random
from typing import Any, ClassVar

from eqcheck.case.engine import PAD, EngineCase, whole
from eqcheck.contract.decoder import RowOptions
from eqcheck.contract.errors import CaseError
from eqcheck.contract.options import ORDER, SEEDS, asked_of
from eqcheck.explanation.records import Given

REGIMES = ("std", "one", "peaked", "flat", "ngram")
"""What cases are drawn for; `eqcheck.lanes.checkpoint.sampled.drawing` has the figures."""


@dataclass(frozen=True)
class SampledEngineCase(EngineCase):
    """One test input for an engine, some of its rows sampled.

    ``entropy`` seeds the global generators of torch, numpy and Python in the engine's process before it decodes the
    case. ``promise`` is what the engine promises of rows with seeds (`eqcheck.contract.options.SEEDS`), ``order`` that
    in which it declares to apply options. ``crosses_after`` says of the case of a finding after how many sampled tokens
    the evidence was that of a violation, when the case was drawn again and again; 0 where that is not known.

        >>> from eqcheck.case.engine import EngineRow
        >>> case = SampledEngineCase((EngineRow((1, 2), RowOptions(4, temperature=1.0)),), num_draft_tokens=3)
        >>> SampledEngineCase.from_dict(case.to_dict()) == case
        True

    Raises `CaseError` for a field of the wrong type or outside its range.
    """

    format: ClassVar[str] = "eqcheck-sampled-engine-case/1"
    lane: ClassVar[str] = "checkpoint-sampling"
    regime: str = "std"
    entropy: int = 0
    promise: str = "none"
    order: tuple[str, ...] = ORDER
    crosses_after: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("entropy", self.entropy, 0, 2**64 - 1)
        whole("crosses_after", self.crosses_after, 0, 10**9)
        for name, value, allowed in (("regime", self.regime, REGIMES), ("promise", self.promise, tuple(SEEDS))):
            if value not in allowed:
                raise CaseError(f"{name}: expected one of {allowed}, got {value!r:.80}")
        if not isinstance(self.order, tuple) or sorted(map(str, self.order)) != sorted(ORDER):
            raise CaseError(f"order: expected {ORDER} in some order, got {self.order!r:.80}")

    @property
    def sampled(self) -> list[int]:
        """The numbers of the rows that are sampled."""
        return [number for number, row in enumerate(self.rows) if row.options.temperature]

    def of(self, rows: Sequence[int]) -> SampledEngineCase:
        """The case with these of its rows, in this order."""
        return replace(self, rows=tuple(self.rows[row] for row in rows))

    def greedy(self) -> EngineCase:
        """The same request with greedy rows, as the greedy lane decodes it."""
        plain = [
            replace(row, options=RowOptions(row.options.max_new_tokens, row.options.eos_token_ids)) for row in self.rows
        ]
        settings = {one.name: getattr(self, one.name) for one in fields(EngineCase) if one.name != "rows"}
        return EngineCase(tuple(plain), **settings)

    def given(self, number: int) -> Given:
        """What a row was asked with, and the rows beside it."""
        rows = tuple(
            Given(row.prompt, None, one.eos_token_ids, limit=one.max_new_tokens, sampling=asked_of(one))
            for row, one in ((row, row.options) for row in self.rows)
        )
        return replace(rows[number], pad_token_id=PAD, num_draft_tokens=self.num_draft_tokens, rows=rows)

    def renewed(self, rng: Random) -> SampledEngineCase:
        """The same request with other chance: another entropy, and another seed wherever there is one."""
        rows = [
            replace(row, options=replace(row.options, seed=rng.getrandbits(31)))
            if row.options.seed is not None
            else row
            for row in self.rows
        ]
        return replace(self, rows=tuple(rows), entropy=rng.getrandbits(48))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SampledEngineCase:
        """Read what `to_dict` wrote; `CaseError` says what is missing, unknown or of another version."""
        order = data.get("order", ORDER)
        if isinstance(order, list):
            data = {**data, "order": tuple(order)}
        read = super().from_dict(data)
        assert isinstance(read, cls)
        return read


def twins(case: SampledEngineCase, first: int, second: int) -> bool:
    """Whether two rows ask for the same, but for their seeds, and are to be drawn apart."""
    one, other = case.rows[first], case.rows[second]
    same = (one.prompt, replace(one.options, seed=None)) == (other.prompt, replace(other.options, seed=None))
    seed = one.options.seed
    return same and bool(one.options.temperature) and (seed is None or seed != other.options.seed)
