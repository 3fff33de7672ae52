"""Leave items out: rows of a batch, or requests of a sequence.

Many go before few, so that a batch of 40 rows is as soon small as one of 4: half of the items at once, then quarters,
at last single ones. This is delta debugging (Zeller, Hildebrandt 2002, https://doi.org/10.1109/32.988498) without its
step "try the part alone": where a single row is enough, half after half goes, in about as many tries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")


def spans(count: int, largest: int) -> Iterator[range]:
    """Yield the numbers of items to leave out: ``largest`` of them, then half as many, at last one at a time.

    >>> [*spans(3, 2)]
    [range(0, 2), range(2, 3), range(0, 1), range(1, 2), range(2, 3)]
    """
    size = largest
    while size:
        for start in range(0, count, size):
            yield range(start, min(start + size, count))
        size //= 2


def kept(items: tuple[T, ...], gone: range) -> tuple[T, ...]:
    """Return the items but for those of a span.

    >>> kept((1, 2, 3, 4), range(1, 3))
    (1, 4)
    """
    return items[: gone.start] + items[gone.stop :]


def spared(count: int, largest: int, taken: Callable[[range], bool]) -> None:
    """Leave out each span of items that can be spared; ``taken`` says whether it can, and then it is left out.

    After a span is gone the next items have its numbers, so the same start is tried again.
    """
    size = largest
    while count and size:
        size = min(size, count)
        start = 0
        while start < count:
            gone = range(start, min(start + size, count))
            if taken(gone):
                count -= len(gone)
            else:
                start += size
        size //= 2


def fewest(items: tuple[T, ...], fails: Callable[[tuple[T, ...]], bool]) -> tuple[T, ...]:
    """Return a part of ``items``, in order, that still ``fails``, and no longer without any single item of it.

    >>> fewest((1, 2, 3, 4, 5), lambda part: {2, 5} <= set(part))
    (2, 5)
    """

    def taken(gone: range) -> bool:
        nonlocal items
        left = kept(items, gone)
        if failed := fails(left):
            items = left
        return failed

    spared(len(items), len(items), taken)
    return items
