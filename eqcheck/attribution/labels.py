"""The request, and its token, that each column of each target call stands for.

There are two sources, in this order. A query that saw exactly its row has the digest of its truth, which names request
and position beyond doubt, whatever the decoder does with rows, also where it packs several requests into one. A row of
a call in which no query is right is aligned: the request and start that best explain the entries it holds, by their
writers, and the tokens fed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from math import inf

import numpy as np

from eqcheck.attribution.alignment import align
from eqcheck.attribution.branches import grows_trees
from eqcheck.attribution.columns import Columns
from eqcheck.attribution.packing import beginnings, begins_anew, packs, segments
from eqcheck.attribution.record import Label, Record, Sequences, Write, overwritten, self_hidden, writes
from eqcheck.decoding.run import Run
from eqcheck.hashlm.trace import DRAFT, Call, Trace


class Labels(Record):
    """The labels of a trace, call by call."""

    def __init__(
        self,
        trace: Trace,
        requests: list[Sequences],
        pad: int,
        padding_side: str,
        drafted: bool = False,
        branches: bool = False,
        most: float = inf,
        unused: frozenset[Write] = frozenset(),
    ) -> None:
        super().__init__(requests, pad, padding_side, drafted, branches)
        self._unused = unused
        self.most = most  # draft tokens of a round
        for call in trace.calls:
            self.add(call, given=call.number <= trace.given)

    def add(self, call: Call, given: bool = False) -> None:
        """Label the next call; ``given`` when it was made before the decoder began."""
        if call.role != self.role:
            self._proposed.append((call.number, set(call.predictions[call.tells].tolist())))
            return
        self.calls[call.number] = call
        self.committed.update(self._begun)
        taken: set[int] = set()
        for row in range(len(call.tokens)):
            found = self._label_row(call, row, taken)
            taken.update(found)
            self.packed |= self._apart(found - {-1})
            for request in found - {-1} if not given else ():
                if call.number not in self.rounds[request][-1:]:
                    self.rounds[request].append(call.number)

    def _label_row(self, call: Call, row: int, taken: set[int]) -> set[int]:
        """Label the columns of a row, and return the requests that the row holds."""
        columns = range(call.tokens.shape[1])
        lost = [gone or (call.number, row, at) in self._unused for at, gone in enumerate(overwritten(call, row))]
        places = [[] if gone else self.places.get(int(d), []) for d, gone in zip(call.digests[row], lost, strict=True)]
        begun = beginnings(self, call, row)
        packed = self.packed or begins_anew(self, call, row, begun)
        cut = segments(self, call, row, places, begun) if packed else []
        if len(cut) > 1:
            held = {self._label_segment(call, row, columns, places, begun.get(columns[0])) for columns in cut}
            self.packed |= len(held - {-1}) > 1
            return held
        if not any(place for column, place in enumerate(places) if column >= self._pads(call, row)):
            aligned = align(self, call, row, taken)
            fills = self._fills_batch(call, row, aligned)
            if aligned is None or fills or self._past_end(call, row, aligned[0]):
                last = max((calls[-1] for calls in self.rounds.values() if calls), default=0)
                proposed = {token for number, tokens in self._proposed if number > last for token in tokens}
                for column in columns:
                    pad = self.is_pad(call, row, column, proposed)
                    filler = fills and int(call.tokens[row, column]) not in proposed
                    what = "pad" if pad else "filler" if filler else "unknown"
                    self.of[call.number, row, column] = Label(-1, -1, what)
                return set()
            request, first, start = aligned
            exact = {c: p for c in columns for r, p in places[c] if r == request and p == start + c}
            self._label_columns(call, row, columns, request, first, start, exact)
            return {request}
        requests: set[int] = set()
        begin = 0
        while begin < len(columns):
            request = self._request_of(call, row, columns[begin:], places, taken)
            own = next(c for c in columns[begin:] if any(r == request for r, _ in places[c]))
            others = self._others(call, row, columns[begin:], places, request)
            if others and others[0] < own:
                request = self._request_of(call, row, columns[others[0] : others[0] + 1], places, taken)
                others = self._others(call, row, columns[begin:], places, request)
            end = others[0] if others else len(columns)
            exact = {c: p for c in columns[begin:end] for r, p in places[c] if r == request}
            first = min(exact)
            self._label_columns(call, row, columns[begin:end], request, first, exact[first] - first, exact)
            requests.add(request)
            begin = end
        return requests

    def _fills_batch(self, call: Call, row: int, aligned: tuple[int, int, int] | None) -> bool:
        """Return whether a row is one of a batch that holds nothing of a request, and is fed what is no text of any:
        one id in all of several columns, or ids that no request has.

        The request that it would be ``aligned`` with may have that id in its output, which no row is fed before the
        prompt.
        """
        if len(call.tokens) < 2 or self.held(call, row):
            return False
        fed = set(call.tokens[row].tolist())
        if aligned is not None:
            return self._ahead(*aligned, fed)
        known = set[int]().union(*(whole for request in self.requests for whole in request.wholes))
        return known.isdisjoint(fed) or (len(fed) == 1 and call.tokens.shape[1] > 1)

    def _ahead(self, request: int, first: int, start: int, fed: Set[int]) -> bool:
        """Return whether a column is taken for a token of an output that is not due: the one before was never fed, and
        the token that is due is not among those ``fed``.
        """
        position, due, known = start + first, self.reached.get(request, -1) + 1, self.requests[request]
        if position < len(known.prompt) or position <= due:
            return False
        return fed.isdisjoint(whole[due] for whole in known.wholes if due < len(whole))

    def _past_end(self, call: Call, row: int, request: int) -> bool:
        """Return whether a row is taken for another request, by equal ids, while its own has ended and stays in the
        batch.

        Its own is the one whose entries alone it holds, by their writes. The other has ended, too, or another row of
        the call stands for it.
        """
        held = [label for label in self.held(call, row) if label.what == "token"]
        owners = {label.request for label in held}
        if len(owners) != 1 or request in owners:
            return False
        last = [len(one.prompt) + one.needed - 2 for one in self.requests]  # where the last token is asked for
        if max(label.position for label in held) < last[owners.pop()]:
            return False
        if self.reached.get(request, -1) >= last[request]:
            return True
        others = np.delete(call.digests, row, 0).ravel().tolist()
        return any(request == other for digest in others for other, _ in self.places.get(digest, ()))

    def _label_segment(
        self, call: Call, row: int, columns: range, places: list[list[tuple[int, int]]], begun: int | None
    ) -> int:
        """Label the columns of a request in a row that holds several: the request, ``begun`` if that is known."""
        exact = [(column, *place) for column in columns for place in places[column]]
        if begun is not None or exact:
            counts = Counter(request for _, request, _ in exact)
            request = max(counts, key=lambda r: counts[r]) if begun is None else begun
            known = {column: position for column, r, position in exact if r == request}
            first = min(known, default=columns[0])
            told = int(call.positions[row, first])
            if begun is not None and not self.is_at(request, told, int(call.tokens[row, first])):
                told = 0  # it begins by its text
            start = known.get(first, told) - first
        else:
            slots = writes(call, row)
            seen = (slots[slot] for slot in np.flatnonzero(call.visible[row, list(columns)].any(axis=0)))
            votes = Counter(self.of[w].request for w in seen if w in self.of and self.of[w].what == "token")
            aligned = align(self, call, row, set(), columns, list(votes) or None)
            fed = {int(call.tokens[row, column]) for column in columns}
            ahead = aligned is not None and not votes and self._ahead(*aligned, fed)
            if aligned is None or ahead:
                hidden = self_hidden(call, row)
                for column in columns:
                    fills = not votes and (ahead or hidden[column])
                    self.of[call.number, row, column] = Label(-1, -1, "filler" if fills else "unknown")
                return -1
            (request, first, start), known = aligned, {}
        self._label_columns(call, row, columns, request, first, start, known)
        return request

    def _others(
        self, call: Call, row: int, columns: range, places: list[list[tuple[int, int]]], request: int
    ) -> list[int]:
        """The columns that belong to another request beyond doubt. A pad that sees itself alone is like the first token
        of a prompt that begins with the pad id."""
        foreign = []
        for column in columns:
            theirs = places[column]
            if not theirs or any(r == request for r, _ in theirs) or column < self._pads(call, row):
                continue
            pad = int(call.tokens[row, column]) == self.pad and not any(position for _, position in theirs)
            if not pad or self._goes_on(call, row, column, places):
                foreign.append(column)
        return foreign

    def _apart(self, those: set[int]) -> bool:
        """Return whether one of the requests found in a row does not begin as another:
        else it may be a branch of its tree.
        """
        pairs = [(self.requests[one].prompt, self.requests[other].wholes) for one in those for other in those - {one}]
        return any(all(whole[: len(prompt)] != prompt for whole in wholes) for prompt, wholes in pairs)

    def _goes_on(self, call: Call, row: int, column: int, places: list[list[tuple[int, int]]]) -> bool:
        """Return whether what a pad may be taken for goes on, in the columns behind it, with a token that is no pad."""
        for request, position in places[column]:
            at = 1
            while column + at < len(places) and (request, position + at) in places[column + at]:
                if int(call.tokens[row, column + at]) != self.pad:
                    return True
                at += 1
        return False

    def _label_columns(
        self,
        call: Call,
        row: int,
        columns: range,
        request: int,
        first: int,
        start: int,
        exact: dict[int, int],
    ) -> None:
        """Label columns that belong to one request: ``first`` is the first real one, column c feeds ``start + c``."""
        proposed = self.proposed(request, call.number)
        labels = Columns(self, call, row, columns, request, first, start, exact, proposed, self.most).labels()
        self.of.update({(call.number, row, column): label for column, label in labels.items()})
        tokens = (label.position for label in labels.values() if label.what == "token")
        self.reached[request] = max(self.reached.get(request, -1), max(tokens, default=-1))
        # A draft is fed behind a token of the row, so the first one of a call is none.
        begins = max(labels[first].position, min(self.reached[request], len(self.requests[request].prompt) - 1))
        self._begun[request] = max(self._begun.get(request, -1), begins)

    def unused_beginnings(self) -> frozenset[Write]:
        """Queries behind others of a row that are taken for a request's beginning, and that no later query sees.

        A column that fills up a row and sees only itself has by chance the context of a prompt of one equal id. The
        request begins elsewhere; where it begins nowhere else, it may have begun here.
        """
        starts = [write for write, label in self.of.items() if label.exact and not label.position]
        begun = {self.of[write].request for write in starts if not self._behind_another(write)}
        ahead = {write for write in starts if self._behind_another(write) and self.of[write].request in begun}
        seen = {
            write
            for call in (self.calls.values() if ahead else ())
            for row in range(len(call.tokens))
            for slot, write in enumerate(writes(call, row))
            if write in ahead and call.visible[row, :, slot].sum() > (call.number == write[0])
        }
        return frozenset(ahead - seen)

    def _behind_another(self, write: Write) -> bool:
        number, row, column = write
        before = self.labels(self.calls[number], row)[:column]
        return any(label.request != self.of[write].request and label.what != "pad" for label in before)

    def draws_drafts(self) -> bool:
        """Return whether a decoder feeds draft tokens that are not its draft's first choice: drawn ones, or second
        best.

        Most ids behind its rows are then no proposal that is known, and see themselves as drafts do. Some are the
        first choice of another query, by chance.
        """
        if not self.drafted or self.branches:
            return False
        shown = [w for w, one in self.of.items() if one.what == "filler" and one.request >= 0]
        shown = [w for w in shown if self.of[w].position >= len(self.requests[self.of[w].request].prompt)]
        shown = [w for w in shown if not self_hidden(self.calls[w[0]], w[1])[w[2]]]
        return len(shown) > sum(label.what == "draft" for label in self.of.values())

    def standing_twice(self, row: int) -> set[tuple[int, int]]:
        """The calls and batch rows that stand for another request as a second one does, where none stands for ``row``.

        A row that was given another's entries in place of all its own cannot be told by the entries that it sees.
        Batch rows are taken to be in the order of the requests.
        """
        doubles = set()
        for number, call in self.calls.items():
            rows: dict[int, list[int]] = {}
            for batch_row in range(len(call.tokens)):
                for request in {label.request for label in self.labels(call, batch_row) if label.exact}:
                    rows.setdefault(request, []).append(batch_row)
            if row not in rows and len(rows) == len(call.tokens) - 1:
                both = [(request, pair) for request, pair in rows.items() if len(pair) == 2]
                doubles |= {(number, max(pair) if row > request else min(pair)) for request, pair in both}
        return doubles

    def _request_of(
        self, call: Call, row: int, columns: range, places: list[list[tuple[int, int]]], taken: set[int]
    ) -> int:
        """The request that most of these columns are right for; of several the one that the row goes on with, or whose
        writes it holds, or else its own index."""
        held = [label.request for label in self.held(call, row) if label.what == "token"]
        found = [(request, position - column) for column in columns for request, position in places[column]]
        starts = dict(reversed(found))
        counts = Counter(request for request, _ in found)

        def rank(request: int) -> tuple[int, int, bool, int, bool, int]:
            behind = range(columns[0], call.tokens.shape[1]) if len(counts) > 1 else ()
            fed = sum(self.is_at(request, starts[request] + c, int(call.tokens[row, c])) for c in behind)
            return counts[request], fed, request not in taken, held.count(request), request == row, -request

        return max(counts, key=rank)

    def _pads(self, call: Call, row: int) -> int:
        """Return how many leading columns feed the pad id where the call has no cached entries.

        A pad that is seen by mistake can have a right context: that of a prompt which begins with the same token.
        """
        tokens = call.tokens[row].tolist()
        if len(tokens) < call.kv[0].shape[3] or not self.left:
            return 0
        return next((column for column, token in enumerate(tokens) if token != self.pad), len(tokens))


def labels_of(run: Run, trace: Trace) -> Labels:
    """Labels of a trace, for the rows of a run."""
    case, truth = run.case, run.truth
    outputs = truth.rows if run.outputs is None else run.outputs
    rows = zip(case.prompts, truth.uncut, outputs, truth.digests, map(len, truth.rows), strict=True)
    drafted = bool(run.trace.made(DRAFT))  # else drafts are looked up, and nobody knows which fed tokens are any
    known = [Sequences(*row) for row in rows]
    most = inf if case.num_draft_tokens is None else case.num_draft_tokens
    branches = bool(case.tree) or (grows_trees(run) and not packs(run))
    about = (trace, known, case.pad_token_id, case.padding_side)
    labels = Labels(*about, drafted, branches, most)
    unused = labels.unused_beginnings()
    if unused:
        labels = Labels(*about, drafted, branches, most, unused)
    return Labels(*about, False, branches, most, unused) if labels.draws_drafts() else labels
