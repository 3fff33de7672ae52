"""``eqcheck audit``: audit decoders and write reports."""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from eqcheck.cli import outputs
from eqcheck.cli.arguments import add_bounds, bounds_of, case_seconds, families, natural, positive, seconds, size
from eqcheck.cli.common import EPILOG, broken, stdout_to_stderr, writable
from eqcheck.contract.decoder import Decoder
from eqcheck.contract.errors import EQUIVALENT, INCONCLUSIVE, NOTHING, VIOLATION, UsageError
from eqcheck.contract.escaping import printable
from eqcheck.contract.family import LLAMA
from eqcheck.contract.limits import CASE_MEMORY, CASE_TIMEOUT
from eqcheck.contract.sizes import WIDE

if TYPE_CHECKING:
    from eqcheck.campaign.events import Listener
    from eqcheck.cli.common import Commands
    from eqcheck.report.schema import Report
    from eqcheck.result.findings import Audit, Options

_SPEC = (
    "NAME, package.module:attr or path/to/file.py:attr, one or more; without any every shipped decoder that needs "
    "nothing else installed"
)
_KNOWN = "a TOML file of violations that are known, each with a link and a last day; those pass until then"
_STRICT = "fail where an entry of --known is past its day or did not occur in 300 cases; on where CI is set"
_BUDGET = "time per decoder, instead of or beside --cases; minimising may take as much again"
_JOBS = "processes (1); several decoders are audited side by side"
_FAMILIES = "instead of those it claims; 'all'; beyond the claim there are discoveries, not violations"
_TARGET = (
    "decode on real models, which are read while they run: llama, gpt2, ... or 'all', the folder of a checkpoint "
    "(./folder), or package.module:Class; NAME@float32 or NAME@bfloat16 computes in less than float64"
)
_PYTHON = "decode in a worker run by this Python, on a tiny Llama, and judge by tokens alone"
_CORPUS = "where stored cases are: a folder (.eqcheck), or a URL that fsspec reaches, which several machines may share"
_MEMORY = "measure what keys and values take, and warn of what is kept for nothing"
_RAY = (
    "decode in shards on the Ray cluster that answers there ('local' starts one); they are stored in --out, and the "
    "same command goes on where it was ended"
)


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    audit = commands.add_parser("audit", help="audit decoders and write reports", epilog=EPILOG)
    audit.add_argument("specs", nargs="*", metavar="SPEC", help=_SPEC)
    audit.add_argument(
        "--adapter", action="append", default=[], metavar="SPEC", help="the same as SPEC; both may be given"
    )
    audit.add_argument("--cases", type=positive, metavar="N", help="cases per decoder (300)")
    audit.add_argument("--budget", type=seconds, metavar="60s", help=_BUDGET)
    audit.add_argument(
        "--seed",
        type=natural,
        default=0,
        metavar="N",
        help="same seed, same cases drawn (0); a decoder that draws nothing at random has the same report, too, where "
        "--no-corpus leaves out what .eqcheck holds",
    )
    add_bounds(audit)
    audit.add_argument("--out", type=Path, default=Path("reports"), metavar="DIR", help="where reports go (reports)")
    audit.add_argument("--jobs", type=positive, default=1, metavar="N", help=_JOBS)
    audit.add_argument("--families", type=families, default=(), metavar="F,...", help=_FAMILIES)
    audit.add_argument("--target", default="", metavar="NAME,...", help=_TARGET)
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
    audit.add_argument("--corpus", default=".eqcheck", metavar="PLACE", help=_CORPUS)
    audit.add_argument("--no-corpus", action="store_true", help="neither replay nor store cases there")
    audit.add_argument("--ray", metavar="ADDRESS", help=_RAY)
    audit.add_argument("--allow-known", action="store_true", help="let violations pass that the adapter declares")
    audit.add_argument("--known", type=Path, metavar="FILE", help=_KNOWN)
    audit.add_argument("--known-strict", action="store_true", help=_STRICT)
    audit.add_argument("--pair", action="store_true", help="decode with the shipped pair of trained models as well")
    audit.add_argument("--memory", action="store_true", help=_MEMORY)
    audit.add_argument("--json", action="store_true", help="print one JSON object {reports: [...]} and nothing else")
    outputs.add(audit)
    audit.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from eqcheck.contract import known, registry, repository

    outputs.checked(options)
    if options.pair:
        repository.find("eqcheck audit --pair")
    specs = [*options.specs, *options.adapter]
    for spec in specs:
        registry.named(spec)  # a missing file is told before torch is imported
    entries, now = (known.load(options.known) if options.known else ()), _now()
    _stage("" if "torch" in sys.modules else "loading torch", options)
    from eqcheck.campaign import apart
    from eqcheck.campaign.answers import check_answers
    from eqcheck.report.build import write
    from eqcheck.report.schema import to_builtins
    from eqcheck.report.terminal import progress, summary
    from eqcheck.selfcheck.faults import short
    from eqcheck.store.shared import shared_corpus

    if options.ray is not None:
        check_answers(options.ray)
    _check_pair(options)
    targets = _targets(options)
    # What a decoder prints must not mix with the one JSON object; worker processes inherit where it goes.
    quiet = stdout_to_stderr if options.json else contextlib.nullcontext
    with quiet():
        decoders = apart.load_all(specs or registry.self_contained())
    _check_engines(options, decoders)
    _stage("self-check", options)
    failures = short().failures
    if failures:
        return broken(failures)
    places = dict(zip([decoder.name for decoder in decoders], _folders(options.out, decoders), strict=True))
    if strangers := known.unheard(entries, [decoder.name for decoder in decoders]):
        print(f"eqcheck: --known {printable(str(options.known))} {strangers}", file=sys.stderr)
    settings = _settings(options, targets)
    found: dict[str, tuple[Audit, Report]] = {}
    with contextlib.ExitStack() as stack:
        stack.enter_context(quiet())
        if not options.no_corpus:
            settings = replace(settings, corpus=stack.enter_context(shared_corpus(options.corpus)))
        shown = stack.enter_context(progress(options.json, known.passing(entries, decoders, now.date())))
        listen = stack.enter_context(outputs.events(options.ndjson, shown))
        for result in _audits(decoders, settings, places, options.ray, listen):
            decoder, lane = result.decoder, result.lane
            if options.pair and lane == "transparent" and LLAMA in decoder.families and not result.interrupted:
                result.real_pair = apart.pair(decoder, settings)
            result.list_known(entries, now.date(), options.known_strict or known.in_ci())
            result.written, result.command = _typed(now, options)
            found[decoder.name] = result, write(result, places[decoder.name])
    if not found:  # interrupted before there was anything
        raise KeyboardInterrupt
    done = [name for name in places if name in found]
    reports = [found[name][1] for name in done]
    if options.json:
        text = json.dumps({"reports": [to_builtins(report) for report in reports]})
    else:
        text = printable(summary(reports, [str(places[name]) for name in done]))
    outputs.tell(reports, text, options)
    return exit_code([found[name][0] for name in done], options.allow_known)


def _stage(text: str, options: argparse.Namespace) -> None:
    """Say what is done now, for those who watch: torch alone takes seconds."""
    if text and not options.json:
        print(text, file=sys.stderr, flush=True)


def _now() -> datetime:
    return datetime.now(timezone.utc)


def _typed(now: datetime, options: argparse.Namespace) -> tuple[str, str]:
    """When, and by which command, a report was made."""
    return f"{now:%Y-%m-%d %H:%M} UTC", shlex.join(["eqcheck", *options.words])


def _check_pair(options: argparse.Namespace) -> None:
    if options.pair:
        from benchmarks import pair

        pair.check()


def _check_engines(options: argparse.Namespace, decoders: Sequence[Decoder]) -> None:
    from eqcheck.workers.spawned import environment

    engines = [environment(decoder, options.python) for decoder in decoders if decoder.checkpoints or options.python]
    for option, given in (("--max-...", bounds_of(options) != WIDE), ("--target", bool(options.target))):
        if engines and given:
            raise UsageError(
                f"{option}: an engine that loads a checkpoint has models and sizes of its own; leave it out"
            )


def _targets(options: argparse.Namespace) -> tuple[str, ...]:
    """The families of the targets asked for, each built and read once; `UsageError` for one that cannot be read."""
    if not options.target:
        return ()
    if options.families:
        raise UsageError("--target, --families: expected one of the two; a target has its family")
    from eqcheck.real.readable import check
    from eqcheck.real.targets import families_of

    families = []
    for family in families_of(options.target):
        try:
            check(family)
        except UsageError as error:
            if options.target != "all":
                raise
            print(f"eqcheck: {error}; it is left out", file=sys.stderr)
        else:
            families.append(family)
    return tuple(families)


def _settings(options: argparse.Namespace, targets: tuple[str, ...]) -> Options:
    from eqcheck.result.findings import Options

    return Options(
        cases=options.cases or (None if options.budget else 300),
        budget=options.budget,
        seed=options.seed,
        jobs=options.jobs,
        families=targets or options.families,
        case_timeout=options.case_timeout,
        isolate=options.isolate,
        case_memory=options.case_memory,
        bounds=bounds_of(options),
        python=options.python or "",
        memory=options.memory,
    )


def _audits(
    decoders: Sequence[Decoder], settings: Options, places: Mapping[str, Path], address: str | None, listen: Listener
) -> Iterator[Audit]:
    """The audits as they end: of campaigns on a cluster, whose shards are stored beside the report, or of processes."""
    from eqcheck.campaign import apart
    from eqcheck.campaign.loop import audit

    if not address and settings.jobs > 1 and len(decoders) > 1:
        yield from apart.side_by_side(decoders, settings, listen)
        return
    with contextlib.ExitStack() as stack:
        if address:
            from eqcheck.campaign.cluster import Cluster

            cluster = stack.enter_context(Cluster(address))
        for decoder in decoders:
            asked = apart.options(decoder, settings)
            if address:
                result = cluster.audit(decoder, asked, places[decoder.name] / "shards", listen)
            else:
                result = audit(decoder, asked, listen)
            yield result
            if result.interrupted:
                return


def exit_code(results: Sequence[Audit], allow_known: bool) -> int:
    if any(result.interrupted for result in results):
        return INCONCLUSIVE
    if any(result.failing(allow_known) or result.stale or result.outdated for result in results):
        return VIOLATION
    for result in results:  # on trained models a known violation shows, too
        if result.real_pair and result.real_pair.wrong and not result.violations:
            return VIOLATION
    if not any(result.tally.run for result in results):
        return NOTHING
    return INCONCLUSIVE if any(r.verdict == "inconclusive" or r.doubtful for r in results) else EQUIVALENT


def _folders(out: Path, decoders: list[Decoder]) -> list[Path]:
    """One folder per decoder, named after it; `UsageError` when two would share one or it cannot be made."""
    names = [decoder.name for decoder in decoders]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two adapters are named {name!r}; audit them into different --out folders")
        if not name or "/" in name or name.startswith("."):
            raise UsageError(f"adapter name {name!r} cannot name a folder; use letters, digits, '-' and '_'")
    for name in names:
        writable(out, name)
    return [out / name for name in names]
