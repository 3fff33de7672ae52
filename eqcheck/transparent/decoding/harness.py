"""Run one case: build its target and draft, let the decoder decode it, keep everything that happened."""

from __future__ import annotations

import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, replace
from functools import lru_cache
from typing import Any, cast

import torch
from transformers import DynamicCache, GenerationConfig

from eqcheck.contract.cache_names import cache_argument
from eqcheck.contract.completion import split
from eqcheck.contract.decoders import Generate
from eqcheck.contract.errors import OutputError, Unsupported, one_line, printable
from eqcheck.contract.family import FAMILY
from eqcheck.core.case.record import Case
from eqcheck.core.explanation.records import Explanation, crash
from eqcheck.core.result.outcome import check_rows
from eqcheck.transparent.decoding.rounding import ties_of
from eqcheck.transparent.decoding.run import Run, Truth, continuations, script_of
from eqcheck.transparent.drafting import Contexts, ScriptedDraft, ScriptedHead
from eqcheck.transparent.hashlm.caches import preallocated
from eqcheck.transparent.hashlm.hashing import UNEVEN
from eqcheck.transparent.hashlm.model import HashConfig, HashLM
from eqcheck.transparent.hashlm.trace import Call, Fix, TooManyCalls, Trace, Uses
from eqcheck.transparent.real.tap import NotRead, TapFailed
from eqcheck.transparent.real.targets import watched
from eqcheck.transparent.truth.continuation import continue_rows


def truth_of(case: Case) -> Truth:
    """The truth of a case, from the definition of its target."""
    continued = continue_rows(case.family, case.vocab_size, case.seed, case.prompts, case.max_new_tokens)
    uncut = tuple(tokens for tokens, _ in continued)
    return Truth(
        rows=tuple(options.cut(row) for options, row in zip(case.options, uncut, strict=True)),
        uncut=uncut,
        digests=tuple(digests for _, digests in continued),
    )


@lru_cache(maxsize=16)
def _models(
    family: str, vocab_size: int, seed: int, draft_seed: int, extra_pad: bool, uneven: bool = False
) -> tuple[HashLM, ScriptedDraft]:
    config = HashConfig(vocab_size=vocab_size, seed=seed, family=family, extra_pad=extra_pad)
    target = cast(HashLM, HashLM(config).eval())
    draft = ScriptedDraft.of(target, weights=draft_seed)
    if uneven:
        config = HashConfig(vocab_size, seed, family, extra_pad=extra_pad, spread=astuple(UNEVEN))
        target = cast(HashLM, HashLM(config).eval())
    return target, draft


def models(case: Case, truth: Truth, trace: Trace | None = None) -> tuple[HashLM, ScriptedDraft]:
    """The case's target and scripted draft, recording into ``trace``.

    They are new each time: whatever a decoder does to them (hooks, attributes, configuration) ends with the case.
    """
    extra = case.known_ids > case.vocab_size
    family, _, seed, draft_seed = case.weights
    kept = _models(family, case.known_ids, seed, draft_seed, extra, case.uneven)
    target, draft = (model.fresh() for model in kept)
    draft = cast(ScriptedDraft, draft)
    script = script_of(case, truth)
    draft.script(script.wrong_after, agreement=script.agreement, lower=script.lower)
    digests = [digests[-1] for digests in truth.digests]
    draft.continuations = _told(trace, lambda: continuations(case, truth, draft.model.second_choices))
    draft.head = ScriptedHead(draft, Contexts(draft, case, truth.uncut, digests))
    for model in (target, draft):
        model.trace = trace
        model.model.poison = POISON.get(case.cache_state)
        model.generation_config = GenerationConfig(
            pad_token_id=case.pad_token_id, eos_token_id=list(case.eos_token_ids) or None
        )
    return target, draft


def _told(trace: Trace | None, made: Callable[[], list[list[int]]]) -> Callable[[], list[list[int]]]:
    """The drafts of a case, for decoders that look them up; the trace notes that they were asked for."""

    def told() -> list[list[int]]:
        if trace is not None:
            trace.drafts_told = True
        return made()

    return told


POISON = {"pads-huge": float(2**30), "pads-nan": float("nan")}


def _handed(case: Case, model: Any) -> DynamicCache | None:
    """The cache that the decoder is given to start from, or None."""
    if case.cache_state == "preallocated":
        slots = max(map(len, case.prompts)) + (case.max_new_tokens + 1) * (case.num_draft_tokens + 1)
        return preallocated(slots, model.config.num_hidden_layers)
    if case.cache_state != "prefix":
        return None
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        beginning = torch.tensor([case.prompts[0][: case.prefix_length]])
        model(input_ids=beginning, use_cache=True, **cache_argument(model, cache))
    return cache


def run(
    generate: Generate,
    case: Case,
    timeout: float | None = None,
    repair: Callable[[Trace], Callable[[Call], Fix]] | None = None,
) -> Run:
    """Let a decoder decode a case, on one thread's models and under ``no_grad``; a ``repair`` may step in.

    The cases ``before`` in the case are decoded first, and their runs do not count.
    Whatever the decoder does wrong (raises, hangs, returns nonsense, changes the request) is in the result's
    ``failure``; why it declined is in ``declined``. This function itself raises only for faults of eqcheck and for
    ``KeyboardInterrupt``.
    """
    for earlier in case.before:
        run(generate, earlier, timeout)
    truth = truth_of(case)
    rows, new = len(case.prompts), case.max_new_tokens
    trace = Trace(max_calls=200 + 4 * rows * (new + 2) * (case.num_draft_tokens + 2))
    if FAMILY[case.family].target:
        return _on_real_target(generate, case, truth, trace, timeout, repair)
    target, draft = models(case, truth, trace)
    target.model.repair = repair(trace) if repair else None
    handed = _handed(case, target), _handed(case, draft)
    trace.given = trace.calls[-1].number if trace.calls else 0
    if case.cache_state == "preallocated":
        trace.handed = cast(Uses, cast(Any, handed[0]).layers[0].uses)
    return answered(generate, case, truth, trace, (target, draft), timeout, handed)


def _on_real_target(
    generate: Generate,
    case: Case,
    truth: Truth,
    trace: Trace,
    timeout: float | None,
    repair: Callable[[Trace], Callable[[Call], Fix]] | None,
) -> Run:
    """Decode like `run`, on real models that are read while they run and then restored."""
    generation = {"pad_token_id": case.pad_token_id, "eos_token_id": list(case.eos_token_ids) or None}
    known = tuple(zip(truth.uncut, truth.digests, strict=True))
    script, mends = script_of(case, truth), repair(trace) if repair else None
    with watched(FAMILY[case.family], case.seed, trace, known, script, generation, mends) as (target, draft):
        draft.continuations = _told(trace, lambda: continuations(case, truth))
        handed = _handed(case, target), _handed(case, draft)
        trace.given = trace.calls[-1].number if trace.calls else 0
        if case.cache_state == "preallocated":
            trace.handed = cast(Uses, cast(Any, handed[0]).layers[0].uses)
        try:
            done = answered(generate, case, truth, trace, (target, draft), timeout, handed)
        except NotRead as unread:
            return Run(case, truth, trace, None, declined=one_line(f"it cannot be read: {unread}"))
    return ties_of(done) if repair is None else done


def answered(
    generate: Generate,
    case: Any,
    truth: Truth,
    trace: Trace,
    models: tuple[Any, Any],
    timeout: float | None,
    handed: tuple[Any, Any] = (None, None),
) -> Run:
    """The run of a decoder on a case with these models, and with the caches that it is ``handed`` for them."""
    request, untouched, rows = case.request(), case.request(), len(case.prompts)
    for one in (request, untouched):
        one.target_cache, one.draft_cache = handed
    target, draft = models
    try:
        with torch.no_grad(), _alarm(timeout):
            outputs: Any = generate(target, draft, request)
    except (TooManyCalls, _TimeUp) as error:
        return Run(case, truth, trace, None, Explanation("crash", "hang", detail=str(error)))
    except Unsupported as error:
        return Run(case, truth, trace, None, declined=why(error))
    except (NotRead, TapFailed):
        raise
    except BaseException as error:  # the decoder's, whatever it is: the audit reports it and goes on
        if _of_the_user(error):
            raise
        failure = crash("exception", type(error).__name__, _message(error))
        text = printable("".join(traceback.format_exception(error)))
        return Run(case, truth, trace, None, failure, text)
    try:
        if request != untouched:
            changed = one_line(f"expected {untouched}, got {request}", 2000)
            return Run(case, truth, trace, None, crash("invalid-output", "mutated-request", changed))
        tokens, completions = split(outputs)
        returned = check_rows(tokens, rows, case.known_ids)
        if any(options.cancel_after for options in case.options):
            right = zip(case.options, truth.rows, map(len, returned), strict=True)
            truth = replace(truth, rows=tuple(options.until(row, count) for options, row, count in right))
        return Run(case, truth, trace, returned, completions=completions)
    except BaseException as error:  # OutputError, or anything that looking at the decoder's objects raises
        if _of_the_user(error):
            raise
        what = _what(outputs) if isinstance(error, OutputError) else type(outputs).__name__
        return Run(case, truth, trace, None, crash("invalid-output", what, _message(error)))


def _of_the_user(error: BaseException) -> bool:
    """Return whether an exception may be the user's Ctrl-C; worker processes ignore that, so there it is not."""
    return isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


def why(declined: Unsupported) -> str:
    """The reason a decoder gives, as one line."""
    return _message(declined) or "no reason given"


def _message(error: BaseException) -> str:
    """The first line of an exception's text, even where asking for it raises."""
    try:
        text = str(error)
    except BaseException:
        text = "<exception str() failed>"
    return one_line(next(iter(text.splitlines()), ""))


def _what(outputs: Any) -> str:
    parts = [outputs, *(outputs if isinstance(outputs, list | tuple) else [])]
    parts += [token for row in parts[1:] if isinstance(row, list | tuple) for token in row]
    return "tensor" if any(hasattr(part, "detach") for part in parts) else type(outputs).__name__


class _TimeUp(BaseException):
    """The decoder did not answer in time; not an ``Exception``, so that decoders do not swallow it."""


@contextmanager
def _alarm(seconds: float | None) -> Iterator[None]:
    """Raise `_TimeUp` in the running decoder after so many seconds, where the platform can."""
    usable = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
    if not seconds or not usable:
        yield
        return

    def ring(*_: object) -> None:
        raise _TimeUp(f"no answer within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
