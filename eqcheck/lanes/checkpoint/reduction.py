"""Make a failing engine case small: engine options back to their defaults first, then rows, then what they ask.

The failure needs each option that then is not at its default; `needs` names them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import fields, replace
from functools import partial
from typing import Any

from eqcheck.case.engine import EngineCase
from eqcheck.case.reduction import put, reduced
from eqcheck.checkpoints.judge import truth
from eqcheck.contract.decoders import CAPABILITIES, RowOptions
from eqcheck.contract.options import SCORING
from eqcheck.lanes.checkpoint.drawing import ending_like

MANY = 16  # rows that a failure needs, beyond which it is a matter of their number
_DRAFTING = {"ngram": "ngram", "dictated-drafts": "dictated"}
_ENGINE = ("token_budget", "kv_blocks", "prefix_caching")
_PLAIN: dict[str, Any] = {field.name: field.default for field in fields(RowOptions)}
_ROW = ("arrival", *SCORING, "eos_token_ids")


def minimise(
    case: EngineCase, fails: Callable[[EngineCase], bool], seconds: float, capabilities: Collection[str] = CAPABILITIES
) -> EngineCase:
    """The smallest case found that ``fails``, in so many seconds, and that a decoder of these capabilities takes."""
    smaller = partial(_candidates, capabilities=capabilities)
    return reduced(case, True, smaller, lambda tried, _: fails(tried) or None, time.monotonic() + seconds)[0]


def needs(case: EngineCase) -> tuple[str, ...]:
    """The options of a case that are not at their defaults, by name: those of the engine, then those of rows."""
    names = [name for name, drafting in _DRAFTING.items() if case.drafting == drafting]
    names += [name for name in _ENGINE if getattr(case, name) is not None]
    names += [name for name in _ROW if any(getattr(options, name) != _PLAIN[name] for options in case.options)]
    names += ["many-rows"] if len(case.rows) >= MANY else []
    return tuple(name.replace("_", "-") for name in names)


def without(case: EngineCase, names: tuple[str, ...]) -> EngineCase:
    """The case with the named options at their defaults."""
    for name in (name.replace("-", "_") for name in names):
        if name == "many_rows":
            case = case.of(range(min(len(case.rows), MANY - 1)))
        elif name.replace("_", "-") in _DRAFTING:
            case = replace(case, drafting="model", rows=tuple(replace(row, accepts=()) for row in case.rows))
        elif name in _ENGINE:
            case = replace(case, **{name: None})  # type: ignore[arg-type]
        else:
            case = case.with_options(replace(options, **{name: _PLAIN[name]}) for options in case.options)
    return case


def _candidates(case: EngineCase, capabilities: Collection[str]) -> Iterator[EngineCase]:
    """Smaller cases; the most promising cases come first."""
    own = {"row-limits", "row-eos"} <= set(capabilities)  # else rows share their options
    alone = truth(case.checkpoint)
    for name in needs(case):
        if name == "dictated-drafts" and "only-dictated-drafts" in capabilities:
            continue
        yield without(case, (name,))
        if name.endswith("-penalty") and own:
            plain = zip(case.rows, without(case, (name,)).rows, strict=True)
            yield replace(case, rows=tuple(ending_like(row, other, alone) for row, other in plain))
    size = len(case.rows) // 2
    while size:
        for start in range(0, len(case.rows), size):
            yield replace(case, rows=case.rows[:start] + case.rows[start + size :])
        size //= 2
    if not own:
        for options in _simpler(case.options[0]):
            yield case.with_options([options] * len(case.rows))
    for number, row in enumerate(case.rows):
        smaller = [replace(row, prompt=prompt) for prompt in _shorter(row.prompt)]
        smaller += [replace(row, accepts=accepts) for accepts in _duller(row.accepts)]
        smaller += [ending_like(row, candidate, alone) for candidate in smaller if row.options.eos_token_ids and own]
        if own:
            smaller += [replace(row, options=options) for options in _simpler(row.options)]
        for candidate in smaller:
            yield replace(case, rows=put(case.rows, (number,), candidate))
    for k in sorted({1, case.num_draft_tokens // 2, case.num_draft_tokens - 1} - {0, case.num_draft_tokens}):
        if k < case.num_draft_tokens:
            yield replace(case, num_draft_tokens=k)


def _simpler(options: RowOptions) -> Iterator[RowOptions]:
    for name in _ROW:
        if getattr(options, name) != _PLAIN[name]:
            yield replace(options, **{name: _PLAIN[name]})
    if len(options.eos_token_ids) > 1:
        for token in options.eos_token_ids:
            yield replace(options, eos_token_ids=(token,))
    limit = options.max_new_tokens
    for shorter in sorted({limit // 2, limit - 1} - {0, limit}):
        yield replace(options, max_new_tokens=shorter, min_new_tokens=min(shorter, options.min_new_tokens))


def _duller(accepts: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Fewer rounds in which something is accepted, and less."""
    for size in sorted({0, len(accepts) // 2, len(accepts) - 1} - {-1, len(accepts)}):
        yield accepts[:size]
    for number, count in enumerate(accepts):
        if count:
            yield put(accepts, (number,), 0)


def _shorter(prompt: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    for size in sorted({len(prompt) // 2, 1} - {0, len(prompt)}, reverse=True):
        yield prompt[size:]
        yield prompt[:-size]
