"""Make lists of tokens shorter: prompts, and the numbers of draft tokens that rounds accept.

Which end of a prompt is cut matters: a cache that is wrong after a common prefix needs the beginning, an n-gram drafter
needs what the last tokens repeat, and a server may put a special token first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from eqcheck.core.shrinking.numbers import below, lowered, lowered_part, put

T = TypeVar("T")
Prompt = tuple[int, ...]
Prompts = tuple[Prompt, ...]


def shortened(prompts: Callable[[], Prompts], least: int, taken: Callable[[Prompts], bool]) -> None:
    """Keep fewer tokens of the beginnings of prompts: of all at once, then of one after the other.

    ``prompts`` gives them as they are now; all at once saves a try for each row and half of a length.
    """
    longest = max(map(len, prompts()))
    lowered(longest, least, lambda most: taken(tuple(prompt[:most] for prompt in prompts())))
    for row in range(len(prompts())):
        lowered_part(prompts(), (row,), least, taken)


def halved(prompt: Prompt) -> Iterator[Prompt]:
    """Yield a prompt without its first half, without its last, without its first token, and without its last.

    >>> [*halved((1, 2, 3, 4))]
    [(3, 4), (1, 2), (2, 3, 4), (1, 2, 3)]
    """
    for size in reversed(below(len(prompt), 1, 1, len(prompt) // 2)):
        yield prompt[size:]
        yield prompt[:-size]


def behind_first(prompt: Sequence[T]) -> Iterator[tuple[T, ...]]:
    """Yield a prompt whose first token stays, without half of the tokens after it, without a quarter, without one.

    >>> [*behind_first((1, 2, 3, 4, 5))]
    [(1, 4, 5), (1, 3, 4, 5)]
    """
    cut = len(prompt) // 2
    while cut:
        yield (*prompt[:1], *prompt[cut + 1 :])
        cut //= 2


def duller(accepts: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield tables of fewer rounds in which draft tokens are accepted, then tables in which one round accepts none.

    >>> [*duller((2, 0, 1))]
    [(), (2,), (2, 0), (0, 0, 1), (2, 0, 0)]
    """
    for size in below(len(accepts), 0, 0, len(accepts) // 2, len(accepts) - 1):
        yield accepts[:size]
    for number, count in enumerate(accepts):
        if count:
            yield put(accepts, (number,), 0)
