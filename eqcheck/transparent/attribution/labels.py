"""The request, and its token, that each column of each target call stands for.

There are two sources, in this order. A query that saw exactly its row has the digest of its truth, which names request
and position beyond doubt, whatever the decoder does with rows, also where it packs several requests into one. A row of
a call in which no query is right is aligned: the request and start that best explain the entries it holds, by their
writers, and the tokens fed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from math import inf
from typing import NamedTuple

import numpy as np

from eqcheck.core.result.outcome import common_start
from eqcheck.transparent.attribution.branches import Block, grows_trees
from eqcheck.transparent.attribution.writes import Label, Record, Sequences, Write, overwritten, self_hidden, writes
from eqcheck.transparent.decoding import Run
from eqcheck.transparent.hashlm.hashing import MODEL
from eqcheck.transparent.hashlm.trace import DRAFT, TARGET, Call, Trace

# Rows of a call that hold several requests, as engines without padding have them: cut, and told apart by the mask.

_CHANCE = 2  # tokens of a prompt that drafts may equal by chance
Places = Sequence[Sequence[tuple[int, int]]]


def packs(run: Run) -> bool:
    """Return whether a row of a target call feeds the prompts of two requests, each from position 0 on."""
    prompts, pad = run.case.prompts, run.case.pad_token_id
    for call in run.trace.made(TARGET) if len(prompts) > 1 else ():
        for tokens, positions in zip(call.tokens.tolist(), call.positions.tolist(), strict=True):
            starts = [column for column, position in enumerate(positions) if not position]
            if len(starts) > 1 and sum(any(_opens(tokens, positions, c, p, pad) for p in prompts) for c in starts) > 1:
                return True
    return False


def _begins(tokens: Sequence[int], column: int, text: Sequence[int]) -> bool:
    """Return whether the text is fed from this column on.

    >>> _begins([3, 1, 4], 1, (1, 4)), _begins([3, 1, 4], 2, (4, 1))
    (True, False)
    """
    return tuple(tokens[column : column + len(text)]) == tuple(text)


def _opens(tokens: Sequence[int], positions: Sequence[int], column: int, prompt: Sequence[int], pad: int) -> bool:
    """Return whether a prompt is fed from this column on: whole, or without its last token, which many engines feed
    later.

    >>> _opens([3, 1, 4, 5], [0, 1, 0, 1], 0, (3, 1, 9), pad=8)
    True
    """
    if _begins(tokens, column, prompt):
        return True
    end = next((c for c in range(column + 1, len(tokens)) if positions[c] != positions[c - 1] + 1), len(tokens))
    fed = tuple(tokens[column:end])
    return fed == tuple(prompt[:-1]) and set(fed) != {pad}


def begins_anew(record: Record, call: Call, row: int, begun: dict[int, int]) -> bool:
    """Return whether a call with fewer rows than there are requests feeds several in one row.

    So it is where one of the `beginnings` is behind another request, where another request goes on at the break of the
    positions, and where a token that is no row's first by its column sees only itself, behind others that are no pads.
    """
    if len(call.tokens) >= len(record.requests):
        return False
    if len(begun) > 1 or any(_joins(record, call, row, *one) for one in begun.items()):
        return True
    if record.branches:
        return False
    if _goes_on(record, call, row):
        return True
    hidden = self_hidden(call, row)
    return any(
        not hidden[column - 1]
        and int(call.tokens[row, column - 1]) != record.pad
        and int(call.visible[row, column].sum()) == 1
        for column in range(1, len(hidden))
        if not hidden[column]
    )


def _goes_on(record: Record, call: Call, row: int) -> bool:
    """Return whether a request that was fed before goes on, by its text and its position, behind tokens of another."""
    tokens, positions = call.tokens[row].tolist(), call.positions[row].tolist()
    return any(
        positions[c] != positions[c - 1] + 1
        and tokens[c - 1] != record.pad
        and any(reached + 1 == positions[c] and record.is_at(request, positions[c], tokens[c])
                for request, reached in record.reached.items())
        for c in range(1, len(tokens))
    )  # fmt: skip


def _joins(record: Record, call: Call, row: int, column: int, request: int) -> bool:
    """Return whether a request begins, for the first time, behind tokens of another one that is under way."""
    fed = call.tokens[row, max(column - 1, 0) : column + 1].tolist()
    behind = column > 0 and int(call.positions[row, :column].min()) > 0
    return behind and record.pad not in fed and request not in record.rounds


def beginnings(record: Record, call: Call, row: int) -> dict[int, int]:
    """The columns in which a request begins by its text and its position, whatever the mask shows: their requests.

    Before a row was seen to hold several, only prompts begin one. Positions may be wrong: where they break, a prompt
    that nobody has fed yet begins wherever it stands by its text.
    """
    if len(call.tokens) >= len(record.requests):
        return {}
    # Called for each row of each call before it is known whether rows are packed, so it must not see beginnings in a
    # right row: a call with a row for each request has none. A prompt at a wrong position counts only if it is longer
    # than drafts equal by chance (`_CHANCE`) and is behind others.
    tokens, positions = call.tokens[row].tolist(), call.positions[row].tolist()
    breaks = [c for c in range(len(tokens)) if not c or positions[c] != positions[c - 1] + 1]
    held = [label for label in record.held(call, row) if label.what == "token"]
    begun: dict[int, int] = {}
    for column in breaks:
        for number, request in enumerate(record.requests):
            at, prompt = positions[column], len(request.prompt)
            reached = {label.position for label in held if label.request == number}
            goes_on = at == max(reached, default=-1) + 1 or (not reached and record.continues(number, at))
            unfed = not reached and number not in {*record.rounds, *begun.values()}
            new = unfed and column > 0 < at and prompt > _CHANCE
            if new and _opens(tokens, positions, column, request.prompt, record.pad):
                begun[column] = number
                break
            if number in begun.values() or not goes_on or (at and not record.packed):
                continue
            rest = [whole[at : max(prompt, at + 1)] for whole in request.wholes]
            opened = not at and _opens(tokens, positions, column, request.prompt, record.pad)
            if opened or any(_begins(tokens, column, text) for text in rest):
                begun[column] = number
                break
    return begun


def segments(record: Record, call: Call, row: int, places: Places, begun: dict[int, int]) -> list[range]:
    """The columns of a row that holds several requests, cut where one ends and the next begins.

    A column belongs to the request whose digest it has, else to the one most of whose entries it sees, and else,
    where it sees none but those of its own call, to the segment that these belong to. Where a request has begun by its
    text, a column that goes on seeing it belongs to it, whatever else it sees. A column that sees only itself tells
    nothing: it belongs to the segment before it, if it goes on there by its text or its position.
    """
    slots = writes(call, row)
    tokens, positions = call.tokens[row].tolist(), call.positions[row].tolist()
    owners: list[int] = []
    edges: list[int] = []
    for column in range(call.tokens.shape[1]):
        seen = [slots[slot] for slot in np.flatnonzero(call.visible[row, column])]
        votes = Counter(
            record.of[write].request for write in seen if write in record.of and record.of[write].what == "token"
        )
        exact = [request for request, _ in places[column]]
        own = [owners[at] for number, _, at in seen if number == call.number and at < column]
        next_to = column > 0 and positions[column] == positions[column - 1] + 1
        alone = not votes and not own
        goes_on = alone and _owner_goes_on(record, tokens, positions, column, owners, edges)
        # The digest decides before the votes: a mask that shows another request's entries gives that request the votes,
        # and the fault would be taken for the owner. Before both comes the text: a request that begins or goes on
        # there by its tokens is meant, however wrong its mask and positions are.
        if column in begun:
            owner = begun[column]
        elif goes_on or (edges and edges[-1] in begun and owners[-1] in {*votes, *own} and not exact):
            owner = owners[-1]
        elif exact:
            owner = max(exact, key=lambda r: (votes[r], r == owners[-1] if owners else False))
        else:
            owner = max(votes, key=lambda r: votes[r], default=own[-1] if own else -1)
        if not owners or column in begun or owner != owners[-1] or not (own or (next_to and owner >= 0)):
            edges.append(column)
        owners.append(owner)
    return [range(a, b) for a, b in zip(edges, [*edges[1:], len(owners)], strict=True)]


def _owner_goes_on(
    record: Record, tokens: list[int], positions: list[int], column: int, owners: list[int], edges: list[int]
) -> bool:
    """Return whether the segment before a column goes on in it by its text, or by its position where nothing begins."""
    if not owners or owners[-1] < 0:
        return False
    prompts = (request.prompt for number, request in enumerate(record.requests) if number not in owners)
    begins = any(_begins(tokens, column, prompt) for prompt in prompts)
    next_to = positions[column] == positions[column - 1] + 1
    at = positions[edges[-1]] + column - edges[-1]
    return record.is_at(owners[-1], at, tokens[column]) or (next_to and not begins)


def sees_twins(call: Call, row: int, column: int) -> bool:
    """Return whether a query sees two columns of its call at one position: no path of a tree has these both."""
    slots = zip(writes(call, row), call.visible[row, column], strict=True)
    own = [write[2] for write, shown in slots if shown and write[0] == call.number]
    return len(set(call.positions[row, own].tolist())) < len(own)


# The request that a row of a call stands for, and its first token there, where no query of the row is right.
#
# Every token of a request that the row feeds is a possible start. Clues for and against each start are counted. The
# best start asks for a token that is due, has the fewest objections, and fits the row best, in this order. No clue
# has a weight. `tests/transparent/test_labels.py` has rows that are aligned wrongly without each of the clues.

OBJECTIONS = {
    "taken": "another row of the call stands for the request",
    "hidden": "the first token does not see itself, as pads do not",
    "strange": "behind what fits, something is fed that no draft had proposed",
}
FOR = {
    "held": "an entry of the request that the row's cache holds before the start",
    "fed": "a token fed that the request has there",
    "position": "the first one carries its logical position",
    "own_row": "the row of the call has the request's number, which engines give up when rows leave",
    "prompt": "the row reaches the end of the prompt, from where on there is something to ask",
}
AGAINST = {
    "gap": "a token before the start that the cache does not hold, or an entry too many",
    "beyond": "an entry held of the start or what is behind it",
}


class Start(NamedTuple):
    """Column ``first`` of the row feeds the token at logical position ``at`` of the request.

    ``ahead`` is 1 where the call asks for a token that is not committed, and less by the tokens that it asks for again.
    A decoder has no use for an answer that it has already, so a start with a lower ``ahead`` is taken only where no
    other fits. ``clues`` counts how often each clue applies.
    """

    request: int
    first: int
    at: int
    ahead: int
    clues: dict[str, int]

    @property
    def rank(self) -> tuple[int, int, int]:
        """The key by which starts compete: the highest is taken."""
        # In this order and without weights. A call that asks for nothing new makes no sense for any decoder, so that
        # outranks everything seen in the cache, which may be the very thing that is broken. An objection is a reason
        # why a start cannot be meant, while a clue only makes it likelier, so no number of clues outweighs one. Eleven
        # weights did this once: none followed from a theory, and each was there for the sake of one row.
        fit = sum(map(self.clues.__getitem__, FOR)) - sum(map(self.clues.__getitem__, AGAINST))
        return self.ahead, -sum(map(self.clues.__getitem__, OBJECTIONS)), fit


@dataclass(frozen=True)
class _Row:
    """A row to be aligned, or the ``columns`` of it that belong to one request.

    ``held[request]`` are the positions in its cache, ``garbled`` the entries seen that no model wrote, which may stand
    for any token.
    """

    call: Call
    row: int
    begin: int
    tokens: list[int]
    hidden: list[bool]
    held: list[set[int]]
    garbled: int


def align(
    record: Record,
    call: Call,
    row: int,
    taken: Collection[int],
    columns: range | None = None,
    requests: Sequence[int] | None = None,
) -> tuple[int, int, int] | None:
    """The best ``(request, first real column, position of column 0)``, or None when nothing fits.

    ``taken`` are the requests that other rows of the call stand for. ``requests`` are the requests that this row may
    stand for; without them it may stand for any.
    """
    fed = _row(record, call, row, columns)
    all_of_them = range(len(record.requests)) if requests is None else requests
    starts = (start for request in all_of_them for start in _starts(record, fed, request, request in taken))
    best = max(starts, key=lambda start: start.rank, default=None)
    return None if best is None else (best.request, fed.begin + best.first, best.at - fed.begin - best.first)


def _row(record: Record, call: Call, row: int, columns: range | None) -> _Row:
    begin = columns[0] if columns else 0
    held: list[set[int]] = [set() for _ in record.requests]
    for label in record.held(call, row):
        for request, positions in enumerate(held) if label.what == "token" else ():
            if record.same(label, request):
                positions.add(label.position)
    nobodys = call.kv[0][0, row, 0, :, MODEL] > max(TARGET, DRAFT)
    return _Row(
        call,
        row,
        begin,
        tokens=call.tokens[row].tolist()[begin : columns[-1] + 1 if columns else None],
        hidden=self_hidden(call, row)[begin:],
        held=held,
        garbled=int((call.visible[row].any(axis=0) & nobodys).sum()),
    )


def _starts(record: Record, fed: _Row, request: int, taken: bool) -> Iterator[Start]:
    """The starts that the row may have in a request: columns before one must be pads."""
    pad, tokens = record.pad, fed.tokens
    proposed = record.proposed(request, fed.call.number) | {pad} if record.drafted else set(tokens)
    for first, token in enumerate(tokens):
        for whole in record.requests[request].wholes:
            for at in (at for at, other in enumerate(whole) if other == token):
                run = common_start(tokens[first:], whole[at:])
                prompt = len(record.requests[request].prompt)
                # A row cannot leave its own prompt: there are no drafts before its end. Pads may follow, where a prompt
                # is fed in chunks and the batch is filled up.
                if at + run < prompt and any(other != pad for other in tokens[first + run :]):
                    continue
                behind = zip(tokens[first + run :], fed.hidden[first + run :], strict=False)
                strange = any(not unseen and other not in proposed for other, unseen in behind)
                last = min(at + len(tokens) - first, prompt + record.requests[request].needed - 1) - 1
                ahead = min(1, last - record.committed.get(request, -1))
                clues = _clues(fed, request, first, at, run, prompt) | {"taken": taken, "strange": strange}
                yield Start(request, first, at, ahead, clues)
        if token != pad:
            return


def _clues(fed: _Row, request: int, first: int, at: int, run: int, prompt: int) -> dict[str, int]:
    """Return how often each clue applies to a start, but for the two that rest on other rows and on drafts."""
    have = fed.held[request]
    before = sum(position < at for position in have)
    return {
        "held": before,
        "gap": abs(at - before - fed.garbled),
        "beyond": len(have) - before,
        "fed": run,
        "position": int(fed.call.positions[fed.row, fed.begin + first] == at),
        "own_row": int(request == fed.row),
        "prompt": int(at + len(fed.tokens) - first >= prompt),
        "hidden": int(fed.hidden[first]),
    }


# The labels of columns that belong to one request: the first rule that applies says what a column is.
#
# `eqcheck.transparent.attribution.context` turns the labels of the slots that a query sees into kinds of faults.


@dataclass
class Columns:
    """Columns of a row of a call, labelled from left to right.

    ``first`` is the first real one, column c feeds ``start + c``; ``exact`` has the positions of the columns that are
    right beyond doubt. No round has more than ``most`` drafts: a pad id behind so many is a pad, even if it was
    ``proposed``. Up to ``column`` the row has come to ``position``, and left its own tokens unless it is ``on_path``;
    pads go up to the column ``inside``. The token fed at ``in_prompt`` is not the prompt's.
    """

    record: Record
    call: Call
    row: int
    columns: range
    request: int
    first: int
    start: int
    exact: Mapping[int, int]
    proposed: set[int]
    most: float
    found: dict[int, Label] = field(default_factory=dict)
    column: int = 0
    position: int = 0
    on_path: bool = True
    inside: int = 0
    in_prompt: int | None = None
    drafts: int = 0

    def labels(self) -> dict[int, Label]:
        """The label of each column."""
        self.position = self.start + self.first - 1
        for column in self.columns:
            self.column = column
            label = next(label for rule in RULES if (label := rule(self)) is not None)
            self.found[column] = replace(label, exact=column in self.exact)
        if self.record.branches:
            at = self.start + self.first
            block = Block(self.record, self.call, self.row, self.columns, self.request, self.first, at)
            return self.found | block.labels(self.exact)
        return self._filled_up()

    def _filled_up(self) -> dict[int, Label]:
        """The columns that the mask hides from themselves are filler, where it hides no token of the row so."""
        hidden = self_hidden(self.call, self.row)
        if any(hidden[column] for column, label in self.found.items() if label.what == "token"):
            return self.found
        drafts = {c: label for c, label in self.found.items() if label.what == "draft" and hidden[c]}
        return self.found | {column: replace(label, what="filler") for column, label in drafts.items()}

    def _fed(self, position: int) -> bool:
        """Return whether the column feeds the token that the request has there."""
        return self.record.is_at(self.request, position, int(self.call.tokens[self.row, self.column]))

    def _feeds_pad(self) -> bool:
        """Return whether it feeds a pad id that is no draft."""
        return self.record.is_pad(self.call, self.row, self.column, self.proposed)

    # The rules.

    def before_first(self) -> Label | None:
        if self.column >= self.first:
            return None
        at = self.start + self.column
        return Label(self.request, at, "token") if self._fed(at) else Label(self.request, -1, "pad")

    def right_beyond_doubt(self) -> Label | None:
        if self.column not in self.exact:
            return None
        self.on_path, self.position, self.in_prompt = True, self.exact[self.column], None
        return Label(self.request, self.position, "token")

    def next_token(self) -> Label | None:
        if not (self.on_path and self._fed(self.position + 1)) or self._pad_ahead():
            return None
        self.position += 1
        return Label(self.request, self.position, "token")

    def pad(self) -> Label | None:
        proposed = self.proposed if self.drafts < self.most else set()
        if self.column >= self.inside and not self.record.is_pad(self.call, self.row, self.column, proposed):
            return None
        return Label(self.request, -1, "pad")

    def pads_inside(self) -> Label | None:
        """Several pads behind which the row goes on: pads among its tokens, even if the draft proposed the pad id."""
        behind = range(self.column, self.columns[-1] + 1)
        tokens = self.call.tokens[self.row].tolist()
        end = next((c for c in behind if tokens[c] != self.record.pad), 0)
        several = self.on_path and end > self.column + 1
        if not (several and self.record.is_at(self.request, self.position + 1, tokens[end])):
            return None
        self.inside = end
        return Label(self.request, -1, "pad")

    def fills_a_prompt(self) -> Label | None:
        """A token behind a part of a prompt that is not its next one: a draft comes behind the prompt's last token."""
        if self.on_path and self.position + 1 < len(self.record.requests[self.request].prompt):
            self.in_prompt = self.position + 1
        if self.in_prompt is None:
            return None
        self.on_path = False
        return Label(self.request, self.in_prompt, "filler")

    def draft_or_filler(self) -> Label:
        self.on_path = False
        self.position += 1
        if self.record.drafted and int(self.call.tokens[self.row, self.column]) not in self.proposed:
            return Label(self.request, self.position, "filler")
        self.drafts += 1
        return Label(self.request, self.position, "draft", agreed=self._agreed())

    def _agreed(self) -> bool:
        """Return whether the target's answer in the column before is what a draft proposes,
        and none before it was refused.
        """
        before = self.found.get(self.column - 1) or self.record.of.get((self.call.number, self.row, self.column - 1))
        kept = before is not None and (before.what == "token" or before.agreed)
        answer, fed = self.call.predictions[self.row, self.column - 1], self.call.tokens[self.row, self.column]
        return kept and int(answer) == int(fed)

    def _pad_ahead(self) -> bool:
        """Return whether it feeds a pad that only happens to be the row's next token: nothing had proposed it yet."""
        end, next_one = len(self.record.requests[self.request].prompt), self.position + 1
        new = next_one >= end and next_one > self.record.reached.get(self.request, end - 1) + 1
        return new and self._feeds_pad()


RULES: tuple[Callable[[Columns], Label | None], ...] = (
    Columns.before_first,
    Columns.right_beyond_doubt,
    Columns.next_token,
    Columns.pad,
    Columns.pads_inside,
    Columns.fills_a_prompt,
    Columns.draft_or_filler,
)


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
        # Three ways, in this order: a row that holds several requests is cut and its parts are labelled, a row without
        # a right query is aligned, and any other is labelled by its right queries. Cutting comes first, because
        # alignment takes all that stands behind a request for its drafts and fillers: the second request of a packed
        # row would be rejected drafts of the first.
        #
        # A column that sees another row's entry in place of its own (`overwritten`), or that nobody sees later
        # (`unused_beginnings`), has the digest of a right context by chance alone, so its digest tells nothing.
        lost = [gone or (call.number, row, at) in self._unused for at, gone in enumerate(overwritten(call, row))]
        places = [[] if gone else self.places.get(int(d), []) for d, gone in zip(call.digests[row], lost, strict=True)]
        begun = beginnings(self, call, row)
        packed = self.packed or begins_anew(self, call, row, begun)
        cut = segments(self, call, row, places, begun) if packed else []
        if len(cut) > 1:
            held = {self._label_segment(call, row, columns, places, begun.get(columns[0])) for columns in cut}
            self.packed |= len(held - {-1}) > 1
            return held
        # Leading pads do not count as right: one that is seen by mistake has the context of a prompt that begins with
        # the pad id.
        if any(place for column, place in enumerate(places) if column >= self._pads(call, row)):
            return self._label_by_right_queries(call, row, places, taken)
        return self._label_aligned(call, row, places, taken)

    def _label_aligned(self, call: Call, row: int, places: list[list[tuple[int, int]]], taken: set[int]) -> set[int]:
        """Label a row without a right query by its best start; none of its columns is a request's where none fits."""
        columns = range(call.tokens.shape[1])
        aligned = align(self, call, row, taken)
        fills = self._fills_batch(call, row, aligned)
        if aligned is None or fills or self._past_end(call, row, aligned[0]):
            # No request is better than a wrong one: a row that only fills up the batch, or that has ended, would be
            # taken for the request with an equal id, and its slots for faults of that request's cache. An id that a
            # draft proposed since is no pad, though it may be the pad id.
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

    def _label_by_right_queries(
        self, call: Call, row: int, places: list[list[tuple[int, int]]], taken: set[int]
    ) -> set[int]:
        """Label a row by its right queries, which name the request of all columns around them."""
        # A row that nobody saw hold several requests may hold them all the same, told by digests alone: it is cut where
        # a column is right for another request beyond doubt. If such a column stands before the first one of the
        # request that has most, it goes first, or its columns would be labelled as that request's.
        columns = range(call.tokens.shape[1])
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
        # A known request first, by its beginning or by right queries. Else the entries that are seen name the
        # candidates, and alignment chooses among them: votes alone would take a segment for the request whose entries a
        # wrong mask shows most of, and alignment alone for any request with equal ids.
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
            aligned = self._align_segment(call, row, columns)
            if aligned is None:
                return -1
            (request, first, start), known = aligned, {}
        self._label_columns(call, row, columns, request, first, start, known)
        return request

    def _align_segment(self, call: Call, row: int, columns: range) -> tuple[int, int, int] | None:
        """The best start of a segment without a right query; None where none fits, and its columns are labelled so."""
        slots = writes(call, row)
        seen = (slots[slot] for slot in np.flatnonzero(call.visible[row, list(columns)].any(axis=0)))
        votes = Counter(self.of[w].request for w in seen if w in self.of and self.of[w].what == "token")
        aligned = align(self, call, row, set(), columns, list(votes) or None)
        fed = {int(call.tokens[row, column]) for column in columns}
        ahead = aligned is not None and not votes and self._ahead(*aligned, fed)
        if aligned is not None and not ahead:
            return aligned
        hidden = self_hidden(call, row)
        for column in columns:
            fills = not votes and (ahead or hidden[column])
            self.of[call.number, row, column] = Label(-1, -1, "filler" if fills else "unknown")
        return None

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
        # Only where exactly one request of a full batch is missing and another is there twice can the second one be
        # named: of any other set of rows several may be the missing one.
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

        # Requests that begin with the same tokens have the same digests there, so counts tie, and each further clue
        # decides only where all before it do. The text behind tells such requests apart unless they are equal as far
        # as the row goes; then another row that stands for one leaves the other; then the cache; then the number of
        # the row, which engines give up when rows leave, so it comes late. The last one makes the choice repeatable.
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
