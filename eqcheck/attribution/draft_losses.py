"""The losses of a draft model in one run, as counts that `eqcheck.attribution.losses` describes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np

from eqcheck.attribution.branches import seen_in_block
from eqcheck.contract.trees import cut, depths
from eqcheck.decoding.rounds import Round
from eqcheck.decoding.run import Run
from eqcheck.decoding.schedule import Schedule
from eqcheck.hashlm import hashing
from eqcheck.hashlm.hashing import Ints
from eqcheck.hashlm.trace import Call

_Query = tuple[Call, int, int]  # a batch row and column of a call
DOUBTFUL = "wrong-context?"  # a draft in a wrong context predicted the refused token, perhaps by chance
WAITING = "waiting "  # before the names of counts that hold where rows wait for the one that accepts least


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

    counts: Counter[str]
    alone: tuple[LosingRound, ...] = ()
    waiting: tuple[LosingRound, ...] = ()


def draft_losses(run: Run) -> Counter[str]:
    """The losses of a draft model in a run whose output is right, as counts."""
    return losses_of(run).counts


def losses_of(run: Run) -> DraftLosses:
    """The losses of a draft model in a run whose output is right.

    There are none where the draft was not asked or nothing was verified. `eqcheck.attribution.losses.settled` decides
    what a run leaves open. The rounds that lost are known where drafts are chains.
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
        counts = +(alone + Counter({f"{WAITING}{name}": count for name, count in waiting.items()}))
        counts.update(evidence for turn in chain.from_iterable(rounds) for evidence in turn.ahead_or_level())
        return DraftLosses(counts + Counter(again=again), tuple(lost_alone), tuple(lost_waiting))

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


def _of_trees(run: Run) -> Counter[str]:
    """The losses of a run whose drafts are trees.

    A row counts where each of its rounds fed a tree of the depths that were named for it, and where no other row can be
    asked the same. A round more is blamed on the first node that the target would have taken.
    """
    rounds: dict[int, list[Round]] = defaultdict(list)
    for own in run.rounds.once():
        if own.last + 1 >= own.known:
            rounds[own.row].append(own)
    schedule = Schedule(run.case, run.truth)
    counts: Counter[str] = Counter()
    for row, of_row in rounds.items():
        # The filler of a prompt of one token beside longer ones may look like a tree; nobody had drafted it.
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
        counts.update({"rounds": len(of_row), "ideal": ideal, "allowed": needed - ideal})
        counts.update({why: max(0, more), "spared": max(0, -more)})
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
