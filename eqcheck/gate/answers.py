"""Read the answers of servers: whatever is not as it should be is one line, `ServerError`."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eqcheck.contract.errors import UsageError
from eqcheck.contract.escaping import one_line

PROTOCOL = "docs/gate.md lists what a server must answer"


class ServerError(UsageError):
    """A server is down, refuses, or answers in a way that cannot be judged; the message says what to do."""


class Untold(ServerError):
    """A server leaves out the ids or scores of a row, for example because it ends within a character."""


_COUNT = re.compile(
    r"^\w+:spec_(?:decode_)?(num_\w+|verify_calls)_total(?:\{(.*)\})? (\d+(?:\.\d+)?(?:e\+?\d+)?)$", re.M
)
_POSITION = re.compile(r'\bposition="(\d{1,3})"')


@dataclass(frozen=True)
class Scored:
    """A token as the referee sees it: its log-probability, the likeliest token, and the log-probabilities it tells."""

    token: int
    score: float
    best: int
    likeliest: Mapping[int, float]

    @property
    def gap(self) -> float:
        """Return by how many nats the referee prefers its own token."""
        return max(0.0, self.likeliest[self.best] - self.score)


def listed(answer: Any, name: str, place: str) -> list[Any]:
    listed = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(listed, list):
        got = one_line(str(answer), 200)
        raise ServerError(f"{place}: expected an object with a list {name!r}, got {got}; {PROTOCOL}")
    return listed


def as_ids(value: Any) -> tuple[int, ...] | None:
    """Return token ids, or None for anything else."""
    whole = isinstance(value, list) and all(isinstance(one, int) and 0 <= one < 2**31 for one in value)
    return tuple(value) if whole else None


def as_number(value: Any) -> float | None:
    """Return a log-probability, or None for anything else; minus infinity becomes a very small one."""
    return max(float(value), -1e4) if isinstance(value, (int, float)) and -math.inf <= value <= 1e-3 else None


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def id_of(key: Any) -> int | None:
    """Return the id in ``token_id:7`` or ``7``, as servers write it."""
    digits = str(key).removeprefix("token_id:")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 10 else None


def tokens_of(choice: Mapping[str, Any]) -> tuple[tuple[int, ...] | None, tuple[float, ...] | None]:
    """Return the new tokens' ids and log-probabilities, each None where the server leaves it out."""
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
    """Return a token as the referee scores it. Its own score may be among those of the likeliest."""
    scores: dict[int, float] = {}
    for key, value in likeliest.items():
        number, each = id_of(key), as_number(value.get("logprob") if isinstance(value, dict) else value)
        if number is not None and each is not None:
            scores[number] = each
    score = scores.get(token) if score is None else score
    if score is None or not scores:
        raise Untold(f"{place}: expected the log-probability of token {token}, got {one_line(str(likeliest), 200)}")
    scores.setdefault(token, score)
    return Scored(token, score, max(scores, key=lambda one: (scores[one], one == token)), scores)


def first_law(told: Mapping[str, Any]) -> dict[int, float]:
    """Return the likeliest ids of the first token, in the form of OpenAI's completions or of llama.cpp."""
    content = (as_list(told.get("content")) or [None])[0]
    first = (as_list(told.get("top_logprobs")) or [None])[0]
    pairs = list(first.items()) if isinstance(first, dict) else []
    if isinstance(content, dict):
        records = [each for each in (content, *as_list(content.get("top_logprobs"))) if isinstance(each, dict)]
        pairs = [(each.get("id"), each.get("logprob")) for each in records]
    known = [(id_of(name), as_number(value)) for name, value in pairs]
    return {name: value for name, value in known if name is not None and value is not None}


def choice_of_native(answer: Any, place: str) -> dict[str, Any]:
    """Return an answer of SGLang's ``/generate`` as a choice of OpenAI's, with the scores of the prompt's tokens.

    A log-probability stands there as ``[value, id, text]``, and a place without one as null.

    >>> told = {"output_ids": [7], "meta_info": {"finish_reason": {"type": "length"},
    ...     "output_token_logprobs": [[-0.5, 7, None]], "output_top_logprobs": [[[-0.5, 7, None], [-1.0, 8, None]]]}}
    >>> choice = choice_of_native(told, "here")
    >>> choice["token_ids"], choice["finish_reason"], choice["logprobs"]["top_logprobs"]
    ([7], 'length', [{7: -0.5, 8: -1.0}])
    """
    if not isinstance(answer, dict) or as_ids(answer.get("output_ids")) is None:
        got = one_line(str(answer), 200)
        raise ServerError(f"{place}: expected an object with ids in 'output_ids', got {got}; {PROTOCOL}")
    told = answer.get("meta_info")
    told = told if isinstance(told, dict) else {}
    reason = told.get("finish_reason")
    scores, likeliest = (
        {side: as_list(told.get(f"{side}_{name}_logprobs")) for side in ("input", "output")}
        for name in ("token", "top")
    )
    return {
        "token_ids": answer["output_ids"],
        "finish_reason": reason.get("type") if isinstance(reason, dict) else reason,
        "logprobs": {
            "token_logprobs": [_score(one) for one in scores["output"]],
            "top_logprobs": [_scores(each) for each in likeliest["output"]],
        },
        "prompt_scores": [_score(one) for one in scores["input"]],
        "prompt_likeliest": [_scores(each) for each in likeliest["input"]],
    }


def _score(told: Any) -> float | None:
    return as_number(told[0]) if isinstance(told, list) and told else None


def _scores(told: Any) -> dict[Any, float]:
    pairs = [(each[1], _score(each)) for each in as_list(told) if isinstance(each, list) and len(each) > 1]
    return {name: value for name, value in pairs if value is not None and id_of(name) is not None}


def counts_of(metrics: str) -> Counter[str]:
    """Read the counts of drafts from Prometheus metrics of vLLM or SGLang; those of a draft position end in its number.

    >>> text = 'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 12.0'
    >>> counts_of(text)
    Counter({'num_accepted_tokens_per_pos 1': 12})
    """
    counts: Counter[str] = Counter()
    for name, labels, value in _COUNT.findall(metrics):
        position = _POSITION.search(labels)
        counts[f"{name} {position[1]}" if position else name] += int(float(value))
    return counts


def acceptance(counts: Counter[str]) -> float | None:
    """Return the share of draft tokens that are accepted; None where none is counted."""
    drafts = counts["num_draft_tokens"]
    return round(counts["num_accepted_tokens"] / drafts, 3) if drafts else None


def acceptance_of_positions(counts: Counter[str]) -> list[float]:
    """Return the share of drafts that are accepted up to each position, where the server counts it."""
    accepted, drafts = [counts[f"num_accepted_tokens_per_pos {place}"] for place in range(64)], counts["num_drafts"]
    return [round(count / drafts, 3) for count in accepted if count] if drafts else []


def counts_beside(choice: Mapping[str, Any]) -> Counter[str]:
    """Return the counts of drafts that llama.cpp adds to an answer."""
    told = choice.get("timings")
    drafted, accepted = (
        (as_count(told.get(name)) for name in ("draft_n", "draft_n_accepted")) if isinstance(told, dict) else (0, 0)
    )
    return Counter(num_draft_tokens=drafted, num_accepted_tokens=min(drafted, accepted))


def as_count(value: Any) -> int:
    return value if type(value) is int and 0 <= value < 2**31 else 0
