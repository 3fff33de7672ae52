"""The power of a profile: the share of planted faults that its cases catch.

``python -m profile_power`` takes the faults of the catalogue, ``... served`` those of the engines in `served`. Such an
engine serves the first checkpoint that shows its fault, and caches prefixes by default if its build can.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import torch
from served import builds
from served.catalogue import fresh, held, unseen
from served.fault import Fault
from served.faults import FAULTS as SEEN
from served.score import decoded

from eqcheck import __version__
from eqcheck.audit.lanes import lanes_of
from eqcheck.catalogue import FAULTS
from eqcheck.contract.profiles import profile
from eqcheck.core.result.findings import Options
from eqcheck.selfcheck.faults import in_processes
from eqcheck.transparent.decoding import run
from eqcheck.transparent.oracle import judge


def caught_at(number: int, name: str = "ci", most: int | None = None) -> int | None:
    """The number of cases until the fault ``FAULTS[number]`` is seen; None where the profile has no such case."""
    torch.set_num_threads(1)
    decoder, drawn = FAULTS[number].decoder(), profile(name, __version__)
    lane = next(lane for lane in lanes_of(decoder, Options(seed=drawn.seed, profile=drawn)))
    draw = drawn.draw(lane.result.lane)
    assert draw is not None
    with decoder.running() as generate:
        for count, case in enumerate(islice(lane.cases(), most or draw.cases), 1):
            if judge(run(generate, case, timeout=20.0)).status == "violation":
                return count
    return None


def served_caught_at(identifier: str, name: str = "ci", most: int | None = None) -> int | None:
    """The number of cases until a planted fault of an engine is seen; a process is sent its id."""
    fault = next(one for one in served() if one.id == identifier)
    engine, build = fault.broken()(), getattr(builds, fault.build)
    decoder, drawn = replace(build, kinds=fault.kinds[:1]), profile(name, __version__)
    lane = next(lane for lane in lanes_of(decoder, Options(seed=drawn.seed, profile=drawn)))
    draw = drawn.draw(lane.result.lane)
    assert draw is not None
    engine.open()
    for count, case in enumerate(islice(lane.cases(), most or draw.cases), 1):
        if decoded(engine, case).failed:
            return count
    return None


def served() -> tuple[Fault, ...]:
    """All planted faults of engines."""
    return (*SEEN, *fresh(), *unseen(), *held())


def main() -> None:
    """Print the cases until each fault is caught, the share, and the faults that are missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", default="ci")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--most", type=int, help="cases of the profile, the first ones; all where it is left out")
    parser.add_argument("faults", nargs="?", choices=("catalogue", "served"), default="catalogue")
    options = parser.parse_args()
    engines = options.faults == "served"
    faults: Sequence[Any] = served() if engines else FAULTS
    work: list[Callable[[], int | None]] = [
        partial(served_caught_at, fault.id, options.profile, options.most)
        if engines
        else partial(caught_at, number, options.profile, options.most)
        for number, fault in enumerate(faults)
    ]
    found = list[int | None]()
    for fault, count in zip(faults, in_processes(work, options.jobs), strict=True):
        print(f"{fault.id}: {'missed' if count is None else count}", flush=True)
        found.append(count)
    missed = [fault.id for fault, count in zip(faults, found, strict=True) if count is None]
    print(f"{profile(options.profile, __version__).name} catches {len(faults) - len(missed)} of {len(faults)} faults")
    print(f"half of these within {sorted(count for count in found if count)[len(found) // 2]} cases")
    print(f"missed: {', '.join(missed) or 'none'}")


if __name__ == "__main__":
    main()
