"""The sampled part of the self-check: how many tokens each planted fault of sampling takes until it is seen and named.

Every fault is audited in one build, each sampler that is right in another: the builds take turns. `table` puts what was
measured beside what was simulated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from tabulate import tabulate

from eqcheck.audit.loop import Campaign
from eqcheck.catalogue.samplers import RIGHT, SAMPLED_BUILDS, SAMPLED_FAULTS
from eqcheck.catalogue.samplers.sampler_engine import sampler
from eqcheck.contract.decoders import Decoder
from eqcheck.core.result.findings import Options
from eqcheck.sampling.judge import SampledOutcome
from eqcheck.sampling.lane import SampledLane
from eqcheck.sampling.transparent_target import TransparentTarget

CASES = 40  # of one audit, about 3,000 tokens; no time limit, or a slow machine would name less
TO_NAME = 140  # cases of a fault: it is seen much sooner, and then named
SLOW = {
    2,
    13,
    15,
    19,
    24,
    30,
    31,
    32,
    40,
    42,
    43,
    44,
    46,
    47,
    50,
    54,
}  # faults, by number, that need more tokens than that
NAMELESS = ("sampling/stray-law", "sampling/impossible-token")


@dataclass(frozen=True)
class SampledResult:
    """The result of an audit of one sampler.

    ``tokens`` were decoded until the first violation, or in all if there is none: ``named`` is empty then. ``expected``
    is the fingerprint of the planted fault, empty for a sampler that is right, and ``simulated`` the tokens it takes in
    its best ``regime``. ``required`` says whether a short audit has to see it.
    """

    id: str
    expected: str
    held_back: bool
    required: bool
    regime: str
    simulated: int | None
    tokens: int
    named: str
    seconds: float

    @property
    def failure(self) -> str:
        """The failure of the checker, in words; empty without one."""
        if not self.expected:
            return f"{self.id}: a right sampler is accused of {self.named}" if self.named else ""
        return f"{self.id}: not seen in {self.tokens} tokens" if self.required and not self.named else ""


def sampled_checks(slow: bool = False) -> list[Callable[[], SampledResult]]:
    """Every sampler once, in the build whose turn it is; faults that a short audit need not see where ``slow``."""
    faults = [number for number, fault in enumerate(SAMPLED_FAULTS) if slow or fault.number not in SLOW]
    checks = [partial(check_sampled_fault, number) for number in faults]
    return [*checks, *(partial(check_right_sampler, number) for number in range(len(RIGHT)))]


def check_sampled_fault(number: int, build: str = "", cases: int = TO_NAME) -> SampledResult:
    """Audit the fault ``SAMPLED_FAULTS[number]``, in the build whose turn it is or another."""
    fault = SAMPLED_FAULTS[number]
    result = check_sampler(fault.decoder(build or SAMPLED_BUILDS[number % len(SAMPLED_BUILDS)]), cases)
    return SampledResult(
        result.id,
        fault.fingerprint,
        fault.held_back,
        fault.number not in SLOW,
        fault.regime,
        fault.tokens,
        result.tokens,
        result.named,
        result.seconds,
    )


def check_right_sampler(number: int, build: str = "", cases: int = CASES) -> SampledResult:
    """Audit the right sampler with this number; one that is not lossless, and says so, is no violation."""
    name = list(RIGHT)[number]
    build = build or SAMPLED_BUILDS[number % len(SAMPLED_BUILDS)]
    return check_sampler(sampler(RIGHT[name], build, f"{name}.{build}"), cases)


def check_sampler(decoder: Decoder, cases: int) -> SampledResult:
    """Audit a sampler on so many cases, or until it is seen to be wrong."""
    torch.set_num_threads(1)
    start = time.perf_counter()
    lane = SampledLane(decoder, Options(seed=1, cases=cases), TransparentTarget)
    Campaign(lane, lambda event: None).run()
    found = [finding for finding in lane.result.findings if finding.standing == "violation"]
    found.sort(key=lambda finding: finding.explanation.component != "sampling")
    named = found[0].fingerprint.partition(":")[0] if found else ""
    seconds = round(time.perf_counter() - start, 2)
    return SampledResult(decoder.name, "", False, True, "", None, _tokens(lane), named, seconds)


def _tokens(lane: SampledLane) -> int:
    """The sampled tokens up to the first violation of a case, or of the evidence; all of them where there is none."""
    count, wealth = 0, lane.gathered.wealth
    for outcome in lane.result.outcomes:
        if outcome.outputs is not None:
            rows = zip(outcome.case.rows, outcome.outputs, strict=True)
            count += sum(len(row) for options, row in rows if options.temperature)
        if isinstance(outcome, SampledOutcome) and outcome.status == "violation":
            break
    return min(count, wealth.crossed or count)


def named_as_planted(results: Sequence[SampledResult], held_back: bool | None = None) -> tuple[int, int, int]:
    """Return how many of the faults that were seen are named as planted, how many by another kind, and how many were
    seen.

    A fault that is called ``stray-law`` or ``impossible-token`` has no name.
    """
    chosen = [one for one in results if one.expected and one.named and held_back in (None, one.held_back)]
    right = sum(one.named == one.expected for one in chosen)
    nameless = sum(one.named in NAMELESS and one.named != one.expected for one in chosen)
    return right, len(chosen) - right - nameless, len(chosen)


def table(results: Sequence[SampledResult]) -> str:
    """The results as text, one line each."""
    return tabulate(
        [
            (
                result.id,
                result.simulated or "",
                result.regime,
                result.tokens if result.named else f"> {result.tokens}",
                result.expected,
                "as planted" if result.named == result.expected else result.named or "not seen",
            )
            for result in results
        ],
        ("sampler", "simulated", "in regime", "tokens", "planted", "named"),
    )
