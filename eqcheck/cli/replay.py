"""``eqcheck replay``: decode a stored case again."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from eqcheck.cli.common import examples, import_models
from eqcheck.contract.errors import EQUIVALENT, UsageError

if TYPE_CHECKING:
    from eqcheck.cli.common import Commands


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    replay = commands.add_parser(
        "replay",
        help="decode a stored case again: FAILS, FIXED, DECLINED or ERROR",
        description="Decode one stored case again, and say FAILS, FIXED, DECLINED or ERROR.",
        epilog=examples(
            "eqcheck replay reports/bsp/cases/position-query-position.json -v",
            "eqcheck replay CASE --adapter mine.py",
            "eqcheck replay CASE --as-test > test_case.py",
            codes=True,
        ),
    )
    replay.add_argument("case", type=Path, metavar="CASE", help="a case file from a report's cases/ folder")
    replay.add_argument("--adapter", metavar="SPEC", help="decoder to use instead of the one named in the case")
    replay.add_argument("--isolate", action="store_true", help="decode in a worker process")
    replay.add_argument("--python", metavar="PATH", help="Python of the engine's environment")
    replay.add_argument("--target", default="", metavar="MODEL", help="the case's model, if it is your class or folder")
    replay.add_argument("-v", "--verbose", action="store_true", help="print every model call first")
    replay.add_argument("--as-test", action="store_true", help="print the case as a pytest test; decodes nothing")
    replay.add_argument("--html", type=Path, metavar="FILE", help="write every model call as an HTML page")
    replay.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    calls, target = options.verbose, options.target
    if options.as_test:
        from eqcheck.cli.pasting import as_test

        if calls or options.html or options.isolate or options.python:
            raise UsageError(
                "--as-test prints a test and decodes nothing: leave out -v, --html, --isolate and --python"
            )
        print(as_test(options.case, options.adapter), end="")
        return EQUIVALENT
    if options.case.is_file():  # a file that is not there is told at once
        import_models()
    from eqcheck.cli.replaying import replay

    return replay(options.case, options.adapter, options.isolate, options.python, calls, options.html, target)
