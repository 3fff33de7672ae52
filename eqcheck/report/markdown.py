"""Reports: what an audit leaves on disk, for programs (JSON), for readers (Markdown) and for replays (case files)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tabulate import tabulate

from eqcheck import __version__
from eqcheck.attribution.rounds import settled
from eqcheck.campaign.casefile import VIOLATION_FORMAT, StoredViolation, command, file_stem, read_case, write_whole
from eqcheck.campaign.result import Audit, ViolationRecord, stored_violation
from eqcheck.case import Case
from eqcheck.contract import FAMILIES, Decoder
from eqcheck.errors import UsageError
from eqcheck.lanes.transparent import declining
from eqcheck.lanes.transparent.conditions import AXES, conditions, only
from eqcheck.lanes.transparent.coverage import COUNTERS, REACHED, reached
from eqcheck.plain import cleaned, code, fenced, inline, one_line
from eqcheck.report.text import sentence

__all__ = ["VIOLATION_FORMAT", "StoredViolation", "read_case", "write"]

REPORT_FORMAT = "eqcheck-report/1"
CLEAN_SHOWS = (
    "A clean audit shows that no case drawn from this seed broke the decoder on the families named. It does not show: "
    "sampling (greedy only), numerical near-ties of low-precision kernels (arithmetic here is exact), speed or "
    "acceptance, other families, longer rows or larger batches than were drawn, or code paths of real models "
    "that the transparent target does not have."
)
_FOLDERS = ("cases", "discoveries", "inconclusive")


def write(audit: Audit, folder: Path) -> dict[str, Any]:
    """Write ``report.json``, ``report.md`` and a case file per finding into ``folder``; returns the report.

    Case files of earlier audits that the report does not name are removed. On a full disk what is there stays, and the
    report has a warning.
    """
    report = to_dict(audit, folder)
    try:
        _save(audit, report, folder)
    except OSError as error:
        report["warnings"].append(unwritten(folder, error))
    return report


def unwritten(folder: Path, error: OSError) -> str:
    """The warning that stands for a report which could not be written."""
    return f"the report could not be written to {one_line(str(folder))}: {error.strerror or error}; older files stay"


def _save(audit: Audit, report: Mapping[str, Any], folder: Path) -> None:
    named = set()
    for name, records in zip(_FOLDERS, (audit.violations, audit.discoveries, audit.doubtful), strict=True):
        for record in records:
            path = _case_file(folder, name, record)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, stored_violation(audit, record).to_json())
            named.add(path)
    write_whole(folder / "report.json", json.dumps(report, indent=1) + "\n")
    write_whole(folder / "report.md", to_markdown(report))
    for path in {path for name in _FOLDERS for path in (folder / name).glob("*.json")} - named:
        if _is_case_file(path):
            path.unlink(missing_ok=True)


def to_dict(audit: Audit, folder: Path) -> dict[str, Any]:
    """The report as the contract's ``eqcheck-report/1``; its texts can be printed, whatever the decoder says."""
    report: dict[str, Any] = cleaned(_to_dict(audit, folder))
    return report


def _to_dict(audit: Audit, folder: Path) -> dict[str, Any]:
    outcomes, decoder = audit.claimed, audit.decoder
    statuses = Counter(outcome.status for outcome in outcomes)
    count = len(outcomes)
    return {
        "format": REPORT_FORMAT,
        "decoder": {"name": decoder.name, "origin": decoder.origin, "version": decoder.version},
        "verdict": audit.verdict,
        "cases": {
            "run": count,
            "equivalent": statuses["equivalent"],
            "tie": statuses["tie"],
            "violation": statuses["violation"] - audit.inconclusive,
            "inconclusive": audit.inconclusive,
            "skipped": len(audit.declined),
        },
        "equivalence": {
            "exact_match": round(sum(o.exact_match for o in outcomes) / count, 4) if count else None,
            "prefix_match": round(sum(o.prefix_match for o in outcomes) / count, 4) if count else None,
        },
        "declined": declining.reasons_of(audit.declined),
        "requires": list(decoder.requires),
        "coverage": audit.coverage,
        "reached": reached([outcome.case for outcome in outcomes]),
        "violations": [_finding(audit, v, folder, "cases") for v in audit.violations],
        "discoveries": [_finding(audit, v, folder, "discoveries") for v in audit.discoveries],
        "inconclusive": [_finding(audit, v, folder, "inconclusive") for v in audit.doubtful],
        "warnings": [one_line(warning, 2000) for warning in audit.warnings],
        "families": list(audit.families),
        "matrix": _matrix(audit),
        "cache_states": audit.cache_states,
        "draft_losses": dict(sorted(settled(audit.losses).items())),
        "corpus": {
            "replayed": len(audit.replayed),
            "failing": sum(outcome.status == "violation" for outcome in audit.replayed),
        },
        "real_pair": audit.on_pair.to_dict() if audit.on_pair else None,
        "stale": audit.stale,
        "interrupted": audit.interrupted,
        "isolated": audit.options.isolate,
        "seed": audit.options.seed,
        "elapsed_s": round(audit.elapsed, 1),
    }


def _matrix(audit: Audit) -> dict[str, dict[str, Any]]:
    """Per family what the drawn cases showed; failures that do not repeat are no violations."""
    matrix = {}
    for family in audit.families:
        drawn = [outcome for outcome in audit.outcomes if outcome.case.family == family]
        outcomes = [outcome for outcome in drawn if not outcome.declined]
        failing = Counter(str(outcome.fingerprint) for outcome in outcomes if outcome.fingerprint)
        matrix[family] = {
            "claimed": family in audit.decoder.families,
            "cases": len(outcomes),
            "declined": len(drawn) - len(outcomes),
            "violations": failing.total() - sum(map(audit.in_doubt, outcomes)),
            "inconclusive": sum(map(audit.in_doubt, outcomes)),
            "fingerprints": dict(failing.most_common()),
        }
    return matrix


def _finding(audit: Audit, record: ViolationRecord, folder: Path, where: str) -> dict[str, Any]:
    e = record.explanation
    failing, right, hidden = _counted(audit, record)
    return {
        "fingerprint": record.fingerprint,
        "component": e.component,
        "kind": e.kind,
        "count": record.count,
        "known": known(audit.decoder, record.fingerprint),
        "first": {
            "row": e.row,
            "token_index": e.token_index,
            "round": e.round,
            "expected": e.expected,
            "observed": e.observed,
        },
        "conditions": conditions(failing, [*failing, *right, *hidden]),
        "only": only(failing, right, len(hidden)),
        "case": record.case.to_dict(),
        "from_corpus": record.stored,
        "minimised": record.minimised,
        "explanation": record.text,
        "details": e.to_dict(),
        "traceback": record.traceback,
        "reproduce": command(_case_file(folder, where, record), audit.decoder.spec),
    }


def _counted(audit: Audit, record: ViolationRecord) -> tuple[list[Case], list[Case], list[Case]]:
    """Of the drawn cases on the record's side of the claim those that count with it, that are right, and the others."""
    kinds: tuple[list[Case], list[Case], list[Case]] = ([], [], [])
    claimed = record.case.family in audit.decoder.families
    for outcome in audit.outcomes:
        if (outcome.case.family in audit.decoder.families) == claimed and not outcome.declined:
            right = outcome.status in ("equivalent", "tie")
            kinds[1 if right else 0 if outcome.fingerprint in record.read else 2].append(outcome.case)
    return kinds


def known(decoder: Decoder, fingerprint: str) -> str | None:
    """The link that the decoder declares for a violation, or None."""
    link = decoder.known.get(fingerprint)
    return None if link is None else one_line(link)


def to_markdown(report: Mapping[str, Any]) -> str:
    """The report for a reader; texts of the decoder stay in their places."""
    cases, equivalence, corpus = report["cases"], report["equivalence"], report["corpus"]
    replayed = f", {corpus['replayed']} stored cases replayed ({corpus['failing']} fail)" if corpus["replayed"] else ""
    lines = [
        f"# {inline(report['decoder']['name'])}: {report['verdict']}",
        "",
        f"{cases['run']} cases, seed {report['seed']}, families {', '.join(report['families'])}{replayed}, "
        f"{report['elapsed_s']} s, eqcheck {__version__}. {inline(report['decoder']['origin'])}".rstrip(),
        "",
        f"Exact match {percent(equivalence['exact_match'])}, prefix match {percent(equivalence['prefix_match'])} "
        "(means over rows: rows equal in full; leading equal tokens as a share of the row).",
        "",
    ]
    if on_pair := report["real_pair"]:
        lines += [
            f"On the shipped pair of trained models, in float64, {on_pair['equivalent']} of {on_pair['rows']} rows "
            "are what the target emits alone.",
            "",
        ]
        lines += [f"    {line}" for line in on_pair["first"].splitlines()] + [""] if on_pair["first"] else []
    if declined := declined_of(report):
        lines += [inline(f"{declined}."), ""]
    if report["warnings"]:
        lines += ["## Warnings", "", *(f"- {inline(warning)}" for warning in report["warnings"]), ""]
    lines += ["## Families", "", matrix_table([report], tablefmt="github"), ""]
    lines += [UNCLAIMED_NOTE, ""] if beyond_claim(report) else []
    if not_taken(report):
        lines += [not_taken(report), ""]
    for violation in report["violations"]:
        known = f" (declared as known: {violation['known']})" if violation["known"] else ""
        lines += _section(violation, f"{violation['fingerprint']}: {_count(violation)}{known}")
    for discovery in report["discoveries"]:
        lines += _section(
            discovery, f"Discovery: {discovery['fingerprint']}: {_count(discovery)}, families not claimed"
        )
    for doubtful in report["inconclusive"]:
        lines += _section(doubtful, f"Inconclusive: {doubtful['fingerprint']}: {_count(doubtful)}")
    rows = [(name, report["coverage"].get(name, 0), what) for name, what in COUNTERS.items()]
    table = tabulate(rows, headers=("exercised", "cases", "what"), tablefmt="github")
    largest = ", ".join(f"{report['reached'][name]} {what}" for name, what in REACHED.items())
    lines += [
        "## What was exercised",
        "",
        f"At most {largest}.",
        "",
        table,
        "",
        "## What a clean audit does not show",
        "",
        CLEAN_SHOWS,
        "",
    ]
    return "\n".join(lines)


def _section(finding: Mapping[str, Any], title: str) -> list[str]:
    text = "\n\n".join(part for part in (finding["explanation"], finding["traceback"].rstrip()) if part)
    shown = [
        *_conditions(finding),
        *(line for statement in finding["only"] for line in (sentence(statement), "")),
    ]
    return [f"## {inline(title)}", "", *fenced(text), "", *shown, f"Reproduce: {code(finding['reproduce'])}", ""]


def _conditions(finding: Mapping[str, Any]) -> list[str]:
    """Failing cases over cases run; an axis of one value says nothing."""
    rows = []
    for axis, values in finding["conditions"].items():
        counts = [f"{value}: {failed}/{of}" for value, (failed, of) in values.items()]
        rows += [[AXES[axis], ", ".join(counts)]] if len(counts) > 1 and finding["count"] else []
    return [tabulate(rows, headers=("by", "failing of run"), tablefmt="github"), ""] if rows else []


def _count(finding: Mapping[str, Any]) -> str:
    return f"{finding['count']} cases{' and one stored before' if finding['from_corpus'] else ''}"


UNCLAIMED_NOTE = "In brackets: families the decoder does not claim; what is found there is a discovery, no violation."


def matrix_table(reports: list[Mapping[str, Any]], tablefmt: str = "simple") -> str:
    """Decoders by families: ``ok 50`` or ``violation 12/50``, in brackets where a family is not claimed."""
    families = [family for family in FAMILIES if any(family in report["matrix"] for report in reports)]
    rows = []
    for report in reports:
        cells = [_cell(report["matrix"].get(family)) for family in families]
        rows.append([report["decoder"]["name"], *cells])
    return tabulate(rows, headers=["decoder", *families], tablefmt=tablefmt)


def _cell(entry: Mapping[str, Any] | None) -> str:
    if entry is None:
        return "-"
    what = f"ok {entry['cases']}" if entry["cases"] else "no case"
    if not entry["cases"] and entry["declined"]:
        what = f"declined {entry['declined']}"
    for kind, key in (("violation", "violations"), ("inconclusive", "inconclusive")):
        if entry[key]:
            what = f"{kind} {entry[key]}/{entry['cases']}"
    return what if entry["claimed"] else f"[{what}]"


def beyond_claim(report: Mapping[str, Any]) -> bool:
    """Whether the audit looked at a family that the decoder does not claim."""
    return not all(entry["claimed"] for entry in report["matrix"].values())


def not_taken(report: Mapping[str, Any]) -> str:
    """One line that names the cache states which the decoder does not take; empty when it takes all."""
    states = [state for state, cases in report["cache_states"].items() if cases == "not taken"]
    return f"cache states not taken: {', '.join(states)}" if states else ""


def declined_of(report: Mapping[str, Any]) -> str:
    """One line on the cases that the decoder declined, and why; empty when it declined none."""
    return declining.told(report["declined"], report["cases"]["run"] + report["cases"]["skipped"])


def percent(share: float | None) -> str:
    """A share as a percentage, ``-`` for none; never rounded up to 100."""
    if share is None:
        return "-"
    return "100 %" if share == 1 else f"{min(share * 100, 99.9):.1f} %"


def _case_file(folder: Path, where: str, record: ViolationRecord) -> Path:
    return folder / where / f"{file_stem(record.fingerprint)}.json"


def _is_case_file(path: Path) -> bool:
    try:
        return read_case(path).adapter is not None
    except UsageError:
        return False
