"""Attribution by reading: from the first wrong token back to the first wrong context that led to it.

The argument has five stages. Each claims only what its own data prove, and each needs the claim before it.

labels      `eqcheck.transparent.attribution.labels` says for which token of which request each column of each target
call stands.
            The digest of a query is that of everything it saw. A query with the digest of a right context is right,
            and its place is known beyond doubt, whatever the decoder does with its rows. Only a row without such a
            query is aligned, by the entries it holds and the tokens it feeds. A label claims an identity, never a
            fault: "wrong" has no meaning before it is known what would be right.
context     `eqcheck.transparent.attribution.context` holds the slots that a query saw against those that its label has
to see:
            each is surplus, hidden, absent, at a wrong position, or was written under an earlier fault. It claims
            deviations, and no causes: decoders feed many columns whose answers nobody reads.
walk        `Walk` begins at a query that answered the wrong token, and goes from its entries that were written under
            an earlier fault to the queries that wrote them, and so on. It goes backwards and therefore never blames
            what did not matter. In causal order (the call, then cache before mask before position, then the column)
            the earliest deviation is the cause, the rest are consequences.
hypothesis  `HYPOTHESES` decide what the wrong token is held for, and whether there is a context to blame at all. A
            query that saw exactly its row had answered rightly, so the fault is what was done with the answer:
            bookkeeping. A query that did not and that answered the wrong token is blamed, because in these models every
            difference in what is seen changes the answer. The first hypothesis that applies is said, and the last one
            claims nothing: a cause that is not known is called unattributed, not guessed.
witness     `eqcheck.transparent.attribution.witnesses` decides whether that is asserted or only likely. Reading takes
labels for
            granted and tokens agree by chance, so the record has to tie the token to the cause, or a decode in which
            just that was put right has to give the right tokens, and copies of the case with other ids have to show
            the same.

A wrong answer at one stage cannot be mended by a later one, which is why doubt is kept: a query may be `loosely` taken
for a row, a cause may be read and not `tied`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from eqcheck.contract.family import FAMILY, Family
from eqcheck.contract.kinds import KINDS
from eqcheck.core.explanation.records import Deviation, Explanation, Query
from eqcheck.core.explanation.statements import NOTHING, Statement, basis, origin, state, together
from eqcheck.core.result.outcome import RowVerdict
from eqcheck.transparent.attribution.bookkeeping import Told, WrongToken, diagnose, prompt_returned
from eqcheck.transparent.attribution.context import Walk, of_mask, order_of
from eqcheck.transparent.attribution.entries import told
from eqcheck.transparent.attribution.labels import labels_of
from eqcheck.transparent.attribution.other_rows import said_of_query
from eqcheck.transparent.attribution.story import Turns
from eqcheck.transparent.attribution.token_origins import Sources, fed_instead
from eqcheck.transparent.attribution.writes import Label, Record, Write
from eqcheck.transparent.decoding import Run
from eqcheck.transparent.hashlm.hashing import truncated
from eqcheck.transparent.hashlm.trace import TARGET

Finding = tuple[tuple[int, ...], Explanation]  # with its place in causal order
_LAST = (10**9,)


class Reader:
    """Reads the trace of one run."""

    def __init__(self, run: Run) -> None:
        assert run.outputs is not None
        self.run = run
        self.family = FAMILY[run.case.family]
        stored = [truncated(digests[0]) for digests in run.truth.digests]
        self.labels = labels_of(run, run.trace)
        self.sources = Sources(run, self.labels)
        self.walk = Walk(self.labels, stored, self.family)

    def explain(self) -> Explanation | None:
        """The first fault in causal order over all wrong rows; None when every row is right."""
        verdicts = self.run.verdicts
        wrong = [verdict for verdict in verdicts if verdict.first is not None]
        if not wrong:
            return None
        case, limits = self.run.case, [self.run.case.max_new_tokens] * len(verdicts)
        if whole := prompt_returned(case.prompts, verdicts, limits, case.pad_token_id, case.eos_token_ids):
            first, statement = whole
            best = self._explanation("bookkeeping", "prompt-in-output", self._at(first), statement, tied=True)
        else:
            _, best = min((self._diagnose(verdict) for verdict in wrong), key=lambda finding: finding[0])
        return replace(best, wrong_rows=tuple(verdict.row for verdict in wrong))

    def of_each_row(self) -> list[Explanation]:
        """Return the explanation of each wrong row, by itself."""
        return [self._diagnose(verdict)[1] for verdict in self.run.verdicts if verdict.first is not None]

    def unseen(self) -> Explanation | None:
        """The first emitted token that no query with exactly the right context stands behind, or None.

        This finds a wrong context even where it led to the right token by chance.
        """
        return next((explanation for _, explanation in self.all_unseen()), None)

    def all_unseen(self) -> Iterator[Finding]:
        """Yield what is found of each emitted token that no query with exactly the right context stands behind."""
        # Among the wrong queries those that answered the token come first: the decoder took its answer from one of
        # them.
        for verdict in self.run.verdicts:
            for index, token in enumerate(verdict.observed):
                asked, row = self._at(verdict, index), verdict.row
                queries = self.labels.queries(row, asked.position)
                if not any(label.exact for _, label in queries) and not self._same_context(row, asked.position):
                    writes = [write for write, _ in queries]
                    answered = [write for write in writes if self.sources.predicted(write) == token]
                    yield self._context_fault(asked, answered or writes)

    def _same_context(self, row: int, position: int) -> bool:
        """Return whether some query saw exactly what this one had to see, whoever it was asked for.

        A row with the same beginning needs no query of its own. Where rows share pages and calls have no batch, a query
        may be taken for another row's, so its digest decides.
        """
        right = self.run.truth.digests[row][-1, position]
        return any((call.digests == right).any() for call in self.run.trace.made(TARGET))

    def _at(self, verdict: RowVerdict, index: int | None = None) -> WrongToken:
        """The token at an index of a row, or the first wrong one, before it is known who was asked for it."""
        index = verdict.first if index is None else index
        assert index is not None
        return WrongToken(verdict, index, len(self.run.case.prompts[verdict.row]) + index - 1)

    def _diagnose(self, verdict: RowVerdict) -> Finding:
        """The finding on a row, by the first of the `HYPOTHESES` that applies."""
        asked = self._asked(verdict)
        findings = (hypothesis(self, asked) for hypothesis in HYPOTHESES.values())
        return next(finding for finding in findings if finding is not None)

    def _asked(self, verdict: RowVerdict) -> WrongToken:
        asked, sources = self._at(verdict), self.sources
        if asked.ends:
            return asked
        row, observed, position = asked.row, asked.observed, asked.position
        queries = self.labels.queries(row, position) or self._of_twins(row, position)
        # A right query counts only up to the commit: a decoder that feeds its rows again asks rightly afterwards, and
        # that would turn a fault of context into one of bookkeeping. A wrong one counts whenever it was made.
        commit = sources.committed_by(row, position, observed)
        right = tuple(write for write, label in queries if label.exact and write[0] <= commit)
        wrong = tuple(write for write, label in queries if not label.exact)
        blamed = tuple(write for write in wrong if sources.predicted(write) == observed)
        drafted = observed in sources.drafted(row, position)
        # A rejected draft that was emitted needs no query in disguise: looked for all the same, it was found in
        # a query of another row, which was then blamed.
        loosely: tuple[Write, ...] = ()
        if not blamed and not (right and drafted):
            loosely = self._asked_loosely(row, position, observed, commit)
        repeated = asked.index > 0 and observed == verdict.observed[asked.index - 1] and not drafted
        return replace(
            asked,
            commit=commit,
            right=right,
            wrong=wrong,
            blamed=blamed or loosely,
            loosely=bool(loosely),
            drafted=drafted,
            repeated=repeated,
        )

    def _of_twins(self, row: int, position: int) -> list[tuple[Write, Label]]:
        """Right queries of rows with the same tokens up to there, where no query is taken for this row's.

        Each row may have been decoded in calls of its own, which fed the same tokens, so a call is taken for the first
        such row, though it may have been this one's.
        """
        alike = self.sources.sharing(row, position)
        return [query for other in alike for query in self.labels.queries(other, position) if query[1].exact]

    # The hypotheses: each says what is wrong if it holds, and None if it does not.

    def _row_ends(self, asked: WrongToken) -> Finding | None:
        if not asked.ends:
            return None
        last = max(self.labels.rounds[asked.row], default=0)  # a row may stay in the batch after its end
        missing = asked.index < len(asked.verdict.expected)
        in_call = self.sources.answered if missing else Turns(self.run, self.labels).committed_in
        number = in_call(asked.row, asked.index)
        return self._bookkeeping(asked, number or last, "")

    def _prompt_unfinished(self, asked: WrongToken) -> Finding | None:
        return self._told(asked, self.sources.unfinished(asked))

    def _other_node(self, asked: WrongToken) -> Finding | None:
        return self._told(asked, self.sources.at_a_node(asked))

    def _wrong_context(self, asked: WrongToken) -> Finding | None:
        if not asked.blamed and (not asked.wrong or asked.right or asked.repeated):
            return None
        order, finding = self._context_fault(asked, asked.blamed or asked.wrong)
        return order, replace(finding, tied=bool(asked.blamed) and not asked.loosely)

    def _rounded(self, asked: WrongToken) -> Finding | None:
        """A query that saw exactly its row but for what its cache makes of entries, and answered wrongly."""
        answered = [write for write in asked.right if self.sources.predicted(write) == asked.observed]
        if not self.run.trace.rounded or not answered:
            return None
        write = answered[-1]
        off = origin("rounded", norm=self.run.trace.rounded)
        torn = Deviation("cache", "torn-entry", write[0], write[2], asked.row, origin=off, source="rounded")
        slots = self.walk.context(write).slots
        about: dict[str, Any] = {"query": self._query(write), "deviations": (torn,), "slots": slots, "tied": True}
        return order_of(torn, write), self._explanation("cache", "torn-entry", asked, call=write[0], **about)

    def _right_context(self, asked: WrongToken) -> Finding | None:
        if not asked.right:
            return None
        row, position, observed, call = asked.row, asked.position, asked.observed, asked.right[-1][0]
        order, finding = self._bookkeeping(asked, call, basis("right-context", call=call), queried=True)
        # An answer may be left unread for that of a later query, and the row of that query may be unknown.
        other = self._unread(asked)
        if other is None and finding.facts["statement"] == "neither":
            other = self.sources.strange(row, position, observed, call, asked.commit, whatever=True)
        if other is None:
            return order, finding
        places = {"other_call": other[0], "batch_row": other[1], "column": other[2]}
        return self._unattributed(asked, state("unread-answer", right_call=call, **places))

    def _behind_rejected(self, asked: WrongToken) -> Finding | None:
        sources = self.sources
        misled = sources.after_rejected(asked.row, asked.position)
        write = next((write for write in misled if sources.predicted(write) == asked.observed), None)
        if write is None:
            return None
        name = "query-of-filler" if sources.fills(write) else "query-behind"
        return self._bookkeeping(asked, write[0], basis(name, call=write[0]))

    def _fed_instead(self, asked: WrongToken) -> Finding | None:
        return self._told(asked, fed_instead(self.labels, self.sources, self.family, asked))

    def _never_asked(self, asked: WrongToken) -> Finding | None:
        sources, row = self.sources, asked.row
        proposed = asked.observed in sources.proposed(row, asked.position)
        if not (asked.repeated or proposed or sources.nothing_else_asked(row)):
            return None
        last = max(self.labels.rounds[row], default=0)
        order, finding = self._bookkeeping(asked, last, basis("no-query"))
        # Else it is known neither who asked nor who answered.
        return (order, finding) if finding.tied or finding.kind != "wrong-correction" else None

    # The facts that the hypotheses ask for.

    def _query(self, write: Write) -> Query:
        return query_of(write, self.labels, self.family)

    def _told(self, asked: WrongToken, told: Told | None) -> Finding | None:
        """A fault of bookkeeping that what a call shows proves."""
        if told is None:
            return None
        about: dict[str, Any] = {"call": told.call, "tied": True, "basis": told.basis}
        finding = self._explanation("bookkeeping", told.kind, asked, told.statement, **about)
        return (told.call, KINDS[told.kind].rank, 0), finding

    def _unread(self, asked: WrongToken) -> Write | None:
        """A query with a wrong context that answered what was emitted, where nothing else says where that is from."""
        sources, row, position, observed = self.sources, asked.row, asked.position, asked.observed
        # A token with any other known source says nothing about a strange query: it may be a draft token, an answer
        # after a rejected one, a later token of the row itself, or another row's answer.
        since, until = asked.right[-1][0], asked.commit
        known = sources.known(row, position, since, True)
        uncut = self.run.truth.uncut[row][asked.index :]
        if observed in known.drafted | known.after_rejected or observed in uncut[:3]:  # or up to two tokens were lost
            return None
        if sources.for_another(row, observed, since, until) is not None:
            return None
        return sources.strange(row, position, observed, since, until)

    def _asked_loosely(self, row: int, position: int, observed: int, commit: int) -> tuple[Write, ...]:
        """A query labelled otherwise, up to call ``commit``, that fed the right token and predicted what was emitted.

        One that saw another row's cache, say, is taken for that row's. Both tokens agree by chance once in the square
        of the vocabulary.
        """
        # A row of a call in which one query is right is known, so no other of its queries stood for another row.
        token = self.labels.sequence(row)[position]
        twice = set() if self.labels.queries(row, position) else self.labels.standing_twice(row)
        recognised = {write[:2] for write, label in self.labels.of.items() if label.exact} - twice
        for answer in self.sources.answers(until=commit):
            write = answer.write
            if (answer.label.exact and write[:2] not in twice) or write[:2] in recognised:
                continue
            if (answer.fed, answer.token) == (token, observed):
                self.labels.take(write, row, position)
                return (write,)
        return ()

    def _context_fault(self, asked: WrongToken, blamed: Sequence[Write]) -> Finding:
        cause = self.walk.cause(blamed)
        if isinstance(cause, Statement):
            return self._unattributed(asked, cause)
        order, root, write = cause.root
        return order, self._explanation(
            root.component,
            root.kind,
            asked,
            self._said(root, write, cause.alike),
            call=write[0],
            query=replace(self._query(write), sees_from=self.walk.context(write).blamed.sees_from),
            deviations=cause.alike,
            consequences=cause.rest,
            slots=self.walk.context(write).blamed.slots,
        )

    def _said(self, root: Deviation, write: Write, alike: Sequence[Deviation]) -> Statement:
        """The further statements on the query at fault."""
        # Words on masks and on lost entries are about the slots that are shown. Where the lower layer alone is wrong,
        # these are its slots, and what the whole context lacks need not be among them.
        context = self.walk.context(write)
        said = [said_of_query(root, write, self.labels)]
        if context.blamed is context:
            missing = [lost for lost in context.deviations if lost.kind == "missing-entry" and lost not in alike]
            if context.lower is not None:  # what the lower layer alone lacks is not in the slots that are shown
                absent = {slot.of_position for slot in context.slots if slot.index is None}
                missing = [lost for lost in missing if lost.token_position in absent]
            said += [of_mask(root, write, self.labels), told(self.labels, write, root, [*alike, *missing])]
        elif root in context.deviations:
            said.append(state("convolution-alone" if self.family.stateful else "window-alone"))
        known = [statement for statement in said if statement != NOTHING]
        return together(*known) if known else NOTHING

    def _bookkeeping(self, asked: WrongToken, number: int, based_on: str, queried: bool = False) -> Finding:
        known = self.sources.known(asked.row, asked.position, number, queried)
        kind, statement, certain = diagnose(asked.verdict, asked.index, self.run, known)
        finding = self._explanation(
            "bookkeeping",
            kind,
            asked,
            statement,
            call=number,
            tied=certain and not (queried and self.sources.sharing(asked.row, asked.position)),
            basis=based_on if number else basis("no-call"),
        )
        return (number, KINDS[kind].rank, 0), finding

    def _unattributed(self, asked: WrongToken, statement: Statement) -> Finding:
        return _LAST, self._explanation("unattributed", "unattributed", asked, statement)

    def _explanation(
        self,
        component: str,
        kind: str,
        asked: WrongToken,
        statement: Statement = NOTHING,
        call: int | None = None,
        **more: object,
    ) -> Explanation:
        """An explanation of a row; ``call`` is the one in whose round the fault lies."""
        verdict, index = asked.verdict, asked.index

        def token(row: tuple[int, ...]) -> int | None:
            return row[index] if index < len(row) else None

        return Explanation(
            component,
            kind,
            row=asked.row,
            token_index=index,
            round=None if call is None else self.labels.round_of(asked.row, call),
            expected=token(verdict.expected),
            observed=token(verdict.observed),
            expected_row=verdict.expected,
            observed_row=verdict.observed,
            given=self.run.case.given(asked.row),
            drafted=tuple(sorted(self.sources.only_drafted(asked.row, asked.position))),
            detail=statement.detail,
            facts=statement.facts,
            **more,  # type: ignore[arg-type]
        )


def query_of(write: Write, labels: Record, family: Family) -> Query:
    """The query that made a write, as it was fed and as it is labelled."""
    number, call_row, column = write
    call, label = labels.calls[number], labels.of[write]
    return Query(
        call=number,
        call_row=call_row,
        column=column,
        token=int(call.tokens[call_row, column]),
        logical_position=label.position,
        position=int(call.positions[call_row, column]),
        predicted=int(call.predictions[call_row, column]),
        sees_from=family.first_seen(label.position),
    )


# In causal order; the first that applies is what is said. `test_hypotheses.py` has for each a run that needs it.
#
# The first four are read from what calls feed and where rows end, and hold whatever the contexts are. A wrong context
# comes before a right one, because a row may be asked twice, and the answer that was emitted is the wrong query's. A
# token without any query for it comes last: nothing but its surroundings says where it is from.
HYPOTHESES: dict[str, Callable[[Reader, WrongToken], Finding | None]] = {
    "row-ends": Reader._row_ends,
    "prompt-unfinished": Reader._prompt_unfinished,
    "other-node": Reader._other_node,
    "fed-instead": Reader._fed_instead,
    "wrong-context": Reader._wrong_context,
    "rounded": Reader._rounded,
    "right-context": Reader._right_context,
    "behind-rejected": Reader._behind_rejected,
    "never-asked": Reader._never_asked,
    "unknown": lambda reader, asked: reader._unattributed(asked, state("no-query")),
}
