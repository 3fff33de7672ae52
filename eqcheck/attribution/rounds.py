"""What the draft side lost: rounds that the target would not have needed, and why it did.

A decoder whose output is right can still be slow: its draft may have lost its place, or what the target answers may be
thrown away. Acceptance is scripted, so what an engine with a right draft needs is known.

A *round* of a row is a target call that asks for a token of the row while the decoder has not committed all of them.
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
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from eqcheck.attribution.parts import Part, parts, places
from eqcheck.attribution.proposals import Proposals
from eqcheck.harness import Run, agrees
from eqcheck.trace import DRAFT

_ENOUGH_AHEAD = 10  # one row seen ahead refutes so many rounds in which rows may have waited for the slowest
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

    Nothing where the draft was not asked or nothing was verified. Rows whose contexts are also another row's, as those
    of equal prompts are, cannot be told apart and are left out.
    """
    found: Counter[str] = Counter()
    if not run.trace.made(DRAFT):
        return found
    all_parts = list(parts(run))
    k = min(run.case.num_draft_tokens, max((part.proposed for part in all_parts), default=0))
    if not k:
        return found
    script, proposals = _Script(run, k), Proposals(run)
    for one in list(_rounds(all_parts, script, proposals)):
        if one.committed < script.ends[one.part.request]:
            found.update(_judged(one, script, proposals))
    found["ideal"] = sum(script.left(request, start) for request, start in enumerate(script.starts))
    found["allowed"] = sum(map(len, run.truth.rows)) - found["ideal"]
    return found


class _Script:
    """What engines with a right draft, which verify ``k`` draft tokens a round, need behind each token of each row."""

    def __init__(self, run: Run, k: int) -> None:
        self.k, self.limit = k, run.case.max_new_tokens
        self.starts = [len(prompt) for prompt in run.case.prompts]
        self.ends = [n + len(row) for n, row in zip(self.starts, run.truth.rows, strict=True)]
        self._agrees = agrees(run.case, run.truth)
        self._left: list[dict[int, int]] = []
        for request, (start, end) in enumerate(zip(self.starts, self.ends, strict=True)):
            left: dict[int, int] = defaultdict(int)
            for tokens in range(end - 1, start - 1, -1):
                left[tokens] = 1 + left[self.reach(request, tokens, k)]
            self._left.append(left)
        shared = {digest for digest, owners in places(run).items() if len(owners) > 1}
        self.told_apart = {
            request
            for request, digests in enumerate(run.truth.digests)
            if shared.isdisjoint(digests[-1, self.starts[request] - 1 :].tolist())
        }

    def left(self, request: int, tokens: int) -> int:
        """The rounds needed behind the first ``tokens`` of the row."""
        return self._left[request][tokens]

    def reach(self, request: int, tokens: int, room: int) -> int:
        """How many tokens are known after a round that begins with so many and verifies ``room`` right draft tokens."""
        begin = tokens - self.starts[request]
        right = self._agrees[request][begin : begin + min(room, self.k)]
        return tokens + (right.index(False) if False in right else len(right)) + 1


@dataclass
class _Round:
    """A row's part of a round, and how many tokens of the row the decoder had committed, as far as that is seen.

    They are ``committed``, surely from ``at_least`` to ``at_most``. ``others`` are the other rows of the round,
    ``before`` and ``then`` the row's rounds before and after it.
    """

    part: Part
    at_least: int
    committed: int
    at_most: int
    drafted: bool
    before: _Round | None
    then: _Round | None = field(default=None, repr=False)
    others: list[_Round] = field(default_factory=list, repr=False)

    @property
    def right(self) -> int:
        """How many tokens of the row, as far as they were known, stood before its draft tokens."""
        return min(self.part.known, self.part.last + 1)

    @property
    def least_of_others(self) -> int:
        """The fewest draft tokens that another row can have accepted."""
        return min(max(0, other.part.last + 1 - other.at_most) for other in self.others)

    @property
    def ahead(self) -> bool:
        """Whether the row went on with more than the row of its round that accepted least."""
        if not self.then or not self.others:
            return False
        least = min(one.part.last + 1 - one.at_least for one in (self, *self.others))
        return self.then.at_least > self.at_most + least + 1


def _rounds(all_parts: list[Part], script: _Script, proposals: Proposals) -> Iterator[_Round]:
    newest: dict[int, _Round] = {}
    together: list[_Round] = []
    ends = {part.request: part for part in all_parts}
    drafted = 0
    for part in all_parts:
        request, number, known, start = part.request, part.call.number, part.known, script.starts[part.request]
        if part.last + 1 < start:
            continue  # a piece of a prompt
        before = newest.get(request)
        begun = proposals.begun(request, before.part.call.number if before else 0, number)
        one = _Round(part, start, known, known, begun is not None, before)
        if begun is not None and request in script.told_apart:
            one.at_least = min(known, max(begun + 1, start))
            one.committed = min(known, max(one.at_least, part.end - script.k))
            # Near the limit fewer than K are verified, so where draft tokens end does not say where they begin.
            one.at_most = one.committed if part.end < start + script.limit - 1 else known
        elif part.last + 1 < known and (part.refused or (part is ends[request] and known >= script.ends[request])):
            one.committed = one.at_most = part.last + 1
        if part.last + 1 < known and not part.refused and one.committed == known:
            yield one  # fed again to fill a cache
            continue
        if before:
            before.then = one
        if drafted != proposals.made_before(number) or any(other.part.request == request for other in together):
            drafted, together = proposals.made_before(number), []
        for other in together:
            other.others.append(one)
            one.others.append(other)
        together.append(one)
        newest[request] = one
        yield one


def _judged(one: _Round, script: _Script, proposals: Proposals) -> Counter[str]:
    """The counts of one round of a row."""
    part, request = one.part, one.part.request
    after = max(part.known, part.last + 2)
    surplus = 1 + script.left(request, after) - script.left(request, part.known)
    reach = max(after, script.reach(request, one.right, part.end - one.right))
    found = Counter(rounds=1)
    if one.ahead:
        found["ahead"] = 1
    if script.left(request, reach) < script.left(request, after):
        surplus -= 1
        since = one.before.part.call.number if one.before else 0
        found[proposals.why_refused(part, since, one.committed)] += 1
    if surplus > 0:
        found[_why_idle(one, proposals)] += 1
    if surplus < 0:
        found["spared"] = -surplus
    return found


def _why_idle(one: _Round, proposals: Proposals) -> str:
    """Why a round was one too many although what it fed was right."""
    part, before = one.part, one.before
    if before is None or not before.drafted or one.committed >= part.known or part.first + 2 > part.known:
        return "policy"
    last = int(before.part.call.tokens[before.part.call_row, before.part.column])
    if last == proposals.run.case.pad_token_id and not proposals.proposed(
        part.request, before.part.last - 1, before.part.call.number
    ):
        return "policy"  # a pad that happened to be right, which the decoder does not take for a draft token
    kind = "asked-again" if before.part.refused else "lost-bonus"
    waits = before.others and one.committed >= min(before.part.last + 2, before.at_least + before.least_of_others + 1)
    return f"{kind}?" if waits else kind


def settled(losses: Counter[str]) -> Counter[str]:
    """The counts of many runs, with what each run leaves open (``?``) decided by what is seen in all of them.

    A token that a draft in a wrong context predicted is a coincidence now and then where the decoder also drafts by
    other means; where such tokens are most, they are the draft's. Rows that wait for the one that accepts least are
    never ahead of it, but for a coincidence.
    """
    found = Counter(losses)
    open_ = {name: found.pop(name, 0) for name in list(found) if name.endswith("?")}
    for name, count in open_.items():
        proved = count >= losses["unasked"] if name == "wrong-context?" else losses["ahead"] * _ENOUGH_AHEAD >= count
        found[name[:-1] if proved else "policy"] += count
    return +found


def draft_warnings(losses: Counter[str]) -> list[str]:
    """One warning per way in which the draft side lost, with how much and what was seen; none where it lost nothing."""
    counts = settled(losses)
    found = []
    for name, kinds in _WARNINGS.items():
        lost = sum(counts[kind] for kind in kinds)
        if lost:
            seen = ", ".join(f"{what} ({counts[kind]})" for kind, what in kinds.items() if counts[kind])
            found.append(
                f"{name}: {lost} of {counts['allowed']} draft tokens that could have been accepted were lost "
                f"({lost / counts['allowed']:.0%}, {lost / counts['rounds']:.2f} per round): {seen}. "
                "This costs speed, not output"
            )
    return found
