"""Make a failing engine case small: engine options back to their defaults first, then rows, then what they ask.

What is left that is not a default is what the failure needs; `needs` names it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import fields, replace

from eqcheck.blackbox.case import EngineCase, Row
from eqcheck.contract import RowOptions

MANY = 16  # rows that a failure needs, beyond which it is a matter of their number
_ENGINE = ("token_budget", "kv_blocks", "prefix_caching")
_ROW = ("arrival", "min_new_tokens", "repetition_penalty", "presence_penalty", "eos_token_ids")


def minimise(case: EngineCase, fails: Callable[[EngineCase], bool], seconds: float) -> EngineCase:
    """The smallest case found that ``fails``, in so many seconds."""
    end = time.monotonic() + seconds
    tried = {case}
    smaller = True
    while smaller:
        smaller = False
        for candidate in _candidates(case):
            if time.monotonic() > end:
                return case
            if candidate in tried:
                continue
            tried.add(candidate)
            if fails(candidate):
                case, smaller = candidate, True
                break
    return case


def needs(case: EngineCase) -> tuple[str, ...]:
    """The options of a case that are not at their defaults, by name: those of the engine, then those of rows."""
    found = ["ngram"] if case.drafting == "ngram" else []
    found += [name for name in _ENGINE if getattr(case, name) is not None]
    defaults = {field.name: field.default for field in fields(RowOptions)}
    found += [name for name in _ROW if any(getattr(row.options, name) != defaults[name] for row in case.rows)]
    found += ["many-rows"] if len(case.rows) >= MANY else []
    return tuple(name.replace("_", "-") for name in found)


def without(case: EngineCase, names: tuple[str, ...]) -> EngineCase:
    """The case with the named options at their defaults."""
    for name in (name.replace("-", "_") for name in names):
        if name == "many_rows":
            case = _rows(case, list(case.rows[: MANY - 1]))
        elif name == "ngram":
            case = replace(case, drafting="model")
        elif name in _ENGINE:
            case = replace(case, **{name: None})  # type: ignore[arg-type]
        else:
            default = next(field.default for field in fields(RowOptions) if field.name == name)
            case = _rows(case, [_with(row, **{name: default}) for row in case.rows])
    return case


def _candidates(case: EngineCase) -> Iterator[EngineCase]:
    """Smaller cases, those that promise most first."""
    for name in needs(case):
        yield without(case, (name,))
    rows = list(case.rows)
    size = len(rows) // 2
    while size:
        for start in range(0, len(rows), size):
            if len(rows) > size:
                yield _rows(case, rows[:start] + rows[start + size :])
        size //= 2
    for number, row in enumerate(rows):
        for smaller in _smaller(row):
            yield _rows(case, [*rows[:number], smaller, *rows[number + 1 :]])
    for k in sorted({1, case.num_draft_tokens // 2, case.num_draft_tokens - 1} - {0, case.num_draft_tokens}):
        if k < case.num_draft_tokens:
            yield replace(case, num_draft_tokens=k)


def _smaller(row: Row) -> Iterator[Row]:
    options, prompt = row.options, row.prompt
    defaults = {field.name: field.default for field in fields(RowOptions)}
    for name in _ROW:
        if getattr(options, name) != defaults[name]:
            yield _with(row, **{name: defaults[name]})
    if len(options.eos_token_ids) > 1:
        for token in options.eos_token_ids:
            yield _with(row, eos_token_ids=(token,))
    limit = options.max_new_tokens
    for shorter in sorted({limit // 2, limit - 1}):
        if 0 < shorter < limit:
            yield _with(row, max_new_tokens=shorter, min_new_tokens=min(shorter, options.min_new_tokens))
    for size in sorted({len(prompt) // 2, 1}, reverse=True):
        if 0 < size < len(prompt):
            yield replace(row, prompt=prompt[size:])
            yield replace(row, prompt=prompt[:-size])


def _rows(case: EngineCase, rows: list[Row]) -> EngineCase:
    return replace(case, rows=tuple(rows))


def _with(row: Row, **options: object) -> Row:
    return replace(row, options=replace(row.options, **options))  # type: ignore[arg-type]
