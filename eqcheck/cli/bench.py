"""``eqcheck bench``: time decoders on a small trained pair; needs the repository's `benchmarks/`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from eqcheck.cli.common import examples

if TYPE_CHECKING:
    from eqcheck.cli.common import Commands


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    bench = commands.add_parser(
        "bench",
        help="time decoders on a small trained pair, and verify their output",
        description="Time decoders on a small trained target and draft, and verify their output. Needs a clone of "
        "the repository.",
        epilog=examples("eqcheck bench --quick", "eqcheck bench --adapter bsp --quick"),
    )
    bench.add_argument(
        "--adapter", action="append", metavar="SPEC", help="decoder to time (default: every shipped one)"
    )
    bench.add_argument("--quick", action="store_true", help="two batch sizes, once each: 4 minutes instead of an hour")
    bench.add_argument("--law", action="store_true", help="measure where the speed comes from instead (law.md)")
    bench.add_argument("--drafts", type=Path, metavar="DIR", help="with --law: folder of drafts of several sizes")
    bench.add_argument("--out", type=Path, metavar="DIR", help="default reports/bench, or reports/bench-quick")
    bench.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    bench.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from eqcheck.contract import repository

    repository.find("eqcheck bench")
    from benchmarks import command

    return command.measure(options)
