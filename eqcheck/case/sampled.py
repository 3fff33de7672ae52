"""A sampled case: rows with options of their own, how sharp the models' laws are, and where the chance came from."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from random import Random
from typing import Any, ClassVar

from eqcheck.case.record import Case
from eqcheck.contract.decoder import CLAIMED, FAMILIES, PADDING_SIDES, PaddingSide, Request, RowOptions
from eqcheck.contract.errors import CaseError, UsageError, did_you_mean
from eqcheck.contract.limits import MOST_DRAFT_TOKENS, MOST_ROWS, MOST_TOKENS_OF_ROW, MOST_VOCABULARY
from eqcheck.contract.options import ORDER, SEEDS, asked_of
from eqcheck.explanation.records import Given

REGIMES = ("std", "near", "near4", "far", "peaked", "few", "equal", "dead")
"""How close the draft's laws are to the target's; `eqcheck.lanes.sampling.drawing` has the figures."""

PROMISES = tuple(SEEDS)


@dataclass(frozen=True)
class SampledCase:
    """One test input whose rows are sampled, greedy rows perhaps among them.

    ``rows`` has the options of each row. ``scale``, ``support`` and ``mix`` are those of an
    `eqcheck.hashlm.scores.Spread`: of the target the first two, of the draft ``scale``, ``draft_support`` and ``mix``.
    ``regime`` says what they were drawn for. ``entropy`` seeds the global generators of torch, numpy and Python before
    the case is decoded. ``promise`` is what the decoder promises of rows with seeds (`eqcheck.contract.options.SEEDS`),
    which the case is to test; ``order`` is that in which it declares to apply options. ``crosses_after`` says of the
    case of a finding after how many sampled tokens of the audit the evidence was that of a violation; 0 where that is
    not known.

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
    prompts: tuple[tuple[int, ...], ...]
    rows: tuple[RowOptions, ...]
    num_draft_tokens: int = 1
    pad_token_id: int = 0
    padding_side: PaddingSide = "left"
    family: str = CLAIMED[0]
    vocab_size: int = 64
    seed: int = 0
    regime: str = "std"
    scale: float = 0.25
    support: int = 0
    draft_support: int = 0
    mix: float = 0.375
    entropy: int = 0
    promise: str = "none"
    order: tuple[str, ...] = ORDER
    crosses_after: int = 0

    def __post_init__(self) -> None:
        _whole("vocab_size", self.vocab_size, 4, MOST_VOCABULARY)
        _whole("seed", self.seed, 0, 2**62)
        _whole("entropy", self.entropy, 0, 2**64 - 1)
        _whole("crosses_after", self.crosses_after, 0, 10**9)
        _whole("num_draft_tokens", self.num_draft_tokens, 0, MOST_DRAFT_TOKENS)
        _whole("pad_token_id", self.pad_token_id, 0, self.vocab_size)
        _whole("support", self.support, 0, self.vocab_size)
        _whole("draft_support", self.draft_support, 0, self.vocab_size)
        _number("scale", self.scale, 1 / 64, 8.0)
        _number("mix", self.mix, 0.0, 1.0)
        for name, value, allowed in (
            ("padding_side", self.padding_side, PADDING_SIDES),
            ("family", self.family, FAMILIES),
            ("regime", self.regime, REGIMES),
            ("promise", self.promise, PROMISES),
        ):
            if value not in allowed:
                raise CaseError(f"{name}: expected one of {allowed}, got {value!r:.80}")
        if not isinstance(self.order, tuple) or sorted(map(str, self.order)) != sorted(ORDER):
            raise CaseError(f"order: expected {ORDER} in some order, got {self.order!r:.80}")
        if not (isinstance(self.prompts, tuple) and 0 < len(self.prompts) <= MOST_ROWS):
            raise CaseError(f"prompts: expected 1 to {MOST_ROWS} rows, got {self.prompts!r:.80}")
        if not isinstance(self.rows, tuple) or len(self.rows) != len(self.prompts):
            raise CaseError(f"rows: expected the options of {len(self.prompts)} rows, got {self.rows!r:.80}")
        for row, (prompt, options) in enumerate(zip(self.prompts, self.rows, strict=True)):
            if not isinstance(prompt, tuple) or not prompt or len(prompt) > MOST_TOKENS_OF_ROW:
                raise CaseError(f"prompts[{row}]: expected 1 to {MOST_TOKENS_OF_ROW} token ids, got {prompt!r:.80}")
            for token in (*prompt, *options.eos_token_ids):
                _whole(f"prompts[{row}]", token, 0, self.vocab_size - 1)
            _whole(f"rows[{row}].max_new_tokens", options.max_new_tokens, 1, MOST_TOKENS_OF_ROW - len(prompt))

    @property
    def before(self) -> tuple[SampledCase, ...]:
        return ()

    @property
    def alone(self) -> SampledCase:
        return self

    @property
    def max_new_tokens(self) -> int:
        return max(row.max_new_tokens for row in self.rows)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return tuple(sorted({token for row in self.rows for token in row.eos_token_ids}))

    @property
    def known_ids(self) -> int:
        return max(self.vocab_size, self.pad_token_id + 1)

    def request(self) -> Request:
        """What the decoder is asked; a fresh copy each time."""
        return Request(
            prompts=[list(prompt) for prompt in self.prompts],
            max_new_tokens=self.max_new_tokens,
            num_draft_tokens=self.num_draft_tokens,
            eos_token_ids=self.eos_token_ids,
            pad_token_id=self.pad_token_id,
            padding_side=self.padding_side,
            rows=self.rows,
        )

    def renewed(self, rng: Random) -> SampledCase:
        """The same request with other chance: another entropy, and another seed wherever there is one."""
        rows = [replace(row, seed=rng.getrandbits(63)) if row.seed is not None else row for row in self.rows]
        return replace(self, rows=tuple(rows), entropy=rng.getrandbits(48))

    def of(self, rows: Sequence[int]) -> SampledCase:
        """The case with these of its rows, in this order."""
        picked = tuple(self.prompts[row] for row in rows), tuple(self.rows[row] for row in rows)
        return replace(self, prompts=picked[0], rows=picked[1])

    def greedy(self) -> Case:
        """The same request with greedy rows, as the transparent lane decodes it."""
        return Case(
            prompts=self.prompts,
            max_new_tokens=self.max_new_tokens,
            num_draft_tokens=max(1, self.num_draft_tokens),
            agreement=0.7,
            eos_token_ids=self.eos_token_ids,
            pad_token_id=self.pad_token_id,
            padding_side=self.padding_side,
            family=self.family,
            vocab_size=self.vocab_size,
            seed=self.seed,
        )

    @property
    def id(self) -> str:
        """Twelve hexadecimal digits that identify the content."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:12]

    def given(self, row: int) -> Given:
        """What a row was asked with, and the rows beside it."""
        asked = zip(self.prompts, self.rows, strict=True)
        rows = tuple(
            Given(prompt, None, one.eos_token_ids, limit=one.max_new_tokens, sampling=asked_of(one))
            for prompt, one in asked
        )
        return replace(rows[row], pad_token_id=self.pad_token_id, num_draft_tokens=self.num_draft_tokens, rows=rows)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; the inverse of `from_dict`."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        plain["rows"] = [asdict(row) for row in self.rows]
        written: dict[str, Any] = json.loads(json.dumps({"format": self.format, **plain}))
        return written

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SampledCase:
        """Read what `to_dict` wrote; `CaseError` says what is missing, unknown or of another version."""
        if not isinstance(data, Mapping) or data.get("format") != cls.format:
            raise CaseError(f"case: expected format {cls.format!r}, got {data!r:.80}")
        names = {f.name for f in fields(cls)} | {"format"}
        for name in data:
            if name not in names:
                raise CaseError(f"case: unknown field {name!r:.80}{did_you_mean(name, names)}")
        try:
            values = {name: _tuples(value) for name, value in data.items() if name not in ("format", "rows")}
            rows = [RowOptions(**{name: _tuples(value) for name, value in row.items()}) for row in data["rows"]]
            return cls(rows=tuple(rows), **values)
        except (TypeError, KeyError, AttributeError, UsageError) as error:
            raise CaseError(f"case: {error}") from error


def _tuples(value: Any) -> Any:
    return tuple(_tuples(one) for one in value) if isinstance(value, list | tuple) else value


def _whole(name: str, value: Any, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise CaseError(f"{name}: expected an integer from {least} to {most}, got {value!r:.80}")


def _number(name: str, value: Any, least: float, most: float) -> None:
    if type(value) not in (int, float) or not math.isfinite(value) or not least <= value <= most:
        raise CaseError(f"{name}: expected a number from {least:g} to {most:g}, got {value!r:.80}")
