"""Turn an audit into its report, and write the files that keep it."""

from __future__ import annotations

import html
import json
import platform
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from eqcheck import __version__
from eqcheck.contract.errors import UsageError, one_line
from eqcheck.core.case.record import AnyCase
from eqcheck.core.explanation.notice import LIMIT, InternalError, guarded, kind_of
from eqcheck.core.explanation.records import Explanation, many
from eqcheck.core.explanation.text import cause_words, render
from eqcheck.core.result import losses
from eqcheck.core.result.findings import Audit, Finding, by_cause
from eqcheck.core.store.casefile import (
    StoredViolation,
    case_of,
    command,
    file_stem,
    read_case,
    stored_violation,
    target_of,
    write_whole,
)
from eqcheck.report.checks import Check, as_xml, junit
from eqcheck.report.markdown import to_markdown
from eqcheck.report.schema import (
    FORMAT,
    Cases,
    Cause,
    Condition,
    CorpusCases,
    DecoderInfo,
    EqualRows,
    FamilyCases,
    First,
    Memory,
    Report,
    ReportedViolation,
    Served,
    from_builtins,
    printable_report,
    to_builtins,
)
from eqcheck.report.terminal import summary

# A report in every medium. Findings that one of them cannot show are shown bare, and no medium is left out.

UNSHOWN = "eqcheck failed when it wrote what is wrong here; the case shows it"
MARKDOWN, PAGE = "report.md", "report.html"
Medium = Callable[[Report], str]


def _page(report: Report) -> str:
    from eqcheck.report.page import to_html  # jinja, which only a page needs

    return to_html(report)


_MEDIA: dict[str, Medium] = {
    MARKDOWN: to_markdown,
    PAGE: _page,
    "terminal": lambda report: summary([report], [""]),
    "junit": lambda report: junit([report], allow_declared=False),
}


def in_all_media(audit: Audit, reported: Callable[[], Report]) -> tuple[Report, dict[str, str]]:
    """The report of an audit, as ``reported`` makes it, and its text in each medium that is a file.

    A finding that cannot be rendered loses what is told of it beside its name, which is better than no report; why is
    among the internal errors of the audit. The loop ends because each turn makes a finding bare, or is the last.
    """
    for finding in list(audit.findings):
        _render(audit, finding)
    report, texts = _made(audit, reported), dict[str, str]()
    for name, medium in _MEDIA.items():
        with guarded(audit.internal, "report", lane=audit.lane):
            texts[name] = medium(report)
        if name in texts:
            continue
        for finding in list(audit.findings):
            _show(audit, finding, report, medium)
        report = reported()
    if audit.internal:  # also of the last medium
        report = reported()
        texts = {name: _drawn(medium, report) or _plain(name, report) for name, medium in _MEDIA.items()}
    return report, {name: texts[name] for name in (MARKDOWN, PAGE)}


def _made(audit: Audit, reported: Callable[[], Report]) -> Report:
    """The report; where a finding makes that fail, of bare findings."""
    with guarded(audit.internal, "report", lane=audit.lane):
        return reported()
    for finding in list(audit.findings):
        _make_bare(audit, finding)
    return reported()


def in_terminal(reports: Sequence[Report], places: Sequence[str]) -> str:
    """The reports as a terminal shows them, or what can be shown of them."""
    try:
        return summary(reports, places)
    except Exception:  # the record of it is in the report, if the report alone shows it
        return "\n".join(map(in_lines, reports))


def as_junit(reports: Sequence[Report], allow_declared: bool, places: dict[str, tuple[str, int]]) -> str:
    """JUnit's XML of the reports; of one that fails, its verdict."""
    try:
        return junit(reports, allow_declared, places)
    except Exception:
        return as_xml([(report.decoder.name, [_verdict(report)], report.elapsed_s) for report in reports], places)


def _verdict(report: Report) -> Check:
    return Check("verdict", "failed" if report.verdict == "violation" else "inconclusive", in_lines(report))


def in_lines(report: Report) -> str:
    """The verdict, the causes and the errors of eqcheck, with nothing that could fail again."""
    causes = [f"  {one.fingerprint} in {many(one.count, 'case')}: {one.reproduce}" for one in report.violations]
    errors = [error.text for error in report.internal_errors]
    return "\n".join([f"{report.decoder.name}: {report.verdict}", *causes, *errors])


def _plain(name: str, report: Report) -> str:
    text = in_lines(report)
    return f"<!doctype html>\n<pre>{html.escape(text)}</pre>\n" if name == PAGE else f"{text}\n"


def _drawn(medium: Medium, report: Report) -> str:
    try:
        return medium(report)
    except Exception:  # it was recorded when this medium was tried first
        return ""


def _render(audit: Audit, finding: Finding) -> None:
    shown = False
    with guarded(audit.internal, "render", finding.case):
        render(finding.explanation)
        shown = True
    if not shown:
        _make_bare(audit, finding)


def _show(audit: Audit, finding: Finding, report: Report, medium: Medium) -> None:
    """Make a finding bare that a medium cannot show, with nothing else in the report."""
    kinds = ("violations", "discoveries", "inconclusive")
    alone: dict[str, Any] = {
        kind: tuple(one for one in getattr(report, kind) if one.fingerprint == finding.fingerprint) for kind in kinds
    }
    shown = False
    with guarded(audit.internal, "render", finding.case):
        medium(replace(report, **alone))
        shown = True
    if not shown:
        _make_bare(audit, finding)


def _make_bare(audit: Audit, finding: Finding) -> None:
    e = finding.explanation
    bare = Explanation(e.component, e.kind, subject=e.subject, detail=UNSHOWN)
    place = next(number for number, one in enumerate(audit.findings) if one is finding)
    outcome = replace(finding.outcome, explanation=bare, traceback="")
    left: dict[str, object] = {"axes": {}, "only": (), "others": (), "story": None}
    audit.findings[place] = replace(finding, outcome=outcome, explanation=bare, **left)  # type: ignore[arg-type]


_FOLDERS = {"violation": "cases", "discovery": "discoveries", "inconclusive": "inconclusive", "slow": "slow"}
_INTERNAL = "internal"  # the folder of cases in which eqcheck itself failed
_PACKAGES = ("torch", "transformers", "hypothesis")


def write(audit: Audit, folder: Path) -> Report:
    """Write ``report.json``, ``report.md``, ``report.html``, and a case file (and script) per finding into ``folder``.

    Files of earlier audits that the report does not name are removed. On a full disk what is there stays, and the
    report has a warning.
    """
    report, texts = in_all_media(audit, lambda: report_of(audit, folder))
    files = {
        _case_file(folder, finding): stored_violation(audit, finding, finding.id).to_json()
        for finding in audit.findings
    }
    files |= {_script_file(folder, finding): finding.script for finding in audit.findings if finding.script}
    files |= {folder / name: text for name, text in audit.files.items()}
    files |= dict(_unjudged(audit, folder))
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text)
        write_whole(folder / "report.json", json.dumps(to_builtins(report), indent=1) + "\n")
        for name in (MARKDOWN, PAGE):
            write_whole(folder / name, texts[name])
        for path in {
            *folder.glob("*.py"),
            *(file for name in (*_FOLDERS.values(), _INTERNAL) for file in folder.glob(f"{name}/*.json")),
        }:
            if path not in files and _is_ours(path):
                path.unlink(missing_ok=True)
    except OSError as error:
        why = error.strerror or error
        warning = f"the report could not be written to {one_line(str(folder))}: {why}; older files stay"
        data = to_builtins(report)
        kinds = [*data["warning_kinds"], ""]
        report = from_builtins({**data, "warnings": [*data["warnings"], warning], "warning_kinds": kinds})
    return report


def report_of(audit: Audit, folder: Path) -> Report:
    """The report of an audit whose files lie in ``folder``; its texts can be printed, whatever the decoder says."""
    decoder, facts, tally = audit.decoder, audit.facts, audit.tally
    statuses, count = tally.statuses, tally.run
    shares = [round(total / count, 4) if count else None for total in (tally.exact, tally.prefix)]
    report = Report(
        format=FORMAT,
        lane=audit.lane,
        decoder=DecoderInfo(decoder.name, decoder.origin, audit.version or decoder.version),
        versions=_versions(audit),
        verdict=audit.verdict,  # type: ignore[arg-type]
        cases=Cases(
            count,
            statuses["equivalent"],
            statuses["tie"],
            statuses["violation"] - audit.inconclusive,
            audit.inconclusive,
            sum(tally.declined.values()),
        ),
        equivalence=EqualRows(*shares),
        coverage=audit.coverage,
        violations=_violations(audit, "violation", folder),
        discoveries=_violations(audit, "discovery", folder),
        inconclusive=_violations(audit, "inconclusive", folder),
        slow=_violations(audit, "slow", folder),
        warnings=tuple(one_line(warning, LIMIT) for warning in audit.warnings),
        warning_kinds=tuple(map(kind_of, audit.warnings)),
        declined=tally.declined,
        requires=decoder.requires,
        capabilities=decoder.capabilities if decoder.checkpoints else (),
        families=audit.families,
        matrix={family: FamilyCases(**cells) for family, cells in facts.get("matrix", {}).items()},
        cache_states=facts.get("cache_states", {}),
        reached=facts.get("reached", {}),
        draft_losses=facts.get("draft_losses", {}),
        acceptance=facts.get("acceptance"),
        dictated_rounds=facts.get("dictated_rounds", {}),
        due_drafts={str(place): counts for place, counts in losses.due(tally.due).items()},
        pairs={str(pair): count for pair, count in sorted(tally.pairs.items())},
        ties=tally.ties,
        near_ties=tally.near_ties,
        laws=sum(finding.explanation.of_law for finding in audit.violations),
        slots_seen=round(tally.slots["seen"] / handed, 4) if (handed := tally.slots["handed"]) else None,
        memory=Memory(**facts["memory"]) if facts.get("memory") else None,
        corpus=CorpusCases(tally.replayed, tally.failing),
        sampling=audit.evidence,
        real_pair=None,
        stale=tuple(audit.stale),
        outdated=tuple(audit.outdated),
        served=_served(audit),
        unreached=tuple(audit.unreached),
        internal_errors=tuple(_reported(audit, error, folder) for error in audit.internal),
        written=audit.written,
        command=audit.command,
        interrupted=audit.interrupted,
        isolated=audit.options.isolate or audit.lane == "engine",
        seed=audit.options.seed,
        cases_per_second=round(tally.drawn / audit.drawing_s, 2) if audit.drawing_s else None,
        elapsed_s=round(audit.elapsed, 1),
    )
    return printable_report(report)


def _versions(audit: Audit) -> dict[str, str]:
    versions = {"eqcheck": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    engine = audit.version or audit.decoder.version
    return versions | ({audit.decoder.name: engine} if engine else {})


def _served(audit: Audit) -> tuple[Served, ...]:
    """The cases on checkpoints, by kind and drafter; the random checkpoint has no name of a kind."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for one, count in audit.tally.served.items():
        if one.status != "skipped":
            kind = "random" if one.checkpoint in ("", "llama") else one.checkpoint
            counts.setdefault((kind, one.drafter), Counter())[one.status] += count
    return tuple(
        Served(audit.decoder.dtype, kind, drafter, counted.total(), counted["violation"])
        for (kind, drafter), counted in sorted(counts.items())
    )


def _violations(audit: Audit, standing: str, folder: Path) -> tuple[ReportedViolation, ...]:
    """The findings of one standing by cause; of each the condition with the fewest needs first."""
    violations = []
    for findings in by_cause(audit.of(standing)).values():
        ordered = sorted(findings, key=lambda finding: (len(finding.needs), -finding.count))
        violations.append(_violation(audit, ordered, folder))
    return tuple(violations)


def _violation(audit: Audit, findings: list[Finding], folder: Path) -> ReportedViolation:
    shown, e = findings[0], findings[0].explanation
    listed = audit.listed.get(e.fingerprint)
    known = listed.link if listed else audit.decoder.known.get(e.fingerprint)
    conditions = tuple(_condition(audit, finding, folder) for finding in findings)
    return ReportedViolation(
        fingerprint=e.fingerprint,
        component=e.component,
        kind=e.kind,
        count=sum(finding.count for finding in findings),
        first=First(e.row, e.token_index, e.round, e.expected, e.observed),
        cause=Cause(e.component, e.kind, e.subject, cause_words(e)),
        conditions=conditions,
        evidence=e,
        explanation=render(e, shown.needs if shown.minimised else None, shown.plain),
        case=conditions[0].case,
        minimised=shown.minimised,
        from_corpus=shown.stored,
        known=None if known is None else one_line(known),
        axes=_axes(shown),
        only=shown.only,
        traceback=shown.outcome.traceback,
        reproduce=conditions[0].reproduce,
        story=shown.story,
        known_until=listed.until.isoformat() if listed else None,
        others=shown.others,
        stored=sum(finding.replayed for finding in findings),
        tokens=shown.tokens,
    )


def _axes(finding: Finding) -> dict[str, dict[str, tuple[int, int]]]:
    """Failing cases and all, by axis and value; without values of no failing drawn case that the smallest one has."""
    own = finding.case.axes if finding.minimised and finding.axes else {}
    return {
        axis: {value: (failed, of) for value, (failed, of) in values.items() if failed or own.get(axis) != value}
        for axis, values in finding.axes.items()
    }


def _condition(audit: Audit, finding: Finding, folder: Path) -> Condition:
    return Condition(
        needs=finding.needs,
        count=finding.count,
        case=finding.case.to_dict(),
        minimised=finding.minimised,
        from_corpus=finding.stored,
        without_speculation=finding.plain,
        script=str(_script_file(folder, finding)) if finding.script else None,
        reproduce=command(_case_file(folder, finding), audit.decoder.spec, target_of(finding.case)),
    )


def _case_file(folder: Path, finding: Finding) -> Path:
    return folder / _FOLDERS[finding.standing] / f"{file_stem(finding.id)}.json"


def _script_file(folder: Path, finding: Finding) -> Path:
    return folder / f"{file_stem(finding.id)}.py"


def _internal_file(folder: Path, case: AnyCase) -> Path:
    return folder / _INTERNAL / f"{case.lane}-{case.id}.json"


def _unjudged(audit: Audit, folder: Path) -> Iterator[tuple[Path, str]]:
    """The cases in which eqcheck itself failed, as files for `eqcheck replay`; no violation is known of them."""
    options = audit.options
    for error in audit.internal:
        if error.case is None:
            continue
        case = case_of(error.case)
        isolated = options.isolate or case.lane.startswith("engine")
        memory = options.case_memory if options.isolate else None
        adapter = audit.decoder.spec or audit.decoder.name
        stored = StoredViolation(case, adapter, None, options.case_timeout, isolated, memory, minimised=False)
        yield _internal_file(folder, case), stored.to_json()


def _reported(audit: Audit, error: InternalError, folder: Path) -> InternalError:
    """An error of eqcheck with the command that decodes its case again."""
    if error.case is None:
        return error
    case = case_of(error.case)
    return replace(error, reproduce=command(_internal_file(folder, case), audit.decoder.spec, target_of(case)))


def _is_ours(path: Path) -> bool:
    """Return whether an audit wrote a file: nothing else is removed."""
    try:
        if path.suffix == ".py":
            return "by eqcheck" in path.read_text(errors="replace")[:400]
        return read_case(path).adapter is not None
    except (OSError, UsageError):
        return False
