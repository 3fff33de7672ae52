"""``eqcheck bench``: time the decoders on a small real pair."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from eqcheck.cli.common import say, stdout_to_stderr, writable
from eqcheck.errors import EQUIVALENT, INCONCLUSIVE, NOTHING, UsageError

if TYPE_CHECKING:
    from eqcheck.bench.run import Results
    from eqcheck.cli.common import Commands
    from eqcheck.contract import Decoder


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
        "--drafts", type=Path, metavar="DIR", help="with --law: drafts of several sizes (eqcheck.bench.sizes)"
    )
    bench.add_argument("--out", type=Path, metavar="DIR", help="(reports/bench, with --quick reports/bench-quick)")
    bench.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    bench.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from eqcheck import pair, registry
    from eqcheck.bench import report
    from eqcheck.bench.run import FULL, QUICK, bench

    pair.check()
    decoders = [registry.load(spec) for spec in options.adapter or registry.self_contained()]
    out = options.out or Path("reports/bench-quick" if options.quick else "reports/bench")
    writable(out, "")
    if options.drafts and not options.law:
        raise UsageError("--drafts: expected with --law, which measures them")
    if options.law:
        return _law(options, decoders, out)
    quiet = stdout_to_stderr() if options.json else contextlib.nullcontext()
    with quiet:
        found = bench(decoders, QUICK if options.quick else FULL, lambda text: print(text, file=sys.stderr))
        message = "Interrupted: nothing written."  # what a whole run wrote is worth more
        if not found.interrupted:
            message = _bench_written(found, out)
    say(json.dumps(found.to_dict()) if options.json else f"{report.tables(found)}\n\n{message}")
    if found.interrupted:
        return INCONCLUSIVE
    return EQUIVALENT if any(row["verified"] for row in found.results) else NOTHING


def _law(options: argparse.Namespace, decoders: list[Decoder], out: Path) -> int:
    from eqcheck.bench import lawreport
    from eqcheck.bench.why import QUICK, Plan, law

    with stdout_to_stderr() if options.json else contextlib.nullcontext():
        plan = QUICK if options.quick else Plan()
        found = law(decoders, plan, options.drafts, lambda text: print(text, file=sys.stderr))
        written = ", ".join(lawreport.write(found, out))
    text = f"{lawreport.tables(found)}\n\nWritten: {written} in {out}"
    say(json.dumps(found.to_dict()) if options.json else text)
    return EQUIVALENT if found.speeds else NOTHING


def _bench_written(found: Results, out: Path) -> str:
    from eqcheck.bench import report

    try:
        return f"Written: {', '.join(report.write(found, out))} in {out}"
    except OSError as error:
        return f"Not written to {out}: {error.strerror or error}"
