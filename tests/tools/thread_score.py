"""What an audit says of the faults of `thread_faults`: ``python -m thread_score [--only ID] [--jobs N]``.

Each fault, in each of two builds, is audited as an engine is: in a process of its own, by its tokens and by what it
returns beside them. A line says in how many cases it showed, and what was said of it.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from option_right import CLAIMS
from thread_faults import BUILDS, FAULTS, Fault, broken

import eqcheck
from eqcheck.audit.loop import audit
from eqcheck.contract import registry
from eqcheck.contract.decoders import Request
from eqcheck.core.result.findings import Audit, Options
from eqcheck.selfcheck.faults import in_processes

KINDS = ("full", "window")
CASES, FEW = 300, 60  # few are enough for most
NAMED = ("bookkeeping", "options", "cache", "position", "mask", "state", "draft")


def decoder(build: type[Any], name: str) -> eqcheck.Decoder:
    """An engine as a decoder that loads checkpoints."""

    class Engine(build):  # type: ignore[misc]
        def __call__(self, target: str, draft: str, request: Request) -> Any:
            self.serve(Path(target).parent.name)
            return super().__call__(target, draft, request)

    claims: dict[str, Any] = {"checkpoints": True, "dtype": "float32", "kinds": KINDS, "capabilities": CLAIMS}
    return eqcheck.decoder(name=name, **claims)(Engine)


def named(build: str, fault: str = "") -> str:
    """The name of a build, with a fault or right."""
    return "_".join(filter(None, (build, fault))).replace("-", "_")


for _name, _build in BUILDS.items():
    globals()[named(_name)] = decoder(_build, named(_name))
    for _fault in FAULTS:
        globals()[named(_name, _fault.id)] = decoder(broken(_fault, _build), named(_name, _fault.id))


@dataclass(frozen=True)
class Score:
    """In how many cases a fault showed, and the causes that were named; ``result`` is right, other, none or missed."""

    fault: str
    build: str
    failing: int
    cases: int
    said: tuple[str, ...]
    result: str


def checked(fault: Fault | None, build: str) -> Score:
    """The score of a fault in a build, or of the right build."""
    torch.set_num_threads(1)
    engine = registry.load(f"{__file__}:{named(build, fault.id if fault else '')}")
    for cases in (FEW, CASES) if fault else (CASES,):
        result = audit(engine, Options(cases=cases, seed=4, python=sys.executable), lambda event: None)
        lost = any("draft tokens were lost" in str(warning) for warning in result.warnings)
        if result.violations or lost:
            break
    said = tuple(finding.fingerprint for finding in result.violations)
    if lost:
        said += ("draft/lost",)
    failing = result.tally.statuses["violation"]
    return Score(fault.id if fault else "", build, failing, result.tally.run, said, verdict(fault, said, result))


def verdict(fault: Fault | None, said: tuple[str, ...], result: Audit) -> str:
    """Whether the component of a fault was named, by any of the causes; all of them are printed."""
    components = {one.partition("/")[0] for one in said} & set(NAMED)
    if fault is None:
        return "false" if said else "right"
    if not said:
        return "missed"
    return "right" if fault.component in components else "other" if components else "none"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m thread_score", description=__doc__)
    parser.add_argument("--only", default="", help="faults whose id begins so; right builds are left out")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    asked = parser.parse_args()
    chosen = [fault for fault in FAULTS if fault.id.startswith(asked.only)]
    work: list[Callable[[], Score]] = [partial(checked, fault, build) for fault in chosen for build in BUILDS]
    work += [] if asked.only else [partial(checked, None, build) for build in BUILDS]
    totals = Counter[str]()
    for score in in_processes(work, asked.jobs):
        shown = f"{score.failing} of {score.cases}"
        print(
            f"{score.fault or 'right':34} {score.build:8} {shown:10} {score.result:7} {' '.join(score.said)}",
            flush=True,
        )
        totals[score.result if score.fault else f"right builds {score.result}"] += 1
    print(dict(totals))
    return int(bool(totals["missed"] or totals["right builds false"]))


if __name__ == "__main__":
    sys.exit(main())
