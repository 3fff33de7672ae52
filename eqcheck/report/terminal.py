"""What the terminal shows: progress while an audit runs, a table and the explanations when it is done."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tabulate import tabulate

from eqcheck.campaign.result import Listener, Progress
from eqcheck.report.transparent import UNCLAIMED_NOTE, beyond_claim, declined_of, matrix_table, not_taken, percent
from eqcheck.selfcheck import SelfCheck

_PLAIN_EVERY_S = 5.0


@contextmanager
def progress(quiet: bool = False) -> Iterator[Listener]:
    """A listener that shows progress on standard error: a bar with an estimate on a terminal, else plain lines."""
    if quiet:
        yield lambda event: None
    elif sys.stderr.isatty():
        yield from _bar()
    else:
        yield _plain()


def _bar() -> Iterator[Listener]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    tasks: dict[str, Any] = {}
    with Bars(*columns, console=Console(stderr=True)) as bars:

        def listen(event: Progress) -> None:
            if event.decoder not in tasks:
                tasks[event.decoder] = bars.add_task(event.decoder, total=event.total, note="")
            bars.update(tasks[event.decoder], completed=event.done, note=_note(event))

        yield listen


def _plain() -> Listener:
    decoder, started, printed = "", 0.0, 0.0

    def listen(event: Progress) -> None:
        nonlocal decoder, started, printed
        now = time.monotonic()
        if event.decoder != decoder:
            decoder, started, printed = event.decoder, now, now
        if now - printed < _PLAIN_EVERY_S:
            return
        printed = now
        of = f" of {event.total}" if event.total else ""
        left = ""
        if event.total and event.done and event.stage == "cases":
            left = f", about {(now - started) / event.done * (event.total - event.done):.0f} s left"
        print(f"{decoder}: {event.done}{of} cases{left} {_note(event)}".rstrip(), file=sys.stderr, flush=True)

    return listen


def _note(event: Progress) -> str:
    if event.stage == "corpus":
        return "replaying stored cases"
    if event.stage != "cases":
        return f"minimising {event.stage}"
    return f"({event.violations} in violation)" if event.violations else ""


def summary(reports: Sequence[Mapping[str, Any]], folders: Sequence[str]) -> str:
    """The table, then per decoder its warnings and per violation the explanation and the reproduce command."""
    rows = []
    for report in reports:
        by_component: Counter[str] = Counter()
        for violation in report["violations"]:
            by_component[violation["component"]] += violation["count"]
        equivalence = report["equivalence"]
        rows.append(
            [
                report["decoder"]["name"],
                report["verdict"],
                report["cases"]["run"],
                percent(equivalence["exact_match"]),
                percent(equivalence["prefix_match"]),
                ", ".join(f"{name} {count}" for name, count in by_component.most_common()) or "-",
            ]
        )
    headers = ["decoder", "verdict", "cases", "exact match", "prefix match", "violations by component"]
    lines = [
        tabulate(rows, headers=headers, disable_numparse=True, colalign=("left", "left", "right", "right", "right"))
    ]
    if any(beyond_claim(report) for report in reports):
        lines += ["", matrix_table(list(reports)), UNCLAIMED_NOTE]
    for report, folder in zip(reports, folders, strict=True):
        lines += ["", *_details(report, folder)]
    return "\n".join(lines)


def _last_frames(traceback: str) -> list[str]:
    """The end of a traceback, where the decoder raised; the whole is in report.json."""
    return [f"    {line}" for line in traceback.rstrip().splitlines()[-7:-1]]


def _details(report: Mapping[str, Any], folder: str) -> list[str]:
    name = report["decoder"]["name"]
    lines = [f"{name}: report in {folder}"]
    corpus = report["corpus"]
    if corpus["replayed"]:
        lines.append(f"{name}: {corpus['replayed']} stored cases replayed, {corpus['failing']} fail")
    if declined := declined_of(report):
        lines.append(f"{name}: {declined}")
    if not_taken(report):
        lines.append(f"{name}: {not_taken(report)}")
    if on_pair := report["real_pair"]:
        lines.append(f"{name}: on trained models {on_pair['equivalent']} of {on_pair['rows']} rows are the target's")
        lines += ["", on_pair["first"]] if on_pair["first"] and not report["violations"] else []
    lines += [f"{name}: WARNING {warning}" for warning in report["warnings"]]
    run = report["cases"]["run"]
    for violation in report["violations"]:
        known = f", declared as known: {violation['known']}" if violation["known"] else ""
        lines += _finding(violation, f"{name}: {violation['count']} of {run} cases{known}")
    for discovery in report["discoveries"]:
        families = [f for f, entry in report["matrix"].items() if discovery["fingerprint"] in entry["fingerprints"]]
        where = [f for f in families if not report["matrix"][f]["claimed"]] or [discovery["case"]["family"]]
        lines += _finding(
            discovery, f"{name}: DISCOVERY, {discovery['count']} cases in families not claimed ({', '.join(where)})"
        )
    for doubtful in report["inconclusive"]:
        lines += _finding(doubtful, f"{name}: INCONCLUSIVE, {doubtful['count']} of {run} cases; answers do not repeat")
    return lines


def _finding(finding: Mapping[str, Any], title: str) -> list[str]:
    title += " and a stored one of an earlier audit" if finding["from_corpus"] else ""
    explained = [finding["explanation"], *_last_frames(finding["traceback"])]
    where = [f"  Where: {statement}." for statement in finding.get("only", ())]
    return ["", title, *explained, *where, f"  Reproduce: {finding['reproduce']}"]


def _rare_table(check: SelfCheck) -> list[str]:
    rows = [
        [one.id, one.when, "-" if one.cases is None else one.cases, "held back" if one.held_back else ""]
        for one in sorted(check.rare, key=lambda one: one.cases or sys.maxsize)
    ]
    headers = ["right but under one rare conjunction", "that is", "cases to catch", ""]
    return [tabulate(rows, headers=headers, colalign=("left", "left", "right", "left")), ""] if rows else []


def selfcheck_table(check: SelfCheck) -> str:
    """Per fault when it was caught and whether it was named as declared; the known-good decoders; the scores."""
    rows = []
    for fault in check.faults:
        caught = [fault.cases_to_catch, f"{fault.seconds:.2f}"] if fault.seconds is not None else ["-", "-"]
        share = f"{fault.kind_right}/{fault.judged}" if fault.judged else "-"
        attributed = "yes" if fault.attributed else f"no: {fault.named or 'not caught'}"
        held = "held back" if fault.held_back else ""
        rows.append([fault.id, f"{fault.component}/{fault.kind}", *caught, attributed, share, held])
    headers = ["fault", "declared", "cases", "seconds", "as declared", "of all", ""]
    right = ("left", "left", "right", "right", "left", "right", "left")
    good = [[one.name, one.cases, one.violations, one.first or "-"] for one in check.known_good]
    median, longest = check.seconds()
    lines = [
        tabulate(rows, headers=headers, disable_numparse=True, colalign=right),
        "",
        tabulate(good, headers=["known good", "cases", "violations", ""]),
        "",
        *_rare_table(check),
        f"{sum(f.caught for f in check.faults)} of {len(check.faults)} faults caught; first catch after "
        f"{median:.2f} s in the median, {longest:.1f} s at most, on one core",
    ]
    for what, held_back in (("all faults", None), ("developed on", False), ("held back", True)):
        component, kind = (check.share(f"{part}_right", held_back) for part in ("component", "kind"))
        lines.append(f"named as declared, {what}: component {percent(component)}, kind {percent(kind)}")
    return "\n".join(lines)
