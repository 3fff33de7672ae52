"""Make a failing engine case small: engine options back to their defaults first, then rows, then what they ask.

The failure needs each option that then is not at its default; `needs` names them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

from eqcheck.case.engine import EngineCase
from eqcheck.case.reduction import put, reduced
from eqcheck.case.sampling import SampledEngineCase
from eqcheck.checkpoints.judge import truth
from eqcheck.contract.decoders import CAPABILITIES, RowOptions
from eqcheck.contract.grammars import simpler, stuck
from eqcheck.contract.options import SCORING
from eqcheck.lanes.checkpoint.stops import ending_like

MANY = 16  # rows that a failure needs, beyond which it is a matter of their number
_DRAFTING = {"ngram": "ngram", "dictated-drafts": "dictated"}
_ENGINE = ("token_budget", "kv_blocks", "prefix_caching")
SWITCH = "switch "
_PLAIN: dict[str, Any] = {field.name: field.default for field in fields(RowOptions)}
_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "seed")
_ROW = (*_SAMPLING, "arrival", *SCORING, "eos_token_ids", "stop_sequences", "logprobs", "prompt_logprobs",
        "cancel_after", "n")  # fmt: skip
_ENDS = ("eos_token_ids", "stop_sequences")


def minimise(
    case: EngineCase, fails: Callable[[EngineCase], bool], seconds: float, capabilities: Collection[str] = CAPABILITIES
) -> EngineCase:
    """The smallest case found that ``fails``, in so many seconds, and that a decoder of these capabilities takes."""

    def smaller(case: EngineCase) -> Iterator[EngineCase]:
        tried = candidates(case, capabilities)
        return (one for one in tried if not any(stuck(own.grammar, own.eos_token_ids) for own in one.options))

    return reduced(case, True, smaller, lambda tried, _: fails(tried) or None, time.monotonic() + seconds)[0]


def needs(case: EngineCase) -> tuple[str, ...]:
    """The options of a case that are not at their defaults, by name: those of the engine, then those of rows."""
    names = [name for name, drafting in _DRAFTING.items() if case.drafting == drafting]
    names += [name for name in _ENGINE if getattr(case, name) is not None]
    names += [f"{SWITCH}{case.switch}"] if case.switch else []
    names += [name for name in _ROW if any(getattr(options, name) != _PLAIN[name] for options in case.options)]
    names += ["many-rows"] if len(case.rows) >= MANY else []
    return tuple({"seed": "seeds"}.get(name, name.replace("_", "-")) for name in names)


def without(case: EngineCase, names: tuple[str, ...]) -> EngineCase:
    """The case with the named options at their defaults; sampled rows stay sampled."""
    for name in names:
        field = {"seeds": "seed"}.get(name, name.replace("-", "_"))
        if name.startswith(SWITCH):
            case = replace(case, switch=None)
        elif name == "many-rows":
            case = case.of(range(min(len(case.rows), MANY - 1)))
        elif name in _DRAFTING:
            case = replace(case, drafting="model", rows=tuple(replace(row, accepts=()) for row in case.rows))
        elif field in _ENGINE:
            case = replace(case, **{field: None})  # type: ignore[arg-type]
        else:
            case = case.with_options(_plain(options, field) for options in case.options)
    return case


def _plain(options: RowOptions, name: str) -> RowOptions:
    return _with(options, name, 1.0 if name == "temperature" and options.temperature else _PLAIN[name])


def _with(options: RowOptions, name: str, value: Any) -> RowOptions:
    return replace(options, **{name: value})


def candidates(case: EngineCase, capabilities: Collection[str] = CAPABILITIES) -> Iterator[EngineCase]:
    """Smaller cases; the most promising cases come first.

    To see whether a sampled case shows a wrong law takes many draws, so there are fewer: rows change together.
    """
    sampled = case.sampled if isinstance(case, SampledEngineCase) else []
    own = not sampled and {"row-limits", "row-eos"} <= set(capabilities)  # else rows share their options
    if len(case.rows) > 1:
        yield from (case.of([number]) for number in sampled)
        if sampled and len(case.rows) > 2:
            yield case.of([0, len(case.rows) - 1])  # they are twins
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
        yield from map(case.with_options, _simpler(case.options))
    if sampled and case.drafting == "model":
        for size in (1, 3):
            yield replace(case, rows=tuple(replace(row, prompt=row.prompt[:size]) for row in case.rows))
    for number, row in enumerate(() if sampled else case.rows):
        smaller = [replace(row, prompt=prompt) for prompt in _shorter(row.prompt)]
        smaller += [replace(row, accepts=accepts) for accepts in _duller(row.accepts)]
        ends = any(getattr(row.options, name) for name in _ENDS)
        smaller += [ending_like(row, candidate, alone) for candidate in smaller if ends and own]
        if own:
            smaller += [replace(row, options=options) for (options,) in _simpler([row.options])]
        for candidate in smaller:
            yield replace(case, rows=put(case.rows, (number,), candidate))
    for k in sorted({1, case.num_draft_tokens // 2, case.num_draft_tokens - 1} - {0, case.num_draft_tokens}):
        if k < case.num_draft_tokens:
            yield replace(case, num_draft_tokens=k)


def _simpler(rows: Sequence[RowOptions]) -> Iterator[list[RowOptions]]:
    """The options of rows made simpler, of all these rows at once."""
    for name in _ROW:
        if (plain := [_plain(options, name) for options in rows]) != list(rows):
            yield plain
    for name in (*_ENDS, "bad_words", "logit_bias"):
        if len(given := getattr(rows[0], name)) > 1:
            yield from ([_with(options, name, (one,)) for options in rows] for one in given)
    for grammar in simpler(rows[0].grammar):
        yield [_with(options, "grammar", grammar) for options in rows]
    limit = max(options.max_new_tokens for options in rows)
    drawn = any(options.temperature for options in rows)
    for most in sorted({limit // 2, limit // 2 if drawn else limit - 1} - {0, limit}):
        shorter = [(options, min(most, options.max_new_tokens)) for options in rows]
        yield [replace(o, max_new_tokens=n, min_new_tokens=min(n, o.min_new_tokens)) for o, n in shorter]


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
