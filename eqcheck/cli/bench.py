"""``eqcheck bench``: time the decoders on a small real pair, where the repository's `benchmarks/` is."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eqcheck.cli.common import Commands


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    bench = commands.add_parser("bench", help="time the decoders on a small real pair, and verify what they emit")
    bench.add_argument(
        "--adapter", action="append", metavar="SPEC", help="as for audit; without it every shipped decoder"
    )
    bench.add_argument(
        "--quick", action="store_true", help="four minutes instead of an hour: two batch sizes, once each"
    )
    bench.add_argument(
        "--law", action="store_true", help="instead: where the speed comes from, and what formulas predict (law.md)"
    )
    bench.add_argument(
        "--drafts", type=Path, metavar="DIR", help="with --law: drafts of several sizes (benchmarks.sizes)"
    )
    bench.add_argument("--out", type=Path, metavar="DIR", help="(reports/bench, with --quick reports/bench-quick)")
    bench.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    bench.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from eqcheck.contract import repository

    repository.find("eqcheck bench")
    from benchmarks import command

    return command.measure(options)
