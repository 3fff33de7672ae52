"""``eqcheck selfcheck``: test the checker itself with planted faults and correct decoders."""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from typing import TYPE_CHECKING

from eqcheck.cli.common import broken, examples, import_models, positive
from eqcheck.contract.errors import EQUIVALENT

if TYPE_CHECKING:
    from eqcheck.cli.common import Commands
    from eqcheck.selfcheck.faults import SelfCheck

SEED = "EQCHECK_CATALOGUE_SEED"


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    check = commands.add_parser(
        "selfcheck",
        help="test the checker itself with planted faults and correct decoders",
        description="Test the checker itself: every planted fault must be caught and named, and no correct decoder "
        "may be accused.",
        epilog=examples("eqcheck selfcheck --jobs 4", "eqcheck selfcheck --seed 0 --json", codes=True),
    )
    check.add_argument(
        "--cases", type=positive, default=100, metavar="N", help="cases per correct decoder (default 100)"
    )
    check.add_argument(
        "--jobs", type=positive, default=os.cpu_count() or 1, metavar="N", help="processes (default: all cores)"
    )
    check.add_argument(
        "--seed", type=int, metavar="N", help="seed of the faults' amounts (default: random; 0: fixed amounts)"
    )
    check.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    check.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    seed = random.randrange(1, 2**32) if options.seed is None else options.seed
    os.environ[SEED] = str(seed or "")  # for the processes as well; the catalogue reads it when it is imported
    import_models()
    try:
        from eqcheck.report.progress import progress
        from eqcheck.selfcheck.faults import selfcheck

        with progress(quiet=options.json) as listen:
            check = selfcheck(options.jobs, options.cases, listen)
    finally:
        del os.environ[SEED]
    print(json.dumps(check.to_dict()) if options.json else _table(check))
    return broken(check.failures) if check.failures else EQUIVALENT


def _rare_table(check: SelfCheck) -> list[str]:
    from tabulate import tabulate

    rows = [
        [one.id, one.when, "-" if one.cases is None else one.cases, "held back" if one.held_back else ""]
        for one in sorted(check.rare, key=lambda one: one.cases or sys.maxsize)
    ]
    headers = ["right but under one rare conjunction", "that is", "cases to catch", ""]
    return [tabulate(rows, headers=headers, colalign=("left", "left", "right", "left")), ""] if rows else []


def _table(check: SelfCheck) -> str:
    """Format the results: per fault when it was caught and how it was named; the correct decoders; the scores."""
    from tabulate import tabulate

    from eqcheck.selfcheck.memory import table as memory_table

    rows = []
    for fault in check.faults:
        caught = [fault.cases_to_catch, f"{fault.seconds:.2f}"] if fault.seconds is not None else ["-", "-"]
        share = f"{fault.kind_right}/{fault.judged}" if fault.judged else "-"
        attributed = "yes" if fault.attributed else f"no: {fault.named or 'not caught'}"
        held = "held back" if fault.held_back else ""
        rows.append([fault.id, f"{fault.component}/{fault.kind}", *caught, attributed, share, held])
    headers = ["fault", "declared", "cases", "seconds", "as declared", "of all", ""]
    right = ("left", "left", "right", "right", "left", "right", "left")
    good = [[one.name, one.cases, one.violations, one.first or "-"] for one in check.known_good]
    median, longest = check.seconds()
    lines = [
        _unseen(check),
        *([f"amounts in faults are drawn with --seed {check.seed}"] if check.seed else []),
        "",
        tabulate(rows, headers=headers, disable_numparse=True, colalign=right),
        "",
        tabulate(good, headers=["known good", "cases", "violations", ""]),
        "",
        *_rare_table(check),
        f"{sum(f.caught for f in check.faults)} of {len(check.faults)} faults caught; first catch after "
        f"{median:.2f} s in the median, {longest:.1f} s at most, on one core",
        f"left out as yet: {', '.join(check.left_out)}",
    ]
    for what, chosen in (
        ("all faults", {}),
        ("developed on", {"held_back": False}),
        ("held back, other builds of a mechanism that was developed on", {"held_back": True, "unseen": False}),
    ):
        lines.append(f"named as declared, {what}: {_shares(check, **chosen)}")
    lines += ["", memory_table(check.memory)] if check.memory else []
    return "\n".join([*lines, *_sampled_table(check)])


def _unseen(check: SelfCheck) -> str:
    """The score of the mechanisms that were never developed on."""
    faults = [fault for fault in check.faults if fault.unseen]
    caught, mechanisms = sum(fault.caught for fault in faults), len({fault.mechanism for fault in faults})
    return (
        f"{mechanisms} mechanisms never developed on: {caught} of {len(faults)} faults caught; "
        f"named as declared: {_shares(check, unseen=True)}"
    )


def _shares(check: SelfCheck, **chosen: bool) -> str:
    from eqcheck.report.content import percent

    component, kind = (check.share(f"{part}_right", **chosen) for part in ("component", "kind"))
    return f"component {percent(component)}, kind {percent(kind)}"


def _sampled_table(check: SelfCheck) -> list[str]:
    """The faults of sampling: after how many tokens each was seen, and what it was named."""
    if not check.sampled:
        return []
    from eqcheck.selfcheck.samplers import named_as_planted
    from eqcheck.selfcheck.samplers import table as sampled_table

    lines = ["", sampled_table(check.sampled), ""]
    for what, held_back in (("all faults", None), ("developed on", False), ("held back", True)):
        right, wrong, seen = named_as_planted(check.sampled, held_back)
        lines.append(f"sampling, {what}: {seen} seen, {right} named as planted, {wrong} by another kind")
    return lines
