"""The score of attribution from outside: the catalogue's faults on a real model, explained from their tokens alone."""

from __future__ import annotations

import argparse
import json
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from tabulate import tabulate

from eqcheck.catalogue import BUILDS, FAULTS, Fault
from eqcheck.catalogue.faults import DEVELOPED
from eqcheck.contract.decoders import Decoder, RowOptions
from eqcheck.contract.family import LLAMA
from eqcheck.core.case.engine import VOCAB_SIZE, EngineCase, EngineRow
from eqcheck.engines.abduction import Evidence, abduce
from eqcheck.engines.checkpoints.folders import checkpoint
from eqcheck.engines.checkpoints.row_judge import truth
from eqcheck.selfcheck.faults import in_processes

MOST_CASES = 40  # a fault not caught by then is missed
JUDGED = 2  # wrong cases of each fault that are explained
SOUND_CASES = 12
_SEED = 1
_SECONDS = 20.0  # a decoder that takes longer for a case hangs


@dataclass(frozen=True)
class Said:
    """What was said of one wrong case, empty when nothing was; ``open``: another component explains as much."""

    said: str
    open: bool = False
    rivals: tuple[str, ...] = ()
    explained: int = 0
    surprising: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class FaultScore:
    """What became of one fault; ``cases_to_catch`` is None when no case showed it."""

    id: str
    component: str
    kind: str
    held_back: bool
    cases_to_catch: int | None
    judged: tuple[Said, ...]
    unseen: bool = False  # no fault of its mechanism was developed on

    def verdict(self, said: Said) -> str:
        """``kind`` or ``component`` for what is right; ``open`` where the right component is among rivals; else."""
        if not said.said:
            return "none"
        if said.open:
            return "open" if self.component in {n.partition("/")[0] for n in (said.said, *said.rivals)} else "wrong"
        if said.said == f"{self.component}/{self.kind}":
            return "kind"
        return "component" if said.said.partition("/")[0] == self.component else "wrong"

    @property
    def result(self) -> str:
        """That of the first wrong case with an explanation; of those that are all open, ``open``."""
        verdicts = [self.verdict(said) for said in self.judged]
        return next((v for v in verdicts if v not in ("none", "open")), "open" if "open" in verdicts else "none")


@dataclass(frozen=True)
class GoodScore:
    """A decoder that is right: how many cases were called wrong, and how many right outputs were explained."""

    name: str
    cases: int
    violations: int
    explained: int


def faults() -> list[Fault]:
    """Those of the catalogue that show on a Llama in float64."""
    return [
        fault
        for fault in FAULTS
        if LLAMA in fault.families
        and not fault.hashlm_only
        and fault.cache_states == ("empty",)
        and fault.component != "draft"
    ]


@dataclass(frozen=True)
class Served:
    """The checkpoint that decoders are given, by its name, empty for the random one, and the dtype it computes in."""

    name: str = ""
    dtype: str = "float64"

    def models(self) -> tuple[Any, Any]:
        """Target and draft."""
        torch.set_num_threads(1)
        return checkpoint(self.name).models(getattr(torch, self.dtype))

    def evidence(self, case: EngineCase, outputs: list[list[int]]) -> Evidence:
        """The evidence of outputs: by the functions, or by the models in float64."""
        pair = checkpoint(self.name)
        target, draft = (one.function for one in pair.built) if pair.built else pair.models()
        return Evidence(target, draft, case, outputs)


@cache
def drawn(number: int, least: int, name: str) -> tuple[EngineCase, list[list[int]]]:
    """A case with at least so many rows, and what is right; the draws differ by the number alone."""
    draw = random.Random(_SEED * 10_000 + number)
    alone = truth(name)
    limit = draw.choice((16, 24, 32, 40))
    prompts = [
        tuple(0 if draw.random() < 0.1 else draw.randrange(VOCAB_SIZE) for _ in range(draw.randint(1, 12)))
        for _ in range(draw.randint(least, max(least, 4)))
    ]
    rows = [EngineRow(prompt, RowOptions(limit)) for prompt in prompts]
    right = [alone.row(row) for row in rows]
    if draw.random() < 0.4:
        eos = (draw.choice(right)[draw.randrange(2, limit)], draw.choice(draw.choice((prompts, right))[0]))
        rows = [replace(row, options=replace(row.options, eos_token_ids=tuple(dict.fromkeys(eos)))) for row in rows]
        right = [_cut(row, eos) for row in right]
    return EngineCase(tuple(rows), num_draft_tokens=draw.randint(1, 5), checkpoint=name), right


def _cut(row: list[int], eos: tuple[int, ...]) -> list[int]:
    return row[: next((n for n, token in enumerate(row, 1) if token in eos), len(row))]


def check_fault(fault: Fault, served: Served) -> FaultScore:
    """Run a fault until so many wrong cases are explained."""
    caught, judged = None, []
    for number in range(MOST_CASES):
        case, right = drawn(number, max(2, fault.rows), served.name)
        outputs = _decoded(fault.decoder(), case, served)
        if outputs == right:
            continue
        caught = caught or number + 1
        start = time.perf_counter()
        if isinstance(outputs, str):
            judged.append(Said(outputs))
        else:
            found = abduce(served.evidence(case, outputs))
            said = (
                Said("")
                if found is None
                else Said(
                    f"{found.component}/{found.kind}",
                    found.open,
                    found.search.rivals,
                    found.search.explained,
                    found.search.surprising,
                )
            )
            judged.append(replace(said, seconds=round(time.perf_counter() - start, 3)))
        if len(judged) == JUDGED:
            break
    return FaultScore(
        fault.id, fault.component, fault.kind, fault.held_back, caught, tuple(judged), fault.mechanism not in DEVELOPED
    )


def check_good(name: str, served: Served) -> GoodScore:
    """Run a right decoder, and ask for an explanation of what it returned."""
    violations = explained = 0
    for number in range(SOUND_CASES):
        case, right = drawn(number, 2, served.name)
        outputs = _decoded(BUILDS[name].decoder(name), case, served)
        violations += outputs != right
        explained += not isinstance(outputs, str) and abduce(served.evidence(case, outputs)) is not None
    return GoodScore(name, SOUND_CASES, violations, explained)


def _decoded(decoder: Decoder, case: EngineCase, served: Served) -> list[list[int]] | str:
    """The outputs, or the kind of crash."""
    request = replace(case.request(), padding_side=decoder.padding_sides[0])
    try:
        with decoder.running() as generate, _within(_SECONDS), torch.no_grad():
            outputs = generate(*served.models(), request)
    except TimeoutError:
        return "crash/hang"
    except Exception:  # whatever a broken decoder raises
        return "crash/exception"
    if not isinstance(outputs, list) or len(outputs) != len(case.rows):
        return "crash/invalid-output"
    rows = [[int(token) for token in row] for row in outputs]
    if any(not 0 <= token < VOCAB_SIZE for row in rows for token in row):
        return "crash/invalid-output"
    return rows


@contextmanager
def _within(seconds: float) -> Iterator[None]:
    def stop(*args: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)  # and again: what is raised in a destructor is lost
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def totals(scores: list[FaultScore]) -> dict[str, Any]:
    """Counts of faults by their result, and of all judged cases by theirs."""
    by_case = [score.verdict(said) for score in scores for said in score.judged]
    results = [score.result for score in scores]
    names = ("kind", "component", "open", "none", "wrong")
    seconds = sorted(said.seconds for score in scores for said in score.judged)
    return {
        "faults": len(scores),
        "caught": sum(score.cases_to_catch is not None for score in scores),
        "by_fault": {name: results.count(name) for name in names},
        "by_case": {name: by_case.count(name) for name in names},
        "median_seconds": seconds[len(seconds) // 2] if seconds else 0.0,
        "most_seconds": seconds[-1] if seconds else 0.0,
    }


def main() -> None:
    """Print the score."""
    parser = argparse.ArgumentParser(prog="python -m score", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument(
        "--only", choices=("developed", "held-back"), help="faults that attribution was developed on, or others"
    )
    parser.add_argument("--checkpoint", default="", help="a built checkpoint instead of the random one")
    parser.add_argument("--dtype", default="float64", help="in which decoders compute")
    given = parser.parse_args()
    served = Served(given.checkpoint, given.dtype)
    chosen = [fault for fault in faults() if given.only is None or fault.held_back == (given.only == "held-back")]
    work: list[Callable[[], FaultScore | GoodScore]] = [partial(check_fault, fault, served) for fault in chosen]
    work += [partial(check_good, name, served) for name, build in BUILDS.items() if LLAMA in build.families]
    done = list(in_processes(work, given.jobs))
    scores = [one for one in done if isinstance(one, FaultScore)]
    good = [one for one in done if isinstance(one, GoodScore)]
    summary = {
        "never_developed_on": totals([score for score in scores if score.unseen]),
        "developed": totals([score for score in scores if not score.held_back]),
        "held_back": totals([score for score in scores if score.held_back]),
    }
    if given.json:
        print(
            json.dumps(
                {"faults": [asdict(one) for one in scores], "known_good": [asdict(one) for one in good], **summary}
            )
        )
        return
    table = [
        (
            one.id,
            f"{one.component}/{one.kind}",
            one.cases_to_catch,
            next((s.said for s in one.judged if s.said), ""),
            one.result,
            " ".join(one.verdict(said) for said in one.judged),
        )
        for one in scores
    ]
    print(tabulate(table, headers=("fault", "declared", "caught after", "said", "result", "cases")))
    print(
        tabulate([asdict(one).values() for one in good], headers=("right decoder", "cases", "violations", "explained"))
    )
    for name, counts in summary.items():
        print(f"{name}: {counts}")


if __name__ == "__main__":
    main()
