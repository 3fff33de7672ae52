"""Define what a decoder may return for a row: tokens with finish reason, counts and log-probabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eqcheck.contract.errors import OutputError

REFUSED = "error"
REASONS = ("stop", "length", REFUSED)


@dataclass(frozen=True)
class Completion:
    """Hold the new tokens of a row with what else is returned for it; fields that are None are not judged.

    - ``finish_reason``: ``"stop"`` if an EOS or a stop sequence ended the row, ``"length"`` at its limit, ``"error"``
      if the engine refused to go on: the tokens up to there are judged, and the row is too short;
    - ``stop``: the stop sequence that ended it, None for an EOS;
    - ``usage``: counts of ``prompt_tokens`` and ``completion_tokens``;
    - ``logprobs``: natural logarithms of the target's probabilities of the tokens, before temperature, cuts and
      penalties; ``prompt_logprobs``: those of the prompt tokens, where the first is None;
    - ``beside``: anything else the engine returns with the row, by name; ``alone``: the same from the engine without
      speculation, with its ``tokens``, and with ``margins`` if options can make ties: how far each token's score lies
      above the second.

    >>> Completion([5, 7], finish_reason="stop", stop=(7,)).stop
    (7,)
    """

    tokens: Sequence[int]
    finish_reason: str | None = None
    stop: Sequence[int] | None = None
    logprobs: Sequence[float] | None = None
    prompt_logprobs: Sequence[float | None] | None = None
    usage: Mapping[str, int] | None = None
    beside: Mapping[str, Any] | None = None
    alone: Mapping[str, Any] | None = None


def apart(outputs: Any) -> tuple[list[Any], list[dict[str, Any] | None]]:
    """Split outputs into token lists, and the other fields of each row that is a `Completion` (None for a list).

    >>> apart([[1], Completion([2], "length")])
    ([[1], [2]], [None, {'finish_reason': 'length'}])
    """
    rows, told = list[Any](), list[dict[str, Any] | None]()
    for row in outputs:
        whole = isinstance(row, Completion)
        rows.append(row.tokens if whole else row)
        fields = {name: value for name, value in vars(row).items() if name != "tokens"} if whole else {}
        told.append({name: value for name, value in fields.items() if value is not None} if whole else None)
    return rows, told


Answer = tuple[Sequence[int], Mapping[str, Any]]


def with_and_without(told: Sequence[Answer], plain: Sequence[Answer]) -> list[Completion]:
    """Pair each row of an engine with the same row without speculation.

    >>> with_and_without([([1], {"text": "a"})], [([2], {"text": "b"})])[0].alone
    {'tokens': [2], 'text': 'b'}
    """
    pairs = zip(told, plain, strict=True)
    return [Completion(row, beside=beside, alone={"tokens": other, **own}) for (row, beside), (other, own) in pairs]


def told(completions: Sequence[Completion | None]) -> dict[str, bool]:
    """Return whether any completion has a field that is judged, by counter name."""
    names = "finish_reason", "usage", "logprobs", "prompt_logprobs"
    return {name: any(one and getattr(one, name) for one in completions) for name in names}


def split(outputs: Any) -> tuple[Any, tuple[Completion | None, ...]]:
    """Split outputs into token lists and completions (None for a list); raise `OutputError` for a malformed one.

    >>> split([[1], Completion([2], "length")])[0]
    [[1], [2]]
    """
    if not isinstance(outputs, list | tuple):
        return outputs, ()
    completions = tuple(row if isinstance(row, Completion) else None for row in outputs)
    for number, whole in enumerate(completions):
        if whole and whole.finish_reason not in (None, *REASONS):
            raise OutputError(
                f"outputs[{number}].finish_reason: expected one of {REASONS}, got {whole.finish_reason!r:.80}"
            )
        if whole and not isinstance(whole.stop, list | tuple | None):
            raise OutputError(f"outputs[{number}].stop: expected token ids, got {type(whole.stop).__name__}")
        if whole and whole.logprobs is not None and not _numbers(whole.logprobs, len(whole.tokens)):
            got = f"{len(whole.logprobs)} items" if isinstance(whole.logprobs, list | tuple) else type(whole.logprobs)
            raise OutputError(f"outputs[{number}].logprobs: expected {len(whole.tokens)} numbers, got {got}")
        if whole and (law := whole.prompt_logprobs) is not None and not _behind_none(law):
            got = f"{law!r:.80}"
            raise OutputError(f"outputs[{number}].prompt_logprobs: expected None and then numbers, got {got}")
        if whole and not isinstance(whole.usage, Mapping | None):
            raise OutputError(f"outputs[{number}].usage: expected a mapping, got {type(whole.usage).__name__}")
    rows = [whole.tokens if whole else row for whole, row in zip(completions, outputs, strict=True)]
    return rows, completions if any(completions) else ()


def _behind_none(values: Any) -> bool:
    return (
        isinstance(values, list | tuple) and values[:1] in ([None], (None,)) and _numbers(values[1:], len(values) - 1)
    )


def _numbers(values: Any, count: int) -> bool:
    """Return whether ``values`` are ``count`` numbers."""
    listed = isinstance(values, list | tuple) and len(values) == count
    return listed and all(isinstance(one, int | float) and not isinstance(one, bool) for one in values)


# The counts that an engine reports, as far as it has the shape that `Hooks.observed` asks for.

_COUNTS = ("drafted", "accepted", "preemptions", "prefix_hits", "late_rows", "contexts")
_MOST = 2**53  # a count that is larger is none


def observed_of(told: Any, rows: int) -> dict[str, Any]:
    """Return what was ``told`` beside the answer to so many ``rows``, without what has another shape: it says nothing.

    The judge takes counts and rounds as they are, and an engine that tells something else is not wrong in its tokens.

    >>> observed_of({"drafted": 8, "accepted": None, "rounds": [[[1, [5], 3]]]}, 1)
    {'drafted': 8, 'rounds': [[[1, [5], 3]]]}
    """
    if not isinstance(told, Mapping):
        return {}
    return {name: value for name, value in told.items() if isinstance(name, str) and _fits(name, value, rows)}


def _fits(name: str, value: Any, rows: int) -> bool:
    if name in _COUNTS:
        return _count(value)
    if name == "accepted_of_rows":
        return _listed(value, rows) and all(map(_count, value))
    if name == "rounds":
        return _listed(value, rows) and all(_listed(own) and all(map(_round, own)) for own in value)
    return True


def _count(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _MOST


def _round(value: Any) -> bool:
    """Return whether a value is the new tokens before a round, the dictated tokens, and the new tokens after it."""
    if not _listed(value, 3):
        return False
    start, tokens, end = value
    return isinstance(start, int) and isinstance(end, int) and _listed(tokens) and all(map(_count, tokens))


def _listed(value: Any, count: int | None = None) -> bool:
    return isinstance(value, list | tuple) and count in (None, len(value))
