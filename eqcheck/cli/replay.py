"""``eqcheck replay``: run a stored case again."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from eqcheck.cli.common import EPILOG, import_models
from eqcheck.contract.errors import EQUIVALENT, UsageError

if TYPE_CHECKING:
    from eqcheck.cli.common import Commands


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    replay = commands.add_parser(
        "replay", help="run a stored case again: FAILS, FIXED, DECLINED or ERROR", epilog=EPILOG
    )
    replay.add_argument("case", type=Path, metavar="CASE")
    replay.add_argument("--adapter", metavar="SPEC", help="the decoder; needed where the file names no installed one")
    replay.add_argument(
        "--isolate", action="store_true", help="in a worker process, as cases of isolated audits always"
    )
    replay.add_argument("--python", metavar="PATH", help="for a case of an engine: the Python to run it with")
    replay.add_argument(
        "--target", default="", metavar="MODEL", help="the model of a case, if that is a class or folder of yours"
    )
    replay.add_argument("-v", "--verbose", action="store_true", help="print every call of the models first")
    replay.add_argument("--as-test", action="store_true", help="print the case as a test to paste; nothing is decoded")
    replay.add_argument("--html", type=Path, metavar="FILE", help="write every call of the models as a page")
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
