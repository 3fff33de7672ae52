"""The options of a row, the promises of a decoder that samples, and the checks of both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from eqcheck.contract.errors import UsageError, did_you_mean

ORDER = ("temperature", "top-k", "top-p", "min-p")
"""In which options are applied, as in transformers; vLLM cuts by min-p before top-k. Penalties come before all."""

SEEDS = {
    "none": "nothing is promised",
    "repeatable": "the same request with the same seeds is answered by the same tokens",
    "mates": "and so is a row with a seed beside other rows, in another order, or alone",
    "speculation": "and with another draft, another number of draft tokens, or none",
}
"""What may be promised of rows with a seed; each includes those before it."""


@dataclass(frozen=True)
class RowOptions:
    """The options of one row; `Request.rows` has one per prompt where the decoder declares any of `CAPABILITIES`.

    ``eos_token_ids`` end the row, and are not emitted before ``min_new_tokens``. ``arrival``: the row is handed over
    after so many steps of the engine.

    At a ``temperature`` above 0 the row is sampled: its scores are divided by it, cut to the ``top_k`` highest (0: no
    cut), to the most likely ones that reach ``top_p`` together (1.0: no cut), and to those not below ``min_p`` of the
    most likely one (0.0: no cut); see `eqcheck.truth.law`. At 0.0 it is greedy. ``seed``, where there is one, is below
    ``2**64``. Raises `UsageError` where one of these five, a penalty or a minimum is none that can be meant.

    >>> RowOptions(4, temperature=0.7, top_p=1.5)
    Traceback (most recent call last):
    eqcheck.contract.errors.UsageError: top_p: expected a number above 0 and at most 1 (no cut), got 1.5
    """

    max_new_tokens: int
    eos_token_ids: tuple[int, ...] = ()
    min_new_tokens: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    arrival: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        warm, k, p, least, seed = self.temperature, self.top_k, self.top_p, self.min_p, self.seed
        right = {
            "temperature": _real(warm) and (warm == 0 or 1e-6 <= warm <= 1e6),
            "top_k": _whole(k) and 0 <= k < 2**31,
            "top_p": _real(p) and 0 < p <= 1,
            "min_p": _real(least) and 0 <= least <= 1,
            "seed": seed is None or (_whole(seed) and 0 <= seed < 2**64),
            "repetition_penalty": _real(self.repetition_penalty) and 0 < self.repetition_penalty < math.inf,
            "presence_penalty": _real(self.presence_penalty) and abs(self.presence_penalty) < math.inf,
            "min_new_tokens": _whole(self.min_new_tokens) and self.min_new_tokens >= 0,
        }
        for name, expected in _EXPECTED.items():
            if not right[name]:
                raise UsageError(f"{name}: expected {expected}, got {getattr(self, name)!r}")

    def wrong_end(self, tokens: Sequence[int]) -> tuple[str, int] | None:
        """How new tokens end wrongly: the kind, and the index of the first token too many or missing; None if rightly.

        >>> row = RowOptions(3, eos_token_ids=(9,))
        >>> row.wrong_end((1, 9, 2)), row.wrong_end((1, 2)), row.wrong_end((1, 2, 3))
        (('past-eos', 2), ('premature-stop', 2), None)
        """
        limit = self.max_new_tokens
        eos = next((number for number, token in enumerate(tokens, 1) if token in self.eos_token_ids), limit + 1)
        if len(tokens) > min(eos, limit):
            return ("past-eos", eos) if eos <= limit else ("over-length", limit)
        return ("premature-stop", len(tokens)) if len(tokens) < min(eos, limit) else None


def sampling_of(options: RowOptions) -> str:
    """How a row is to be sampled, in words.

    >>> sampling_of(RowOptions(4, temperature=0.7, top_k=3))
    'temperature 0.7, top-k 3'
    """
    cuts = {"top-k": options.top_k or None, "top-p": options.top_p if options.top_p < 1 else None}
    cuts |= {"min-p": options.min_p or None}
    said = {"temperature": options.temperature, **{name: value for name, value in cuts.items() if value is not None}}
    return ", ".join(f"{name} {value:g}" for name, value in said.items())


def asked_of(options: RowOptions) -> str:
    """How a row beside sampled ones is to be answered, with its seed, in words.

    >>> asked_of(RowOptions(4)), asked_of(RowOptions(4, temperature=0.7, seed=5))
    ('greedy', 'temperature 0.7, seed 5')
    """
    seed = "" if options.seed is None else f", seed {options.seed}"
    return f"{sampling_of(options)}{seed}" if options.temperature else "greedy"


_EXPECTED = {
    "temperature": "0 (greedy) or a number from 1e-6 to 1e6",
    "top_k": "a whole number from 0 (no cut) to 2**31 - 1",
    "top_p": "a number above 0 and at most 1 (no cut)",
    "min_p": "a number from 0 (no cut) to 1",
    "seed": "a whole number from 0 to 2**64 - 1, or None",
    "repetition_penalty": "a number above 0",
    "presence_penalty": "a finite number",
    "min_new_tokens": "a whole number from 0",
}


def check_claims(capabilities: Sequence[str], seeds: str, lossless: Any, option_order: Any) -> None:
    """`UsageError` for what a decoder may not say of its sampling."""
    if not isinstance(seeds, str) or seeds not in SEEDS:
        raise UsageError(f"seeds: expected one of {tuple(SEEDS)}, got {seeds!r}{did_you_mean(str(seeds), SEEDS)}")
    if seeds != "none" and "seeds" not in capabilities:
        raise UsageError(f"seeds: {seeds!r} is promised, but the decoder takes none; add 'seeds' to its capabilities")
    cuts = [name for name in (*ORDER[1:], "seeds") if name in capabilities]
    if cuts and "temperature" not in capabilities:
        raise UsageError(f"capabilities: {cuts[0]!r} means nothing without 'temperature': rows would all be greedy")
    if lossless is not True and not (isinstance(lossless, str) and lossless.strip()):
        raise UsageError(f"lossless: expected True or the reason why it is not, got {lossless!r}")
    if not isinstance(option_order, list | tuple) or sorted(map(str, option_order)) != sorted(ORDER):
        raise UsageError(f"option_order: expected {ORDER} in some order, got {option_order!r}")


def _real(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
