"""The counts that an engine reports, as far as it has the shape that `Hooks.observed` asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_COUNTS = ("drafted", "accepted", "preemptions", "prefix_hits", "late_rows", "contexts")
_MOST = 2**53  # a count that is larger is none


def observed_of(told: Any, rows: int, ours: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return what was ``told`` beside the answer to so many ``rows``, without what has another shape: it says nothing.

    The judge takes counts and rounds as they are, and an engine that tells something else is not wrong in its tokens.
    Names that begin with one of ``ours`` are eqcheck's own.

    >>> observed_of({"drafted": 8, "accepted": None, "rounds": [[[1, [5], 3]]]}, 1)
    {'drafted': 8, 'rounds': [[[1, [5], 3]]]}
    """
    if not isinstance(told, Mapping):
        return {}
    return {
        name: value
        for name, value in told.items()
        if isinstance(name, str) and not name.startswith(ours) and _fits(name, value, rows)
    }


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
