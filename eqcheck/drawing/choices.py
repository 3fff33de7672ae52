"""The choices by which cases are drawn: by chance, or by a library of property tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol, TypeVar

T = TypeVar("T")
Prompt = tuple[int, ...]


class Choices(Protocol):
    """The maker of the choices."""

    def integer(self, low: int, high: int) -> int:
        """A number from ``low`` to ``high``, both included."""

    def pick(self, options: Sequence[T]) -> T:
        """One of the options."""

    def some(self, make: Callable[[Choices], T], least: int, most: int) -> list[T]:
        """Draw from ``least`` to ``most`` things."""


class Chance:
    """Choices by a random generator of Python's own, the same for the same seed on every machine."""

    def __init__(self, random: Random) -> None:
        self._random = random.random

    def integer(self, low: int, high: int) -> int:
        return low + int(self._random() * (high - low + 1))

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self._random() * len(options))]

    def some(self, make: Callable[[Choices], T], least: int, most: int) -> list[T]:
        return [make(self) for _ in range(self.integer(least, most))]
