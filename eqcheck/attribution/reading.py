"""Attribution by reading: from the first wrong token back to the first wrong context that led to it.

The walk is backwards and therefore never blames what did not matter. It starts at the query that had to predict the
wrong token. If that query saw exactly its row, the fault is bookkeeping. If not, its context is read; entries
written under an earlier wrong context lead to the queries that wrote them, and so on. The earliest deviation is
the cause, the rest are consequences.
"""

from __future__ import annotations

from dataclasses import replace

from eqcheck.attribution.bookkeeping import diagnose
from eqcheck.attribution.context import FED_WITH, Context, displaced, read
from eqcheck.attribution.handover import said_of_query
from eqcheck.attribution.labels import labels_of
from eqcheck.attribution.record import Write
from eqcheck.attribution.sources import Sources, Told
from eqcheck.attribution.whole_rows import prompt_returned
from eqcheck.contract.family import FAMILY
from eqcheck.contract.kinds import KINDS
from eqcheck.decoding.run import Run
from eqcheck.explanation.records import Deviation, Explanation, Query
from eqcheck.explanation.statements import NOTHING, Statement, state
from eqcheck.hashlm.hashing import truncated
from eqcheck.result.verdict import RowVerdict

_LAST = (10**9,)


class Reader:
    """Reads the trace of one run."""

    def __init__(self, run: Run) -> None:
        assert run.outputs is not None
        self.run = run
        self.family = FAMILY[run.case.family]
        self.outputs = run.outputs
        self.stored = [truncated(digests[0]) for digests in run.truth.digests]
        self.labels = labels_of(run, run.trace)
        self.sources = Sources(run, self.labels)
        self._contexts: dict[Write, Context] = {}

    def explain(self) -> Explanation | None:
        """The first fault in causal order over all wrong rows; None when every row is right."""
        rows = enumerate(zip(self.run.truth.rows, self.outputs, strict=True))
        verdicts = [RowVerdict(row, expected, observed) for row, (expected, observed) in rows]
        wrong = [verdict for verdict in verdicts if verdict.first is not None]
        if not wrong:
            return None
        case, limits = self.run.case, [self.run.case.max_new_tokens] * len(verdicts)
        if whole := prompt_returned(case.prompts, verdicts, limits, case.pad_token_id, case.eos_token_ids):
            first, statement = whole
            best = self._explanation("bookkeeping", "prompt-in-output", first, first.first or 0, statement, tied=True)
            return replace(best, wrong_rows=tuple(verdict.row for verdict in wrong))
        _, best = min((self._diagnose(verdict) for verdict in wrong), key=lambda found: found[0])
        return replace(best, wrong_rows=tuple(verdict.row for verdict in wrong))

    def unseen(self) -> Explanation | None:
        """The first emitted token that no query with exactly the right context stands behind, or None.

        This finds a wrong context even where it led to the right token by chance.
        """
        for row, tokens in enumerate(self.outputs):
            for index in range(len(tokens)):
                position = len(self.run.case.prompts[row]) + index - 1
                queries = self.labels.queries(row, position)
                if not any(label.exact for _, label in queries) and not self._same_context(row, position):
                    verdict = RowVerdict(row, self.run.truth.rows[row], tokens)
                    asked = [write for write, _ in queries]
                    answered = [write for write in asked if self.sources.predicted(write) == tokens[index]]
                    return self._context_fault(verdict, index, answered or asked)[1]
        return None

    def _same_context(self, row: int, position: int) -> bool:
        """Whether a row with the same beginning had its query answered: then this one needed none of its own."""
        digests = self.run.truth.digests
        digest = digests[row][-1, position]
        return any(
            position < other.shape[1]
            and other[-1, position] == digest
            and any(label.exact for _, label in self.labels.queries(request, position))
            for request, other in enumerate(digests)
        )

    def _diagnose(self, verdict: RowVerdict) -> tuple[tuple[int, ...], Explanation]:
        row, index = verdict.row, verdict.first
        assert index is not None
        if index in (len(verdict.observed), len(verdict.expected)):
            last = max(self.labels.rounds[row], default=0)  # a row may stay in the batch after its end
            number = self.sources.answered(row, index) if index < len(verdict.expected) else last
            return self._bookkeeping(verdict, index, number or last, "the row is right so far")
        position = len(self.run.case.prompts[row]) + index - 1
        queries = self.labels.queries(row, position)
        observed = verdict.observed[index]
        commit = self.sources.committed_by(row, position, observed)
        right = [write for write, label in queries if label.exact and write[0] <= commit]
        wrong = [write for write, label in queries if not label.exact]
        blamed = [write for write in wrong if self.sources.predicted(write) == observed]
        drafted = observed in self.sources.drafted(row, position)
        loosely = False
        if not blamed and not (right and drafted):
            blamed = self._asked_loosely(row, position, observed, commit)
            loosely = bool(blamed)
        if not blamed and (told := self.sources.unfinished(verdict, index)):
            return self._told(verdict, index, told)
        node = self.labels.branches and (right or not blamed)
        if node and (told := self.sources.at_a_node(verdict, index, right, drafted, blamed)):
            return self._told(verdict, index, told)
        repeated = index > 0 and observed == verdict.observed[index - 1] and not drafted
        if blamed or (wrong and not right and not repeated):
            key, found = self._context_fault(verdict, index, blamed or wrong)
            return key, replace(found, tied=bool(blamed) and not loosely)
        if self.run.trace.rounded and (answered := [w for w in right if self.sources.predicted(w) == observed]):
            return self._by_rounding(verdict, index, answered[-1])
        if right:
            basis = f"the query that had to predict it saw exactly its row (call {right[-1][0]})"
            key, found = self._bookkeeping(verdict, index, right[-1][0], basis, queried=True)
            # An answer may be left unread for that of a later query, of which it is not known whom it stands for.
            other = self._unread(row, position, observed, right[-1][0], commit)
            if other is None and found.facts["statement"] == "neither":
                other = self.sources.strange(row, position, observed, right[-1][0], commit, whatever=True)
            if other is not None:
                call, batch_row, column = other
                places = {"other_call": call, "batch_row": batch_row, "column": column}
                return self._unattributed(verdict, index, state("unread-answer", right_call=right[-1][0], **places))
            return key, found
        misled = [
            write for write in self.sources.after_rejected(row, position) if self.sources.predicted(write) == observed
        ]
        if misled:
            where = (
                "in the column of filler" if self.sources.fills(misled[0]) else "behind a draft token that was rejected"
            )
            basis = f"no query asked for it; call {misled[0][0]} answered it {where}"
            return self._bookkeeping(verdict, index, misled[0][0], basis)
        if repeated or observed in self.sources.proposed(row, position) or self.sources.nothing_else_asked(row):
            last = max(self.labels.rounds[row], default=0)
            key, found = self._bookkeeping(verdict, index, last, "no query asked for it")
            if found.tied or found.kind != "wrong-correction":  # else it is known neither who asked nor who answered
                return key, found
        return self._unattributed(verdict, index, state("no-query"))

    def _by_rounding(self, verdict: RowVerdict, index: int, write: Write) -> tuple[tuple[int, ...], Explanation]:
        """A query that saw exactly its row but for what its cache makes of entries, and answered wrongly."""
        origin = f"entries are up to {self.run.trace.rounded:.2g} of their length away from what was written"
        torn = Deviation("cache", "torn-entry", write[0], write[2], verdict.row, origin=origin, source="rounded")
        found = self._explanation(
            "cache",
            "torn-entry",
            verdict,
            index,
            round=self.labels.round_of(verdict.row, write[0]),
            query=self._query(write),
            deviations=(torn,),
            slots=self._context(write).slots,
        )
        return _order(torn, write), replace(found, tied=True)

    def _query(self, write: Write) -> Query:
        number, call_row, column = write
        call, label = self.labels.calls[number], self.labels.of[write]
        return Query(
            call=number,
            call_row=call_row,
            column=column,
            token=int(call.tokens[call_row, column]),
            logical_position=label.position,
            position=int(call.positions[call_row, column]),
            predicted=self.sources.predicted(write),
            sees_from=self.family.first_seen(label.position),
        )

    def _told(self, verdict: RowVerdict, index: int, told: Told) -> tuple[tuple[int, ...], Explanation]:
        """A fault of bookkeeping that what a call shows proves."""
        place = {"round": self.labels.round_of(verdict.row, told.call), "tied": True, "basis": told.basis}
        found = self._explanation("bookkeeping", told.kind, verdict, index, told.statement, **place)
        return (told.call, KINDS[told.kind].rank, 0), found

    def _unread(self, row: int, position: int, observed: int, since: int, until: int) -> Write | None:
        """A query with a wrong context that answered what was emitted, where nothing else says where that is from."""
        sources, known = self.sources, self.sources.known(row, position, since, True)
        uncut = self.run.truth.uncut[row][position + 1 - len(self.run.case.prompts[row]) :]
        if observed in known.drafted | known.after_rejected or observed in uncut[:3]:  # or up to two tokens were lost
            return None
        if sources.for_another(row, observed, since, until) is not None:
            return None
        return sources.strange(row, position, observed, since, until)

    def _asked_loosely(self, row: int, position: int, observed: int, commit: int) -> list[Write]:
        """A query labelled otherwise, up to call ``commit``, that fed the right token and predicted what was emitted.

        One that saw another row's cache, say, is taken for that row's. Both tokens agree by chance once in the square
        of the vocabulary.
        """
        token = self.labels.sequence(row)[position]
        twice = set() if self.labels.queries(row, position) else self.labels.standing_twice(row)
        recognised = {write[:2] for write, label in self.labels.of.items() if label.exact} - twice
        found = [
            write
            for write, label in self.labels.of.items()
            if (not label.exact or write[:2] in twice) and write[0] <= commit and write[:2] not in recognised
            if int(self.labels.calls[write[0]].tokens[write[1:]]) == token and self.sources.predicted(write) == observed
        ]
        for write in found[:1]:
            self.labels.take(write, row, position)
        return found[:1]

    def _context(self, write: Write) -> Context:
        if write not in self._contexts:
            number, row, column = write
            label = self.labels.of[write]
            call = self.labels.calls[number]
            self._contexts[write] = read(call, row, column, label, self.labels, self.stored, self.family)
        return self._contexts[write]

    def _context_fault(
        self, verdict: RowVerdict, index: int, blamed: list[Write]
    ) -> tuple[tuple[int, ...], Explanation]:
        found = self._followed(blamed[:1])
        roots = [one for one in found if not (KINDS[one[1].kind].inherited and self._explained(one[1], one[2]))]
        if not roots:
            return self._unattributed(verdict, index, state("no-difference" if blamed else "no-right-query"))
        key, root, write = roots[0]
        if root.kind == "poisoned-entry":
            changed = self._changed(root, write)
            if changed is None:
                return self._unattributed(verdict, index, state("slot-unexplained", slot=root.slot or 0))
            root = changed
        of_write = self._context(write).deviations
        if root.component == "mask" and (slots := displaced(self.labels.calls[write[0]], *write[1:], of_write)):
            return self._unattributed(verdict, index, state("displaced", shown_slot=slots[0], own_slot=slots[1]))
        if root.kind == "key-position" and root.source == FED_WITH:
            root, write = self._as_fed(root, write)
        same_query = tuple(d for _, d, w in roots if w == write and d.fingerprint == root.fingerprint) or (root,)
        rest = tuple(d for _, d, w in found if d not in same_query)
        explanation = self._explanation(
            root.component,
            root.kind,
            verdict,
            index,
            said_of_query(root, write, self.labels),
            round=self.labels.round_of(verdict.row, write[0]),
            query=self._query(write),
            deviations=same_query,
            consequences=rest,
            slots=self._context(write).slots,
        )
        return key, explanation

    def _followed(self, pending: list[Write]) -> list[tuple[tuple[int, ...], Deviation, Write]]:
        """What queries saw wrongly, and the queries that wrote it, and so on, in causal order."""
        visited: set[Write] = set()
        found: list[tuple[tuple[int, ...], Deviation, Write]] = []
        while pending:
            write = pending.pop()
            if write in visited or write not in self.labels.of or self.labels.of[write].what != "token":
                continue
            visited.add(write)
            context = self._context(write)
            pending += context.follow
            found += [(_order(deviation, write), deviation, write) for deviation in context.deviations]
        return sorted(found, key=lambda one: one[0])

    def _changed(self, deviation: Deviation, write: Write) -> Deviation | None:
        """A slot whose own query was right when it was written, so that it was changed since; None for any other."""
        at = deviation.token_position
        writers = [w for w in self._context(write).follow if w in self.labels.of and self.labels.of[w].position == at]
        if not any(self.labels.of[writer].exact for writer in writers):
            return None
        return replace(deviation, kind="torn-entry", source="layer-1", origin="layer 1 does not hold what was written")

    def _as_fed(self, deviation: Deviation, write: Write) -> tuple[Deviation, Write]:
        """A key that was fed with a wrong position: the query that it was then, which carries the position."""
        entries = {writer for writer in self._context(write).follow if writer in self.labels.of}
        for writer in entries:
            label, call = self.labels.of[writer], self.labels.calls[writer[0]]
            if label.position == deviation.token_position and call.positions[writer[1:]] == deviation.observed:
                fed = replace(deviation, kind="query-position", call=writer[0], column=writer[2], slot=None)
                return replace(fed, origin="", source=""), writer
        return deviation, write

    def _explained(self, deviation: Deviation, write: Write) -> bool:
        """Whether an entry's deviation comes from an earlier wrong query, which is then read itself."""
        context = self._context(write)
        at = deviation.token_position
        return any(
            self._context(w).deviations
            for w in context.follow
            if w in self.labels.of and self.labels.of[w].what == "token" and self.labels.of[w].position == at
        )

    def _bookkeeping(
        self, verdict: RowVerdict, index: int, number: int, basis: str = "", queried: bool = False
    ) -> tuple[tuple[int, ...], Explanation]:
        position = len(self.run.case.prompts[verdict.row]) + index - 1
        known = self.sources.known(verdict.row, position, number, queried)
        kind, statement, certain = diagnose(verdict, index, self.run, known)
        explanation = self._explanation(
            "bookkeeping",
            kind,
            verdict,
            index,
            statement,
            round=self.labels.round_of(verdict.row, number) if number else 0,
            tied=certain and not (queried and self.sources.shared(verdict.row, position)),
            basis=basis if number else "the target was never asked about the row",
        )
        return (number, KINDS[kind].rank, 0), explanation

    def _unattributed(
        self, verdict: RowVerdict, index: int, statement: Statement
    ) -> tuple[tuple[int, ...], Explanation]:
        return _LAST, self._explanation("unattributed", "unattributed", verdict, index, statement)

    def _explanation(
        self,
        component: str,
        kind: str,
        verdict: RowVerdict,
        index: int,
        statement: Statement = NOTHING,
        **more: object,
    ) -> Explanation:
        case, prompt = self.run.case, self.run.case.prompts[verdict.row]

        def token(row: tuple[int, ...]) -> int | None:
            return row[index] if index < len(row) else None

        return Explanation(
            component,
            kind,
            row=verdict.row,
            token_index=index,
            expected=token(verdict.expected),
            observed=token(verdict.observed),
            expected_row=verdict.expected,
            observed_row=verdict.observed,
            given=case.given(verdict.row),
            drafted=tuple(sorted(self.sources.proposed(verdict.row, len(prompt) + index - 1))),
            detail=statement.detail,
            facts=statement.facts,
            **more,  # type: ignore[arg-type]
        )


def _order(deviation: Deviation, write: Write) -> tuple[int, ...]:
    """Causal order: earlier calls first; in one call cache before mask before position, then by column."""
    return write[0], KINDS[deviation.kind].rank, write[2]
