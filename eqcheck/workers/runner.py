"""What decodes and judges cases, wherever the decoder runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from eqcheck.result.outcome import Outcome


class Runner(Protocol):
    """Decodes and judges cases. ``note`` is what the decoder says of itself, ``version`` what its engine calls itself.

    Cases of families in ``given_up`` are passed over.
    """

    given_up: set[str]

    @property
    def note(self) -> str: ...

    @property
    def version(self) -> str: ...

    def try_case(self, case: Any, timeout: float | None = None, *, opinion: bool = False) -> Outcome:
        """One outcome; ``timeout`` instead of the time limit where it is shorter; ``opinion``: with a second look."""

    def outcomes(self, cases: Iterable[Any]) -> Iterator[Outcome]:
        """The outcomes of the cases, in order."""

    def renew(self) -> bool:
        """Have the next case decoded by a decoder that has decoded nothing yet; False where that cannot be."""


class OneByOne:
    """A `Runner` that decodes one case after the other."""

    def __init__(self) -> None:
        self.given_up = set[str]()

    def try_case(self, case: Any, timeout: float | None = None, *, opinion: bool = False) -> Outcome:
        raise NotImplementedError

    def outcomes(self, cases: Iterable[Any]) -> Iterator[Outcome]:
        for case in cases:
            if case.family not in self.given_up:
                yield self.try_case(case)
