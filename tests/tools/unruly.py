"""Decoders that return or do anything, drawn by Hypothesis: whatever they do, eqcheck itself must not fail.

A decoder is drawn as a program: what it does before and during its calls of target and draft, and what it makes of the
right rows. `failures` runs one through a lane, or through a law of ``pytest --adapter``, and returns what eqcheck got
wrong; none, if all is well. ``python tests/tools/unruly.py 2000`` draws so many.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import eqcheck
from eqcheck.audit.loop import audit
from eqcheck.contract import registry
from eqcheck.contract.decoders import Decoder, RowOptions
from eqcheck.contract.errors import CaseError, UsageError
from eqcheck.core.case.engine import EngineCase, EngineRow
from eqcheck.core.case.sampling import SampledEngineCase
from eqcheck.core.explanation.text import render
from eqcheck.core.result.findings import Options
from eqcheck.engines.checkpoints.row_judge import Judge
from eqcheck.engines.engine_outcome import abduced, explain, judged
from eqcheck.report.build import write
from eqcheck.report.terminal import summary
from eqcheck.sampling.judge import judged as judged_sampled

LANES = ("transparent", "sampling", "engine", "engine-sampling", "pytest")


class Sly(BaseException):
    """An exception that is no ``Exception``."""


class Mute(Exception):
    """An exception that raises when it is asked for its text."""

    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


class Hostile:
    """An object that raises whatever is asked of it."""

    def __init__(self, raised: type[BaseException]) -> None:
        self.raised = raised

    def _fail(self, *_: Any) -> Any:
        raise self.raised

    __len__ = __iter__ = __repr__ = __str__ = __bool__ = __index__ = __int__ = __float__ = __getitem__ = _fail
    __hash__ = __eq__ = __ne__ = __lt__ = __format__ = __array__ = _fail


class HostileList(list[Any]):
    """A list that raises when it is looked at."""

    def __init__(self, raised: type[BaseException]) -> None:
        super().__init__([1, 2])
        self.raised = raised

    def _fail(self, *_: Any) -> Any:
        raise self.raised

    __len__ = __iter__ = __repr__ = __getitem__ = __eq__ = _fail


RAISED: tuple[type[BaseException], ...] = (
    *(ValueError, RuntimeError, KeyError, StopIteration, RecursionError, MemoryError, OSError, BrokenPipeError),
    *(AssertionError, NotImplementedError, ZeroDivisionError, EOFError, AttributeError, UnicodeError),
    *(SystemExit, GeneratorExit, asyncio.CancelledError, Sly, Mute),
    *(UsageError, CaseError, eqcheck.Unsupported, eqcheck.Violation),
)
raised = st.sampled_from(RAISED)
NUMBERS = st.one_of(
    st.integers(-3, 130),
    st.integers(-(2**70), 2**70),
    st.sampled_from([10**400, -(10**30), 2**31, 2**63, 2**64]),
    st.booleans(),
    st.floats(),
    st.complex_numbers(max_magnitude=9),
    st.sampled_from(
        [np.int64(5), np.uint8(9), np.float32(3), np.bool_(True), np.array(7), np.datetime64("2026-01-01")]
    ),
)
TENSORS = st.sampled_from(
    [
        *(torch.tensor(4), torch.tensor([1, 2]), torch.tensor([[1, 2], [3, 4]]), torch.tensor(float("nan"))),
        *(torch.empty(0), torch.empty(2, device="meta"), torch.empty((), device="meta", dtype=torch.long)),
        *(torch.tensor([True]), torch.zeros(1, dtype=torch.bfloat16)),
        *(np.array([3, 4]), np.array([[1], [2]]), np.array([1, None], dtype=object), np.array([]), np.array(["7"])),
    ]
)
LEAVES = st.one_of(
    NUMBERS,
    TENSORS,
    st.none(),
    st.text(max_size=4),
    st.binary(max_size=4),
    st.builds(Hostile, raised),
    st.builds(HostileList, raised),
    st.sampled_from([object(), int, eqcheck, ..., range(3), range(10**9), frozenset({1})]),
    st.builds(lambda n: (token for token in range(n)), st.integers(0, 3)),
    st.builds(lambda n: iter([n]), st.integers(0, 3)),
)
ANYTHING = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.integers(0, 3), inner, max_size=2),
        st.builds(
            lambda tokens, **fields: eqcheck.Completion(tokens, **fields),
            inner,
            finish_reason=inner,
            stop=inner,
            logprobs=inner,
            prompt_logprobs=inner,
            usage=inner,
        ),
    ),
    max_leaves=8,
)
Rows = list[list[int]]
Change = Callable[[Rows], Any]


@st.composite
def changes(draw: st.DrawFn) -> Change:
    """What is made of the right rows."""
    kind = draw(st.sampled_from(("as it is", "anything", "row", "token", "tokens", "rows", "empty", "cut", "type")))
    place, other, more = draw(st.integers(0, 9)), draw(ANYTHING), draw(st.integers(0, 4))
    token = draw(st.integers(0, 127))

    def change(rows: Rows) -> Any:
        row = rows[place % len(rows)] if rows else []
        match kind:
            case "anything":
                return other
            case "row":
                rows[place % len(rows)] = other
            case "token":
                row[place % len(row)] = other
            case "tokens":
                row[place % len(row)] = token
            case "rows":
                return rows[:more] if place % 2 else rows * more
            case "empty":
                return [[] if place % 2 or number == more else own for number, own in enumerate(rows)]
            case "cut":
                rows[place % len(rows)] = row[:more] if place % 2 else row + [token] * more
            case "type":
                made = (tuple, np.array, torch.tensor, iter, bytearray, str, set)[place % 7]
                return [made(own) if number <= more else own for number, own in enumerate(rows)]
        return rows

    return change


@dataclass
class Deed:
    """What a decoder does at its n-th call of a model, or before all."""

    kind: str
    at: int
    which: str
    value: Any

    def at_call(self, model: Any, output: Any) -> None:
        """Do it to a model that was called, and to its answer."""
        cache = getattr(output, "past_key_values", None)
        layers = getattr(cache, "layers", None) or []
        match self.kind:
            case "raise":
                raise self.value
            case "keys" | "values" if layers:
                held = getattr(layers[0 if self.at % 2 else -1], self.kind, None)
                if isinstance(held, torch.Tensor) and held.numel():
                    held.fill_(self.value) if self.at % 3 else held.view(-1)[-1:].fill_(self.value)
            case "logits":
                output.logits.fill_(self.value)
            case "weights":
                for weight in [*model.parameters(), *model.buffers()]:
                    weight.data.fill_(self.value if weight.is_floating_point() else 1)
            case "config":
                setattr(model.config, *self.value)
            case "layers" if layers:
                layers.clear() if self.at % 2 else layers.append(layers[0])

    def at_first(self, request: Any) -> None:
        """Do it to the request, or to the process."""
        match self.kind:
            case "request":
                name, value = self.value
                setattr(request, name, value)
            case "prompts":
                request.prompts[0].append(self.value) if self.at % 2 else request.prompts.append(self.value)
            case "thread":
                threading.Thread(target=time.sleep, args=(0.2,), daemon=bool(self.at % 2)).start()
            case "process":
                np.seterr(all="raise")
                torch.set_default_dtype((torch.float16, torch.float32, torch.bfloat16)[self.at % 3])
                torch.set_grad_enabled(True)
                warnings.simplefilter("error")
                random.seed(0)


FILLS = st.sampled_from([float("nan"), float("inf"), -1.0, 1e300, 0.5, 3.0, -0.0, 2.0**53])
REQUEST = st.tuples(st.sampled_from(["prompts", "rows", "max_new_tokens", "eos_token_ids", "new"]), ANYTHING)
CONFIG = st.tuples(st.sampled_from(["vocab_size", "num_hidden_layers", "family", "is_encoder_decoder"]), LEAVES)
AT = st.integers(1, 9)
WHICH = st.sampled_from(["target", "draft"])
DEEDS = st.one_of(
    st.builds(Deed, st.just("raise"), AT, WHICH, raised.map(lambda kind: kind("drawn"))),
    st.builds(Deed, st.sampled_from(["keys", "values", "logits", "weights"]), AT, WHICH, FILLS),
    st.builds(Deed, st.just("config"), AT, WHICH, CONFIG),
    st.builds(Deed, st.just("layers"), AT, WHICH, st.none()),
    st.builds(Deed, st.just("request"), AT, WHICH, REQUEST),
    st.builds(Deed, st.just("prompts"), AT, WHICH, ANYTHING),
    st.builds(Deed, st.sampled_from(["thread", "process"]), AT, WHICH, st.none()),
)


@dataclass
class Unruly:
    """A decoder: its deeds, what it makes of the rows of a right one, and in which cases (one in so many)."""

    deeds: list[Deed]
    change: Change
    one_in: int
    right: str
    cases: int = 0

    def __call__(self, target: Any, draft: Any, request: Any) -> Any:
        self.cases += 1
        if self.cases % self.one_in:
            return registry.load(self.right)(target, draft, request)
        for deed in self.deeds:
            deed.at_first(request)
        calls = {"target": 0, "draft": 0}
        handles = [
            model.register_forward_hook(self._hook(name, calls))
            for name, model in (("target", target), ("draft", draft))
        ]
        try:
            return self.change([list(row) for row in registry.load(self.right)(target, draft, request)])
        finally:
            for handle in handles:
                handle.remove()

    def _hook(self, name: str, calls: dict[str, int]) -> Callable[..., None]:
        def called(model: Any, given: Any, output: Any) -> None:
            calls[name] += 1
            for deed in self.deeds:
                if deed.which == name and deed.at == calls[name]:
                    deed.at_call(model, output)

        return called


PROGRAMS = st.builds(
    Unruly,
    st.lists(DEEDS, max_size=2),
    changes(),
    st.sampled_from([1, 1, 1, 2, 3]),
    st.sampled_from(["eqspec", "exspec", "ragged"]),
)
JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-3, 140), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=4)
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=8,
)
_COUNTED = ("drafted", "accepted", "preemptions", "prefix_hits", "late_rows", "accepted_of_rows", "rounds", "contexts")
_TOLD = ("finish_reason", "stop", "logprobs", "prompt_logprobs", "usage", "beside", "alone")


@st.composite
def answers(draw: st.DrawFn) -> dict[str, Any]:
    """A message of a served decoder: right rows, with something else in them or beside them."""
    rows = st.lists(st.lists(st.integers(0, 255), max_size=6), min_size=3, max_size=3)
    answer: dict[str, Any] = {"outputs": draw(st.one_of(rows, rows, JSON))}
    if draw(st.booleans()):
        names = st.sampled_from([*_COUNTED, "wrong_context"])
        answer["observed"] = draw(st.one_of(st.dictionaries(names, JSON, max_size=3), st.just({})))
    if draw(st.booleans()):
        told = st.one_of(st.none(), st.dictionaries(st.sampled_from(_TOLD), JSON, max_size=3))
        answer["told"] = draw(st.lists(told, min_size=3, max_size=3))
    return answer


@contextmanager
def _as_before() -> Iterator[None]:
    """Undo what a decoder does to the process."""
    dtype, state, errors = torch.get_default_dtype(), random.getstate(), np.geterr()
    with warnings.catch_warnings(), torch.no_grad():
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)
            random.setstate(state)
            np.seterr(**errors)


def failures(lane: str, program: Any) -> list[str]:
    """What eqcheck itself got wrong about a decoder, or about an answer; empty if all is well."""
    with _as_before(), mock.patch("eqcheck.transparent.sequences.MINIMISE_S", 0.3):
        if lane in ("transparent", "sampling"):
            return _in_audit(program, ("temperature",) if lane == "sampling" else ())
        if lane == "pytest":
            return _in_laws(program)
        return _in_answer(program, lane)


def _in_audit(program: Unruly, capabilities: tuple[str, ...]) -> list[str]:
    if capabilities:
        program = replace(program, right="exspec")
    decoder = eqcheck.decoder(name="unruly", capabilities=capabilities)(lambda *given: program(*given))
    result = audit(decoder, Options(cases=4 if capabilities else 2, case_timeout=20.0))
    with TemporaryDirectory() as folder:
        report = write(result, Path(folder))
        summary([report], [folder])
        missing = [name for name in ("report.json", "report.md", "report.html") if not (Path(folder) / name).is_file()]
    return [error.text for error in result.internal] + [f"{name} is missing" for name in missing]


def _in_laws(program: Unruly) -> list[str]:
    Examination = import_module("eqcheck.conformance.examination").Examination  # noqa: N806
    every = import_module("eqcheck.conformance.test_laws").LAWS
    decoder: Decoder = eqcheck.decoder(name="unruly")(lambda *given: program(*given))
    laws = {name: every[name] for name in ("test_padding", "test_every_query_saw_its_row", "test_determinism")}
    with mock.patch("eqcheck.conformance.examination.MINIMISE_S", 0.3):
        examination = Examination(decoder, laws, 1)
        with mock.patch("eqcheck.conformance.examination.forkable", return_value=False):
            found = [examination.of(name) for name in laws]
    return [error.text for one in found for error in one.internal]


_JUDGE = Judge("float32")
_PROMPTS = ((5, 7), (9,), (3, 3, 8))


def _in_answer(answer: dict[str, Any], lane: str) -> list[str]:
    """Judge an answer as it crosses a pipe, and explain and render what is wrong with it."""
    try:
        answer = json.loads(json.dumps(answer))
    except ValueError:  # a lone surrogate: it does not cross
        return []
    sampled = lane == "engine-sampling"
    asked = RowOptions(4, (), temperature=1.0) if sampled else RowOptions(4, logprobs=True)
    rows = tuple(EngineRow(prompt, asked if number else RowOptions(4)) for number, prompt in enumerate(_PROMPTS))
    if sampled:
        outcome = judged_sampled(_JUDGE, "float32", SampledEngineCase(rows, checkpoint="full"), answer)
    else:
        outcome = judged(_JUDGE, EngineCase(rows, checkpoint="full"), answer)
        if outcome.failed:
            outcome = replace(outcome, explanation=explain(outcome, abduced(outcome)))
    if outcome.explanation is not None:
        render(outcome.explanation)
    return []


def programs(lane: str) -> st.SearchStrategy[Any]:
    """What is drawn for a lane: a decoder, or the answer of one."""
    return answers() if lane.startswith("engine") else PROGRAMS


def draw(lane: str, count: int) -> None:
    """Draw so many decoders; an error of eqcheck is an `AssertionError`, shrunk by Hypothesis."""

    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )
    @given(programs(lane))
    def run(program: Any) -> None:
        assert not failures(lane, program)

    run()


if __name__ == "__main__":
    total = int(sys.argv[1])
    for each in sys.argv[2:] or LANES:
        start, number = time.monotonic(), total // len(LANES)
        draw(each, number)
        print(f"{each}: {number} draws, no internal error, {time.monotonic() - start:.0f} s", flush=True)
