"""The shadow of a recurrent model: the tokens that a state has taken in, told by its bytes.

A state has no slots that could name what was written. But it changes in forwards alone, and a state after one of
them follows from the state before it and the block. So the bytes of each row's state are remembered with the tokens
that it has taken in, and whatever a decoder saves, restores or exchanges is known again. The recurrent state stands for
keys, the state of the convolution for values; the latter is equal after many texts, so of these the one counts that the
former agrees with.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from eqcheck.contract.cache_names import NAMES, cache_name, cache_of
from eqcheck.hashlm import hashing
from eqcheck.hashlm.hashing import HEADS, LAYERS, PLACES, WIDTH, Bools, Ints, Words
from eqcheck.hashlm.trace import TARGET
from eqcheck.hashlm.visibility import Feed, View
from eqcheck.real.provenance import GARBAGE, Held, vectors
from eqcheck.real.shadow import Opened, Shadow
from eqcheck.real.tap import AttentionInput, NotRead, Watched

History = tuple[int, ...]  # the writes that a state has taken in, oldest first; `_PAD` for a pad
_PAD, _UNKNOWN = -1, -2  # of the digits in `_STRANGE`
_STRANGE = np.stack([np.zeros(WIDTH, np.int64), np.full(WIDTH, GARBAGE, np.int64)])
_KINDS = ("recurrent_states", "conv_states")


class StateShadow(Shadow):
    """Work like `Shadow`, for models whose layers all have a state instead of keys and values."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._known: dict[tuple[int, int, int], dict[bytes, list[History]]] = defaultdict(lambda: defaultdict(list))
        self._before: list[list[History]] = []

    def fed(self, watched: Watched, tokens: Any, embeds: Any, options: dict[str, Any]) -> None:
        without = {name: value for name, value in options.items() if name not in NAMES}
        super().fed(watched, tokens, embeds, without)
        if self.open is not None and not options.get("loose"):
            self._before = self._histories(self.open, cache_of(options))

    def wrote(self, layer: int, new: tuple[torch.Tensor, ...], all_of_them: tuple[torch.Tensor, ...]) -> None:
        """Do nothing: nothing goes into caches here."""

    def saw(self, watched: Watched | None, layer: int, seen: AttentionInput) -> None:
        """There is no attention."""

    def asked(self, watched: Watched, states: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        if self.open is not None and self.open.loose and self.open.watched is watched:
            raise NotRead("the layers were called by themselves, and states are read when the whole model is called")
        return super().asked(watched, states, logits)

    def _close(self, now: Opened, states: torch.Tensor, cache: Any) -> None:
        if now.tokens.size == 0:
            return
        number, role = next(self.trace.clock), now.watched.role
        positions, taken = self._said(now), self._feed(now).absorbed()
        nothing: Words = np.zeros(now.tokens.shape, np.uint64)
        for shadow in range(LAYERS):
            self.provenance.spell(shadow, role, number, now.tokens, positions, nothing if shadow else None)
        call = self._attend(now, number, positions, self._held(now, number, taken), None)
        self._answer(now, call, states)
        if self.repair is not None and role == TARGET:
            fix = self.repair(call)
            taken = taken if fix.pads is None else ~fix.pads
            call = self._attend(now, number, positions, self._held(now, number, taken), fix)
            self._answer(now, call, states)
        self.trace.record(call)
        self._remember(now, number, taken, cache)

    def _feed(self, now: Opened) -> Feed:
        mask = now.mask if now.mask is None or now.mask.dim() == 2 else None
        positions = self._said(now)
        return Feed(self.family, mask, positions, np.arange(positions.shape[1]), False, None)

    def _view(self, now: Opened, shadow: int, at: Ints, positions: Ints, digits: Ints) -> View:
        return self._feed(now).view(at, hashing.written(digits))

    def _histories(self, now: Opened, cache: Any) -> list[list[History]]:
        """The histories of the states of each row, by row and by layer and kind."""
        rows = len(now.tokens)
        copies = [self._bytes(now.watched, cache, layer, kind) for layer in range(LAYERS) for kind in range(2)]
        if any(copy is not None and len(copy) != rows for copy in copies):
            raise NotRead(f"{cache_name(now.watched.base)}: expected the states of {rows} rows like input_ids")
        histories = []
        for row in range(rows):
            options = [
                [()] if copy is None else self._found(now.watched.role, number, copy[row])
                for number, copy in enumerate(copies)
            ]
            shared = [one for one in options[0] if all(one in others for others in options)]
            histories.append([(shared or of_copy)[-1] for of_copy in options])
        return histories

    def _found(self, role: int, number: int, data: bytes) -> list[History]:
        if not any(data):
            return [()]
        return self._known[(role, *divmod(number, 2))].get(data) or [(_UNKNOWN,)]

    @staticmethod
    def _bytes(watched: Watched, cache: Any, layer: int, kind: int) -> list[bytes] | None:
        """The bytes of each row's state; None where there is none yet."""
        layers, number = getattr(cache, "layers", None), watched.layers[layer]
        if cache is None or (layers is not None and number >= len(layers)):
            return None
        states = None if layers is None else getattr(layers[number], _KINDS[kind], None)
        if not isinstance(states, dict):
            raise NotRead(
                f"{cache_name(watched.base)}: no states are found in {type(cache).__name__} of this transformers"
            )
        states = states[0]
        return None if states is None else [row[0][0] for row in vectors(states.flatten(1)[:, None, None])]

    def _held(self, now: Opened, number: int, taken: Bools) -> Held:
        """The content of the states once the block was taken in, as slots that end with it."""
        batch, block = now.tokens.shape
        new = self._new(now, number, taken)
        longest = max(len(one) for row in self._before for one in row)
        writes = np.full((PLACES, batch, longest + block), _PAD, np.int64)
        for row, histories in enumerate(self._before):
            for copy in range(PLACES):
                whole = (*histories[copy // HEADS], *new[row])
                writes[copy, row, writes.shape[2] - len(whole) :] = whole
        places = np.arange(PLACES)[:, None, None] + (now.watched.role - 1) * PLACES
        return Held(writes, np.broadcast_to(places, writes.shape), _STRANGE)

    def _new(self, now: Opened, number: int, taken: Bools) -> Sequence[History]:
        first = self.provenance.first(now.watched.role, number)
        numbers = first + np.arange(now.tokens.size).reshape(now.tokens.shape)
        return [tuple(row) for row in np.where(taken, numbers, _PAD).tolist()]

    def _remember(self, now: Opened, number: int, taken: Bools, cache: Any) -> None:
        new = self._new(now, number, taken)
        for layer in range(LAYERS):
            for kind in range(2):
                for row, data in enumerate(self._bytes(now.watched, cache, layer, kind) or ()):
                    histories = self._known[now.watched.role, layer, kind][data]
                    whole = (*self._before[row][2 * layer + kind], *new[row])
                    if whole in histories:
                        histories.remove(whole)
                    histories.append(whole)  # the newest last
