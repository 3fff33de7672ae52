"""The power of a profile: the share of the catalogue's faults that its cases catch (``python -m profile_power``)."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from itertools import islice

import torch

from eqcheck import __version__
from eqcheck.catalogue import FAULTS
from eqcheck.contract.profiles import profile
from eqcheck.decoding.harness import run
from eqcheck.lanes.lane import lanes_of
from eqcheck.oracle.check import judge
from eqcheck.result.findings import Options
from eqcheck.selfcheck.faults import in_processes


def caught_at(number: int, name: str = "ci") -> int | None:
    """The number of cases until the fault ``FAULTS[number]`` is seen; None where the profile has no such case."""
    torch.set_num_threads(1)
    decoder, drawn = FAULTS[number].decoder(), profile(name, __version__)
    lane = next(lane for lane in lanes_of(decoder, Options(seed=drawn.seed, profile=drawn)))
    draw = drawn.draw(lane.result.lane)
    assert draw is not None
    with decoder.running() as generate:
        for count, case in enumerate(islice(lane.cases(), draw.cases), 1):
            if judge(run(generate, case, timeout=20.0)).status == "violation":
                return count
    return None


def main() -> None:
    """Print the share, and the faults that are missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", default="ci")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    work: list[Callable[[], int | None]] = [
        partial(caught_at, number, options.profile) for number in range(len(FAULTS))
    ]
    found = list(in_processes(work, options.jobs))
    missed = [fault.id for fault, count in zip(FAULTS, found, strict=True) if count is None]
    print(f"{profile(options.profile, __version__).name} catches {len(FAULTS) - len(missed)} of {len(FAULTS)} faults")
    print(f"half of these within {sorted(count for count in found if count)[len(found) // 2]} cases")
    print(f"missed: {', '.join(missed) or 'none'}")


if __name__ == "__main__":
    main()
