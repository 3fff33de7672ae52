"""The power of a profile: how many planted faults its cases show.

PYTHONPATH=tests/tools python -m power ci --jobs 2
"""

from __future__ import annotations

import argparse
from functools import partial

import torch

from eqcheck import __version__
from eqcheck.audit.lanes import lanes_of
from eqcheck.audit.loop import Campaign
from eqcheck.catalogue import FAULTS
from eqcheck.catalogue.samplers import SAMPLED_BUILDS, SAMPLED_FAULTS
from eqcheck.contract.profiles import Profile, profile
from eqcheck.core.result.findings import Options
from eqcheck.selfcheck.faults import in_processes
from eqcheck.transparent.decoding import run
from eqcheck.transparent.oracle import judge
from eqcheck.transparent.search import CHUNK, Source


def greedy(asked: Profile, number: int) -> tuple[str, int | None]:
    """A planted fault of greedy rows, and after how many cases it was seen; None: in none of them."""
    torch.set_num_threads(1)
    fault, draw = FAULTS[number], asked.draw("transparent")
    assert draw is not None
    decoder = fault.decoder()
    source = Source(asked.seed, fault.families, decoder.padding_sides, fault.cache_states, bounds=draw.bounds)
    with decoder.running() as generate:
        for count in range(draw.cases):
            case = source.chunk(count // CHUNK, count % CHUNK + 1)[count % CHUNK]
            if judge(run(generate, case, timeout=20.0)).explanation:
                return fault.id, count + 1
    return fault.id, None


def sampled(asked: Profile, number: int) -> tuple[str, int | None]:
    """A planted fault of sampled rows, and the tokens after which it was seen; None: in none."""
    torch.set_num_threads(1)
    decoder = SAMPLED_FAULTS[number].decoder(SAMPLED_BUILDS[number % len(SAMPLED_BUILDS)])
    lane = lanes_of(decoder, Options(seed=asked.seed, profile=asked))[1]
    Campaign(lane, lambda event: None).run()
    wealth, seen = lane.result.wealth, any(one.standing == "violation" for one in lane.result.findings)
    return decoder.name, (wealth.tokens if wealth else 0) if seen else None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("profile")
    parser.add_argument("--jobs", type=int, default=1)
    words = parser.parse_args()
    asked = profile(words.profile, __version__)
    print(asked.line, flush=True)
    draft = {fault.id for fault in FAULTS if fault.component == "draft"}  # warnings, which no verdict has
    for what, check, count in (("greedy", greedy, len(FAULTS)), ("sampled", sampled, len(SAMPLED_FAULTS))):
        found = list(in_processes([partial(check, asked, number) for number in range(count)], words.jobs))
        found = [one for one in found if one[0] not in draft]
        missed = [name for name, seen in found if seen is None]
        caught = len(found) - len(missed)
        share = f"{caught} of {len(found)} planted faults caught ({caught / len(found):.1%})"
        print(f"{what}: {share}; missed: {missed}", flush=True)


if __name__ == "__main__":
    main()
