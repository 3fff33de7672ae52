"""Make what rows ask for plainer: an option back to its default, one of several values, a simpler grammar.

The rows are changed together where they are given together: some engines take one set of options for a whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from itertools import takewhile
from typing import Any, TypeVar

from eqcheck.contract.options import Grammar, RowOptions
from eqcheck.core.shrinking.numbers import below

T = TypeVar("T")
PLAIN: dict[str, Any] = {field.name: field.default for field in fields(RowOptions)}


def plain(options: RowOptions, name: str) -> RowOptions:
    """Return options with one at its default; a temperature becomes 1, so that a sampled row stays sampled."""
    return _with(options, name, 1.0 if name == "temperature" and options.temperature else PLAIN[name])


def plainer(rows: Sequence[RowOptions], names: Iterable[str], several: Iterable[str]) -> Iterator[list[RowOptions]]:
    """Yield the options of rows made simpler, of all these rows at once.

    The options of these ``names`` are set to their defaults. Of those that may have ``several`` values, one is kept.
    Then grammars become simpler, and limits lower.
    """
    for name in names:
        if (all_plain := [plain(options, name) for options in rows]) != list(rows):
            yield all_plain
    for name in several:
        if len(given := getattr(rows[0], name)) > 1:
            yield from ([_with(options, name, (one,)) for options in rows] for one in given)
    for grammar in simpler_grammars(rows[0].grammar):
        yield [_with(options, "grammar", grammar) for options in rows]
    limit = max(options.max_new_tokens for options in rows)
    drawn = any(options.temperature for options in rows)
    # To see whether a sampled row is still wrong takes many draws: a limit that is one lower is not worth them.
    for most in below(limit, 1, limit // 2, limit // 2 if drawn else limit - 1):
        shorter = [(options, min(most, options.max_new_tokens)) for options in rows]
        yield [replace(o, max_new_tokens=n, min_new_tokens=min(n, o.min_new_tokens)) for o, n in shorter]


def simpler_grammars(grammar: Grammar) -> Iterator[Grammar]:
    """Yield grammars with a state less, whose edges lead to the one before it, and with half of the ids of an edge."""
    for gone in sorted({state for state, *_ in grammar} - {0}, reverse=True):
        number = {state: state - (state >= gone) for state in range(1 + max(state for state, *_ in grammar))}
        yield tuple((number[state], ids, number[after]) for state, ids, after in grammar if state != gone)
    for at, (state, ids, after) in enumerate(grammar):
        for half in (ids[: len(ids) // 2], ids[len(ids) // 2 :]) if len(ids) > 1 else ():
            yield (*grammar[:at], (state, half, after), *grammar[at + 1 :])


def earlier(choices: Sequence[T], chosen: T, taken: Callable[[T], bool]) -> None:
    """Take the first of the choices before the chosen one that will do; those that come first are the simplest."""
    any(taken(choice) for choice in takewhile(lambda choice: choice != chosen, choices))


def _with(options: RowOptions, name: str, value: Any) -> RowOptions:
    return replace(options, **{name: value})
