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

import gc
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from eqcheck.contract.decoders import Generate, Request
from eqcheck.contract.requirements import barred, least_prompt, without_ids
from eqcheck.core.case.record import Case
from eqcheck.core.explanation.notice import Notice
from eqcheck.core.result.outcome import Outcome
from eqcheck.transparent.decoding import Run, run, truth_of
from eqcheck.transparent.hashlm.hashing import HEADS, LAYERS, PLACES, WIDTH, WRITE, Bools, Ints, write_of
from eqcheck.transparent.hashlm.hashing import writes as writes_in
from eqcheck.transparent.hashlm.trace import DRAFT, TARGET, Call
from eqcheck.transparent.oracle import judge

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


# The case on which a decoder's memory is measured, and what is said of it: figures, and warnings of leaks.
#
# One case of three rows that draft, accept and reject for a dozen rounds; the first row ends early. It is decoded
# twice by one instance of the decoder, so that what is kept after a request shows.
#
# Bytes beyond the least may be a decoder's way: a padded batch, a block of slots allocated beforehand. A leak is what
# a longer answer makes worse. So growth counts against what a padded batch of the same rows takes, and what is spare
# does not count, unless it is several times what is needed.

NEW, K, VOCABULARY = 40, 3, 128
PROMPTS = (6, 9, 13)
ENDS = (8, 16)  # new tokens after which the first row meets its EOS
REJECTS = (0, 1, 3, 2, 0, 2, 1, 3, 0, 1)  # accepted draft tokens, round by round; each row begins elsewhere


@lru_cache(maxsize=8)
def probe_case(family: str, padding_side: str, requires: tuple[str, ...] = ()) -> Case:
    """The case for decoders of this claim.

    >>> case = probe_case("rotary", "left")
    >>> [len(row) < case.max_new_tokens for row in truth_of(case).rows]
    [True, False, False]
    """
    lengths: Sequence[int] = PROMPTS[1:2] * 3 if "equal-lengths" in requires else PROMPTS
    lengths = lengths[:1] if "batch-1" in requires else lengths
    lengths = [max(length, least_prompt(requires)) for length in lengths]
    accepts = tuple(REJECTS[row * 3 :] + REJECTS * 4 for row in range(len(lengths)))
    for seed in range(100):
        noise = np.random.default_rng(seed)
        case = Case(
            prompts=tuple(
                without_ids(
                    [tuple(noise.integers(0, VOCABULARY, n).tolist()) for n in lengths], barred(requires), VOCABULARY
                )
            ),
            max_new_tokens=NEW,
            num_draft_tokens=K,
            accepts=accepts,
            pad_token_id=VOCABULARY,  # no token of a row is taken for a pad
            padding_side=padding_side,  # type: ignore[arg-type]
            family=family,
            vocab_size=VOCABULARY,
            seed=seed,
        )
        if "no-eos" in requires:
            return case
        first, *others = truth_of(case).rows
        taken = {token for row in (*others, *case.prompts, first[: ENDS[0]]) for token in row}
        if ends := [token for token in first[slice(*ENDS)] if token not in taken]:
            return Case.from_dict({**case.to_dict(), "eos_token_ids": [ends[0]]})
    raise AssertionError("no seed of a hundred has a row that ends early")


def watched(generate: Generate, case: Case, timeout: float | None = None) -> tuple[Run, Ledger]:
    """A decode of a case, and the ledger of its storages."""
    ledger = Ledger()

    def following(target: Any, draft: Any, request: Request) -> Any:
        target.trace.watcher = ledger
        with ledger.following():
            return generate(target, draft, request)

    return run(following, case, timeout), ledger


def try_memory(generate: Generate, case: Case, timeout: float | None, *, opinion: bool = False) -> Outcome:
    """Decode a case twice and measure; ``observed`` has the figures, and is empty where the output is not right."""
    start = time.monotonic()
    done, first = watched(generate, case, timeout)
    verdict = judge(done)
    observed: dict[str, Any] = {}
    if verdict and not done.declined and done.outputs is not None:
        left = [_left(first)]
        again, second = watched(generate, case, timeout)
        left.append(_left(first, second))
        if again.outputs == done.outputs:
            seen = uses(done, first.moments)
            observed = {**figures(seen, first.peak, left), "warnings": leaks(seen, left)}
    return Outcome(case, verdict.status, declined=done.declined, observed=observed, seconds=time.monotonic() - start)


def figures(seen: Sequence[Use], peak: int, left: Sequence[int]) -> dict[str, Any]:
    """The figures of a report, in bytes, and as times the least that is needed.

    ``peak_bytes`` are the most at any instant, ``waste`` the median over the rounds of what is held over the least,
    ``waste_at_peak`` the same in the round that held most, ``split`` the shares of what it held.
    """
    full = [use for use in seen if use.least]
    if not full:
        return {"peak_bytes": peak, "after_return_bytes": left[-1]}
    most = max(full, key=lambda use: (use.held, use.least))
    shares = {kind: round(int(size) / most.held, 4) for kind, size in zip(KINDS, most.bytes, strict=True) if size}
    return {
        "peak_bytes": peak,
        "least_bytes": most.least,
        "waste": round(statistics.median(use.held / use.least for use in full), 3),
        "waste_at_peak": round(most.held / most.least, 3),
        "split": shares,
        "after_return_bytes": left[-1],
    }


def _left(*ledgers: Ledger) -> int:
    """Bytes of these ledgers' storages that are alive; what only waits for the collector does not count."""
    if any(ledger.alive() for ledger in ledgers):
        gc.collect()
    alive: dict[int, int] = {}
    for ledger in ledgers:
        alive |= ledger.addresses()
    return sum(alive.values())


FEWEST = 6  # rounds with the same rows, or growth is not judged
SLOPE = 0.4  # tokens a round, for each row: a draft of three tokens loses more than that where it is kept
RISE = 4.0  # tokens in all
AMPLE = 4.0  # times what is needed: so much may be allocated beforehand
LINGERS = 3  # rounds


def leaks(uses: Sequence[Use], left: Sequence[int]) -> list[Notice]:
    """Warnings about one decode; ``left`` are the bytes still alive after each of several equal decodes."""
    warnings = list(_growth(uses))
    if not any(warning.kind == "memory/storage-kept" for warning in warnings):  # which explains what it holds of them
        warnings += _finished(uses)
    if len(left) > 1 and left[-1] - left[0] >= TOKEN:
        more = f"{_tokens(left[-1] - left[0])} more than after the first"
        said = f"when {len(left)} equal requests were answered, {more} were alive"
        warnings.append(Notice(said, "memory/kept-after-return"))
    return warnings


def _growth(uses: Sequence[Use]) -> Iterator[Notice]:
    steady = max((list(some) for _, some in groupby(uses, lambda use: use.rows)), key=len, default=[])
    if len(steady) < FEWEST or not steady[0].rows:
        return
    rows = len(steady[0].rows)
    beyond = _slope([use.held - use.bytes[SPARE] - use.layout for use in steady])
    slopes = {kind: _slope([use.bytes[kind] for use in steady]) for kind in (REJECTED, PADS, COPIES, UNREAD)}
    culprit = max(slopes, key=lambda kind: slopes[kind])
    grown = slopes[culprit] * (len(steady) - 1)
    # A second copy of everything may be a decoder's way; one more with every round is not.
    least = 2 * _slope([use.bytes[NEEDED] for use in steady]) if culprit == COPIES else 0.0
    # In slots allocated beforehand, what is rejected only takes the place of what was spare.
    total = _slope([use.held - use.layout for use in steady])
    if min(beyond, slopes[culprit], total) >= max(SLOPE * rows, least) and grown >= RISE:
        idle = _slope([use.idle[culprit] for use in steady])
        name = "storage-kept" if culprit == COPIES and idle > 0 else _GROWS[culprit]
        said = f"{_WORDS[culprit]} grow by {slopes[culprit]:.1f} tokens a round, with {rows} rows"
        yield Notice(said, f"memory/{name}")
    spare = [use.bytes[SPARE] / max(use.least, 1) for use in steady]
    if spare[-1] > AMPLE and spare[-1] > 1.2 * spare[0]:
        yield Notice(f"spare slots grow to {spare[-1]:.1f} times what is needed", "memory/growth")


_GROWS = {REJECTED: "rejected-kept", PADS: "growth", COPIES: "growth", UNREAD: "growth"}
_WORDS = {
    REJECTED: "rejected draft tokens that stay in memory",
    PADS: "pads",
    COPIES: "second copies of entries",
    UNREAD: "storages whose entries cannot be read",
}


def _finished(uses: Sequence[Use]) -> list[Notice]:
    """Rows that ended and whose entries linger."""
    lingering: dict[int, list[int]] = {}
    for use in uses:
        for row, size in use.finished.items():
            lingering.setdefault(row, []).append(size)
    kept = {row: sizes for row, sizes in lingering.items() if len(sizes) >= LINGERS and sizes[-1] >= 2 * TOKEN}
    if not kept:
        return []
    row = max(kept, key=lambda one: len(kept[one]))
    lasted = f"{_tokens(kept[row][-1])} of row {row}, {len(kept[row])} rounds after it ended"
    return [Notice(f"entries of rows that ended are kept: {lasted}", "memory/finished-row-kept")]


def _slope(sizes: Sequence[npt.ArrayLike]) -> float:
    """Return how many tokens these bytes grow by in a step, by least squares."""
    values = np.asarray(sizes, np.float64) / TOKEN
    return float(np.polyfit(np.arange(len(values)), values, 1)[0])


def _tokens(size: int) -> str:
    """Bytes as the tokens of one model that they are good for, in which layers and heads differ less."""
    return f"entries of {size / TOKEN:.0f} tokens ({size:,} bytes)"
