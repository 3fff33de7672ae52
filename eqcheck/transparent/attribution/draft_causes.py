"""Read why draft tokens were lost from the calls of the draft, by the walk that reads those of the target.

A round of the target refused a draft token that a right draft would not have proposed. The walk begins at the draft's
query that had to predict the token in its place, and ends at the first deviation that led to it, of the kinds that the
target's queries have. Two more things go wrong with a draft: it is fed another token than the row's, or the target is
fed another token than it proposed. Losses that none of these explains have no cause here, and are counted all the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from eqcheck.contract.family import FAMILY
from eqcheck.contract.kinds import ALTERED, FED
from eqcheck.core.explanation.records import Explanation
from eqcheck.core.explanation.statements import NOTHING, Statement, state, together
from eqcheck.core.result.outcome import DraftCause
from eqcheck.transparent.attribution.context import Chain, Walk, read
from eqcheck.transparent.attribution.labels import Labels
from eqcheck.transparent.attribution.lost_drafts import DOUBTFUL, LosingRound, losses_of, rows_wait
from eqcheck.transparent.attribution.other_rows import said_of_query
from eqcheck.transparent.attribution.reading import query_of
from eqcheck.transparent.attribution.writes import NOT_DRAFTED_ON, Label, Sequences, Write, writes
from eqcheck.transparent.decoding import Run
from eqcheck.transparent.hashlm.hashing import CALL, COLUMN, MODEL, ROW, truncated
from eqcheck.transparent.hashlm.trace import DRAFT, Call
from eqcheck.transparent.rounds import Round

DROPPED = "lost-bonus"
READ = ("wrong-context", DOUBTFUL, "altered", "lost", DROPPED)  # losses of which the draft's calls may show the cause
_HIDES = ("mask/token-hidden", "cache/missing-entry")
Order = tuple[int, ...]
Cause = tuple[str, int, bool]  # as `eqcheck.core.result.outcome.DraftCause` begins


class Reading(NamedTuple):
    """The cause of one loss: its place in causal order, and the explanation."""

    order: Order
    explanation: Explanation


class DraftLabels(Labels):
    """The labels of the draft's calls.

    A draft feeds itself what it proposed, one token a call, so such a token is known by the query that proposed it and
    that its row's cache holds last. A rejected one may be anything, also an id that the row has elsewhere. ``misfed``
    are the queries that were fed another token than the row's where nothing was proposed; ``newest`` is the position of
    each row's newest token, as the target told it by a call.
    """

    role = DRAFT
    never_fed = NOT_DRAFTED_ON

    def __init__(self, run: Run) -> None:
        case, truth = run.case, run.truth
        rows = zip(case.prompts, truth.uncut, truth.rows, truth.digests, map(len, truth.rows), strict=True)
        self.misfed: set[Write] = set()
        self.newest = {row: len(prompt) - 1 for row, prompt in enumerate(case.prompts)}
        self._told = {(own.call.number, own.row): own.last + 1 for own in run.rounds.every}
        self._drafted: set[int] = set()  # the ids that the draft proposed since the target verified
        self._verified = 0  # the last call of the target
        super().__init__(run.trace, [Sequences(*row) for row in rows], case.pad_token_id, case.padding_side)

    def add(self, call: Call, given: bool = False) -> None:
        super().add(call, given)
        if call.role == DRAFT:
            self._drafted |= set(call.predictions.ravel().tolist())
            return
        self._verified, self._drafted = call.number, set()
        for (number, row), position in self._told.items():
            self.newest[row] = max(self.newest[row], position) if number == call.number else self.newest[row]

    def _label_row(self, call: Call, row: int, taken: set[int]) -> set[int]:
        begins = self._newest_fed(call, row)
        if not self._known(call, row):
            if (before := self._proposed_by(call, row)) is not None:
                return {self._proposed_behind(before, call, row)}
            begins = begins or self._due(call, row)
        elif call.tokens.shape[1] == 1:
            begins = None
        if begins is not None:  # several tokens of a row say more than one that is by chance the first of another
            request, first, at = begins
            columns = range(call.tokens.shape[1])
            places = [self.places.get(int(digest), []) for digest in call.digests[row]]
            exact = {c: p for c in columns for r, p in places[c] if (r, p) == (request, at + c - first)}
            self._label_columns(call, row, columns, request, first, at - first, exact)
            self._note_misfed(call, row)
            return {request}
        losses = super()._label_row(call, row, taken)
        self._note_misfed(call, row)
        return losses

    def _known(self, call: Call, row: int) -> bool:
        """Return whether a query of a row of a call is in the right context of a request.

        One token behind others, which sees itself alone, is no beginning, even if a prompt begins with it.
        """
        places = [place for digest in call.digests[row] for place in self.places.get(int(digest), [])]
        behind = call.tokens.shape[1] == 1 and bool(self._cached(call, row))
        return any(position or not behind for _, position in places)

    def _proposed_behind(self, before: Label, call: Call, row: int) -> int:
        """Label a draft token that stands behind a query with this label; the request that it is of.

        A beginning that several requests have is that of the one which goes on so, or drafts from there.
        """
        position, token = before.position + 1, int(call.tokens[row, 0])
        likely = [one for one in range(len(self.requests)) if self.same(before, one)] or [before.request]
        request = max(
            likely,
            key=lambda one: (
                self.is_at(one, position, token),
                self.newest[one] == before.position,
                one == before.request,
            ),
        )
        right = before.what == "token" and self.is_at(request, position, token)
        self.of[call.number, row, 0] = Label(request, position, "token" if right else "draft")
        if right:
            self.reached[request] = max(self.reached.get(request, -1), position)
        return request

    def _note_misfed(self, call: Call, row: int) -> None:
        """Tell apart what is neither the row's nor proposed: the first such token is misfed where the row has one
        there, all others fill up the row.
        """
        for column, label in enumerate(self.labels(call, row)):
            if label.what != "draft" or int(call.tokens[row, column]) in self._drafted:
                continue
            write = call.number, row, column
            if label.position <= self.newest[label.request] and not any(w[:2] == write[:2] for w in self.misfed):
                self.misfed.add(write)
            else:
                self.of[write] = replace(label, what="filler")

    def _cached(self, call: Call, row: int) -> list[tuple[int, Write]]:
        """The slots of a batch row that earlier calls of the draft wrote, and the writes."""
        return [
            (slot, (int(f[CALL]), int(f[ROW]), int(f[COLUMN])))
            for slot, f in enumerate(call.kv[0][0, row, 0])
            if f[MODEL] == self.role and f[CALL] < call.number
        ]

    def _proposed_by(self, call: Call, row: int) -> Label | None:
        """The label of the query that proposed the only token fed, if that was fed last and for a draft token."""
        written = [write for _, write in self._cached(call, row)] if call.tokens.shape[1] == 1 else []
        of_rows = [write for write in written if write in self.of and self.of[write].what in ("token", "draft")]
        if not of_rows or max(of_rows)[0] < self._verified:
            return None
        number, of_row, column = max(of_rows)
        label = self.of[number, of_row, column]
        proposed = int(self.calls[number].predictions[of_row, column])
        return label if proposed == int(call.tokens[row, 0]) else None

    def _newest_fed(self, call: Call, row: int) -> tuple[int, int, int] | None:
        """The request whose newest tokens alone a row of a call feeds, the column of the first, and its position."""
        tokens = call.tokens[row].tolist()
        real = [column for column, token in enumerate(tokens) if token != self.pad]
        if not real:
            return None
        losses = []
        for request, newest in self.newest.items():
            for end in range(real[-1] + 1, len(tokens) + 1):  # a pad id behind may be the row's own
                at = newest + 1 - (end - real[0])
                if at >= 0 and self.sequence(request)[at : newest + 1] == tuple(tokens[real[0] : end]):
                    losses.append((request, real[0], at))
        return losses[0] if len(losses) == 1 else None

    def _due(self, call: Call, row: int) -> tuple[int, int, int] | None:
        """The request and position that come next in a row's cache, where no token is fed that comes there or later.

        The number between them is the first column.
        """
        shown = [self.of.get(write) for slot, write in self._cached(call, row) if call.visible[row, 0, slot]]
        if not shown or any(label is None or label.what not in ("token", "draft") for label in shown):
            return None
        requests = {label.request for label in shown if label}
        positions = sorted(label.position for label in shown if label)
        if len(requests) != 1 or positions != list(range(len(positions))):
            return None
        request, at, fed = requests.pop(), len(positions), int(call.tokens[row, 0])
        later = self.sequence(request)[at : self.newest[request] + 1]
        of_others = {
            token
            for other, place in self.newest.items()
            for token in self.sequence(other)[place : place + 1]
            if other != request
        }
        return None if fed in later or fed in of_others or not later else (request, 0, at)


class DraftReader:
    """Reads the draft's calls of one run."""

    def __init__(self, run: Run) -> None:
        self.run, self.family = run, FAMILY[run.case.family]
        self.labels = DraftLabels(run)
        self.walk = Walk(self.labels, [truncated(digests[0]) for digests in run.truth.digests], self.family)

    def read(self, lost: LosingRound) -> Reading | None:
        """The cause of a loss; None where the draft's calls do not show it."""
        if lost.why == DROPPED:
            return self._dropped(lost)
        if lost.why not in READ or not lost.own.refused:
            return None
        if lost.why == "altered":
            return self._given_another(lost)
        if reading := self._fed_another(lost):
            return reading
        blamed = self._blamed(lost)
        if blamed is None:
            return None
        cause = self.walk.cause([blamed])
        if not isinstance(cause, Chain) or cause.root.deviation.component == "unattributed":
            return None
        return self._wrong_context(lost, cause)

    def _asked(self, lost: LosingRound) -> Iterator[tuple[Write, Label]]:
        """The draft's queries of the round which predicted the token that was refused."""
        for call in self.run.rounds.drafted_between(lost.since, lost.own.call.number):
            for row, column in np.argwhere(call.predictions == lost.own.refused[0]).tolist():
                write = (call.number, row, column)
                if write in self.labels.of:
                    yield write, self.labels.of[write]

    def _blamed(self, lost: LosingRound) -> Write | None:
        """The query that stood for the row's last right token and predicted the refused one."""
        row, position, fed = lost.own.row, lost.own.last, self._token(lost)
        asked = list(self._asked(lost))
        at = Label(row, position, "token")
        for write, label in asked:
            if label.what == "token" and label.position == position and self.labels.same(label, row):
                return write
        # One whose row was not recognised, by the two tokens; it agrees with both by chance once in their square.
        likely = [w for w, label in asked if not label.exact and self.labels.calls[w[0]].tokens[w[1:]] == fed]
        if len(likely) != 1:
            return None
        self.labels.take(likely[0], at.request, at.position)
        return likely[0]

    def _token(self, lost: LosingRound) -> int:
        return self.labels.sequence(lost.own.row)[lost.own.last]

    def _wrong_context(self, lost: LosingRound, cause: Chain) -> Reading:
        order, root, write = cause.root
        context = self.walk.context(write).blamed
        return Reading(
            order,
            self._explanation(
                lost,
                root.fingerprint,
                said_of_query(root, write, self.labels),
                round=self._round(lost.own.row, write[0]),
                query=query_of(write, self.labels, self.family),
                deviations=cause.alike,
                consequences=cause.rest,
                slots=context.slots,
                tied=True,
            ),
        )

    def _fed_another(self, lost: LosingRound) -> Reading | None:
        """The cause of a draft that was fed another token than the row's: the first one that led to the loss.

        The query must attend to nothing else that is wrong.
        """
        for write, _ in self._asked(lost):
            call, call_row, column = self.labels.calls[write[0]], write[1], write[2]
            slots = range(call.visible.shape[2])
            seen = {w for slot, w in zip(slots, writes(call, call_row), strict=False) if call.visible[write[1:]][slot]}
            if not (misfed := sorted((seen | {write}) & self.labels.misfed)):
                continue
            first = misfed[0]
            number, of_row, at = first
            label, fed = self.labels.of[first], int(self.labels.calls[number].tokens[of_row, at])
            if label.request != lost.own.row or self._wrong_beside(first, label):
                continue
            due = self.labels.sequence(label.request)[label.position]
            said = state(FED, call=number, fed=fed, position=label.position, due=due)
            return Reading((number, 0, column), self._explanation(lost, FED, said, tied=True))
        return None

    def _wrong_beside(self, write: Write, label: Label) -> bool:
        """Return whether a query that was fed another token attends to anything else that is wrong."""
        call, (_, row, column) = self.labels.calls[write[0]], write
        losses = read(call, row, column, replace(label, what="token"), self.labels, self.walk.stored, self.family)
        own = {slot for slot, w in enumerate(writes(call, row)) if w == write}
        return any(one.slot not in own and one.token_position != label.position for one in losses.deviations)

    def _given_another(self, lost: LosingRound) -> Reading | None:
        """The cause of a loss where the draft proposed the right token, in its right context."""
        own, row, position = lost.own, lost.own.row, lost.own.last
        index, given = own.answered, own.refused[0]
        asked = [number for number, at in self.run.rounds.asked(row, lost.since, own.call.number) if at == position]
        right = self.run.truth.uncut[row][index] if index < len(self.run.truth.uncut[row]) else None
        if not asked or right is None or given == right:
            return None
        said = state(ALTERED, call=asked[-1], proposed=right, target_call=own.call.number, given=given)
        from_row = self._proposed_for(lost)
        if from_row is not None:
            said = together(said, state("proposal-of", other_row=from_row))
        return Reading((own.call.number, 0, 0), self._explanation(lost, ALTERED, said, tied=True))

    def _dropped(self, lost: LosingRound) -> Reading | None:
        """The answer of the target behind accepted draft tokens, which was drafted and verified again."""
        rounds = self.run.rounds.every
        row, since = lost.own.row, lost.since
        before = next((one for one in rounds if (one.row, one.call.number) == (row, since)), None)
        truth = self.run.truth.uncut[row]
        if before is None or not lost.kept <= before.answered < len(truth):
            return None
        index, again = before.answered, lost.own.call.number
        said = state("answer-dropped", call=since, token=truth[index], index=index, again=again)
        explanation = replace(
            self._explanation(lost, "", said, round=self._round(row, since), tied=True),
            kind="lost-bonus",
            token_index=lost.kept,
            expected=truth[lost.kept],
            observed=None,
            expected_row=truth[: index + 1],
            observed_row=truth[: lost.kept],
        )
        return Reading((since, 0, 0), explanation)

    def _proposed_for(self, lost: LosingRound) -> int | None:
        """Another row, for which alone the draft proposed the token that was verified."""
        rows = {label.request for _, label in self._asked(lost) if label.exact and label.what == "token"}
        return rows.pop() if len(rows) == 1 and lost.own.row not in rows else None

    def window(self, reading: Reading) -> int:
        """Return how many of a row's newest tokens the query at fault saw, where it saw these and nothing else.

        0 where it saw others, and where another query of the draft is seen to look back farther.
        """
        query, deviations = reading.explanation.query, reading.explanation.deviations
        if query is None or reading.explanation.subject not in _HIDES:
            return 0
        absent = {deviation.token_position for deviation in deviations}
        seen = query.logical_position + 1 - len(absent)
        if absent != set(range(len(absent))) or not seen:
            return 0
        context = self.walk.context((query.call, query.call_row, query.column))
        others = [
            deviation
            for deviation in context.deviations
            if deviation not in deviations and deviation.kind != "poisoned-entry"
        ]
        farthest = max((label.position for label in self.labels.of.values() if label.exact), default=0)
        return 0 if others or farthest >= seen else seen

    def _explanation(self, lost: LosingRound, subject: str, said: Statement = NOTHING, **more: object) -> Explanation:
        own, row = lost.own, lost.own.row
        index, truth = own.answered, self.run.truth.uncut[lost.own.row]
        return Explanation(
            "draft",
            "desync",
            row=row,
            token_index=index,
            expected=truth[index] if index < len(truth) else None,
            observed=own.refused[0] if own.refused else None,
            expected_row=truth[: index + 1],
            observed_row=(*truth[:index], *own.refused),
            given=self.run.case.given(row),
            detail=said.detail,
            facts=said.facts,
            subject=subject,
            **more,  # type: ignore[arg-type]
        )

    def _round(self, row: int, number: int) -> int:
        """The number of the round of a row, from 1, that a draft call was made for."""
        return 1 + sum(one.row == row and one.call.number < number for one in self._once)

    @cached_property
    def _once(self) -> list[Round]:
        return self.run.rounds.once()


def causes_of(run: Run) -> tuple[DraftCause, ...]:
    """The draft tokens that a run lost, by cause in causal order; those without one are left out.

    Nothing is read where nothing was lost.
    """
    losses = losses_of(run)
    if not any(lost.why in READ for lost in (*losses.alone, *losses.waiting)):
        return ()
    reader, first = DraftReader(run), dict[Cause, Order]()
    tokens = Counter[tuple[Cause, bool]]()
    for waits, of_mode in ((False, losses.alone), (True, losses.waiting)):
        for lost in of_mode:
            if reading := reader.read(lost):
                cause = reading.explanation.fingerprint, reader.window(reading), lost.why == DOUBTFUL
                tokens[cause, waits] += lost.tokens
                first[cause] = min(first.get(cause, reading.order), reading.order)
    waits = rows_wait(losses.counts)  # as far as this run tells: what is lost in the other mode comes last
    ordered = sorted(first, key=lambda cause: (not tokens[cause, waits], first[cause]))
    return tuple(DraftCause(*cause, tokens[cause, False], tokens[cause, True]) for cause in ordered)


def explained(run: Run, fingerprint: str = "") -> Explanation | None:
    """The first loss of a run in causal order, of a cause with this fingerprint or of any; None where none has one."""
    losses = losses_of(run)
    if not any(lost.why in READ for lost in (*losses.alone, *losses.waiting)):
        return None
    reader = DraftReader(run)
    of_mode = losses.waiting if rows_wait(losses.counts) else losses.alone
    readings = [reading for lost in of_mode if (reading := reader.read(lost))]
    named = [one for one in readings if not fingerprint or one.explanation.fingerprint == fingerprint]
    return min(named, key=lambda one: one.order).explanation if named else None
