"""What the terminal shows: progress while an audit runs, a table and the explanations when it is done."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tabulate import tabulate

from eqcheck.campaign.events import CaseDone, Event, Listener, Settling, ViolationSeen
from eqcheck.kinds import KINDS
from eqcheck.memorycheck import table as memory_table
from eqcheck.narrow import columns, table, wrapped
from eqcheck.plain import printable
from eqcheck.report.markdown import (
    UNCLAIMED_NOTE,
    beyond_claim,
    declined_of,
    matrix_table,
    memory,
    not_taken,
    percent,
    sampled,
)
from eqcheck.report.schema import Report, ReportedViolation
from eqcheck.sampledcheck import named_as_planted
from eqcheck.sampledcheck import table as sampled_table
from eqcheck.selfcheck import SelfCheck
from eqcheck.text import render
from eqcheck.verdict import many

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
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    tasks: dict[str, Any] = {}
    with Progress(*columns, console=Console(stderr=True)) as bars:

        def listen(event: Event) -> None:
            if isinstance(event, ViolationSeen):
                for line in _seen(event):
                    bars.console.print(line, markup=False, highlight=False)
            elif note := _note(event):
                if event.decoder not in tasks:
                    tasks[event.decoder] = bars.add_task(event.decoder, total=None, note="")
                bars.update(tasks[event.decoder], note=note.strip())
                if isinstance(event, CaseDone):
                    bars.update(tasks[event.decoder], completed=event.done, total=event.total)

        yield listen


def _plain() -> Listener:
    decoder, started, printed = "", 0.0, 0.0

    def listen(event: Event) -> None:
        nonlocal decoder, started, printed
        now = time.monotonic()
        if event.decoder != decoder:
            decoder, started, printed = event.decoder, now, now
        if isinstance(event, ViolationSeen):
            print("\n".join(_seen(event)), file=sys.stderr, flush=True)
        note = _note(event)
        if not note or now - printed < _PLAIN_EVERY_S:
            return
        printed = now
        head = ""
        if isinstance(event, CaseDone) and not event.stored:
            head = f"{event.done}{f' of {event.total}' if event.total else ''} cases"
            if event.total and event.done:
                head += f", about {(now - started) / event.done * (event.total - event.done):.0f} s left"
        print(f"{decoder}: {head} {note}".rstrip().replace(":  ", ": "), file=sys.stderr, flush=True)

    return listen


def _note(event: Event) -> str:
    """What to say of an event beside counts; empty for one that is not shown."""
    if isinstance(event, Settling):
        return f"looking into {printable(event.symptom)}"
    if isinstance(event, CaseDone):
        return "replaying stored cases" if event.stored else f"({event.failing} in violation)" if event.failing else " "
    return ""


def _seen(event: ViolationSeen) -> list[str]:
    """The first violation with its explanation; of later ones what they look like."""
    outcome = event.outcome
    if event.number > 1:
        return [printable(f"{event.decoder}: another violation: {outcome.symptom}")]
    explanation = outcome.opinion or outcome.explanation
    head = f"{event.decoder}: first violation, in case {outcome.case.id}; it will be confirmed and made smaller"
    return printable(
        "\n".join(["", head, *([render(explanation, columns())] if explanation else [outcome.symptom]), ""])
    ).split("\n")


def summary(reports: Sequence[Report], folders: Sequence[str]) -> str:
    """The table, then per decoder its warnings and per violation the explanation and the reproduce command.

    No line is longer than the terminal is wide, but for commands, which are copied.
    """
    width = columns()
    rows = []
    for report in reports:
        by_component: Counter[str] = Counter()
        for violation in report.violations:
            by_component[violation.component] += violation.count
        row = [report.decoder.name, report.verdict, report.cases.run]
        row += [percent(report.equivalence.exact_match), percent(report.equivalence.prefix_match)]
        rows.append([*row, ", ".join(f"{name} {count}" for name, count in by_component.most_common()) or "-"])
    headers = ["decoder", "verdict", "cases", "exact match", "prefix match", "violations by component"]
    aligned = ("left", "left", "right", "right", "right")
    lines = [table(rows, headers, width, colalign=aligned)]
    if any(beyond_claim(report) for report in reports):
        lines += ["", matrix_table(reports, width=width), wrapped(UNCLAIMED_NOTE, width)]
    for report, folder in zip(reports, folders, strict=True):
        lines += ["", *_details(report, folder, width)]
    return "\n".join(lines)


def _last_frames(traceback: str) -> list[str]:
    """The end of a traceback, where the decoder raised; the whole is in report.json."""
    return [f"    {line}" for line in traceback.rstrip().splitlines()[-7:-1]]


def _details(report: Report, folder: str, width: int) -> list[str]:
    name, run = report.decoder.name, report.cases.run
    lines = [f"{name}: report in {folder}"]
    if report.corpus.replayed:
        lines.append(f"{name}: {many(report.corpus.replayed, 'stored case')} replayed, {report.corpus.failing} failing")
    lines += [f"{name}: {line}" for line in (declined_of(report), not_taken(report)) if line]
    if (pair := report.real_pair) and not pair.rows:
        lines.append(f"{name}: not tried on trained models, {pair.first}")
    elif pair:
        lines.append(f"{name}: on trained models {pair.equivalent} of {pair.rows} rows are the target's")
        lines += ["", pair.first] if pair.first and not report.violations else []
    lines += [f"{name}: {line}" for line in [*sampled(report)[:4], *memory(report)]]
    lines += [f"{name}: WARNING {warning}" for warning in report.warnings]
    lines = [wrapped(line, width) for line in lines]
    for violation in report.violations:
        known = f", {violation.in_known_words}" if violation.known else ""
        lines += _finding(violation, f"{name}: {violation.count} of {run} cases{known}", width)
    for discovery in report.discoveries:
        families = [f for f, entry in report.matrix.items() if discovery.fingerprint in entry.fingerprints]
        where = [f for f in families if not report.matrix[f].claimed] or [str(discovery.case.get("family", "-"))]
        title = f"{name}: DISCOVERY, {discovery.count} cases in families not claimed ({', '.join(where)})"
        lines += _finding(discovery, title, width)
    for doubtful in report.inconclusive:
        title = f"{name}: INCONCLUSIVE, {doubtful.count} of {run} cases; answers do not repeat"
        lines += _finding(doubtful, title, width)
    return lines


def _finding(finding: ReportedViolation, title: str, width: int) -> list[str]:
    title += " and a stored one of an earlier audit" if finding.from_corpus else ""
    lines = ["", wrapped(title, width), _explanation(finding, width), *_last_frames(finding.traceback)]
    lines += [wrapped(f"  Where: {statement}.", width) for statement in finding.only]
    for condition in finding.conditions[1:]:
        needs = ", ".join(condition.needs) or "the defaults"
        lines.append(f"  Also with {needs}: {condition.count} cases. {condition.reproduce}")
    return [*lines, f"  Reproduce: {finding.reproduce}"]


def _explanation(finding: ReportedViolation, width: int) -> str:
    """The explanation as it is stored; on a narrow terminal made anew, where it is one of this eqcheck's."""
    text, e = finding.explanation, finding.evidence
    if max(map(len, text.split("\n"))) > width and {e.kind, *(one.kind for one in e.deviations)} <= set(KINDS):
        stored, behind = render(e), text.removeprefix(render(e))
        return render(e, width) + wrapped(behind, width) if text.startswith(stored) else wrapped(text, width)
    return wrapped(text, width)


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
        f"left out as yet: {', '.join(check.left_out)}",
    ]
    for what, held_back in (("all faults", None), ("developed on", False), ("held back", True)):
        component, kind = (check.share(f"{part}_right", held_back) for part in ("component", "kind"))
        lines.append(f"named as declared, {what}: component {percent(component)}, kind {percent(kind)}")
    lines += ["", memory_table(check.memory)] if check.memory else []
    return "\n".join([*lines, *_sampled_table(check)])


def _sampled_table(check: SelfCheck) -> list[str]:
    """The faults of sampling: after how many tokens each was seen, and what it was named."""
    if not check.sampled:
        return []
    lines = ["", sampled_table(check.sampled), ""]
    for what, held_back in (("all faults", None), ("developed on", False), ("held back", True)):
        right, wrong, seen = named_as_planted(check.sampled, held_back)
        lines.append(f"sampling, {what}: {seen} seen, {right} named as planted, {wrong} by another kind")
    return lines
