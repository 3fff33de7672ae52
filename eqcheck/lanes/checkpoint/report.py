"""What an engine's audit leaves on disk: report.json, report.md, a case file and a script per finding."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tabulate import tabulate

from eqcheck import __version__
from eqcheck.campaign.casefile import command, file_stem, write_whole
from eqcheck.lanes.checkpoint.drawing import COUNTERS
from eqcheck.lanes.checkpoint.loop import stored_finding
from eqcheck.lanes.checkpoint.result import EngineAudit, Finding
from eqcheck.lanes.checkpoint.script import scripted
from eqcheck.plain import cleaned, code, fenced, inline, one_line
from eqcheck.report.transparent import REPORT_FORMAT, declined_of, known, percent, unwritten

CLEAN_SHOWS = (
    "A clean audit shows that no case drawn from this seed made the engine emit a token that the float64 target does "
    "not, on one tiny Llama and on the axes counted below. It does not show: sampling, other architectures, low "
    "precision, several devices, speed, or draft-side faults that cost acceptance alone."
)


def write(audit: EngineAudit, folder: Path) -> dict[str, Any]:
    """Write the report of an audit into ``folder``; returns it. A script is written only if it was seen to fail.

    On a full disk what is there stays, and the report has a warning.
    """
    texts = {finding.fingerprint: audit.scripts.get(finding.fingerprint) for finding in audit.findings}
    scripts = {name: folder / f"{file_stem(name)}.py" for name, text in texts.items() if text is not None}
    for finding in audit.findings:
        name = finding.fingerprint
        if name in audit.scripts and texts[name] is None and scripted(audit, finding):
            audit.warnings.append(f"{name}: a script of it alone does not show it")
    report = to_dict(audit, folder, {name: str(path) for name, path in scripts.items()})
    files = {scripts[name]: text for name, text in texts.items() if text is not None}
    files |= {_case_file(folder, finding): stored_finding(audit, finding).to_json() for finding in audit.findings}
    files |= {folder / "report.json": json.dumps(report, indent=1) + "\n", folder / "report.md": to_markdown(report)}
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text)
        for path in {*folder.glob("*.py"), *folder.glob("cases/*.json")} - set(files):
            path.unlink()
    except OSError as error:
        report["warnings"].append(unwritten(folder, error))
    return report


def to_dict(audit: EngineAudit, folder: Path, scripts: Mapping[str, str]) -> dict[str, Any]:
    """The report as the contract's ``eqcheck-report/1``; its texts can be printed, whatever the engine says."""
    report: dict[str, Any] = cleaned(_to_dict(audit, folder, scripts))
    return report


def _to_dict(audit: EngineAudit, folder: Path, scripts: Mapping[str, str]) -> dict[str, Any]:
    outcomes, decoder = audit.claimed, audit.decoder
    statuses = Counter(outcome.status for outcome in audit.outcomes)
    count = len(outcomes)
    unclear = sum(outcome.drawn for outcome in audit.doubtful) + audit.unsettled
    drafted = sum(outcome.answer.observed.get("drafted", 0) for outcome in outcomes)
    accepted = sum(outcome.answer.observed.get("accepted", 0) for outcome in outcomes)
    return {
        "format": REPORT_FORMAT,
        "decoder": {"name": decoder.name, "origin": decoder.origin, "version": audit.version or decoder.version},
        "verdict": audit.verdict,
        "cases": {
            "run": count,
            "equivalent": statuses["equivalent"],
            "tie": statuses["tie"],
            "violation": statuses["violation"] - unclear,
            "inconclusive": unclear,
            "skipped": statuses["skipped"],
        },
        "equivalence": {
            "exact_match": round(sum(o.exact_match for o in outcomes) / count, 4) if count else None,
            "prefix_match": round(sum(o.prefix_match for o in outcomes) / count, 4) if count else None,
        },
        "declined": audit.declined,
        "requires": list(decoder.requires),
        "coverage": audit.coverage,
        "violations": [_finding(audit, finding, folder, scripts) for finding in audit.findings],
        "discoveries": [],
        "inconclusive": [],
        "warnings": [one_line(warning, 2000) for warning in audit.warnings],
        "ties": audit.ties,
        "acceptance": round(accepted / drafted, 3) if drafted else None,
        "cases_per_second": round(len(audit.outcomes) / audit.drawing_s, 2) if audit.drawing_s else None,
        "families": [],
        "matrix": {},
        "cache_states": {},
        "capabilities": list(decoder.capabilities),
        "corpus": {
            "replayed": len(audit.replayed),
            "failing": sum(outcome.status == "violation" for outcome in audit.replayed),
        },
        "real_pair": None,
        "stale": [],
        "interrupted": audit.interrupted,
        "isolated": True,
        "seed": audit.options.seed,
        "elapsed_s": round(audit.elapsed, 1),
    }


def _finding(audit: EngineAudit, finding: Finding, folder: Path, scripts: Mapping[str, str]) -> dict[str, Any]:
    e = finding.explanation
    return {
        "fingerprint": finding.fingerprint,
        "component": e.component,
        "kind": e.kind,
        "count": finding.count,
        "known": known(audit.decoder, finding.fingerprint),
        "first": {
            "row": e.row,
            "token_index": e.token_index,
            "round": e.round,
            "expected": e.expected,
            "observed": e.observed,
        },
        "case": finding.case.to_dict(),
        "needs": list(finding.needs),
        "without_speculation": finding.plain,
        "from_corpus": False,
        "minimised": finding.minimised,
        "explanation": f"{finding.text}\n  {about_plain(finding)}",
        "details": e.to_dict(),
        "traceback": finding.outcome.answer.traceback,
        "script": scripts.get(finding.fingerprint),
        "reproduce": command(_case_file(folder, finding), audit.decoder.spec),
    }


def about_plain(finding: Finding) -> str:
    """What the case needs, and whether the fault is the speculation's."""
    needed = f"Needs {', '.join(finding.needs)}." if finding.needs else "Needs no option: the defaults are enough."
    if finding.plain == "right":
        return f"{needed} Without speculation the engine is right on this case."
    if finding.plain == "not known":
        return needed
    return f"{needed} Without speculation the engine is wrong on this case too: the fault is not the speculation's."


def to_markdown(report: Mapping[str, Any]) -> str:
    """The report for a reader; texts of the engine stay in their places."""
    cases, equivalence = report["cases"], report["equivalence"]
    accepted = f", {report['acceptance']:.0%} of the draft tokens accepted" if report["acceptance"] else ""
    lines = [
        f"# {inline(report['decoder']['name'])} {inline(report['decoder']['version'])}: {report['verdict']}",
        "",
        f"{cases['run']} cases, seed {report['seed']}, {report['elapsed_s']} s "
        f"({report['cases_per_second']} cases a second while drawing){accepted}, eqcheck {__version__}. "
        f"{inline(report['decoder']['origin'])}".rstrip(),
        "",
        f"Exact match {percent(equivalence['exact_match'])}, prefix match {percent(equivalence['prefix_match'])}. "
        f"{report['ties']} near-ties (`eqcheck/lanes/checkpoint/judge.py` has the policy).",
        "",
    ]
    if declined := declined_of(report):
        lines += [inline(f"{declined}."), ""]
    if report["warnings"]:
        lines += ["## Warnings", "", *(f"- {inline(warning)}" for warning in report["warnings"]), ""]
    if report["violations"]:
        lines += [
            "Counted with a violation are cases that look the same and need no other options, or whose wrong tokens",
            "the same edit yields, be it by chance, those of the corpus among them; the cause is of the case shown.",
            "",
        ]
    for violation in report["violations"]:
        text = "\n\n".join(part for part in (violation["explanation"], violation["traceback"].rstrip()) if part)
        lines += [f"## {inline(violation['fingerprint'])}: {violation['count']} cases", "", *fenced(text), ""]
        script = violation["script"]
        alone = f", or with the engine alone: {code(f'python {script}')}" if script else ""
        case, reproduce = code(json.dumps(violation["case"])), code(violation["reproduce"])
        lines += [f"Case: {case}", "", f"Reproduce: {reproduce}{alone}", ""]
    rows = [(name, report["coverage"].get(name, 0), what) for name, what in COUNTERS.items()]
    table = tabulate(rows, headers=("exercised", "cases", "what"), tablefmt="github")
    return "\n".join(
        [*lines, "## What was exercised", "", table, "", "## What a clean audit does not show", "", CLEAN_SHOWS, ""]
    )


def _case_file(folder: Path, finding: Finding) -> Path:
    return folder / "cases" / f"{file_stem(finding.fingerprint)}.json"
