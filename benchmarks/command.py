"""The command `eqcheck bench`: the checks before it, the measurement, and what it prints and writes."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from pathlib import Path

from benchmarks import lawreport, pair, report, run, why
from benchmarks.run import Results
from eqcheck.cli.common import say, stdout_to_stderr, writable
from eqcheck.contract import registry
from eqcheck.contract.decoders import Decoder
from eqcheck.contract.errors import EQUIVALENT, INCONCLUSIVE, NOTHING, UsageError


def measure(options: argparse.Namespace) -> int:
    """Measure what the options of the command say, print and write it, and return the exit code."""
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
