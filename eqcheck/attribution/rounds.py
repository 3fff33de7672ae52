"""What the draft side lost: rounds that the target would not have needed, and why it did.

A decoder whose output is right can still be slow: its draft may have lost its place, or what the target answers may be
thrown away. Acceptance is scripted, so what an engine with a right draft needs is known.

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

Rows that come to the same text, as those of equal prompts do, are left out where they do not fare alike: which of them
is which cannot be seen.

Some decoders have all rows go on with as many tokens as the one that accepts least. Then ``left`` is that of all rows
together, and a token of one is lost only where it costs them all. A run is counted both ways, and `settled` chooses.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import chain, pairwise

from eqcheck.attribution.branch_losses import branch_losses
from eqcheck.attribution.parts import Part, Places, once, parts
from eqcheck.attribution.proposals import Proposals
from eqcheck.decoding.harness import agrees
from eqcheck.decoding.run import Run
from eqcheck.explanation.notice import Notice
from eqcheck.hashlm.trace import DRAFT

_COINCIDENCES = 100  # a filler is the row's next token about once in a vocabulary of 128
# One row seen ahead refutes so many that are level: rows that wait are ahead only where a token is right by chance, and
# that happens far less often than once in so many rounds.
_ENOUGH_AHEAD = 10
_WAITING = "waiting "  # before the names of counts that hold where rows wait for the one that accepts least
# What each warning begins with, and what it says of each of its counts.
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


def draft_losses(run: Run) -> Counter[str]:
    """What the draft side lost in a run whose output is right, as the counts that the module describes.

    Nothing where the draft was not asked or nothing was verified. What a run leaves open is decided by `settled`.
    """
    if not run.trace.made(DRAFT):
        return Counter()
    if run.case.tree:
        return branch_losses(run)
    proposals = Proposals(run)
    every = list(parts(run, proposals.right))
    k = min(run.case.num_draft_tokens, max((part.proposed for part in every), default=0))
    if not k:
        return Counter()
    script = Allowed(run, k)
    kept = once(every, proposals.begun, script.ends)
    if again := len(every) - len(kept):
        kept = once(every, proposals.begun)
    rounds = _told_apart(script, proposals.right, _rounds(kept, script, proposals))
    alone: Counter[str] = Counter()
    for request in range(len(script.needed)):
        alone.update(_counted(script, proposals, [[t for t in turns if t.part.request == request] for turns in rounds]))
    waiting = _counted(script, proposals, rounds) if _all_take_part(rounds) else Counter(alone)
    found = +(alone + Counter({f"{_WAITING}{name}": count for name, count in waiting.items()}))
    found.update(evidence for turns in rounds for turn in turns for evidence in turn.ahead_or_level())
    return found + Counter(again=again)


class Allowed:
    """What a draft that sees its rows has accepted, of ``k`` draft tokens a round at most.

    Tokens are counted from the end of the prompt; row ``request`` needs ``needed[request]`` of them.
    """

    def __init__(self, run: Run, k: int) -> None:
        self.k, self.limit = k, run.case.max_new_tokens
        self.starts = [len(prompt) for prompt in run.case.prompts]
        self.needed = [len(row) for row in run.truth.rows]
        self.ends = [start + needed for start, needed in zip(self.starts, self.needed, strict=True)]
        self._agrees = agrees(run.case, run.truth)

    def reach(self, request: int, tokens: int, room: int) -> int:
        """How many tokens are known after a round that begins with so many and verifies ``room`` right draft tokens."""
        right = self._agrees[request][tokens : tokens + min(room, self.k)]
        return tokens + (right.index(False) if False in right else len(right)) + 1

    def left(self, requests: Collection[int]) -> dict[int, int]:
        """By tokens known, the rounds that these rows need where each waits for the one that accepts least."""
        left: dict[int, int] = defaultdict(int)
        for tokens in range(max(self.needed[request] for request in requests) - 1, -1, -1):
            going = [request for request in requests if self.needed[request] > tokens]
            left[tokens] = len(going) + left[min(self.reach(request, tokens, self.k) for request in going)]
        return left


@dataclass
class _Turn:
    """A row's part of a round. Tokens are counted from the end of the prompt.

    ``known`` were known before it and ``after`` are after it. The decoder had committed ``committed`` of them, surely
    from ``at_least`` to ``at_most``. ``drafted``: the draft was asked for the round. ``others`` are the turns of other
    rows in the same round, ``before`` and ``then`` those of the row before and after it.
    """

    part: Part
    start: int
    needed: int
    known: int
    at_least: int
    committed: int
    at_most: int
    drafted: bool
    before: _Turn | None
    then: _Turn | None = field(default=None, repr=False)
    others: list[_Turn] = field(default_factory=list, repr=False)

    @property
    def after(self) -> int:
        """How many tokens are known after it."""
        return max(self.known, self.part.last + 2 - self.start)

    def right(self, script: Allowed) -> int:
        """How many tokens would be known after it, had the draft tokens fed been those of a right draft."""
        at = min(self.known, self.part.last + 1 - self.start)
        return max(self.after, script.reach(self.part.request, at, self.part.end - self.start - at))

    def accepted(self, committed: int) -> int:
        """How many draft tokens were accepted, if so many tokens stood before them."""
        return self.part.last + 1 - self.start - committed

    def ahead_or_level(self) -> list[str]:
        """Whether a row that accepted more than another of its round went on with more, or with as much as that one."""
        if not self.then or not self.others:
            return []
        least = min(turn.accepted(turn.at_least) for turn in (self, *self.others))
        if self.then.at_least > self.at_most + least + 1:
            return ["ahead"]
        least = min(turn.accepted(turn.committed) for turn in self.others)
        return ["level"] * (self.accepted(self.committed) > least and self.then.committed <= self.committed + least + 1)


def _rounds(all_parts: list[Part], script: Allowed, proposals: Proposals) -> list[list[_Turn]]:
    """The rounds of a run, each with the turns of its rows that had not committed all that they need."""
    found: list[list[_Turn]] = []
    newest: dict[int, _Turn] = {}
    ends = {part.request: part for part in all_parts}
    drafted = -1
    for part in all_parts:
        request, start = part.request, script.starts[part.request]
        if part.last + 1 < start:
            continue  # a piece of a prompt
        known, answered, fed = part.known - start, part.last + 1 - start, part.end - start
        before = newest.get(request)
        begun = proposals.begun(request, before.part.call.number if before else 0, part.call.number)
        turn = _Turn(part, start, script.needed[request], known, 0, known, known, begun is not None, before)
        if begun is not None:
            turn.at_least = min(known, begun - start)
            turn.committed = min(known, max(turn.at_least, fed - script.k))
            # Near the limit fewer than K are verified, so where draft tokens end does not say where they begin.
            turn.at_most = turn.committed if fed < script.limit - 1 else known
        elif answered < known and (part.columns or (part is ends[request] and known >= turn.needed)):
            turn.committed = turn.at_most = answered
        if turn.committed >= turn.needed:
            continue
        if answered < known and not part.columns and turn.committed == known:
            continue  # what a cache had lost is fed again
        if drafted != proposals.made_before(part.call.number) or any(
            other.part.request == request for other in found[-1]
        ):
            drafted = proposals.made_before(part.call.number)
            found.append([])
        if before:
            before.then = turn
        for other in found[-1]:
            other.others.append(turn)
            turn.others.append(other)
        found[-1].append(turn)
        newest[request] = turn
    return found


def _told_apart(script: Allowed, right: Places, rounds: list[list[_Turn]]) -> list[list[_Turn]]:
    """The rounds without rows that are asked for the same but fare differently: whose turn is whose cannot be seen."""
    fares: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for turn in chain.from_iterable(rounds):
        fares[turn.part.request].append((turn.known, turn.part.last))
    left_out: set[int] = set()
    for owners in right.values():
        same = [r for r, at in owners.items() if at >= script.starts[r] - 1] if len(owners) > 1 else []
        if any(fares[r] != fares[same[0]] for r in same):
            left_out.update(same)
    kept = [[turn for turn in turns if turn.part.request not in left_out] for turns in rounds]
    return [turns for turns in kept if turns]


def _all_take_part(rounds: list[list[_Turn]]) -> bool:
    """Whether every round has all rows that are not done, so that they may wait for one another."""
    served = [{turn.part.request for turn in turns} for turns in rounds]
    return bool(served) and served[0] == set().union(*served) and all(then <= now for now, then in pairwise(served))


def _counted(script: Allowed, proposals: Proposals, rounds: list[list[_Turn]]) -> Counter[str]:
    """The counts of rows that wait for each other in every round; of a single row, those of that row."""
    rounds = [turns for turns in rounds if turns]
    requests = {turn.part.request for turns in rounds for turn in turns}
    found: Counter[str] = Counter()
    if not requests:
        return found
    left, begin = script.left(requests), 0
    for turns in rounds:
        slowest = min(turns, key=lambda turn: turn.after)
        after, right = slowest.after, min(turn.right(script) for turn in turns)
        surplus = len(turns) + left[after] - left[begin]
        lost = left[after] - left[right]
        if lost:
            since = slowest.before.part.call.number if slowest.before else 0
            found[proposals.why_refused(slowest.part, since, slowest.committed + slowest.start)] += lost
        if surplus > lost:
            reasons = [_why_idle(turn, min(turn.known, begin), len(requests) > 1, proposals) for turn in turns]
            found[next((reason for reason in reasons if reason != "policy"), "policy")] += surplus - lost
        found["spared"] += max(0, lost - surplus)
        found["rounds"] += len(turns)
        begin = after
    found["spared"] += left[begin]  # of rows that were done before those they were to wait for
    found["ideal"] = left[0]
    found["allowed"] = sum(script.needed[request] for request in requests) - left[0]
    return found


def _why_idle(turn: _Turn, known: int, waits: bool, proposals: Proposals) -> str:
    """Why a round was one too many although what it fed was right: ``known`` tokens could have been committed."""
    before, first = turn.before, turn.part.first - turn.start
    if before is None or not before.drafted or turn.committed >= known or first + 2 > known:
        return "policy"
    if turn.known >= turn.needed and turn.committed <= before.committed:
        return "policy"  # a row that is done, and stays in its batch as it was
    if waits and any(other.then is None for other in before.others):
        return "policy"  # whether rows wait for what a row accepts behind its end is not known
    fed = int(before.part.call.tokens[before.part.call_row, before.part.column])
    if fed == proposals.run.case.pad_token_id and not proposals.proposed(
        turn.part.request, before.part.last - 1, before.part.call.number
    ):
        return "policy"  # a pad that happened to be right, which the decoder does not take for a draft token
    if not turn.drafted and not turn.part.columns and turn.known >= turn.needed:
        return "lost-bonus?"
    refused = before.part.columns and not proposals.fills_up(before.part)
    return "asked-again" if refused else "lost-bonus"


def settled(losses: Counter[str]) -> Counter[str]:
    """The counts of many runs, with what each run leaves open decided by what is seen in all of them.

    Rows that wait for the one that accepts least are level with it, and never ahead but for a coincidence; where no
    round tells, rows do not wait. A token that a draft in a wrong context predicted is a coincidence now and then where
    the decoder also drafts by other means; where such tokens are most, they are the draft's. A call behind the last
    token of a row asks for a bonus that was dropped, but for a decoder that is seen to make calls again.

        >>> settled(Counter({"rounds": 9, "ideal": 8, "wrong-context?": 1, "ahead": 2}))
        Counter({'rounds': 9, 'ideal': 8, 'wrong-context': 1})
    """
    waits = losses["ahead"] * _ENOUGH_AHEAD < losses["level"]
    found = Counter(
        {name.removeprefix(_WAITING): n for name, n in losses.items() if name.startswith(_WAITING) == waits}
    )
    likely = found.pop("wrong-context?", 0)
    found["wrong-context" if likely >= found["unasked"] else "unasked"] += likely
    dropped = found.pop("lost-bonus?", 0)
    found["policy" if losses["again"] > dropped else "lost-bonus"] += dropped
    return Counter({name: count for name, count in found.items() if count and name not in ("ahead", "level", "again")})


def draft_warnings(losses: Counter[str]) -> list[str]:
    """One warning per way in which the draft side lost, with how much and what was seen; none where it lost nothing.

    Nor where that is one token, or less than one in `_COINCIDENCES`: where something that only fills up a row happens
    to be the row's next token, it looks as if an answer had been thrown away.
    """
    counts = settled(losses)
    found: list[str] = []
    for name, kinds in _WARNINGS.items():
        lost = sum(counts[kind] for kind in kinds)
        if lost > 1 and lost * _COINCIDENCES >= counts["allowed"]:
            seen = ", ".join(f"{what} ({counts[kind]})" for kind, what in kinds.items() if counts[kind])
            share = f"{100 * lost / counts['allowed']:.0f} %, {lost / counts['rounds']:.2f} per round"
            said = f"{lost} of {counts['allowed']} draft tokens that could have been accepted were lost ({share})"
            if lost > counts["allowed"]:  # each round that commits a token loses fewer than it could have
                said = f"{counts['rounds']} rounds were made where {counts['ideal']} do, so some committed nothing"
            found.append(Notice(f"{said}: {seen}. This costs speed, not output", name))
    return found
