"""Under which conditions a violation shows: failing cases over cases run, by each axis of the cases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from math import comb

from eqcheck.case import Case
from eqcheck.lanes.transparent.about import AXES

Conditions = dict[str, dict[str, list[int]]]
_BY_CHANCE = 0.001


def _values(case: Case) -> dict[str, str]:
    """Where a case lies on each axis; ranges in ascending order sort as text."""
    rows, k = len(case.prompts), case.num_draft_tokens
    return {
        "family": case.family,
        "padding_side": case.padding_side,
        "rows": str(rows) if rows < 3 else "3+",
        "cache_state": case.cache_state,
        "num_draft_tokens": "1" if k == 1 else "2-4" if k < 5 else "5+",
    }


def conditions(failing: Iterable[Case], run: Iterable[Case]) -> Conditions:
    """Per axis and value ``[failing cases, cases run]``; the failing ones are among those run.

    >>> left, right = Case(prompts=((1,),)), Case(prompts=((1,),), padding_side="right")
    >>> conditions([right], [left, right, right])["padding_side"]
    {'left': [0, 1], 'right': [1, 2]}
    """
    counts = [
        Counter((axis, value) for case in cases for axis, value in _values(case).items()) for cases in (failing, run)
    ]
    found: Conditions = {axis: {} for axis in AXES}
    for axis, value in sorted(counts[1]):
        found[axis][value] = [counts[0][axis, value], counts[1][axis, value]]
    return found


def only(failing: Collection[Case], right: Collection[Case], hidden: int = 0) -> list[str]:
    """On which side of an axis all failing cases lie, where the other side cannot have been spared by chance.

    ``right`` are the cases that do not fail; ``hidden`` others fail otherwise, which may hide this failure. That the
    values spared are chosen after the fact is allowed for: that any choice of them is spared has a chance below 1 in
    1000.
    """
    found = []
    total = len(failing) + len(right)
    beside = f" (without {hidden} cases that fail otherwise)" if hidden else ""
    for axis, values in conditions(failing, [*failing, *right]).items():
        spared = {value: of for value, (failed, of) in values.items() if not failed}
        hit = [value for value in values if value not in spared]
        without = sum(spared.values())
        chance = comb(total - without, len(failing)) / comb(total, len(failing))
        if spared and hit and chance * (2 ** len(values) - 2) < _BY_CHANCE:
            sides = [f"{named(axis, *hit)} only: {len(failing)} of {total - without} cases"]
            found.append(
                "; ".join([*sides, *(f"{named(axis, value)}: 0 of {of}" for value, of in spared.items())]) + beside
            )
    return found


def named(axis: str, *values: str) -> str:
    """Values of an axis in words.

    >>> named("rows", "2", "3+"), named("num_draft_tokens", "1", "2-4"), named("padding_side", "right")
    ('2 or more rows', 'K of 1 or 2-4', 'right padding')
    """
    text = (
        " or ".join(values).replace("2 or 3+", "2 or more").replace("2-4 or 5+", "2 or more").replace("+", " or more")
    )
    if axis == "rows":
        return "1 row" if values == ("1",) else f"{text} rows"
    name = {"family": "family", "cache_state": "cache state", "num_draft_tokens": "K of"}.get(axis)
    return f"{name} {text}" if name else f"{text} padding"
