"""The trace: every forward of target and draft during one decode, as it was seen from inside the model."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import Any, NamedTuple, Protocol

import numpy as np

from eqcheck.transparent.hashlm.hashing import LAYERS, Bools, Ints, States, Words, decoded, table_row

TARGET, DRAFT = 1, 2


@dataclass(frozen=True)
class Call:
    """One forward of one model.

    ``tokens`` and ``positions`` are ``[batch, block]``; ``visible`` is ``[batch, block, slots]``; ``key_places``
    ``[batch, slots]`` and ``places`` ``[batch, block]`` are where the family takes keys and queries to be. ``held``
    is, per layer, the cache content the queries saw, ``[2 (K, V), batch, heads, slots, width]`` digits; ``odd`` has a
    word for each slot that holds fractions (`eqcheck.transparent.hashlm.hashing.whole`). Where layers do not see the
    same, these are of the upper layer alone, and ``lower`` has those of the lower one. ``digests`` ``[batch, block]``
    is the final hash of each query, and ``ranked`` are its model's most and second most likely token; the model takes
    the second where it ``disagrees``. ``weights`` are those of its model, as entries are marked with them.
    """

    number: int
    role: int
    tokens: Ints
    positions: Ints
    visible: Bools
    key_places: Ints
    places: Ints
    held: tuple[Ints, ...]
    odd: tuple[Words | None, ...]
    digests: Words
    ranked: tuple[Ints, Ints]
    disagrees: Bools | None
    lower: Call | None = None
    weights: int = 0

    @property
    def layers(self) -> slice:
        """The layers that ``held`` is of, as places in the hash of all."""
        return slice(LAYERS - 1, LAYERS) if self.lower else slice(len(self.held))

    def of_layer(self, layer: int) -> tuple[Call, Ints]:
        """The call as a layer sees it, and what that layer holds."""
        seen = self.lower if self.lower and not layer else self
        return seen, seen.held[min(layer, len(seen.held) - 1)]

    @cached_property
    def kv(self) -> tuple[Ints, ...]:
        """Return per layer the fields of the entries, ``[2 (K, V), batch, heads, slots, 9]`` (`hashing.decoded`)."""
        return tuple(decoded(digits, self.weights) for digits in self.held)

    @cached_property
    def predictions(self) -> Ints:
        """The token each query predicts, ``[batch, block]``."""
        first, second = (choice[table_row(self.digests)] for choice in self.ranked)
        return first if self.disagrees is None else np.where(self.disagrees, second, first)

    @cached_property
    def tells(self) -> Bools:
        """Return whether a prediction may be news to the decoder, ``[batch, block]``:
        one fed next to its query is not.
        """
        news = np.ones(self.tokens.shape, np.bool_)
        news[:, :-1] = self.predictions[:, :-1] != self.tokens[:, 1:]
        return news


@dataclass(frozen=True)
class HeadCall:
    """One call of a part of a scripted head (`eqcheck.transparent.drafting`); ``shape`` names the part.

    ``given`` are the hidden states ``[batch, block]`` that it was handed, ``tokens`` came with them. ``digests``
    ``[batch, block]`` are the contexts it takes itself to be in, ``predictions`` ``[batch, block]`` its proposals; the
    shape ``column`` has a block of all its proposals. Where it has a cache, ``held`` are the states in it
    ``[batch, slots]``, ``held_tokens`` came with them, -1 in slots where nothing was written, and ``visible``
    ``[batch, block, slots]`` tells the slots that each query sees.
    """

    number: int
    shape: str
    given: States
    tokens: Ints | None
    digests: Words
    predictions: Ints
    held: States | None = None
    held_tokens: Ints | None = None
    visible: Bools | None = None


class Fix(NamedTuple):
    """The right contexts for the queries of a call, where they are ``known`` ``[batch, block]``.

    ``digests`` ``[layers, batch, block]`` are the hashes of the contexts, ``positions`` ``[batch, block]`` are written
    for all tokens; ``pads`` ``[batch, block]`` are the tokens to be taken for pads, None for the pads of the mask.
    ``entries`` says whether right entries of the cache are part of the fix.
    """

    known: Bools
    digests: Words
    positions: Ints
    pads: Bools | None
    entries: bool


class TooManyCalls(BaseException):
    """The decoder called the models far more often than the case can need: it would not have ended.

    Not an ``Exception``, so that a decoder which swallows those still ends.
    """


@dataclass
class Uses:
    """Hold whether anything was written into a cache of ``capacity`` slots, or into a copy of it."""

    capacity: int
    written: bool = False

    def __deepcopy__(self, memo: object) -> Uses:
        return self


class Watcher(Protocol):
    """A listener that is told of the keys and values that models write and are handed; see
    `eqcheck.transparent.memory`.
    """

    def mark(self, tensor: Any) -> None: ...

    def called(self, call: Call) -> None: ...


@dataclass
class Trace:
    """The calls of one decode, in order; target and draft share one clock, so calls are numbered across both."""

    max_calls: int = 100_000
    calls: list[Call] = field(default_factory=list)
    heads: list[HeadCall] = field(default_factory=list)
    given: int = 0  # calls made before the decoder began, to fill the cache it is handed
    handed: Uses | None = None  # of the preallocated cache that the decoder is handed for the target
    watcher: Watcher | None = None
    drafts_told: bool = False  # the decoder asked for the drafts of the case, and may look them up
    rounded: float = 0.0  # how far entries of a real cache that rounds are from what was written, in parts of them
    # Other tokens of a real model whose scores are the highest but for the dtype's last bits, by call, row and column.
    level: dict[tuple[int, int, int], frozenset[int]] = field(default_factory=dict)
    undefined: set[tuple[int, int, int]] = field(default_factory=set)  # queries of a real model whose scores are NaN

    def __post_init__(self) -> None:
        self.clock = count(1)

    def record(self, call: Call) -> None:
        self.calls.append(call)
        if self.watcher is not None:
            self.watcher.called(call)
        self._bounded(len(self.calls))

    def record_head(self, call: HeadCall) -> None:
        self.heads.append(call)
        self._bounded(len(self.heads))

    def _bounded(self, made: int) -> None:
        if made > self.max_calls:
            raise TooManyCalls(f"{made} forward calls in one case, where {self.max_calls} are ample")

    def of(self, role: int) -> list[Call]:
        """The calls of the target (`TARGET`) or of the draft (`DRAFT`)."""
        return [call for call in self.calls if call.role == role]

    def made(self, role: int) -> list[Call]:
        """The calls of a role that the decoder made."""
        return [call for call in self.of(role) if call.number > self.given]
