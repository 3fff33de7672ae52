"""Where an emitted token may come from: which draft proposed it, and which queries of the target answered it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from eqcheck.attribution.bookkeeping import Known
from eqcheck.attribution.labels import Labels
from eqcheck.attribution.packed import sees_twins
from eqcheck.attribution.record import Write, self_hidden
from eqcheck.decoding.run import Run
from eqcheck.explanation.statements import Statement, state
from eqcheck.hashlm.trace import DRAFT
from eqcheck.result.verdict import RowVerdict


class Told(NamedTuple):
    """A fault of bookkeeping that a call shows: its kind, what is said of it, the call, and what that rests on."""

    kind: str
    statement: Statement
    call: int
    basis: str


class Sources:
    """The answers and proposals of one run, by the token of the row that they follow."""

    def __init__(self, run: Run, labels: Labels) -> None:
        self.run, self.labels = run, labels

    def predicted(self, write: Write) -> int:
        return int(self.labels.calls[write[0]].predictions[write[1:]])

    def known(self, row: int, position: int, number: int, queried: bool) -> Known:
        """What was known around call ``number``: between the row's calls before and after it."""
        emitted = (self.run.outputs or self.run.truth.rows)[row]
        index = position + 1 - len(self.run.case.prompts[row])
        observed = emitted[index] if index < len(emitted) else -1
        rounds = self.labels.rounds[row]
        before = max((n for n in rounds if n < number), default=0)
        after = min((n for n in rounds if n > number), default=max(self.labels.calls, default=0) + 1)
        calls = [call for n, call in self.labels.calls.items() if before < n < after]
        misled = [
            write
            for write, label in self.labels.of.items()
            if before < write[0] < after and label.request == row and label.what in ("draft", "filler")
        ]
        misled += [*self.after_rejected(row, position), *self._behind(row, position)]
        return Known(
            drafted=self.drafted(row, position),
            verified=self._verified(row, position),
            after_rejected={self.predicted(write) for write in misled if not self.fills(write)},
            filled={self.predicted(write) for write in misled if self.fills(write)},
            nearby={int(token) for call in calls for token in call.predictions.ravel()},
            queried=queried,
            next_queried=any(label.exact for _, label in self.labels.queries(row, position + 1)),
            exchanged=self._exchanged(row, position),
            for_another=self.for_another(row, observed, before + 1, after - 1),
            behind_pad=self.behind_pad(row, observed, before + 1, after - 1),
            ending=self.ending(row, number) if rounds and index == len(emitted) else (),
            beside=self._beside(row, position),
        )

    def ending(self, row: int, number: int) -> tuple[Statement, ...]:
        """What happened in the round of call ``number``, in which a row ended early, to this row and others."""
        case, outputs, expected = self.run.case, self.run.outputs or (), self.run.truth.rows
        eos, tokens, missing = set(case.eos_token_ids), outputs[row], expected[row][len(outputs[row])]
        said = []
        if answered := self.answered(row, len(tokens)):
            name = "eos-answered" if missing in eos else "next-answered"
            said.append(state(name, missing=missing, answered_in=answered))
        here = [own for own in self.run.rounds.every if own.call.number in self._round(number)]
        ended = {r for r, right in enumerate(expected) if r != row and outputs[r] == right and self._ends_in(r, number)}
        drafted = {own.row: eos & set(own.refused) & self.labels.proposed(own.row, number) for own in here}
        for name, rows, found in (
            ("eos-of-others", "eos_rows", {r for r in ended if outputs[r][-1] in eos}),
            ("limit-of-others", "limit_rows", {r for r in ended if outputs[r][-1] not in eos}),
            ("all-right", "full_rows", {own.row for own in here if own.accepted and not own.columns}),
            ("eos-drafted", "drafted_rows", {r for r, some in drafted.items() if some}),
        ):
            if found:
                said.append(state(name, **{rows: " ".join(map(str, sorted(found)))}))
        others = [one for r, one in enumerate(outputs) if r not in (row, *ended) and one != expected[r]]
        if len(outputs) > 1 and not ended and not any(one and one[-1] in eos for one in others):
            said.append(state("nobody-ended"))
        prompt, room = case.prompts[row], case.max_new_tokens - len(tokens)
        if in_prompt := eos & set(prompt):
            said.append(state("eos-in-prompt", eos_position=min(map(prompt.index, in_prompt))))
        if expected[row].count(case.pad_token_id) == len(expected[row]) - len(tokens):
            said.append(state("as-many-pads"))
        if tokens[-1:] == (case.pad_token_id,):
            said.append(state("pad-last"))
        if case.num_draft_tokens and room <= case.num_draft_tokens:
            said.append(state("little-room", room=room, block=case.num_draft_tokens + 1))
        if max(self.labels.calls) in self._round(number):
            said.append(state("calls-end"))
        return tuple(said)

    def answered(self, row: int, index: int) -> int | None:
        """The first call that answered for a new token of a row in exactly the right context."""
        position = len(self.run.case.prompts[row]) + index - 1
        return next((write[0] for write, label in self.labels.queries(row, position) if label.exact), None)

    def _round(self, number: int) -> range:
        """The target calls of a round: those around a call between which the draft was not asked."""
        drafted = [call.number for call in self.run.trace.made(DRAFT)]
        if not drafted:
            return range(number, number + 1)
        since = max((call for call in drafted if call < number), default=0)
        return range(since + 1, min((call for call in drafted if call > number), default=max(self.labels.calls) + 1))

    def _ends_in(self, row: int, number: int) -> bool:
        """Whether the last token that a row is due was answered in the round of a call."""
        return self.answered(row, len(self.run.truth.rows[row]) - 1) in self._round(number)

    def unfinished(self, verdict: RowVerdict, index: int) -> Told | None:
        """The query of a prompt that was not yet fed whole, which answered the emitted token; None where there is none.

        It is one of the last columns fed, as many as a round asks for. Only a row's first token can be that answer:
        those behind it follow an answer to the whole prompt.
        """
        if index:
            return None
        row, observed = verdict.row, verdict.observed[index]
        end = len(self.run.case.prompts[row]) - 1
        fed: dict[int, list[Write]] = {}
        for write, label in self.labels.of.items():
            if label.request == row and label.exact and write[0] > self.run.trace.given:
                if label.position >= end:
                    fed.pop(write[0], None)  # here it was whole
                    break
                fed.setdefault(write[0], []).append(write)
        for number, of_call in fed.items():
            last = max(self.labels.of[write].position for write in of_call)
            for write in reversed(of_call):
                position = self.labels.of[write].position
                if position >= last - (self.run.case.num_draft_tokens or 0) and self.predicted(write) == observed:
                    said = state("unfinished", call=number, last=last, end=end, position=position)
                    return Told("unfinished-prompt", said, number, f"call {number} was fed a piece of the prompt")
        return None

    def drafted(self, row: int, position: int) -> set[int]:
        """The tokens the draft proposed after this token of the row.

        Read from the draft's queries that saw exactly its row; where none did, from what the target was fed next. A
        decoder that drafts without the draft model first feeds what it proposes together with the query.
        """
        if self.labels.branches:
            return self.proposed(row, position) | self._verified(row, position)
        proposed = self.proposed(row, position)
        if self.labels.drafted and proposed:
            return proposed
        drafts = self.run.trace.of(DRAFT) if self.labels.drafted else []
        queries, found = self.labels.queries(row, position), proposed
        for (number, call_row, column), _ in queries if drafts else queries[:1]:
            told = [call.predictions for call in drafts if call.number < number]
            for token in self.labels.calls[number].tokens[call_row, column + 1 : column + 2].tolist():
                if not drafts or any((token == predictions).any() for predictions in told):
                    found.add(token)
        return found

    def proposed(self, row: int, position: int) -> set[int]:
        """What the draft's queries that saw exactly the row up to this token of it proposed after it.

        Where the decoder feeds what was predicted next to the query, it had the token already.
        """
        digests = self.run.truth.digests[row][-1]
        if position >= len(digests):
            return set()
        calls = self.run.trace.of(DRAFT)
        found = ((call, call.digests == digests[position]) for call in calls)
        return {int(token) for call, which in found if which.any() for token in call.predictions[which & call.tells]}

    def fills(self, write: Write) -> bool:
        """Whether a column only fills up the row of its call: so it is labelled, or the mask hides it from itself.

        What no draft's first choice was may be a node of a tree all the same.
        """
        return self._hidden(write) or (self.labels.of[write].what == "filler" and not self.labels.branches)

    def _hidden(self, write: Write) -> bool:
        number, call_row, column = write
        return self_hidden(self.labels.calls[number], call_row)[column]

    def after_rejected(self, row: int, position: int) -> list[Write]:
        """The queries of rejected draft tokens, or of filler, that stood where this token of the row should have."""
        return [
            write
            for write, label in self.labels.of.items()
            if (label.request, label.position) == (row, position) and label.what in ("draft", "filler")
        ]

    def _behind(self, row: int, position: int) -> list[Write]:
        """The queries behind this token of the row, in the first call that asked for the one after it, that are wrong.

        One that fed a draft token is not known for one where that token was emitted.
        """
        for (number, call_row, column), _ in self.labels.queries(row, position)[:1]:
            width = self.labels.calls[number].tokens.shape[1]
            behind = [(number, call_row, at) for at in range(column + 1, width)]
            fed = [(write, self.labels.of[write]) for write in behind]
            return [w for w, one in fed if one.request == row and one.what in ("token", "draft") and not one.exact]
        return []

    def _verified(self, row: int, position: int) -> set[int]:
        """What the target was fed behind this token of the row, in calls that asked for the one after it.

        Where the draft is fed the target's answers, only the first of these calls counts: later ones feed what was
        committed meanwhile.
        """
        queries = [write[0] for write, _ in self.labels.queries(row, position)]
        counted = queries[:1] if self._exchanged(row, position) else queries
        return {
            int(self.labels.calls[write[0]].tokens[write[1:]])
            for write, label in self.labels.of.items()
            if write[0] in counted
            if (label.request, label.position) == (row, position + 1) and label.what in ("token", "draft", "filler")
        }

    def _beside(self, row: int, position: int) -> frozenset[int]:
        """What the target was fed behind this token of the row in the first call that asked for the one after it."""
        for (number, call_row, column), _ in self.labels.queries(row, position)[:1]:
            return frozenset(self.labels.calls[number].tokens[call_row, column + 1 : column + 2].tolist())
        return frozenset()

    def _exchanged(self, row: int, position: int) -> bool:
        """Whether the draft, having seen exactly the row, was fed next to it what the target predicts there."""
        whole = self.labels.sequence(row)
        if position + 1 >= len(whole):
            return False
        digest, expected = self.run.truth.digests[row][-1, position], whole[position + 1]
        return any(
            bool((call.tokens[:, 1:][call.digests[:, :-1] == digest] == expected).any())
            for call in self.run.trace.made(DRAFT)
        )

    def shared(self, row: int, position: int) -> bool:
        """Whether another row has the same tokens up to there: then a right query may have been asked for that one."""
        digests = self.run.truth.digests
        digest = digests[row][-1, position]
        others = (other[-1] for request, other in enumerate(digests) if request != row)
        return any(position < len(other) and other[position] == digest for other in others)

    def for_another(self, row: int, observed: int, since: int, until: int) -> tuple[int, int] | None:
        """The request and logical position that the target was asked for where it answered this token, in these calls.

        Only queries that saw exactly their row count, and of those one that is not asked for this row first.
        """
        found = [
            (label.request, label.position)
            for write, label in self.labels.of.items()
            if since <= write[0] <= until and label.exact and self.predicted(write) == observed
        ]
        return min(found, key=lambda place: place[0] == row, default=None)

    def strange(
        self, row: int, position: int, observed: int, since: int, until: int, *, whatever: bool = False
    ) -> Write | None:
        """A query of these calls that answered this token and may have been asked for this place of the row.

        That is one which fed the token of this place (or ``whatever``), did not see exactly its row, and is not hidden
        from itself.
        """
        expected = self.labels.sequence(row)[position]
        for write, label in self.labels.of.items():
            fed = int(self.labels.calls[write[0]].tokens[write[1:]])
            answered = since <= write[0] <= until and self.predicted(write) == observed
            if answered and not label.exact and (whatever or fed == expected) and not self._hidden(write):
                return write
        return None

    def at_a_node(
        self, verdict: RowVerdict, index: int, right: Sequence[Write], drafted: bool, blamed: Sequence[Write]
    ) -> Told | None:
        """Of a tree, the node at which the emitted token was answered, where nothing simpler says where it is from.

        ``right`` are the queries that answered rightly for this token. If there are none, and no node was fed for the
        token before it, that one was accepted without being in the tree.
        """
        if any(sees_twins(self.labels.calls[write[0]], *write[1:]) for write in blamed):
            return None
        observed, row = verdict.observed, verdict.row
        position = len(self.run.case.prompts[row]) + index - 1
        again = index > 0 and observed[index] == observed[index - 1]
        goes_on = verdict.expected[index : index + 1] == observed[index + 1 : index + 2]
        if right:
            other = self._other_column(right[-1], observed[index])
            if drafted or other is None or (again and goes_on):
                return None
            call, batch_row, at = right[-1]
            said = state("other-node", call=call, batch_row=batch_row, right_column=at, column=other)
            basis = f"the query that had to predict it saw exactly its row (call {call})"
            return Told("wrong-correction", said, call, basis)
        before = [write for write, label in self.labels.queries(row, position - 1) if label.exact]
        if index == 0 or self.labels.queries(row, position) or not before:
            return None
        other, (call, batch_row, _) = self._other_column(before[-1], observed[index]), before[-1]
        if other is None:
            return None
        said = state("missing-node", call=call, batch_row=batch_row, column=other, position=position)
        return Told("over-accept", said, call, "no query stands for the token before it")

    def _other_column(self, write: Write, answer: int) -> int | None:
        """Another column of a query's batch row that gave this answer."""
        number, row, column = write
        answers = self.labels.calls[number].predictions[row].tolist()
        return next((at for at, other in enumerate(answers) if other == answer and at != column), None)

    def committed_by(self, row: int, position: int, observed: int) -> int:
        """The last call that can have answered for the emitted token after ``position``.

        A token that was no draft is fed only after it was committed; so a query of that call or later, asked because
        the decoder feeds its rows again, came too late. A token that is fed beside its first query is a draft.
        """
        first = min(
            (
                write[0]
                for write, label in self.labels.of.items()
                if (label.request, label.position) == (row, position + 1)
                and int(self.labels.calls[write[0]].tokens[write[1:]]) == observed
            ),
            default=max(self.labels.calls, default=0) + 1,
        )
        asked = any(label.exact and write[0] < first for write, label in self.labels.queries(row, position))
        return first - 1 if asked and observed not in self.drafted(row, position) else first

    def nothing_else_asked(self, row: int) -> bool:
        """Whether, after the row's last right query, every row of every call is known to be right somewhere.

        A row of which no query at all was recognised may have been asked about in disguise, unless nothing was asked.
        """
        if not self.labels.rounds[row]:
            return not self.labels.calls
        right = {write for write, label in self.labels.of.items() if label.exact}
        last = max((write[0] for write in right if self.labels.of[write].request == row), default=0)
        rows = {write[:2] for write in self.labels.of if write[0] > last}
        return rows <= {write[:2] for write in right}

    def behind_pad(self, row: int, observed: int, since: int, until: int) -> bool:
        """Whether the target answered this token in the column of a pad of the row, in these calls."""
        return any(
            since <= write[0] <= until and label.what in ("pad", "filler") and self.predicted(write) == observed
            for write, label in self.labels.of.items()
            if label.request == row
        )
