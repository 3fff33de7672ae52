"""The losses of the draft side: the rounds that the target would not have needed, and their causes.

A decoder whose output is right can still be slow: its draft may have lost its place, or it may throw away answers of
the target. Acceptance is scripted, so the rounds that an engine with a right draft needs are known (`Schedule`).

A *round* of a row is a target call that asks for a token of the row while the decoder has not committed all of them.
A call that only feeds again what a cache had lost is none, nor one that asks again for what the row was just asked.
Every engine emits the same tokens, and each round brings one that is the target's own: a round more is an accepted
draft token less. Let ``left(n)`` be the rounds that an engine needs behind the first ``n`` tokens of a row if its draft
always sees the row and it verifies K draft tokens a round, K being the most that this decoder did. A round that finds
``n`` tokens known and leaves ``m`` is one too many where ``left(m) == left(n)``; a needed one has
``left(m) == left(n) - 1``, and less only where the decoder was luckier than the script. Summed over a row, what lies
between cancels out:

    rounds == ideal + wrong-context + altered + lost + lost-bonus + asked-again + unasked + policy - spared

with ``ideal`` the sum of ``left(prompt)``, for every row and so for every sum of rows, once `settled`. A round too many
counts as one of

wrong-context  right draft tokens, as many as were fed, would have made it a needed one; a draft in a wrong context of
               the row proposed the token that was refused
altered        the same; but the draft was asked in its right context, and another token was fed
lost           the same; the draft was asked about the row, and nothing was seen of a cause
unasked        the same; the draft was not asked about the row: the decoder drafts by other means, too
lost-bonus     all draft tokens of the row's round before were accepted, and what the target had answered was drafted
               and asked again
asked-again    the same, where some were rejected
policy         anything else: the decoder verified fewer draft tokens than in other rounds, or none, or took back what
               other rows did not accept, or fed a prompt in a call of its own

``unasked`` and ``policy`` are no losses. ``allowed`` are the draft tokens that the script lets be accepted, ``tokens -
ideal``. So where nothing is policy or luck, the losses of a case are the rounds it took too many.

Rows that come to the same text, as those of equal prompts do, are left out where they do not fare alike.

Some decoders have all rows go on with as many tokens as the one that accepts least. Then ``left`` is that of all rows
together, and a token of one is lost only where it costs them all. A run is counted both ways, and `settled` chooses.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np

from eqcheck.contract.kinds import HEAD_LOSSES
from eqcheck.contract.trees import cut, depths
from eqcheck.core.explanation.notice import Notice
from eqcheck.core.result.outcome import Loss, LossesOf
from eqcheck.core.result.tally import Losing
from eqcheck.transparent.attribution.branches import seen_in_block
from eqcheck.transparent.decoding import Run, Schedule
from eqcheck.transparent.hashlm import hashing
from eqcheck.transparent.hashlm.hashing import LAYERS, Ints, States
from eqcheck.transparent.hashlm.trace import DRAFT, TARGET, Call, HeadCall
from eqcheck.transparent.rounds import Round

# The losses of a draft model in one run, as counts that `eqcheck.transparent.attribution.lost_drafts` describes.

_Query = tuple[Call, int, int]  # a batch row and column of a call
DOUBTFUL = "wrong-context?"  # a draft in a wrong context predicted the refused token, perhaps by chance


class LosingRound(NamedTuple):
    """Draft tokens that one round of a row lost: how many, and ``why``, as the counts name it.

    ``own`` is the round, and the draft was asked for it after the call ``since``. Where an answer of that call was
    asked again, the decoder had ``kept`` so many new tokens.
    """

    why: str
    tokens: int
    own: Round
    since: int
    kept: int = 0


class DraftLosses(NamedTuple):
    """The ``counts`` of one run, and the rounds that lost: of rows that do not wait for each other, and that do."""

    counts: Counter[Loss]
    alone: tuple[LosingRound, ...] = ()
    waiting: tuple[LosingRound, ...] = ()


def draft_losses(run: Run) -> Counter[Loss]:
    """The losses of a draft model in a run whose output is right, as counts."""
    return losses_of(run).counts


def losses_of(run: Run) -> DraftLosses:
    """The losses of a draft model in a run whose output is right.

    There are none where the draft was not asked or nothing was verified.
    `eqcheck.transparent.attribution.lost_drafts.settled` decides what a run leaves open. The rounds that lost are known
    where drafts are chains.
    """
    if not run.rounds.drafting:
        return DraftLosses(Counter())
    if run.case.tree:
        return DraftLosses(_of_trees(run))
    k = min(run.case.num_draft_tokens, max((own.proposed for own in run.rounds.every), default=0))
    return _Chains(run, k).losses() if k else DraftLosses(Counter())


@dataclass
class _Turn:
    """A row's part in a round, in counts of new tokens.

    ``known`` were known before it and ``after`` are after it. The decoder had committed ``committed`` of them, surely
    from ``at_least`` to ``at_most``. ``drafted``: the draft was asked for the round. ``done``: all that the row needs
    were known. ``others`` are the turns of other rows in the same round, ``before`` and ``then`` those of the row
    before and after it.
    """

    own: Round
    done: bool
    drafted: bool
    before: _Turn | None
    known: int
    at_least: int
    committed: int
    at_most: int
    then: _Turn | None = field(default=None, repr=False)
    others: list[_Turn] = field(default_factory=list, repr=False)

    @property
    def after(self) -> int:
        return max(self.known, self.own.answered + 1)

    def ahead_or_level(self) -> list[str]:
        """Return whether a row that accepted more than another of its round went on with more,
        or with as much as that one.
        """
        if not self.then or not self.others:
            return []
        least = min(turn.own.answered - turn.at_least for turn in (self, *self.others))
        if self.then.at_least > self.at_most + least + 1:
            return ["ahead"]
        least = min(turn.own.answered - turn.committed for turn in self.others)
        more = self.own.answered - self.committed > least
        return ["level"] if more and self.then.committed <= self.committed + least + 1 else []


class _Chains:
    """The losses of a run whose drafts are chains of ``k`` tokens at most."""

    def __init__(self, run: Run, k: int) -> None:
        self.run, self.k, self.rounds = run, k, run.rounds
        self.schedule, self.refusals = Schedule(run.case, run.truth), _Refusals(run)
        self.needed = self.schedule.needed

    def losses(self) -> DraftLosses:
        """The counts of rows that do not wait for each other, those of rows that do, and what tells which it is."""
        ends = [len(prompt) + needed for prompt, needed in zip(self.run.case.prompts, self.needed, strict=True)]
        once = self.rounds.once(ends=ends)
        again = len(self.rounds.every) - len(once)
        rounds = self._told_apart(self._turns(self.rounds.once() if again else once))
        alone: Counter[str] = Counter()
        lost_alone: list[LosingRound] = []
        for row in range(len(self.needed)):
            of_row = [[turn for turn in turns if turn.own.row == row] for turns in rounds]
            alone.update(self._counted(of_row, lost_alone))
        waiting, lost_waiting = alone, lost_alone
        if _all_take_part(rounds):
            lost_waiting = []
            waiting = self._counted(rounds, lost_waiting)
        counts = Counter({Loss(name): count for name, count in alone.items()})
        counts.update({Loss(name, LossesOf.WAITING): count for name, count in waiting.items()})
        counts.update(Loss(evidence) for turn in chain.from_iterable(rounds) for evidence in turn.ahead_or_level())
        counts[Loss("again")] += again
        return DraftLosses(+counts, tuple(lost_alone), tuple(lost_waiting))

    def _reach(self, row: int, tokens: int, count: int) -> int:
        """Return how many tokens are known after a round that begins with so many and verifies ``count`` right ones."""
        return self.schedule.reach(row, tokens, min(count, self.k))

    def _left(self, rows: Collection[int]) -> dict[int, int]:
        """Return by tokens known the rounds that these rows need if each waits for the one that accepts least."""
        left: dict[int, int] = defaultdict(int)
        for tokens in range(max(self.needed[row] for row in rows) - 1, -1, -1):
            going = [row for row in rows if self.needed[row] > tokens]
            left[tokens] = len(going) + left[min(self._reach(row, tokens, self.k) for row in going)]
        return left

    def _turns(self, rounds: list[Round]) -> list[list[_Turn]]:
        """The turns of a run by round, of rows that had not committed all that they need."""
        by_round: list[list[_Turn]] = []
        newest: dict[int, _Turn] = {}
        final = {own.row: own for own in rounds}
        drafted = -1
        for own in rounds:
            if own.in_prompt:
                continue
            turn = self._turn(own, newest.get(own.row), own is final[own.row])
            fed_again = own.answered < turn.known and not own.columns and turn.committed == turn.known
            if turn.committed >= self.needed[own.row] or fed_again:  # it is done, or a cache had lost something
                continue
            drafted_now = self.rounds.drafted_before(own.call.number)
            if drafted_now != drafted or any(other.own.row == own.row for other in by_round[-1]):
                drafted = drafted_now
                by_round.append([])
            if turn.before:
                turn.before.then = turn
            for other in by_round[-1]:
                other.others.append(turn)
                turn.others.append(other)
            by_round[-1].append(turn)
            newest[own.row] = turn
        return by_round

    def _turn(self, own: Round, before: _Turn | None, final: bool) -> _Turn:
        """The turn of a round; ``final``: it is the last of its row."""
        known, fed = own.known - own.start, own.end - own.start
        begun = self.rounds.begun(own.row, before.own.call.number if before else 0, own.call.number)
        done = known >= self.needed[own.row]
        turn = _Turn(own, done, begun is not None, before, known, 0, known, known)
        if begun is not None:
            turn.at_least = min(known, begun - own.start)
            turn.committed = min(known, max(turn.at_least, fed - self.k))
            # Near the limit fewer than K are verified, so where draft tokens end does not say where they begin.
            turn.at_most = turn.committed if fed < self.run.case.max_new_tokens - 1 else known
        elif own.answered < known and (own.columns or (final and done)):
            turn.committed = turn.at_most = own.answered
        return turn

    def _told_apart(self, rounds: list[list[_Turn]]) -> list[list[_Turn]]:
        """The rounds without rows that are asked the same but fare differently: whose turn is whose cannot be seen."""
        fares: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for turn in chain.from_iterable(rounds):
            fares[turn.own.row].append((turn.known, turn.own.last))
        left_out: set[int] = set()
        for owners in self.rounds.places.values():
            same = [row for row, at in owners.items() if at >= len(self.run.case.prompts[row]) - 1]
            if any(fares[row] != fares[same[0]] for row in same):
                left_out.update(same)
        kept = [[turn for turn in turns if turn.own.row not in left_out] for turns in rounds]
        return [turns for turns in kept if turns]

    def _counted(self, rounds: list[list[_Turn]], lost_in: list[LosingRound]) -> Counter[str]:
        """The counts of rows that wait for each other in every round; of a single row, those of that row.

        The rounds that lost are added to ``lost_in``.
        """
        rounds = [turns for turns in rounds if turns]
        rows = {turn.own.row for turns in rounds for turn in turns}
        counts: Counter[str] = Counter()
        if not rows:
            return counts
        left, begin = self._left(rows), 0
        for turns in rounds:
            # Rows wait for the one that accepts least, so it alone decides what a round brings, and to feed right
            # tokens to another helps nobody. A round that is left over the draft tokens lost is idle: it fed right
            # tokens and came too late.
            slowest = min(turns, key=lambda turn: turn.after)
            after, right = slowest.after, min(map(self._right, turns))
            surplus = len(turns) + left[after] - left[begin]
            lost = left[after] - left[right]
            if lost:
                since = slowest.before.own.call.number if slowest.before else 0
                why = self.refusals.why_refused(slowest.own, since, slowest.committed + slowest.own.start)
                lost_in.append(LosingRound(why, lost, slowest.own, since))
                counts[why] += lost
            if surplus > lost:
                reasons = [self._why_idle(turn, min(turn.known, begin), len(rows) > 1) for turn in turns]
                at = next((at for at, reason in enumerate(reasons) if reason != "policy"), 0)
                counts[reasons[at]] += surplus - lost
                if before := turns[at].before:
                    own, since = turns[at].own, before.own.call.number
                    lost_in.append(LosingRound(reasons[at], surplus - lost, own, since, turns[at].committed))
            counts["spared"] += max(0, lost - surplus)
            counts["rounds"] += len(turns)
            begin = after
        counts["spared"] += left[begin]  # of rows that were done before those they were to wait for
        counts["ideal"] = left[0]
        counts["allowed"] = sum(self.needed[row] for row in rows) - left[0]
        return counts

    def _right(self, turn: _Turn) -> int:
        """Return how many tokens would be known after a turn, had the draft tokens fed been those of a right draft."""
        own, at = turn.own, min(turn.known, turn.own.answered)
        return max(turn.after, self._reach(own.row, at, own.end - own.start - at))

    def _why_idle(self, turn: _Turn, known: int, waits: bool) -> str:
        """The reason for a round too many that fed right tokens: ``known`` tokens could have been committed before."""
        before, own = turn.before, turn.own
        if before is None or not before.drafted or turn.committed >= known or own.first + 2 - own.start > known:
            return "policy"
        if turn.done and turn.committed <= before.committed:
            return "policy"  # a row that is done, and stays in its batch as it was
        if waits and any(other.then is None for other in before.others):
            return "policy"  # whether rows wait for what a row accepts behind its end is not known
        last = before.own
        fed = int(last.call.tokens[last.call_row, last.column])
        if fed == self.run.case.pad_token_id and not self.rounds.proposed(own.row, last.last - 1, last.call.number):
            return "policy"  # a pad that happened to be right, which the decoder does not take for a draft token
        rejected = bool(last.columns) and not self.refusals.fills_up(last)
        if not turn.drafted and not own.columns and turn.done:  # or what a state took in of a rejected draft is undone
            return "policy" if rejected else "lost-bonus?"
        return "asked-again" if rejected else "lost-bonus"


def _all_take_part(rounds: list[list[_Turn]]) -> bool:
    """Return whether every round has all rows that are not done, so that they may wait for one another."""
    served = [{turn.own.row for turn in turns} for turns in rounds]
    return bool(served) and served[0] == set().union(*served) and all(then <= now for now, then in pairwise(served))


class _Refusals:
    """The origin of draft tokens that the target refused: the draft's queries, and the context of each."""

    def __init__(self, run: Run) -> None:
        self.run, self.rounds = run, run.rounds
        self._marks: dict[int, Ints] = {}

    def why_refused(self, own: Round, since: int, committed: int) -> str:
        """The origin of the first refused token, which a right draft would not have proposed.

        ``since`` is the call after which the draft was asked for it, ``committed`` how many tokens of the row the
        decoder had then. One coincidence proves nothing; so a draft that predicted the token in a wrong context must
        have been given the token before it, too, and must have gone on to the next token fed or, where none was fed,
        have seen entries which only this row writes. Where the draft was asked in the right context, it had proposed
        another token.
        """
        if self.fills_up(own):
            return "unasked"
        token, *then = own.refused
        row, until = own.row, own.call.number
        before = int(own.call.tokens[own.call_row, own.column])
        asked = self.rounds.asked(row, since, until)
        predicted = list(self._wrong(row, since, until, token))
        rightly = {number for number, at in asked if at == own.last}
        # Behind a pad that is the row's newest token, other pads fill up the row; they see it, too, but nobody asks.
        padding = rightly if before == self.run.case.pad_token_id else set()
        after = [query for query in predicted if _fed(query) == before and query[0].number not in padding]
        for query in after:
            later = self._wrong(row, query[0].number - 1, until, then[0]) if then else ()
            if any(_fed(other) == token for other in later) if then else self._saw(query, row):
                return "wrong-context"
        if rightly:
            return "altered"
        if any(self._saw(query, row) for query in predicted):
            return "wrong-context"
        if self.rounds.proposed(row, own.last, until):
            return "altered"
        if after:
            return DOUBTFUL
        # Nothing was seen of a cause. "lost" needs the draft to have been asked about this row at all: a decoder that
        # looks its drafts up asks no draft, and loses nothing by that.
        about = any(at >= committed - 1 for _, at in asked)
        return "lost" if about or any(self._saw(query, row) for query in self._wrong(row, since, until)) else "unasked"

    def fills_up(self, own: Round) -> bool:
        """Return whether what was refused is padding: a query that does not see itself,
        or pads and no more was drafted.
        """
        call, row, column = own.call, own.call_row, own.columns[0]
        fields = call.kv[0][0, row, 0]
        slots = np.flatnonzero((fields[:, hashing.CALL] == call.number) & (fields[:, hashing.COLUMN] == column))
        if slots.size and not call.visible[row, column, slots[slots < call.visible.shape[2]]].any():
            return True
        pads = all(token == self.run.case.pad_token_id for token in own.refused)
        return pads and not self.rounds.proposed(own.row, own.last + 1, call.number)

    def _wrong(self, row: int, since: int, until: int, predicted: int | None = None) -> Iterator[_Query]:
        """The draft's queries between two calls, in contexts not those of the row, which predicted this token."""
        for call in self.rounds.drafted_between(since, until):
            chosen = call.predictions == predicted if predicted is not None else np.ones_like(call.tokens, bool)
            for batch_row, column in np.argwhere(chosen).tolist():
                if row not in self.rounds.places.get(int(call.digests[batch_row, column]), {}):
                    yield call, batch_row, column

    def _saw(self, query: _Query, row: int) -> bool:
        """Return whether a query saw an entry that only this row writes: the entry holds the hash of the row so far."""
        call, batch_row, column = query
        visible = call.visible[batch_row, column]
        stored = hashing.stored_digest(call.kv[-1][0, batch_row, 0])
        slots = min(len(visible), len(stored))
        return bool(np.isin(stored[:slots][visible[:slots]], self._marks_of(row)).any())

    def _marks_of(self, row: int) -> Ints:
        if row not in self._marks:
            prompts = self.run.case.prompts
            digests = [hashing.truncated(digests[0]) for digests in self.run.truth.digests]
            others = [own for own, prompt in zip(digests, prompts, strict=True) if prompt != prompts[row]]
            self._marks[row] = np.setdiff1d(digests[row], np.concatenate(others) if others else [])
        return self._marks[row]


def _fed(query: _Query) -> int:
    call, batch_row, column = query
    return int(call.tokens[batch_row, column])


def _of_trees(run: Run) -> Counter[Loss]:
    """The losses of a run whose drafts are trees.

    A row counts where each of its rounds fed a tree of the depths that were named for it, and where no other row can be
    asked the same. A round more is blamed on the first node that the target would have taken.
    """
    rounds: dict[int, list[Round]] = defaultdict(list)
    for own in run.rounds.once():
        if own.last + 1 >= own.known:
            rounds[own.row].append(own)
    schedule = Schedule(run.case, run.truth)
    counts: Counter[Loss] = Counter()
    for row, of_row in rounds.items():
        # Chains are counted by what a right draft would propose next; in a tree any node may be the one that is lost,
        # so only rounds with the tree that was named for them can be compared. The filler of a prompt of one token
        # beside longer ones may look like a tree; nobody had drafted it.
        filled = of_row[0].columns and not run.rounds.drafted_before(of_row[0].call.number)
        named = all(_as_named(run, own, number) for number, own in enumerate(of_row))
        if filled or run.rounds.shared(row, run.case.max_new_tokens) or not named:
            continue
        needed, ideal, why = schedule.needed[row], len(schedule.rows[row]), "policy"
        for number, own in enumerate(of_row):
            known = own.known - own.start
            if own.accepted < min(schedule.accepted(row, known, run.case.nodes(row, number)), needed - known):
                why = "altered" if run.rounds.proposed(row, own.last, own.call.number) else "wrong-context"
                break
        more = len(of_row) - ideal
        counts.update({Loss("rounds"): len(of_row), Loss("ideal"): ideal, Loss("allowed"): needed - ideal})
        counts.update({Loss(why): max(0, more), Loss("spared"): max(0, -more)})
    return +counts


def _as_named(run: Run, own: Round, number: int) -> bool:
    """Return whether a batch row holds a tree of the depths that are named for this round, as far as there is room."""
    nodes, (call, call_row) = run.case.nodes(own.row, number), (own.call, own.call_row)
    newest = int(run.truth.digests[own.row][-1, own.known - 1])
    root = next((column for column, digest in enumerate(call.digests[call_row].tolist()) if digest == newest), None)
    if root is None or not nodes:
        return False
    sees, alone = seen_in_block(call, call_row, set(range(root, call.tokens.shape[1])))
    fed = sorted(len(seen) for column, seen in sees.items() if root in seen and not alone[column])
    named = cut(nodes, run.case.max_new_tokens - (own.known - own.start) - 1)
    return fed == sorted(depths(named)[1:])


# The hidden states of the target that a head was given before each round, and the cost of a wrong input.
#
# A head drafts from the state at the position before a row's newest token (`eqcheck.transparent.drafting`). Its calls
# are recorded with all that it saw. So for each round, the search is for the call that proposed the verified draft
# tokens. The states that this call saw are held against the states that were due to the row. The first that differs is
# named, by the first of these rules that holds:
#
# torn           the numbers are no state of any model: zeros, an average, parts of two
# wrong-layer    a state behind another layer
# own            the head's own state where one of the target is due
# wrong-row      a state of another row
# stale          a state of an earlier call than the one that was due; or the target's where the head's own is due
# wrong-column   a state of the call that was due, of another column
# token-shift    the state that was due, with another token than the one behind it
#
# The output is right all the same, for the target verifies. The loss is in draft tokens that the script lets be
# accepted. Where all inputs were right and tokens are lost, or no call can be seen to have proposed them, nothing is
# named.


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


def head_losses(run: Run) -> Counter[Loss]:
    """Count what wrong inputs of a head cost in a run whose output is right.

    Of a head, ``rounds`` are those with draft tokens, ``allowed`` the draft tokens that could have been accepted in
    them. By kind, there are the tokens lost, and the rounds hit by such an input. ``unnamed`` are tokens lost although
    the inputs were right, or no call was found that proposed the draft tokens; ``unclear`` are tokens lost with a wrong
    input that no kind describes.
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

    def losses(self) -> Counter[Loss]:
        counts: Counter[Loss] = Counter()
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
            counts[Loss("rounds", LossesOf.HEAD)] += 1
            counts[Loss("allowed", LossesOf.HEAD)] += max(0, reach - known - 1)
            names = {self.wrong(chain, due) for chain in chains} if due else {None}
            name = None if None in names else names.pop() if len(names) == 1 else "unclear"
            if name and name != "unclear":
                counts[Loss(name, LossesOf.HIT)] += 1
            counts[Loss(name or "unnamed", LossesOf.HEAD)] += lost
        return +counts

    # The calls that proposed what was verified:

    def asked(self, row: int, since: int, until: int) -> int | None:
        """The last call of a head between two calls, whatever row it was for; None for none."""
        return max((call.number for call in self.run.trace.heads if since < call.number < until), default=None)

    def drafted(self, own: Round, since: int) -> tuple[list[list[Node]], Due | None]:
        """The calls that may have proposed a round's draft tokens, each in order, and what was due to them; or nothing.

        One of them did. The others propose the same by chance, where there is a single draft token.
        """
        # The record does not say how many tokens were known when the head was asked: all of them are tried first, then
        # fewer, where an answer was thrown away or came by chance.
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

        # A link by the state that was handed on is sure; only a chain's last query that nobody was seen to go on from
        # is continued by its token, since a decoder that exchanges states breaks just that link.
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
        # In the order of the steps: what a step was given wrongly makes all later ones wrong, too.
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
        # The whole context first: if it is another row's, each state in it is wrong, and the first one would be named
        # for an accident.
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


# Losses below 1 % may be accidents: a filler is the row's next token about once in a vocabulary of 128, and then looks
# like an answer thrown away. Real models have greater vocabularies, so there the bound is only too careful: it hides
# losses below 1 %, and never tells one that is none.
_COINCIDENCES = 100
# One row seen ahead refutes so many that are level: rows that wait are ahead only where a token is right by chance, and
# that happens far less often than once in so many rounds.
_ENOUGH_AHEAD = 10
# The kind of each warning, and what it says of each of its counts.
_WARNINGS = {
    "draft/desync": {
        "wrong-context": "the draft saw something other than its row",
        "altered": "the target was given another token than the draft had proposed in its right context",
    },
    "draft/lost-bonus": {
        "lost-bonus": "all draft tokens of a round were accepted, and what the target had answered was asked again"
    },
    "draft": {
        "asked-again": "draft tokens of a round were rejected, and what the target had answered was asked again",
        "lost": "no cause was seen",
    },
}


def all_losses(run: Run) -> Counter[Loss]:
    """The losses of the draft side in a run whose output is right: of a draft model, and of a head."""
    return draft_losses(run) + head_losses(run)


def all_warnings(losses: Counter[Loss]) -> list[str]:
    """One warning per way in which the draft side lost, from the `all_losses` of many runs."""
    return draft_warnings(losses) + head_warnings(losses)


def rows_wait(losses: Counter[Loss]) -> bool:
    """Return whether the rows of many runs are held to wait for the one that accepts least."""
    return losses[Loss("ahead")] * _ENOUGH_AHEAD < losses[Loss("level")]


def by_cause(losses: Counter[Loss], lost: Counter[Losing]) -> dict[str, int]:
    """The draft tokens that were lost by each cause that is told, the most first; ``losses`` as for `all_warnings`.

    Nothing is told where so little is lost that there is no warning. Left out is a single token, and a draft that
    always sees the same number of its row's newest tokens: that is how it was built.
    """
    waits, allowed = rows_wait(losses), settled(losses)["allowed"]
    tokens: Counter[str] = Counter()
    for one, count in lost.items():
        if one.waits == waits and (not one.doubtful or _likely(losses, waits)):
            tokens[one.fingerprint] += count
    designed = _by_design(lost)
    told = {name: count for name, count in tokens.most_common() if count > 1 and name not in designed}
    return told if sum(told.values()) * _COINCIDENCES >= allowed else {}


def _by_design(lost: Counter[Losing]) -> set[str]:
    """The causes for which each query at fault saw the same number of its row's newest tokens, and nothing else."""
    windows: dict[str, set[int]] = {}
    for one, count in lost.items():
        windows.setdefault(one.fingerprint, set()).update({one.window} if count else ())
    return {name for name, sizes in windows.items() if len(sizes) == 1 and 0 not in sizes}


def but_for_windows(losses: Counter[Loss], lost: Counter[Losing]) -> Counter[Loss]:
    """The losses of many runs without those of a draft that is built to see so many of its row's newest tokens."""
    left, designed = Counter(losses), _by_design(lost)
    for one, count in lost.items():
        if one.fingerprint in designed:
            of = _of(one.waits)
            loss = Loss(DOUBTFUL if one.doubtful else "wrong-context", of)
            meant = min(count, left[loss])
            left.update({loss: -meant, Loss("policy", of): meant})
    return +left


def _of(waits: bool) -> LossesOf:
    return LossesOf.WAITING if waits else LossesOf.ALONE


def _likely(losses: Counter[Loss], waits: bool) -> bool:
    """Return whether what may be a coincidence is the draft's: it is told more often than drafts by other means."""
    return losses[Loss(DOUBTFUL, _of(waits))] >= losses[Loss("unasked", _of(waits))]


def settled(losses: Counter[Loss]) -> Counter[str]:
    """The counts of many runs, with what each run leaves open decided by what is seen in all of them.

    Rows that wait for the one that accepts least are level with it, and never ahead but for a coincidence; where no
    round tells, rows do not wait. A token that a draft in a wrong context predicted is a coincidence now and then where
    the decoder also drafts by other means; where such tokens are most, they are the draft's. A call behind the last
    token of a row asks for a bonus that was dropped, but for a decoder that is seen to make calls again.

        >>> settled(Counter({Loss("rounds"): 9, Loss("ideal"): 8, Loss("wrong-context?"): 1, Loss("ahead"): 2}))
        Counter({'rounds': 9, 'ideal': 8, 'wrong-context': 1})
    """
    waits = rows_wait(losses)
    counts = Counter({loss.name: count for loss, count in losses.items() if loss.of is _of(waits)})
    if not waits:  # heads are counted one way only
        counts.update({str(loss): n for loss, n in losses.items() if loss.of in (LossesOf.HEAD, LossesOf.HIT)})
    doubtful = counts.pop(DOUBTFUL, 0)
    counts["wrong-context" if _likely(losses, waits) else "unasked"] += doubtful
    dropped = counts.pop("lost-bonus?", 0)
    counts["policy" if losses[Loss("again")] > dropped else "lost-bonus"] += dropped
    return Counter({name: count for name, count in counts.items() if count and name not in ("ahead", "level", "again")})


def lost(losses: Counter[Loss]) -> tuple[int, int]:
    """Return how many draft tokens were lost in many runs, and of how many that the script lets be accepted.

    Losses that may be a coincidence, so that `all_warnings` does not tell them, do not count.

    >>> lost(Counter({Loss("allowed"): 9, Loss("wrong-context"): 2, Loss("policy"): 3}))
    (2, 9)
    >>> lost(Counter({Loss("allowed"): 999, Loss("lost"): 1}))
    (0, 999)
    >>> lost(Counter({Loss("allowed", LossesOf.HEAD): 9, Loss("rounds", LossesOf.HEAD): 5}))
    (0, 9)
    """
    counts, head = settled(losses), _of_heads(losses, LossesOf.HEAD)
    heads = sum(head[name] for name in (*HEAD_LOSSES, "unnamed", "unclear"))
    drafts = [sum(counts[kind] for kind in kinds) for kinds in _WARNINGS.values()]
    told = sum(count for count in drafts if count > 1 and count * _COINCIDENCES >= counts["allowed"])
    return told + (heads if head_warnings(losses) else 0), counts["allowed"] + head["allowed"]


def draft_warnings(losses: Counter[Loss]) -> list[str]:
    """One warning per way in which the draft side lost, with how much and what was seen; none where it lost nothing.

    Nor where that is one token, or less than one in `_COINCIDENCES`: where something that only fills up a row happens
    to be the row's next token, it looks as if an answer had been thrown away.
    """
    counts = settled(losses)
    warnings: list[str] = []
    for name, kinds in _WARNINGS.items():
        lost = sum(counts[kind] for kind in kinds)
        if lost > 1 and lost * _COINCIDENCES >= counts["allowed"]:
            seen = max(((counts[kind], what) for kind, what in kinds.items()), key=lambda one: one[0])[1]
            said = f"{lost} of {counts['allowed']} draft tokens were lost ({100 * lost / counts['allowed']:.0f} %)"
            if lost > counts["allowed"]:  # each round that commits a token loses fewer than it could have
                said = f"{counts['rounds']} rounds where {counts['ideal']} do: some committed nothing"
            warnings.append(Notice(f"{said}: {seen}. This costs speed, not output", name))
    return warnings


def _of_heads(losses: Counter[Loss], of: LossesOf) -> Counter[str]:
    return Counter({loss.name: count for loss, count in losses.items() if loss.of is of})


def head_warnings(losses: Counter[Loss]) -> list[str]:
    """One warning per kind of wrong input, the one that cost most first; none where inputs were right."""
    counts, hit = _of_heads(losses, LossesOf.HEAD), _of_heads(losses, LossesOf.HIT)
    # A state of another row and of an earlier call: whichever of the two is seen elsewhere.
    doubtful = "stale" if hit["stale"] > hit["wrong-row"] else "wrong-row"
    for named in (counts, hit):
        named[doubtful] += named.pop("wrong-row?", 0)
    warnings: list[str] = []
    for name in sorted(HEAD_LOSSES, key=lambda name: (-counts[name], -hit[name])):
        hits, lost = hit[name], counts[name]
        if hits > 1 and hits * 100 >= counts["rounds"]:
            said = f"{lost} of {counts['allowed']} draft tokens lost in {hits} of {counts['rounds']} rounds of a head: "
            said += f"{HEAD_LOSSES[name]}. This costs speed, not output"
            warnings.append(Notice(said, f"draft/{name}{'' if name == 'token-shift' else '-hidden'}"))
    lost = counts["unnamed"] + (0 if warnings else counts["unclear"])
    if lost > 1 and lost * 100 >= counts["allowed"]:
        said = f"{lost} of {counts['allowed']} draft tokens of a head were lost, and no cause was seen"
        warnings.append(Notice(f"{said}. This costs speed, not output", "draft"))
    return warnings
