"""Every storage that holds keys or values while a decoder runs: how large it is, when it was made, whether it is alive.

Shapes say nothing: a slice of twenty kilobytes keeps the two megabytes alive that it was cut from. So storages are
followed, not tensors. What the models write is marked, and so is whatever an operation makes of what is marked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from eqcheck.hashlm.hashing import WIDTH, Ints, writes
from eqcheck.hashlm.trace import DRAFT, TARGET, Call


@dataclass
class _Storage:
    """A storage that holds keys or values; ``made`` and ``used`` are rounds."""

    ref: StorageWeakRef
    size: int
    dtype: torch.dtype
    made: int
    used: int

    def contents(self) -> Ints | None:
        """The identity of the write of each entry (`eqcheck.hashlm.hashing.writes`); None where the layout hides it."""
        storage = torch.UntypedStorage._new_with_weak_ptr(self.ref.cdata)
        if storage is None or self.size % (WIDTH * self.dtype.itemsize):
            return None
        numbers = torch.empty(0, dtype=self.dtype, device=storage.device).set_(storage).to("cpu", torch.float64)
        return writes(numbers.numpy().reshape(-1, WIDTH))


class Held(NamedTuple):
    """A storage at a moment: what its entries are, `eqcheck.hashlm.hashing.writes`, or None where they cannot be read.

    ``idle`` is for how many rounds nobody has read or written it, ``made`` the round that it was made in.
    """

    size: int
    made: int
    idle: int
    entries: Ints | None


class Moment(NamedTuple):
    """All storages that were alive during a call of the target, the first of its round."""

    call: int
    round: int
    held: list[Held]


class Ledger(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows the storages of keys and values while it is entered; a `Trace` is given it as watcher.

    A round begins with the first call of the draft behind a call of the target; where the draft is not called, with
    each call of the target. ``peak`` are the most bytes that were alive at once, ``moments`` one for each round.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.moments: list[Moment] = []
        self.peak = 0
        self._storages: dict[int, _Storage] = {}
        self._round = 0
        self._reading = False  # by this ledger, which is no use
        self._drafted: bool | None = None  # since the last call of the target; None: never yet

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if self._storages and not self._reading and any(self._known(tensor) for tensor in _tensors(args)):
            for tensor in _tensors((out,)):
                self.mark(tensor)
        return out

    def mark(self, tensor: torch.Tensor) -> None:
        """Follow the storage of a tensor that holds keys or values."""
        storage = tensor.untyped_storage()
        if known := self._storages.get(storage._cdata):
            known.used = self._round
        elif tensor.is_floating_point() and storage.nbytes() >= WIDTH * tensor.dtype.itemsize:
            reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
            self._storages[reference.cdata] = _Storage(
                reference, storage.nbytes(), tensor.dtype, self._round, self._round
            )
            self.peak = max(self.peak, self.alive())

    def called(self, call: Call) -> None:
        """A model was called: what is alive is noted where that is the target's first call of a round."""
        if call.role == DRAFT:
            self._drafted = True
            return
        assert call.role == TARGET
        if self._drafted is not False:
            self._drafted = None if self._drafted is None else False
            self._round += 1
            now = self._round
            self._reading = True
            held = [Held(s.size, s.made, now - 1 - s.used, s.contents()) for s in self._living()]
            self._reading = False
            self.moments.append(Moment(call.number, now, held))

    def alive(self) -> int:
        """Bytes that are alive now."""
        return sum(storage.size for storage in self._living())

    def addresses(self) -> dict[int, int]:
        """The bytes of each storage that is alive now, by what tells it from others as long as this ledger exists."""
        return {storage.ref.cdata: storage.size for storage in self._living()}

    @contextmanager
    def following(self) -> Iterator[Ledger]:
        """Follow what happens in the block, copies of whole storages (``copy.deepcopy``) included."""
        clone = torch.UntypedStorage.clone

        def cloned(storage: Any) -> Any:
            made = clone(storage)  # type: ignore[no-untyped-call]
            if known := self._storages.get(storage._cdata):
                self.mark(torch.empty(0, dtype=known.dtype).set_(made))
            return made

        torch.UntypedStorage.clone = cloned  # type: ignore[method-assign]
        try:
            with self:
                yield self
        finally:
            torch.UntypedStorage.clone = clone  # type: ignore[method-assign]

    def _known(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._storages

    def _living(self) -> Iterable[_Storage]:
        gone = [key for key, storage in self._storages.items() if storage.ref.expired()]  # type: ignore[no-untyped-call]
        for key in gone:
            del self._storages[key]
        return self._storages.values()


def _tensors(given: Iterable[Any]) -> Iterator[torch.Tensor]:
    for one in given:
        if isinstance(one, torch.Tensor):
            yield one
        elif isinstance(one, list | tuple):
            yield from _tensors(one)
