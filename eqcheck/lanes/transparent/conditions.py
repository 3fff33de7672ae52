"""Under which conditions a violation shows: failing cases over cases run, by each axis of the cases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from math import exp, lgamma

from eqcheck.case.record import Case
from eqcheck.explanation.records import many
from eqcheck.lanes.about_transparent import AXES

Conditions = dict[str, dict[str, list[int]]]
Places = Counter[tuple[str, str]]  # of so many cases, by axis and value
_BY_CHANCE = 0.001


def _places(cases: Iterable[Case]) -> Places:
    return Counter(place for case in cases for place in case.axes.items())


def conditions(failing: Iterable[Case], run: Iterable[Case]) -> Conditions:
    """Per axis and value ``[failing cases, cases run]``; the failing ones are among those run.

    >>> left, right = Case(prompts=((1,),)), Case(prompts=((1,),), padding_side="right")
    >>> conditions([right], [left, right, right])["padding_side"]
    {'left': [0, 1], 'right': [1, 2]}
    """
    return table(_places(failing), _places(run))


def table(failing: Places, run: Places) -> Conditions:
    """`conditions` of cases that are counted already."""
    found: Conditions = {axis: {} for axis in AXES}
    for axis, value in sorted(run):
        found[axis][value] = [failing[axis, value], run[axis, value]]
    return found


def counted(table: Mapping[str, Mapping[str, list[int]]]) -> Places:
    """The failing cases of a `table`, by axis and value."""
    return Counter({(axis, value): failed for axis, values in table.items() for value, (failed, _) in values.items()})


def only(failing: Collection[Case], right: Collection[Case], hidden: int = 0) -> list[str]:
    """`lying` of cases that are not counted yet."""
    return lying(_places(failing), _places(right), hidden)


def lying(failing: Places, right: Places, hidden: int = 0, crashing: Places | None = None) -> list[str]:
    """On which side of an axis all failing cases lie, where the other side cannot have been spared by chance.

    ``right`` are the cases that do not fail; ``hidden`` others fail otherwise, which may hide this failure. That the
    values spared are chosen after the fact is allowed for: that any choice of them is spared has a chance below 1 in
    1000. Of values on which each case is among the ``crashing`` ones nothing is known, which is said.
    """
    found = []
    crashing = crashing or Counter()
    some = next(iter(AXES))
    failed_cases, right_cases = (
        sum(n for (axis, _), n in places.items() if axis == some) for places in (failing, right)
    )
    total = failed_cases + right_cases
    beside = f"; not counted are {many(hidden, 'case')} of another failure" if hidden else ""
    for axis, values in table(failing, failing + right).items():
        spared = {value: of for value, (failed, of) in values.items() if not failed}
        hit = [value for value in values if value not in spared]
        without = sum(spared.values())
        chance = exp(_log_comb(total - without, failed_cases) - _log_comb(total, failed_cases))
        if spared and hit and chance * (2 ** len(values) - 2) < _BY_CHANCE:
            sides = [f"{named(axis, *hit)} only: {failed_cases} of {total - without} cases"]
            found.append(
                "; ".join([*sides, *(f"{named(axis, value)}: 0 of {of}" for value, of in spared.items())]) + beside
            )
    if not (crashed := sum(n for (axis, _), n in crashing.items() if axis == some)):
        return found
    dark = [place for place in sorted(crashing) if not (failing[place] or right[place])]
    found += [f"not known for {named(*place)}, where {many(crashing[place], 'case')} crash" for place in dark]
    if not found:
        shown = f"{failed_cases} of {total} cases that do not fail otherwise, under no condition that is sure"
        found.append(f"{shown}; {many(crashed, 'case')} {'crashes' if crashed == 1 else 'crash'}, which may hide one")
    return found


def _log_comb(n: int, k: int) -> float:
    """The natural logarithm of n over k; itself, it has millions of digits where many shards are merged."""
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)


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
