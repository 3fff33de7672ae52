"""Reports and case files: what an audit leaves on disk. Every file is written whole or not at all."""

from __future__ import annotations

import json
import os
import re
import shlex
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tabulate import tabulate

from eqcheck import __version__
from eqcheck.audit import Audit, ViolationRecord
from eqcheck.case import CASE_FORMAT, Case
from eqcheck.coverage import COUNTERS
from eqcheck.errors import UsageError

REPORT_FORMAT = "eqcheck-report/1"
VIOLATION_FORMAT = "eqcheck-violation/1"
CLEAN_SHOWS = (
    "A clean audit shows that no case drawn from this seed broke the decoder on the families named. It does not show: "
    "sampling (greedy only), numerical near-ties of low-precision kernels (arithmetic here is exact), speed or "
    "acceptance, other families, longer rows or larger batches than were drawn, or code paths of real models "
    "that the transparent target does not have."
)


@dataclass(frozen=True)
class StoredViolation:
    """What a case file says: the case, the adapter it broke, the fingerprint then (None for a bare case), the limit."""

    case: Case
    adapter: str | None = None
    fingerprint: str | None = None
    case_timeout: float = 60.0


def write(audit: Audit, folder: Path) -> dict[str, Any]:
    """Write ``report.json``, ``report.md`` and one case file per violation into ``folder``; returns the report."""
    cases = folder / "cases"
    cases.mkdir(parents=True, exist_ok=True)
    report = to_dict(audit, folder)
    for violation in audit.violations:
        stored = {
            "format": VIOLATION_FORMAT,
            "eqcheck": __version__,
            "adapter": audit.decoder.spec or audit.decoder.name,
            "fingerprint": violation.fingerprint,
            "case_timeout": audit.options.case_timeout,
            "case": violation.case.to_dict(),
            "explanation": violation.text,
        }
        _write(_case_file(folder, violation), json.dumps(stored, indent=1) + "\n")
    _write(folder / "report.json", json.dumps(report, indent=1) + "\n")
    _write(folder / "report.md", to_markdown(audit, report))
    return report


def to_dict(audit: Audit, folder: Path) -> dict[str, Any]:
    """The report as the contract's ``eqcheck-report/1``."""
    outcomes, decoder = audit.outcomes, audit.decoder
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
            "skipped": 0,
        },
        "equivalence": {
            "exact_match": round(sum(o.exact_match for o in outcomes) / count, 4) if count else None,
            "prefix_match": round(sum(o.prefix_match for o in outcomes) / count, 4) if count else None,
        },
        "coverage": audit.coverage,
        "violations": [_violation(audit, v, folder) for v in audit.violations],
        "warnings": audit.warnings,
        "families": list(audit.families),
        "interrupted": audit.interrupted,
        "seed": audit.options.seed,
        "elapsed_s": round(audit.elapsed, 1),
    }


def _violation(audit: Audit, violation: ViolationRecord, folder: Path) -> dict[str, Any]:
    e = violation.explanation
    known = audit.decoder.known.get(violation.fingerprint)
    return {
        "fingerprint": violation.fingerprint,
        "component": e.component,
        "kind": e.kind,
        "count": violation.count,
        "known": known,
        "first": {
            "row": e.row,
            "token_index": e.token_index,
            "round": e.round,
            "expected": e.expected,
            "observed": e.observed,
        },
        "case": violation.case.to_dict(),
        "explanation": violation.text,
        "details": e.to_dict(),
        "traceback": violation.traceback,
        "reproduce": f"eqcheck replay {shlex.quote(str(_case_file(folder, violation)))}",
    }


def to_markdown(audit: Audit, report: Mapping[str, Any]) -> str:
    """The report for a reader."""
    cases, equivalence = report["cases"], report["equivalence"]
    lines = [
        f"# {audit.decoder.name}: {report['verdict']}",
        "",
        f"{cases['run']} cases, seed {report['seed']}, families {', '.join(report['families'])}, "
        f"{report['elapsed_s']} s, eqcheck {__version__}. {audit.decoder.origin}",
        "",
        f"Exact match {percent(equivalence['exact_match'])}, prefix match {percent(equivalence['prefix_match'])} "
        "(means over rows: rows equal in full; leading equal tokens as a share of the row).",
        "",
    ]
    if report["warnings"]:
        lines += ["## Warnings", "", *(f"- {warning}" for warning in report["warnings"]), ""]
    for violation in report["violations"]:
        known = f" (declared as known: {violation['known']})" if violation["known"] else ""
        lines += [
            f"## {violation['fingerprint']}: {violation['count']} cases{known}",
            "",
            "```",
            "\n\n".join(part for part in (violation["explanation"], violation["traceback"].rstrip()) if part),
            "```",
            "",
            f"Reproduce: `{violation['reproduce']}`",
            "",
        ]
    rows = [(name, report["coverage"].get(name, 0), what) for name, what in COUNTERS.items()]
    table = tabulate(rows, headers=("exercised", "cases", "what"), tablefmt="github")
    lines += ["## What was exercised", "", table, "", "## What a clean audit does not show", "", CLEAN_SHOWS, ""]
    return "\n".join(lines)


def percent(share: float | None) -> str:
    """A share as a percentage, ``-`` for none; never rounded up to 100."""
    if share is None:
        return "-"
    return "100 %" if share == 1 else f"{min(share * 100, 99.9):.1f} %"


def read_case(path: Path) -> StoredViolation:
    """Read a case file, or a bare case; `UsageError` says what is wrong with it."""
    try:
        data = json.loads(path.read_text())
    except FileNotFoundError:
        raise UsageError(f"case file {path}: there is no such file") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"case file {path}: cannot read it as JSON: {error}") from error
    if isinstance(data, dict) and data.get("format") == CASE_FORMAT:
        return StoredViolation(Case.from_dict(data))
    if not isinstance(data, dict) or data.get("format") != VIOLATION_FORMAT:
        got = data.get("format") if isinstance(data, dict) else type(data).__name__
        raise UsageError(f"case file {path}: expected format {VIOLATION_FORMAT!r} or {CASE_FORMAT!r}, got {got!r}")
    adapter, fingerprint, timeout = data.get("adapter"), data.get("fingerprint"), data.get("case_timeout", 60.0)
    for name, value, kind in (
        ("adapter", adapter, str),
        ("fingerprint", fingerprint, str),
        ("case_timeout", timeout, float),
    ):
        if not isinstance(value, kind):
            raise UsageError(f"case file {path}: {name}: expected {kind.__name__}, got {value!r}")
    return StoredViolation(Case.from_dict(data.get("case", {})), adapter, fingerprint, timeout)


def _case_file(folder: Path, violation: ViolationRecord) -> Path:
    return folder / "cases" / (re.sub(r"[^A-Za-z0-9.-]+", "-", violation.fingerprint).strip("-") + ".json")


def _write(path: Path, text: str) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(handle, "w") as file:
        file.write(text)
    os.chmod(temporary, 0o644)
    os.replace(temporary, path)
