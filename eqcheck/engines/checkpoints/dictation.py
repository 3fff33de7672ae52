"""Dictated drafts: what a case has an engine be given as draft tokens, and whether its rounds were played so.

A row's drafts are a list, one token for each place of its output: the target's own token, or a wrong one where a round
is to end by the row's `accepts`, or `NONE` where a round is to have no drafts. So it does not matter which rounds an
engine makes of it: after ``n`` new tokens the drafts are those from place ``n`` on, up to the next `NONE`. An engine
that says what it was given, and how many tokens each round added, is held against that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from enum import Enum
from functools import lru_cache
from itertools import takewhile
from typing import Any, NamedTuple

from eqcheck.core.case.engine import POSITIONS, SILENT, EngineCase, EngineRow
from eqcheck.core.result.outcome import DictatedRounds, RoundsThat
from eqcheck.engines.checkpoints.row_judge import truth

ASKED, PLAYED, OTHERS, FEWER = map(DictatedRounds, RoundsThat)  # the keys of counts of all rounds
NONE = -1  # in place of a draft token: nothing is proposed from here on
_EOS_EVERY = 3  # of the wrong tokens of a row with EOS ids, every so many is one

Drafts = tuple[tuple[int, ...], ...]
Seen = Sequence[Sequence[Any]]  # the rounds of a row, as `eqcheck.contract.decoders.Hooks` has them


@lru_cache(maxsize=16)
def drafts(case: EngineCase) -> Drafts:
    """Return by row the draft token for each place of its output and K more; empty if drafts are not dictated.

    A wrong token is the target's second choice, or now and then an EOS of the row. Behind the row's end the drafts go
    on as if it had not ended.
    """
    if case.drafting != "dictated":
        return ()
    k = case.num_draft_tokens
    best = truth(case.checkpoint).best_two(case.rows, max(row.options.max_new_tokens for row in case.rows) + k)
    return tuple(_of_row(row, k, two) for row, two in zip(case.rows, best, strict=True))


def _of_row(row: EngineRow, k: int, best_two: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    plan = planned(row, k, row.options.max_new_tokens + k)
    told = {
        Drafted.RIGHT: lambda place: best_two[place][0],
        Drafted.WRONG: lambda place: _wrong(row, place, *best_two[place]),
        Drafted.NOT: lambda place: NONE,
    }
    return tuple(told[drafted](place) for place, drafted in enumerate(plan))


class Drafted(Enum):
    """The draft token for a place of the output: the target's, another, or none."""

    RIGHT = "-"
    WRONG = "x"
    NOT = "."


def planned(row: EngineRow, k: int, count: int) -> list[Drafted]:
    """Return what is drafted for each of so many places of the output.

    >>> from eqcheck.contract.decoders import RowOptions
    >>> "".join(drafted.value for drafted in planned(EngineRow((1,), RowOptions(9), (2, 0, -1, 3)), 3, 13))
    '---xx.----xxx'
    """
    schedule = [Drafted.RIGHT]
    for accepted in row.accepts:
        if accepted == SILENT:
            schedule.append(Drafted.NOT)
        else:
            schedule += [Drafted.RIGHT] * min(accepted, k) + [Drafted.WRONG if accepted < k else Drafted.RIGHT]
    return [schedule[place] if place < len(schedule) else Drafted.WRONG for place in range(count)]


def proposal(dictated: Sequence[int], start: int, k: int) -> list[int]:
    """Return the draft tokens of a round after ``start`` new tokens: K of them, or those before a `NONE`.

    >>> proposal([4, 5, 6, -1, 7], 1, 3), proposal([4, 5, 6, -1, 7], 3, 3)
    ([5, 6], [])
    """
    return list(takewhile(lambda token: token != NONE, dictated[start : start + k]))


def _wrong(row: EngineRow, place: int, best: int, second: int) -> int:
    others = [token for token in row.options.eos_token_ids if token != best]
    return others[0] if others and place % _EOS_EVERY == 0 else second


def agreeing(proposed: Sequence[int], text: Sequence[int]) -> int:
    """Return how many draft tokens, from the first, the text goes on with.

    >>> agreeing([5, 7, 2], [5, 7, 3, 2])
    2
    """
    count = 0
    for draft, token in zip(proposed, text, strict=False):
        if draft != token:
            break
        count += 1
    return count


class AskedRound(NamedTuple):
    """A round that is asked for: ``accepted`` draft tokens after ``start`` new tokens; then there are ``end``."""

    start: int
    accepted: int
    end: int

    @property
    def whole(self) -> bool:
        """Return whether the row does not end among the accepted draft tokens."""
        return self.end == self.start + self.accepted + 1


def asked(case: EngineCase, row: int, output: Sequence[int]) -> Iterator[AskedRound]:
    """The rounds that a row's drafts amount to, where it emits ``output``."""
    k, proposed, start = case.num_draft_tokens, drafts(case)[row], 1
    while start < len(output):
        accepted = agreeing(proposal(proposed, start, k), output[start:])
        end = min(start + accepted + 1, len(output))
        yield AskedRound(start, accepted, end)
        start = end


def played(
    case: EngineCase, outputs: Sequence[Sequence[int]], rounds: Sequence[Seen]
) -> tuple[Counter[DictatedRounds], set[str]]:
    """Hold the rounds that an engine tells against the rounds asked for: counts by name, and what was exercised.

    Rounds are counted by how many of K draft tokens were to be accepted, and under `ASKED` and `PLAYED` all of them;
    rounds that the row's limit leaves no room for are not counted. A round in which the engine
    was given `OTHERS` than the dictated tokens is the fault of what hands them over. In one with `FEWER` new tokens
    than its drafts allow, right draft tokens were lost; with few blocks or a small budget an engine may be unable to
    verify them all.
    """
    counts, coverage = Counter[DictatedRounds](), set[str]()
    k, lengths = case.num_draft_tokens, list[list[int]]()
    for row, output in enumerate(outputs):
        given = {start: (list(tokens), end) for start, tokens, end in rounds[row]}
        right = drafts(case)[row]
        lengths.append([end - start for start, (_, end) in given.items()])
        for turn in asked(case, row, output):
            # A round that the engine tells nothing of was asked for, and not played; without drafts it may be no round.
            drafted = proposal(right, turn.start, k)
            tokens, end = given.get(turn.start, ([], -1 if drafted else turn.end))
            counted = turn.whole and turn.start + k < case.rows[row].options.max_new_tokens and bool(drafted)
            counts.update(_named(ASKED, turn, k, counted))
            if tokens == drafted and end == turn.end:
                counts.update(_named(PLAYED, turn, k, counted))
                coverage |= _exercised(turn, k, tokens, output, case.rows[row])
        whole = case.token_budget is None and case.kv_blocks is None
        room = POSITIONS - len(case.rows[row].prompt) - k  # beyond it the model has no positions for all drafts
        for start, (tokens, end) in given.items():
            counts[OTHERS] += tokens != list(right[start : start + len(tokens)])
            allowed = min(start + agreeing(tokens, output[start:]) + 1, len(output))
            counts[FEWER] += whole and start < room and end < allowed
    checks = {
        "dictated_played": 0 < counts[ASKED] == counts[PLAYED],
        "silent_for_all": len(case.rows) > 1
        and any(map(_silent, zip(*(row.accepts for row in case.rows), strict=False))),
        "ragged_round": any(len(set(turns)) > 1 for turns in zip(*lengths, strict=False)),
    }
    return +counts, coverage | {name for name, holds in checks.items() if holds}


def _silent(accepts: Sequence[int]) -> bool:
    """Return whether all rows are silent in a round."""
    return set(accepts) == {SILENT}


def _named(rounds: DictatedRounds, turn: AskedRound, k: int, counted: bool) -> list[DictatedRounds]:
    """The counters of a round; none near the row's limit, where an engine may propose less."""
    return [rounds, rounds._replace(accepted=turn.accepted, of=k)] if counted else []


def _exercised(turn: AskedRound, k: int, tokens: list[int], output: Sequence[int], row: EngineRow) -> set[str]:
    """The counters that a round raises which was played as asked."""
    eos, stops = row.options.eos_token_ids, row.options.stops_of(output)
    within = not turn.whole and turn.accepted < k
    checks = {
        "silent_round": not tokens,
        "all_rejected": bool(tokens) and turn.accepted == 0,
        "all_accepted": turn.accepted == k,
        "eos_inside_block": within and output[-1] in eos,
        "stop_inside_block": within and bool(stops),
        "limit_inside_block": within and output[-1] not in eos and not stops,
        "eos_rejected": turn.whole and turn.accepted < len(tokens) and tokens[turn.accepted] in eos,
    }
    return {name for name, holds in checks.items() if holds}
