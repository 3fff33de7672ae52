"""The declarations of a decoder, held against its calls: chunks, late rows, and the caches that were handed over.

They are checked only where every row is right, so a fault of the output keeps its own cause. A query counts only if it
saw exactly its row: its digest is then the truth's, which names the token and all before it, whatever the decoder does
with rows. The tokens that such a query saw written in its own call were fed together. Where prompts begin alike, a
token that could belong to several rows is held against the row to which it does the least harm.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from eqcheck.core.explanation.records import Explanation
from eqcheck.core.explanation.statements import Statement, state
from eqcheck.transparent.attribution.writes import places_of
from eqcheck.transparent.decoding import Run
from eqcheck.transparent.hashlm.hashing import CALL, COLUMN, MODEL, ROW
from eqcheck.transparent.hashlm.trace import TARGET, Call

Place = tuple[int, int]  # a request and a logical position; or a row and a column of a call


@dataclass(frozen=True)
class Fed:
    """Tokens of one row that were fed together: the ``requests`` that may own them, and their ``positions`` there.

    ``call_row`` is the batch row that fed the first. ``alike``: they are all the pad id, so they may be pads.
    """

    call_row: int
    requests: frozenset[int]
    positions: tuple[int, ...]
    alike: bool


def ignored(run: Run) -> Explanation | None:
    """An explanation of the part of the case's cache state that was ignored; None if the decoder heeded all of it."""
    if not run.trace.made(TARGET):
        return None
    found = {"chunked": _chunks, "late-rows": _arrivals, "prefix": _prefix, "preallocated": _preallocated}
    check = found.get(run.case.cache_state)
    return check(run) if check else None


def _seen(run: Run, row: int | None, statement: Statement) -> Explanation:
    return Explanation("options", "ignored-option", row=row, subject=run.case.cache_state, **statement._asdict())


def _chunks(run: Run) -> Explanation | None:
    case, most = run.case, run.case.prefill_chunk
    assert most is not None
    reader = _Reader(run)
    for call in run.trace.made(TARGET):
        for fed in reader.fed(call):
            row = min(fed.requests, key=lambda request: len(case.prompts[request]))
            positions = [at for at in fed.positions if at < len(case.prompts[row])]
            if len(positions) > most:
                span = {"first_position": positions[0], "last_position": positions[-1]}
                place = {"call": call.number, "row": row, "batch_row": fed.call_row, **span}
                return _seen(run, row, state("chunk", tokens=len(positions), limit=most, **place))
    return None


def _arrivals(run: Run) -> Explanation | None:
    case, reader = run.case, _Reader(run)
    calls = run.trace.made(TARGET)
    ends = _ends(run, calls)
    for done, call in enumerate(calls):
        # Arrivals are counted in target calls, the only clock that every decoder has.
        here = {row for row, arrival in enumerate(case.arrivals) if arrival <= done}
        if not any(ends[row] >= done for row in here):
            return None  # with nobody left to wait for, all may have joined
        for fed in reader.fed(call):
            if fed.alike or fed.requests & here:
                continue
            row = min(fed.requests, key=lambda request: case.arrivals[request])
            others = " ".join(str(other) for other in sorted(here) if ends[other] >= done)
            place = {"call": call.number, "row": row, "batch_row": fed.call_row, "first_position": fed.positions[0]}
            return _seen(run, row, state("arrival", calls=done, limit=case.arrivals[row], waiting=others, **place))
    return None


def _ends(run: Run, calls: list[Call]) -> list[int]:
    """Return per row the first call (from 0) that predicted its last token; -1 if none did."""
    last = [
        int(digests[-1, len(prompt) + len(row) - 2])
        for prompt, row, digests in zip(run.case.prompts, run.truth.rows, run.truth.digests, strict=True)
    ]
    ends = [-1] * len(last)
    for number, call in reversed(list(enumerate(calls))):
        answered = set(call.digests.ravel().tolist())
        ends = [number if digest in answered else end for digest, end in zip(last, ends, strict=True)]
    return ends


def _prefix(run: Run) -> Explanation | None:
    length, reader = run.case.prefix_length, _Reader(run)
    for call in run.trace.made(TARGET):
        for fed in reader.fed(call):
            again = [at for at in fed.positions if at < length]
            if again and not fed.alike:
                row = min(fed.requests)
                name = "prefix-fed" if len(again) == 1 else "prefix-fed-many"
                span = {"first_position": again[0], "last_position": again[-1]}
                place = {"call": call.number, "row": row, "batch_row": fed.call_row, **span}
                return _seen(run, row, state(name, length=length, **place))
    return None


def _preallocated(run: Run) -> Explanation | None:
    uses, calls = run.trace.handed, run.trace.made(TARGET)
    if uses is None or uses.written:
        return None
    slots = calls[0].visible.shape[2]
    facts = {"calls": len(calls), "call": calls[0].number, "slots": slots, "capacity": uses.capacity}
    return _seen(run, None, state("unwritten", **facts))


class _Reader:
    """Reads which tokens each call of a run fed together."""

    def __init__(self, run: Run) -> None:
        self.run = run
        prompts, uncut = run.case.prompts, run.truth.uncut
        self._texts = [prompt + row for prompt, row in zip(prompts, uncut, strict=True)]
        self._places = places_of(run.truth.digests)

    def fed(self, call: Call) -> Iterator[Fed]:
        """The tokens that right queries of a call stand for, gathered by row."""
        # Only right queries are read. Which requests share a call is told by entries that were seen, and not by
        # the batch row, because engines pack several requests into one row.
        right: dict[Place, int] = {}  # row and column of a right query, and its position
        can_be: dict[Place, frozenset[int]] = {}
        for row, digests in enumerate(call.digests.tolist()):
            for column, digest in enumerate(digests):
                if places := self._places.get(digest):
                    # Where a window hides what differs, one digest has several places: the last does the least harm.
                    right[row, column] = max(position for _, position in places)
                    can_be[row, column] = frozenset(other for place in places for other in self._like(*place))
        for together in _joined(list(right), self._links(call, right)):
            requests = frozenset.intersection(*(can_be[one] for one in together))
            tokens = {int(call.tokens[one]) for one in together}
            if requests:
                positions = sorted({right[one] for one in together})  # a pad can look like the row's first token
                first = min(together, key=lambda one: right[one])
                yield Fed(first[0], requests, tuple(positions), tokens == {self.run.case.pad_token_id})

    def _like(self, request: int, position: int) -> Iterator[int]:
        """The requests that may own the text up to a position; behind a shorter prompt the rest of it may be drafts."""
        text = self._texts[request][: position + 1]
        for other, prompt in enumerate(self.run.case.prompts):
            shared = min(len(prompt), len(text))
            if prompt[:shared] == text[:shared]:
                yield other

    def _links(self, call: Call, right: dict[Place, int]) -> Iterator[tuple[Place, Place]]:
        """Each right query with each right one of the same call whose entry it saw."""
        fields = call.kv[0][0, :, 0]
        own = (fields[..., CALL] == call.number) & (fields[..., MODEL] == TARGET)
        for row, column in right:
            for slot in (call.visible[row, column] & own[row]).nonzero()[0]:
                writer = int(fields[row, slot, ROW]), int(fields[row, slot, COLUMN])
                if writer in right:
                    yield (row, column), writer


def _joined(items: list[Place], links: Iterator[tuple[Place, Place]]) -> list[list[Place]]:
    """The connected components of ``items``."""
    root = {item: item for item in items}

    def find(item: Place) -> Place:
        while root[item] != item:
            root[item] = item = root[root[item]]
        return item

    for one, other in links:
        root[find(one)] = find(other)
    groups: dict[Place, list[Place]] = defaultdict(list)
    for item in items:
        groups[find(item)].append(item)
    return list(groups.values())
