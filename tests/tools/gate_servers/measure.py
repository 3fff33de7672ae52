"""How good the gate is: ``PYTHONPATH=.:tests/tools python -m gate_servers.measure [--right N] [--jobs N] [--seeds N]``.

Each planted fault is served, and gated against a plain server of the same weights; so are right servers of several
dtypes, batch limits, orders and delays, every third with sampled rows. Each gate has prompts and seeds of its own and
is a process of its own. Everything goes through the command and over HTTP, as its users have it. The exit code is 1 if
a fault is missed, a right server accused, or a fault named falsely. An interrupt ends it with the gates done so far.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import math
import multiprocessing
import resource
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch

from benchmarks import pair
from eqcheck.cli import main as eqcheck
from eqcheck.transparent.truth.rounding_evidence import CROSSES
from gate_servers.engine import FAULTS, Engine
from gate_servers.server import Text, served, weights

KINDS = {  # names that are true of each fault
    "accepts-once-too-often": {"wrong-correction", "over-accept"},  # the latter shows where the draft is known
    "lossy-acceptance": {"over-accept"},
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
    draft: bool = False  # is served, too
    model: str = ""  # the folder of a model in place of the trained pair


class Answer(NamedTuple):
    """The exit code of a gate, its JSON object (empty where there is none), its last words, and what it took."""

    code: int
    result: dict[str, Any]
    said: str
    seconds: float
    cpu: float = 0.0
    megabytes: int = 0

    @property
    def kinds(self) -> set[str]:
        """The kinds of its violations."""
        return {violation["kind"] for violation in self.result.get("violations", ())}

    @property
    def tokens(self) -> int:
        """The tokens of the speculative server."""
        return int(self.result.get("tokens", 0))

    @property
    def evidence(self) -> float:
        """Its logarithm to base 10. Ends that no right server gives count as the evidence that decides."""
        told = float(self.result.get("evidence", {}).get("log10", 0.0))
        return max(told, math.log10(CROSSES)) if self.code == 1 else told


class Case(NamedTuple):
    """A gate to be run: a right build if ``fault`` is empty."""

    build: Build
    seed: int
    options: tuple[str, ...] = ()
    fault: str = ""

    @property
    def name(self) -> str:
        """Its kind and its seed."""
        return f"{self.fault or 'right'} {self.seed}"


def gate(build: Build, *options: str, fault: str = "") -> Answer:
    """Serve the trained pair twice, plain and speculating, and gate the two."""
    target, draft = weights(build.dtype, build.model)
    words = Text(build.model) if build.model else pair
    right = Engine(target, max_rows=build.plain_rows)
    tried = Engine(target, draft, fault=fault, max_rows=build.rows, last_first=build.last_first, delay=build.delay)
    out, errors, began, used = io.StringIO(), io.StringIO(), time.monotonic(), time.process_time()
    with ExitStack() as stack:
        plain = stack.enter_context(served(right, words=words))
        speculative = stack.enter_context(served(tried, failing=build.failing, words=words))
        if build.draft:
            options += "--draft", stack.enter_context(served(Engine(draft, max_rows=build.plain_rows), words=words))
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(errors))
        code = eqcheck(["gate", "--speculative", speculative, "--plain", plain, "--json", *options])
    said = (errors.getvalue().strip().splitlines() or [""])[-1]
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    spent = time.monotonic() - began, time.process_time() - used
    return Answer(code, json.loads(out.getvalue() or "{}"), said, *spent, most)


def gated(case: Case) -> Answer:
    """The gate of a case."""
    torch.set_num_threads(1)
    return gate(case.build, *case.options, "--seed", str(case.seed), fault=case.fault)


def builds() -> Iterator[Build]:
    """Right builds in turn, without end."""
    dtypes = itertools.cycle(("bfloat16", "float16", "int8"))
    for number, rows in enumerate(itertools.cycle((16, 5, 3, 8, 16))):
        late = number % 4 == 3
        yield Build(next(dtypes), (16, 4)[number % 2], rows, number % 3 == 1, 0.004 * late, 0.1 * (number % 5 == 4))


def cases(asked: argparse.Namespace) -> list[Case]:
    """The right ones first, a third of each dtype's sampled, then each fault with its seeds."""
    options, sampled = tuple(asked.options), ("--temperature", "0.8")
    made = [
        Case(build._replace(model=asked.model), number, (*options, *(sampled if number // 3 % 3 == 2 else ())))
        for number, build in itertools.islice(enumerate(builds()), asked.first, asked.first + asked.right)
    ]
    return made + [
        Case(
            Build(draft=asked.draft, model=asked.model),
            seed,
            (*asked.options_of_faults.split(), *(sampled if fault in SAMPLED else ())),
            fault,
        )
        for fault in FAULTS
        if asked.only in ("", fault)
        for seed in range(asked.seeds)
    ]


def run(made: Sequence[Case], jobs: int) -> Iterator[tuple[Case, Answer]]:
    """Each case with its answer, as they end; an interrupt ends the others."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["gate_servers.server", "eqcheck.gate.gate_report", "transformers"])
    with ProcessPoolExecutor(jobs, context, max_tasks_per_child=1) as pool:
        futures = {pool.submit(gated, case): case for case in made}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one would lose the summary
            for process in pool._processes.values():
                process.terminate()
            pool.shutdown(wait=False, cancel_futures=True)


def told(case: Case, answer: Answer) -> str:
    """A line for people, and one of JSON."""
    sampled = ", sampled" if "--temperature" in case.options else ""
    verdict = answer.result.get("verdict", answer.said)
    line = (
        f"{case.name:28} {verdict:12} 1e{answer.evidence:.1f} {answer.tokens:6} tokens {answer.seconds:4.0f} s, "
        f"{answer.cpu:4.0f} s of CPU, {answer.megabytes} MB; {', '.join(sorted(answer.kinds))} "
        f"[{' '.join(f'{name}={value}' for name, value in case.build._asdict().items())}{sampled}]"
    )
    facts = {"fault": case.fault, "seed": case.seed, "build": case.build._asdict(), "options": case.options}
    facts |= {"exit": answer.code, "verdict": verdict, "log10": answer.evidence, "tokens": answer.tokens}
    facts |= {"kinds": sorted(answer.kinds), "seconds": round(answer.seconds, 1), "cpu": round(answer.cpu, 1)}
    return f"{line}\n{json.dumps(facts)}"


def auc(faulty: Sequence[float], right: Sequence[float]) -> float:
    """The share of pairs in which the faulty gate has more evidence; half for a tie.

    >>> auc([6.0, 1.0], [0.0, 1.0])
    0.875
    """
    pairs = [(one > other) + (one == other) / 2 for one in faulty for other in right]
    return sum(pairs) / len(pairs) if pairs else math.nan


def by_prompt(answers: Sequence[Answer]) -> dict[str, list[int]]:
    """For each kind of drawn prompt: how many greedy rows are beyond the noise, of how many."""
    counts: dict[str, list[int]] = {}
    for answer in answers:
        for violation in answer.result.get("violations", ()):
            if violation["first"]["gap"]:
                for kind, its in violation["conditions"].get("prompt", {}).items():
                    counts[kind] = [sum(pair) for pair in zip(counts.get(kind, (0, 0)), its, strict=True)]
    return counts


def summary(done: Sequence[tuple[Case, Answer]]) -> int:
    """Print the counts; 1 if one of them is not as it should be."""
    right = [(case, answer) for case, answer in done if not case.fault]
    faulty = [(case, answer) for case, answer in done if case.fault]
    caught = [(case, answer) for case, answer in faulty if answer.code == 1 and answer.tokens <= MOST_TOKENS]
    named = sum(bool(answer.kinds & KINDS[case.fault]) for case, answer in caught)
    false = [case.name for case, answer in faulty if answer.kinds - {UNNAMED} - KINDS[case.fault]]
    alarms = [case for case, answer in right if answer.code == 1]
    for case in alarms:
        print(f"FALSE ALARM: {case}")
    for fault in dict.fromkeys(case.fault for case, _ in faulty):
        its = [answer for case, answer in faulty if case.fault == fault]
        seen = sorted(answer.tokens for case, answer in caught if case.fault == fault)
        print(f"{fault:26} {len(seen)}/{len(its)} caught, after {', '.join(map(str, seen))} tokens")
    print(f"{len(caught)}/{len(faulty)} faulty gates caught, {named} named, {len(false)} named falsely: {false}")
    for kind, (wrong, rows) in sorted(by_prompt([answer for _, answer in faulty]).items()):
        print(f"prompts of the kind {kind:10} {wrong} of {rows} greedy rows wrong")
    undecided = sum(answer.code not in (0, 1) for _, answer in right)
    print(f"{len(alarms)} false alarms in {len(right)} right gates, {undecided} undecided")
    evidence = [[answer.evidence for _, answer in its] for its in (faulty, right)]
    print(f"AUC {auc(*evidence):.4f}; the greatest evidence of a right gate 1e{max(evidence[1], default=0):.1f}")
    return int(len(caught) < len(faulty) or bool(false) or bool(alarms))


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the gate on small servers.")
    parser.add_argument("--right", type=int, default=12, help="gates of right servers")
    parser.add_argument("--first", type=int, default=0, help="the number of the first of these: its build and its seed")
    parser.add_argument("--jobs", type=int, default=1, help="gates at once")
    parser.add_argument("--seeds", type=int, default=1, help="gates of each fault")
    parser.add_argument("--only", default="", help="one fault; 'none' for none")
    parser.add_argument("--draft", action="store_true", help="serve the draft as well, beside faulty servers")
    parser.add_argument("--model", metavar="FOLDER", default="", help="serve this model in place of the trained pair")
    parser.add_argument("--options-of-faults", default="", help="options of eqcheck gate for faulty servers")
    parser.add_argument("options", nargs="*", help="behind --: options of eqcheck gate for right servers")
    asked = parser.parse_args()
    done = []
    for case, answer in run(cases(asked), asked.jobs):
        print(told(case, answer), flush=True)
        done.append((case, answer))
    return summary(done)


if __name__ == "__main__":
    sys.exit(main())
