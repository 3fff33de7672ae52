"""Smaller values: of a field at a path, and cases made smaller as long as they show the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

C = TypeVar("C")
Shown = TypeVar("Shown")


def at(value: Any, path: Sequence[int]) -> Any:
    """The part of nested tuples at a path.

    >>> at(((1, 2), (3,)), (0, 1))
    2
    """
    for number in path:
        value = value[number]
    return value


def put(value: Any, path: Sequence[int], part: Any) -> Any:
    """Nested tuples with another part at a path.

    >>> put(((1, 2), (3,)), (0, 1), 5)
    ((1, 5), (3,))
    """
    if not path:
        return part
    number, *rest = path
    return (*value[:number], put(value[number], rest, part), *value[number + 1 :])


def lowered(value: int, least: int, taken: Callable[[int], bool]) -> None:
    """Try the least number, then numbers between by halves; ``taken`` says whether one will do."""
    if value <= least or taken(least):
        return
    while value - least > 1:
        middle = (least + value) // 2
        least, value = (least, middle) if taken(middle) else (middle, value)


def reduced(
    case: C, shown: Shown, smaller: Callable[[C], Iterable[C]], shows: Callable[[C, Shown], Shown | None], until: float
) -> tuple[C, Shown, bool]:
    """The smallest case that still shows something, what it has ``shown``, and whether the time was enough.

    ``smaller`` gives the candidates, the most promising first; the first that shows something takes the case's place.
    ``until`` is on the monotonic clock.

    >>> reduced(9, True, lambda n: (n // 2, n - 1), lambda n, _: n >= 3 or None, float("inf"))
    (3, True, True)
    """
    tried = {case}
    candidates = iter(smaller(case))
    while (candidate := next(candidates, None)) is not None:
        if time.monotonic() > until:
            return case, shown, False
        if candidate in tried:
            continue
        tried.add(candidate)
        if (seen := shows(candidate, shown)) is not None:
            case, shown = candidate, seen
            candidates = iter(smaller(case))
    return case, shown, True
