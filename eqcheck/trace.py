"""The trace: every forward of target and draft during one decode, as it was seen from inside the model."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

from eqcheck.hashing import Bools, Ints, Words

TARGET, DRAFT = 1, 2


@dataclass(frozen=True)
class Call:
    """One forward of one model.

    ``tokens`` and ``positions`` are ``[batch, block]``; ``visible`` is ``[batch, block, slots]``; ``kv`` holds, per
    layer, the cache content the queries saw, ``[2 (K, V), batch, heads, slots, width]`` integers laid out as
    in `eqcheck.hashing`; ``digests`` ``[batch, block]`` is the final hash of each query
    and ``predictions`` the most likely next token after it.
    """

    number: int
    role: int
    tokens: Ints
    positions: Ints
    visible: Bools
    kv: tuple[Ints, ...]
    digests: Words
    predictions: Ints


class TooManyCalls(RuntimeError):
    """The decoder called the models far more often than the case can need: it would not have ended."""


@dataclass
class Trace:
    """The calls of one decode, in order; target and draft share one clock, so calls are numbered across both."""

    max_calls: int = 100_000
    calls: list[Call] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = count(1)

    def record(self, call: Call) -> None:
        self.calls.append(call)
        if len(self.calls) > self.max_calls:
            raise TooManyCalls(f"{len(self.calls)} forward calls in one case, where {self.max_calls} are ample")

    def of(self, role: int) -> list[Call]:
        """The calls of the target (`TARGET`) or of the draft (`DRAFT`)."""
        return [call for call in self.calls if call.role == role]
