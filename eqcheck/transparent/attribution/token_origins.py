"""The possible origins of an emitted token: the drafts that proposed it, and the target's queries that answered it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import inf
from typing import Any, NamedTuple

import numpy as np

from eqcheck.contract.family import Family
from eqcheck.core.explanation.statements import Statement, basis, state, together
from eqcheck.transparent.attribution.bookkeeping import CommitKnowledge, Told, WrongToken
from eqcheck.transparent.attribution.labels import Labels, sees_twins
from eqcheck.transparent.attribution.writes import Label, Write, self_hidden, writes
from eqcheck.transparent.decoding import Run
from eqcheck.transparent.hashlm.trace import DRAFT, Call
from eqcheck.transparent.truth.continuation import digests_of


class Answer(NamedTuple):
    """One query of the target: its label, the id that it ``fed``, and the ``token`` that was answered."""

    write: Write
    label: Label
    fed: int
    token: int


class Sources:
    """The answers and proposals of one run, by the token of the row that they follow."""

    def __init__(self, run: Run, labels: Labels) -> None:
        self.run, self.labels = run, labels
        self._last = max(labels.calls, default=0)
        self._fed = {number: call.tokens.tolist() for number, call in labels.calls.items()}
        self._told = {number: call.predictions.tolist() for number, call in labels.calls.items()}

    def fed(self, write: Write) -> int:
        """The id that a query fed."""
        number, row, column = write
        return int(self._fed[number][row][column])

    def predicted(self, write: Write) -> int:
        """The token that a query was answered with."""
        number, row, column = write
        return int(self._told[number][row][column])

    def answers(self, since: int = 0, until: float = inf) -> Iterator[Answer]:
        """Every query of these calls, in causal order."""
        for write, label in self.labels.of.items():
            if since <= write[0] <= until:
                yield Answer(write, label, self.fed(write), self.predicted(write))

    def known(self, row: int, position: int, number: int, queried: bool) -> CommitKnowledge:
        """The facts that were known around call ``number``: between the row's calls before and after it."""
        emitted = (self.run.outputs or self.run.truth.rows)[row]
        index = position + 1 - len(self.run.case.prompts[row])
        observed = emitted[index] if index < len(emitted) else -1
        rounds = self.labels.rounds[row]
        since = max((n for n in rounds if n < number), default=0) + 1
        until = min((n for n in rounds if n > number), default=self._last + 1) - 1
        around = list(self.answers(since, until))
        misled = [a.write for a in around if a.label.request == row and a.label.what in ("draft", "filler")]
        misled += [*self.after_rejected(row, position), *self._wrong_behind(row, position)]
        pads = (a for a in around if a.label.request == row and a.label.what in ("pad", "filler"))
        return CommitKnowledge(
            drafted=self.drafted(row, position),
            verified=self._verified(row, position),
            after_rejected={self.predicted(write) for write in misled if not self.fills(write)},
            filled={self.predicted(write) for write in misled if self.fills(write)},
            nearby={a.token for a in around},
            queried=queried,
            next_queried=any(label.exact for _, label in self.labels.queries(row, position + 1)),
            exchanged=self._exchanged(row, position),
            for_another=self.for_another(row, observed, since, until),
            behind_pad=any(a.token == observed for a in pads),
            ending=self.ending(row, number) if rounds and index == len(emitted) else (),
            beside=frozenset(self.fed(write) for write in self._behind(row, position)[:1]),
        )

    def ending(self, row: int, number: int) -> tuple[Statement, ...]:
        """Statements on the round of call ``number``, in which a row ended early: its fate, and that of other rows."""
        case, outputs, expected = self.run.case, self.run.outputs or (), self.run.truth.rows
        eos, tokens, missing = set(case.eos_token_ids), outputs[row], expected[row][len(outputs[row])]
        in_round = self._round(number)
        here = [own for own in self.run.rounds.every if own.call.number in in_round]
        # All that may have ended the row in this round is said, because one case cannot tell which of it did; over many
        # cases the statements that always hold remain.
        ended = {
            r
            for r, right in enumerate(expected)
            if r != row and outputs[r] == right and self.answered(r, len(right) - 1) in in_round
        }
        drafted = {own.row: eos & set(own.refused) & self.labels.proposed(own.row, number) for own in here}
        others = [one for r, one in enumerate(outputs) if r not in (row, *ended) and one != expected[r]]
        nobody = len(outputs) > 1 and not ended and not any(one and one[-1] in eos for one in others)
        prompt, room = case.prompts[row], case.max_new_tokens - len(tokens)
        at_limit = len(expected[row]) == case.max_new_tokens and expected[row][-1] not in eos
        answered, met = self.answered(row, len(tokens)), case.options[row].stop_within((*prompt, *tokens))
        in_prompt = [prompt.index(token) for token in eos & set(prompt)]
        rows = [
            ("eos-of-others", "eos_rows", {r for r in ended if outputs[r][-1] in eos}),
            ("limit-of-others", "limit_rows", {r for r in ended if outputs[r][-1] not in eos}),
            ("all-right", "full_rows", {own.row for own in here if own.accepted and not own.columns}),
            ("eos-drafted", "drafted_rows", {r for r, ids in drafted.items() if ids}),
        ]
        k, pads = case.num_draft_tokens or 0, expected[row].count(case.pad_token_id)
        of_answer = {"missing": missing, "answered_in": answered}
        told: list[tuple[str, object, dict[str, Any]]] = [  # what may be said, whether it is so, and its facts
            ("eos-answered" if missing in eos else "next-answered", answered, of_answer),
            *((name, some, {fact: " ".join(map(str, sorted(some)))}) for name, fact, some in rows),
            ("nobody-ended", nobody, {}),
            ("eos-in-prompt", in_prompt, {"eos_position": min(in_prompt, default=0)}),
            ("stop-with-prompt", met, {"stop": " ".join(map(str, met))}),
            ("as-many-pads", pads == len(expected[row]) - len(tokens), {}),
            ("pad-last", tokens[-1:] == (case.pad_token_id,), {}),
            ("limit-short", at_limit, {"short": room, "limit": case.max_new_tokens}),
            ("little-room", k and room <= k, {"room": room, "block": k + 1}),
            ("calls-end", self._last in in_round, {}),
        ]
        return tuple(state(name, **facts) for name, applies, facts in told if applies)

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
        return range(since + 1, min((call for call in drafted if call > number), default=self._last + 1))

    def unfinished(self, asked: WrongToken) -> Told | None:
        """The query of a prompt that was not yet fed whole, which answered the emitted token; None where there is none.

        It is one of the last columns fed, as many as a round asks for. Only a row's first token can be that answer:
        those behind it follow an answer to the whole prompt.
        """
        if asked.index or asked.blamed:
            return None
        row, observed = asked.row, asked.observed
        end = len(self.run.case.prompts[row]) - 1
        fed: dict[int, list[Answer]] = {}
        for answer in self.answers(self.run.trace.given + 1):
            if answer.label.request == row and answer.label.exact:
                if answer.label.position >= end:
                    fed.pop(answer.write[0], None)  # here it was whole
                    break
                fed.setdefault(answer.write[0], []).append(answer)
        # From the last column back: an engine that answers after a piece reads its newest columns, and an id that is
        # repeated in the prompt gives the same answer further ahead by chance.
        for number, of_call in fed.items():
            last = max(answer.label.position for answer in of_call)
            if self._fed_whole(row, number):
                continue
            for answer in reversed(of_call):
                position = answer.label.position
                if position >= last - (self.run.case.num_draft_tokens or 0) and answer.token == observed:
                    said = state("unfinished", call=number, last=last, end=end, position=position)
                    return Told("unfinished-prompt", said, number, basis("piece-fed", call=number))
        return None

    def _fed_whole(self, row: int, number: int) -> bool:
        """Return whether all ids of the prompt were fed by then:
        a hidden one that is there twice is taken for one place.
        """
        fed = [write for write, label in self.labels.of.items() if (label.request, label.what) == (row, "token")]
        return not Counter(self.run.case.prompts[row]) - Counter(self.fed(write) for write in fed if write[0] <= number)

    def drafted(self, row: int, position: int) -> set[int]:
        """The tokens the draft proposed after this token of the row.

        Read from the draft's queries that saw exactly its row; where none did, from what the target was fed next. A
        decoder that drafts without the draft model first feeds what it proposes together with the query.
        """
        proposed = self.proposed(row, position)
        if self.labels.branches:
            return proposed | self._verified(row, position)
        if self.labels.drafted and proposed:
            return proposed
        drafts = self.run.trace.of(DRAFT) if self.labels.drafted else []
        queries = self.labels.queries(row, position)
        for (number, call_row, column), _ in queries if drafts else queries[:1]:
            told = [call.predictions for call in drafts if call.number < number]
            for token in self._fed[number][call_row][column + 1 : column + 2]:
                if not drafts or any((token == predictions).any() for predictions in told):
                    proposed.add(token)
        return proposed

    def proposed(self, row: int, position: int) -> set[int]:
        """The tokens that the draft proposed after this one, in queries that saw exactly the row up to it.

        Where the decoder feeds the prediction in the next column of the call, it had the token already.
        """
        digests = self.run.truth.digests[row][-1]
        if position >= len(digests):
            return set()
        calls = ((call, (call.digests == digests[position]) & call.tells) for call in self.run.trace.of(DRAFT))
        return {int(token) for call, which in calls for token in call.predictions[which]}

    def only_drafted(self, row: int, position: int) -> set[int]:
        """The proposed tokens without the answers of the target itself that it was not fed, such as a bonus."""
        answered = {self.predicted(write) for write, _ in self.labels.queries(row, position)}
        return self.proposed(row, position) - (answered - self._verified(row, position))

    def fills(self, write: Write) -> bool:
        """Return whether a column only fills up the row of its call: so it is labelled, or the mask hides it from
        itself.

        A token that was no draft's first choice may be a node of a tree all the same.
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
        """The queries behind this token of the row, in the first call that asked for the one after it."""
        for (number, call_row, column), _ in self.labels.queries(row, position)[:1]:
            return [(number, call_row, at) for at in range(column + 1, len(self._fed[number][call_row]))]
        return []

    def _wrong_behind(self, row: int, position: int) -> list[Write]:
        """The queries of `_behind` that are the row's, and wrong.

        A query that fed a draft token is not known for one where that token was emitted.
        """
        behind = ((write, self.labels.of[write]) for write in self._behind(row, position))
        return [w for w, one in behind if one.request == row and one.what in ("token", "draft") and not one.exact]

    def _verified(self, row: int, position: int) -> set[int]:
        """The tokens that the target was fed behind this one of the row, in calls that asked for the next one.

        Where the draft is fed the target's answers, only the first of these calls counts: later ones feed what was
        committed meanwhile. Queries of rows with the same tokens count, for nothing tells whose they are.
        """
        alike = [row, *self.sharing(row, position)]
        queries = [write[0] for one in alike for write, _ in self.labels.queries(one, position)]
        counted = queries[:1] if self._exchanged(row, position) else queries
        return {
            self.fed(write)
            for write, label in self.labels.of.items()
            if write[0] in counted
            if label.request in alike and label.position == position + 1 and label.what in ("token", "draft", "filler")
        }

    def _exchanged(self, row: int, position: int) -> bool:
        """Return whether the draft, having seen exactly the row, was fed next to it what the target predicts there."""
        whole = self.labels.sequence(row)
        if position + 1 >= len(whole):
            return False
        digest, expected = self.run.truth.digests[row][-1, position], whole[position + 1]
        return any(
            bool((call.tokens[:, 1:][call.digests[:, :-1] == digest] == expected).any())
            for call in self.run.trace.made(DRAFT)
        )

    def sharing(self, row: int, position: int) -> list[int]:
        """Other rows with the same tokens up to there: a right query may have been asked for any of them."""
        digests = self.run.truth.digests
        others = ((request, other[-1]) for request, other in enumerate(digests) if request != row)
        return [r for r, other in others if position < len(other) and other[position] == digests[row][-1, position]]

    def for_another(self, row: int, observed: int, since: int, until: int) -> tuple[int, int] | None:
        """The request and logical position that the target was asked for where it answered this token, in these calls.

        Only queries that saw exactly their row count, and of those one that is not asked for this row first.
        """
        exact = (a.label for a in self.answers(since, until) if a.label.exact and a.token == observed)
        places = ((label.request, label.position) for label in exact)
        return min(places, key=lambda place: place[0] == row, default=None)

    def strange(
        self, row: int, position: int, observed: int, since: int, until: int, *, whatever: bool = False
    ) -> Write | None:
        """A query of these calls that answered this token and may have been asked for this place of the row.

        That is one which fed the token of this place (or ``whatever``), did not see exactly its row, and is not hidden
        from itself.
        """
        expected = self.labels.sequence(row)[position]
        for answer in self.answers(since, until):
            strange = answer.token == observed and not answer.label.exact and (whatever or answer.fed == expected)
            if strange and not self._hidden(answer.write):
                return answer.write
        return None

    def at_a_node(self, asked: WrongToken) -> Told | None:
        """The node of a tree at which the emitted token was answered, where nothing simpler says where it is from.

        If no query is right for this token, and no node was fed for the token before it, that one was accepted without
        being in the tree.
        """
        if not self.labels.branches or (asked.blamed and not asked.right):
            return None
        if any(sees_twins(self.labels.calls[write[0]], *write[1:]) for write in asked.blamed):
            return None
        # Another column of the right row gives any token now and then. A draft token, or the token before it again in a
        # row that goes on rightly, has a simpler origin.
        row, index, position, observed = asked.row, asked.index, asked.position, asked.verdict.observed
        again = index > 0 and observed[index] == observed[index - 1]
        goes_on = asked.verdict.expected[index : index + 1] == observed[index + 1 : index + 2]
        if asked.right:
            other = self._other_column(asked.right[-1], observed[index])
            if asked.drafted or other is None or (again and goes_on):
                return None
            call, batch_row, at = asked.right[-1]
            said = state("other-node", call=call, batch_row=batch_row, right_column=at, column=other)
            return Told("wrong-correction", said, call, basis("right-context", call=call))
        before = [write for write, label in self.labels.queries(row, position - 1) if label.exact]
        if index == 0 or self.labels.queries(row, position) or not before:
            return None
        other, (call, batch_row, _) = self._other_column(before[-1], observed[index]), before[-1]
        if other is None:
            return None
        said = state("missing-node", call=call, batch_row=batch_row, column=other, position=position)
        return Told("over-accept", said, call, basis("no-query-before"))

    def _other_column(self, write: Write, answer: int) -> int | None:
        """Another column of a query's batch row that gave this answer."""
        number, row, column = write
        return next((at for at, other in enumerate(self._told[number][row]) if other == answer and at != column), None)

    def committed_by(self, row: int, position: int, observed: int) -> int:
        """The last call that can have answered for the emitted token after ``position``.

        A token that was no draft is fed only after it was committed; so a query of that call or later, asked because
        the decoder feeds its rows again, came too late. A token that is fed beside its first query is a draft.
        """
        fed = (
            write[0]
            for write, label in self.labels.of.items()
            if (label.request, label.position) == (row, position + 1) and self.fed(write) == observed
        )
        first = min(fed, default=self._last + 1)
        asked = any(label.exact and write[0] < first for write, label in self.labels.queries(row, position))
        return first - 1 if asked and observed not in self.drafted(row, position) else first

    def nothing_else_asked(self, row: int) -> bool:
        """Return whether every row of every call after the row's last right query is known to be right somewhere.

        If no query of a row was recognised, it may have been asked about in disguise, unless nothing was asked at all.
        """
        if not self.labels.rounds[row]:
            return not self.labels.calls
        right = {write for write, label in self.labels.of.items() if label.exact}
        last = max((write[0] for write in right if self.labels.of[write].request == row), default=0)
        rows = {write[:2] for write in self.labels.of if write[0] > last}
        return rows <= {write[:2] for write in right}


# A returned row that is not the row which the decoder went on with: its cache holds another token in one place.


@dataclass(frozen=True)
class Changed:
    """New token ``index`` of a row: the token ``returned``, and the one that is ``cached`` in its place.

    The cached token was ``verified`` in a call, in exactly the right context, and a later ``call`` goes on from it.
    """

    index: int
    position: int
    returned: int
    cached: int
    verified: int
    call: int
    next_one: int | None

    @property
    def statement(self) -> Statement:
        facts = {name: value for name, value in asdict(self).items() if value is not None}
        again = [state("equals-next", behind=self.index + 1)] if self.returned == self.next_one else []
        return together(state("cache-differs", **facts), *again, state("changed-after"))


def changed(run: Run, labels: Labels, row: int) -> Changed | None:
    """The first new token of a row that was returned in place of the one in the cache; None where there is none.

    Some query has to feed a returned token in its own place, behind a row that is whole but for tokens that were not
    returned. That it is not the row one place on shows where the token differs from the one before it. And the returned
    token must not have been fed: else the cache kept the wrong one. A decoder that feeds its whole row again has the
    prompt in the places of new tokens, and has changed nothing.
    """
    every = (_changed_in(run, labels, row, call, seen) for call in labels.calls.values() for seen in _whole_rows(call))
    return next((one for one in every if one is not None), None)


def _changed_in(run: Run, labels: Labels, row: int, call: Call, seen: list[Write]) -> Changed | None:
    """The first new token of a row that is another one in these entries, which a query of a call sees; or None."""
    outputs, prompt = run.outputs or (), run.case.prompts[row]
    text, start, last = (*prompt, *outputs[row]), len(prompt), len(seen) - 1
    # Each condition excludes another way to come to a cache that differs from the output: a row one place on (equal
    # neighbours), a prompt fed anew, a cache that kept the wrong token, and too many differences for one change.
    if not start < last < len(text) or text[last] == text[last - 1]:
        return None
    held = [int(labels.calls[w[0]].tokens[w[1:]]) if w[0] in labels.calls else -1 for w in seen]
    other = [at for at in range(last + 1) if held[at] != text[at]]
    if not other or other[0] < start or held[last] != text[last] or len(other) * 2 > last - start + 1:
        return None
    position, write = other[0], seen[other[0]]
    fed = any(label.exact for _, label in labels.queries(row, position))
    if fed or write[0] == call.number or _begins_again(labels, write, prompt):
        return None
    if not _verified(run, labels, (*text[:position], held[position]), write):
        return None
    following = text[position + 1] if position + 1 < len(text) else None
    return Changed(position - start, position, text[position], held[position], write[0], call.number, following)


def _begins_again(labels: Labels, write: Write, prompt: tuple[int, ...]) -> bool:
    """Return whether a call feeds the prompt anew from this write on."""
    number, row, column = write
    fed = labels.calls[number].tokens[row, column : column + len(prompt)].tolist()
    return bool(fed == [*prompt[: len(fed)]])


def _whole_rows(call: Call) -> Iterator[list[Write]]:
    """The writers of the entries that a query sees, for each query that sees one in each place up to its own."""
    for row in range(len(call.tokens)):
        slots, places = writes(call, row), call.key_places[row]
        for column in range(call.tokens.shape[1]):
            visible = np.flatnonzero(call.visible[row, column])
            order = visible[np.argsort(places[visible], kind="stable")]
            own = (call.number, row, column)
            whole = len(order) and np.array_equal(places[order] - places[order[0]], np.arange(len(order)))
            if whole and slots[order[-1]] == own:
                yield [slots[slot] for slot in order]


def _verified(run: Run, labels: Labels, tokens: tuple[int, ...], write: Write) -> bool:
    """Return whether the query of this write saw exactly these tokens, itself the last."""
    number, row, column = write
    digest = digests_of(run.case.family, [tokens])[0][-1, -1]
    return bool(labels.calls[number].digests[row, column] == digest)


# Another token that is fed in the place of a row's newest one, which no call feeds.


def fed_instead(labels: Labels, sources: Sources, family: Family, asked: WrongToken) -> Told | None:
    """The token that a call feeds in the place of the row's newest one, and whose prediction was returned.

    It stands behind exactly the row's entries, at the distance of the next token, so it is in that place; and the
    newest token was predicted before, but not fed for the row. None where a query stands for that token by then, or
    there is no such call.
    """
    row, position = asked.row, asked.position
    if asked.ends or (asked.blamed and not asked.loosely):
        return None
    # A rejected draft token is fed behind the token that is newest then: what follows that is not known yet.
    known = [write[0] for write, label in labels.queries(row, position - 1) if label.exact] if asked.index else [0]
    asking = min((write[0] for write, _ in labels.queries(row, position)), default=inf)
    for call in labels.calls.values():
        if call.number <= max(sources.run.trace.given, min(known, default=inf)):
            continue
        if call.number >= asking:
            return None
        if _feeds(labels, call, row, labels.sequence(row)[position]):
            return None  # it may stand for the newest token, in a row of the call that is not recognised
        for write in _in_place_of(labels, family, call, asked):
            said = _said(labels, sources, asked, write)
            return Told("wrong-token-fed", said, call.number, "")
    return None


def _feeds(labels: Labels, call: Call, row: int, token: int) -> bool:
    """Return whether a call feeds a token for a row, or for no row that is known; pads do not count."""
    own = (labels.of[call.number, int(at), int(column)] for at, column in np.argwhere(call.tokens == token))
    return any(label.request in (row, -1) and label.what != "pad" for label in own)


def _in_place_of(labels: Labels, family: Family, call: Call, asked: WrongToken) -> Iterator[Write]:
    """The queries that predicted the returned token, and see the row up to its newest token, but for that itself."""
    before = list(range(family.first_seen(asked.position), asked.position))
    for row, column in np.argwhere(call.predictions == asked.observed).tolist():
        write = (call.number, row, column)
        slots = writes(call, row)
        seen = [slot for slot in np.flatnonzero(call.visible[row, column]).tolist() if slots[slot] != write]
        held = [labels.of.get(slots[slot]) for slot in seen]
        # Exactly the row's entries and nothing else: with one more or one less, what the query fed is not what made the
        # prediction wrong.
        own = [label.position for label in held if label and label.exact and labels.same(label, asked.row)]
        if labels.of[write].exact or sorted(own) != before or len(held) != len(before):
            continue
        distances = {int(call.places[row, column] - call.key_places[row, slot]) for slot in seen[-1:]}
        last = max(own, default=asked.position - 1)
        if distances <= {asked.position - last}:
            yield write


def _said(labels: Labels, sources: Sources, asked: WrongToken, write: Write) -> Statement:
    row, position, sequence, call = asked.row, asked.position, labels.sequence(asked.row), write[0]
    fed, unfed = sources.fed(write), sequence[position]
    names = {
        "fed-before": position > 0 and fed == sequence[position - 1],
        "fed-pad": fed == labels.pad,
        "fed-drafted": fed in sources.proposed(row, position - 1),
        "fed-other": True,
    }
    name = next(name for name, applies in names.items() if applies)
    newest: dict[str, int] = {"unfed": unfed, "call": call}
    first = state("newest-unfed", before=asked.index - 1, **newest) if asked.index else state("prompt-unfed", **newest)
    there = state(name, fed=fed, call=call, batch_row=write[1], position=position)
    return together(first, there, state("answer-to-it"))
