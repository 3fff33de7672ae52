"""Search the cause of wrong greedy tokens: which edit of the context makes the plain server return them?

The plain server is asked for one token behind contexts in which one thing is edited. An edit is named where it gives
most of the wrong tokens, and would do so by chance once in 10,000 gates at most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from eqcheck.core.result.tally import gathered_by_chance
from eqcheck.gate.compared_rows import Row, Wanted, second_choices
from eqcheck.gate.comparison import Gate

LOOKED_AT = 24  # wrong tokens, one of a row
NEAR = 6  # tokens before the wrong one at which a context is edited
BLOCK = 16  # tokens of a page
CHANCE = 1e-4
BY_CONTEXT = 0.85  # of the wrong tokens are second choices, at most, where a context is a little wrong (pads: 38 of 47)
MOST = 0.5  # of the wrong tokens an edit has to give
ALONE = 0.9  # of the wrong tokens that have a right one behind them
FEW = 12  # tokens are too few to tell
ASKED_AGAIN, TIMES = 8, 3  # rows, and how often each


class Sign(Enum):
    """Say by what a cause is known that no edit of the context shows.

    By rows that are asked again, by places where draft and target differ, by the ranks and gaps of wrong tokens.
    """

    AGAIN = "again"
    SERVES_DRAFT = "serves draft"
    LOSSY = "lossy"


class EditKind(Enum):
    """Say what an edit does with the context before a wrong token."""

    WITHOUT = "without"
    TWICE = "twice"
    DRAFT = "draft"
    DRAFTS = "drafts"
    ROW = "row"
    INPUT = "input"
    BLOCK = "block"
    BEHIND = "behind"


class AskedEdit(NamedTuple):
    """An edit of the context: what changes, and the number of the token, of the block or of the other request."""

    change: EditKind
    number: int = 0


@dataclass(frozen=True)
class EditCause:
    """A component and a kind, with the facts: the edit, how many of how many wrong tokens it gives, the chance of that.

    ``edit`` is None where the cause is read from the tokens themselves; then ``sign`` may say by what. ``length`` is
    the bet on lengths that was won, one of `eqcheck.gate.bets.LENGTHS`.
    """

    component: str
    kind: str
    edit: AskedEdit | None = None
    given: int = 0
    of: int = 0
    chance: float = 1.0
    by_draft: tuple[int, int] | None = None  # of the wrong tokens so many of so many are the draft's own choice
    sign: Sign | None = None
    length: str = ""

    @property
    def fingerprint(self) -> str:
        """Return component and kind."""
        return f"{self.component}/{self.kind}"


UNATTRIBUTED = EditCause("unattributed", "unattributed")
KINDS_OF: Mapping[EditKind, tuple[str, str]] = {
    EditKind.WITHOUT: ("cache", "missing-entry"),
    EditKind.TWICE: ("cache", "duplicate-entry"),
    EditKind.DRAFT: ("cache", "stale-entry"),
    EditKind.DRAFTS: ("cache", "stale-entry"),
    EditKind.ROW: ("cache", "wrong-row"),
    EditKind.INPUT: ("cache", "wrong-row"),
    EditKind.BLOCK: ("cache", "missing-entry"),
    EditKind.BEHIND: ("cache", "missing-entry"),
}


def cause(gate: Gate, wrong: Sequence[Row]) -> EditCause:
    """Return the cause of these rows' first wrong tokens, or `UNATTRIBUTED`."""
    looked_at = [row for row in wrong if row.beyond(gate.threshold) is not None][:LOOKED_AT]
    if not looked_at:
        return UNATTRIBUTED
    # Read before searched: a server that returns its draft's own choice everywhere needs no edit of a context, and
    # would be named for whichever edit agrees by chance.
    kept, chances = _follows_draft(gate)
    if chances >= FEW and kept > ALONE * chances:
        return EditCause("unattributed", "unattributed", given=kept, of=chances, sign=Sign.SERVES_DRAFT)
    hits: dict[AskedEdit, int] = {}
    tried = 0
    for row, edits in ((row, list(_edits(gate, row))) for row in looked_at):
        at = row.beyond(gate.threshold)
        assert at is not None
        emitted = gate.plain.each(gate.plain.complete, [Wanted(context, 1) for _, context in edits], 16)
        given = [
            edit
            for (edit, _), answer in zip(edits, emitted, strict=True)
            if answer.tokens[:1] == row.answer.tokens[at : at + 1]
        ]
        tried += len({edit for edit, _ in edits})
        for edit in dict.fromkeys(given):
            hits[edit] = hits.get(edit, 0) + 1
    leading = _leading(hits, len(looked_at), tried)
    return leading if leading.edit else _lossy(gate) or _single(gate, looked_at) or UNATTRIBUTED


def _lossy(gate: Gate) -> EditCause | None:
    """Return the cause of tokens that a threshold let pass, known by their ranks and by the limit of their gaps.

    A wrong context gives tokens of any rank. Drafts that are accepted whatever the target says have any gap. Only both
    together name the threshold.
    """
    seconds = second_choices(gate.greedy, gate.threshold)
    by_context = seconds.wrong * math.log10(BY_CONTEXT)
    if not seconds.all_second or max(seconds.log10_chance, seconds.log10_limit, by_context) > math.log10(CHANCE):
        return None
    chance = 10**seconds.log10_limit
    return EditCause(
        "bookkeeping", "over-accept", given=seconds.second, of=seconds.wrong, chance=chance, sign=Sign.LOSSY
    )


def _single(gate: Gate, rows: Sequence[Row]) -> EditCause | None:
    """Return the cause of wrong tokens that come alone: the token after each is the referee's own choice again.

    A wrong context stays wrong, and gives more wrong tokens in a row than chance does. Whether such a token is a draft
    that was rejected is seen only where the draft is asked, for no server tells its drafts. A row that is answered
    otherwise when it is asked again may be drawn, or be wrong now and then: that is not told apart.
    """
    beyond = [[place.gap > gate.threshold for place in row.places] for row in rows]
    followed = [after for marks in beyond for now, after in pairwise(marks) if now]
    share = sum(map(sum, beyond)) / max(1, sum(map(len, beyond)))
    alone = followed.count(False)
    # Faults that strike tokens independently of each other follow one another at the rate of their share. With more
    # than a third of all tokens wrong, nine of ten cannot stand alone by that, so such a pattern is of another sort.
    if len(followed) < FEW or alone < ALONE * len(followed) or share > 1 / 3:
        return None
    of_draft = [
        mine.token == place.best
        for row in rows
        for mine, place in zip(row.places, row.by_draft, strict=False)
        if mine.gap > gate.threshold
    ]
    if of_draft and sum(of_draft) >= ALONE * len(of_draft):
        return EditCause("bookkeeping", "over-accept", given=sum(of_draft), of=len(of_draft), chance=0.0)
    # A token from anywhere has any rank. Where fewer than half are among the four likeliest of their place, it is not
    # said that a correction was drawn wrongly there.
    ranks = [
        sorted(place.likeliest, key=lambda one, its=place.likeliest: -its[one]).index(place.token)  # type: ignore[misc]
        for row in rows
        for place in row.places
        if place.gap > gate.threshold
    ]
    likely = sum(rank < 4 for rank in ranks)
    if likely < len(ranks) / 2:
        return None
    asked = rows[:ASKED_AGAIN]
    differing = sum(_differs(gate, row) for row in asked)
    if 2 * differing > len(asked):
        return EditCause("unattributed", "unattributed", given=differing, of=len(asked), sign=Sign.AGAIN)
    known = (sum(of_draft), len(of_draft)) if of_draft else None
    return EditCause("bookkeeping", "wrong-correction", given=alone, of=len(followed), chance=0.0, by_draft=known)


def _follows_draft(gate: Gate) -> tuple[int, int]:
    """Count places where draft and plain server differ beyond the noise, and those where the row follows the draft."""
    pairs = [
        pair
        for row in gate.rows
        if row.by_draft and not row.asked.temperature
        for pair in zip(row.places, row.by_draft, strict=True)
    ]
    differ = [
        place.token == by_draft.best
        for place, by_draft in pairs
        if place.likeliest[place.best] - place.likeliest.get(by_draft.best, -math.inf) > gate.threshold
    ]
    return sum(differ), len(differ)


def _differs(gate: Gate, row: Row) -> bool:
    """Return whether the row is answered differently up to its first wrong token when it is sent again, alone."""
    at = row.beyond(gate.threshold) or 0
    return any(
        gate.speculative.complete(row.asked).tokens[: at + 1] != row.answer.tokens[: at + 1] for _ in range(TIMES)
    )


def _edits(gate: Gate, row: Row) -> Iterator[tuple[AskedEdit, tuple[int, ...]]]:
    """Yield edits, each with the edited context before the row's first wrong token."""
    at = row.beyond(gate.threshold)
    assert at is not None
    context = (*row.answer.prompt, *row.answer.tokens[:at])
    last = len(context)
    for back in range(2, NEAR + 1):  # the last token itself is fed to the model
        if last - back > 0:
            place = last - back
            yield AskedEdit(EditKind.WITHOUT, back - 1), (*context[:place], *context[place + 1 :])
            yield AskedEdit(EditKind.TWICE, back - 1), (*context[: place + 1], *context[place:])
    for back in range(1, min(NEAR, at) + 1):
        place = last - back
        for token in _refused(row, at - back):
            yield AskedEdit(EditKind.DRAFT, back), (*context[:place], token, *context[place:])
    if row.by_draft and (kept := list(_with_rejected(row, at))) != list(row.answer.tokens[:at]):
        yield AskedEdit(EditKind.DRAFTS), (*row.answer.prompt, *kept)
    # The sizes of the server's pages and windows are not known: pages of one size are tried, and windows of four.
    for number in range((last - 1) // BLOCK):
        yield AskedEdit(EditKind.BLOCK, number), (*context[: number * BLOCK], *context[(number + 1) * BLOCK :])
    for size in (BLOCK, 2 * BLOCK, 4 * BLOCK, 8 * BLOCK):
        if size < last - BLOCK:  # else it is the first block that is left out
            yield AskedEdit(EditKind.BEHIND, size), context[-size:]
    for other_row in gate.rows:
        if other_row is not row and abs(other_row.request - row.request) == 1 and other_row.concurrency > 1:
            its = (*other_row.answer.prompt, *other_row.answer.tokens)[: last - 1]
            yield AskedEdit(EditKind.ROW, other_row.request - row.request), (*its, context[-1])
            if at and other_row.answer.tokens[at - 1 : at]:
                edit = AskedEdit(EditKind.INPUT, other_row.request - row.request)
                yield edit, (*context[:-1], other_row.answer.tokens[at - 1])


def _refused(row: Row, number: int) -> list[int]:
    """Return the draft token that may have been refused at a new token: the draft's own, else the likeliest other."""
    seen = row.places[number].likeliest
    likely = [row.by_draft[number].best] if row.by_draft else sorted(seen, key=lambda one: -seen[one])
    return [one for one in likely if one != row.answer.tokens[number]][:1]


def _with_rejected(row: Row, at: int) -> Iterator[int]:
    """Yield the row's new tokens before one, each rejected draft before the token that took its place."""
    for place, by_draft in zip(row.places[:at], row.by_draft, strict=False):
        if by_draft.best != place.token:
            yield by_draft.best
        yield place.token


def _leading(hits: Mapping[AskedEdit, int], of: int, tried: int) -> EditCause:
    """Return the edit that gives most wrong tokens, if that is beyond chance; other edits give the rate of chance."""
    if not hits:
        return UNATTRIBUTED
    best = max(hits, key=lambda edit: hits[edit])
    (component, kind), count = KINDS_OF[best.change], hits[best]
    others = [value for edit, value in hits.items() if KINDS_OF[edit.change] != (component, kind)]
    # Edits of other kinds give the token by chance alone, so their hits are the rate of chance. One more is counted,
    # because no hit in a few tries does not prove a rate of 0, at which any single hit would be beyond chance. Below 1,
    # so that the tail stays a probability; at 0.9 even 24 hits of 24 have a chance of 0.08, and nothing is named.
    rate = min(0.9, (sum(others) + 1) / max(1, tried))
    tail = sum(math.comb(of, n) * rate**n * (1 - rate) ** (of - n) for n in range(count, of + 1))
    chance = min(1.0, len(hits) * tail)
    return (
        EditCause(component, kind, best, count, of, chance) if count >= MOST * of and chance <= CHANCE else UNATTRIBUTED
    )


# Count wrong rows for each condition and value, and find the condition that tells most.

Counts: TypeAlias = "Mapping[str, Mapping[str, Sequence[int]]]"
BY_CHANCE = 0.01  # a condition is named if chance gathers wrong rows there more rarely
SHARED = 16  # tokens of a beginning that may be in a cache of prefixes
FIRST = 32  # requests
FAR = 5  # tokens
YES, NO, NONE_BEFORE = "yes", "no", "none before"  # values of conditions


class GateCondition(Enum):
    """A condition that wrong rows may share; its value is its name in the report."""

    CONCURRENCY = "concurrency"
    PLACE = "place in the chunk"
    PROMPT = "prompt"
    LENGTH = "prompt length modulo 16"
    BEGINS = "begins with 16 tokens of an earlier prompt"
    REQUEST = "request"
    BESIDE = "beside sampled rows"
    STOP = "has a stop"
    ENDS = "ends by"
    SINCE = "tokens since the last rejected draft"


_CONDITIONS: Mapping[GateCondition, Callable[[Gate, Row], str]] = {
    GateCondition.CONCURRENCY: lambda gate, row: str(row.concurrency),
    GateCondition.PLACE: lambda gate, row: "first" if not row.place else "later",
    GateCondition.PROMPT: lambda gate, row: gate.prompt_kinds[row.request % len(gate.prompt_kinds)],
    GateCondition.LENGTH: lambda gate, row: str(len(row.answer.prompt) % 16),
    GateCondition.BEGINS: lambda gate, row: _yes(_begun(gate, row)),
    GateCondition.REQUEST: lambda gate, row: f"first {FIRST}" if row.request < FIRST else "later",
    GateCondition.BESIDE: lambda gate, row: _yes(row.beside),
    GateCondition.STOP: lambda gate, row: _yes(bool(row.asked.stops)),
    GateCondition.ENDS: lambda gate, row: (
        reason if (reason := row.answer.finish_reason) in ("stop", "length") else "other"
    ),
}


def _yes(true: bool) -> str:
    return YES if true else NO


def _begun(gate: Gate, row: Row) -> bool:
    start = row.answer.prompt[:SHARED]
    earlier = (other.answer.prompt for other in gate.rows if other.request < row.request)
    return len(start) == SHARED and any(prompt[:SHARED] == start for prompt in earlier)


def conditions_of(gate: Gate, rows: Sequence[Row]) -> dict[str, dict[str, list[int]]]:
    """Count for each condition with several values, and each value, how many of the rows are wrong, of how many.

    Under `GateCondition.SINCE` first wrong tokens are counted, of all tokens up to them.
    """
    wrong, table = {id(row) for row in rows}, dict[str, dict[str, list[int]]]()
    sampled = any(row.asked.temperature for row in rows)
    for condition, value_of in _CONDITIONS.items():
        counts: dict[str, list[int]] = {}
        for row in gate.rows:
            if sampled or not row.asked.temperature:
                count = counts.setdefault(value_of(gate, row), [0, 0])
                count[0], count[1] = count[0] + (id(row) in wrong), count[1] + 1
        table[condition.value] = counts
    table[GateCondition.SINCE.value] = _since_rejection(gate, wrong)
    ordered = {name: sorted(counts.items(), key=lambda pair: (len(pair[0]), pair[0])) for name, counts in table.items()}
    return {name: dict(counts) for name, counts in ordered.items() if len(counts) > 1}


def _since_rejection(gate: Gate, wrong: Collection[int]) -> dict[str, list[int]]:
    """Count by distance to the last rejected draft: a token that is not the draft's choice replaces a rejected one."""
    counts: dict[str, list[int]] = {}
    for row in gate.rows:
        # Up to the first wrong token: what comes after it stands in a context that is another one than the referee's.
        first, since = row.beyond(gate.threshold) if id(row) in wrong else None, 0
        seen = () if row.asked.temperature or not row.by_draft else zip(row.places, row.by_draft, strict=True)
        for at, (place, by_draft) in enumerate(seen):
            value = NONE_BEFORE if not since else str(since) if since < FAR else f"{FAR} or more"
            count = counts.setdefault(value, [0, 0])
            count[0], count[1] = count[0] + (at == first), count[1] + 1
            if at == first:
                break
            since = 1 if place.token != by_draft.best else since + (since > 0)
    return counts if any(count[0] for count in counts.values()) else {}


class Telling(NamedTuple):
    """A condition and its values at which more rows are wrong than otherwise."""

    condition: GateCondition
    values: tuple[str, ...]
    wrong: int
    rows: int
    other_wrong: int
    other_rows: int


def telling(conditions: Counts) -> Telling | None:
    """Return the condition under which wrong rows are most unlikely to gather by chance, or None.

    Of `GateCondition.CONCURRENCY` a value and all above it are taken together, too. Chance is the tail of the
    hypergeometric distribution, times the number of choices.

    >>> telling({"concurrency": {"1": [0, 40], "4": [29, 30], "16": [20, 20]}, "request": {"later": [49, 90]}})[1:]
    (('4', '16'), 49, 50, 0, 40)
    >>> telling({"has a stop": {"no": [5, 30], "yes": [2, 10]}})
    """
    every = [(GateCondition(name), counts) for name, counts in conditions.items()]
    choices = [(one, counts, values) for one, counts in every for values in _choices(one, list(counts))]
    candidates = []
    for condition, counts, values in choices:
        wrong, rows = (sum(counts[value][at] for value in values) for at in (0, 1))
        all_wrong, all_rows = (sum(count[at] for count in counts.values()) for at in (0, 1))
        telling = Telling(condition, values, wrong, rows, all_wrong - wrong, all_rows - rows)
        if telling.other_rows:
            candidates.append((gathered_by_chance(wrong, rows, all_wrong, all_rows), telling))
    # Many conditions are looked at, so the least chance of them all is small by itself: it is multiplied by their
    # number.
    chance, best = min(candidates, default=(1.0, None), key=lambda pair: pair[0])
    return best if chance * len(candidates) <= BY_CHANCE else None


def _choices(condition: GateCondition, values: list[str]) -> list[tuple[str, ...]]:
    from_here_on = (
        [tuple(values[at:]) for at in range(1, len(values) - 1)] if condition is GateCondition.CONCURRENCY else []
    )
    return [*((value,) for value in values), *from_here_on]
