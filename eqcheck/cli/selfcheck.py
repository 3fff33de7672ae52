"""``eqcheck selfcheck``: is the checker itself right?"""

from __future__ import annotations

import argparse
import json
import os
from typing import TYPE_CHECKING

from eqcheck.cli.arguments import positive
from eqcheck.cli.common import EPILOG, broken
from eqcheck.contract.errors import EQUIVALENT

if TYPE_CHECKING:
    from eqcheck.cli.common import Commands


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    check = commands.add_parser("selfcheck", help="run the planted faults and the known-good decoders", epilog=EPILOG)
    check.add_argument("--cases", type=positive, default=100, metavar="N", help="cases per known-good decoder (100)")
    check.add_argument("--jobs", type=positive, default=os.cpu_count() or 1, metavar="N", help="processes (all cores)")
    check.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    check.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from eqcheck.report.terminal import progress, selfcheck_table
    from eqcheck.selfcheck.faults import selfcheck

    with progress(quiet=options.json) as listen:
        check = selfcheck(options.jobs, options.cases, listen)
    print(json.dumps(check.to_dict()) if options.json else selfcheck_table(check))
    return broken(check.failures) if check.failures else EQUIVALENT
