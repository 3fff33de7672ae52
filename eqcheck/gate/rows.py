"""A row of a server as the referee sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from eqcheck.gate.answers import Scored
from eqcheck.gate.servers import Completed, Wanted

ENDS = ("over-length", "past-eos", "premature-stop")
"""The kinds of ends that no right server gives."""


@dataclass(frozen=True)
class Row:
    """A row of a server, and how the referee sees its tokens. ``beside``: sampled rows stand beside it.

    ``by_draft``: how the draft sees its tokens, or what stands in for the draft of a sampled row; empty if not asked.
    """

    request: int
    asked: Wanted
    answer: Completed
    places: tuple[Scored, ...]
    concurrency: int
    place: int
    beside: bool = False
    by_draft: tuple[Scored, ...] = ()

    @property
    def gap(self) -> float:
        """The greatest gap of its tokens."""
        return max((place.gap for place in self.places), default=0.0)

    def beyond(self, threshold: float) -> int | None:
        """The first token whose gap exceeds."""
        return next((at for at, place in enumerate(self.places) if place.gap > threshold), None)

    def wrong_end(self, ends: Sequence[int]) -> str:
        """The kind of a wrong end, empty for a right one. ``ends`` are ids behind which rows end."""
        tokens, limit = self.answer.tokens, self.asked.max_tokens
        if any(token in (*self.asked.stops, *ends) for token in tokens[:-1]):
            return "past-eos"
        if len(tokens) > limit:
            return "over-length"
        return "premature-stop" if self.answer.finish_reason == "length" and len(tokens) < limit else ""


class Speed(NamedTuple):
    """Tokens, and the seconds in which they were decoded."""

    tokens: int = 0
    seconds: float = 0.0

    def plus(self, rows: Sequence[Row], seconds: float) -> Speed:
        """With these rows."""
        return Speed(self.tokens + sum(len(row.answer.tokens) for row in rows), self.seconds + seconds)

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds if self.seconds else 0.0
