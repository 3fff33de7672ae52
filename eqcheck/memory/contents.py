"""What the slots of a decoder's storages held, moment by moment, in bytes.

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

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from eqcheck.decoding.run import Run
from eqcheck.hashlm.hashing import HEADS, LAYERS, PLACES, WIDTH, WRITE, Bools, Ints, write_of
from eqcheck.hashlm.hashing import writes as writes_in
from eqcheck.hashlm.trace import DRAFT, TARGET
from eqcheck.memory.ledger import Held, Moment

KINDS = ("needed", "in flight", "rejected", "pads", "finished", "copies", "spare", "unread")
NEEDED, IN_FLIGHT, REJECTED, PADS, FINISHED, COPIES, SPARE, UNREAD = range(len(KINDS))
ENTRY = 8 * WIDTH  # bytes, in float64
TOKEN = ENTRY * 2 * HEADS * LAYERS  # of one token in all layers of one model
NEVER = 1 << 40


@dataclass(frozen=True)
class Use:
    """What was held at a moment.

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
        found = []
        for call in run.trace.calls:
            for row, digests in enumerate(call.digests.tolist()):
                for column, digest in enumerate(digests):
                    request, position = next(iter(owners.get(digest, {}).items()), (-1, -1))
                    is_pad = request < 0 and int(call.tokens[row, column]) == pad
                    found.append((write_of(call.number, row, column), request, position, call.number, is_pad))
        table = np.array(sorted(found), np.int64).reshape(-1, 5)
        self.keys, self.request, self.position, self.call, self.pad = table.T

    def find(self, entries: Ints) -> Ints:
        """The place of each entry's write among all, -1 where there is none."""
        keys = entries & WRITE
        at = np.searchsorted(self.keys, keys).clip(max=max(0, len(self.keys) - 1))
        return np.where((entries >= 0) & (self.keys[at] == keys), at, -1) if len(self.keys) else np.full(len(keys), -1)


def uses(run: Run, moments: Iterable[Moment]) -> list[Use]:
    """What was held at each moment of a run whose output is right."""
    writes, found, since = Writes(run), [], 0
    calls = {call.number: call for call in run.trace.calls}
    rounds: dict[int, int] = {}  # in which each row had ended
    for moment in moments:
        ended = np.array([writes.ends.get(r, NEVER) < moment.call for r in range(len(run.case.prompts))])
        for request in np.flatnonzero(ended).tolist():
            rounds.setdefault(request, moment.round - 1)
        keys = calls[moment.call].held[0][0, :, 0].reshape(-1, WIDTH)
        handed = writes.find(writes_in(keys.astype(np.float64)))
        requests = frozenset(writes.request[handed[handed >= 0]].tolist())
        found.append(_use(writes, moment, since, ended, {r: rounds[r] for r in requests if r in rounds}))
        since = moment.call
    return found


def _use(writes: Writes, moment: Moment, since: int, ended: Bools, handed: dict[int, int]) -> Use:
    """What was held at a moment; the rows ``handed`` to the target had ended in these rounds."""
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


def _kinds(writes: Writes, held: Held, since: int, ended: Bools, seen: Ints) -> tuple[Ints, Ints]:
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
    # One number for which copy of which token of which request it is.
    names = ((held.entries[live] >> 56) << 40) | (request[live] << 24) | writes.position[at[live]]
    first = np.zeros(len(live), np.bool_)
    first[np.unique(names, return_index=True)[1]] = True
    kinds[live[~first | np.isin(names, seen)]] = COPIES
    return kinds, np.concatenate([seen, np.unique(names)])
