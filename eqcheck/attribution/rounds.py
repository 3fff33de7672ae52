"""Rounds as the target saw them, and what the draft side lost in them.

A decoder whose output is right can still be slow: its draft may have lost its place (`desync`), or the token that the
target gives after K accepted drafts may be thrown away (`lost-bonus`). Acceptance is known, because it is scripted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from eqcheck.harness import Run, models
from eqcheck.trace import DRAFT, TARGET, Call

_BONUSES_LOST_AT_LEAST = 0.5  # what a decoder loses, it loses every time; less is a coincidence


class Part(NamedTuple):
    """One request in one target call: its positions ``first`` to ``last`` were asked in their right contexts.

    ``call_row`` and ``column`` fed the last of them; ``accepted`` of the ``proposed`` draft tokens were.
    """

    call: Call
    request: int
    first: int
    last: int
    call_row: int
    column: int
    accepted: int
    proposed: int


def parts(run: Run) -> Iterator[Part]:
    """What each request had in each of the decoder's target calls, in order; it may be in several rows of one."""
    places: dict[int, tuple[int, int]] = {}
    for request, digests in enumerate(run.truth.digests):
        for position, digest in enumerate(digests[-1].tolist()):
            places.setdefault(digest, (request, position))
    known = [len(prompt) for prompt in run.case.prompts]
    for call in run.trace.made(TARGET):
        width = call.tokens.shape[1]
        found: dict[int, Part] = {}
        for row, digests in enumerate(call.digests.tolist()):
            exact = [(places[digest], column) for column, digest in enumerate(digests) if digest in places]
            if not exact:
                continue
            (request, last), column = max(exact, key=lambda one: one[0][1])
            first = min(position for (other, position), _ in exact if other == request)
            accepted = last - (known[request] - 1)  # below 0 in a prefill, which has no draft tokens
            proposed = accepted + width - 1 - column if accepted >= 0 else 0
            part = Part(call, request, first, last, row, column, max(0, accepted), proposed)
            other = found.get(request, part)
            further = max(part, other, key=lambda one: one.last)
            found[request] = further._replace(
                first=min(first, other.first), proposed=max(part.proposed, other.proposed)
            )
        for request, part in found.items():
            known[request] = max(known[request], part.last + 2)
            yield part


def draft_losses(run: Run) -> Counter[str]:
    """What the draft side lost in a run whose output is right, as counts to be summed over runs.

    ``rounds``: rows of target calls with draft tokens. ``desync``: those in which a draft token was proposed that a
    draft in its right context would not have proposed; ``desync_tokens``: the accepted tokens that this cost.
    ``full``: rounds in which every row accepted all; ``lost-bonus``: those after which the draft was asked for
    tokens that the target had answered for, ``lost-bonus_tokens`` in all.
    """
    found: Counter[str] = Counter()
    drafted = run.trace.made(DRAFT)
    if not drafted:
        return found
    all_parts = list(parts(run))
    by_call: dict[int, list[Part]] = {}
    for part in all_parts:
        by_call.setdefault(part.call.number, []).append(part)
    before: dict[int, Part] = {}
    script = _Script(run)
    for part in all_parts:
        earlier = before.get(part.request)
        if earlier and earlier.accepted and all(p.accepted == p.proposed for p in by_call[earlier.call.number]):
            found["full"] += 1
            again = earlier.first < part.first <= earlier.last  # who feeds everything again begins at the first
            drafted_after = script.begins(part, earlier.call.number) if again else None
            if drafted_after is not None and drafted_after <= earlier.last:
                found["lost-bonus"] += 1
                found["lost-bonus_tokens"] += earlier.last + 1 - part.first
        before[part.request] = part
        if part.proposed:
            found["rounds"] += 1
            # What others were proposed before this request was there is none of its own.
            newest = max((call for call in by_call if call < part.call.number), default=0)
            lost = script.lost(part, earlier.call.number if earlier else newest)
            found["desync"] += lost > 0
            found["desync_tokens"] += lost
    return found


class _Script:
    """What the draft proposes in its right contexts, and what it was seen to propose in wrong ones."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.draft = models(run.case, run.truth)[1]
        self.right = {digest for digests in run.truth.digests for digest in digests[-1].tolist()}

    def begins(self, part: Part, since: int) -> int | None:
        """The position of the request after which the draft first proposed a token between two target calls.

        That is the last one known to the decoder: a bonus that it kept is among what the draft is given.
        """
        places = {digest: at for at, digest in enumerate(self.run.truth.digests[part.request][-1].tolist())}
        for call in self.run.trace.made(DRAFT):
            if since < call.number < part.call.number:
                for digests in call.digests.tolist():
                    asked = [places[digest] for digest in digests if digest in places]
                    if asked:
                        return max(asked)
        return None

    def lost(self, part: Part, since: int) -> int:
        """How many draft tokens more would have been accepted, had the draft seen its row."""
        run, column = self.run, part.column + 1
        if column >= part.call.tokens.shape[1]:
            return 0
        token = int(part.call.tokens[part.call_row, column])
        if token == run.case.pad_token_id or not self._proposed_in_a_wrong_context(token, since, part.call.number):
            return 0
        digests = run.truth.digests[part.request]
        disagrees = self.draft.disagrees(digests[-1:])
        assert disagrees is not None
        end = min(part.last + part.proposed - part.accepted, digests.shape[1] - 1)
        agreed = 0
        while part.last + agreed < end and not disagrees[0, part.last + agreed]:
            agreed += 1
        return agreed

    def _proposed_in_a_wrong_context(self, token: int, since: int, until: int) -> bool:
        for call in self.run.trace.made(DRAFT):
            if since < call.number < until:
                for digests, predicted in zip(call.digests.tolist(), call.predictions.tolist(), strict=True):
                    if any(p == token and d not in self.right for d, p in zip(digests, predicted, strict=True)):
                        return True
        return False


def draft_warnings(losses: Counter[str]) -> list[str]:
    """One warning per fault of the draft side, with the tokens lost per round; none when nothing was lost."""
    found = []
    rounds, full = losses["rounds"], losses["full"]
    if losses["desync"]:
        found.append(
            f"draft/desync: in {losses['desync']} of {rounds} rounds the draft proposed what it would not have in its "
            f"right context; {losses['desync_tokens'] / rounds:.2f} accepted tokens lost per round (speed, not output)"
        )
    if losses["lost-bonus"] and losses["lost-bonus"] >= _BONUSES_LOST_AT_LEAST * full:
        found.append(
            f"draft/lost-bonus: after {losses['lost-bonus']} of {full} rounds in which all draft tokens were accepted, "
            f"what the target had answered was asked again; "
            f"{losses['lost-bonus_tokens'] / rounds:.2f} tokens lost per round "
            "(speed, not output)"
        )
    return found
