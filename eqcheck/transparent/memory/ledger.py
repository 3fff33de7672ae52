"""Every storage that holds keys or values while a decoder runs, and what its slots held, moment by moment, in bytes.

Shapes say nothing: a slice of twenty kilobytes keeps the two megabytes alive that it was cut from. So storages are
followed, not tensors. The writes of the models are marked, and so is whatever an operation makes of a marked tensor.

The least that a decoder needs while the target verifies is one entry for each committed token of each row that goes on,
in the target's cache and in the draft's, and one for each draft token that is being verified. All else is waste:

rejected   draft tokens of earlier rounds that were not accepted, and what fills up a block
pads       pads
finished   rows that have all their tokens
copies     entries that are held a second time
spare      slots that nothing was written to
unread     storages whose entries cannot be read
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from eqcheck.transparent.decoding.run import Run
from eqcheck.transparent.hashlm.hashing import HEADS, LAYERS, PLACES, WIDTH, WRITE, Bools, Ints, write_of
from eqcheck.transparent.hashlm.hashing import writes as writes_in
from eqcheck.transparent.hashlm.trace import DRAFT, TARGET, Call

KINDS = ("needed", "in flight", "rejected", "pads", "finished", "copies", "spare", "unread")
NEEDED, IN_FLIGHT, REJECTED, PADS, FINISHED, COPIES, SPARE, UNREAD = range(len(KINDS))
ENTRY = 8 * WIDTH  # bytes, in float64
TOKEN = ENTRY * 2 * HEADS * LAYERS  # of one token in all layers of one model
NEVER = 1 << 40


@dataclass
class _Storage:
    """A storage that holds keys or values; ``made`` and ``used`` are rounds."""

    ref: StorageWeakRef
    size: int
    dtype: torch.dtype
    made: int
    used: int

    def contents(self) -> Ints | None:
        """The identity of the write of each entry (`eqcheck.transparent.hashlm.hashing.writes`); None where the layout
        hides it.
        """
        storage = torch.UntypedStorage._new_with_weak_ptr(self.ref.cdata)
        if storage is None or self.size % (WIDTH * self.dtype.itemsize):
            return None
        numbers = torch.empty(0, dtype=self.dtype, device=storage.device).set_(storage).to("cpu", torch.float64)
        return writes_in(numbers.numpy().reshape(-1, WIDTH))


class HeldStorage(NamedTuple):
    """A storage at a moment: what its entries are, `eqcheck.transparent.hashlm.hashing.writes`, or None where they
    cannot be read.

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
    held: list[HeldStorage]


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
            held = [HeldStorage(s.size, s.made, now - 1 - s.used, s.contents()) for s in self._living()]
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

        with patch.object(torch.UntypedStorage, "clone", cloned), self:
            yield self

    def _known(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._storages

    def _living(self) -> Iterable[_Storage]:
        gone = [key for key, storage in self._storages.items() if storage.ref.expired()]  # type: ignore[no-untyped-call]
        for key in gone:
            del self._storages[key]
        return self._storages.values()


def _tensors(given: Iterable[Any]) -> Iterator[torch.Tensor]:
    for part in given:
        if isinstance(part, torch.Tensor):
            yield part
        elif isinstance(part, list | tuple):
            yield from _tensors(part)


@dataclass(frozen=True)
class Use:
    """The bytes that were held at a moment.

    ``bytes`` are by kind (`KINDS`), ``idle`` those of storages that nobody has touched for a round or more, likewise.
    ``rows`` are the requests that were going on, ``layout`` the bytes that they take where each gets as much room as
    the longest. ``finished`` are the bytes of each row that has ended, where they are kept for nothing: in a storage
    that nobody touches, or in one that was made after that and is handed to the target.
    """

    round: int
    bytes: Ints
    idle: Ints
    rows: frozenset[int]
    layout: int
    finished: dict[int, int]

    @property
    def held(self) -> int:
        return int(self.bytes.sum())

    @property
    def least(self) -> int:
        """The lower bound: what is needed, and what is being verified."""
        return int(self.bytes[NEEDED] + self.bytes[IN_FLIGHT])


class Writes:
    """All writes of a run: whose token each is, and in which call it was made; ``ends`` are calls by request."""

    def __init__(self, run: Run) -> None:
        self.begins: dict[int, int] = {}
        self.ends: dict[int, int] = {}
        for own in run.rounds.every:
            self.begins.setdefault(own.row, own.call.number)
            if own.answered + 1 >= len(run.truth.rows[own.row]):
                self.ends[own.row] = own.call.number  # some rows are fed again while they wait for others
        owners, pad = run.rounds.places, run.case.pad_token_id
        made = []
        for call in run.trace.calls:
            for row, digests in enumerate(call.digests.tolist()):
                for column, digest in enumerate(digests):
                    request, position = next(iter(owners.get(digest, {}).items()), (-1, -1))
                    is_pad = request < 0 and int(call.tokens[row, column]) == pad
                    made.append((write_of(call.number, row, column), request, position, call.number, is_pad))
        table = np.array(sorted(made), np.int64).reshape(-1, 5)
        self.keys, self.request, self.position, self.call, self.pad = table.T

    def find(self, entries: Ints) -> Ints:
        """The place of each entry's write among all, -1 where there is none."""
        keys = entries & WRITE
        at = np.searchsorted(self.keys, keys).clip(max=max(0, len(self.keys) - 1))
        return np.where((entries >= 0) & (self.keys[at] == keys), at, -1) if len(self.keys) else np.full(len(keys), -1)


def uses(run: Run, moments: Iterable[Moment]) -> list[Use]:
    """The use of memory at each moment of a run whose output is right."""
    writes, held, since = Writes(run), list[Use](), 0
    calls = {call.number: call for call in run.trace.calls}
    rounds: dict[int, int] = {}  # in which each row had ended
    for moment in moments:
        ended = np.array([writes.ends.get(r, NEVER) < moment.call for r in range(len(run.case.prompts))])
        for request in np.flatnonzero(ended).tolist():
            rounds.setdefault(request, moment.round - 1)
        keys = calls[moment.call].held[0][0, :, 0].reshape(-1, WIDTH)
        handed = writes.find(writes_in(keys.astype(np.float64)))
        requests = frozenset(writes.request[handed[handed >= 0]].tolist())
        held.append(_use(writes, moment, since, ended, {r: rounds[r] for r in requests if r in rounds}))
        since = moment.call
    return held


def _use(writes: Writes, moment: Moment, since: int, ended: Bools, handed: dict[int, int]) -> Use:
    """The use of memory at a moment; the rows ``handed`` to the target had ended in these rounds."""
    total, idle = np.zeros(len(KINDS), np.int64), np.zeros(len(KINDS), np.int64)
    finished: dict[int, int] = {}
    seen = np.zeros(0, np.int64)
    longest = {TARGET: 0, DRAFT: 0}
    for held in sorted(moment.held, key=lambda one: one.idle):  # what is in use counts as needed, the others as copies
        if held.entries is None:
            total[UNREAD] += held.size
            continue
        kinds, seen = _kinds(writes, held, since, ended, seen)
        counted = np.bincount(kinds, minlength=len(KINDS)) * (held.size // len(held.entries))
        total += counted
        at = writes.find(held.entries)
        if held.idle > 0:
            idle += counted
        of, counts = np.unique(writes.request[at[kinds == FINISHED]], return_counts=True)
        for request, count in zip(of.tolist(), counts.tolist(), strict=True):
            if held.idle > 0 or held.made > handed.get(request, NEVER):
                finished[request] = finished.get(request, 0) + count * ENTRY
        for model in longest:
            live = (kinds == NEEDED) & ((held.entries >> 56) // PLACES + 1 == model)
            longest[model] = max(longest[model], int(writes.position[at[live]].max(initial=-1)) + 1)
    rows = frozenset(r for r, call in writes.begins.items() if call <= moment.call and not ended[r])
    layout = TOKEN * len(rows) * sum(longest.values())
    return Use(moment.round, total, idle, rows, layout, finished)


def _kinds(writes: Writes, held: HeldStorage, since: int, ended: Bools, seen: Ints) -> tuple[Ints, Ints]:
    """The kind of each entry of a storage, and what was ``seen`` of tokens there and before."""
    assert held.entries is not None
    at = writes.find(held.entries)
    request = np.where(at >= 0, writes.request[at], -1)
    kinds = np.where(writes.call[at] > since, IN_FLIGHT, REJECTED)
    kinds = np.where(writes.pad[at] > 0, PADS, kinds)
    token = (at >= 0) & (request >= 0)
    kinds[token] = np.where(ended[request[token]], FINISHED, NEEDED)
    kinds[at < 0] = SPARE
    live = np.flatnonzero(kinds == NEEDED)
    # One number for a copy's storage, request and position.
    names = ((held.entries[live] >> 56) << 40) | (request[live] << 24) | writes.position[at[live]]
    first = np.zeros(len(live), np.bool_)
    first[np.unique(names, return_index=True)[1]] = True
    kinds[live[~first | np.isin(names, seen)]] = COPIES
    return kinds, np.concatenate([seen, np.unique(names)])
