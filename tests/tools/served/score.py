"""How often planted faults are caught, and their component named, from tokens alone as an audit has them."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from eqcheck.contract.decoders import RowOptions
from eqcheck.core.case.engine import VOCAB_SIZE, EngineCase, EngineRow
from eqcheck.engines.abduction import abduce
from eqcheck.engines.checkpoints import dictation
from eqcheck.engines.checkpoints.folders import checkpoint
from eqcheck.engines.checkpoints.row_judge import Judge
from eqcheck.engines.drawing import alike
from eqcheck.engines.engine_outcome import EngineOutcome, common, evidence, judged, wrong_token
from served.builds import DTYPE, ENGINES, KINDS
from served.engine import Engine
from served.fault import Fault

MOST_CASES = 20  # a fault not caught by then is missed
JUDGED = 2  # wrong cases of each fault that are explained
ALIKE = 6  # cases like a wrong one of which nothing is said
_SOUND_CASES = 3  # of each checkpoint
_BEGINNING = 40


@dataclass(frozen=True)
class Said:
    """What was said of a wrong case, empty when nothing was; ``open`` where another component explains as much."""

    fingerprint: str = ""
    open: bool = False
    seconds: float = 0.0

    def verdict(self, fault: Fault) -> str:
        """``right`` or ``false`` by the component, ``open`` or ``none`` where no cause was named."""
        if not self.fingerprint or self.open:
            return "open" if self.open else "none"
        return "right" if self.fingerprint.partition("/")[0] == fault.component else "false"


@dataclass(frozen=True)
class FaultScore:
    """What became of a fault: how many cases were decoded and were wrong, and what was said of the first wrong ones.

    ``together`` is what was said of one by others like it, where nothing was said of one alone.
    """

    fault: str
    decoded: int
    wrong: int
    said: tuple[Said, ...]
    verdicts: tuple[str, ...]
    together: Said | None = None
    result: str = "none"
    seconds: float = 0.0


@dataclass(frozen=True)
class BuildScore:
    """A right build: how many cases it decoded, and how many of them were wrong."""

    build: str
    decoded: int
    wrong: int
    seconds: float


@cache
def drawn(number: int, kind: str, caching: bool) -> EngineCase:
    """A case for a checkpoint: more rows than an engine has slots, and rounds enough.

    Where prefixes are cached, most prompts begin alike.
    """
    rng = random.Random(f"served {number} {kind} {caching}")
    k = rng.choice((1, 2, 3, 3, 4, 5))

    def tokens(least: int, most: int) -> tuple[int, ...]:
        return tuple(rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(least, most)))

    beginning = tokens(_BEGINNING, _BEGINNING)
    prompts = [tokens(1, 36) for _ in range(rng.randint(3, 4))]
    if rng.random() < 0.5:
        prompts[rng.randrange(len(prompts))] = tokens(k + 1, k + 1)
    if caching:
        prompts = [
            (*beginning[: rng.randint(8, _BEGINNING)], *tokens(1, 8)) if rng.random() < 0.8 else prompt
            for prompt in prompts
        ]
    drafting = "model" if number % 5 == 4 else "dictated"
    rows = []
    for prompt in prompts:
        limit = rng.randint(10, 20)
        accepts = tuple(rng.randint(0, k) for _ in range(limit)) if drafting == "dictated" else ()
        rows.append(EngineRow(prompt, RowOptions(limit), accepts))
    name = checkpoint(kind).name
    return EngineCase(tuple(rows), k, drafting, prefix_caching=caching or None, checkpoint=name)


def decoded(engine: Engine, case: EngineCase) -> EngineOutcome:
    """The outcome of a case, as the lane of checkpoints has it."""
    pair = checkpoint(case.checkpoint, DTYPE)
    request = replace(case.request(), drafts=dictation.drafts(case), dtype=DTYPE, padding_side="right")
    answer: dict[str, Any] = {
        "outputs": engine(str(pair.target), str(pair.draft), request),
        "observed": engine.observed,
    }
    outcome = judged(Judge(DTYPE), case, answer)
    assert isinstance(outcome, EngineOutcome)
    return outcome


def explained(outcome: EngineOutcome) -> Said:
    """What abduction says of a case."""
    begun = time.perf_counter()
    cause = abduce(evidence(outcome))
    seconds = round(time.perf_counter() - begun, 2)
    return Said(seconds=seconds) if cause is None else Said(f"{cause.component}/{cause.kind}", cause.open, seconds)


def check_fault(fault: Fault) -> FaultScore:
    """Run a fault until so many wrong cases are explained."""
    begun = time.perf_counter()
    engine = fault.broken()()
    engine.open()
    wrong, number = list[EngineOutcome](), 0
    while number < MOST_CASES and len(wrong) < JUDGED:
        kind = fault.kinds[number % len(fault.kinds)]
        outcome = decoded(engine, drawn(number, kind, caching=fault.build == "paged"))
        if outcome.failed:
            wrong.append(outcome)
        number += 1
    said = tuple(map(explained, wrong))
    verdicts = tuple(one.verdict(fault) for one in said)
    result, together = next((one for one in verdicts if one in ("right", "false")), ""), None
    if not result and wrong:
        found = (_together(engine, outcome) for outcome in wrong if wrong_token(outcome))
        together = next((one for one in found if one.fingerprint), None)
        result = together.verdict(fault) if together else "open" if "open" in verdicts else "none"
    seconds = round(time.perf_counter() - begun, 1)
    return FaultScore(fault.id, number, len(wrong), said, verdicts, together, result or "missed", seconds)


def _together(engine: Engine, outcome: EngineOutcome) -> Said:
    """What an audit says of a case by others like it, which it decodes where one case alone says too little."""
    others = [decoded(engine, alike(outcome.case, number)) for number in range(ALIKE)]
    found = common([outcome, *(one for one in others if wrong_token(one))])
    return Said() if found is None else Said(f"{found.component}/{found.kind}", found.open)


def check_build(build: str, kind: str) -> BuildScore:
    """Run a right build."""
    begun = time.perf_counter()
    engine = ENGINES[build]()
    engine.open()
    outcomes = [decoded(engine, drawn(number, kind, build == "paged")) for number in range(2, 2 + _SOUND_CASES)]
    wrong = sum(one.failed for one in outcomes)
    return BuildScore(f"{build} {kind}", len(outcomes), wrong, round(time.perf_counter() - begun, 1))


def right_builds() -> list[tuple[str, str]]:
    """Each build with each checkpoint."""
    return [(build, kind) for build in ENGINES for kind in KINDS]


def totals(scores: Iterable[FaultScore]) -> str:
    """Counts in a line."""
    scores = list(scores)
    caught = sum(score.wrong > 0 for score in scores)
    results = [score.result for score in scores]
    counts = ", ".join(f"{name} {results.count(name)}" for name in ("right", "false", "open", "none", "missed"))
    cases = [verdict for score in scores for verdict in score.verdicts]
    by_case = ", ".join(f"{name} {cases.count(name)}" for name in ("right", "false", "open", "none"))
    return f"{len(scores)} faults, {caught} caught; component: {counts}; of {len(cases)} cases: {by_case}"
