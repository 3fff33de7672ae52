"""The answers of servers, read: whatever is not as it should be is one line, `ServerError`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eqcheck.contract.errors import UsageError
from eqcheck.contract.escaping import one_line


class ServerError(UsageError):
    """A server is down, refuses, or answers in a way that cannot be judged; the message says what to switch on."""


@dataclass(frozen=True)
class Scored:
    """A token as the referee sees it: its log-probability, the likeliest token, and the log-probabilities it tells."""

    token: int
    score: float
    best: int
    likeliest: Mapping[int, float]

    @property
    def gap(self) -> float:
        """By how many nats the referee prefers its own token."""
        return max(0.0, self.likeliest[self.best] - self.score)


def listed(answer: Any, name: str, place: str) -> list[Any]:
    found = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(found, list):
        raise ServerError(f"{place}: expected an object with a list {name!r}, got {one_line(str(answer), 200)}")
    return found


def as_ids(value: Any) -> tuple[int, ...] | None:
    """Token ids, or None where they are none."""
    whole = isinstance(value, list) and all(isinstance(one, int) and 0 <= one < 2**31 for one in value)
    return tuple(value) if whole else None


def as_number(value: Any) -> float | None:
    """A log-probability; one of minus infinity is a very small one."""
    return max(float(value), -1e4) if isinstance(value, (int, float)) and -math.inf <= value <= 1e-3 else None


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def id_of(key: Any) -> int | None:
    """The id in ``token_id:7`` or ``7``, as servers write it."""
    digits = str(key).removeprefix("token_id:")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 10 else None


def tokens_of(choice: Mapping[str, Any], place: str) -> tuple[tuple[int, ...] | None, tuple[float, ...] | None]:
    """The new tokens' ids and log-probabilities, each None where it is not told."""
    told = choice.get("logprobs")
    told = told if isinstance(told, dict) else {}
    tokens, content = as_ids(choice.get("token_ids")), as_list(told.get("content"))
    if tokens is None and content:
        tokens = as_ids([each.get("id") if isinstance(each, dict) else None for each in content])
    if tokens is None:
        named = [id_of(name) for name in as_list(told.get("tokens")) if str(name).startswith("token_id:")]
        tokens = tuple(one for one in named if one is not None) if named and None not in named else None
    scores = [as_number(value) for value in as_list(told.get("token_logprobs"))]
    if tokens is None or len(scores) != len(tokens):
        return tokens, None
    return tokens, tuple(score for score in scores if score is not None) if None not in scores else None


def place_of(token: int, score: float | None, likeliest: Mapping[Any, Any], place: str) -> Scored:
    """A place of the referee. The token's own score may stand among those of the likeliest."""
    scores: dict[int, float] = {}
    for key, value in likeliest.items():
        number, each = id_of(key), as_number(value.get("logprob") if isinstance(value, dict) else value)
        if number is not None and each is not None:
            scores[number] = each
    score = scores.get(token) if score is None else score
    if score is None or not scores:
        raise ServerError(
            f"{place}: expected the log-probability of token {token}, got {one_line(str(likeliest), 200)}"
        )
    scores.setdefault(token, score)
    return Scored(token, score, max(scores, key=lambda one: (scores[one], one == token)), scores)


def first_law(told: Mapping[str, Any]) -> dict[int, float]:
    """The likeliest ids at the first place, as OpenAI's completions tell them or as llama.cpp does, in records."""
    content = (as_list(told.get("content")) or [None])[0]
    first = (as_list(told.get("top_logprobs")) or [None])[0]
    pairs = list(first.items()) if isinstance(first, dict) else []
    if isinstance(content, dict):
        records = [each for each in (content, *as_list(content.get("top_logprobs"))) if isinstance(each, dict)]
        pairs = [(each.get("id"), each.get("logprob")) for each in records]
    known = [(id_of(name), as_number(value)) for name, value in pairs]
    return {name: value for name, value in known if name is not None and value is not None}
