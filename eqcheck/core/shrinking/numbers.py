"""Make numbers smaller: limits, K, lengths, and numbers that stand inside nested tuples.

A number is lowered by halving where each try says in which half to go on (`lowered`); a lane whose tries are dear lists
a few numbers below it instead (`below`). The lowest number comes first in both: it is right surprisingly often, and
then the field is done in one try.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def at(value: Any, path: Sequence[int]) -> Any:
    """Return the part of nested tuples at a path.

    >>> at(((1, 2), (3,)), (0, 1))
    2
    """
    for number in path:
        value = value[number]
    return value


def put(value: Any, path: Sequence[int], part: Any) -> Any:
    """Return nested tuples with another part at a path.

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


def lowered_part(field: Any, path: Sequence[int], least: int, taken: Callable[[Any], bool]) -> None:
    """Lower the number at a path in a field, or keep as few of the items there as can be.

    ``taken`` says whether the whole field with the smaller part will do.

    >>> lowered_part(((5, 6, 7), (8,)), (0,), 1, lambda field: bool(print(field)))
    ((5,), (8,))
    ((5, 6), (8,))
    """
    part = at(field, path)
    number = isinstance(part, int)

    def smaller(count: int) -> bool:
        return taken(put(field, path, count if number else part[:count]))

    lowered(part if number else len(part), least, smaller)


def below(value: int, least: int, *wanted: int) -> list[int]:
    """Return the wanted numbers that are below a value and not below the least, the smallest first, each once.

    >>> below(7, 1, 0, 1, 3, 6, 7)
    [1, 3, 6]
    >>> below(1, 0, 0, 0, 0)
    [0]
    """
    return sorted({number for number in wanted if least <= number < value})
