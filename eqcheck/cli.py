"""The command ``eqcheck``: audit, replay, selfcheck, bench, list."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from eqcheck import __version__
from eqcheck.arguments import add_bounds, bounds_of, case_seconds, families, natural, positive, seconds, size
from eqcheck.contract import Decoder
from eqcheck.errors import EQUIVALENT, INCONCLUSIVE, INTERNAL, NOTHING, USAGE, VIOLATION, UsageError
from eqcheck.family import LLAMA
from eqcheck.limits import CASE_MEMORY, CASE_TIMEOUT
from eqcheck.plain import printable
from eqcheck.sizes import WIDE

if TYPE_CHECKING:
    from eqcheck.bench.run import Results
    from eqcheck.findings import Audit

_EPILOG = (
    "exit codes: 0 equivalent, 1 violation, 2 inconclusive or interrupted, 3 self-check failed or internal error, "
    "4 usage, 5 nothing was tested"
)
_BUDGET = "time per decoder, instead of or beside --cases; minimising may take as much again"
_FAMILIES = "instead of those it claims; 'all'; beyond the claim there are discoveries, not violations"
_PYTHON = "decode in a worker run by this Python, on a tiny Llama, and judge by tokens alone"
_CORPUS = Path(".eqcheck")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    try:
        options = _parser().parse_args(argv)
        code: int = options.run(options)
        return code
    except UsageError as error:
        print(f"eqcheck: {printable(str(error))}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("eqcheck: interrupted", file=sys.stderr)
        return INCONCLUSIVE
    except BrokenPipeError:
        return INCONCLUSIVE
    except Exception:
        traceback.print_exc()
        print("eqcheck: internal error; this says nothing about the decoder", file=sys.stderr)
        return INTERNAL


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        self.print_usage(sys.stderr)
        raise UsageError(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="eqcheck", description="Audit batch speculative decoders.", epilog=_EPILOG)
    parser.add_argument("--version", action="version", version=f"eqcheck {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    audit = commands.add_parser("audit", help="audit decoders and write reports", epilog=_EPILOG)
    audit.add_argument(
        "--adapter",
        action="append",
        metavar="SPEC",
        help="NAME, package.module:attr or path/to/file.py:attr; repeatable; without it every shipped decoder that "
        "needs nothing else installed",
    )
    audit.add_argument("--cases", type=positive, metavar="N", help="cases per decoder (300)")
    audit.add_argument("--budget", type=seconds, metavar="60s", help=_BUDGET)
    audit.add_argument(
        "--seed",
        type=natural,
        default=0,
        metavar="N",
        help="same seed, same cases drawn (0); the same report too where --no-corpus leaves out what .eqcheck holds",
    )
    add_bounds(audit)
    audit.add_argument("--out", type=Path, default=Path("reports"), metavar="DIR", help="where reports go (reports)")
    audit.add_argument("--jobs", type=positive, default=1, metavar="N", help="processes (1)")
    audit.add_argument("--families", type=families, default=(), metavar="F,...", help=_FAMILIES)
    audit.add_argument(
        "--case-timeout",
        type=case_seconds,
        default=CASE_TIMEOUT,
        metavar="S",
        help="a case's limit (60s; at least 1s)",
    )
    audit.add_argument("--isolate", action="store_true", help="run decoders in worker processes that may crash")
    audit.add_argument("--python", metavar="PATH", help=_PYTHON)
    audit.add_argument(
        "--case-memory",
        type=size,
        default=CASE_MEMORY,
        metavar="2G",
        help="memory of an isolated case (2G; at least 64M)",
    )
    audit.add_argument("--no-corpus", action="store_true", help="neither replay nor store cases in .eqcheck")
    audit.add_argument("--allow-known", action="store_true", help="let violations pass that the adapter declares")
    audit.add_argument("--pair", action="store_true", help="decode with the shipped pair of trained models as well")
    audit.add_argument("--json", action="store_true", help="print one JSON object {reports: [...]} and nothing else")
    audit.set_defaults(run=_audit)

    replay = commands.add_parser(
        "replay", help="run a stored case again: FAILS, FIXED, DECLINED or ERROR", epilog=_EPILOG
    )
    replay.add_argument("case", type=Path, metavar="CASE")
    replay.add_argument("--adapter", metavar="SPEC", help="the decoder; needed where the file names no installed one")
    replay.add_argument(
        "--isolate", action="store_true", help="in a worker process, as cases of isolated audits always"
    )
    replay.add_argument("--python", metavar="PATH", help="for a case of an engine: the Python to run it with")
    replay.add_argument("-v", "--verbose", action="store_true", help="print every call of the models first")
    replay.set_defaults(run=_replay)

    check = commands.add_parser("selfcheck", help="run the planted faults and the known-good decoders", epilog=_EPILOG)
    check.add_argument("--cases", type=positive, default=100, metavar="N", help="cases per known-good decoder (100)")
    check.add_argument("--jobs", type=positive, default=os.cpu_count() or 1, metavar="N", help="processes (all cores)")
    check.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    check.set_defaults(run=_selfcheck)

    bench = commands.add_parser("bench", help="time the decoders on a small real pair, and verify what they emit")
    bench.add_argument(
        "--adapter", action="append", metavar="SPEC", help="as for audit; without it every shipped decoder"
    )
    bench.add_argument(
        "--quick", action="store_true", help="four minutes instead of an hour: two batch sizes, once each"
    )
    bench.add_argument("--out", type=Path, metavar="DIR", help="(reports/bench, with --quick reports/bench-quick)")
    bench.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    bench.set_defaults(run=_bench)

    known = commands.add_parser("list", help="list the decoders that can be named")
    known.set_defaults(run=_list)
    return parser


def _audit(options: argparse.Namespace) -> int:
    from eqcheck import pair, registry
    from eqcheck.campaign import apart
    from eqcheck.campaign.loop import audit
    from eqcheck.findings import Options
    from eqcheck.report.build import write
    from eqcheck.report.schema import to_builtins
    from eqcheck.report.terminal import progress, summary
    from eqcheck.selfcheck import short
    from eqcheck.workers.spawned import environment

    if options.pair:
        pair.check()
    # What a decoder prints must not mix with the one JSON object; worker processes inherit where it goes.
    quiet = _stdout_to_stderr if options.json else contextlib.nullcontext
    with quiet():
        decoders = apart.load_all(options.adapter or registry.self_contained())
    engines = [environment(decoder, options.python) for decoder in decoders if decoder.checkpoints or options.python]
    if engines and bounds_of(options) != WIDE:
        raise UsageError("--max-...: an engine that loads a checkpoint is given cases of other sizes; leave it out")
    failures = short().failures
    if failures:
        return _broken(failures)
    folders = _folders(options.out, decoders)
    settings = Options(
        cases=options.cases or (None if options.budget else 300),
        budget=options.budget,
        seed=options.seed,
        jobs=options.jobs,
        families=options.families,
        case_timeout=options.case_timeout,
        isolate=options.isolate,
        case_memory=options.case_memory,
        corpus=None if options.no_corpus else _CORPUS,
        bounds=bounds_of(options),
        python=options.python or "",
    )
    results: list[Audit] = []
    reports = []
    with quiet(), progress(quiet=options.json) as listen:
        for decoder, folder in zip(decoders, folders, strict=True):
            result = audit(decoder, apart.options(decoder, settings), listen)
            if options.pair and result.lane == "transparent" and LLAMA in decoder.families and not result.interrupted:
                result.real_pair = apart.pair(decoder)
            results.append(result)
            reports.append(write(result, folder))
            if result.interrupted:
                break
    if options.json:
        _say(json.dumps({"reports": [to_builtins(report) for report in reports]}))
    else:
        _say(printable(summary(reports, [str(folder) for folder in folders[: len(reports)]])))
    return _exit_code(results, options.allow_known)


def _say(text: str) -> None:
    """Print what a command found; on standard error where standard output is a file on a full disk."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the interpreter fails again when it ends
        print(f"eqcheck: standard output: {error.strerror}\n{text}", file=sys.stderr)


def _exit_code(results: Sequence[Audit], allow_known: bool) -> int:
    if any(result.interrupted for result in results):
        return INCONCLUSIVE
    if any((result.unknown if allow_known else result.violations) or result.stale for result in results):
        return VIOLATION
    for result in results:  # on trained models a known violation shows, too
        if result.real_pair and result.real_pair.wrong and not (allow_known and result.violations):
            return VIOLATION
    if not any(result.claimed for result in results):
        return NOTHING
    return INCONCLUSIVE if any(r.verdict == "inconclusive" or r.doubtful for r in results) else EQUIVALENT


@contextlib.contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Send to standard error whatever is written to standard output, also below Python."""
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)


def _replay(options: argparse.Namespace) -> int:
    from eqcheck.replay import replay

    return replay(options.case, options.adapter, options.isolate, options.python, options.verbose)


def _selfcheck(options: argparse.Namespace) -> int:
    from eqcheck.report.terminal import progress, selfcheck_table
    from eqcheck.selfcheck import selfcheck

    with progress(quiet=options.json) as listen:
        check = selfcheck(options.jobs, options.cases, listen)
    print(json.dumps(check.to_dict()) if options.json else selfcheck_table(check))
    return _broken(check.failures) if check.failures else EQUIVALENT


def _bench(options: argparse.Namespace) -> int:
    from eqcheck import pair, registry
    from eqcheck.bench import report
    from eqcheck.bench.run import FULL, QUICK, bench

    pair.check()
    decoders = [registry.load(spec) for spec in options.adapter or registry.self_contained()]
    out = options.out or Path("reports/bench-quick" if options.quick else "reports/bench")
    _writable(out, "")
    quiet = _stdout_to_stderr() if options.json else contextlib.nullcontext()
    with quiet:
        found = bench(decoders, QUICK if options.quick else FULL, lambda text: print(text, file=sys.stderr))
        message = "Interrupted: nothing written."  # what a whole run wrote is worth more
        if not found.interrupted:
            message = _bench_written(found, out)
    _say(json.dumps(found.to_dict()) if options.json else f"{report.tables(found)}\n\n{message}")
    if found.interrupted:
        return INCONCLUSIVE
    return EQUIVALENT if any(row["verified"] for row in found.results) else NOTHING


def _bench_written(found: Results, out: Path) -> str:
    from eqcheck.bench import report

    try:
        return f"Written: {', '.join(report.write(found, out))} in {out}"
    except OSError as error:
        return f"Not written to {out}: {error.strerror or error}"


def _broken(failures: list[str]) -> int:
    """Say what is wrong with the checker itself, so that nothing it says of a decoder is taken for true."""
    print("eqcheck: the self-check failed; this says nothing about any decoder", file=sys.stderr)
    for failure in failures:
        print(f"  {failure}", file=sys.stderr)
    return INTERNAL


def _list(options: argparse.Namespace) -> int:
    from tabulate import tabulate

    from eqcheck import registry
    from eqcheck.lanes.checkpoint.case import EngineCase

    rows = []
    for name in registry.names():
        try:
            decoder = registry.load(name)
        except UsageError as error:
            rows.append([name, "broken", "-", "-", str(error)])
            continue
        families = (EngineCase.family,) if decoder.checkpoints else decoder.families
        claims = [", ".join(families), ", ".join(decoder.padding_sides), ", ".join(decoder.known) or "-"]
        rows.append([name, *claims, decoder.origin])
    print(printable(tabulate(rows, headers=["decoder", "families", "padding", "known violations", "origin"])))
    return EQUIVALENT


def _folders(out: Path, decoders: list[Decoder]) -> list[Path]:
    """One folder per decoder, named after it; `UsageError` when two would share one or it cannot be made."""
    names = [decoder.name for decoder in decoders]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two adapters are named {name!r}; audit them into different --out folders")
        if not name or "/" in name or name.startswith("."):
            raise UsageError(f"adapter name {name!r} cannot name a folder; use letters, digits, '-' and '_'")
    for name in names:
        _writable(out, name)
    return [out / name for name in names]


def _writable(out: Path, name: str) -> None:
    """Make the folder ``out/name``; `UsageError` when that cannot be done."""
    try:
        (out / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {out}: cannot write there: {error}") from error


if __name__ == "__main__":
    sys.exit(main())
