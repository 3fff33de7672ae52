"""The hidden states of the target that a head was given before each round, and the cost of a wrong input.

A head drafts from the state at the position before a row's newest token (`eqcheck.drafting.head`). Its calls are
recorded with all that it saw. So for each round, the search is for the call that proposed the verified draft tokens.
The states that this call saw are held against the states that were due to the row. The first that differs is named, by
the first of these rules that holds:

torn           the numbers are no state of any model: zeros, an average, parts of two
wrong-layer    a state behind another layer
own            the head's own state where one of the target is due
wrong-row      a state of another row
stale          a state of an earlier call than the one that was due; or the target's where the head's own is due
wrong-column   a state of the call that was due, of another column
token-shift    the state that was due, with another token than the one behind it

The output is right all the same, for the target verifies. The loss is in draft tokens that the script lets be accepted.
Where all inputs were right and tokens are lost, or no call can be seen to have proposed them, nothing is named.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from eqcheck.decoding.rounds import Round
from eqcheck.decoding.run import Run
from eqcheck.decoding.schedule import Schedule
from eqcheck.hashlm.hashing import LAYERS, States
from eqcheck.hashlm.trace import DRAFT, TARGET, HeadCall


class Node(NamedTuple):
    """A query of a head: a row and a column of one of its calls."""

    call: HeadCall
    row: int
    column: int

    @property
    def at(self) -> tuple[int, int, int]:
        return self.call.number, self.row, self.column

    @property
    def prediction(self) -> int:
        return int(self.call.predictions[self.row, self.column])

    @property
    def token(self) -> int | None:
        tokens = self.call.tokens
        return None if tokens is None else int(tokens[self.row, self.column])

    @property
    def given(self) -> State:
        return State.of(self.call.given, (self.row, self.column))


class State(NamedTuple):
    """One hidden state that a head was given or has kept."""

    intact: bool
    model: int
    layer: int
    digest: int
    write: tuple[int, int, int]  # call, row and column

    @classmethod
    def of(cls, states: States, at: tuple[int, int]) -> State:
        write = int(states.call[at]), int(states.row[at]), int(states.column[at])
        return cls(
            bool(states.intact[at]), int(states.model[at]), int(states.layer[at]), int(states.digests[at]), write
        )

    @property
    def own(self) -> bool:
        return self.intact and self.model == DRAFT


class Due(NamedTuple):
    """A head's place in a round: ``tokens`` of the row's are known, the newest not yet to the target."""

    row: int
    tokens: int


def head_losses(run: Run) -> Counter[str]:
    """The cost of wrong inputs of a head in a run whose output is right, as counts whose names begin with ``head``.

    ``head rounds`` are those with draft tokens of a head, ``head allowed`` the draft tokens that could have been
    accepted in them. By kind, ``head KIND`` are the tokens lost and ``head hit KIND`` the rounds with such an input.
    ``head unnamed`` are tokens lost although the inputs were right, or no call was found that proposed the draft
    tokens; ``head unclear`` are tokens lost with a wrong input that no kind describes.
    """
    if not run.trace.heads or run.case.tree:  # nothing reads which proposals of a head make up a tree
        return Counter()
    return _HeadReader(run).losses()


class _HeadReader:
    def __init__(self, run: Run) -> None:
        self.run, self.places = run, run.rounds.places
        self.texts = [prompt + row for prompt, row in zip(run.case.prompts, run.truth.uncut, strict=True)]
        self.digests = [digests[-1].tolist() for digests in run.truth.digests]
        self.owners: dict[tuple[int, int], list[Round]] = defaultdict(list)
        for own in run.rounds.every:
            self.owners[own.call.number, own.call_row].append(own)
        self.answered: dict[int, list[tuple[int, int, int]]] = defaultdict(list)  # by digest, who had it in a call
        for call in run.trace.made(TARGET):
            for (row, column), digest in np.ndenumerate(call.digests):
                self.answered[int(digest)].append((call.number, row, column))
        self.by_number = {call.number: call for call in run.trace.heads}
        self.attends = {call.shape for call in run.trace.heads} & {"accepted", "pairs"}

    def losses(self) -> Counter[str]:
        counts: Counter[str] = Counter()
        k = min(self.run.case.num_draft_tokens, max((own.proposed for own in self.run.rounds.every), default=0))
        schedule = Schedule(self.run.case, self.run.truth)
        before: dict[int, int] = {}
        for own in self.run.rounds.once(self.asked) if k else ():
            since = before.get(own.row, 0)
            before[own.row] = own.call.number
            start, needed, known = own.start, schedule.needed[own.row], own.known - own.start
            # A row without a new token has no state to draft from: what follows its prompt fills up the block.
            if own.end <= own.known or not 1 <= known < needed:
                continue
            chains, due = self.drafted(own, since)
            known = due.tokens - start if due else known  # fewer, where an answer was thrown away or came by chance
            reach = min(schedule.reach(own.row, known, min(k, own.end - start - known)), needed)
            lost = max(0, reach - max(known + 1, own.answered + 1))
            begins = own.first < start  # its prompt is fed with it, and its block filled up
            if due is None and begins:
                continue
            counts["head rounds"] += 1
            counts["head allowed"] += max(0, reach - known - 1)
            names = {self.wrong(chain, due) for chain in chains} if due else {None}
            name = None if None in names else names.pop() if len(names) == 1 else "unclear"
            if name and name != "unclear":
                counts[f"head hit {name}"] += 1
            counts[f"head {name or 'unnamed'}"] += lost
        return +counts

    # The calls that proposed what was verified:

    def asked(self, row: int, since: int, until: int) -> int | None:
        """The last call of a head between two calls, whatever row it was for; None for none."""
        return max((call.number for call in self.run.trace.heads if since < call.number < until), default=None)

    def drafted(self, own: Round, since: int) -> tuple[list[list[Node]], Due | None]:
        """The calls that may have proposed a round's draft tokens, each in order, and what was due to them; or nothing.

        One of them did. The others propose the same by chance, where there is a single draft token.
        """
        window = [call for call in self.run.trace.heads if since < call.number < own.call.number]
        text = (*self.texts[own.row][: own.last + 1], *own.refused)
        for tokens in (own.known, own.known - 1, own.known - 2):
            drafts = text[tokens:]
            chains = [chain for chain in self.chains(window) if _proposals(chain)[: len(drafts)] == drafts]
            if chains:
                return chains, Due(own.row, tokens)
        return [], None

    def chains(self, window: list[HeadCall]) -> Iterator[list[Node]]:
        """Every sequence of queries in which each query feeds the token that the query before it proposed."""
        nodes = {call.number: [Node(call, *at) for at in np.ndindex(call.given.digests.shape)] for call in window}
        numbers = {call.number for call in window if call.shape != "accepted"}
        linked = {  # by the query that they go on from
            node.given.write: node
            for call in window
            for node in nodes[call.number]
            if call.shape != "column" and node.given.own and node.given.write[0] in numbers
        }
        going_on = {node.at for node in linked.values()}

        def follows(last: Node, node: Node) -> bool:
            """Return whether a query goes on from another though its own state was exchanged for something else."""
            beginning = node.call.shape == "pairs" and int(node.call.digests[node.row, node.column]) in self.places
            fits = node.token == last.prediction and node.row == last.row
            return fits and node.at not in going_on and not beginning

        for root in (node for call in window if call.shape != "accepted" for node in nodes[call.number]):
            if root.at in going_on:
                continue
            chain = [root]
            later = [call for call in window if call.number > root.call.number and call.shape == root.call.shape]
            for place, call in enumerate(later):
                last = chain[-1]
                if last.at in linked:
                    chain += [linked[last.at]] if linked[last.at].call.number == call.number else []
                elif place == len(chain) - 1:
                    chain += [node for node in nodes[call.number] if follows(last, node)][-1:]
            yield chain

    # The faults of the inputs that they were given:

    def wrong(self, chain: list[Node], due: Due) -> str | None:
        """The first wrong input of the calls that proposed a round's draft tokens."""
        root, text = chain[0], self.texts[due.row]
        if root.call.shape == "column":
            return self.of_state(root.given, due, due.tokens - 2, root.call.number)
        name = self.of_step(root, due) if root.call.shape == "step" else self.of_seen(root, due)
        if name:
            return name
        if int(root.call.digests[root.row, root.column]) != self.digests[due.row][due.tokens - 1]:
            return None  # the target's context was wrong, or the head's own cache: no fault of what it was given
        for place, (before, node) in enumerate(pairwise(chain), due.tokens):
            if place < len(text) and before.prediction != text[place]:
                return None  # what comes behind a wrong proposal does not matter
            given = node.given
            if not given.intact:
                return "torn"
            if not given.own:
                return "stale"
            if given.write != before.at:
                return "stale" if given.write[0] < before.call.number else "wrong-row"
        return None

    def of_step(self, node: Node, due: Due) -> str | None:
        """The fault of the first step of a head that goes on from its own state, or from one of the target."""
        given, name = node.given, None
        if not given.own and "accepted" not in self.attends:
            name = self.of_state(given, due, due.tokens - 2, node.call.number)
        elif not given.intact:
            return "torn"
        else:
            call, row, column = given.write
            before = self.by_number.get(call) if given.own else None
            if before is None or before.shape != "accepted":
                return "stale"
            name = self.of_seen(Node(before, row, column), due)
        return name or (None if node.token == self.texts[due.row][due.tokens - 1] else "token-shift")

    def of_seen(self, node: Node, due: Due) -> str | None:
        """The fault of a query that attends to kept states: the first entry that is not the one due to its place."""
        call, row, column = node
        assert call.visible is not None
        assert call.held is not None
        assert call.held_tokens is not None
        text, expected = self.texts[due.row], due.tokens - 1
        slots = np.flatnonzero(call.visible[row, column]).tolist()
        known = self.places.get(int(call.digests[row, column]), {})
        if known and due.row not in known:
            return "wrong-row"
        for place, slot in enumerate(slots):
            state = State.of(call.held, (row, slot))
            token = int(call.held_tokens[row, slot])
            if place >= expected:
                return "own" if state.own else None
            if token < 0:
                return None  # a slot without an entry: the head's own mask
            if name := self.of_state(state, due, place, call.number):
                return name
            if call.shape == "pairs" and token != text[place + 1]:
                return "token-shift"
        if len(slots) < expected:  # every state that was seen is right, and the newest is missing
            return self.of_state(node.given, due, due.tokens - 2, call.number)
        return None

    def of_state(self, state: State, due: Due, position: int, before: int) -> str | None:
        """The fault of one state where the target's at a position of a row is due, as it was before call ``before``."""
        right = self.digests[due.row][position]
        for name, holds in (
            ("torn", not state.intact),
            ("wrong-layer", state.layer != LAYERS),
            ("own", state.own),
            (None, state.digest == right),
        ):
            if holds:
                return name
        call = max((write[0] for write in self.answered.get(right, ()) if write[0] < before), default=None)
        if call is None or state.write not in self.answered.get(state.digest, ()):
            return None  # the target's own context was wrong
        earlier = state.write[0] < call
        known, owners = self.places.get(state.digest, {}), self.owned(state.write)
        mine = {due.row in whose for whose in (known, owners) if whose}
        if len(mine) > 1:
            return "unclear"  # a pad that looks like another row's first token, or rows that begin alike
        if mine == {False}:
            return "wrong-row?" if earlier else "wrong-row"
        if earlier:
            return "stale"
        return "wrong-column" if state.write[0] == call else None

    def owned(self, write: tuple[int, int, int]) -> set[int]:
        """The rows that a query was of: those in its column, or else in its batch row."""
        rounds = self.owners[write[:2]]
        here = {r.row for r in rounds if r.column - r.last + r.first <= write[2] <= max((r.column, *r.columns))}
        return here or {own.row for own in rounds}


def _proposals(chain: list[Node]) -> tuple[int, ...]:
    root = chain[0]
    if root.call.shape == "column":
        return tuple(root.call.predictions[root.row].tolist())
    return tuple(node.prediction for node in chain)
