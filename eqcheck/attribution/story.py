"""A decode as data to be drawn (`eqcheck.result.story`): every call, and the rounds and the failing call of a row.

A query that stands for a token of its row is held against what attribution expects of it. Nothing is expected of
others: of pads, of draft tokens that were rejected, or of what a row is fed behind its first wrong token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from eqcheck.attribution.context import Context, read
from eqcheck.attribution.labels import labels_of
from eqcheck.attribution.record import Label, Write, self_hidden
from eqcheck.attribution.turns import Turns
from eqcheck.attribution.view import Entry, entries
from eqcheck.contract.family import FAMILY
from eqcheck.decoding.run import Run
from eqcheck.explanation.records import Explanation
from eqcheck.hashlm.hashing import Bools, table_row, truncated
from eqcheck.hashlm.trace import DRAFT, TARGET, Call
from eqcheck.result.story import DrawnCall, DrawnDecode, DrawnQuery, DrawnRow, DrawnSlot, Story

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
