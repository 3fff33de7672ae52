"""``eqcheck replay``: run a stored case again."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from eqcheck.cli.common import EPILOG

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
    replay.add_argument("--target", default="", metavar="CLASS", help="the model class of a case, if that is your code")
    replay.add_argument("-v", "--verbose", action="store_true", help="print every call of the models first")
    replay.add_argument("--html", type=Path, metavar="FILE", help="write every call of the models as a page")
    replay.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from eqcheck.replay import replay

    calls, target = options.verbose, options.target
    return replay(options.case, options.adapter, options.isolate, options.python, calls, options.html, target)
