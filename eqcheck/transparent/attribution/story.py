"""A decode as data to be drawn (`eqcheck.core.result.outcome`): every call, and the rounds and the failing call of a
row.

A query that stands for a token of its row is held against what attribution expects of it. Nothing is expected of
others: of pads, of draft tokens that were rejected, or of what a row is fed behind its first wrong token.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from eqcheck.contract.family import FAMILY
from eqcheck.core.explanation.records import Explanation
from eqcheck.core.result.outcome import (
    DrawnCall,
    DrawnDecode,
    DrawnQuery,
    DrawnRound,
    DrawnRow,
    DrawnSlot,
    Story,
    common_start,
)
from eqcheck.transparent.attribution.context import Context, read
from eqcheck.transparent.attribution.entries import Entry, entries
from eqcheck.transparent.attribution.labels import Labels, labels_of
from eqcheck.transparent.attribution.writes import Label, Write, self_hidden
from eqcheck.transparent.decoding import Run
from eqcheck.transparent.hashlm.hashing import Bools, table_row, truncated
from eqcheck.transparent.hashlm.trace import DRAFT, TARGET, Call

# The rounds of each row: the draft tokens that were fed, and the row's tokens before and after the round.
#
# The tokens that a decoder commits are not seen, only the tokens that it feeds. Before a round, a row has the tokens
# that the draft was first given for it (`Rounds.begun`), and at least the first token that the target is fed of it.
# Where the draft was not asked about the row, the row has every token that was answered for it. After its last round
# it has the tokens that were returned, if these were fed.


def ids_of(rounds: Sequence[DrawnRound]) -> tuple[int, ...]:
    """The tokens that rounds committed, put together."""
    return tuple(token for one in rounds for token in one.committed)


class Turns:
    """The rounds of a run as they are drawn, also where contexts were wrong.

    ``number`` has that of each target call, by row and call, from 1. ``blamed`` is the query whose context was
    wrong, as reading says.
    """

    def __init__(self, run: Run, labels: Labels, blamed: Write | None = None) -> None:
        self.run, self.labels, self._blamed = run, labels, blamed
        self._answered = {int(digest) for call in labels.calls.values() for digest in call.digests.ravel()}
        self._told = {(write[:2], label.request) for write, label in labels.of.items() if self._tells(write, label)}
        self._columns: dict[tuple[int, int], list[tuple[Write, Label]]] = defaultdict(list)  # by row and call
        self._asked: dict[tuple[int, int], int] = {}  # by row and index, the first call that asked for a new token
        asking: dict[int, set[int]] = defaultdict(set)
        for write, label in labels.of.items():
            # A column is counted by its label only where it is known to be what the label says. A call asks for a row
            # even by doubtful columns, else the rounds behind it would all have the wrong number.
            if label.request < 0:
                continue
            sure = self.sure(write, label)
            if label.what in ("token", "draft") and sure:
                self._columns[label.request, write[0]].append((write, label))
            if (index := label.position + 1 - self._start(label.request)) >= 0:
                asking[label.request].add(write[0])
                if label.what == "token" and sure:
                    self._asked.setdefault((label.request, index), write[0])
        rows = range(len(run.truth.rows))
        self._calls = {row: [n for n in labels.made_once(row) if n in asking[row]] for row in rows}
        self.number = {(row, n): sum(m <= n for m in self._calls[row]) for row in rows for n in asking[row]}
        self.rounds = {row: self._rounds(row) for row in self._calls}

    def _tells(self, write: Write, label: Label) -> bool:
        """Return whether a query tells whose it is: it saw exactly its row, or is blamed,
        or no other was asked the same.
        """
        if label.what != "token" or label.exact or write == self._blamed:
            return label.what == "token"
        row, digests = label.request, self.run.truth.digests[label.request][-1]
        needed = max(len(rows[row]) for rows in (self.run.truth.rows, self.run.outputs or self.run.truth.rows))
        asked = label.position < len(digests) and int(digests[label.position]) in self._answered
        return not asked and label.position + 1 < self._start(row) + needed

    def sure(self, write: Write, label: Label) -> bool:
        """Return whether a column of the target is known to be what its label says, by itself or by its neighbours.

        Where rows share a batch row, neighbours say nothing; nor do they of a token that is asked for elsewhere, and
        here is hidden from itself.
        """
        if label.what not in ("token", "draft") or self._tells(write, label):
            return True
        if (write[:2], label.request) not in self._told:
            return False
        hidden = self_hidden(self.labels.calls[write[0]], write[1])[write[2]]
        return label.what == "draft" or not (self.labels.packed or hidden)

    def request_of(self, call: int, row: int) -> int | None:
        """The request that most columns of a batch row of the target are known to be of; None where none is."""
        width = self.labels.calls[call].tokens.shape[1]
        counts = Counter(self.labels.of[call, row, column].request for column in range(width))
        known = [request for request, _ in counts.most_common() if ((call, row), request) in self._told]
        return known[0] if known else None

    def _start(self, row: int) -> int:
        return len(self.run.case.prompts[row])

    def asked(self, row: int, index: int) -> int:
        """The first call in which a query stood for the token before this new one of a row; 0 for none."""
        return self._asked.get((row, index), 0)

    def committed_in(self, row: int, index: int) -> int | None:
        """The call in whose round this new token of a row was committed; None where the rounds do not tell."""
        calls = (one.call for one in self.rounds[row] for _ in one.committed)
        return next(islice(calls, index, None), None)

    def _had(self, row: int, since: int, call: int) -> int:
        """Return how many new tokens the row had when a call was made; ``since`` is its call before."""
        start, columns = self._start(row), self._columns[row, call]
        first = min((label.position for _, label in columns if label.what == "token"), default=start - 1)
        end = max((label.position for _, label in columns), default=start - 1)
        begun = self.run.rounds.begun(row, since, call)
        told = 0
        while 0 < self.asked(row, told) < call:
            told += 1
        if begun is not None:  # one that catches up with its row in a call of its own was given less at first
            told = max(begun - start, min(told, end + 1 - self.run.case.num_draft_tokens - start))
        return max(told, first + 1 - start, 0)

    def _rounds(self, row: int) -> tuple[DrawnRound, ...]:
        # A row never has fewer tokens than before: a call that feeds an earlier part of it again takes nothing back.
        calls, had = self._calls[row], list[int]()
        for since, call in zip([0, *calls], calls, strict=False):
            had.append(max([self._had(row, since, call), *had]))
        ids, whole = self._committed(row, dict(zip(calls, had, strict=True)))
        had.append(max([len(ids), *had]) if whole else had[-1] if had else 0)
        rounds = []
        for at, call in enumerate(calls):
            if at and whole and had[at] >= len(ids):
                break  # the row is done, and stays in its batch
            drafted, answers = self._drafted(row, call, had[at])
            committed = tuple(ids[had[at] : had[at + 1]])
            accepted = common_start(drafted, committed)
            agreed = common_start(drafted, answers)
            own = committed[accepted] if accepted < len(committed) and drafted and agreed <= accepted else None
            last = "" if own is None else "correction" if accepted < len(drafted) else "bonus"
            known = whole or at + 1 < len(calls)
            rounds.append(DrawnRound(at + 1, call, drafted, accepted, last, own, committed, agreed, known))
        return tuple(rounds) if self._sound(row, rounds, whole) else ()

    def _sound(self, row: int, rounds: list[DrawnRound], whole: bool) -> bool:
        """Return whether these can be the rounds of a row: where rows are asked the same,
        some may be taken for another's.
        """
        k, right = self.run.case.num_draft_tokens, self.run.truth.rows[row]
        shared = self.run.rounds.shared(row, len(right))
        if whole and ids_of(rounds) == right:
            fits = all(len(one.committed) <= one.accepted + 1 and len(one.drafted) <= k for one in rounds)
            return fits and (not shared or all(one.committed for one in rounds))
        return not (rounds and shared)

    def _drafted(self, row: int, call: int, had: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The tokens fed behind a row's tokens, in the batch row of a call that goes furthest; and the answers to them.

        Each answer is the target's of the column before, or the token that the row had there already.
        """
        behind = [
            (write, label) for write, label in self._columns[row, call] if label.position >= self._start(row) + had
        ]
        if not behind:
            return (), ()
        batch_row = max(behind, key=lambda column: column[1].position)[0][1]
        behind = [(write, label) for write, label in behind if write[1] == batch_row]
        asked = self.labels.calls[call]
        if self.labels.branches:
            return self._nodes(behind)
        writes = [write for write, _ in behind]
        drafted = tuple(int(asked.tokens[write[1:]]) for write in writes)
        return drafted, tuple(self._answer(write, token) for write, token in zip(writes, drafted, strict=True))

    def _nodes(self, columns: Iterable[tuple[Write, Label]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The tokens and answers of `_drafted` for a tree: the row's own path, then the other nodes in their order."""
        path: dict[int, int] = {}
        others = []
        for write, label in columns:
            token = int(self.labels.calls[write[0]].tokens[write[1:]])
            if label.what == "token" and label.position not in path:
                path[label.position] = token
            else:
                others.append(token)
        own = tuple(token for _, token in sorted(path.items()))
        return (*own, *others), own

    def _answer(self, write: Write, drafted: int) -> int:
        """The target's answer in the place of a draft token; where another call gave it, the draft token itself."""
        (call, row, column), label = write, self.labels.of[write]
        before = self.labels.of.get((call, row, column - 1))
        if before is None or (before.request, before.position) != (label.request, label.position - 1):
            return drafted
        return int(self.labels.calls[call].predictions[row, column - 1])

    def _committed(self, row: int, had: dict[int, int]) -> tuple[list[int], bool]:
        """The new tokens that a row had, as fed later or as kept drafts, else as returned; and whether these are all.

        They are not all where other tokens were returned than were fed: then the tokens of the last round are unknown.
        """
        output = list(self.run.outputs[row]) if self.run.outputs is not None else []
        later: dict[int, set[int]] = defaultdict(set)
        kept: dict[int, set[int]] = defaultdict(set)
        for (call, count), then in zip(had.items(), [*list(had.values())[1:], 0], strict=False):
            for write, label in self._columns[row, call]:
                index = label.position - self._start(row)
                into = later if 0 <= index < count else kept if count <= index < then - 1 else None
                if into is not None:
                    into[index].add(int(self.labels.calls[call].tokens[write[1:]]))
        # The tokens fed later are those that the decoder went on with; the returned token is taken only where it does
        # not contradict that. A row whose last tokens were exchanged on the way out would else show rounds that never
        # were.
        ids = list[int]()
        for index in range(max([len(output), *had.values()])):
            returned, fed = output[index : index + 1], later[index] or kept[index]
            as_fed = bool(returned) and fed.issuperset(returned)
            token = returned if as_fed or not fed else sorted(fed)[:1]
            if not token:
                break
            ids += token
        whole = self.run.outputs is not None and ids == output
        return (ids if whole else ids[: max(had.values(), default=0)]), whole


ROWS, COLUMNS = 8, 12  # of a call, and of a row of it; more are left out
BATCH = 16  # rows whose rounds are told
_OF_MODELS = {
    "draft model": "an entry of the draft",
    "target model": "an entry of the target",
    "other weights": "written under other weights",
}
_CELLS = 4000  # of a call, slots times columns: rows beyond it are left out, but for the one at fault
_ALL_CELLS = 150_000  # of all calls
_MODELS = {TARGET: "target", DRAFT: "draft"}


def drawn(run: Run, explanation: Explanation | None = None) -> tuple[DrawnCall, ...]:
    """Every call of a decode, in order: of many batch rows some, and of a long row its ends.

    The query that an ``explanation`` names is held against what it should have seen, as reading did.
    """
    scene = _Scene(run, explanation)
    return tuple(map(scene.shown, run.trace.calls))


def decode_of(run: Run, explanation: Explanation | None = None, note: str = "") -> DrawnDecode:
    """A whole decode, and the story of the row that an ``explanation`` names; of very many calls some are left out."""
    scene = _Scene(run, explanation)
    calls = list(map(scene.shown, _kept(run.trace.calls, scene.at[0] if scene.at else 0)))
    rounds = tuple(scene.turns.rounds[row] for row in range(len(run.case.prompts)))
    story = _story(scene, explanation) if explanation else None
    left_out = len(run.trace.calls) - len(calls)
    return DrawnDecode(tuple(calls), left_out, rounds, run.truth.rows, run.outputs, story, note)


def _kept(calls: Sequence[Call], failing: int) -> list[Call]:
    """The calls to be drawn: where these are too many, the first, the last, and those around the failing one."""
    cells = sum(
        min(_CELLS, call.visible.shape[0] * call.visible.shape[2] * min(call.visible.shape[1], COLUMNS))
        for call in calls
    )
    most = len(calls) * _ALL_CELLS // max(cells, _ALL_CELLS)
    if most >= len(calls):
        return list(calls)
    some = max(1, most // 4 if failing else most // 2)
    numbers = {call.number for call in (*calls[:some], *calls[-some:])}
    numbers |= set(range(failing - some, failing + some) if failing else ())
    return [call for call in calls if call.number in numbers]


def story_of(run: Run, explanation: Explanation) -> Story | None:
    """The story of the row of an explanation; None where it names no row.

    The call is that of the query whose context was wrong. Where every context was right, it is the call that answered
    for the first wrong token.
    """
    return _story(_Scene(run, explanation), explanation)


def _story(scene: _Scene, explanation: Explanation) -> Story | None:
    row = explanation.row
    if row is None or scene.run.outputs is None:
        return None
    number, batch_row, column = scene.at or _declared(explanation)
    batch = tuple(scene.turns.rounds[one] for one in range(min(len(scene.run.case.prompts), BATCH)))
    if batch_row is None:
        return Story(row, scene.turns.rounds[row], batch=batch)
    call = scene.labels.calls[number]
    beside = [d.held_by for d in explanation.deviations if d.held_by is not None]
    shown = scene.call(call, _beside(call, batch_row, beside))
    return Story(row, scene.turns.rounds[row], shown, batch_row, column, batch)


def _declared(explanation: Explanation) -> tuple[int, int | None, int | None]:
    """The call and batch row in which an option was not kept to, where it names them."""
    facts = explanation.facts
    if "call" not in facts or "batch_row" not in facts:
        return 0, None, None
    return int(facts["call"]), int(facts["batch_row"]), None


def _beside(call: Call, row: int, first: Sequence[int]) -> list[int]:
    """The batch rows to show beside ``row``: the rows that come ``first``, and others as far as they are small."""
    _, columns, slots = call.visible.shape
    room = min(ROWS - 1, _CELLS // max(1, slots * min(columns, COLUMNS)))
    others = dict.fromkeys([*first, *range(len(call.tokens))])
    return sorted([row, *[other for other in others if other != row][:room]])


class _Scene:
    """A run with its labels, from which its calls are drawn; ``at`` is the query that the explanation is about."""

    def __init__(self, run: Run, explanation: Explanation | None) -> None:
        self.run, self.family = run, FAMILY[run.case.family]
        self.labels = labels_of(run, run.trace)
        self._stored = [truncated(digests[0]) for digests in run.truth.digests]
        self._of = {TARGET: self.labels.of, DRAFT: _draft_labels(run)}
        self._calls = {role: {call.number: call for call in run.trace.of(role)} for role in (TARGET, DRAFT)}
        self._wrong = {verdict.row: verdict.first for verdict in run.verdicts if verdict.first is not None}
        # Only an asserted cause may mark a query as blamed: a picture that shows a fault is taken for proof.
        asserted = explanation if explanation and explanation.component != "unattributed" else None
        self._blamed = self._query_of(asserted) if asserted else None
        self.lower = self._lower_alone()
        if self.lower:
            self.family, self._stored = self.family.lower, [np.zeros_like(digests) for digests in self._stored]
        self._fed_with: int | None = None  # by how much the row's positions are shifted, where the blamed one is wrong
        if asserted and asserted.query and asserted.kind == "query-position":
            right = asserted.deviations[0].expected
            self._fed_with = None if right is None else right - asserted.query.logical_position
        self.turns = Turns(run, self.labels, self._blamed)
        query = explanation.query if explanation else None
        place = (query.call, query.call_row, query.column) if query else None
        self.at = place or (self._answer_to(explanation) if explanation else None)

    def _query_of(self, explanation: Explanation) -> Write | None:
        """The query whose context is wrong, labelled as reading did."""
        q, row = explanation.query, explanation.deviations[0].row if explanation.deviations else explanation.row
        if q is None or row is None:
            return None
        at = (q.call, q.call_row, q.column)
        label = self.labels.of[at]
        if (label.request, label.position, label.what) != (row, q.logical_position, "token"):
            self.labels.take(at, row, q.logical_position)
        return at

    def _lower_alone(self) -> bool:
        """Return whether the lower layer alone is at fault, which is then the one to be drawn."""
        if self._blamed is None or not self.family.near:
            return False
        number, row, column = self._blamed
        call, label = self.labels.calls[number], self.labels.of[self._blamed]
        return read(call, row, column, label, self.labels, self._stored, self.family).upper_right

    def _answer_to(self, explanation: Explanation) -> Write | None:
        """The query of the explanation's round that answered for the first wrong token."""
        row, index, place = explanation.row, explanation.token_index, explanation.round
        if row is None or index is None:
            return None
        queries = self.labels.queries(row, len(self.run.case.prompts[row]) + index - 1)
        asked = [(one.exact, write) for write, one in queries if self.turns.number.get((row, write[0])) == place]
        return max(asked, default=(False, None))[1]

    def shown(self, call: Call) -> DrawnCall:
        """A call with as many of its batch rows as are shown, the one at fault among them."""
        row = self.at[1] if self.at and self.at[0] == call.number else 0
        return self.call(call, _beside(call, row, ()))

    def call(self, call: Call, rows: Sequence[int]) -> DrawnCall:
        """A call with these batch rows."""
        committed = {
            str(row): one.committed
            for row, rounds in self.turns.rounds.items()
            for one in rounds
            if one.call == call.number and one.committed
        }
        return DrawnCall(
            call.number,
            _MODELS[call.role],
            call.number <= self.run.trace.given,
            tuple(self._row(call, row) for row in rows),
            committed if call.role == TARGET else {},
            len(call.tokens) - len(rows),
        )

    def _row(self, call: Call, row: int) -> DrawnRow:
        call = call.lower if self.lower and call.lower else call
        named = self.at[2] if self.at is not None and self.at[:2] == (call.number, row) else None
        of = self._of[call.role]
        columns = [of.get((call.number, row, column)) for column in range(call.tokens.shape[1])]
        if call.role == TARGET:
            whose = self.turns.request_of(call.number, row)
        else:
            whose = next((label.request for label in reversed(columns) if label and label.request >= 0), None)
        request = -1 if whose is None else whose
        sizes = sorted({kv.shape[3] for kv in call.kv})
        held = entries(call, row, of, self._calls[call.role], self.family) if len(sizes) == 1 else []
        shown = _shown(len(columns), named)
        last = {one.request: at for at, one in enumerate(columns) if one and self._known(call, row, at, one)}
        last |= {label.request: named for label in columns[named : named + 1] if label} if named is not None else {}
        contexts = {at: self._context(call, row, at, columns[at], held) for at in {*shown, *last.values()}}
        if held:
            offsets = {r: self._offset(call, row, at, columns[at], contexts[at]) for r, at in last.items()}
            slots = [self._slot(entry, request, offsets, call.visible[row]) for entry in held]
        else:
            torn = f"torn: the layers hold {' and '.join(map(str, sizes))} slots"
            slots = [DrawnSlot(torn, None, None, None, "")] * call.visible.shape[2]
        queries = [self._query(call, row, at, columns[at], request, contexts[at]) for at in shown]
        round_ = self.turns.number.get((request, call.number), 0) if call.role == TARGET else 0
        return DrawnRow(row, whose, round_, tuple(slots), tuple(queries))

    def _context(self, call: Call, row: int, column: int, label: Label | None, held: Sequence[Entry]) -> Context | None:
        """The context that a query of the target had and should have had; None where that is not known."""
        if call.role == DRAFT or not held or label is None or not self._known(call, row, column, label):
            return None
        found = read(call, row, column, label, self.labels, self._stored, self.family, held)
        if (call.number, row, column) == self._blamed and self._fed_with is not None:
            return replace(found, offset=self._fed_with)  # which those tell that see its entry later
        return found

    def _known(self, call: Call, row: int, column: int, label: Label) -> bool:
        """Return whether it is known what a query should see, beyond that one which saw exactly its row did.

        Not behind the end of a row or its first wrong token; but in the call that answers for that, drafts may be what
        is right. Nor where some other query was asked the same and saw what it should: then nobody may have read this
        answer, unless its neighbours tell whose it is.
        """
        if label.what != "token" or label.exact or (call.number, row, column) == self._blamed:
            return label.what == "token"
        if not self.turns.sure((call.number, row, column), label):
            return False
        start, first = len(self.run.case.prompts[label.request]), self._wrong.get(label.request)
        wrong = start + first if first is not None else start + len(self.run.truth.rows[label.request]) - 1
        if label.position < wrong:
            return True
        if first is None or label.position >= len(self._stored[label.request]):
            return False
        block = ((at, self.labels.of[call.number, row, at]) for at in range(column + 1))
        behind = [(at, one.position) for at, one in block if one.request == label.request and one.position >= wrong]
        sequence = self.labels.sequence(label.request)
        fed_right = all(int(call.tokens[row, at]) == sequence[position] for at, position in behind)
        return fed_right and call.number <= self.turns.asked(label.request, first)

    def _offset(self, call: Call, row: int, column: int, label: Label | None, context: Context | None) -> int | None:
        """The shift of the row's positions, from the view of a query; None where that is not known."""
        if label is not None and label.exact and call.role == DRAFT:
            return 0 if self.family.absolute else int(call.places[row, column]) - label.position
        return context.offset if context else None

    def _query(
        self, call: Call, row: int, column: int, label: Label | None, request: int, context: Context | None
    ) -> DrawnQuery:
        sees = _bits(call.visible[row, column])
        position, answer = int(call.places[row, column]), int(call.predictions[row, column])
        right, should, expected = None, "", None
        if label is not None and context is not None:
            right = label.position + context.offset
            should = _bits([slot.expected_visible for slot in context.slots if slot.index is not None])
            index = label.position + 1 - len(self.run.case.prompts[label.request])
            answers = self.run.truth.uncut[label.request]
            if 0 <= index < len(answers):
                expected = answers[index]
            elif not self.family.target:  # a hash is known at other positions, too
                digest = self.run.truth.digests[label.request][-1, label.position : label.position + 1]
                expected = int(call.ranked[0][table_row(digest)][0])
        elif label is not None and label.exact and call.role == DRAFT:
            right, should = position, sees
        sure = call.role == DRAFT or (label is not None and self.turns.sure((call.number, row, column), label))
        stands_for = self.labels.seen_by(label, request).words(request) if label is not None and sure else ""
        token = int(call.tokens[row, column])
        return DrawnQuery(column, stands_for, token, position, right, sees, should, answer, expected)

    def _slot(self, entry: Entry, request: int, offsets: Mapping[int, int | None], visible: Bools) -> DrawnSlot:
        label = self.labels.seen_by(entry.label, request) if request >= 0 else entry.label
        if label.what == "blank":
            kind, text = ("no-model", "what no model wrote") if entry.torn else ("blank", "never written")
            return DrawnSlot(text, None, None, None, "", kind)
        kind = label.kind(request)
        text = _OF_MODELS.get(kind) or label.words(request)
        at = label.place if not entry.torn else {}
        # Where tokens are counted in the mask, one that it hides has no place.
        position = None if self.family.counts_mask and not visible[:, entry.slot].any() else entry.position
        offset = next((offset for r, offset in offsets.items() if self.labels.same(label, r)), None)
        right = None if position is None or offset is None else position == label.position + offset
        call, row, column = entry.write
        origin = f"call {call}, batch row {row}, column {column}"
        text = f"{text}; {entry.torn.words}" if entry.torn else text
        return DrawnSlot(text, entry.token, position, right, origin, kind, **at)


def _bits(which: Iterable[Any]) -> str:
    return "".join("1" if one else "0" for one in which)


def _shown(count: int, named: int | None) -> list[int]:
    """The columns of a row to be drawn: of many the first and last ones, and those around the one that is named."""
    if count <= COLUMNS:
        return list(range(count))
    half = COLUMNS // 2
    near = [] if named is None else range(max(0, named - 2), min(count, named + 3))
    return sorted({*range(half), *near, *range(count - half, count)})


def _draft_labels(run: Run) -> dict[Write, Label]:
    """The draft's queries that saw exactly a row up to some position, and pads that the mask hides."""
    labels: dict[Write, Label] = {}
    for call in run.trace.of(DRAFT):
        for (row, column), digest in np.ndenumerate(call.digests):
            if whose := run.rounds.places.get(int(digest)):
                request = row if row in whose else next(iter(whose))
                labels[call.number, row, column] = Label(request, whose[request], "token", exact=True)
            elif call.tokens[row, column] == run.case.pad_token_id and self_hidden(call, row)[column]:
                labels[call.number, row, column] = Label(-1, -1, "pad")
    return labels
