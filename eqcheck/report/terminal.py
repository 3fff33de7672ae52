"""What the terminal shows: progress while an audit runs, a table and the explanations when it is done."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

from eqcheck.campaign.events import CaseDone, Event, Finished, Listener, Settling, Started, ViolationSeen
from eqcheck.contract.escaping import printable
from eqcheck.contract.kinds import KINDS
from eqcheck.explanation.notice import VACUOUS
from eqcheck.explanation.records import many
from eqcheck.explanation.terminal import columns, table, wrapped
from eqcheck.explanation.text import render
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

if TYPE_CHECKING:
    from eqcheck.selfcheck.faults import SelfCheck

_PLAIN_EVERY_S = 5.0


@contextmanager
def progress(quiet: bool = False, known: Mapping[str, Collection[str]] = {}) -> Iterator[Listener]:
    """A listener that shows progress on standard error: bars on a terminal, else plain lines.

    ``known`` are the fingerprints of violations that are known, by decoder: they are announced as such.
    """
    if quiet:
        yield lambda event: None
    elif sys.stderr.isatty():
        yield from _bars(known)
    else:
        yield _plain(known)


def _bars(known: Mapping[str, Collection[str]]) -> Iterator[Listener]:
    """A bar for the cases of each decoder, and one for those of them that fail while their causes are looked for."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Column

    shown: tuple[Any, ...] = (TextColumn("{task.description}", markup=False), BarColumn(8), MofNCompleteColumn())
    shown += (TimeElapsedColumn(Column(min_width=7)), TextColumn("{task.fields[note]}", markup=False))
    tasks: dict[tuple[str, str], Any] = {}
    with Progress(*shown, console=Console(stderr=True)) as bars:

        def listen(event: Event) -> None:
            for line in _announced(event, known):
                bars.console.print(line, markup=False, highlight=False)
            if isinstance(event, Finished):
                for key in [key for key in tasks if key[0] == event.decoder]:
                    bars.remove_task(tasks.pop(key))
            if (counted := _counted(event)) is None:
                return
            what, done, total, note = counted
            if (key := (event.decoder, what)) not in tasks:
                name = "explained" if what == _CAUSES else what
                tasks[key] = bars.add_task(printable(f"{event.decoder} {name}"), total=None, note="")
            bars.update(tasks[key], completed=done, total=total, note=note)

        yield listen


def _plain(known: Mapping[str, Collection[str]]) -> Listener:
    started: dict[str, float] = {}
    printed: dict[tuple[str, str], float] = {}

    def listen(event: Event) -> None:
        now = time.monotonic()
        for line in _announced(event, known):
            print(line, file=sys.stderr, flush=True)
        begun = started.setdefault(event.decoder, now)
        if (counted := _counted(event)) is None:
            return
        what, done, total, note = counted
        # The first word on causes comes at once, since the next may take long; the last comes always.
        last = printed.setdefault((event.decoder, what), begun if what == _CASES else 0.0)
        if now - last < _PLAIN_EVERY_S and (what != _CAUSES or done != total):
            return
        printed[event.decoder, what] = now
        counts = many(done, what.removesuffix("s")) if total is None else f"{done} of {total} {what}"
        line = f"{event.decoder}: {counts}"
        if what == _CASES and total and done:
            line += f", about {(now - begun) / done * (total - done):.0f} s left"
        print(f"{line}{f'; {note}' if note else ''}", file=sys.stderr, flush=True)

    return listen


_CASES, _CAUSES = "cases", "failing cases explained"


def _counted(event: Event) -> tuple[str, int, int | None, str] | None:
    """What an event counts, how far it is and of how many, and a note; None for one that counts nothing."""
    if isinstance(event, Settling):
        note = f"cause {event.number}: {event.symptom}" if event.symptom else many(event.number, "cause")
        return _CAUSES, event.done, event.total, printable(note)
    if isinstance(event, CaseDone):
        if event.stored:
            return "stored cases", event.done, None, ""
        what = f"sampled {_CASES}" if event.lane.endswith("sampling") else _CASES
        return what, event.done, event.total, f"{event.failing} in violation" if event.failing else ""
    return None


def _announced(event: Event, known: Mapping[str, Collection[str]]) -> list[str]:
    """What is drawn, and each kind of failure when it is first seen; the end of an audit says what is confirmed."""
    if isinstance(event, Started):
        cases = many(event.total, "case") if event.total else "cases for as long as the budget allows"
        families = f", {'family' if len(event.families) == 1 else 'families'} {', '.join(event.families)}"
        sampled = ", and sampled ones" if event.sampled else ""
        return [printable(f"{event.decoder}: draws {cases}{sampled}{families if event.families else ''}")]
    if isinstance(event, ViolationSeen):
        symptom = event.outcome.symptom
        listed = ", known" if symptom in known.get(event.decoder, ()) else ""
        return [
            printable(f"{event.decoder}: seen, not confirmed yet: {symptom}{listed} (case {event.outcome.case.id})")
        ]
    return []


def summary(reports: Sequence[Report], folders: Sequence[str]) -> str:
    """What an audit found, the most important last: there a terminal stands still.

    Of one decoder its warnings, each cause with its explanation and its reproduce command, the most frequent cause
    last, and then the verdict, a line a cause, and the page. Of several the same without explanations, then a table.
    No line is longer than the terminal is wide, but for commands, which are copied.
    """
    width, several, blocks = columns(), len(reports) > 1, []
    if any(beyond_claim(report) for report in reports):
        blocks.append(f"{matrix_table(reports, width=width)}\n{wrapped(UNCLAIMED_NOTE, width)}")
    for report, folder in zip(reports, folders, strict=True):
        about, verdict = _about(report, width, short=several), _verdict(report, folder, width, short=several)
        if several:
            blocks.append("\n".join([*about, *verdict]))
        else:
            body = [*(["\n".join(about)] if about else []), *_causes(report, width)]
            blocks += [*body[:-1], "\n".join([*body[-1:], *verdict])]  # no line between them: 24 are few
    return "\n\n".join([*blocks, *([_table(reports, width)] if several else [])])


def _table(reports: Sequence[Report], width: int) -> str:
    rows = []
    for report in reports:
        by_component: Counter[str] = Counter()
        for violation in report.violations:
            by_component[violation.component] += violation.count
        row = [report.decoder.name, report.verdict, report.cases.run]
        row += [percent(report.equivalence.exact_match), percent(report.equivalence.prefix_match)]
        shown = ", ".join(f"{name} {count}" for name, count in by_component.most_common()) or "-"
        rows.append([*row, f"{shown} (VACUOUS)" if _vacuous(report) else shown])
    headers = ["decoder", "verdict", "cases", "exact match", "prefix match", "violations by component"]
    aligned = ("left", "left", "right", "right", "right")
    short = ["decoder", "verdict", "cases", "exact", "prefix", "violations"]
    return table(rows, headers, width, short, colalign=aligned)


def _vacuous(report: Report) -> bool:
    """Whether a warning says that the audit did not exercise what it is for."""
    return any(kind == VACUOUS for _, kind in report.noticed)


def _verdict(report: Report, folder: str, width: int, short: bool) -> list[str]:
    """The verdict, a line for each cause with how many cases show it, and where the page is.

    ``short``: the causes are explained nowhere else, so what each means is said here.
    """
    name, cases, equal = report.decoder.name, report.cases, report.equivalence
    failing = f" in {cases.violation} of" if report.verdict == "violation" and cases.violation else ","
    line = f"{name}: {report.verdict}{failing} {many(cases.run, 'case')}"
    line += "; VACUOUS, see the warning" if _vacuous(report) else ""
    if equal.exact_match not in (None, 1):
        line += f"; exact match {percent(equal.exact_match)}, prefix match {percent(equal.prefix_match)}"
    lines = [line]
    marks = (("", report.violations), ("DISCOVERY, ", report.discoveries), ("INCONCLUSIVE, ", report.inconclusive))
    for mark, findings in marks:
        for one in findings:
            known = " (known)" if one.known else ""
            meaning = f", {one.cause.meaning}" if short else ""
            lines.append(f"  {mark}{many(one.count, 'case')}: {one.fingerprint}{known}{meaning}")
    page = f", page: {folder}/report.html" if Path(folder, "report.html").is_file() else ""
    return [wrapped(line, width) for line in [*lines, f"{name}: report in {folder}{page}"]]


_FOREIGN_FRAMES = (f"site-packages{os.sep}", f"{Path(__file__).parents[1].name}{os.sep}")  # torch's, and eqcheck's


def _last_frames(traceback: str) -> list[str]:
    r"""Where the decoder's own code was when it raised, and the last frame; the whole is in report.json.

    >>> print("|".join(_last_frames('Traceback:\n  File "mine.py", line 3, in feed\n    x[9]\nIndexError: 9')))
          File "mine.py", line 3, in feed|        x[9]
    """
    frames: list[list[str]] = []
    for line in traceback.rstrip().splitlines():
        if line.startswith("  File "):
            frames.append([])
        if frames and line.startswith("  "):
            frames[-1].append(f"    {line}")
    own = [frame for frame in frames if not any(part in frame[0] for part in _FOREIGN_FRAMES)]
    shown = [*own[-1:], *(frame for frame in frames[-1:] if frame not in own[-1:])]
    return [line for frame in shown for line in frame]


def _about(report: Report, width: int, short: bool) -> list[str]:
    """What is to be known of the audit beside its findings: warnings, and (unless ``short``) what it leaves out."""
    name = report.decoder.name
    lines = []
    if report.corpus.replayed:
        lines.append(f"{name}: {many(report.corpus.replayed, 'stored case')} replayed, {report.corpus.failing} failing")
    lines += [f"{name}: {line}" for line in (declined_of(report), "" if short else not_taken(report)) if line]
    if (pair := report.real_pair) and not pair.rows:
        lines.append(f"{name}: not tried on trained models, {pair.first}")
    elif pair:
        lines.append(f"{name}: on trained models {pair.equivalent} of {pair.rows} rows are the target's")
        lines += ["", pair.first] if pair.first and not report.violations else []
    lines += [f"{name}: {line}" for line in [*sampled(report)[: 1 if short else 4], *memory(report)]]
    lines += [f"{name}: WARNING {warning}" for warning in report.warnings]
    return [wrapped(line, width) for line in lines]


def _causes(report: Report, width: int) -> list[str]:
    """Each cause with its explanation, the most frequent violation last."""
    name, run = report.decoder.name, report.cases.run
    blocks = []
    for doubtful in reversed(report.inconclusive):
        title = f"{name}: INCONCLUSIVE, {doubtful.count} of {run} cases; answers do not repeat"
        blocks.append(_finding(doubtful, title, width))
    for discovery in reversed(report.discoveries):
        families = [f for f, entry in report.matrix.items() if discovery.fingerprint in entry.fingerprints]
        where = [f for f in families if not report.matrix[f].claimed] or [str(discovery.case.get("family", "-"))]
        title = f"{name}: DISCOVERY, {many(discovery.count, 'case')} in families not claimed ({', '.join(where)})"
        blocks.append(_finding(discovery, title, width))
    for violation in reversed(report.violations):
        known = f", {violation.in_known_words}" if violation.known else ""
        blocks.append(_finding(violation, f"{name}: {violation.count} of {run} cases{known}", width))
    return blocks


def _finding(finding: ReportedViolation, title: str, width: int) -> str:
    title += " and a stored one of an earlier audit" if finding.from_corpus else ""
    lines = [wrapped(title, width), _explanation(finding, width), *_last_frames(finding.traceback)]
    lines += [wrapped(f"  Where: {statement}.", width) for statement in finding.only]
    for condition in finding.conditions[1:]:
        needs = ", ".join(condition.needs) or "the defaults"
        lines.append(f"  Also with {needs}: {many(condition.count, 'case')}. {condition.reproduce}")
    return "\n".join([*lines, f"  Reproduce: {finding.reproduce}"])


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
    from eqcheck.selfcheck.memory import table as memory_table  # it imports torch, which a report does not need

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
    from eqcheck.selfcheck.samplers import named_as_planted
    from eqcheck.selfcheck.samplers import table as sampled_table

    lines = ["", sampled_table(check.sampled), ""]
    for what, held_back in (("all faults", None), ("developed on", False), ("held back", True)):
        right, wrong, seen = named_as_planted(check.sampled, held_back)
        lines.append(f"sampling, {what}: {seen} seen, {right} named as planted, {wrong} by another kind")
    return lines
