"""``eqcheck audit``: audit decoders and write reports."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from eqcheck import __version__
from eqcheck.audit.events import Working
from eqcheck.cli import common, outputs
from eqcheck.cli.common import (
    add_bounds,
    broken,
    case_seconds,
    examples,
    families,
    import_models,
    natural,
    positive,
    seconds,
    share,
    stdout_to_stderr,
)
from eqcheck.cli.plan import Plan
from eqcheck.contract import extras, known_violations, registry
from eqcheck.contract.errors import EQUIVALENT, INCONCLUSIVE, INTERNAL, NOTHING, VIOLATION, UsageError, printable
from eqcheck.contract.profiles import CASE_TIMEOUT
from eqcheck.report.progress import progress

if TYPE_CHECKING:
    from eqcheck.audit.events import Listener
    from eqcheck.cli.common import Commands
    from eqcheck.core.result.findings import Audit
    from eqcheck.report.schema import Report

_SPEC = (
    "decoder to audit: NAME (see `eqcheck list`), FILE.py, FILE.py:ATTR or PACKAGE.MODULE:ATTR; without any, every "
    "shipped decoder that needs no extra package"
)
_TARGET = (
    "real models to decode with, instead of HashLM: llama, gpt2, ... or 'all'; ./FOLDER of a checkpoint; or "
    "PACKAGE.MODULE:CLASS. NAME@float32 or NAME@bfloat16 sets the dtype (default float64)"
)
_FAMILIES = "families to test instead of the claimed ones, or 'all'; failures outside the claim are discoveries"
_PYTHON = "Python of another environment to decode in, with a tiny Llama; judges by tokens only"
_BUDGET = "time per decoder, such as 60s or 10m; making cases small may take as long again"
_PROFILE = (
    "fixed set of cases: ci or nightly (newest), or dated, such as ci-2026.12; replaces --cases, --budget, --seed "
    "and --max-..."
)
_SEED = "seed for drawing cases (default 0); failing cases stored in .eqcheck are decoded in any case"
_CORPUS = "folder or fsspec URL of stored failing cases, which each audit decodes again (default .eqcheck)"
_RAY = "run on the Ray cluster at ADDRESS ('local' starts one); the same command and --out resume"
_FAIL_FAST = "stop drawing cases for a decoder after its first violation that is not known"
_MEMORY = "measure the memory of keys and values, and warn about leaks"
_ALLOW_KNOWN = "let violations pass that the decoder itself declares in known="
_KNOWN = "TOML file of known violations, each with a link and a last day; until then they pass"
_STRICT = "fail if an entry of --known has expired, or did not occur in 300 cases (default if CI is set)"
_DRAFT_LOSS = (
    "fail if more than this share of the draft tokens that should have been accepted is lost (speed, not correctness)"
)


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    audit = commands.add_parser(
        "audit",
        help="audit decoders and write reports",
        description="Draw cases, decode them, compare every token with the target alone, and report each violation "
        "with its smallest case and its cause.",
        epilog=examples(
            "eqcheck audit mine.py --budget 60s",
            "eqcheck audit mine.py --profile ci --junit eqcheck.xml",
            "eqcheck audit bsp --families all --jobs 4",
            codes=True,
        ),
    )
    audit.add_argument("specs", nargs="*", metavar="SPEC", help=_SPEC)
    _add_tested(audit.add_argument_group("what is tested"))
    _add_cases(audit.add_argument_group("which cases"))
    _add_running(audit.add_argument_group("how it runs"))
    _add_failing(audit.add_argument_group("what fails"))
    _add_printed(audit.add_argument_group("output"))
    audit.set_defaults(run=run)


def _add_tested(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--adapter", action="append", default=[], metavar="SPEC", help="same as SPEC (older form)")
    group.add_argument("--families", type=families, default=(), metavar="F,...", help=_FAMILIES)
    group.add_argument("--target", default="", metavar="NAME,...", help=_TARGET)
    group.add_argument("--python", metavar="PATH", help=_PYTHON)
    group.add_argument("--memory", action="store_true", help=_MEMORY)


def _add_cases(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--cases", type=positive, metavar="N", help="cases per decoder (default 300)")
    group.add_argument("--budget", type=seconds, metavar="60s", help=_BUDGET)
    group.add_argument("--profile", metavar="ci|nightly", help=_PROFILE)
    group.add_argument("--seed", type=natural, metavar="N", help=_SEED)
    add_bounds(group)
    group.add_argument("--corpus", default=".eqcheck", metavar="PLACE", help=_CORPUS)
    group.add_argument("--no-corpus", action="store_true", help="neither decode nor store failing cases there")


def _add_running(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--jobs", type=positive, metavar="N", help="processes (default 1)")
    group.add_argument("--isolate", action="store_true", help="run decoders in worker processes that may crash")
    group.add_argument(
        "--case-timeout",
        type=case_seconds,
        default=CASE_TIMEOUT,
        metavar="S",
        help="time limit per case (default 60s, at least 1s)",
    )
    group.add_argument("--ray", metavar="ADDRESS", help=_RAY)
    group.add_argument("--fail-fast", action="store_true", help=_FAIL_FAST)


def _add_failing(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--allow-known", action="store_true", help=_ALLOW_KNOWN)
    group.add_argument("--known", type=Path, metavar="FILE", help=_KNOWN)
    group.add_argument("--known-strict", action="store_true", help=_STRICT)
    group.add_argument("--max-draft-loss", type=share, metavar="1%", help=_DRAFT_LOSS)


def _add_printed(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--out", type=Path, default=Path("reports"), metavar="DIR", help="folder for reports (default reports)"
    )
    group.add_argument("--json", action="store_true", help="print one JSON object {reports: [...]} and nothing else")
    group.add_argument("--quiet", action="store_true", help="print results, but no progress")
    outputs.add(group)


def run(options: argparse.Namespace) -> int:
    extras.require("eqcheck audit", "rich", "jinja2")
    return execute(Plan.of(options))


def execute(plan: Plan) -> int:
    """Audit every decoder of the plan, write the reports, tell them; returns the exit code."""
    if plan.asked.profile and not (plan.json or plan.quiet):
        print(f"eqcheck {__version__}, {plan.asked.profile.line}", file=sys.stderr, flush=True)
    known: dict[str, set[str]] = {}
    with progress(plan.json or plan.quiet, known) as shown:
        # The progress is shown before torch is imported: that takes seconds.
        if "torch" not in sys.modules:
            shown(Working("", "models"))
        import_models()
        if common.own_process:
            from eqcheck.audit.workers.fork import calls_no_decoder

            calls_no_decoder()
        if newer := extras.untested():
            print(f"eqcheck: {newer}", file=sys.stderr)
        plan = _loaded(plan, shown)
        shown(Working("", "self-check"))
        from eqcheck.selfcheck.faults import short

        if failures := short().failures:
            return broken(failures)
        plan = plan.with_folders()
        _warn_of_known(plan)
        known |= known_violations.passing(plan.known, plan.decoders, plan.today)
        found = _reported(plan, shown)
    if not found:  # interrupted before there was anything
        raise KeyboardInterrupt
    done = {name: found[name] for name in plan.folders if name in found}
    reports = [report for _, report in done.values()]
    outputs.tell(reports, _text(plan, reports, [str(plan.folders[name]) for name in done]), plan)
    for report in reports:
        for error in report.internal_errors:
            print(f"eqcheck: {printable(error.text)}", file=sys.stderr)
    return exit_code([audit for audit, _ in done.values()], plan.allow_known, plan.max_draft_loss)


def _warn_of_known(plan: Plan) -> None:
    """Warn of known violations of decoders that are not audited here, and of those that are declared in code."""
    if strangers := known_violations.unheard(plan.known, list(plan.folders)):
        print(f"eqcheck: --known {printable(str(plan.known_file))} {strangers}", file=sys.stderr)
    if older := known_violations.older(plan.decoders, registry.shipped()):
        print(f"eqcheck: {printable(older)}", file=sys.stderr)


def _loaded(plan: Plan, shown: Listener) -> Plan:
    """The plan with the families of its real models, and with the decoders that it names."""
    from eqcheck.audit import processes

    if plan.cluster is not None:
        from eqcheck.audit.cluster import check_answers

        check_answers(plan.cluster)
    shown(Working("", "decoder"))
    plan = replace(plan, asked=replace(plan.asked, families=_targets(plan.target) or plan.asked.families))
    # A print of a decoder must not mix with the one JSON object; worker processes inherit where it goes.
    with stdout_to_stderr() if plan.json else contextlib.nullcontext():
        return plan.loaded(processes.load_all(plan.specs or registry.self_contained()))


def _reported(plan: Plan, shown: Listener) -> dict[str, tuple[Audit, Report]]:
    """The audits, each with its report, which is written as soon as the audit ends."""
    from eqcheck.core.result import losses
    from eqcheck.core.store.corpus import shared_corpus
    from eqcheck.report.build import write

    done: dict[str, tuple[Audit, Report]] = {}
    with contextlib.ExitStack() as stack:
        stack.enter_context(stdout_to_stderr() if plan.json else contextlib.nullcontext())
        corpus = stack.enter_context(shared_corpus(plan.corpus)) if plan.corpus else None
        listen = stack.enter_context(outputs.events(plan, shown))
        plan = replace(plan, asked=replace(plan.asked, corpus=corpus))
        for audit in _audits(plan, listen):
            decoder = audit.decoder
            shown(Working("", "report"))
            audit.list_known(plan.known, plan.today, plan.known_strict)
            losses.limit(audit, plan.max_draft_loss)
            audit.written, audit.command = plan.written, plan.command
            done[decoder.name] = audit, write(audit, plan.folders[decoder.name])
    return done


def _text(plan: Plan, reports: Sequence[Report], places: Sequence[str]) -> str:
    """The reports as standard output shows them: one JSON object, or a summary for people."""
    if plan.json:
        from eqcheck.report.schema import to_builtins

        return json.dumps({"reports": [to_builtins(report) for report in reports]})
    from eqcheck.report.build import in_terminal

    return printable(in_terminal(reports, places))


def _targets(asked: str) -> tuple[str, ...]:
    """The families of the targets asked for, each built and read once; `UsageError` for one that cannot be read."""
    if not asked:
        return ()
    from eqcheck.transparent.real.targets import check, families_of

    families = []
    for family in families_of(asked):
        try:
            check(family)
        except UsageError as error:
            if asked != "all":
                raise
            print(f"eqcheck: {error}; it is left out", file=sys.stderr)
        else:
            families.append(family)
    return tuple(families)


def _audits(plan: Plan, listen: Listener) -> Iterator[Audit]:
    """The audits as they end: of campaigns on a cluster, whose shards are stored beside the report, or of processes."""
    from eqcheck.audit import processes
    from eqcheck.audit.loop import audit

    if not plan.cluster and plan.asked.jobs > 1 and len(plan.decoders) > 1:
        yield from processes.side_by_side(plan.decoders, plan.asked, listen)
        return
    with contextlib.ExitStack() as stack:
        if plan.cluster:
            from eqcheck.audit.cluster import Cluster

            cluster = stack.enter_context(Cluster(plan.cluster))
        for decoder in plan.decoders:
            own = processes.options(decoder, plan.asked)
            if plan.cluster:
                result = cluster.audit(decoder, own, plan.folders[decoder.name] / "shards", listen)
            else:
                result = audit(decoder, own, listen)
            yield result
            if result.interrupted:
                return


def exit_code(results: Sequence[Audit], allow_known: bool, max_draft_loss: float | None = None) -> int:
    from eqcheck.core.result import losses

    if any(result.internal for result in results):  # first: whatever else was found, the tool has to be mended
        return INTERNAL
    if any(result.interrupted for result in results):
        return INCONCLUSIVE
    if any(result.failing(allow_known) or result.stale or result.outdated for result in results):
        return VIOLATION
    if not any(result.tally.run for result in results):
        return NOTHING
    unclear = any(result.verdict == "inconclusive" or result.doubtful for result in results)
    unclear |= None in [losses.within(result, max_draft_loss) for result in results]
    return INCONCLUSIVE if unclear else EQUIVALENT
