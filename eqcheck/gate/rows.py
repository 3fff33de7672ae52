"""A row of a server: as it is asked for, as it is answered, and as the referee sees it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from eqcheck.gate.answers import Scored

LIKELIEST, LIKELIEST_SAMPLED = 5, 20  # tokens whose scores a referee tells beside the row's own
LEAST_SECOND = 5  # wrong tokens: of fewer nothing is said
PIECE = 5  # tokens of a call that verifies four drafts
WITHOUT_CUTS = {"top_k": -1, "top_p": 1.0, "min_p": 0.0}
ENDS = ("over-length", "past-eos", "premature-stop")
"""The kinds of ends that no right server gives."""


@dataclass(frozen=True)
class Wanted:
    """A row: its prompt, and what it asks for. ``stops`` are ids behind which it has to end."""

    prompt: tuple[int, ...] | str
    max_tokens: int
    temperature: float = 0.0
    seed: int | None = None
    stops: tuple[int, ...] = ()

    def body(self, model: str) -> dict[str, Any]:
        """Return the request in the form of OpenAI's completions, with the options of vLLM that return ids."""
        prompt = self.prompt if isinstance(self.prompt, str) else list(self.prompt)
        body: dict[str, Any] = {"model": model, "prompt": prompt, "max_tokens": self.max_tokens}
        body |= {"temperature": self.temperature, "logprobs": LIKELIEST, "return_token_ids": True}
        body |= {"return_tokens_as_token_ids": True}
        if self.temperature:  # the law that is told has no cuts, and llama.cpp's default has three
            body |= WITHOUT_CUTS
        body |= {"seed": self.seed} if self.seed is not None else {}
        return body | ({"stop_token_ids": list(self.stops)} if self.stops else {})

    def native(self) -> dict[str, Any]:
        """Return the request in the form of SGLang's own ``/generate``; its prompt is ids."""
        options: dict[str, Any] = {"max_new_tokens": self.max_tokens, "temperature": self.temperature}
        options |= WITHOUT_CUTS if self.temperature else {}
        options |= {"sampling_seed": self.seed} if self.seed is not None else {}
        options |= {"stop_token_ids": list(self.stops)} if self.stops else {}
        body = {"input_ids": list(self.prompt), "sampling_params": options}
        return body | {"return_logprob": True, "top_logprobs_num": LIKELIEST}


@dataclass(frozen=True)
class Completed:
    """The new tokens of a row, why they end, and the prompt's ids. ``scores``: log-probabilities, if they are told.

    ``untold``: the server gave a text without ids, and no tokens are here.
    """

    tokens: tuple[int, ...]
    finish_reason: str | None
    prompt: tuple[int, ...]
    scores: tuple[float, ...] | None = None
    untold: bool = False


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
        """Return the largest gap of its tokens."""
        return max((place.gap for place in self.places), default=0.0)

    @property
    def told(self) -> bool:
        """Return whether the servers gave its token ids and all scores."""
        seen = len(self.answer.tokens), len(self.places), len(self.by_draft)
        return not self.answer.untold and len({*seen[: 3 if self.asked.temperature else 2]}) == 1

    @property
    def furthest(self) -> int:
        """Return the index of the token with the largest gap."""
        return max(range(len(self.places)), key=lambda at: self.places[at].gap, default=0)

    def beyond(self, threshold: float) -> int | None:
        """Return the index of the first token whose gap exceeds the threshold."""
        return next((at for at, place in enumerate(self.places) if place.gap > threshold), None)

    def wrong_end(self, ends: Sequence[int]) -> str:
        """Return the kind of a wrong end, empty for a right one. ``ends`` are ids that end a row."""
        tokens, limit = self.answer.tokens, self.asked.max_tokens
        if any(token in (*self.asked.stops, *ends) for token in tokens[:-1]):
            return "past-eos"
        if len(tokens) > limit:
            return "over-length"
        return "premature-stop" if self.answer.finish_reason == "length" and len(tokens) < limit else ""


class SecondChoices(NamedTuple):
    """Counts of the wrong tokens of greedy rows, and of those that are the referee's second choice.

    ``farthest`` is the largest gap of a wrong token. ``log10_chance`` is the chance, as a logarithm, that all of them
    are second choices if wrong tokens fall at random among the referee's second to fifth. ``log10_limit`` is the
    chance that no gap exceeds ``farthest`` if the second choice is returned at places drawn at random: acceptance with
    a threshold has such a limit, other faults have none.
    """

    wrong: int
    second: int
    farthest: float
    log10_chance: float
    log10_limit: float

    @property
    def all_second(self) -> bool:
        """Return whether all wrong tokens are second choices, and are enough to say so."""
        return self.second == self.wrong >= LEAST_SECOND


def second_choices(rows: Sequence[Row], threshold: float) -> SecondChoices:
    """Count the wrong tokens that are the referee's second choice, or as good as that within its noise.

    >>> from eqcheck.gate.answers import Scored
    >>> def row(token): return Row(0, Wanted((1,), 1), Completed((token,), None, (1,)), (place(token),), 1, 0)
    >>> def place(token): return Scored(token, scores[token], 1, scores)
    >>> scores = {1: -0.5, 2: -1.0, 3: -4.0, 4: -5.0, 5: -6.0}
    >>> second_choices([row(1)] * 9 + [row(2)] * 5, 0.1)[:3], second_choices([row(3)], 0.1)[:2]
    ((5, 5, 0.5), (1, 0))
    """
    wrong = second = 0
    farthest = log10_chance = 0.0
    seconds = []
    for place in (place for row in rows for place in row.places):
        others = sorted((score for token, score in place.likeliest.items() if token != place.best), reverse=True)[:4]
        if not others:
            continue
        as_good = sum(score >= others[0] - threshold for score in others)
        if (gap := place.likeliest[place.best] - others[0]) > threshold:
            seconds.append(gap)
        if place.gap > threshold:
            wrong, farthest = wrong + 1, max(farthest, place.gap)
            second += place.score >= others[0] - threshold
            log10_chance += math.log10(as_good / len(others))
    share = sum(gap <= farthest for gap in seconds) / len(seconds) if seconds else 1.0
    limit = min(0.0, math.log10(wrong) + wrong * math.log10(share)) if wrong and share else 0.0
    return SecondChoices(wrong, second, farthest, log10_chance, limit)


class Speed(NamedTuple):
    """Tokens, and the seconds in which they were decoded."""

    tokens: int = 0
    seconds: float = 0.0

    def plus(self, rows: Sequence[Row], seconds: float) -> Speed:
        """Return the speed with these rows added."""
        return Speed(self.tokens + sum(len(row.answer.tokens) for row in rows), self.seconds + seconds)

    @property
    def rate(self) -> float:
        """Return tokens per second."""
        return self.tokens / self.seconds if self.seconds else 0.0
