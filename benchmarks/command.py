"""The command `python -m benchmarks`: its options, the checks before, and what it prints and writes."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import lawreport, pair, report, run, why
from benchmarks.run import Results
from eqcheck.cli.common import say, stdout_to_stderr, writable
from eqcheck.contract import registry
from eqcheck.contract.decoders import Decoder
from eqcheck.contract.errors import EQUIVALENT, INCONCLUSIVE, NOTHING, USAGE, UsageError, printable


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what the options say, print and write it, and return the exit code, which means what `eqcheck`'s do."""
    try:
        return _measure(_parser().parse_args(argv))
    except UsageError as error:
        print(f"benchmarks: {printable(str(error))}", file=sys.stderr)
        return USAGE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Time decoders on a small trained target and draft, and verify their output.",
    )
    parser.add_argument(
        "--adapter", action="append", metavar="SPEC", help="decoder to time (default: every shipped one)"
    )
    parser.add_argument("--quick", action="store_true", help="two batch sizes, once each: 4 minutes instead of an hour")
    parser.add_argument("--law", action="store_true", help="measure where the speed comes from instead (law.md)")
    parser.add_argument("--drafts", type=Path, metavar="DIR", help="with --law: folder of drafts of several sizes")
    parser.add_argument("--out", type=Path, metavar="DIR", help="default reports/bench, or reports/bench-quick")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    return parser


def _measure(options: argparse.Namespace) -> int:
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
        plan = run.QUICK if options.quick else run.FULL
        found = run.bench(decoders, plan, lambda text: print(text, file=sys.stderr))
        message = "Interrupted: nothing written."  # what a whole run wrote is worth more
        if not found.interrupted:
            message = _bench_written(found, out)
    say(json.dumps(found.to_dict()) if options.json else f"{report.tables(found)}\n\n{message}")
    if found.interrupted:
        return INCONCLUSIVE
    return EQUIVALENT if any(row["verified"] for row in found.results) else NOTHING


def _law(options: argparse.Namespace, decoders: list[Decoder], out: Path) -> int:
    with stdout_to_stderr() if options.json else contextlib.nullcontext():
        plan = why.QUICK if options.quick else why.Plan()
        found = why.law(decoders, plan, options.drafts, lambda text: print(text, file=sys.stderr))
        written = ", ".join(lawreport.write(found, out))
    text = f"{lawreport.tables(found)}\n\nWritten: {written} in {out}"
    say(json.dumps(found.to_dict()) if options.json else text)
    return EQUIVALENT if found.speeds else NOTHING


def _bench_written(found: Results, out: Path) -> str:
    try:
        return f"Written: {', '.join(report.write(found, out))} in {out}"
    except OSError as error:
        return f"Not written to {out}: {error.strerror or error}"
