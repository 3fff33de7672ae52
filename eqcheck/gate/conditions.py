"""Count wrong rows for each condition and value, and find the condition that tells most."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from eqcheck.gate.rows import Row
from eqcheck.gate.run import Gate
from eqcheck.result.tally import gathered_by_chance

Counts: TypeAlias = "Mapping[str, Mapping[str, Sequence[int]]]"
BY_CHANCE = 0.01  # a condition is named if chance gathers wrong rows there more rarely
SHARED = 16  # tokens of a beginning that may be in a cache of prefixes
FIRST = 32  # requests
CONCURRENCY, SINCE = "concurrency", "tokens since the last rejected draft"
FAR = 5  # tokens
_CONDITIONS: Mapping[str, Callable[[Gate, Row], str]] = {
    CONCURRENCY: lambda gate, row: str(row.concurrency),
    "place in the chunk": lambda gate, row: "first" if not row.place else "later",
    "prompt": lambda gate, row: gate.prompt_kinds[row.request % len(gate.prompt_kinds)],
    "prompt length modulo 16": lambda gate, row: str(len(row.answer.prompt) % 16),
    f"begins with {SHARED} tokens of an earlier prompt": lambda gate, row: _yes(_begun(gate, row)),
    "request": lambda gate, row: f"first {FIRST}" if row.request < FIRST else "later",
    "beside sampled rows": lambda gate, row: _yes(row.beside),
    "has a stop": lambda gate, row: _yes(bool(row.asked.stops)),
    "ends by": lambda gate, row: reason if (reason := row.answer.finish_reason) in ("stop", "length") else "other",
}


def _yes(true: bool) -> str:
    return "yes" if true else "no"


def _begun(gate: Gate, row: Row) -> bool:
    start = row.answer.prompt[:SHARED]
    earlier = (other.answer.prompt for other in gate.rows if other.request < row.request)
    return len(start) == SHARED and any(prompt[:SHARED] == start for prompt in earlier)


def conditions_of(gate: Gate, rows: Sequence[Row]) -> dict[str, dict[str, list[int]]]:
    """Count for each condition with several values, and each value, how many of the rows are wrong, of how many.

    Under `SINCE` first wrong tokens are counted, of all tokens up to them.
    """
    wrong, table = {id(row) for row in rows}, dict[str, dict[str, list[int]]]()
    sampled = any(row.asked.temperature for row in rows)
    for name, value_of in _CONDITIONS.items():
        counts: dict[str, list[int]] = {}
        for row in gate.rows:
            if sampled or not row.asked.temperature:
                count = counts.setdefault(value_of(gate, row), [0, 0])
                count[0], count[1] = count[0] + (id(row) in wrong), count[1] + 1
        table[name] = counts
    table[SINCE] = _since_rejection(gate, wrong)
    ordered = {name: sorted(counts.items(), key=lambda pair: (len(pair[0]), pair[0])) for name, counts in table.items()}
    return {name: dict(counts) for name, counts in ordered.items() if len(counts) > 1}


def _since_rejection(gate: Gate, wrong: Collection[int]) -> dict[str, list[int]]:
    """Count by distance to the last rejected draft: a token that is not the draft's choice replaces a rejected one."""
    counts: dict[str, list[int]] = {}
    for row in gate.rows:
        first, since = row.beyond(gate.threshold) if id(row) in wrong else None, 0
        seen = () if row.asked.temperature or not row.by_draft else zip(row.places, row.by_draft, strict=True)
        for at, (place, by_draft) in enumerate(seen):
            value = "none before" if not since else str(since) if since < FAR else f"{FAR} or more"
            count = counts.setdefault(value, [0, 0])
            count[0], count[1] = count[0] + (at == first), count[1] + 1
            if at == first:
                break
            since = 1 if place.token != by_draft.best else since + (since > 0)
    return counts if any(count[0] for count in counts.values()) else {}


class Telling(NamedTuple):
    """A condition and its values at which more rows are wrong than otherwise."""

    name: str
    values: tuple[str, ...]
    wrong: int
    rows: int
    other_wrong: int
    other_rows: int


def telling(conditions: Counts) -> Telling | None:
    """Return the condition under which wrong rows are most unlikely to gather by chance, or None.

    Of `CONCURRENCY` a value and all above it are taken together, too. Chance is the tail of the hypergeometric
    distribution, times the number of choices.

    >>> telling({"concurrency": {"1": [0, 40], "4": [29, 30], "16": [20, 20]}, "request": {"later": [49, 90]}})
    Telling(name='concurrency', values=('4', '16'), wrong=49, rows=50, other_wrong=0, other_rows=40)
    >>> telling({"has a stop": {"no": [5, 30], "yes": [2, 10]}})
    """
    choices = [(name, values) for name, counts in conditions.items() for values in _choices(name, list(counts))]
    candidates = []
    for name, values in choices:
        counts = conditions[name]
        wrong, rows = (sum(counts[value][at] for value in values) for at in (0, 1))
        all_wrong, all_rows = (sum(count[at] for count in counts.values()) for at in (0, 1))
        one = Telling(name, values, wrong, rows, all_wrong - wrong, all_rows - rows)
        if one.other_rows:
            candidates.append((gathered_by_chance(wrong, rows, all_wrong, all_rows), one))
    chance, best = min(candidates, default=(1.0, None), key=lambda pair: pair[0])
    return best if chance * len(candidates) <= BY_CHANCE else None


def _choices(name: str, values: list[str]) -> list[tuple[str, ...]]:
    from_here_on = [tuple(values[at:]) for at in range(1, len(values) - 1)] if name == CONCURRENCY else []
    return [*((value,) for value in values), *from_here_on]
