"""Print the score: ``python -m served [--fresh | --unseen | --held | --seen] [--only ID] [--jobs N]``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

from tabulate import tabulate

from eqcheck.selfcheck.faults import in_processes
from served.catalogue import check, fresh, held, unseen
from served.fault import Fault
from served.faults import FAULTS
from served.score import BuildScore, FaultScore, check_build, right_builds, totals


def main() -> None:
    """Print what was said of each fault, those that were held out first."""
    parser = argparse.ArgumentParser(prog="python -m served", description=__doc__)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--fresh", action="store_true", help="only faults of mechanisms that no other file has")
    which.add_argument("--unseen", action="store_true", help="only faults of mechanisms that were planted last")
    which.add_argument("--held", action="store_true", help="only faults of mechanisms that were held out at first")
    which.add_argument("--seen", action="store_true", help="only faults that attribution was developed on at first")
    parser.add_argument("--only", default="", help="faults whose id begins so; right builds are left out")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    given = parser.parse_args()
    groups = {"fresh": fresh(), "unseen": unseen(), "held": held(), "seen": FAULTS}
    asked = [name for name in groups if vars(given)[name]] or list(groups)
    for name, faults in groups.items():
        chosen = [fault for fault in faults if name in asked and fault.id.startswith(given.only)]
        if chosen:
            show(name, chosen, given.jobs)
    if not given.only:
        work: list[Callable[[], BuildScore]] = [partial(check_build, *pair) for pair in right_builds()]
        show_builds(list(in_processes(work, given.jobs)))


def show(name: str, faults: list[Fault], jobs: int) -> None:
    """Print the score of some faults, a line each as it comes."""
    scores: list[FaultScore] = []
    for fault, score in zip(faults, in_processes([partial(check, fault.id) for fault in faults], jobs), strict=True):
        said = " ".join(f"{one.fingerprint}{'?' * one.open}" or "-" for one in score.said)
        together = f"; together {score.together.fingerprint or '-'}" if score.together else ""
        wrong = f"{score.wrong} of {score.decoded}"
        print(
            f"{fault.id:32} {fault.fingerprint:28} {wrong:9} {score.result:7} {score.seconds:6} {said}{together}",
            flush=True,
        )
        scores.append(score)
    print(f"{name}: {totals(scores)}\n", flush=True)


def show_builds(scores: list[BuildScore]) -> None:
    """Print the score of the right builds."""
    table = [(score.build, score.decoded, score.wrong, score.seconds) for score in scores]
    print(tabulate(table, headers=("right build", "cases", "wrong", "seconds")))


if __name__ == "__main__":
    main()
