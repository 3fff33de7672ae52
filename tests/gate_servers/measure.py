"""How good the gate is: ``PYTHONPATH=.:tests python -m gate_servers.measure [--right N] [--requests N] [--only NAME]``.

Each planted fault is served, and gated against a plain server of the same weights; so are right servers of several
dtypes, batch limits, orders and delays. Everything goes through the command and over HTTP, as its users have it. The
exit code is 1 if a fault is missed, a right server accused, or a fault named falsely.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch

from eqcheck.cli import main as eqcheck
from gate_servers.engine import FAULTS, Engine
from gate_servers.server import served, weights

KINDS = {  # names that are true of each fault
    "accepts-once-too-often": {"over-accept"},
    "position-not-rolled-back": {"query-position"},
    "rejected-draft-kept": {"stale-entry"},
    "pads-seen": {"pad-visible"},
    "rows-exchanged": {"wrong-row", "row-swap"},
    "last-token-lost": {"lost-token", "premature-stop"},
    "limit-passed": {"over-length"},
    "stop-passed-over": {"past-eos", "ignored-option"},
    "wrong-law": {"stray-law", "bonus-law", "correction-law", "residual"},
    "greedy-beside-sampled": {"greedy-drawn"},
}
UNNAMED = "unattributed"
SAMPLED = ("wrong-law", "greedy-beside-sampled")
MOST_TOKENS = 10_000


class Build(NamedTuple):
    """How a pair of servers is built."""

    dtype: str = "bfloat16"
    plain_rows: int = 16
    rows: int = 16
    last_first: bool = False
    delay: float = 0.0
    failing: float = 0.0


class Answer(NamedTuple):
    """The exit code of a gate, its JSON object (empty where there is none), its last words, and its seconds."""

    code: int
    result: dict[str, Any]
    said: str
    seconds: float

    @property
    def kinds(self) -> set[str]:
        """The kinds of its violations."""
        return {violation["kind"] for violation in self.result.get("violations", ())}


def gate(build: Build, *options: str, fault: str = "") -> Answer:
    """Serve the trained pair twice, plain and speculating, and gate the two."""
    target, draft = weights(build.dtype)
    right = Engine(target, max_rows=build.plain_rows)
    tried = Engine(target, draft, fault=fault, max_rows=build.rows, last_first=build.last_first, delay=build.delay)
    out, errors, began = io.StringIO(), io.StringIO(), time.monotonic()
    with ExitStack() as stack:
        plain = stack.enter_context(served(right))
        speculative = stack.enter_context(served(tried, failing=build.failing))
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(errors))
        code = eqcheck(["gate", "--speculative", speculative, "--plain", plain, "--json", *options])
    said = (errors.getvalue().strip().splitlines() or [""])[-1]
    return Answer(code, json.loads(out.getvalue() or "{}"), said, time.monotonic() - began)


def builds() -> Iterator[Build]:
    """Right builds in turn, without end."""
    dtypes = itertools.cycle(("bfloat16", "float16", "int8"))
    for number, rows in enumerate(itertools.cycle((16, 5, 3, 8, 16))):
        late = number % 4 == 3
        yield Build(next(dtypes), (16, 4)[number % 2], rows, number % 3 == 1, 0.004 * late, 0.1 * (number % 5 == 4))


def _faults(asked: argparse.Namespace) -> tuple[int, int, int]:
    """How many faults are caught, named and named falsely, each told in a line."""
    caught = named = false = 0
    for fault in [name for name in FAULTS if asked.only in ("", name)]:
        sampled = ("--temperature", "0.8") if fault in SAMPLED else ()
        answer = gate(Build(), *asked.options, *sampled, fault=fault)
        tokens = answer.result.get("tokens", 0)
        shown = answer.code == 1 and tokens <= MOST_TOKENS
        kinds = answer.kinds - {UNNAMED}
        wrong = kinds - KINDS[fault]
        caught, named, false = caught + shown, named + bool(shown and kinds and not wrong), false + bool(wrong)
        print(
            f"{fault:26} {'caught' if shown else 'MISSED':6} after {tokens:6} tokens, {answer.seconds:4.0f} s: "
            f"{', '.join(sorted(answer.kinds)) or answer.said}",
            flush=True,
        )
    return caught, named, false


def _right(asked: argparse.Namespace) -> tuple[int, int]:
    """How many right gates gave an alarm, and how many did not decide, each of these told in a line."""
    alarms = undecided = 0
    for number, build in enumerate(itertools.islice(builds(), asked.right)):
        sampled = ("--temperature", "0.8") if number % 3 == 2 else ()
        answer = gate(build, *asked.options, *sampled, "--seed", str(number))
        alarms, undecided = alarms + (answer.code == 1), undecided + (answer.code not in (0, 1))
        if answer.code or asked.every:
            evidence = answer.result.get("evidence")
            told = f"{answer.result.get('tokens', 0)} tokens, {answer.seconds:.0f} s, evidence {evidence}"
            print(f"right {number}: exit {answer.code} {build} {told}: {answer.said}", flush=True)
    return alarms, undecided


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the gate on small servers.")
    parser.add_argument("--right", type=int, default=12, help="gates of right servers")
    parser.add_argument("--only", default="", help="one fault; 'none' for none")
    parser.add_argument("--every", action="store_true", help="a line for each right gate")
    parser.add_argument("options", nargs="*", help="behind --: options of eqcheck gate")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    caught, named, false = _faults(asked)
    alarms, undecided = _right(asked)
    tried = sum(asked.only in ("", name) for name in FAULTS)
    print(f"{caught}/{tried} faults caught, {named}/{tried} named, {false} named falsely")
    print(f"{alarms} false alarms in {asked.right} right gates, {undecided} undecided")
    return int(caught < tried or false > 0 or alarms > 0)


if __name__ == "__main__":
    sys.exit(main())
